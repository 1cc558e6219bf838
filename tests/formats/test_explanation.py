import math
from fractions import Fraction

import numpy as np
import pytest

from jprec import formats


def test_the_essays_number_is_explained_bit_by_bit():
    got = formats.explain(43008.111, "fp16")
    assert (got.bits, got.value, got.ulp) == ("0 11110 0101000000", 43008.0, 32.0)
    assert (got.below, got.above, got.kind) == (43008.0, 43040.0, "normal")
    assert got.error == pytest.approx(-0.111, abs=1e-9)
    assert formats.explain(43008.111, "bf16").above == 43264.0


def test_an_error_is_exact_before_it_is_rounded():
    got = formats.explain(-4.703990459442139, "bf16")
    assert (got.value, got.error) == (-4.71875, -0.014759540557861328)


@pytest.mark.parametrize(
    ("value", "fmt", "bits", "kind", "below", "above"),
    [
        (1.0, "fp16", "0 01111 0000000000", "normal", 1 - 2.0**-11, 1 + 2.0**-10),
        (2.0**-24, "fp16", "0 00000 0000000001", "subnormal", 0.0, 2.0**-23),
        (0.0, "e4m3fn", "0 0000 000", "zero", -(2.0**-9), 2.0**-9),
        (-0.0, "fp16", "1 00000 0000000000", "zero", -(2.0**-24), 2.0**-24),
        (65504.0, "fp16", "0 11110 1111111111", "normal", 65472.0, math.inf),
        (70000.0, "fp16", "0 11111 0000000000", "infinity", 65504.0, math.inf),
        (448.0, "e4m3fn", "0 1111 110", "normal", 416.0, None),
        (6.0, "e2m1fn", "0 11 1", "normal", 4.0, None),
        (-8.0, "e2m1fn", "1 11 1", "normal", None, -6.0),
        (1.5, "e8m0fnu", "10000000", "normal", 1.0, 2.0),
        (math.inf, "fp16", "0 11111 0000000000", "infinity", 65504.0, None),
        (math.nan, "fp16", "0 11111 1000000000", "nan", None, None),
    ],
)
def test_edges_of_a_format_are_explained(value, fmt, bits, kind, below, above):
    got = formats.explain(value, fmt)
    assert (got.bits, got.kind, got.below, got.above) == (bits, kind, below, above)
    assert got.code == int(bits.replace(" ", ""), 2)


def test_beyond_the_largest_value_the_error_is_infinite_and_the_spacing_the_last():
    got = formats.explain(70000.0, "fp16")
    assert (got.error, got.ulp) == (math.inf, 32.0)
    assert formats.explain("-1e400", "fp16").error == -math.inf


@pytest.mark.parametrize("value", [43008.111, "1/3", 1e-7, 0, math.nan, -math.inf, "1e400", 2**70])
@pytest.mark.parametrize("fmt", ["fp64", "tf32", "fp16", "e4m3fn", "e8m0fnu"])
def test_every_explanation_reads_as_text(value, fmt):
    text = str(formats.explain(value, fmt))
    assert fmt in text.splitlines()[0]
    assert "value" in text


def test_the_mode_is_used_and_shown():
    got = formats.explain(43039.0, "fp16", "toward_zero")
    assert got.value == 43008.0
    assert "toward_zero" in str(got)


#: Formats with few codes, among them what is special: no sign, no zero, no fraction, no infinity,
#: no NaN, no -0, NaN in the place of -0, one exponent bit.
SMALL = [
    *("e5m2", "e4m3fn", "e4m3fnuz", "e2m1fn", "e8m0fnu"),
    *("binary8p1se", "binary8p3ue", "binary5p3sf", "binary6p5se", "binary4p2uf"),
]


