"""A number in a format: its bits, its value, its neighbours and its error."""

import dataclasses
import math
from fractions import Fraction

from jprec.formats.codes import decode, encode
from jprec.formats.description import FloatFormat, FormatLike, get
from jprec.formats.explanation_text import teach
from jprec.formats.neighbours import is_finite, neighbour, spacing_around
from jprec.formats.oracle import (
    Number,
    floor_log2,
    nearest_float,
    round_exact,
    to_exact,
    unit_in_last_place,
)
from jprec.formats.reading import BitPattern, read


@dataclasses.dataclass(frozen=True)
class Midpoint:
    """The number halfway between two neighbours.

    Attributes:
      at: The number; beside the largest value it is halfway to where the next one would be.
      goes_to: The value that the rounding mode gives it.
      goes_to_even: Whether that value's code ends in 0; None if it has no code.
    """

    at: Fraction
    goes_to: float
    goes_to_even: bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """How one number is stored in one format.

    Attributes:
      given: The number as it was given, exactly: a nonzero Fraction, or the float 0, inf or NaN.
      text: As it was written, if it was text.
      format: The format that stores it.
      mode: The rounding mode.
      overflow: The overflow rule.
      code: The stored code; None for NaN in a format without one.
      bits: The code in binary, its fields separated: "0 11110 0101000000"; empty without a code.
      kind: "normal", "subnormal", "zero", "infinity", "nan", or "no code".
      value: The stored value.
      ulp: Unit in the last place of `given`: the distance between the values of the format around
        it (NaN if it is not finite). Where rounding carries into the next binade, `spacing`, that
        of the stored value, is twice as large.
      below: Largest value of the format less than `given`; None if there is none.
      above: Smallest value of the format greater than `given`; None if there is none.
      error: `value - given`, rounded to float64 once.
    """

    given: Fraction | float
    format: FloatFormat
    mode: str
    overflow: str
    code: int | None
    bits: str
    kind: str
    value: float
    ulp: float
    below: float | None
    above: float | None
    error: float
    text: str = ""

    @property
    def error_in_ulps(self) -> float:
        """`error / ulp`, in ulps of `given`, rounded to float64 once.

        At most 1/2 in magnitude where a nearest mode did not overflow.
        """
        if self.exact_error is None:
            return self.error / self.ulp
        return nearest_float(self.exact_error / Fraction(self.ulp))

    @property
    def relative_error(self) -> float:
        """`error / |given|`, rounded to float64 once; NaN for zero and what is not finite."""
        if not isinstance(self.given, Fraction):
            return math.nan
        if self.exact_error is None:
            return self.error
        return nearest_float(self.exact_error / abs(self.given))

    @property
    def exact_error(self) -> Fraction | None:
        """`value - given`, exactly; None unless both are finite."""
        if not math.isfinite(self.value) or not is_finite(self.given):
            return None
        return Fraction(self.value) - Fraction(self.given)

    @property
    def fraction(self) -> Fraction | None:
        """The stored value, exactly; None for infinity and NaN."""
        return Fraction(self.value) if math.isfinite(self.value) else None

    @property
    def exponent_field(self) -> int | None:
        """The integer in the exponent field; None without a code."""
        if self.code is None:
            return None
        return (self.code >> self.format.mantissa_bits) & (2**self.format.exponent_bits - 1)

    @property
    def mantissa(self) -> int | None:
        """The integer in the fraction field; None without a code."""
        return None if self.code is None else self.code & (2**self.format.mantissa_bits - 1)

    @property
    def quiet(self) -> bool | None:
        """Whether the NaN is quiet, or signalling; None for numbers, and where no standard says.

        In IEEE-like formats the first bit of the fraction tells (IEEE 754-2019, 6.2.1).
        """
        if self.kind != "nan" or self.format.specials != "ieee" or self.mantissa is None:
            return None
        return bool(self.mantissa >> (self.format.mantissa_bits - 1))

    @property
    def exponent(self) -> int | None:
        """The power of two that the significand is multiplied by; subnormals share the smallest."""
        if self.kind not in ("normal", "subnormal"):
            return None
        return max(floor_log2(abs(Fraction(self.value))), self.format.min_exponent)

    @property
    def binade(self) -> tuple[Fraction, Fraction] | None:
        """The magnitudes with the value's spacing, lower end included; None if not finite.

        That is [2**e, 2**(e + 1)), or [0, smallest normal) for zero and the subnormals.
        """
        if self.kind in ("zero", "subnormal"):
            return Fraction(0), Fraction(self.format.min_normal)
        if self.exponent is None:
            return None
        return Fraction(2) ** self.exponent, Fraction(2) ** (self.exponent + 1)

    @property
    def spacing(self) -> float:
        """Distance from the stored value to the next one away from zero; NaN if it is not finite.

        `ulp` is that around the number given.
        """
        if not math.isfinite(self.value):
            return math.nan
        magnitude = abs(Fraction(self.value)) or Fraction(self.format.min_subnormal)
        return float(unit_in_last_place(magnitude, self.format))

    @property
    def neighbours(self) -> tuple[float | None, float | None]:
        """The values of the format next below and next above the stored one; None beyond the end.

        `below` and `above` are those of the number that was given.
        """
        down, up = (neighbour(self.value, self.format, to) for to in ("down", "up"))
        return down, up

    @property
    def midpoints(self) -> tuple[Midpoint | None, Midpoint | None]:
        """The points halfway to the neighbours below and above; None where there is no such point.

        With a nearest mode, what lies between the two becomes the stored value.
        """
        if not math.isfinite(self.value):
            return None, None
        fmt, value, outward = self.format, Fraction(self.value), Fraction(self.spacing)
        e = self.exponent
        # Below a power of two the values are twice as dense.
        dense_inside = e is not None and e > fmt.min_exponent and abs(value) == Fraction(2) ** e
        inward = outward / 2 if dense_inside else outward
        down, up = (outward, inward) if value < 0 else (inward, outward)
        is_lowest = not fmt.signed and value == (0 if fmt.has_zero else Fraction(fmt.min_normal))
        return (
            None if is_lowest else self._midpoint(value - down / 2),
            self._midpoint(value + up / 2),
        )

    def _midpoint(self, at: Fraction) -> Midpoint:
        rounded = round_exact(at, self.format, self.mode, overflow=self.overflow)
        code = _code(at, rounded, self.format, self.mode, self.overflow)
        return Midpoint(at, rounded, None if code is None else code % 2 == 0)

    def __str__(self) -> str:
        return teach(self)

    def wrapped(self, width: int) -> str:
        """The explanation as `str` gives it, its lines wrapped at `width`."""
        return teach(self, width)


