"""Exact numbers as text: decimal, binary, powers of two."""

import math
import re
from fractions import Fraction

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

#: Decimal exponents that are written without "e"; up to the second limit only where all digits of
#: the integer are known.
_PLAIN, _LONG = range(-4, 17), range(17, 40)


def power(exponent: int) -> str:
    """The power of two as text.

    >>> power(-24)
    '2⁻²⁴'
    """
    return "2" + str(exponent).translate(_SUPERSCRIPTS)


def decimal(number: Fraction | float, digits: int = 24, *, rounded: int = 10) -> str:
    """The number in decimal, exact if `digits` or `rounded` significant digits suffice.

    Where they do not, it is rounded to `rounded` digits and "≈" says so.

    >>> decimal(Fraction(1, 2**24)), decimal(Fraction(1, 3)), decimal(-0.0)
    ('5.9604644775390625e-8', '≈0.3333333333', '-0')
    """
    if not number or (isinstance(number, float) and not math.isfinite(number)):
        return short(float(number), rounded)
    sign, magnitude = "-" if number < 0 else "", abs(Fraction(number))
    exponent = _floor_log10(magnitude)
    scaled = magnitude * Fraction(10) ** (max(digits, rounded) - 1 - exponent)
    if scaled.denominator == 1:
        return sign + _placed(str(scaled.numerator).rstrip("0"), exponent)
    scaled = magnitude * Fraction(10) ** (rounded - 1 - exponent)
    whole = round(scaled)
    if whole == 10**rounded:  # 9.9996 with four digits is 10.00
        whole, exponent = whole // 10, exponent + 1
    return "≈" + sign + _placed(str(whole), exponent)


def _placed(digits: str, exponent: int) -> str:
    """The digits with the point after the first one, times 10**exponent, written out."""
    if exponent not in _PLAIN and not (exponent in _LONG and len(digits) > exponent - 6):
        return digits[0] + ("." + digits[1:] if digits[1:] else "") + f"e{exponent}"
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole, rest = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return whole + ("." + rest if rest else "")


def _floor_log10(magnitude: Fraction) -> int:
    """The exponent e with 10**e <= magnitude < 10**(e + 1)."""
    bits = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent = math.floor(bits * math.log10(2)) - 1  # at most 2 too small
    while Fraction(10) ** (exponent + 1) <= magnitude:
        exponent += 1
    return exponent


def short(number: float, digits: int = 3) -> str:
    """The number rounded to `digits` significant digits, without a mark.

    >>> short(-2.5809e-06), short(32.0)
    ('-2.58e-6', '32')
    """
    return short_exponent(f"{number:.{digits}g}")


def rough(number: Fraction, digits: int) -> str:
    """The number rounded to `digits` significant digits, without a mark, however small it is.

    >>> rough(Fraction("-0.11099999999"), 6), rough(Fraction("1.1132751e-325"), 6)
    ('-0.111', '1.11328e-325')
    """
    text, e, exponent = decimal(number, digits, rounded=digits).removeprefix("≈").partition("e")
    return (text.rstrip("0").rstrip(".") if "." in text else text) + e + exponent


def in_units(number: Fraction, unit: Fraction, digits: int = 3) -> str:
    """`number / unit` with `digits` significant digits, or so many more that a near tie shows.

    Only what is exactly 0, 1/2 or 1 is written so; "…" stands for what 17 digits do not show.

    >>> in_units(Fraction(-16), Fraction(32)), in_units(Fraction("-15.999999"), Fraction(32))
    ('-0.5', '-0.49999997')
    >>> in_units(Fraction(1, 2) - Fraction(1, 10**30), Fraction(1))
    '0.49999999999999999…'
    """
    ratio = number / unit
    if abs(ratio) > 1:
        digits = max(digits, 6)
    if abs(ratio) in _EVEN:
        return rough(ratio, digits)
    for enough in range(digits, _MOST):
        text = rough(ratio, enough)
        if abs(Fraction(text)) not in _EVEN:
            return text
    cut = str(math.floor(abs(ratio) * 10**_MOST)).zfill(_MOST + 1)
    return f"{'-' if ratio < 0 else ''}{cut[:-_MOST]}.{cut[-_MOST:]}…"


#: What a share of an ulp must not seem to be, and the digits spent on that.
_EVEN, _MOST = (0, Fraction(1, 2), 1), 17


def short_exponent(text: str) -> str:
    """Python's way to write a float, with the exponent as people write it.

    >>> short_exponent("1e-07")
    '1e-7'
    """
    return re.sub(r"e([+-])0*(\d)", lambda m: f"e{m[1].strip('+')}{m[2]}", text)


def binary(magnitude: Fraction, places: int) -> str:
    """The magnitude in binary; "…" stands for digits beyond `places` after the point.

    >>> binary(Fraction(45, 4), 8), binary(Fraction(1, 10), 8)
    ('1011.01', '0.00011001…')
    """
    scaled = magnitude * 2**places
    digits = f"{math.floor(scaled):0{places + 1}b}"
    whole, rest = digits[: len(digits) - places], digits[len(digits) - places :]
    if scaled.denominator == 1:
        rest = rest.rstrip("0")
        return whole + ("." + rest if rest else "")
    return whole + ("." if places else "") + rest + "…"


def telling_digits(precision: int) -> int:
    """Decimal digits that tell the values of that precision apart, and their midpoints.

    >>> telling_digits(11), telling_digits(24)
    (7, 11)
    """
    return math.ceil(1 + precision * math.log10(2)) + 2


def count(power_of_two: int) -> str:
    """2**power_of_two as a count: in figures up to 1024, then as a power.

    >>> count(10), count(23)
    ('1024', '2²³')
    """
    return str(2**power_of_two) if power_of_two <= 10 else power(power_of_two)


def fraction(number: Fraction) -> str:
    """The number as a fraction; powers of two beyond six digits are written as such.

    >>> fraction(Fraction(819, 8192)), fraction(Fraction(3, 2**25)), fraction(Fraction(2**60))
    ('819/8192', '3/2²⁵', '2⁶⁰')
    """
    top, bottom = number.numerator, number.denominator
    if bottom == 1:
        return _integer(top)
    return f"{_integer(top)}/{_integer(bottom)}"


def _integer(number: int) -> str:
    twos = (number & -number).bit_length() - 1 if number else 0
    if abs(number) < 10**6 or twos < 10:
        return str(number)
    odd = number >> twos
    return {1: "", -1: "-"}.get(odd, f"{odd} × ") + power(twos)
