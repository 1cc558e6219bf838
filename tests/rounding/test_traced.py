"""Rounding to a traced number of bits against the static one, of which it is a copy by bits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import formats, rounding
from jprec.rounding import round_to_mantissa

BITS = np.array([*range(1, 11), 16, 22, 23])


def static(x, mode, key=None):
    """[n] -> [bits, n]: `round_to` with each number of bits, in one compilation."""

    @jax.jit
    def every(x):
        return jnp.stack([rounding.round_to(x, f"e8m{n}", mode, key=key) for n in BITS])

    return every(x)


@functools.partial(jax.jit, static_argnames="mode")
def traced(x, bits, mode, key=None):
    return jax.vmap(lambda n: round_to_mantissa(x, n, mode, key=key))(bits)


@pytest.fixture(scope="module")
def numbers(points):
    """Values, midpoints and neighbours of formats with few and with many bits, and any bits."""
    few = points("e8m2", 2000)
    many = points("tf32", 200)[::7]
    words = np.random.default_rng(3).integers(0, 2**32, 2000, dtype=np.uint64)
    return np.concatenate([few, many, words.astype(np.uint32).view(np.float32)])


@pytest.mark.parametrize("mode", formats.MODES)
def test_every_number_of_bits_gives_what_the_static_rounding_gives(mode, numbers, assert_same_bits):
    assert_same_bits(traced(numbers, BITS, mode), static(numbers, mode))


def test_stochastic_rounding_uses_the_same_random_bits(numbers, assert_same_bits):
    key = jax.random.key(5)
    assert_same_bits(
        traced(numbers, BITS, "stochastic", key), static(numbers, "stochastic", key=key)
    )


@pytest.mark.parametrize("mode", formats.MODES)
def test_every_number_of_bits_agrees_with_the_oracle(mode, numbers):
    finite = numbers[np.isfinite(numbers)]
    sample = np.concatenate([finite[:: 1 + len(finite) // 40], np.float32([-0.0, 3.4028235e38])])
    got = np.asarray(traced(sample, BITS, mode))
    for n, row in zip(BITS, got, strict=True):
        want = [formats.round_exact(x, f"e8m{n}", mode) for x in sample.tolist()]
        np.testing.assert_array_equal(row, np.float32(want), err_msg=f"{n} bits")
        np.testing.assert_array_equal(np.signbit(row), np.signbit(np.float32(want)))


def test_the_number_of_bits_is_no_part_of_the_program(assert_same_bits):
    rounder = jax.jit(chex.assert_max_traces(round_to_mantissa, n=1))
    x = np.float32([1.7, -1.7])
    for n, want in ((1, 1.5), (2, 1.75), (23, 1.7)):
        assert_same_bits(rounder(x, jnp.int32(n)), np.float32([want, -want]))


def test_each_element_may_have_a_number_of_its_own(assert_same_bits):
    x = np.full((2, 3), 1.7, np.float32)
    got = round_to_mantissa(x, np.array([1, 2, 4]), "toward_zero")
    assert_same_bits(got, np.tile(np.float32([1.5, 1.5, 1.6875]), (2, 1)))
    assert round_to_mantissa(np.zeros((0, 3), np.float32), np.array([1, 2, 3])).shape == (0, 3)


def test_the_derivative_is_straight_through(assert_same_bits):
    x = np.float32([1.7, -3e38, 0.0])
    rounder = functools.partial(round_to_mantissa, mantissa_bits=jnp.int32(1))
    assert_same_bits(jax.jit(jax.grad(lambda x: rounder(x).sum()))(x), np.ones_like(x))
    value, tangent = jax.jvp(rounder, (x,), (x,))
    assert_same_bits(value, rounder(x))
    assert_same_bits(tangent, x)


def test_traced_numbers_out_of_range_show_in_the_result():
    got = jax.jit(round_to_mantissa)(np.ones(5, np.float32), np.array([-1, 0, 1, 23, 24]))
    np.testing.assert_array_equal(np.isnan(got), [True, True, False, False, True])


@pytest.mark.parametrize(
    ("x", "bits", "options", "error", "says"),
    [
        (np.float32(1), 24, {}, ValueError, "24, but FP32 stores 23"),
        (np.float32(1), np.array(0), {}, ValueError, "at least 1"),
        (np.float32(1), 2.0, {}, TypeError, "counts bits"),
        (np.float32(1), True, {}, TypeError, "counts bits"),
        (np.float32([1, 2]), np.array([1, 2, 3]), {}, ValueError, "do not broadcast"),
        (np.float32(1), np.array([1, 2]), {}, ValueError, "do not broadcast"),
        (jnp.ones(2, jnp.bfloat16), 2, {}, TypeError, "round_to takes other dtypes"),
        (np.float32(1), 2, {"mode": "nearest"}, ValueError, "nearest_even"),
        (np.float32(1), 2, {"mode": "stochastic"}, ValueError, "needs a key"),
    ],
)
def test_mistakes_are_named(x, bits, options, error, says):
    with pytest.raises(error, match=says):
        round_to_mantissa(x, bits, **options)
