"""What a teacher would write on the board about a number in a format."""

import math
import textwrap
from fractions import Fraction
from typing import TYPE_CHECKING

from jprec.formats.description import FloatFormat
from jprec.formats.explanation_steps import LABEL, fields, given, row, steps
from jprec.formats.neighbours import values_in_binade
from jprec.formats.notation import (
    count,
    decimal,
    fraction,
    in_units,
    power,
    rough,
    short,
    telling_digits,
)
from jprec.formats.oracle import floor_log2, nearest_float, round_exact, unit_in_last_place

if TYPE_CHECKING:
    from jprec.formats.explanation import Explanation

#: Width of the text, and of the number line between two neighbours.
WIDTH, _LINE = 104, 56

#: A number that was written longer than this is not repeated as it was written.
_LONGEST_TITLE = 40


def teach(e: "Explanation", width: int | None = None) -> str:
    """The explanation as text: the steps, the fields, and the value among its neighbours.

    Lines are wrapped at `width`, `WIDTH` by default, where they have a blank.
    """
    fmt = e.format
    widths = {"sign": int(fmt.signed), "exponent": fmt.exponent_bits, "fraction": fmt.mantissa_bits}
    bits = " + ".join(f"{width} {name}" for name, width in widths.items() if width)
    rule = "" if e.overflow == "format" else f", overflow {e.overflow}"
    title = e.text if 0 < len(e.text) <= _LONGEST_TITLE else given(e)
    heading = f"{title} in {fmt.name} ({bits} bits, bias {fmt.bias}), {e.mode}{rule}"
    blocks = [[heading], steps(e), fields(e), _facts(e), _number_line(e)]
    return "\n\n".join(
        "\n".join(_wrapped(line, width or WIDTH) for line in block) for block in blocks if block
    )


def _wrapped(line: str, width: int) -> str:
    """The line, broken at blanks where it is too long; what follows stands beside the labels."""
    if len(line) <= width:
        return line
    indent = " " * (2 + LABEL)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False)


def _number(e: "Explanation", value: Fraction | float | None, digits: int = 24) -> str:
    """A number in decimal; where it is rounded, with the digits that tell neighbours apart."""
    if value is None:
        return "none"
    if not value or (isinstance(value, float) and not math.isfinite(value)):
        return decimal(value)
    enough = telling_digits(e.format.precision)
    return decimal(Fraction(value), digits, rounded=max(enough, 8))


def _facts(e: "Explanation") -> list[str]:
    """The value, its error, and where it stands among the values of the format."""
    if e.code is None:
        return []
    rows = [("value", _value(e)), ("", _note(e))]
    if e.exact_error is not None and e.given:
        rows += [("ulp", _ulp(e) if e.exact_error else ""), ("error", _error(e))]
    if e.binade:
        rows.append(("binade", _binade(e)))
    if e.kind != "nan":
        below, above = (_number(e, value) for value in e.neighbours)
        rows.append(("neighbours", f"{below} below, {above} above"))
    rows.append(("midpoints" if e.mode.startswith("nearest") else "between", _midpoints(e)))
    return [row(label, text) for label, text in rows if text]


def _value(e: "Explanation") -> str:
    """The stored value in decimal, as significand times power, and as a fraction."""
    shown = _number(e, e.value, 60)
    if e.quiet is not None:
        return f"{shown} ({'quiet' if e.quiet else 'signalling'}: first fraction bit {e.quiet:d})"
    if e.exponent is None:
        return shown
    sign, part = "-" if e.value < 0 else "", f"{e.mantissa}/{count(e.format.mantissa_bits)}"
    significand = f"(1 + {part})" if e.kind == "normal" else part
    if e.format.mantissa_bits == 0:
        product = sign + power(e.exponent)
    else:
        product = f"{sign}{significand} × {power(e.exponent)}"
    ways = dict.fromkeys([shown, product, fraction(Fraction(e.value))])
    text = " = ".join(ways)
    return text.removeprefix("≈").replace(" =", " ≈", 1) if text.startswith("≈") else text


