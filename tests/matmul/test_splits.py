"""Precision recovered from products of split operands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import matmul
from jprec.matmul.sums import split

RNG = np.random.default_rng(0)
A, B = np.float32(RNG.standard_normal((40, 4096))), np.float32(RNG.standard_normal((4096, 40)))


def ladder_error(name: str) -> float:
    """The largest error of the split products, over mean |AB|, multiplied and added in float64."""
    spec = matmul.get(name)
    parts = [[np.float64(p) for p in split(jnp.asarray(x), spec)] for x in (A, B)]
    scale = 2.0**-spec.split_scale
    total = sum(parts[0][i] @ parts[1][j] * scale ** (i + j) for i, j in spec.pairs)
    exact = np.float64(A) @ np.float64(B)
    return float(np.abs(total - exact).max() / np.abs(exact).mean())


def test_the_ladder_of_recovered_precision():
    """Research: N(0, 1), K = 10240: 1.8e-3, 5.4e-7, 1.3e-2, 2.8e-5, 3.7e-8, 4e-15."""
    errors = {n: ladder_error(n) for n in ("tf32", "tf32x3", "bf16", "bf16x3", "bf16x6", "bf16x9")}
    errors |= {name: ladder_error(name) for name in ("fp16x3", "fp16x6", "fp16x9")}
    expected = {"tf32": 2e-3, "tf32x3": 6e-7, "bf16": 1.4e-2, "bf16x3": 3e-5, "bf16x6": 5e-8}
    for name, about in expected.items():
        assert about / 4 < errors[name] < about * 2, (name, errors[name])
    assert errors["bf16x9"] < 1e-13
    assert errors["fp16x3"] < 2 * errors["tf32x3"]
    assert errors["fp16x9"] <= errors["fp16x6"] < errors["fp16x3"] / 100


def test_fp32_sums_leave_little_of_it():
    exact = np.float64(A) @ np.float64(B)

    def error(name):
        return float(np.abs(np.float64(matmul.matmul(A, B, name)) - exact).max())

    errors = {name: error(name) for name in ("fp32", "tf32", "tf32x3", "bf16x6", "bf16x9")}
    assert errors["tf32"] > 300 * errors["fp32"]
    assert errors["tf32x3"] < 4 * errors["fp32"]  # without FP32 sums: a hundredth of that
    assert errors["bf16x6"] < 4 * errors["fp32"]
    assert errors["bf16x9"] < 4 * errors["fp32"]


@pytest.mark.parametrize(
    ("name", "share"), [("bf16x9", 1.0), ("tf32x3:nearest_even", 0.75), ("fp16x3", 0.75)]
)
def test_how_many_fp32_numbers_are_the_sum_of_their_parts(name, share):
    x = np.float32(np.random.default_rng(1).uniform(1, 2, 100_000))
    spec = matmul.get(name)
    parts = [np.float64(p) * 2.0 ** (-spec.split_scale * i) for i, p in enumerate(split(x, spec))]
    exact = float(np.mean(sum(parts) == np.float64(x)))
    assert exact == share == 1.0 or abs(exact - share) < 0.01


def test_remainders_are_rounded_in_the_mode_of_the_spec():
    x = np.float32(np.random.default_rng(2).uniform(1, 2, 1000))
    high, low = split(x, matmul.get("tf32x3:toward_zero"))
    assert np.all(np.asarray(high) <= x)
    rest = x - np.asarray(high)
    truncated = (rest.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    np.testing.assert_array_equal(low, truncated)


def test_the_unscaled_split_of_fp16_would_lose_the_remainder():
    x = jnp.float32(1.1e-3)
    high, low = split(x, matmul.get("fp16x3"))
    assert low != 0
    unscaled = (x - high).astype(jnp.float16).astype(jnp.float32)
    exact = float(x) - float(high)
    assert abs(float(low) * 2.0**-11 - exact) < abs(float(unscaled) - exact)


def test_infinities_and_nan_stay_what_they_are():
    b = jnp.ones((1, 1))
    for name in ("tf32x3", "bf16x9", "fp16x3", "tf32x3@a100"):
        got = matmul.matmul(jnp.float32([[np.inf], [-np.inf], [np.nan]]), b, name)[:, 0].tolist()
        assert got[:2] == [np.inf, -np.inf]
        assert np.isnan(got[2])
    assert matmul.matmul(jnp.float32([[7e4]]), b, "fp16x3") == np.inf  # beyond FP16's range


def test_derivatives_are_split_products_too():
    x = jnp.full((1, 1), 1.0001)
    one = jax.grad(lambda w: matmul.matmul(x, w, "tf32")[0, 0])(jnp.ones((1, 1)))
    three = jax.grad(lambda w: matmul.matmul(x, w, "tf32x3")[0, 0])(jnp.ones((1, 1)))
    assert (float(one[0, 0]), float(three[0, 0])) == (1.0, float(x[0, 0]))
