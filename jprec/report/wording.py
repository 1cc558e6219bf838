"""Numbers in words, the same on the page and in the terminal."""

import math
from collections.abc import Iterable, Sequence

from jprec.report.rows import Row

MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

#: Below this a p value is only said to be below it.
SMALLEST_P = 1e-6


def number(value: float | None, *, signed: bool = False, digits: int = 2) -> str:
    """A number with `digits` significant digits; an en dash for None, words for NaN.

    >>> number(0.002841), number(-0.0142, signed=True), number(float("nan"))
    ('0.0028', '−0.014', 'not finite')
    """
    if value is None:
        return "–"
    if math.isnan(value):
        return "not finite"
    sign = MINUS if value < 0 else "+" if signed and value > 0 else ""
    magnitude = abs(value)
    if math.isinf(magnitude):
        return f"{sign}∞"
    if magnitude == 0:
        return "0"
    exponent = math.floor(math.log10(float(f"{magnitude:.{digits - 1}e}")))
    if exponent < -5 or exponent > 4:
        return sign + f"{magnitude:.{digits - 1}e}".replace("-", MINUS)
    return sign + f"{magnitude:.{max(0, digits - 1 - exponent)}f}"


def p_value(p: float | None) -> str:
    """A p value with two digits.

    >>> p_value(0.0312), p_value(3e-5), p_value(1e-12)
    ('0.031', '3e−05', '<1e−06')
    """
    if p is None:
        return "–"
    text = f"<{SMALLEST_P:.0e}" if p < SMALLEST_P else f"{p:.0e}" if p < 1e-3 else f"{p:.2g}"
    return text.replace("-", MINUS)


def p_equals(p: float | None) -> str:
    """The same in a sentence: "p = 0.031" or "p <1e−06"."""
    text = p_value(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def percent(share: float) -> str:
    """A share in percent; what is not zero never reads 0 %.

    >>> percent(0.314), percent(0.0), percent(1e-7), percent(0.9999)
    ('31 %', '0 %', '<0.1 %', '>99.9 %')
    """
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    if share < 0.001:
        return "<0.1 %"
    if share > 0.999:
        return ">99.9 %"
    return f"{100 * share:.{1 if share < 0.1 or share > 0.99 else 0}f} %"


def power_of_two(exponent: int) -> str:
    """The power as text, "2⁻²⁴"."""
    return "2" + str(exponent).translate(_SUPERSCRIPTS)


def seed_ranges(seeds: Iterable[int]) -> str:
    """Seeds with runs of neighbours joined.

    >>> seed_ranges([100, 101, 102, 7])
    '7, 100–102'
    """
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in runs)


def joined(words: Sequence[str], conjunction: str = "and") -> str:
    """The words as a list in a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def interval_in_margins(row: Row) -> str:
    """The 90 % interval in units of δ, "−0.12 … +0.30"."""
    if row.low is None or row.high is None:
        return "–"
    if math.isnan(row.low):
        return "no interval"
    return f"{in_margins(row.low / row.margin)} … {in_margins(row.high / row.margin)}"


def in_margins(ratio: float) -> str:
    """A signed multiple of δ, to a hundredth while that is of interest.

    >>> in_margins(0.1249), in_margins(-12.34), in_margins(795.4), in_margins(-0.001)
    ('+0.12', '−12.3', '+795', '0.00')
    """
    magnitude = abs(ratio)
    if not magnitude < 1e5:
        return number(ratio, signed=True)
    text = f"{magnitude:.{2 if magnitude < 10 else 1 if magnitude < 100 else 0}f}"
    sign = "" if not float(text) else MINUS if ratio < 0 else "+"
    return sign + text