def _note(e: "Explanation") -> str:
    """Why the value is not simply a neighbour of what was given; empty where it is."""
    fmt, number, becomes = e.format, e.given, f"it becomes {_number(e, e.value)}"
    if number != number:
        return ""
    negative = math.copysign(1, nearest_float(number)) < 0
    if number == 0 and not fmt.has_zero:
        return f"{fmt.name} has no zero: {becomes}"
    if negative and not fmt.signed:
        return f"{fmt.name} has no sign: {becomes}"
    if number == 0:
        lost = negative and not fmt.has_negative_zero
        return f"{fmt.name} has no -0: {becomes}" if lost else ""
    if isinstance(number, float):
        return "" if math.isinf(e.value) else f"{fmt.name} has no infinity: {becomes}"
    if abs(number) > Fraction(fmt.max):
        return f"beyond {_number(e, fmt.max)}, the largest value; {_overflow(e)}"
    if not fmt.has_zero and abs(number) < Fraction(fmt.min_subnormal):
        return f"{fmt.name} has no zero: what is smaller becomes its smallest value"
    return ""


def _overflow(e: "Explanation") -> str:
    """What becomes of numbers beyond the largest value, in this mode and by this rule."""
    fmt = e.format
    largest = Fraction(fmt.max)
    half = (largest + unit_in_last_place(largest, fmt) / 2) * (-1 if e.given < 0 else 1)
    at_half, far = (
        round_exact(number, fmt, e.mode, overflow=e.overflow) for number in (half, 2 * half)
    )
    if abs(far) == fmt.max and e.overflow == "saturate":
        return "overflow=saturate stops there"
    if abs(far) == fmt.max:
        nothing = e.mode.startswith("nearest")
        return f"{fmt.name} has nothing else for it" if nothing else f"{e.mode} stops there"
    if not e.mode.startswith("nearest"):
        return f"{e.mode} gives {decimal(far)}"
    where = (
        f"beyond {_number(e, half)}" if abs(at_half) == fmt.max else f"from {_number(e, half)} on"
    )
    return f"{e.mode} gives {decimal(far)} {where}"


def _ulp(e: "Explanation") -> str:
    """The unit in the last place of the number that was given."""
    ulp = Fraction(e.ulp)
    inside = unit_in_last_place(abs(Fraction(e.given)), e.format) == ulp
    where = "around the number given" if inside else "of the last binade"
    return f"{_power_and_plain(ulp)}, the spacing {where}"


def _power_and_plain(number: Fraction) -> str:
    """A power of two, as such and in decimal."""
    return f"{power(floor_log2(number))} = {decimal(number)}".replace("= ≈", "≈ ")


def error_text(e: "Explanation") -> str:
    """The error with six digits, or so many more that it is not taken for half an ulp or one."""
    assert e.exact_error is not None
    ulp = Fraction(e.ulp)
    for digits in range(6, 18):
        text = rough(e.exact_error, digits)
        shown = abs(Fraction(text))
        if shown == abs(e.exact_error) or shown not in (ulp / 2, ulp):
            return text
    return f"about {text}"


def _error(e: "Explanation") -> str:
    if not e.exact_error:
        return "0, exact"
    ulp = Fraction(e.ulp)
    text = f"{error_text(e)} = {in_units(e.exact_error, ulp)} ulp; "
    text += f"relative {short(e.relative_error)}"
    bounded = isinstance(e.given, Fraction) and abs(e.given) >= Fraction(e.format.min_normal)
    if e.kind == "normal" and bounded and e.mode.startswith("nearest"):
        text += f" (unit roundoff {power(-e.format.precision)} = {short(e.format.unit_roundoff)})"
    return text


