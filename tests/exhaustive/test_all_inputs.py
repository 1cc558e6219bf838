"""The slow proof: `make test-exhaustive`. Everything that can be counted is counted."""

import math

import jax
import ml_dtypes
import numpy as np
import pytest

from jprec import formats, rounding

pytestmark = pytest.mark.exhaustive

#: FP32 patterns in one piece; 2**32 are done in 256 pieces.
PIECE = 2**24


def hardware_tf32(x: np.ndarray) -> np.ndarray:
    """FP32 numbers to TF32 by the processor's own rounding to nearest even, in float64.

    Adding 1.5 * 2**52 units of the last place of TF32 leaves no bits below such a unit, and the
    subtraction is exact. A reference that shares nothing with the kernel.
    """
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    exponent = np.maximum(np.frexp(wide)[1] - 1, -126)
    big = np.ldexp(1.5, 52 - 10 + exponent)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = (wide + big) - big
        return np.copysign(rounded, wide).astype(np.float32)


def converted(dtype: str):
    """FP32 numbers through ml_dtypes or NumPy and back."""

    def convert(x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return x.astype(np.dtype(getattr(ml_dtypes, dtype, dtype))).astype(np.float32)

    return convert


PEERS = {
    "fp16": converted("float16"),
    "bf16": converted("bfloat16"),
    "e4m3fn": converted("float8_e4m3fn"),
    "tf32": hardware_tf32,
}


@pytest.mark.parametrize("name", PEERS)
def test_all_fp32_inputs(name):
    rounder = jax.jit(lambda x: rounding.round_to(x, name))
    for start in range(0, 2**32, PIECE):
        x = np.arange(start, start + PIECE, dtype=np.uint32).view(np.float32)
        got, want = np.asarray(rounder(x)), PEERS[name](x)
        same = got.view(np.uint32) == want.view(np.uint32)
        if not same.all():
            # NaNs keep their payload here, and lose it there.
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            wrong = ~same & ~np.isnan(got)
            assert not wrong.any(), (x[wrong][:5], got[wrong][:5], want[wrong][:5])


P3109 = ("binary8p4se", "binary8p3ue", "binary8p1se", "binary8p1ue", "binary12p4se", "binary16p9se")
SMALL = [name for name in formats.names() if formats.get(name).bits <= 16]


@pytest.mark.parametrize("name", [*SMALL, "tf32", "e8m2", "e6m9", *P3109])
def test_every_value_midpoint_and_neighbour_equals_the_oracle_in_every_mode(name, points):
    x = points(name, 2**20)
    numbers = x.tolist()
    for mode in formats.MODES:
        got = np.asarray(rounding.round_to(x, name, mode))
        want = np.array([formats.round_exact(number, name, mode) for number in numbers])
        same = got.view(np.uint32) == want.astype(np.float32).view(np.uint32)
        wrong = ~same & ~(np.isnan(got) & np.isnan(want))
        assert not wrong.any(), (mode, x[wrong][:5], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("name", [*SMALL, *P3109])
def test_every_pattern_survives_the_round_trip(name):
    fmt = formats.get(name)
    for code in range(2**fmt.bits):
        value = formats.decode(code, fmt)
        if not math.isnan(value):
            assert formats.encode(value, fmt) == code


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_16_bit_inputs_equal_the_oracle_in_every_mode(dtype):
    x = np.arange(2**16, dtype=np.uint16).view(np.dtype(dtype))
    numbers = [float(number) for number in x]
    held = formats.get(dtype)
    for name in SMALL:
        fmt = formats.get(name)
        wider = fmt.precision > held.precision or fmt.max > held.max
        if wider or fmt.min_subnormal < held.min_subnormal or fmt == held:
            continue
        for mode in formats.MODES:
            with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaN
                got = np.asarray(rounding.round_to(x, name, mode)).astype(np.float64)
            want = np.array([formats.round_exact(number, name, mode) for number in numbers])
            np.testing.assert_array_equal(got, want, err_msg=f"{name} {mode}")
            kept = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got[kept]), np.signbit(want[kept]))
