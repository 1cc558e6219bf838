import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jprec import formats


@pytest.mark.parametrize(
    ("value", "fmt", "want"),
    [
        # The essay's number: 43008 is 21 * 2**11, fp16's spacing there is 32.
        (43008.111, "fp16", 43008.0),
        (43024, "fp16", 43008.0),
        (43024.01, "fp16", 43040.0),
        (43056, "fp16", 43072.0),
        (43008.111, "tf32", 43008.0),
        (43008.111, "bf16", 43008.0),
        (43008.111, "fp32", 43008.109375),
        # Overflow: half a unit beyond the largest value is the first number that overflows.
        (65519.999, "fp16", 65504.0),
        (65520, "fp16", math.inf),
        (-70000, "fp16", -math.inf),
        (formats.get("fp32").max, "bf16", math.inf),
        (formats.get("fp32").max, "tf32", math.inf),
        # Underflow: half the smallest value is a tie with zero.
        (2.0**-25, "fp16", 0.0),
        (math.nextafter(2.0**-25, 1), "fp16", 2.0**-24),
        (1.5 * 2.0**-24, "fp16", 2.0**-23),
        ("0.1", "fp16", 0.0999755859375),
        ("0.1", "bf16", 0.10009765625),
        ("1/3", "fp16", 0.333251953125),
        ("1/3", "bf16", 0.333984375),
        (1.0001, "tf32", 1.0),
        (0.999, "bf16", 1.0),
        (1e-8, "fp16", 0.0),
        # One rounding, not two: by way of FP32 this would be 1.
        (1 + 2.0**-11 + 2.0**-40, "fp16", 1 + 2.0**-10),
        # ml_dtypes pull request 401: float64 was rounded twice.
        (-431.99999999999994, "e4m3fn", -416.0),
        (1 + 2.0**-8 + 2.0**-40, "bf16", 1.0078125),
        (16973823, "bf16", 16908288.0),
        (464, "e4m3fn", 448.0),
        (7, "e2m1fn", 6.0),
        (100, "e2m1fn", 6.0),
        (Decimal("1.5"), "e8m0fnu", 2.0),
        (Fraction(1, 3), "fp64", 1 / 3),
    ],
)
def test_known_numbers_round_to_nearest_even(value, fmt, want):
    assert formats.round_exact(value, fmt) == want


@pytest.mark.parametrize(
    ("value", "even", "away", "zero", "up", "down", "odd"),
    [
        # In units of fp16's last place at 1: ties, and numbers beside them.
        (2.5, 2, 3, 2, 3, 2, 3),
        (3.5, 4, 4, 3, 4, 3, 3),
        (-2.5, -2, -3, -2, -2, -3, -3),
        (-3.5, -4, -4, -3, -3, -4, -3),
        (2.25, 2, 2, 2, 3, 2, 3),
        (-2.75, -3, -3, -2, -2, -3, -3),
        (4, 4, 4, 4, 4, 4, 4),
    ],
)
def test_each_mode_chooses_its_neighbour(value, even, away, zero, up, down, odd):
    want = dict(
        zip(formats.MODES, (even, away, zero, up, down, odd), strict=True),
    )
    base = math.copysign(1, value) * 1024  # so that the last place counts ones
    for mode, units in want.items():
        shift = Fraction(base) + Fraction(value)
        assert formats.round_exact(shift, "fp16", mode) == base + units, mode


@pytest.mark.parametrize(
    ("fmt", "even", "zero", "saturated"),
    [
        ("fp16", math.inf, 65504.0, 65504.0),
        ("e5m2", math.inf, 57344.0, 57344.0),
        ("e4m3fn", math.nan, 448.0, 448.0),
        ("e4m3fnuz", math.nan, 240.0, 240.0),
        ("e2m3fn", 7.5, 7.5, 7.5),
    ],
)
def test_overflow_goes_by_format_and_mode(fmt, even, zero, saturated):
    def same(got, want):
        return got == want or (math.isnan(got) and math.isnan(want))

    assert same(formats.round_exact(1e9, fmt), even)
    assert same(formats.round_exact(-1e9, fmt), -even)
    assert formats.round_exact(1e9, fmt, "toward_zero") == zero
    assert formats.round_exact(1e9, fmt, "down") == zero
    assert same(formats.round_exact(1e9, fmt, "up"), even)
    assert formats.round_exact(-1e9, fmt, "up") == -zero
    assert formats.round_exact(1e9, fmt, overflow="saturate") == saturated
    # Infinity is no large number: no mode brings it back, only saturation does.
    assert same(formats.round_exact(math.inf, fmt, "toward_zero"), even)
    assert formats.round_exact(-math.inf, fmt, overflow="saturate") == -saturated


