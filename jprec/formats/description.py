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
#:   p3109_extended     one NaN, the code of -0 (without a sign: of all ones), and the largest
#:                      magnitude left is infinity
#:   none               nothing: every code is a number
Specials: TypeAlias = Literal["ieee", "nan_all_ones", "nan_negative_zero", "p3109_extended", "none"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FloatFormat:
    """A binary floating-point format of at most 64 bits whose values are all float64 values.

    Attributes:
      name: Spelling used everywhere, e.g. "e4m3fn".
      exponent_bits: Width of the exponent field, 1 to 11 (from 2 with `specials="ieee"`).
      mantissa_bits: Width of the stored mantissa, 0 to 52 (from 1 with `specials="ieee"`).
      bias: What is subtracted from the exponent field.
      specials: Which codes are set aside for infinity and NaN, see `Specials`.
      signed: Whether there are negative values.
      has_zero: Whether zero is a value. False for a format of scales (e8m0fnu), whose exponent
        field 0 is that of a normal value like any other.

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
    has_zero: bool = True

    def __post_init__(self) -> None:
        if self.specials not in get_args(Specials):
            self._refuse("specials", self.specials, f"is one of {', '.join(get_args(Specials))}")
        for field in ("exponent_bits", "mantissa_bits", "bias"):
            if not isinstance(getattr(self, field), int):
                self._refuse(field, getattr(self, field), "is an integer")
        ieee = int(self.specials == "ieee")
        if not 1 + ieee <= self.exponent_bits <= 11:
            self._refuse("exponent_bits", self.exponent_bits, f"is {1 + ieee} to 11 (fp64's)")
        if not ieee <= self.mantissa_bits <= 52:
            self._refuse("mantissa_bits", self.mantissa_bits, f"is {ieee} to 52 (fp64's)")
        if not self.signed and self.specials in ("ieee", "nan_negative_zero"):
            self._refuse("specials", self.specials, "takes a sign; choose another without one")
        if not self.has_zero and (self.signed or self.mantissa_bits):
            self._refuse("has_zero", self.has_zero, "is for formats of exponents alone, unsigned")
        if self.max_code < (2**self.mantissa_bits if self.has_zero else 0):
            self._refuse("exponent_bits", self.exponent_bits, "leaves a code for a normal number")
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
        return self.specials in ("ieee", "p3109_extended")

    @property
    def has_nan(self) -> bool:
        """Whether there is a code for NaN."""
        return self.specials != "none"

    @property
    def has_negative_zero(self) -> bool:
        """Whether -0 is a value beside +0."""
        return self.signed and self.specials not in ("nan_negative_zero", "p3109_extended")

    @property
    def has_subnormals(self) -> bool:
        """Whether there are values between zero and the smallest normal value."""
        return self.has_zero and self.mantissa_bits > 0

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value; subnormals share its ulp."""
        return (1 if self.has_zero else 0) - self.bias

    @property
    def max_code(self) -> int:
        """The code of the largest finite value."""
        if self.specials == "ieee":
            return self.infinity_code - 1
        set_aside = {
            "nan_all_ones": 1,
            "p3109_extended": 1 if self.signed else 2,  # infinity, and NaN without a sign
        }.get(self.specials, 0)
        return 2 ** (self.exponent_bits + self.mantissa_bits) - 1 - set_aside

    @property
    def infinity_code(self) -> int:
        """The code of +infinity; an error in a format that has none."""
        if self.specials == "ieee":
            return (2**self.exponent_bits - 1) << self.mantissa_bits
        if self.specials == "p3109_extended":
            return self.max_code + 1
        raise ValueError(f"{self.name} has no infinity, and so no code for it.")

    @property
    def nan_code(self) -> int:
        """The code of the quiet NaN without payload; an error in a format that has none."""
        if self.specials == "ieee":  # the top exponent, with the first mantissa bit set
            return self.infinity_code + (1 << (self.mantissa_bits - 1))
        if self.specials == "none":
            raise ValueError(f"{self.name} has no NaN, and so no code for it.")
        if self.signed and self.specials != "nan_all_ones":
            return 1 << (self.bits - 1)
        return 2 ** (self.exponent_bits + self.mantissa_bits) - 1

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value."""
        return (
            (self.max_code >> self.mantissa_bits)
            - (1 if self.has_zero else 0)
            + (self.min_exponent)
        )

    @property
    def max(self) -> float:
        """Largest finite value."""
        implicit_bit = 2**self.mantissa_bits
        significand = implicit_bit + self.max_code % implicit_bit
        return math.ldexp(significand, self.max_exponent - self.mantissa_bits)

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
        """What bounds the relative error to nearest, 2**-p; the largest is u / (1 + u)."""
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


def _special(name: str, bias: int, specials: Specials, **fields: bool) -> FloatFormat:
    """A named format whose name starts with its widths, as in "e4m3fn"."""
    exponent_bits, mantissa_bits = map(int, re.findall(r"\d+", name)[:2])
    return FloatFormat(
        name=name,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
        specials=specials,
        **fields,
    )


def _p3109(bits: int, precision: int, sign: str, domain: str) -> FloatFormat:
    """The format binary{bits}p{precision}{s|u}{e|f} of IEEE P3109.

    IEEE Working Group P3109, Interim Report on Binary Floating-point Formats for Machine Learning,
    version 4: signed or unsigned, extended (with infinities) or finite; one NaN, no -0.
    """
    name, signed = f"binary{bits}p{precision}{sign}{domain}", sign == "s"
    widest = bits - 1 if signed else bits
    if not (3 <= bits <= 16 and 1 <= precision <= widest):
        raise ValueError(
            f"{name!r}: P3109 formats have 3 to 16 bits and a precision of 1 to bits - 1 "
            "(1 to bits without a sign)."
        )
    finite: Specials = "nan_negative_zero" if signed else "nan_all_ones"
    exponent_bits = widest - precision + 1
    return FloatFormat(
        name=name,
        exponent_bits=exponent_bits,
        mantissa_bits=precision - 1,
        bias=2 ** (exponent_bits - 1),
        specials="p3109_extended" if domain == "e" else finite,
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
        _ieee("e4m3", 4, 3),
        _ieee("e3m4", 3, 4),
        _special("e4m3fn", 7, "nan_all_ones"),
        _special("e4m3fnuz", 8, "nan_negative_zero"),
        _special("e4m3b11fnuz", 11, "nan_negative_zero"),
        _special("e5m2fnuz", 16, "nan_negative_zero"),
        _special("e2m3fn", 1, "none"),
        _special("e3m2fn", 3, "none"),
        _special("e2m1fn", 1, "none"),
        _special("e8m0fnu", 127, "nan_all_ones", signed=False, has_zero=False),
    )
}
_BY_WIDTHS = {
    (fmt.exponent_bits, fmt.mantissa_bits): fmt
    for fmt in _FORMATS.values()
    if fmt.specials == "ieee"
}
_SYNONYMS = {
    "binary64": "fp64",
    "binary32": "fp32",
    "binary16": "fp16",
    "double": "fp64",
    "single": "fp32",
    "half": "fp16",
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

#: What is often said for several formats, for hints.
_FAMILIES = {
    "fp8": ("e4m3fn", "e5m2"),
    "float8": ("e4m3fn", "e5m2"),
    "fp6": ("e2m3fn", "e3m2fn"),
    "fp4": ("e2m1fn",),
    "e2m1": ("e2m1fn",),
}

#: A format, its name, or a NumPy or JAX dtype.
FormatLike: TypeAlias = FloatFormat | str | np.dtype | type[Any]


def names() -> tuple[str, ...]:
    """The names of the formats that have one, widest first within a family."""
    return tuple(_FORMATS)


def get(fmt: FormatLike) -> FloatFormat:
    """The format that a name, in any case, or a dtype means; a FloatFormat is returned as it is.

    Besides `names()` and the spellings of NumPy and JAX ("float16", "float8_e4m3fn", ...), any
    "eXmY" is the IEEE-like format with X exponent and Y mantissa bits, infinity and NaN included.
    So "e5m10" is fp16; but "e4m3" ends at 240 and is not the OCP format e4m3fn, which ends at 448.
    "binary8p4se" is the IEEE P3109 format of 8 bits and precision 4: "s" signed or "u" unsigned,
    "e" extended with infinities or "f" finite.

    >>> get("float16").name, get("e5m10").name, get("e8m2").max_exponent
    ('fp16', 'fp16', 127)
    """
    if isinstance(fmt, FloatFormat):
        return fmt
    if isinstance(fmt, str):
        return _by_name(fmt)
    try:
        name = np.dtype(fmt).name if fmt is not None else None  # NumPy takes None for float64
    except (TypeError, ValueError):
        name = None
    if name is None or name == "void":
        raise TypeError(
            f"{fmt!r} does not name a format; pass a name like 'bf16', a dtype, or a FloatFormat."
        )
    return _by_name(name)


def _by_name(name: str) -> FloatFormat:
    found = _by_lower_name(name.lower())
    if found is None:
        raise ValueError(_unknown(name, name.lower()))
    return found


@functools.cache
def _by_lower_name(lower: str) -> FloatFormat | None:
    canonical = _SYNONYMS.get(lower, lower)
    if canonical in _FORMATS:
        return _FORMATS[canonical]
    if widths := re.fullmatch(r"e([1-9]\d*)m([1-9]\d*)", canonical):
        exponent_bits, mantissa_bits = int(widths[1]), int(widths[2])
        known = _BY_WIDTHS.get((exponent_bits, mantissa_bits))
        return known or _ieee(canonical, exponent_bits, mantissa_bits)
    if fields := re.fullmatch(r"binary(\d+)p(\d+)([su])([ef])", canonical):
        return _p3109(int(fields[1]), int(fields[2]), fields[3], fields[4])
    return None


def _unknown(name: str, lower: str) -> str:
    if re.match(r"(mx|nv)fp\d", lower):
        return (
            f"{name!r} is no format of single numbers but a block format, whose numbers share a "
            "scale: jprec.rounding.round_blocks rounds to it, jprec.formats.get_block describes it."
        )
    close = _FAMILIES.get(lower) or difflib.get_close_matches(
        lower, [*_FORMATS, *_SYNONYMS], n=3, cutoff=0.5
    )
    if re.match(r"binary\d+p", lower):
        close = ["binary8p4se (s signed or u unsigned, e extended or f finite)"]
    return (
        f"unknown format {name!r}; "
        + (f"did you mean {' or '.join(close)}? " if close else "")
        + f"Known: {', '.join(_FORMATS)}, the dtype names of NumPy and JAX, any IEEE-like 'eXmY', "
        "and IEEE P3109's, such as 'binary8p4se'."
    )
