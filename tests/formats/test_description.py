import dataclasses

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jprec import formats

ML_DTYPES = (
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
)

# name: precision, min_exponent, max_exponent, max, min_normal, min_subnormal
FACTS = {
    "fp64": (53, -1022, 1023, 1.7976931348623157e308, 2.0**-1022, 2.0**-1074),
    "fp32": (24, -126, 127, 3.4028234663852886e38, 2.0**-126, 2.0**-149),
    "tf32": (11, -126, 127, 3.4011621342146535e38, 2.0**-126, 2.0**-136),
    "fp16": (11, -14, 15, 65504.0, 2.0**-14, 2.0**-24),
    "bf16": (8, -126, 127, 3.3895313892515355e38, 2.0**-126, 2.0**-133),
    "e4m3fn": (4, -6, 8, 448.0, 2.0**-6, 2.0**-9),
    "e5m2": (3, -14, 15, 57344.0, 2.0**-14, 2.0**-16),
    "e4m3fnuz": (4, -7, 7, 240.0, 2.0**-7, 2.0**-10),
    "e5m2fnuz": (3, -15, 15, 57344.0, 2.0**-15, 2.0**-17),
    "e2m3fn": (4, 0, 2, 7.5, 1.0, 0.125),
    "e3m2fn": (3, -2, 4, 28.0, 0.25, 0.0625),
    "e2m1fn": (2, 0, 2, 6.0, 1.0, 0.5),
    "e8m0fnu": (1, -127, 127, 2.0**127, 2.0**-127, 2.0**-127),
}


@pytest.mark.parametrize("name", FACTS)
def test_properties_follow_from_the_widths(name):
    fmt = formats.get(name)
    got = (
        fmt.precision,
        fmt.min_exponent,
        fmt.max_exponent,
        fmt.max,
        fmt.min_normal,
        fmt.min_subnormal,
    )
    assert got == FACTS[name]
    assert fmt.epsilon == 2 * fmt.unit_roundoff == 2.0 ** (1 - fmt.precision)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", *ML_DTYPES])
def test_properties_agree_with_finfo(dtype):
    info, fmt = ml_dtypes.finfo(dtype), formats.get(dtype)
    assert fmt.bits == info.bits
    assert fmt.max == float(info.max)
    assert fmt.epsilon == float(info.eps)
    assert fmt.min_normal == float(info.smallest_normal)
    assert fmt.min_subnormal == float(info.smallest_subnormal)
    assert fmt.mantissa_bits == info.nmant


def test_decimal_digits_are_those_that_survive():
    digits = {name: formats.get(name).decimal_digits for name in ("fp64", "fp32", "tf32", "fp16")}
    assert digits == {"fp64": 15, "fp32": 6, "tf32": 3, "fp16": 3}
    assert formats.get("bf16").decimal_digits == 2


def test_special_numbers_are_where_the_standards_put_them():
    has = {name: formats.get(name) for name in formats.names()}
    assert {n for n, f in has.items() if not f.has_nan} == {"e2m3fn", "e3m2fn", "e2m1fn"}
    assert {n for n, f in has.items() if f.has_infinity} == {
        *("fp64", "fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e3m4")
    }
    assert [n for n, f in has.items() if not f.has_zero] == ["e8m0fnu"]
    without = {n for n, f in has.items() if not f.has_negative_zero}
    assert without == {"e4m3fnuz", "e4m3b11fnuz", "e5m2fnuz", "e8m0fnu"}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("float32", "fp32"),
        ("bfloat16", "bf16"),
        ("float8_e4m3fn", "e4m3fn"),
        ("float4_e2m1fn", "e2m1fn"),
        ("FP16", "fp16"),
        ("BFloat16", "bf16"),
        ("half", "fp16"),
        ("binary32", "fp32"),
        ("Binary8p4se", "binary8p4se"),
        ("e5m10", "fp16"),
        ("e8m10", "tf32"),
        (np.float32, "fp32"),
        (np.dtype("float16"), "fp16"),
        (jnp.bfloat16, "bf16"),
        (ml_dtypes.float8_e5m2, "e5m2"),
    ],
)
def test_every_spelling_finds_the_same_format(spelling, name):
    assert formats.get(spelling) is formats.get(name)
    assert formats.get(formats.get(name)) is formats.get(name)


def test_any_widths_make_an_ieee_like_format():
    fmt = formats.get("e8m2")
    assert (fmt.name, fmt.precision, fmt.has_infinity, fmt.has_nan) == ("e8m2", 3, True, True)
    assert fmt.max == 1.75 * 2.0**127
    assert formats.get("e4m3").max == 240.0  # not OCP's e4m3fn, which ends at 448


def test_formats_are_hashable_and_frozen():
    fmt = formats.get("fp16")
    assert {fmt: 1}[formats.get("float16")] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        fmt.bias = 3


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        *(("bfloat61", "bfloat16"), ("e4m3fm", "e4m3fn"), ("tf23", "tf32")),
        *(("fp8", "e4m3fn or e5m2"), ("FP4", "e2m1fn"), ("binary8p4", "binary8p4se")),
    ],
)
def test_an_unknown_name_says_what_is_close(name, hint):
    with pytest.raises(ValueError, match=rf"unknown format '{name}'.*did you mean.*{hint}"):
        formats.get(name)


@pytest.mark.parametrize("name", ["e1m2", "e12m3", "e8m53", "e0m3", "", "int8"])
def test_what_is_no_format_is_refused(name):
    with pytest.raises(ValueError, match="format"):
        formats.get(name)


def test_a_dtype_that_is_no_float_is_refused():
    with pytest.raises(ValueError, match="unknown format 'int32'"):
        formats.get(np.int32)
    for wrong in (3.5, None, []):
        with pytest.raises(TypeError, match="does not name a format"):
            formats.get(wrong)


def test_a_block_format_is_said_to_be_one():
    with pytest.raises(ValueError, match=r"'mxfp4' is no format of single numbers.*round_blocks"):
        formats.get("mxfp4")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("mantissa_bits", 0, "1 to 52"),
        ("mantissa_bits", 53, "1 to 52"),
        ("exponent_bits", 1, "2 to 11"),
        ("exponent_bits", 12, "2 to 11"),
        ("specials", "inf", "one of ieee"),
        ("bias", 2000, "float64"),
        ("bias", 3.5, "is an integer"),
        ("signed", False, "takes a sign"),
        ("has_zero", False, "exponents alone"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(field, value, rule):
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(formats.get("fp16"), **{field: value})


def test_a_format_without_special_codes_uses_its_top_exponent():
    plain = dataclasses.replace(formats.get("fp16"), name="plain", specials="none")
    assert plain.max == 2.0**16 * (2 - 2.0**-10)
    assert not plain.has_infinity
