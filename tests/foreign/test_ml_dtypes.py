"""ml_dtypes and NumPy, which convert to nearest even: the same bits, or who is right."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jprec import formats, rounding

PEERS = ("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz")
PEERS += ("float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
PEERS += ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float16")


def converted(x: np.ndarray, dtype: str) -> np.ndarray:
    """`x` by way of the peer, in FP32, with the peer's two differences put right.

    Where a format has no NaN, ml_dtypes turns NaN into -0 and -NaN into 0; here NaN stays NaN. And
    ml_dtypes 0.6.0 rounds everything above 2**-127 up to 2**-126 in e8m0fnu: its midpoint is wrong.
    """
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        found = x.astype(np.dtype(dtype)).astype(np.float32)
    if not formats.get(dtype).has_nan:
        found[np.isnan(x)] = np.nan
    if dtype == "float8_e8m0fnu":
        found[(x > 2.0**-127) & (x.view(np.uint32) < 0x00600000)] = 2.0**-127
    return found


@pytest.mark.parametrize("dtype", PEERS)
def test_any_fp32_bits_round_as_in_ml_dtypes(dtype, points, assert_same_bits):
    patterns = np.random.default_rng(7).integers(0, 2**32, 200_000, dtype=np.uint32)
    x = np.concatenate([patterns.view(np.float32), points(formats.get(dtype).name, 2000)])
    got, want = np.asarray(rounding.round_to(x, dtype)), converted(x, dtype)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    assert_same_bits(got[~nan], want[~nan])
    if formats.get(dtype).has_negative_zero:  # then NaN has a sign, and it is kept
        np.testing.assert_array_equal(np.signbit(got[nan]), np.signbit(x[nan]))


def fits(peer: str, dtype: str) -> bool:
    """Whether the dtype holds all values of the peer, which is another one."""
    small, large = formats.get(peer), formats.get(dtype)
    return peer != dtype and (
        small.precision <= large.precision
        and small.max <= large.max
        and small.min_subnormal >= large.min_subnormal
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_16_bit_numbers_round_in_their_own_dtype_as_in_ml_dtypes(dtype, assert_same_bits):
    x = np.arange(2**16, dtype=np.uint16).view(np.dtype(dtype))
    smaller = [peer for peer in PEERS if fits(peer, dtype)]
    assert len(smaller) == {"bfloat16": 11, "float16": 10}[dtype]
    rounders = [functools.partial(rounding.round_to, fmt=peer) for peer in smaller]
    every = jax.jit(lambda x: [rounder(x) for rounder in rounders])
    for peer, got in zip(smaller, every(x), strict=True):
        want = converted(x, peer)
        nan = np.isnan(want)
        with np.errstate(invalid="ignore"):  # signalling NaNs stay such
            np.testing.assert_array_equal(np.isnan(np.asarray(got)), nan)
        assert_same_bits(np.asarray(got)[~nan], want[~nan].astype(x.dtype))


def test_numpy_rounds_double_precision_once_and_so_does_jprec(assert_same_bits):
    rng = np.random.default_rng(11)
    x = np.ldexp(rng.standard_normal(20_000), rng.integers(-30, 18, 20_000))
    values = formats.values("fp16")
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate([x, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    with jax.enable_x64(True), np.errstate(over="ignore"):
        for name, dtype in (("fp16", np.float16), ("fp32", np.float32)):
            want = x.astype(dtype).astype(np.float64)
            assert_same_bits(rounding.round_to(x, name), want)


def test_ml_dtypes_rounds_double_precision_twice_and_jprec_does_not():
    """ml_dtypes issue 401, open in 0.6.0: by way of float32. Who is right: the oracle says."""
    cases = {"float8_e4m3fn": (-431.99999999999994, -416.0), "bfloat16": (1 + 2**-8 + 2**-40, None)}
    with jax.enable_x64(True):
        for dtype, (value, want) in cases.items():
            want = want or 1.0078125
            x = np.float64([value])
            assert float(x.astype(getattr(ml_dtypes, dtype))[0]) != want
            assert rounding.round_to(jnp.asarray(x), dtype).tolist() == [want]
            assert formats.round_exact(value, dtype) == want
