"""Rounding in rational arithmetic: slow, short, and what everything else is compared with."""

import math
import operator
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


_HALF = Fraction(1, 2)

#: Mode -> whether a magnitude between two neighbours goes to the one away from zero: given the
#: fraction of the way, in (0, 1), whether the code of the one toward zero is odd, and the sign.
_GOES_OUT: dict[str, Callable[[Fraction, bool, bool], bool]] = {
    "nearest_even": lambda way, odd, negative: way > _HALF or (way == _HALF and odd),
    "nearest_away": lambda way, odd, negative: way >= _HALF,
    "toward_zero": lambda way, odd, negative: False,
    "up": lambda way, odd, negative: not negative,
    "down": lambda way, odd, negative: negative,
    "to_odd": lambda way, odd, negative: not odd,
}
#: The deterministic rounding modes.
MODES = tuple(_GOES_OUT)


def round_exact(
    value: Number, fmt: FormatLike, mode: str = "nearest_even", *, overflow: str = "format"
) -> float:
    """Rounds `value` to the value of `fmt` that `mode` chooses, in rational arithmetic.

    Overflow is what exceeds the largest value *after* rounding as if the exponent had no end. The
    nearest modes then go by `overflow`, and so does a directed mode that points away from zero; the
    modes that point toward zero, and to_odd, stop at the largest value. An infinite `value` goes by
    `overflow` in every mode, and NaN is always NaN. The sign of zero is kept where `fmt` has -0.
    In a format without sign, negative numbers become NaN, or zero with "saturate", unless they
    round to zero. In one without zero (e8m0fnu), zero and negative numbers become NaN, and what
    lies below the smallest value becomes that value; its ties go up.

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
    negative, magnitude = exact < 0, abs(exact)
    unit = unit_in_last_place(magnitude, fmt)
    way, toward_zero = magnitude / unit % 1, magnitude // unit
    out = way > 0 and _GOES_OUT[mode](way, _is_odd(toward_zero, unit, fmt), negative)
    rounded = (toward_zero + out) * unit
    if not fmt.has_zero:
        rounded = max(rounded, Fraction(fmt.min_subnormal))
    if negative and not fmt.signed and rounded:
        return _below_zero(fmt, overflow)
    if rounded > Fraction(fmt.max):
        inward = {"toward_zero": True, "to_odd": True, "up": negative, "down": not negative}
        return _beyond(fmt, negative, "saturate" if inward.get(mode) else overflow)
    keeps_sign = negative and (rounded != 0 or fmt.has_negative_zero)
    return math.copysign(float(rounded), -1 if keeps_sign else 1)


def _is_odd(multiple: int, unit: Fraction, fmt: FloatFormat) -> bool:
    """Whether the code of the value `multiple * unit` ends in 1."""
    if fmt.mantissa_bits or not fmt.has_zero:  # the last bit of the significand; e8m0fnu has only 1
        return multiple % 2 == 1
    field = floor_log2(unit) - fmt.min_exponent + 1  # a code is its exponent field
    return multiple == 1 and field % 2 == 1


def _round_special(value: float, fmt: FloatFormat, overflow: str) -> float:
    """Rounds +0, -0, infinity or NaN."""
    negative = math.copysign(1, value) < 0
    if math.isnan(value) or (value == 0 and not fmt.has_zero):
        return math.nan
    if negative and value and not fmt.signed:
        return _below_zero(fmt, overflow)
    if math.isinf(value):
        return _beyond(fmt, negative, overflow)
    return value if fmt.has_negative_zero else 0.0


def _below_zero(fmt: FloatFormat, overflow: str) -> float:
    """What `fmt`, which has no sign, has for a negative number."""
    return 0.0 if fmt.has_zero and (overflow == "saturate" or not fmt.has_nan) else math.nan


def to_exact(value: Number) -> Fraction | float:
    """`value` as a nonzero Fraction, or as the float +0, -0, infinity or NaN that it is."""
    try:
        exact = _fraction(value)
    except (ValueError, OverflowError):  # Fractions are finite
        return _special(value)
    if exact:
        return exact
    text = str(value).strip() if isinstance(value, (str, Decimal)) else ""
    return -0.0 if text.startswith("-") else 0.0 if text else float(value)


def _fraction(value: Number) -> Fraction:
    if isinstance(value, (int, Fraction, Decimal, str)):
        return Fraction(value)
    if hasattr(value, "__index__"):  # integers of NumPy, which float() would round
        try:
            return Fraction(operator.index(value))  # type: ignore[arg-type]
        except TypeError:
            pass
    if hasattr(value, "as_integer_ratio"):  # and its long doubles
        return Fraction(*map(int, value.as_integer_ratio()))
    return Fraction(float(value))


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
