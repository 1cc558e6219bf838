"""Rounding in rational arithmetic: slow, short, and what everything else is compared with."""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import SupportsFloat, TypeAlias

from jprec.formats.description import FloatFormat, FormatLike, get

#: What can be rounded exactly. A string is read as a decimal fraction: "0.1" means one tenth.
Number: TypeAlias = int | float | Fraction | Decimal | str | SupportsFloat

#: Overflow rules: "format" gives infinity if there is one, else NaN, else the largest value;
#: "saturate" gives the largest value.
OVERFLOWS = ("format", "saturate")


def _to_odd(q: Fraction, negative: bool) -> int:
    del negative
    n = math.floor(q)
    return n if n == q else n | 1


#: Mode -> the integer that stands for q >= 0, the magnitude in units of the last place.
_INTEGER: dict[str, Callable[[Fraction, bool], int]] = {
    "nearest_even": lambda q, negative: round(q),  # round() of a Fraction is ties-to-even
    "nearest_away": lambda q, negative: math.floor(q + Fraction(1, 2)),
    "toward_zero": lambda q, negative: math.floor(q),
    "up": lambda q, negative: math.floor(q) if negative else math.ceil(q),
    "down": lambda q, negative: math.ceil(q) if negative else math.floor(q),
    "to_odd": _to_odd,
}

#: The deterministic rounding modes.
MODES = tuple(_INTEGER)


def round_exact(
    value: Number, fmt: FormatLike, mode: str = "nearest_even", *, overflow: str = "format"
) -> float:
    """Rounds `value` to the value of `fmt` that `mode` chooses, in rational arithmetic.

    Overflow is what exceeds the largest value *after* rounding as if the exponent had no end. The
    nearest modes then go by `overflow`, and so does a directed mode that points away from zero; the
    modes that point toward zero, and to_odd, stop at the largest value. An infinite `value` goes by
    `overflow` in every mode, and NaN is always NaN. The sign of zero is kept where `fmt` has -0.
    A format without sign has no zero either: zero and negative numbers become NaN, and what lies
    below its smallest value becomes that value.

    Args:
      value: A number, taken as it is: 0.1 is the float64 number, "0.1" is one tenth.
      fmt: Target format.
      mode: One of `MODES`.
      overflow: One of `OVERFLOWS`.

    Returns:
      A value of `fmt`, infinity or NaN, as float64, which holds it exactly.

    >>> round_exact(43008.111, "fp16"), round_exact(43024, "fp16", "nearest_away")
    (43008.0, 43040.0)
    """
    fmt = get(fmt)
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}, but the deterministic modes are {', '.join(MODES)}.")
    if overflow not in OVERFLOWS:
        raise ValueError(f"overflow={overflow!r}, but it is one of {', '.join(OVERFLOWS)}.")
    exact = to_exact(value)
    if isinstance(exact, float):
        return _round_special(exact, fmt, overflow)
    if exact < 0 and not fmt.signed:
        return math.nan
    negative, magnitude = exact < 0, abs(exact)
    unit = unit_in_last_place(magnitude, fmt)
    rounded = _INTEGER[mode](magnitude / unit, negative) * unit
    if not fmt.has_zero:
        rounded = max(rounded, Fraction(fmt.min_subnormal))
    if rounded > Fraction(fmt.max):
        inward = {"toward_zero": True, "to_odd": True, "up": negative, "down": not negative}
        return _beyond(fmt, negative, "saturate" if inward.get(mode) else overflow)
    keeps_sign = negative and (rounded != 0 or fmt.has_negative_zero)
    return math.copysign(float(rounded), -1 if keeps_sign else 1)


def _round_special(value: float, fmt: FloatFormat, overflow: str) -> float:
    """Rounds +0, -0, infinity or NaN."""
    negative = math.copysign(1, value) < 0
    if math.isnan(value) or (not fmt.signed and (negative or value == 0)):
        return math.nan
    if math.isinf(value):
        return _beyond(fmt, negative, overflow)
    return value if fmt.has_negative_zero else 0.0


def to_exact(value: Number) -> Fraction | float:
    """`value` as a nonzero Fraction, or as the float +0, -0, infinity or NaN that it is."""
    try:
        exact = Fraction(
            value if isinstance(value, (int, Fraction, Decimal, str)) else float(value)
        )
    except (ValueError, OverflowError):  # Fractions are finite
        return _special(value)
    return exact or float(value)


def _special(value: Number) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(
            f"{value!r} is not a number; write a decimal such as 1e-4, a fraction such as 1/3, "
            "inf, or nan."
        ) from None


def nearest_float(number: Fraction | float) -> float:
    """`number` as the nearest float64, infinite beyond its range."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def unit_in_last_place(magnitude: Fraction, fmt: FloatFormat) -> Fraction:
    """The distance between the values of `fmt` around `magnitude` > 0, as if `fmt` had no end."""
    exponent = max(floor_log2(magnitude), fmt.min_exponent)
    return Fraction(2) ** (exponent - fmt.mantissa_bits)


def floor_log2(magnitude: Fraction) -> int:
    """The exponent e with 2**e <= magnitude < 2**(e + 1)."""
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if Fraction(2) ** guess <= magnitude else guess - 1


def _beyond(fmt: FloatFormat, negative: bool, overflow: str) -> float:
    """What `fmt` has for a number beyond its largest value."""
    if overflow == "saturate" or not fmt.has_nan:
        return -fmt.max if negative else fmt.max
    if fmt.has_infinity:
        return -math.inf if negative else math.inf
    return math.nan
