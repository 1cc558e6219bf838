import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import formats, rounding


def test_flushing_inputs_and_outputs_are_two_things(assert_same_bits):
    tiny16 = 2.0**-14
    x = np.float32([1e-40, -1e-40, 0.75 * tiny16, -0.75 * tiny16, tiny16 * (1 - 2.0**-12), tiny16])
    kept = np.float32([0.0, -0.0, 0.75 * tiny16, -0.75 * tiny16, tiny16, tiny16])
    flushed = np.float32([0.0, -0.0, 0.0, -0.0, tiny16, tiny16])
    assert_same_bits(rounding.round_to(x, "fp16", subnormals="keep"), kept)
    # Inputs are subnormal by their own dtype, float32: here, only 1e-40 is.
    assert_same_bits(rounding.round_to(x, "fp16", subnormals="flush_input"), kept)
    up = rounding.round_to(x, "fp16", "up", subnormals="flush_input")
    assert_same_bits(up[:2], np.float32([0.0, -0.0]))
    assert float(rounding.round_to(x[0], "fp16", "up")) == 2.0**-24
    # Results are subnormal by the target; what rounds up to its smallest normal value stays.
    assert_same_bits(rounding.round_to(x, "fp16", subnormals="flush_output"), flushed)
    assert_same_bits(rounding.round_to(x, "fp16", subnormals="flush"), flushed)


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16"])
def test_formats_with_the_range_of_fp32_can_be_flushed(name, assert_same_bits):
    x = np.array([0x00000001, 0x807FFFFF, 0x00800000, 0x7F800000], np.uint32).view(np.float32)
    lowest = np.float32(2.0**-126)
    got = rounding.round_to(x, name, subnormals="flush_input")
    assert_same_bits(got, np.float32([0.0, -0.0, lowest, np.inf]))
    got = rounding.round_to(x, name, subnormals="flush_output")
    second = x[1] if name == "fp32" else -lowest
    second = np.float32(-0.0) if name == "fp32" else second
    assert_same_bits(got, np.float32([0.0, second, lowest, np.inf]))


def test_half_precision_inputs_are_subnormal_by_their_own_range():
    x = jnp.float16([2.0**-15, 2.0**-14])
    got = rounding.round_to(x, "e5m2", subnormals="flush_input")
    assert got.tolist() == [0.0, 2.0**-14]
    assert got.dtype == jnp.float16


def test_saturation_catches_infinity_too():
    x = jnp.float32([1e9, -np.inf, np.nan])
    got = rounding.round_to(x, "e5m2", overflow="saturate").tolist()
    assert got[:2] == [57344.0, -57344.0]
    assert math.isnan(got[2])
    same = rounding.round_to(jnp.float32([np.inf]), "fp32", overflow="saturate")
    assert same.tolist() == [formats.get("fp32").max]


def test_fp32_itself_changes_nothing(assert_same_bits):
    x = np.arange(0, 2**32, 999_983, dtype=np.uint32).view(np.float32)
    assert_same_bits(rounding.round_to(x, "fp32"), x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "nearest"}, r"mode='nearest'.*nearest_even.*Did you mean"),
        ({"mode": "stochastic"}, r"mode='stochastic' needs a key"),
        ({"key": 1}, r"mode='nearest_even' uses no key"),
        ({"random_bits": 8}, r"random_bits=8, but mode='nearest_even' is not random"),
        ({"mode": "stochastic", "key": 1, "random_bits": 33}, r"random_bits=33.*1 to 32"),
        ({"mode": "stochastic", "key": 1, "random_bits": 0}, r"random_bits=0.*1 to 32"),
        ({"mode": "stochastic", "key": 1, "random_bits": 8.5}, r"random_bits=8.5.*1 to 32"),
        ({"mode": ["up"]}, r"mode=\['up'\]"),
        ({"overflow": "clip"}, r"overflow='clip'.*format, saturate"),
        ({"derivative": "straight"}, r"derivative='straight'.*Did you mean 'straight_through"),
        ({"subnormals": "flushed"}, r"subnormals='flushed'.*Did you mean 'flush"),
    ],
)
def test_an_option_that_cannot_act_is_an_error(options, message):
    if "key" in options:
        options = options | {"key": jax.random.key(options["key"])}
    with pytest.raises(ValueError, match=message):
        rounding.round_to(jnp.float32([1.0]), "fp16", **options)


def test_a_key_is_a_key():
    with pytest.raises(TypeError, match=r"key=3 is no PRNG key; pass jax.random.key"):
        rounding.round_to(jnp.ones(2), "fp16", "stochastic", key=3)


def test_a_format_without_subnormals_cannot_flush_them():
    with pytest.raises(ValueError, match="e8m0fnu has no subnormals"):
        rounding.round_to(jnp.float32([1.0]), "e8m0fnu", subnormals="flush_output")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.float64([1.0]), "round it twice"),
        (np.int32([1]), "array of int32.*rounds to FP32"),
        (jnp.ones(2, jnp.float8_e4m3fn), "array of float8_e4m3fn.*which is exact"),
        (1.5, "x is float"),
        ([1.0], "x is list"),
    ],
)
def test_what_would_be_rounded_twice_or_not_at_all_is_refused(x, message):
    with pytest.raises(TypeError, match=message):
        rounding.round_to(x, "fp16")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bfloat16", "fp16"), ("float16", "bf16"), ("bfloat16", "tf32"), ("float32", "fp64")],
)
def test_a_format_that_the_dtype_cannot_hold_is_refused(dtype, name):
    with pytest.raises(TypeError, match=f"{dtype} does not hold every value of {name}"):
        rounding.round_to(jnp.ones(3, dtype) if dtype != "float64" else None, name)


def test_a_format_with_many_normal_values_among_the_dtypes_subnormals_is_refused():
    low = dataclasses.replace(formats.get("e5m2"), name="low", exponent_bits=4, bias=128)
    assert float(rounding.round_to(jnp.float32(2.0**-127), low)) == 2.0**-127  # one binade
    with pytest.raises(TypeError, match="more than one binade of normal values among"):
        rounding.round_to(jnp.float32(1.0), dataclasses.replace(low, bias=129))


@pytest.mark.parametrize(
    ("dtype", "unsigned"), [("bfloat16", 16), ("float16", 16), ("float32", 32)]
)
def test_nan_stays_the_nan_it_was(dtype, unsigned, assert_same_bits):
    words = {"bfloat16": [0x7F81, 0x7FC3, 0xFFFF], "float16": [0x7C01, 0x7E03, 0xFFFF]}
    words["float32"] = [0x7F800001, 0x7FC00003, 0xFFFFFFFF]
    x = jax.lax.bitcast_convert_type(jnp.array(words[dtype], f"uint{unsigned}"), dtype)
    got = rounding.round_to(x, "e5m2")
    back = jax.lax.bitcast_convert_type(got, f"uint{unsigned}")
    assert back.tolist() == words[dtype]
