"""The pages of docs/ say what the code does."""

import doctest
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from jprec import formats, report
from jprec.cli import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
IEEE754 = PAGES["ieee754.md"]


def loaded():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = loaded()


@pytest.mark.parametrize("page", PAGES)
def test_every_generated_part_is_up_to_date(page):
    assert generate.renewed(PAGES[page]) == PAGES[page], "run python docs/generate.py"


def test_every_generated_part_stands_on_a_page_and_is_closed():
    used = [name for page in PAGES.values() for name in report.generated_parts(page)]
    assert sorted(used) == sorted(generate.BLOCKS)
    opened = sum(page.count("<!-- generated: ") for page in PAGES.values())
    assert opened == len(used)


def test_every_picture_exists_and_is_shown_and_every_shown_one_exists():
    shown = {
        (page, target)
        for page, text in PAGES.items()
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    }
    assert all((DOCS / target).is_file() for _, target in shown)
    drawn = {f"pictures/{name}" for name in generate.PICTURES}
    assert drawn == {target for _, target in shown if target.startswith("pictures/")}
    assert drawn == {f"pictures/{path.name}" for path in (DOCS / "pictures").iterdir()}


def test_pictures_carry_no_date():
    for path in (DOCS / "pictures").iterdir():
        assert "<dc:date>" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", re.findall(r"`(jprec \w+ [^`]+)`", IEEE754))
def test_every_command_on_the_page_runs(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.replace("NAME", "fp16"))
    with pytest.raises(SystemExit) as end:
        main(words[1:])
    assert (end.value.code, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("command", "shown"), re.findall(r"```console\n\$ (jprec [^\n]*)\n(.*?)\n```", IEEE754, re.S)
)
def test_every_shown_output_is_what_the_command_prints(command, shown):
    assert generate.output(command) == shown


def test_the_python_on_the_page_does_what_it_shows():
    (block,) = re.findall(r"```python\n(.*?)```", IEEE754, re.S)
    test = doctest.DocTestParser().get_doctest(block, {}, "ieee754.md", None, 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_step_of_the_guide_trains(capsys):
    step, checkpoint = re.findall(r"```python\n(.*?)```", PAGES["mixed_precision.md"], re.S)
    names = {"__name__": "guide"}
    exec(compile(step, "mixed_precision.md", "exec"), names)
    assert "5 steps taken, 0 skipped" in capsys.readouterr().out
    assert float(names["loss"]) < 1.099  # log 3
    before = names["opt_state"]
    exec(compile(checkpoint, "mixed_precision.md", "exec"), names)
    assert names["opt_state"] is not before
    assert float(names["opt_state"].scale) == float(before.scale)


def test_what_the_guide_names_exists():
    words = set(re.findall(r"`(jprec(?:\.\w+)+)", PAGES["mixed_precision.md"]))
    assert len(words) > 10
    for word in words:
        found = importlib.import_module("jprec")
        for part in word.split(".")[1:]:
            found = getattr(found, part)


def test_every_defect_of_others_names_tests_that_exist():
    page = PAGES["defects.md"]
    files = dict(re.findall(r"^\| `([A-Z]+)` \| \[([\w/.]+)\]", page, re.M))
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", page, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 59))
    for number, cell in rows:
        named = re.findall(r"`([A-Z]+)::(test_\w+)`", cell)
        assert named or re.search(r"^as \d+$|not offered|tests/", cell), number
        for short, test in named:
            source = (DOCS.parent / files[short]).read_text(encoding="utf-8")
            assert f"def {test}(" in source, (number, short, test)


def test_numbers_in_the_prose_are_right():
    half = {n: formats.round_exact(n, "fp16") for n in (43023, 43024, 43025, 43056, 2049)}
    assert half == {43023: 43008, 43024: 43008, 43025: 43040, 43056: 43072, 2049: 2048}
    away = {n: formats.round_exact(n, "fp16", "nearest_away") for n in (43024, 43056)}
    assert away == {43024: 43040, 43056: 43072}
    assert formats.round_exact(2049, "tf32") == 2048
    shared = formats.values("fp16")
    normal = shared[abs(shared) >= formats.get("fp16").min_normal]
    assert all(formats.round_exact(v, "tf32") == v for v in normal[::97])
    fp16, tf32, bf16 = (formats.explain("0.1", name) for name in ("fp16", "tf32", "bf16"))
    assert fp16.value == tf32.value
    assert bf16.exact_error == -4 * fp16.exact_error
    assert formats.get("bf16").unit_roundoff == 8 * formats.get("fp16").unit_roundoff
    assert formats.encode(448, "e4m3fn") % 2 == 0
