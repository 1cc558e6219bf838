"""A number in a format, bit by bit, in words."""

import dataclasses
import math
from fractions import Fraction

from jprec.formats.codes import decode, encode
from jprec.formats.description import FloatFormat, FormatLike, get
from jprec.formats.oracle import Number, nearest_float, round_exact, to_exact, unit_in_last_place


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """How one number is stored in one format.

    Attributes:
      given: The number as it was given, exactly: a nonzero Fraction, or the float 0, inf or NaN.
      format: The format that stores it.
      mode: The rounding mode.
      code: The stored code.
      bits: The code in binary, its fields separated: "0 11110 0101000000".
      kind: "normal", "subnormal", "zero", "infinity" or "nan".
      value: The stored value.
      ulp: Distance between the values of the format around `given` (NaN if that is not finite).
      below: Largest value of the format less than `given`; None if there is none.
      above: Smallest value of the format greater than `given`; None if there is none.
      error: `value - given`, rounded to float64 once.
    """

    given: Fraction | float
    format: FloatFormat
    mode: str
    code: int
    bits: str
    kind: str
    value: float
    ulp: float
    below: float | None
    above: float | None
    error: float

    @property
    def error_in_ulps(self) -> float:
        """`error / ulp`: at most 1/2 in magnitude where a nearest mode did not overflow."""
        return self.error / self.ulp

    def __str__(self) -> str:
        fmt = self.format
        fields = (
            f"{int(fmt.signed)} sign, {fmt.exponent_bits} exponent, {fmt.mantissa_bits} mantissa"
        )
        lines = [
            f"{_shown(self.given)} in {fmt.name} ({fields} bits, bias {fmt.bias}), {self.mode}",
            f"  bits   {self.bits}",
            f"  value  {self.value!r}{self._derivation()}",
        ]
        if math.isfinite(self.ulp):
            lines += [
                f"  below  {_shown(self.below)}   above  {_shown(self.above)}   ulp  {self.ulp!r}",
                f"  error  {self.error!r} ({self.error_in_ulps:.3g} ulp)",
            ]
        return "\n".join(lines)

    def _derivation(self) -> str:
        if self.kind not in ("normal", "subnormal"):
            return f" ({self.kind})"
        fmt = self.format
        mantissa = self.bits.split()[-1] if fmt.mantissa_bits else ""
        lead = "1" if self.kind == "normal" else "0"
        exponent = max(math.frexp(self.value)[1] - 1, fmt.min_exponent)
        sign = "-" if self.value < 0 else ""
        dot = "." if mantissa else ""
        return f" = {sign}{lead}{dot}{mantissa} (binary) * 2**{exponent}, {self.kind}"


def explain(
    value: Number, fmt: FormatLike, mode: str = "nearest_even", *, overflow: str = "format"
) -> Explanation:
    """The bits, the value, the neighbours and the error of `value` in `fmt`.

    >>> print(explain("43008.111", "fp16"))
    43008.111 in fp16 (1 sign, 5 exponent, 10 mantissa bits, bias 15), nearest_even
      bits   0 11110 0101000000
      value  43008.0 = 1.0101000000 (binary) * 2**15, normal
      below  43008.0   above  43040.0   ulp  32.0
      error  -0.111 (-0.00347 ulp)
    """
    fmt = get(fmt)
    given = to_exact(value)
    code = encode(value, fmt, mode, overflow=overflow)
    stored = decode(code, fmt)
    finite = isinstance(given, Fraction) or given == 0
    ulp = math.nan
    if finite:
        # Zero's neighbours are as far away as those of the smallest value; past the largest value
        # the spacing is that of the last binade.
        magnitude = abs(Fraction(given)) or Fraction(fmt.min_subnormal)
        ulp = float(unit_in_last_place(min(magnitude, Fraction(fmt.max)), fmt))
    return Explanation(
        given=given,
        format=fmt,
        mode=mode,
        code=code,
        bits=_fields(code, fmt),
        kind=_kind(stored, fmt),
        value=stored,
        ulp=ulp,
        below=_neighbour(given, fmt, "down"),
        above=_neighbour(given, fmt, "up"),
        error=_error(stored, given),
    )


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


def _neighbour(given: Fraction | float, fmt: FloatFormat, mode: str) -> float | None:
    """The value of `fmt` next to `given` on the side that `mode` ("up" or "down") points to."""
    if isinstance(given, float) and given != 0:
        outermost = -fmt.max if mode == "up" else fmt.max
        return outermost if _beyond(outermost, given, mode) else None
    exact = Fraction(given)
    neighbour = round_exact(exact, fmt, mode)
    if neighbour == exact:  # go on to the next value: they are at least min_subnormal apart
        step = Fraction(fmt.min_subnormal) / 2
        neighbour = round_exact(exact + (step if mode == "up" else -step), fmt, mode)
    return neighbour if _beyond(neighbour, exact, mode) else None


def _beyond(value: float, given: Fraction | float, mode: str) -> bool:
    """Whether `value` lies on the side of `given` that `mode` points to (NaN does not)."""
    return value > given if mode == "up" else value < given


def _error(value: float, given: Fraction | float) -> float:
    if math.isfinite(value) and (isinstance(given, Fraction) or given == 0):
        return nearest_float(Fraction(value) - Fraction(given))
    return value - nearest_float(given)


def _shown(number: Fraction | float | None) -> str:
    return "none" if number is None else repr(nearest_float(number))
