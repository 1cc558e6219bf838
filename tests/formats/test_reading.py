import math
from fractions import Fraction

import pytest

from jprec import formats
from jprec.formats import BitPattern, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("11.25", Fraction(45, 4)),
        ("43008.111", Fraction(43008111, 1000)),
        (" +.5 ", Fraction(1, 2)),
        ("5.", 5),
        ("1e-46", Fraction(1, 10**46)),
        ("-1.5E3", -1500),
        ("−2", -2),
        ("1/3", Fraction(1, 3)),
        ("2^-24", Fraction(1, 2**24)),
        ("2**-24", Fraction(1, 2**24)),
        ("-2^10", -1024),
        ("1.5*2^-24", Fraction(3, 2**25)),
        ("1.5×2^-24", Fraction(3, 2**25)),
        ("0x1.8p3", 12),
        ("0x1p-1074", Fraction(1, 2**1074)),
        ("0x.8", Fraction(1, 2)),
        # 56 bits: a Python float would lose the last one.
        ("0x1.00000000000001p0", 1 + Fraction(1, 2**56)),
        ("0.1000000000000000055511151231257827021181583404541015626", None),
    ],
)
def test_numbers_are_read_exactly(text, value):
    assert read(text) == (Fraction(text) if value is None else value)
    assert isinstance(read(text), Fraction)


@pytest.mark.parametrize("text", ["0", "-0", "-0.0e7", "0x0p0", "-0/5", "inf", "-Infinity"])
def test_zero_keeps_its_sign_and_infinity_is_a_float(text):
    value = read(text)
    assert isinstance(value, float)
    assert math.copysign(1, value) == (-1 if text.startswith("-") else 1)
    assert (value == 0) == ("0" in text)


def test_nan_is_read():
    assert math.isnan(read("nan"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0x7bff", 0x7BFF),
        ("0X7BFF", 0x7BFF),
        ("0b0_11110_1111111111", 0x7BFF),
        ("0b0 11110 1111111111", 0x7BFF),
        ("0x0", 0),
    ],
)
def test_bits_are_not_numbers(text, code):
    assert read(text) == BitPattern(text.lower(), code)


def test_each_format_reads_bits_as_its_own_code():
    values = {fmt: formats.explain("0x3c00", fmt).value for fmt in ("fp16", "bf16", "fp32")}
    assert values == {"fp16": 1.0, "bf16": 0.0078125, "fp32": 15360 * 2.0**-149}
    with pytest.raises(ValueError, match="0x1ff needs 9 bits, but e4m3fn has 8"):
        formats.explain("0x1ff", "e4m3fn")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the number is empty; write a decimal"),
        ("  ", "the number is empty"),
        ("43008,1", "the decimal point is '.', and nothing separates thousands; write a decimal"),
        ("-0x7bff", "the sign of a bit pattern is its first bit"),
        ("1_000", "'1_000' is not a number: write a decimal"),
        ("0x", "not a number"),
        ("0x.p3", "not a number"),
        ("0b102", "not a number"),
        ("2^0.5", "not a number"),
        ("²", "not a number"),
        ("1e", "not a number"),
        ("--1", "not a number"),
        ("1/0", "divides by zero"),
        ("1e999999999", "beyond ±9999"),
        ("2^-10000", "beyond ±9999"),
        ("9" * 5000, "5000 characters is too long"),
        ("x" * 999, "'xxx"),
        ("1\n2", r"'1\n2' is not a number"),
    ],
)
def test_what_is_not_a_number_is_refused_in_one_line(text, said):
    with pytest.raises(ValueError) as refused:
        read(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 330