def _binade(e: "Explanation") -> str:
    """The interval of one spacing, as powers of two and in decimal."""
    assert e.binade
    low, high = e.binade
    top = floor_log2(high)
    powers = f"[{power(floor_log2(low)) if low else 0}, {power(top)})"
    ends = (decimal(low, 12), decimal(high, 12))
    exact = not any(end.startswith("≈") for end in ends)
    plain = f" = [{ends[0]}, {ends[1]})" if exact and top > 1 else ""
    if e.format.mantissa_bits == 0:
        return f"{powers}{plain}: 1 value"
    if low:
        values = f"{_how_many(e.format, values_in_binade(e.format, top - 1))} values"
    else:
        values = f"0 and {_how_many(e.format, 2**e.format.mantissa_bits - 1)} values"
    return f"{powers}{plain}: {values}, {_power_and_plain(Fraction(e.spacing))} apart"


def _how_many(fmt: FloatFormat, values: int) -> str:
    """A count of values, as a power of two where it is a large one, and 2²³ - 1 where it is not."""
    missing = 2**fmt.mantissa_bits - values
    if missing and fmt.mantissa_bits > 10:
        return f"{count(fmt.mantissa_bits)} - {missing}"
    return count(fmt.mantissa_bits) if not missing else str(values)


def _midpoints(e: "Explanation") -> str:
    """Where the ties lie and where they go; for a directed mode, where everything between goes."""
    found = [m for m in e.midpoints if m]
    goals = [_number(e, m.goes_to) for m in found]
    if not found:
        return ""
    if not e.mode.startswith("nearest"):
        ways = zip(e.neighbours, e.midpoints, strict=True)
        return "; ".join(
            f"from {_number(e, min(end, e.value))} to {_number(e, max(end, e.value))}, numbers "
            f"become {_number(e, m.goes_to)}"
            for end, m in ways
            if end is not None and m is not None
        )
    places = " and ".join(_number(e, m.at) for m in found)
    if all(m.goes_to == e.value for m in found):
        goal = f"{'both ties go' if len(found) == 2 else 'the tie goes'} to the value"
    else:
        goal = f"the tie{'s go' if len(found) == 2 else ' goes'} to {' and '.join(goals)}"
    if e.mode == "nearest_even" and all(m.goes_to_even for m in found):
        goal += ", whose codes end in 0" if " and " in goal else ", whose code ends in 0"
    return f"{places}; {goal}"


def _number_line(e: "Explanation") -> list[str]:
    """The number between its two neighbours, to scale."""
    if not isinstance(e.given, Fraction) or not e.exact_error:
        return []
    if e.below is None or e.above is None or not math.isfinite(e.above - e.below):
        return []
    low, high = Fraction(e.below), Fraction(e.above)
    half = _LINE // 2
    at = round((e.given - low) / (high - low) * _LINE)
    left, middle, right = (_brief(e, x) for x in (low, (low + high) / 2, high))
    if left == right:
        left, middle, right = _number(e, low), "", _number(e, high)
    start = half - len(middle) // 2
    if len(left) >= start or start + len(middle) >= _LINE - len(right):
        middle = ""
    labels = f"{left:<{start}}{middle}"
    labels = f"{labels:<{_LINE + 1 - len(right)}}{right}"
    line = "├" + "─" * (half - 1) + "┼" + "─" * (half - 1) + "┤"
    text = f"▲ {given(e)}" if at <= half else f"{given(e)} ▲"
    column = at if at <= half else max(at - len(text) + 1, 0)
    return [f"  {labels}", f"  {line}", f"  {'':<{column}}{text}"]


def _brief(e: "Explanation", number: Fraction) -> str:
    """A number for a narrow place: decimal, or an integer times a power of two."""
    text = decimal(number, 14)
    if not text.startswith("≈"):
        return text
    exponent = floor_log2(Fraction(1, number.denominator))
    odd = number.numerator
    if abs(odd) < 100:
        return {1: "", -1: "-"}.get(odd, f"{odd} × ") + power(exponent)
    return _number(e, number, 14)
