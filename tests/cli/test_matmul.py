import json

import pytest

from jprec.cli import main


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(["matmul", *words])
    printed = capsys.readouterr()
    return end.value.code, printed.out, printed.err


def test_the_table_has_a_line_for_each_spec(capsys):
    status, printed, said = run(capsys, "--spec", "tf32@a100, fp32,bf16x3", "--size", "8x32x4")
    assert (status, said) == (0, "")
    lines = printed.splitlines()
    assert lines[0].startswith("[8, 32] @ [32, 4], normal numbers, seed 0; against float64; emulat")
    assert [line.split()[0] for line in lines[-3:]] == ["tf32@a100", "fp32", "bf16x3"]
    assert all(len(line) < 125 for line in lines)


def test_machines_get_numbers_that_keep_the_bound(capsys):
    _, printed, _ = run(capsys, "--spec", "fp32,tf32", "--size", "16", "--json")
    fp32, tf32 = json.loads(printed)
    assert fp32["spec"] == "fp32"
    assert 0 < 50 * fp32["rms"] < tf32["rms"] <= tf32["largest"] <= tf32["bound"]


def test_errors_are_drawn_against_the_length_of_the_sums(capsys, tmp_path, monkeypatch):
    from jprec.cli import matmul as verb

    monkeypatch.setattr(verb, "LENGTHS", (4, 16))
    path = tmp_path / "errors.svg"
    status, printed, _ = run(capsys, "--spec", "tf32", "--size", "4", "--plot", str(path))
    assert (status, printed.splitlines()[-1]) == (0, str(path))
    assert ">products in a sum, K<" in path.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--spec", "tf23"), "unknown product spec 'tf23'; did you mean tf32"),
        (("--size", "3x4"), "--size 3x4: one number, or three as in 128x4096x64"),
        (("--size", "0"), "each at least 1"),
        (("--size", "10000000"), "--size 10000000: matrices of that size do not fit"),
        (("--seed", "-1"), "--seed -1"),
        (("--spec", "tf32@native", "--size", "4"), "native products are for NVIDIA GPUs"),
        (("--spec", "tf32", "--size", "2", "--plot", "x.txt"), "ends in .svg, .png, .pdf"),
    ],
)
def test_bad_input_gets_one_line_and_status_2(capsys, words, said):
    status, _, error = run(capsys, *words)
    assert (status, error.count("\n")) == (2, 1)
    assert said in error
