import builtins
import json
import sys

import pytest

from jprec import formats
from jprec.cli import main


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(words)
    printed = capsys.readouterr()
    return end.value.code, printed.out, printed.err


def test_the_table_lists_every_format(capsys):
    status, printed, said = run(capsys, "formats")
    assert (status, said) == (0, "")
    assert [line.split()[0] for line in printed.splitlines()[3:]] == list(formats.names())


def test_one_format_gets_its_binades_and_several_a_table(capsys):
    _, printed, _ = run(capsys, "formats", "tf32")
    assert "3 survive decimal → tf32 → decimal" in printed
    assert "[2⁰, 2¹)            1024  2⁻¹⁰ = 0.0009765625" in printed
    assert len(run(capsys, "formats", "tf32", "--every")[1].splitlines()) > 255
    _, printed, _ = run(capsys, "formats", "float16", "e5m3", "binary8p4se")
    assert [line.split()[0] for line in printed.splitlines()[3:]] == ["fp16", "e5m3", "binary8p4se"]


def test_machines_get_the_numbers(capsys):
    _, printed, _ = run(capsys, "formats", "fp16", "e8m0fnu", "--json", "--every")
    half, scale = json.loads(printed)
    assert (half["max"], half["min_subnormal"], half["min_exponent"]) == (65504.0, 2.0**-24, -14)
    assert half["binades"][-1] == {"exponent": 15, "low": 32768.0, "spacing": 32.0, "values": 1024}
    assert scale["min_subnormal"] is None
    assert scale["has_zero"] is False


def test_binades_are_in_json_where_they_are_asked_for(capsys):
    (half,) = json.loads(run(capsys, "formats", "fp16", "--json")[1])
    assert len(half["binades"]) == 31
    printed = run(capsys, "formats", "--json")[1]
    assert "binades" not in printed
    assert len(printed.splitlines()) < 500


@pytest.mark.parametrize("words", [("tf32,fp16",), ("tf32", "fp16"), ("tf32, fp16,",)])
def test_names_are_separated_by_blanks_or_commas(capsys, words):
    printed = run(capsys, "formats", *words)[1]
    assert [line.split()[0] for line in printed.splitlines()[3:]] == ["tf32", "fp16"]


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_a_picture_is_written_and_named(capsys, tmp_path, ending):
    path = tmp_path / f"e2m1fn.{ending}"
    assert run(capsys, "formats", "e2m1fn", "--plot", str(path)) == (0, f"{path}\n", "")
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[ending])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fp15",), "unknown format 'fp15'; did you mean fp16"),
        ((",",), "no format is named"),
        (
            ("--plot", "picture.jpg"),
            "--plot picture.jpg: a picture's name ends in .svg, .png, .pdf",
        ),
        (("--plot", "picture"), "--plot picture: a picture's name ends in .svg, .png, .pdf"),
        (("fp16", "--plot", "no/such/folder.svg"), "cannot write no/such/folder.svg: No such file"),
    ],
)
def test_bad_input_gets_one_line_and_status_2(capsys, words, said):
    status, printed, complaint = run(capsys, "formats", *words)
    assert (status, printed) == (2, "")
    assert complaint.startswith(f"jprec: {said}")
    assert complaint.count("\n") == 1


def test_without_matplotlib_the_extra_is_named(capsys, monkeypatch, tmp_path):
    real = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    for name in [n for n in sys.modules if n.startswith("jprec.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("jprec.report", raising=False)
    status, printed, said = run(capsys, "formats", "--plot", str(tmp_path / "all.svg"))
    assert (status, printed) == (2, "")
    assert said == "jprec: --plot needs matplotlib: pip install 'jprec[lab]'.\n"
