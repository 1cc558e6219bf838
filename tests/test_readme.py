"""The README's programs run as they stand."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jprec import Study, formats, matmul, program, rounding
from jprec.study import run_cell

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("index", [0, 1], ids=["nnx", "linen"])
def test_the_digits_cnn_trains_in_float16_in_some_forty_lines(blocks, capsys, index):
    lines = [line for line in blocks[index].splitlines() if line.strip()]
    assert len(lines) <= 40
    exec(compile(blocks[index], "README", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    loss, accuracy, taken = re.findall(
        r"loss ([\d.]+), accuracy ([\d.]+) loss scale \d+: (\d+) steps taken", printed
    )[0]
    assert float(loss) < 0.5
    assert float(accuracy) > 0.8
    assert int(taken) > 150


def test_the_study_of_one_s_own_has_some_twenty_lines_and_trains(blocks):
    names = {"__name__": "readme"}
    exec(compile(blocks[2], "README", "exec"), names)
    study = names["STUDY"]
    assert isinstance(study, Study)
    lines = [line for line in blocks[2].splitlines() if line.strip() and line[0] != "#"]
    assert len(lines) <= 22
    record = run_cell(study.settings[0], "mixed_bf16")
    assert max(record["test_loss"]) < 0.2


def test_the_one_liners_do_what_they_say():
    key, x = jax.random.key(0), jnp.linspace(-3, 3, 7)
    assert set(rounding.round_to(x, "e4m3fn", "stochastic", key=key).tolist()) <= set(
        formats.values("e4m3fn").tolist()
    )
    a = jnp.ones((2, 3))
    assert matmul.matmul(a, a.T, "tf32@a100").tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert program.emulate(jnp.dot, "tf32")(x, x).shape == ()
    assert formats.explain(43008.111, "fp16").bits == "0 11110 0101000000"
