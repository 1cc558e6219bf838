import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jprec import formats, rounding

#: Every power of two of FP32 and the numbers beside it, the powers below 2**-126 included.
POWERS = np.ldexp(1.0, np.arange(-149, 128)).astype(np.float32)
BITS = POWERS.view(np.int32)
EDGES = np.concatenate([BITS, BITS + 1, BITS[1:] - 1]).view(np.float32)


def test_exponents_are_right_at_every_power_of_two_and_beside_it():
    want = [math.frexp(x)[1] - 1 for x in EDGES.tolist()]
    assert rounding.exponent(EDGES).tolist() == want
    assert rounding.exponent(-EDGES).tolist() == want
    assert rounding.exponent(EDGES).dtype == jnp.int32


def test_exponents_of_zero_and_nonfinite_numbers_are_sentinels():
    got = rounding.exponent(jnp.float32([0.0, -0.0, jnp.inf, -jnp.inf, jnp.nan])).tolist()
    zero, nonfinite = rounding.EXPONENT_OF_ZERO, rounding.EXPONENT_OF_NONFINITE
    assert got == [zero, zero, nonfinite, nonfinite, nonfinite]
    assert zero < -1074
    assert nonfinite > 1023


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_exponents_of_all_16_bit_numbers_are_right(dtype):
    codes = np.arange(1, 0x7C00 if dtype == "float16" else 0x7F80, dtype=np.uint16)
    x = codes.view(np.dtype(dtype))
    want = np.frexp(x.astype(np.float64))[1] - 1
    np.testing.assert_array_equal(rounding.exponent(x), want)


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp16", "e4m3fn", "e2m1fn", "e8m0fnu"])
def test_ulp_is_the_spacing_of_the_values(name):
    fmt = formats.get(name)
    got = np.asarray(rounding.ulp(EDGES, name))
    exponents = np.maximum(np.frexp(EDGES.astype(np.float64))[1] - 1, fmt.min_exponent)
    want = np.ldexp(1.0, exponents - fmt.precision + 1)
    np.testing.assert_array_equal(got.astype(np.float64), want)
    assert got.dtype == np.float32
    if fmt.bits <= 16 and fmt.has_zero:
        values = formats.values(name)
        values = values[values >= 0][:-1]
        gaps = np.diff(formats.values(name)[-len(values) - 1 :])
        np.testing.assert_array_equal(rounding.ulp(values.astype(np.float32), name), gaps)


def test_ulp_of_zero_is_the_smallest_spacing_and_of_nonfinite_numbers_nan():
    got = rounding.ulp(jnp.float32([0.0, jnp.inf, jnp.nan]), "bf16").tolist()
    assert got[0] == 2.0**-133
    assert math.isnan(got[1])
    assert math.isnan(got[2])


def test_ulp_takes_16_bit_numbers_and_answers_in_fp32():
    x = ml_dtypes.bfloat16(1.0) * np.ones(3, ml_dtypes.bfloat16)
    got = rounding.ulp(x, "fp16")
    assert got.dtype == jnp.float32
    assert got.tolist() == [2.0**-10] * 3


def test_spacings_of_double_precision_are_doubles():
    with jax.enable_x64(True):
        x = np.float64([1.0, 5e-324, 1e300])
        assert rounding.exponent(x).tolist() == [0, -1074, 996]
        assert rounding.ulp(x, "fp64").tolist() == [2.0**-52, 5e-324, 2.0**944]


def test_ulp_in_a_format_wider_than_fp32_is_refused():
    with pytest.raises(TypeError, match="float32 does not hold every value of fp64"):
        rounding.ulp(jnp.float32(1.0), "fp64")
