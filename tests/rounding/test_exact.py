"""Bits against the oracle, against a table of all values, and against ml_dtypes."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jprec import formats, rounding

NAMED = tuple(name for name in formats.names() if name not in ("fp64", "fp32"))
#: IEEE P3109: signed and unsigned, extended and finite, precision 1, a single exponent bit, and
#: values among the subnormals of FP32.
P3109 = ("binary8p4se", "binary8p3ue", "binary6p3uf", "binary8p1se", "binary8p1uf", "binary4p4ue")
P3109 += ("binary5p4sf", "binary12p4se", "binary8p1ue")


def low(bias):
    """A format with e5m2's mantissa whose smallest values are those of FP32, or near them."""
    return dataclasses.replace(formats.get("e5m2"), name=f"low{bias}", exponent_bits=4, bias=bias)


ALL = (*NAMED, "e8m2", "e6m9", *P3109, low(127), low(126), low(125), low(124))
ALL = tuple(map(formats.get, ALL))


def round_in_all_modes(x, name):
    """One compilation for all modes: [n] -> [modes, n]."""

    @jax.jit
    def every(x):
        return jnp.stack([rounding.round_to(x, name, mode) for mode in formats.MODES])

    return np.asarray(every(x))


def assert_same_numbers(got, want, x):
    """Equal bits, except that all NaNs count as one."""
    assert got.dtype == np.float32
    got_bits, want_bits = got.view(np.uint32), want.astype(np.float32).view(np.uint32)
    wrong = (got_bits != want_bits) & ~(np.isnan(got) & np.isnan(want))
    assert not wrong.any(), list(zip(x[wrong], got[wrong], want[wrong], strict=True))[:5]


@pytest.mark.parametrize("name", ALL, ids=str)
def test_values_midpoints_and_neighbours_agree_with_table_and_oracle_in_every_mode(
    name, points, table_round
):
    x = points(name, 20_000)
    sample = slice(None, None, 1 + len(x) // 200)
    for mode, got in zip(formats.MODES, round_in_all_modes(x, name), strict=True):
        assert_same_numbers(got, table_round(x, name, mode), x)
        want = np.array([formats.round_exact(v, name, mode) for v in x[sample].tolist()])
        assert_same_numbers(got[sample], want, x[sample])


SATURATED = ("fp16", "bf16", "e4m3fn", "e2m1fn", "e8m0fnu", "binary8p3uf", "binary8p4ue")


@pytest.mark.parametrize("name", SATURATED)
def test_saturation_agrees_with_the_oracle_in_every_mode(name, points):
    x = points(name, 200)
    x = np.concatenate([x[:: 1 + len(x) // 200], np.float32([7e4, 1e9, -450.0, 3.4e38, np.inf])])
    x = np.concatenate([x, -x])
    modes = formats.MODES
    every = jax.jit(
        lambda x: jnp.stack([rounding.round_to(x, name, m, overflow="saturate") for m in modes])
    )
    for mode, got in zip(modes, np.asarray(every(x)), strict=True):
        want = [formats.round_exact(v, name, mode, overflow="saturate") for v in x.tolist()]
        assert_same_numbers(got, np.array(want), x)


def test_double_precision_is_rounded_once(assert_same_bits):
    with jax.enable_x64(True):
        x = np.float64([1 + 2.0**-11 + 2.0**-40, -431.99999999999994, 1e-310, -0.0, 2.0**-25])
        x = np.append(x, [np.nextafter(2.0**-25, 1), 1e300, np.inf, np.nan, 65519.99, 2.0**-136.5])
        for name in ("fp16", "fp32", "e8m0fnu"):
            for mode, got in zip(formats.MODES, round_in_all_modes(x, name), strict=True):
                want = np.array([formats.round_exact(v, name, mode) for v in x.tolist()])
                nan = np.isnan(want)
                np.testing.assert_array_equal(np.isnan(got), nan)
                assert_same_bits(got[~nan], want[~nan])
        mixed = rounding.round_to(jnp.float32([1.0001, 7e4]), "fp16")
        assert mixed.dtype == jnp.float32
        assert mixed.tolist() == [1.0, float("inf")]


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "e4m3fn", "e5m2fnuz", "e2m1fn"])
def test_nan_stays_nan_in_every_format_and_mode(name):
    bits = np.array([0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0xFF800001], np.uint32)
    x = bits.view(np.float32)
    assert np.isnan(round_in_all_modes(x, name)).all()
    assert np.isnan(rounding.round_to(x, name, overflow="saturate")).all()


def test_the_sign_of_zero_is_kept_in_every_mode(assert_same_bits):
    x = np.float32([0.0, -0.0])
    for name in ("tf32", "fp16"):
        assert_same_bits(round_in_all_modes(x, name), np.tile(x, (len(formats.MODES), 1)))
    assert not np.signbit(round_in_all_modes(x, "e4m3fnuz")).any()


def test_fp32_subnormals_are_kept_under_jit(assert_same_bits):
    x = np.array([0x00000001, 0x00012345, 0x007FFFFF, 0x8001C000], np.uint32).view(np.float32)
    want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.count_nonzero(want.view(np.uint32) & 0x7FFFFFFF) == 3
    assert_same_bits(rounding.round_to(x, "bf16"), want)
