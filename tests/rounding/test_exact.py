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


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e2m1fn", "e8m0fnu"])
def test_saturation_agrees_with_the_oracle(name, points):
    x = points(name, 200)
    x = np.concatenate([x[:: 1 + len(x) // 200], np.float32([7e4, 1e9, -450.0, 3.4e38, np.inf])])
    modes = ("nearest_even", "toward_zero", "up")
    every = jax.jit(
        lambda x: jnp.stack([rounding.round_to(x, name, m, overflow="saturate") for m in modes])
    )
    for mode, got in zip(modes, np.asarray(every(x)), strict=True):
        want = [formats.round_exact(v, name, mode, overflow="saturate") for v in x.tolist()]
        assert_same_numbers(got, np.array(want), x)


PEERS = ("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz")
PEERS += ("float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
PEERS += ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float16")


@pytest.mark.parametrize("dtype", PEERS)
def test_any_fp32_bits_round_as_in_ml_dtypes(dtype, points, assert_same_bits):
    patterns = np.random.default_rng(7).integers(0, 2**32, 200_000, dtype=np.uint32)
    x = np.concatenate([patterns.view(np.float32), points(formats.get(dtype).name, 2000)])
    got = np.asarray(rounding.round_to(x, dtype))
    with np.errstate(all="ignore"):
        want = x.astype(np.dtype(dtype)).astype(np.float32)
    fmt = formats.get(dtype)
    if not fmt.has_nan:
        # There, ml_dtypes turns NaN into -0 and -NaN into 0; here NaN stays NaN.
        want[np.isnan(x)] = np.nan
    if dtype == "float8_e8m0fnu":
        # ml_dtypes 0.6.0 rounds everything above 2**-127 up to 2**-126: its midpoint is wrong.
        between = (x > 2.0**-127) & (x.view(np.uint32) < 0x00600000)
        want[between] = 2.0**-127
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    assert_same_bits(got[~nan], want[~nan])
    if fmt.has_negative_zero:  # then NaN has a sign, and it is kept
        np.testing.assert_array_equal(np.signbit(got[nan]), np.signbit(x[nan]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_16_bit_numbers_round_in_their_own_dtype_as_in_ml_dtypes(dtype, assert_same_bits):
    codes = np.arange(2**16, dtype=np.uint16).view(np.dtype(dtype))
    x = codes[~np.isnan(codes.astype(np.float32))]
    for peer in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float4_e2m1fn"):
        got = rounding.round_to(x, peer)
        with np.errstate(all="ignore"):
            want = x.astype(np.float32).astype(getattr(ml_dtypes, peer)).astype(x.dtype)
        nan = np.isnan(want.astype(np.float32))
        assert_same_bits(np.asarray(got)[~nan], want[~nan])
        assert np.isnan(np.asarray(got)[nan].astype(np.float32)).all()
    assert rounding.round_to(x, dtype).dtype == dtype


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


# Each row is a mistake that a published implementation makes, or made.
@pytest.mark.parametrize(
    ("value", "fmt", "mode", "want"),
    [
        (70000.0, "fp16", "nearest_even", np.inf),  # came out as 0
        (69421.0, "fp16", "nearest_even", np.inf),
        (65520.0, "fp16", "nearest_even", np.inf),  # came out as 65536
        (279.0, "e4m3", "nearest_even", np.inf),
        (279.0, "e4m3fn", "nearest_even", 288.0),
        (3.4028235e38, "bf16", "nearest_even", np.inf),
        (3.4028235e38, "tf32", "nearest_even", np.inf),
        (3.4028235e38, "tf32", "toward_zero", 3.4011621342146535e38),
        (32767.998, "fp16", "toward_zero", 32752.0),
        (1e9, "fp16", "toward_zero", 65504.0),  # came out as infinity
        (1e-30, "fp16", "up", 2.0**-24),  # came out as 0
        (1.00048828125, "fp16", "nearest_even", 1.0),  # a tie
        (1.00048828125, "fp16", "nearest_away", 1.0009765625),
        (8.5, "e4m3fn", "nearest_even", 8.0),
        (8.5, "e4m3fn", "nearest_away", 9.0),
        (3.0, "fp32", "nearest_even", 3.0),  # came out as -3
        (1.9999, "bf16", "nearest_even", 2.0),  # carries into the exponent
        (6.1035153e-05, "fp16", "nearest_even", 2.0**-14),  # rounds up to the smallest normal: 0
        (0.0146484375, "e4m3fn", "nearest_even", 0.015625),
        (0.0010375977, "e4m3fn", "nearest_even", 0.001953125),
        (3.05e-5, "fp16", "nearest_even", 3.0517578125e-05),  # subnormals were flushed
        (0.00048828125, "fp16", "to_odd", 0.00048828125),  # even, but exact
        (495.0, "e4m3fn", "nearest_even", np.nan),  # came out as 480
        (500.0, "e4m3fn", "toward_zero", 448.0),
        (4.0, "e2m1fn", "nearest_even", 4.0),  # came out as infinity
        (232.0368, "e4m3", "nearest_even", 240.0),
        (1.0001, "tf32", "nearest_away", 1.0),
    ],
)
def test_known_mistakes_are_not_made(value, fmt, mode, want):
    for sign in (1, -1) if mode != "up" else (1,):
        got = rounding.round_to(np.float32(sign * value), fmt, mode)
        np.testing.assert_array_equal(np.asarray(got), np.float32(sign * want))


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
