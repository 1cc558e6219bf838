"""The values of a format on either side of a number."""

import math
from fractions import Fraction

from jprec.formats.description import FloatFormat
from jprec.formats.oracle import round_exact, unit_in_last_place


def spacing_around(given: Fraction | float, fmt: FloatFormat) -> float:
    """The distance between the values of `fmt` around `given`; NaN if that is not finite."""
    if not is_finite(given):
        return math.nan
    # Zero's neighbours are as far away as those of the smallest value; past the largest value the
    # spacing is that of the last binade.
    magnitude = abs(Fraction(given)) or Fraction(fmt.min_subnormal)
    return float(unit_in_last_place(min(magnitude, Fraction(fmt.max)), fmt))


def values_in_binade(fmt: FloatFormat, exponent: int) -> int:
    """How many positive values `fmt` has from 2**exponent up to, not including, twice that.

    Those are 2**mantissa_bits, except where codes at the end of the last binade are set aside.
    """
    full, low = 2**fmt.mantissa_bits, Fraction(2) ** exponent
    return min(full, int((Fraction(fmt.max) - low) // (low / full)) + 1)


def is_finite(number: Fraction | float) -> bool:
    """Whether the number is neither infinite nor NaN."""
    return isinstance(number, Fraction) or math.isfinite(number)


def neighbour(given: Fraction | float, fmt: FloatFormat, mode: str) -> float | None:
    """The value of `fmt` next to `given` on the side that `mode` ("up" or "down") points to."""
    smallest = 0.0 if fmt.has_zero else fmt.min_subnormal
    if not is_finite(given):
        lowest = -fmt.max if fmt.signed else smallest
        outermost = lowest if mode == "up" else fmt.max
        return outermost if _beyond(outermost, given, mode) else None
    exact = Fraction(given)
    if not fmt.signed and exact < smallest:  # below the first value
        return smallest if mode == "up" else None
    found = round_exact(exact, fmt, mode)
    if found == exact:  # go on to the next value: they are at least min_subnormal apart
        step = Fraction(fmt.min_subnormal) / 2
        found = round_exact(exact + (step if mode == "up" else -step), fmt, mode)
    return found if _beyond(found, exact, mode) else None


def _beyond(value: float, given: Fraction | float, mode: str) -> bool:
    """Whether `value` lies on the side of `given` that `mode` points to (NaN does not)."""
    return value > given if mode == "up" else value < given
