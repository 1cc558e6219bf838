from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import formats, rounding
from jprec.rounding.kernel import default_random_bits
from jprec.rounding.rounder import rounded
from jprec.rounding.storage import as_floats

#: All dither values of 16 random bits, left-aligned.
DITHERS = (np.arange(2**16, dtype=np.uint64) << 16).astype(np.uint32)

NUMBERS = {
    "bf16": [1.0, 1.001, -1.0039, 1.9999, 3.3e38, 3.4028235e38, 1e-40, -7e-39, 0.0, 123.456],
    "fp16": [
        *(1.0, 1.0001, -1.00048828125, 65519.0, -65504.5, 7e-6, 2.0**-24, 1.3 * 2.0**-24),
        *(0.4 * 2.0**-24, -0.7 * 2.0**-26, 2.0**-40, 1e-44, 0.0, 2.0**-14 * 0.9999),
    ],
    "e4m3fn": [1.06, 447.0, -0.001, 0.0146, 1e-20, 0.0021],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a12_the_mean_over_all_dither_values_is_the_number(name):
    """Exact: dropped bits beyond the 16 random ones are cut off, toward zero."""
    fmt = formats.get(name)
    plan = rounding.Rounding(format=fmt, mode="stochastic")
    x = np.float32(NUMBERS[name])
    _, storage = as_floats(x)
    grid = jnp.broadcast_to(x[:, None], (len(x), len(DITHERS)))
    dithers = jnp.broadcast_to(DITHERS, grid.shape)
    drawn = np.asarray(jax.jit(rounded, static_argnums=(2, 3))(grid, dithers, plan, storage))
    for number, results in zip(x.tolist(), drawn, strict=True):
        low, high = (formats.round_exact(number, name, mode) for mode in ("down", "up"))
        assert set(results.tolist()) <= {low, high}, number
        inner, outer = sorted((low, high), key=abs)
        if inner == outer:
            continue
        # The next value may be infinity; then its place is where the exponent would go on.
        unit = Fraction(2) ** (
            max(int(rounding.exponent(np.float32(number))), fmt.min_exponent) - fmt.mantissa_bits
        )
        fraction = (abs(Fraction(number)) - abs(Fraction(inner))) / unit
        count = int(np.count_nonzero(results == np.float32(outer)))
        assert count == int(fraction * 2**16), (number, count)


def test_enough_random_bits_are_drawn_by_default():
    held = formats.get("fp32")
    bits = {n: default_random_bits(formats.get(n), held) for n in ("bf16", "tf32", "e8m2", "fp16")}
    assert bits == {"bf16": 16, "tf32": 16, "e8m2": 32, "fp16": 32}


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5)])
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_any_shape_can_be_drawn_for(shape, name):
    x = jnp.full(shape, 1.001, jnp.float32)
    got = rounding.round_to(x, name, "stochastic", key=jax.random.key(0))
    assert got.shape == shape
    assert set(got.ravel().tolist()) <= {
        formats.round_exact(np.float32(1.001), name, mode) for mode in ("down", "up")
    }


@pytest.mark.parametrize(("random_bits", "probability"), [(1, 0.5), (2, 0.75), (3, 0.875)])
def test_few_random_bits_cut_the_probability_off(random_bits, probability):
    x = jnp.full(20_000, 1 + (1 - 2.0**-12) * 2.0**-7, jnp.float32)  # nearly the next bf16 number
    key = jax.random.key(3)
    got = rounding.round_to(x, "bf16", "stochastic", key=key, random_bits=random_bits)
    share = float(jnp.mean(got > 1))
    assert abs(share - probability) < 5 * (0.25 / 20_000) ** 0.5


def test_values_of_the_format_never_move(assert_same_bits):
    for name in ("fp16", "bf16", "e4m3fn"):
        x = formats.values(name).astype(np.float32)
        got = rounding.round_to(x, name, "stochastic", key=jax.random.key(1))
        assert_same_bits(got, x)


def test_the_key_decides_and_elements_are_independent():
    x = jnp.full(4096, 1 + 2.0**-8, jnp.float32)  # half way between two bf16 numbers

    def draw(seed):
        return np.asarray(rounding.round_to(x, "bf16", "stochastic", key=jax.random.key(seed)) > 1)

    first, again, other = draw(0), draw(0), draw(1)
    np.testing.assert_array_equal(first, again)
    four_sigma = 4 * 0.5 / 4096**0.5
    assert abs(first.mean() - 0.5) < four_sigma
    assert abs((first == other).mean() - 0.5) < four_sigma
    for distance in (1, 2, 1024, 2048):
        assert abs((first[distance:] == first[:-distance]).mean() - 0.5) < 2 * four_sigma


def test_a12_many_small_steps_arrive_on_average():
    """1 + 1000 * 1e-4 in bf16: to nearest nothing moves; the theory's deviation is 0.0278."""

    def walk(key, mode):
        def step(value, key):
            moved = value + jnp.float32(1e-4)
            if mode == "stochastic":
                return rounding.round_to(moved, "bf16", mode, key=key), None
            return rounding.round_to(moved, "bf16", mode), None

        return jax.lax.scan(step, jnp.float32(1.0), jax.random.split(key, 1000))[0]

    ends = jax.jit(jax.vmap(lambda key: walk(key, "stochastic")))(
        jax.random.split(jax.random.key(5), 500)
    )
    assert abs(float(ends.mean()) - 1.1) < 4 * 0.0278 / 500**0.5
    assert 0.024 < float(ends.std()) < 0.032
    assert float(walk(jax.random.key(0), "nearest_even")) == 1.0