def explain(
    value: Number | BitPattern,
    fmt: FormatLike,
    mode: str = "nearest_even",
    *,
    overflow: str = "format",
) -> Explanation:
    """The bits, the value, the neighbours and the error of `value` in `fmt`.

    Args:
      value: A number, taken as it is: 0.1 is the float64 number. Text is read by `read`: "0.1" is
        one tenth, "2^-24" a power of two, and "0x7bff" the bits of a value of `fmt`.
      fmt: The format.
      mode: One of `MODES`.
      overflow: One of `OVERFLOWS`.

    >>> print(explain(43008.111, "fp16"))
    43008.111 in fp16 (1 sign + 5 exponent + 10 fraction bits, bias 15), nearest_even
    <BLANKLINE>
      43008.111   = 1010100000000000.0001…₂
                  = 1.010100000000000000…₂ × 2¹⁵
      rounding    1.0101000000|00000000…₂ × 2¹⁵
                  left over: 0.00347 ulp, less than a half; it is cut off
      exponent    15 + 15 = 30 = 11110₂
    <BLANKLINE>
      0 11110 0101000000 = 0x7940
      │ │     └ fraction  320/1024
      │ └ exponent  30 - 15 = 15
      └ sign  0: +
    <BLANKLINE>
      value       43008 = (1 + 320/1024) × 2¹⁵
      ulp         2⁵ = 32, the spacing around the number given
      error       -0.111 = -0.00347 ulp; relative -2.58e-6 (unit roundoff 2⁻¹¹ = 0.000488)
      binade      [2¹⁵, 2¹⁶) = [32768, 65536): 1024 values, 2⁵ = 32 apart
      neighbours  42976 below, 43040 above
      midpoints   42992 and 43024; both ties go to the value, whose code ends in 0
    <BLANKLINE>
      43008                     43024                     43040
      ├───────────────────────────┼───────────────────────────┤
      ▲ 43008.111
    """
    fmt, text = get(fmt), value.strip() if isinstance(value, str) else ""
    if isinstance(value, str):
        value = read(value)
    if isinstance(value, BitPattern):
        text = text or value.text
        code: int | None = value.code_in(fmt)
        stored = decode(value.code, fmt)
        given = to_exact(stored)
    else:
        given = to_exact(value)
        stored = round_exact(given, fmt, mode, overflow=overflow)
        code = _code(given, stored, fmt, mode, overflow)
    return Explanation(
        given=given,
        format=fmt,
        mode=mode,
        overflow=overflow,
        code=code,
        bits="" if code is None else _fields(code, fmt),
        kind="no code" if code is None else _kind(stored, fmt),
        value=stored,
        ulp=spacing_around(given, fmt),
        below=neighbour(given, fmt, "down"),
        above=neighbour(given, fmt, "up"),
        error=_error(stored, given),
        text=text,
    )


def _code(
    given: Fraction | float, rounded: float, fmt: FloatFormat, mode: str, overflow: str
) -> int | None:
    """The code of what `given` rounds to; None for NaN in a format without one."""
    if math.isnan(rounded) and not fmt.has_nan:
        return None
    return encode(given, fmt, mode, overflow=overflow)


def _fields(code: int, fmt: FloatFormat) -> str:
    digits = f"{code:0{fmt.bits}b}"
    sign, rest = digits[: int(fmt.signed)], digits[int(fmt.signed) :]
    parts = (sign, rest[: fmt.exponent_bits], rest[fmt.exponent_bits :])
    return " ".join(part for part in parts if part)


def _kind(value: float, fmt: FloatFormat) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "infinity"
    if value == 0:
        return "zero"
    return "normal" if abs(value) >= fmt.min_normal else "subnormal"


def _error(value: float, given: Fraction | float) -> float:
    if not is_finite(given):
        return value - float(given)
    if math.isfinite(value):
        return nearest_float(Fraction(value) - Fraction(given))
    return value  # infinity is infinitely far from any number, however large; NaN is NaN
