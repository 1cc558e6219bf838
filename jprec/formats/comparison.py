"""One number in several formats, side by side, as plain text."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from jprec.formats.explanation import Explanation
from jprec.formats.explanation_text import error_text
from jprec.formats.notation import decimal, fraction, in_units, power, short, telling_digits

#: Columns are put below one another rather than beyond this width.
WIDTH = 118


def side_by_side(explanations: Sequence[Explanation], width: int | None = None) -> str:
    """A table with a row for each fact and a column for each explanation.

    "spacing" is that of the value's binade, "ulp of number" that around the number given; they
    differ where rounding carries into the next binade. Columns that do not fit into `width`,
    `WIDTH` by default, stand below the others.

    >>> from jprec.formats.explanation import explain
    >>> print(side_by_side([explain("nan", "fp16"), explain("nan", "e2m1fn")]))
                   fp16        e2m1fn
    -------------------------------------
    sign bit       0           –
    exponent bits  11111       –
    fraction bits  1000000000  –
    code           0x7e00      –
    kind           quiet nan   has no NaN
    value          nan         –
    """
    columns = [[e.format.name, *(fact(e) for fact in _FACTS.values())] for e in explanations]
    labels = ["", *_FACTS]
    first = max(map(len, labels))
    blocks: list[list[list[str]]] = [[]]
    used = first
    for column in columns:
        room = 2 + max(map(len, column))
        if blocks[-1] and used + room > (width or WIDTH):
            blocks.append([])
            used = first
        blocks[-1].append(column)
        used += room
    return "\n\n".join(_lines(labels, block) for block in blocks)


def _lines(labels: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    kept = [i for i in range(len(labels)) if i == 0 or any(c[i] != _NOTHING for c in columns)]
    widths = [max(len(column[i]) for i in kept) for column in columns]
    first = max(len(labels[i]) for i in kept)
    lines = []
    for i in kept:
        cells = (f"{c[i]:<{width}}" for c, width in zip(columns, widths, strict=True))
        lines.append("  ".join([f"{labels[i]:<{first}}", *cells]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


_NOTHING = "–"


def _number(e: Explanation, value: Fraction | float | None) -> str:
    if value is None:
        return _NOTHING
    return decimal(value, 14, rounded=max(telling_digits(e.format.precision), 9))


def _fields(e: Explanation, field: int) -> str:
    """The bits of the sign (0), the exponent (1) or the fraction (2)."""
    parts = e.bits.split()
    if not e.format.signed:
        parts.insert(0, "")
    return parts[field] if field < len(parts) and parts[field] else _NOTHING


def _exponent(e: Explanation) -> str:
    if e.exponent is None:
        return _NOTHING
    if e.kind == "subnormal":
        return f"{e.exponent}"
    return f"{e.exponent_field} - {e.format.bias} = {e.exponent}"


def _binade(e: Explanation) -> str:
    if e.binade is None or e.exponent is None:
        return _NOTHING if e.binade is None else f"[0, {power(e.format.min_exponent)})"
    low = power(e.exponent) if e.binade[0] else "0"
    return f"[{low}, {power(e.exponent + (1 if e.binade[0] else 0))})"


def _kind(e: Explanation) -> str:
    if e.code is None:
        return "has no NaN"
    return e.kind if e.quiet is None else f"{'quiet' if e.quiet else 'signalling'} {e.kind}"


def _distance(distance: float) -> str:
    """A power of two, as such and in decimal; nothing for NaN."""
    if not math.isfinite(distance):
        return _NOTHING
    exponent = math.frexp(distance)[1] - 1
    return f"{power(exponent)} = {short(distance)}"


def _midpoint(e: Explanation, side: int) -> str:
    found = e.midpoints[side]
    return _NOTHING if found is None else _number(e, found.at)


def _ties(e: Explanation) -> str:
    """Where the numbers at the two midpoints go, seen from the value."""
    if not e.mode.startswith("nearest"):
        return _NOTHING
    below, above = e.midpoints
    stay = [m.goes_to == e.value for m in (below, above) if m is not None]
    if not stay:
        return _NOTHING
    if all(stay) or not any(stay):
        return "to the value" if all(stay) else "away from it"
    return "up" if stay[0] else "down"


def _error(e: Explanation) -> str:
    if e.exact_error is None:
        return _relative(e.error)
    return error_text(e) if e.exact_error else "0"


def _error_in_ulps(e: Explanation) -> str:
    if not e.exact_error:
        return _relative(e.error_in_ulps)
    return in_units(e.exact_error, Fraction(e.ulp))


def _relative(number: float) -> str:
    return _NOTHING if math.isnan(number) else short(number)


def _only_numbers(e: Explanation, text: str) -> str:
    """The text where a number was given, nothing for 0, infinity and NaN."""
    return text if isinstance(e.given, Fraction) else _NOTHING


#: Label -> what stands in the row for one explanation.
_FACTS: dict[str, Callable[[Explanation], str]] = {
    "sign bit": lambda e: _fields(e, 0),
    "exponent bits": lambda e: _fields(e, 1),
    "fraction bits": lambda e: _fields(e, 2),
    "code": lambda e: (
        _NOTHING if e.code is None else f"0x{e.code:0{math.ceil(e.format.bits / 4)}x}"
    ),
    "kind": _kind,
    "exponent": _exponent,
    "value": lambda e: _NOTHING if e.code is None else _number(e, e.value),
    "exactly": lambda e: _NOTHING if e.fraction is None else fraction(e.fraction),
    "binade": _binade,
    "spacing": lambda e: _distance(e.spacing),
    "neighbour below": lambda e: _number(e, e.neighbours[0]),
    "neighbour above": lambda e: _number(e, e.neighbours[1]),
    "midpoint below": lambda e: _midpoint(e, 0),
    "midpoint above": lambda e: _midpoint(e, 1),
    "ties go": _ties,
    "ulp of number": lambda e: _only_numbers(e, _distance(e.ulp)),
    "error": lambda e: _only_numbers(e, _error(e)),
    "error in ulp": lambda e: _only_numbers(e, _error_in_ulps(e)),
    "relative error": lambda e: _only_numbers(e, _relative(e.relative_error)),
}