def test_truncation_looks_at_the_number_as_it_is():
    # gfloat issue 49: just below 2**119, which float32 would make of it.
    assert formats.round_exact(6.6461399789245764e35, "bf16", "toward_zero") == 6.620178494631905e35


def test_zero_keeps_its_sign_where_there_is_a_negative_zero():
    for value in (-0.0, -1e-30):
        assert math.copysign(1, formats.round_exact(value, "fp16")) == -1
        assert math.copysign(1, formats.round_exact(value, "e5m2fnuz")) == 1


def test_a_format_of_scales_has_no_zero_and_no_negative_numbers():
    assert math.isnan(formats.round_exact(0, "e8m0fnu"))
    assert math.isnan(formats.round_exact(-1, "e8m0fnu"))
    assert formats.round_exact(1e-300, "e8m0fnu", "toward_zero") == 2.0**-127
    assert math.isnan(formats.round_exact(1e300, "e8m0fnu"))


@pytest.mark.parametrize(
    "dtype",
    ["float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz", "float6_e3m2fn"],
)
def test_every_midpoint_of_a_small_format_agrees_with_ml_dtypes(dtype):
    values = formats.values(dtype)
    middles = (values[1:] + values[:-1]) / 2
    beside = [np.nextafter(middles.astype(np.float32), np.float32(to)) for to in (-1e9, 1e9)]
    points = np.concatenate([values, middles, *beside]).astype(np.float32)
    want = points.astype(getattr(ml_dtypes, dtype)).astype(np.float64)
    got = [formats.round_exact(p, dtype) for p in points]
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@settings(max_examples=200, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["fp32", "tf32", "bf16", "fp16", "e4m3fn", "e2m1fn", "e3m4"]),
)
def test_directed_modes_bracket_and_the_nearest_is_one_of_them(value, name):
    down, up = (formats.round_exact(value, name, mode) for mode in ("down", "up"))
    if abs(value) <= formats.get(name).max:
        assert down <= value <= up
    for mode in ("nearest_even", "nearest_away", "toward_zero", "to_odd"):
        got = formats.round_exact(value, name, mode, overflow="saturate")
        bracket = {formats.round_exact(value, name, m, overflow="saturate") for m in ("down", "up")}
        assert got in bracket
        assert formats.round_exact(got, name, mode) == got


def test_bad_choices_name_the_good_ones():
    with pytest.raises(ValueError, match=r"mode='nearest'.*nearest_even, nearest_away"):
        formats.round_exact(1, "fp16", "nearest")
    with pytest.raises(ValueError, match=r"overflow='inf'.*format, saturate"):
        formats.round_exact(1, "fp16", overflow="inf")
    with pytest.raises(ValueError, match=r"'one' is not a number"):
        formats.round_exact("one", "fp16")


def test_numbers_of_numpy_are_taken_as_they_are():
    assert formats.round_exact(np.int64(2**53 + 1), "fp64", "up") == 2.0**53 + 2
    value = np.longdouble(1) + np.longdouble(2) ** -11 + np.longdouble(2) ** -60
    assert formats.round_exact(value, "fp16") == 1.0009765625
    assert formats.round_exact(np.float32(0.1), "fp64") == float(np.float32(0.1))
    assert math.isnan(formats.round_exact(np.longdouble("nan"), "fp16"))
    for zero in ("0/1", "0", Decimal("0.0")):
        assert formats.round_exact(zero, "fp16") == 0.0
    assert math.copysign(1, formats.round_exact("-0", "fp16")) == -1


def test_a_block_with_a_mode_that_is_none_is_refused():
    with pytest.raises(ValueError, match="mode='nearest'"):
        formats.round_block_exact([0.0], "nvfp4", "nearest")