@pytest.mark.parametrize("fmt", SMALL)
def test_every_code_of_a_small_format_stands_between_its_neighbours(fmt):
    described = formats.get(fmt)
    values = formats.values(fmt)
    for code in range(2**described.bits):
        got = formats.explain(f"{code:#x}", fmt)
        assert got.code == code
        assert str(got)
        if not math.isfinite(got.value):
            continue
        i = int(np.searchsorted(values, got.value))
        below = values[i - 1] if i else None
        above = values[i + 1] if i + 1 < len(values) else None
        lowest = -math.inf if described.has_infinity and described.signed else None
        highest = math.inf if described.has_infinity else None
        assert got.neighbours == (
            lowest if below is None else below,
            highest if above is None else above,
        )
        for midpoint, other in zip(got.midpoints, (below, above), strict=True):
            if other is not None:
                assert midpoint.at == (Fraction(got.value) + Fraction(other)) / 2
                assert midpoint.goes_to in (got.value, other)


@pytest.mark.parametrize("mode", formats.MODES)
@pytest.mark.parametrize("fmt", ["fp16", "e4m3fn", "e2m1fn", "e8m0fnu", "binary8p3ue"])
@pytest.mark.parametrize("overflow", formats.OVERFLOWS)
def test_every_mode_reads_as_text(mode, fmt, overflow):
    for number in ("0.3", "-0.3", "1e6", "-1e6", "1e-9", "-0", "nan", "-inf", "6.5", "1e-400"):
        got = formats.explain(number, fmt, mode, overflow=overflow)
        text = str(got)
        assert got.kind in formats.side_by_side([got]) or got.code is None
        assert mode in text.splitlines()[0]
        assert max(map(len, text.splitlines())) <= 104


def test_ties_go_to_the_code_that_ends_in_zero():
    even = formats.explain(43008, "fp16")
    assert [(m.at, m.goes_to) for m in even.midpoints] == [(42992, 43008.0), (43024, 43008.0)]
    odd = formats.explain(43040, "fp16")
    assert [(m.at, m.goes_to) for m in odd.midpoints] == [(43024, 43008.0), (43056, 43072.0)]
    assert "43024 and 43056; the ties go to 43008 and 43072, whose codes end in 0" in str(odd)
    assert "both ties go to the value, whose code ends in 0" in str(even)
    away = formats.explain(43008, "fp16", "nearest_away")
    assert [m.goes_to for m in away.midpoints] == [43008.0, 43040.0]


def test_below_a_power_of_two_the_midpoint_is_half_as_far():
    below, above = (m.at for m in formats.explain(-1, "fp16").midpoints)
    assert (below, above) == (-1 - Fraction(1, 2**11), -1 + Fraction(1, 2**12))


def test_the_steps_of_the_essays_example_are_those_of_a_teacher():
    text = str(formats.explain(11.25, "fp32"))
    for step in ("11.25       = 1011.01₂", "= 1.01101₂ × 2³", "3 + 127 = 130 = 10000010₂"):
        assert step in text
    assert "0 10000010 01101000000000000000000 = 0x41340000" in text
    assert "0, exact" in text


def test_a_tie_between_subnormals_is_shown():
    got = formats.explain("1.5*2^-24", "fp16")
    assert (got.value, got.kind, got.exponent) == (2.0**-23, "subnormal", -14)
    assert (got.error_in_ulps, got.relative_error) == (0.5, 1 / 3)
    assert "0.0000000001|1₂ × 2⁻¹⁴" in str(got)
    assert "0.5 ulp, a tie; one is added to the last bit" in str(got)


def test_the_limits_of_fp16_are_shown():
    below, at = (formats.explain(number, "fp16") for number in ("65519.999", "65520"))
    assert (below.value, at.value) == (65504.0, math.inf)
    assert "0.49997 ulp, less than a half; it is cut off" in str(below)
    assert "nearest_even gives inf from 65520 on" in str(at)
    assert formats.explain("2^-25", "fp16").kind == "zero"
    assert "464" in str(formats.explain(500, "e4m3fn"))
    assert "nearest_even gives nan beyond 464" in str(formats.explain(500, "e4m3fn"))
    assert "overflow=saturate stops there" in str(
        formats.explain(500, "e4m3fn", overflow="saturate")
    )


