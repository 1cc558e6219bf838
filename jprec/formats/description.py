"""Descriptions of floating-point formats: a few integers each, from which all else follows."""

import dataclasses
import difflib
import functools
import math
import re
from typing import Any, Literal, TypeAlias, get_args

import ml_dtypes  # noqa: F401  (registers bfloat16, float8_*, ... with NumPy)
import numpy as np

#: Which codes are set aside:
#:   ieee               the top exponent: infinities (mantissa 0) and NaNs
#:   nan_all_ones       only the code of all ones below the sign ("fn")
#:   nan_negative_zero  only the code of -0, which therefore does not exist ("fnuz")
#:   none               nothing: every code is a number
Specials: TypeAlias = Literal["ieee", "nan_all_ones", "nan_negative_zero", "none"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A binary floating-point format of at most 64 bits whose values are all float64 values.

    Attributes:
      name: Spelling used everywhere, e.g. "e4m3fn".
      exponent_bits: Width of the exponent field, 2 to 11.
      mantissa_bits: Width of the stored mantissa, 1 to 52; 0 if not `signed`.
      bias: What is subtracted from the exponent field.
      specials: Which codes are set aside for infinity and NaN, see `Specials`.
      signed: False for a format of scales (e8m0fnu): no sign, no zero, no subnormals.

    >>> half = get("fp16")
    >>> half.max, half.precision, half.min_exponent, half.unit_roundoff == 2.0**-11
    (65504.0, 11, -14, True)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials = "ieee"
    signed: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.exponent_bits <= 11:
            self._refuse("exponent_bits", self.exponent_bits, "is 2 to 11 (11 is fp64's)")
        if self.signed and not 1 <= self.mantissa_bits <= 52:
            self._refuse("mantissa_bits", self.mantissa_bits, "is 1 to 52 (52 is fp64's)")
        if not self.signed and self.mantissa_bits != 0:
            self._refuse("mantissa_bits", self.mantissa_bits, "is 0 without a sign")
        if self.specials not in get_args(Specials):
            self._refuse("specials", self.specials, f"is one of {', '.join(get_args(Specials))}")
        if not self.signed and self.specials in ("ieee", "nan_negative_zero"):
            self._refuse("specials", self.specials, "is nan_all_ones or none without a sign")
        if self.max_exponent > 1023 or self.min_exponent - self.mantissa_bits < -1074:
            self._refuse("bias", self.bias, "keeps all values within those of float64")

    def _refuse(self, field: str, value: object, rule: str) -> None:
        raise ValueError(f"format {self.name!r}: {field}={value!r}, but {field} {rule}.")

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Width of a code, sign included."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @property
    def precision(self) -> int:
        """Significand bits, the implicit one included (p in IEEE 754)."""
        return self.mantissa_bits + 1

    @property
    def has_infinity(self) -> bool:
        """Whether there are codes for the infinities."""
        return self.specials == "ieee"

    @property
    def has_nan(self) -> bool:
        """Whether there is a code for NaN."""
        return self.specials != "none"

    @property
    def has_zero(self) -> bool:
        """Whether zero is a value."""
        return self.signed

    @property
    def has_negative_zero(self) -> bool:
        """Whether -0 is a value beside +0."""
        return self.signed and self.specials != "nan_negative_zero"

    @property
    def has_subnormals(self) -> bool:
        """Whether exponent field 0 holds evenly spaced values down to zero."""
        return self.signed

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value; subnormals share its ulp."""
        return (1 if self.has_subnormals else 0) - self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value."""
        top_is_special = self.specials == "ieee" or (
            self.specials == "nan_all_ones" and self.mantissa_bits == 0
        )
        return 2**self.exponent_bits - (2 if top_is_special else 1) - self.bias

    @property
    def max(self) -> float:
        """Largest finite value."""
        # In units of the last place the significands end at 2**p - 1; where NaN is the code of all
        # ones, that one is taken.
        last = 2**self.precision - 1
        if self.specials == "nan_all_ones" and self.mantissa_bits > 0:
            last -= 1
        return math.ldexp(last, self.max_exponent - self.mantissa_bits)

    @property
    def min_normal(self) -> float:
        """Smallest positive value with all `precision` bits."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        """Smallest positive value (`min_normal` for a format without subnormals)."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger value, 2**(1 - p)."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest in the normal range, 2**-p."""
        return math.ldexp(1.0, -self.precision)

    @property
    def decimal_digits(self) -> int:
        """Decimal digits that survive a trip into the format and back, floor((p - 1) log10 2)."""
        return math.floor(self.mantissa_bits * math.log10(2))


def _ieee(name: str, exponent_bits: int, mantissa_bits: int) -> FloatFormat:
    """The IEEE-754-like format of these widths."""
    return FloatFormat(
        name=name,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=2 ** (exponent_bits - 1) - 1,
    )


def _special(name: str, bias: int, specials: Specials, *, signed: bool = True) -> FloatFormat:
    """A named format whose name starts with its widths, as in "e4m3fn"."""
    exponent_bits, mantissa_bits = map(int, re.findall(r"\d+", name)[:2])
    return FloatFormat(
        name=name,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
        specials=specials,
        signed=signed,
    )


# IEEE Standard for Floating-Point Arithmetic, 754-2019, table 3.5, for fp64, fp32, fp16; OCP 8-bit
# Floating Point Specification (OFP8) 1.0 for e4m3fn and e5m2; OCP Microscaling Formats 1.0 for
# e2m3fn, e3m2fn, e2m1fn, e8m0fnu; Noune et al., "8-bit Numerical Formats for Deep Neural Networks",
# 2022, for the fnuz formats; Sun et al., "Hybrid 8-bit Floating Point Training", 2019, for bias 11.
_FORMATS = {
    fmt.name: fmt
    for fmt in (
        _ieee("fp64", 11, 52),
        _ieee("fp32", 8, 23),
        _ieee("tf32", 8, 10),
        _ieee("bf16", 8, 7),
        _ieee("fp16", 5, 10),
        _ieee("e5m2", 5, 2),
        _special("e4m3fn", 7, "nan_all_ones"),
        _special("e4m3fnuz", 8, "nan_negative_zero"),
        _special("e4m3b11fnuz", 11, "nan_negative_zero"),
        _special("e5m2fnuz", 16, "nan_negative_zero"),
        _special("e2m3fn", 1, "none"),
        _special("e3m2fn", 3, "none"),
        _special("e2m1fn", 1, "none"),
        _special("e8m0fnu", 127, "nan_all_ones", signed=False),
    )
}
_BY_WIDTHS = {
    (fmt.exponent_bits, fmt.mantissa_bits): fmt
    for fmt in _FORMATS.values()
    if fmt.specials == "ieee"
}
_SYNONYMS = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "f64": "fp64",
    "f32": "fp32",
    "f16": "fp16",
    "tfloat32": "tf32",
    "float8_e3m4": "e3m4",
    "float8_e4m3": "e4m3",
    "float8_e4m3fn": "e4m3fn",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e4m3b11fnuz": "e4m3b11fnuz",
    "float8_e5m2": "e5m2",
    "float8_e5m2fnuz": "e5m2fnuz",
    "float8_e8m0fnu": "e8m0fnu",
    "float6_e2m3fn": "e2m3fn",
    "float6_e3m2fn": "e3m2fn",
    "float4_e2m1fn": "e2m1fn",
}

#: A format, its name, or a NumPy or JAX dtype.
FormatLike: TypeAlias = FloatFormat | str | np.dtype | type[Any]


def names() -> tuple[str, ...]:
    """The names of the formats that have one, widest first within a family."""
    return tuple(_FORMATS)


def get(fmt: FormatLike) -> FloatFormat:
    """The format that a name or a dtype means; a FloatFormat is returned as it is.

    Besides `names()` and the spellings of NumPy and JAX ("float16", "float8_e4m3fn", ...), any
    "eXmY" is the IEEE-like format with X exponent and Y mantissa bits, infinity and NaN included.
    So "e5m10" is fp16; but "e4m3" ends at 240 and is not the OCP format e4m3fn, which ends at 448.

    >>> get("float16").name, get("e5m10").name, get("e8m2").max_exponent
    ('fp16', 'fp16', 127)
    """
    if isinstance(fmt, FloatFormat):
        return fmt
    if isinstance(fmt, str):
        return _by_name(fmt)
    try:
        name = np.dtype(fmt).name
    except TypeError:
        raise TypeError(
            f"{fmt!r} does not name a format; pass a name like 'bf16', a dtype, or a FloatFormat."
        ) from None
    return _by_name(name)


@functools.cache
def _by_name(name: str) -> FloatFormat:
    canonical = _SYNONYMS.get(name, name)
    if canonical in _FORMATS:
        return _FORMATS[canonical]
    if widths := re.fullmatch(r"e([1-9]\d*)m([1-9]\d*)", canonical):
        exponent_bits, mantissa_bits = int(widths[1]), int(widths[2])
        known = _BY_WIDTHS.get((exponent_bits, mantissa_bits))
        return known or _ieee(canonical, exponent_bits, mantissa_bits)
    close = difflib.get_close_matches(name.lower(), [*_FORMATS, *_SYNONYMS], n=3, cutoff=0.5)
    raise ValueError(
        f"unknown format {name!r}; "
        + (f"did you mean {' or '.join(close)}? " if close else "")
        + f"Known: {', '.join(_FORMATS)}, the dtype names of NumPy and JAX, and any IEEE-like "
        "'eXmY'."
    )
