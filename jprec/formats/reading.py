"""Numbers as people write them, read exactly, without a float between the text and the value."""

import dataclasses
import math
import re
from fractions import Fraction

from jprec.formats.description import FloatFormat

#: Limits that keep the exact value small enough to work with; fp64 ends at 1e-324 and 1e309.
LONGEST_TEXT = 1200
LARGEST_EXPONENT = 9999

_EXPECTED = (
    "write a decimal (43008.111, 1e-46), a fraction (1/3), a power of two (2^-24, 1.5*2^-24), "
    "a hex float (0x1.8p3), a bit pattern (0x7bff, 0b0_11110_1111111111), inf or nan."
)
_NUMBER = re.compile(
    r"""(?P<sign>[+-]?)(?:
        (?P<special>inf|infinity|nan)
      | 0x(?P<hex>[0-9a-f]*(?:\.[0-9a-f]*)?)(?:p(?P<hex_power>[+-]?\d+))?
      | (?P<top>\d+)/(?P<bottom>\d+)
      | (?P<base>2)(?:\^|\*\*)(?P<power>[+-]?\d+)
      | (?P<decimal>\d+\.?\d*|\.\d+)(?:e(?P<ten>[+-]?\d+))?
        (?:[*×·]2(?:\^|\*\*)(?P<times>[+-]?\d+))?
    )""",
    re.VERBOSE | re.ASCII,
)
_PATTERN = re.compile(r"0x(?P<hex>[0-9a-f]+)|0b(?P<binary>[01]+)", re.ASCII)


@dataclasses.dataclass(frozen=True)
class BitPattern:
    """Bits as they are stored, which each format reads as a code of its own.

    Attributes:
      text: As it was written, in small letters.
      code: The bits as an integer.
    """

    text: str
    code: int

    def code_in(self, fmt: FloatFormat) -> int:
        """The code, checked against the width of `fmt`."""
        if self.code >= 2**fmt.bits:
            raise ValueError(
                f"bit pattern {_named(self.text, quote='')} needs {self.code.bit_length()} bits, "
                f"but {fmt.name} has {fmt.bits}: give at most {fmt.bits} bits, or a wider format."
            )
        return self.code


def read(text: str) -> Fraction | float | BitPattern:
    """The number that `text` writes: a nonzero Fraction, the float 0, -0, inf or NaN, or bits.

    Text with "0x" and neither "." nor "p" is a bit pattern, and so is text with "0b"; "_" and
    blanks may separate its fields. A minus sign may be "-" or "−".

    >>> read("43008.111"), read("-2^-24"), read("0x1.8p3"), read("-0")
    (Fraction(43008111, 1000), Fraction(-1, 16777216), Fraction(12, 1), -0.0)
    >>> read("0b0_11110_0101000000")
    BitPattern(text='0b0_11110_0101000000', code=31040)
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(
            f"a number of {len(text)} characters is too long; at most {LONGEST_TEXT} are read."
        )
    plain = text.strip().lower().replace("\N{MINUS SIGN}", "-")
    if not plain:
        raise ValueError(f"the number is empty; {_EXPECTED}")
    bits = _PATTERN.fullmatch(re.sub(r"[_ ]", "", plain))
    if bits:
        return BitPattern(plain, int(bits["hex"] or bits["binary"], 16 if bits["hex"] else 2))
    found = _NUMBER.fullmatch(plain)
    if found is None or not _hex_is_sound(found):
        raise ValueError(f"{_named(text)} is not a number: {_hint(plain)}{_EXPECTED}")
    sign = -1 if found["sign"] == "-" else 1
    if found["special"]:
        return math.copysign(float(found["special"]), sign)
    if found["bottom"] is not None and int(found["bottom"]) == 0:
        raise ValueError(f"{_named(text)} divides by zero; for infinity write inf.")
    return sign * _magnitude(found, text) or math.copysign(0.0, sign)


def _named(text: str, quote: str = "'") -> str:
    """The text for a message: quoted, on one line, and not longer than that."""
    shown = text if text.isprintable() else repr(text)[1:-1]
    return quote + (shown if len(shown) <= 60 else f"{shown[:57]}…") + quote


def _hex_is_sound(found: re.Match[str]) -> bool:
    """False for "0x.p3", which has no digits, and "-0x7bff": bits carry their own sign."""
    if found["hex"] is None:
        return True
    return bool(found["hex"].strip(".")) and ("." in found["hex"] or bool(found["hex_power"]))


def _hint(text: str) -> str:
    """What is probably wrong with `text`, where that can be told."""
    if "," in text:
        return "the decimal point is '.', and nothing separates thousands; "
    if text.startswith(("-0x", "-0b")):
        return "the sign of a bit pattern is its first bit; "
    return ""


def _magnitude(found: re.Match[str], text: str) -> Fraction:
    """The value without its sign."""
    if found["bottom"]:
        return Fraction(int(found["top"]), int(found["bottom"]))
    if found["base"]:
        return _power(2, found["power"], text)
    if found["hex"] is not None:
        whole, _, rest = found["hex"].partition(".")
        digits = Fraction(int(whole + rest, 16), 16 ** len(rest))
        return digits * _power(2, found["hex_power"], text)
    mantissa = Fraction(found["decimal"])
    return mantissa * _power(10, found["ten"], text) * _power(2, found["times"], text)


def _power(base: int, exponent: str | None, text: str) -> Fraction:
    number = int(exponent or 0)
    if abs(number) > LARGEST_EXPONENT:
        raise ValueError(
            f"the exponent of {_named(text)} is beyond ±{LARGEST_EXPONENT}; no format here reaches "
            "further than 2^-1074 to 2^1024."
        )
    return Fraction(base) ** number