def test_a_carry_into_the_next_binade_is_shown():
    got = formats.explain("1.99999", "fp16")
    assert (got.value, got.exponent, got.binade) == (2.0, 1, (2, 4))
    assert "one is added to the last bit, which carries to 2¹" in str(got)


def test_what_a_format_lacks_is_said_in_words():
    nan = formats.explain(math.nan, "e2m1fn")
    assert (nan.code, nan.kind, nan.bits) == (None, "no code", "")
    assert "e2m1fn has no NaN" in str(nan)
    assert "e4m3fnuz has no -0: it becomes 0" in str(formats.explain("-0", "e4m3fnuz"))
    assert "e4m3fn has no infinity: it becomes nan" in str(formats.explain(math.inf, "e4m3fn"))
    assert "e8m0fnu has no sign: it becomes nan" in str(formats.explain(-1, "e8m0fnu"))
    assert "e8m0fnu has no zero: it becomes nan" in str(formats.explain(0, "e8m0fnu"))
    assert "its smallest value" in str(formats.explain("1e-46", "e8m0fnu"))
    assert "e2m1fn has nothing else for it" in str(formats.explain(9, "e2m1fn"))


def test_the_code_of_a_nan_with_payload_is_kept():
    got = formats.explain("0x7e01", "fp16")
    assert (got.code, got.kind) == (0x7E01, "nan")


def test_a_text_is_exact_where_a_float_is_not():
    tenth = formats.explain("0.1", "fp64")
    assert tenth.exact_error == Fraction(0.1) - Fraction(1, 10)
    assert formats.explain(0.1, "fp64").exact_error == 0
    # The error is smaller than any float64.
    assert "1.11328e-325 = 0.0225 ulp" in str(formats.explain("-1e-320", "fp64"))


def test_several_formats_stand_side_by_side():
    names = ("fp16", "bf16", "tf32", "fp32", "e4m3fn")
    table = formats.side_by_side([formats.explain("0.1", name) for name in names])
    lines = table.splitlines()
    assert lines[0].split() == list(names)
    assert max(map(len, lines)) <= 120
    rows = {line[:15].strip(): line[15:].split() for line in lines}
    assert rows["exactly"] == ["819/8192", "205/2048", "819/8192", "13421773/2²⁷", "13/128"]
    assert rows["fraction bits"][1] == "1001101"
    assert table.count("away from it") == 3


def test_many_formats_stand_below_one_another():
    table = formats.side_by_side([formats.explain("1/3", name) for name in formats.names()])
    assert max(map(len, table.splitlines())) <= 120
    assert table.count("exponent bits") > 1


PLACES = ("value", "neighbour", "midpoint")


@pytest.mark.parametrize("fmt", formats.names())
@pytest.mark.parametrize("number", ["3.3", "1e300", "1/3", "0.1", "-6.02e23", "1.6e-19", "5"])
def test_value_neighbours_and_midpoints_are_told_apart(fmt, number):
    table = formats.side_by_side([formats.explain(number, fmt)])
    lines = [line for line in table.splitlines() if line.startswith(PLACES)]
    numbers = [line.split()[-1] for line in lines if not line.endswith("–")]
    assert numbers
    assert len(set(numbers)) == len(numbers)


def test_an_ulp_is_that_of_the_number_given_and_the_spacing_that_of_the_value():
    got = formats.explain(65520, "tf32")
    assert (got.value, got.ulp, got.spacing, got.error_in_ulps) == (65536.0, 32.0, 64.0, 0.5)
    table = [" ".join(line.split()) for line in formats.side_by_side([got]).splitlines()]
    assert {"spacing 2⁶ = 64", "ulp of number 2⁵ = 32", "error in ulp 0.5"} <= set(table)
    assert "ulp         2⁵ = 32, the spacing around the number given" in str(got)
    assert "2⁶ = 64 apart" in str(got)
    near = str(formats.explain("65519.99999999999999999999", "fp16"))
    assert "\n  65519.99999999999999999999 = 1111111111101111.1111…₂\n" in near
    beyond = str(formats.explain(70000, "fp16", overflow="saturate"))
    assert "ulp         2⁵ = 32, the spacing of the last binade" in beyond
    assert "left over: 0.75 of 2⁶" in beyond
    assert "error       -4496 = -140.5 ulp" in beyond


