import io
import json
import subprocess
import sys
from fractions import Fraction

import pytest

import jprec
from jprec import formats
from jprec.cli import main
from jprec.cli.words import terminal_width


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(words)
    printed = capsys.readouterr()
    return end.value.code, printed.out, printed.err


def test_one_format_gets_the_text_of_its_explanation(capsys):
    status, printed, said = run(capsys, "explain", "43008.111", "--format", "fp16")
    assert (status, said) == (0, "")
    # The float64 number nearest to 43008.111 is explained in the same words.
    assert printed == f"{formats.explain(43008.111, 'fp16')}\n"
    assert "0 11110 0101000000 = 0x7940" in printed


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("11.25", "11.25"),
        ("1.111328125", "1.111328125"),
        ("65519.999", "65504"),
        ("65520", "inf"),
        ("2^-24", "5.9604644775390625e-8"),
        ("2^-25", "0"),
        ("1e-46", "0"),
        ("-0", "-0"),
        ("-1.5", "-1.5"),
        ("-2^-24", "-5.9604644775390625e-8"),
        ("-0x1.8p1", "-3"),
        ("inf", "inf"),
        ("-inf", "-inf"),
        ("nan", "nan"),
        ("0x7bff", "65504"),
        ("0b1_00000_0000000001", "-5.9604644775390625e-8"),
    ],
)
def test_every_way_to_write_a_number_works(capsys, number, value):
    status, printed, _ = run(capsys, "explain", number, "--format=fp16")
    assert status == 0
    line = next(line for line in printed.splitlines() if line.startswith("  value"))
    assert line.split()[1] == value


def test_several_formats_stand_side_by_side(capsys):
    status, printed, _ = run(capsys, "explain", "--format", "fp16, e2m1fn,e8m0fnu", "-1.5")
    assert status == 0
    lines = printed.splitlines()
    assert lines[0] == "-1.5, nearest_even"
    assert lines[2].split() == ["fp16", "e2m1fn", "e8m0fnu"]
    status, printed, _ = run(capsys, "explain", "0.1")
    assert printed.splitlines()[2].split() == ["fp16", "bf16", "tf32", "fp32"]


def test_mode_and_overflow_are_used_and_shown(capsys):
    options = ("--format", "fp16", "--mode", "up", "--overflow", "saturate")
    _, printed, _ = run(capsys, "explain", "1e9", *options)
    assert "up, overflow saturate" in printed.splitlines()[0]
    assert "value       65504" in printed


def test_machines_get_exact_fractions(capsys):
    status, printed, _ = run(capsys, "explain", "0.1", "--format", "fp16,e4m3fn", "--json")
    half, eighth = json.loads(printed)
    assert status == 0
    assert (half["bits"], half["code"], half["below"]) == (
        "0 01011 1001100110",
        0x2E66,
        1638 / 2**14,
    )
    assert Fraction(half["fraction"]) == Fraction(819, 8192)
    assert half["midpoints"][0] == {"at": "3275/32768", "goes_to": 1638 / 2**14}
    assert eighth["given"] == "1/10"
    _, printed, _ = run(capsys, "explain", "nan", "--format", "e2m1fn,fp16", "--json")
    _, printed_huge, _ = run(capsys, "explain", "1.3e9000", "--format", "fp16", "--json")
    assert json.loads(printed_huge)[0]["given"] == "1.3e9000"
    assert [(e["code"], e["value"]) for e in json.loads(printed)] == [(None, "NaN"), (32256, "NaN")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("43008,1",), "'43008,1' is not a number: the decimal point is '.'"),
        (("",), "the number is empty; write a decimal"),
        (("1", "--format", "fp15"), "unknown format 'fp15'; did you mean fp16"),
        (("1", "--format", ""), "--format names no format"),
        (("1", "--format", " ,"), "--format names no format"),
        (("0x3f800000",), "bit pattern 0x3f800000 needs 30 bits, but fp16 has 16"),
        (
            ("1", "--mode", "nearest"),
            "no --mode 'nearest'; did you mean nearest_even or nearest_away? There are nearest_e",
        ),
        (("1", "--mode", "toward-zero"), "no --mode 'toward-zero'; did you mean toward_zero? "),
        (("1", "--mode", "xyz"), "no --mode 'xyz'; There are nearest_even, "),
        (
            ("1", "--mode", "stochastic"),
            "--mode stochastic goes by chance and needs a key, which a command has not: "
            "jprec.rounding.round_to(x, format, 'stochastic', key=key) rounds so.",
        ),
        (("1", "--overflow", "wrap"), "no --overflow 'wrap'; There are format, saturate."),
    ],
)
def test_bad_input_gets_one_line_and_status_2(capsys, words, said):
    status, printed, complaint = run(capsys, "explain", *words)
    assert (status, printed) == (2, "")
    assert complaint.startswith(f"jprec: {said}")
    assert complaint.count("\n") == 1