@pytest.mark.parametrize(
    ("number", "error", "in_ulps"),
    [
        ("65519.999", "-15.999", "-0.49997"),
        ("65519.9999999", "-15.9999999", "-0.499999997"),
        ("65519.99999999999999999999999", "about -16", "-0.49999999999999999…"),
        ("43024.000000000000000000000001", "about 16", "0.49999999999999999…"),
        ("1.001*2^-25", "2.97725e-8", "0.4995"),
        ("43024", "-16", "-0.5"),
        ("43056", "16", "0.5"),
    ],
)
def test_only_a_tie_has_an_error_of_a_half(number, error, in_ulps):
    got = formats.explain(number, "fp16")
    assert f"error       {error} = {in_ulps} ulp; " in str(got)
    rows = formats.side_by_side([got]).splitlines()
    assert [line.split()[-1] for line in rows if line.startswith("error in")] == [in_ulps]


@pytest.mark.parametrize(
    ("number", "mode", "said"),
    [
        ("-43024.5", "up", "0.516 ulp; up goes toward +∞, which is toward zero here; it is cut"),
        ("43009", "up", "0.0312 ulp; up goes toward +∞, which is away from zero here; one is"),
        ("43039", "down", "0.969 ulp; down goes toward -∞, which is toward zero here; it is cut"),
        ("43039", "toward_zero", "0.969 ulp; toward_zero never adds one; it is cut off"),
        ("43009", "to_odd", "whose code ends in 1, whatever is left over; one is added"),
        ("43039", "nearest_even", "0.969 ulp, more than a half; one is added"),
    ],
)
def test_the_mode_is_the_reason_where_it_decides(number, mode, said):
    text = " ".join(str(formats.explain(number, "fp16", mode)).split())
    assert said in text
    assert mode.startswith("nearest") or "a half" not in text


def test_a_nan_is_quiet_or_signalling_where_the_standard_says_so():
    for bits, fmt, quiet, word in (
        ("0x7c01", "fp16", False, "signalling"),
        ("0x7e00", "fp16", True, "quiet"),
        ("0x7fffffff", "fp32", True, "quiet"),
        ("0x7d", "e5m2", False, "signalling"),
    ):
        got = formats.explain(bits, fmt)
        assert got.quiet is quiet
        assert f"nan ({word}: first fraction bit {quiet:d})" in str(got)
        assert f"{word} nan" in formats.side_by_side([got])
    assert formats.explain(math.nan, "e4m3fn").quiet is None
    assert formats.explain(1, "fp16").quiet is None
    assert formats.explain(math.inf, "fp16").quiet is None


def test_the_last_binade_has_fewer_values_where_codes_are_set_aside():
    assert "[256, 512): 7 values, 2⁵ = 32 apart" in str(formats.explain(448, "e4m3fn"))
    assert "[128, 256): 8 values" in str(formats.explain(129, "e4m3fn"))
    assert "[128, 256): 7 values" in str(formats.explain(129, "binary8p4se"))
    assert "[0, 2⁻⁶): 0 and 7 values" in str(formats.explain("2^-9", "e4m3fn"))


def test_the_text_is_wrapped_at_a_width():
    got = formats.explain(65520, "fp16")
    assert got.wrapped(104) == str(got)
    assert max(map(len, got.wrapped(70).splitlines())) <= 70
    assert got.wrapped(70).split() == str(got).split()


def test_the_unit_roundoff_stands_only_where_it_bounds_the_error():
    assert "unit roundoff" in str(formats.explain("1.2", "e2m1fn"))
    assert "unit roundoff" not in str(formats.explain("0.75", "e2m1fn"))  # subnormal, goes to 1


def test_ties_that_go_the_same_way_say_which():
    for number, way in (("1.1", "up"), ("-1.1", "down")):
        table = formats.side_by_side([formats.explain(number, "fp16", "nearest_away")])
        assert way in next(line for line in table.splitlines() if line.startswith("ties go"))