def test_a_misspelt_verb_is_recognised(capsys):
    status, printed, said = run(capsys, "expalin", "1")
    assert (status, printed) == (2, "")
    assert said.startswith("jprec: no verb 'expalin'; did you mean explain? There are explain, ")
    assert run(capsys, "xyzzy")[2].startswith("jprec: no verb 'xyzzy'; There are")


def test_a_misspelt_option_is_recognised(capsys):
    status, _, said = run(capsys, "explain", "1", "--fromat", "fp16")
    assert status == 2
    assert "--format" in said


def test_the_version_is_printed(capsys):
    assert run(capsys, "--version") == (0, f"jprec {jprec.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "examples"),
    [
        (("--help",), {"jprec explain 43008.111", "jprec formats", "jprec probe"}),
        (
            ("explain", "--help"),
            {"jprec explain 43008.111", "jprec explain 43008.111 --format fp16"},
        ),
        (("formats", "--help"), {"jprec formats", "jprec formats e4m3fn --plot e4m3fn.png"}),
    ],
)
def test_help_shows_each_example_on_a_line_of_its_own(capsys, words, examples):
    status, printed, _ = run(capsys, *words)
    assert status == 0
    assert examples <= {line.strip() for line in printed.splitlines()}


def test_the_word_help_is_the_option(capsys):
    assert run(capsys, "help") == run(capsys, "--help")
    assert run(capsys, "help", "formats") == run(capsys, "formats", "--help")


@pytest.mark.parametrize(
    "words",
    [
        ("1.5", "--format", "fp16,bf16"),
        ("1.5", "--format", "fp16 bf16"),
        ("1.5", "--format", "fp16", "bf16"),
        ("--format", "fp16,", "bf16,", "1.5"),
        ("--format=fp16", "bf16", "1.5"),
    ],
)
def test_formats_are_separated_by_commas_or_blanks(capsys, words):
    status, printed, _ = run(capsys, "explain", *words)
    assert status == 0
    assert printed.splitlines()[2].split() == ["fp16", "bf16"]


def test_a_trailing_comma_names_no_format(capsys):
    alone = run(capsys, "explain", "1", "--format", "fp16,")
    assert alone == run(capsys, "explain", "1", "--format", "fp16")
    assert alone[0] == 0


@pytest.mark.parametrize("columns", [75, 80, 100])
def test_a_terminal_gets_no_table_that_is_wider(capsys, monkeypatch, columns):
    for verb in ("explain", "formats"):
        monkeypatch.setattr(f"jprec.cli.{verb}.terminal_width", lambda: columns)
    for words in (("explain", "43008.111", "--format", "fp16,bf16,tf32,fp64"), ("formats",)):
        printed = run(capsys, *words)[1]
        assert max(map(len, printed.splitlines())) <= columns
        assert printed.count("---\n") > 1
    printed = run(capsys, "explain", "1.3", "--format", "fp16")[1]
    assert max(map(len, printed.splitlines()[2:])) <= max(columns, 60)


def test_a_pipe_gets_the_whole_width_and_a_terminal_its_own(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert terminal_width() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert terminal_width() == 60


def test_what_is_not_defined_is_nan_in_json_too(capsys):
    (nan,) = json.loads(run(capsys, "explain", "nan", "--format", "fp16", "--json")[1])
    names = ("value", "ulp", "error", "error_in_ulps", "relative_error", "spacing")
    assert {nan[name] for name in names} == {"NaN"}
    assert nan["quiet"] is True
    (zero,) = json.loads(run(capsys, "explain", "0", "--format", "fp16", "--json")[1])
    assert (zero["error"], zero["relative_error"], zero["quiet"]) == (0.0, "NaN", None)


@pytest.mark.parametrize("number", ["2^-24", "1.5*2^-24", "0x7bff", "1/3", "0.1", "-inf"])
def test_the_title_keeps_what_was_typed(capsys, number):
    printed = run(capsys, "explain", number, "--format", "fp16")[1]
    assert printed.startswith(f"{number} in fp16 (1 sign + 5 exponent")


def test_the_package_can_be_run():
    ended = subprocess.run(
        [sys.executable, "-m", "jprec", "--version"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, f"jprec {jprec.__version__}\n")


def test_neither_jax_nor_matplotlib_is_loaded_and_ascii_terminals_work():
    program = """
import sys
from jprec.cli import main
for words in (["explain", "1/3", "--format", "fp16"], ["formats"], ["formats", "tf32"]):
    try:
        main(words)
    except SystemExit as end:
        assert end.code == 0
loaded = {"jax", "matplotlib", "flax", "optax"} & set(sys.modules)
sys.exit(f"loaded: {loaded}" if loaded else 0)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1/3 in fp16" in ended.stdout
