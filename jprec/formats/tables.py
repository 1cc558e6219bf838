"""What a format can do, as plain text: all formats in a table, or one with its binades."""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

from jprec.formats.description import FloatFormat
from jprec.formats.notation import count, decimal, power, short

#: Binades of a long list that are shown at each end and around 1.
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Binade:
    """The magnitudes of one spacing, from `low` up to but not including `high`.

    Attributes:
      low: A power of two, or 0 for the subnormals.
      high: A power of two; the last binade of a format may hold no values up to it.
      spacing: Distance between neighbours.
      values: How many positive values the format has there.
      exponent: The exponent of these values.
    """

    low: Fraction
    high: Fraction
    spacing: Fraction
    values: int
    exponent: int


def binades(fmt: FloatFormat) -> list[Binade]:
    """The binades of the positive values of `fmt`, smallest first; the subnormals are the first.

    >>> from jprec.formats.description import get
    >>> [(float(b.low), float(b.spacing), b.values) for b in binades(get("e2m1fn"))]
    [(0.0, 0.5, 1), (1.0, 0.5, 2), (2.0, 1.0, 2), (4.0, 2.0, 2)]
    """
    full, two = 2**fmt.mantissa_bits, Fraction(2)
    found = []
    if fmt.has_subnormals:
        smallest = two**fmt.min_exponent
        found.append(Binade(Fraction(0), smallest, smallest / full, full - 1, fmt.min_exponent))
    for exponent in range(fmt.min_exponent, fmt.max_exponent + 1):
        low = two**exponent
        spacing = low / full
        last = (Fraction(fmt.max) - low) // spacing + 1  # the last binade need not be full
        found.append(Binade(low, 2 * low, spacing, min(full, last), exponent))
    return found


def overview(formats: Sequence[FloatFormat]) -> str:
    """A table with one line a format."""
    head = (
        *zip(
            ("format", ""),
            ("bits", "s+e+f"),
            ("p", ""),
            ("bias", ""),
            ("exponents", ""),
            ("largest", ""),
            ("smallest", "normal"),
            ("smallest", "subnormal"),
            ("unit", "roundoff"),
            ("digits", ""),
            ("values a", "binade"),
            ("special", "values"),
            strict=True,
        ),
    )
    rows = [_overview_row(fmt) for fmt in formats]
    widths = [max(map(len, column)) for column in zip(*head, *rows, strict=True)]
    lines = []
    for row in (*head, *rows):
        cells = [
            f"{cell:<{width}}" if i in (0, 1, 4, 11) else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(2, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)


def _overview_row(fmt: FloatFormat) -> tuple[str, ...]:
    return (
        fmt.name,
        f"{int(fmt.signed)}+{fmt.exponent_bits}+{fmt.mantissa_bits}",
        str(fmt.precision),
        str(fmt.bias),
        f"{fmt.min_exponent} … {fmt.max_exponent}",
        short(fmt.max, 5),
        short(fmt.min_normal, 5),
        short(fmt.min_subnormal, 5) if fmt.has_subnormals else "–",
        power(-fmt.precision),
        str(fmt.decimal_digits),
        count(fmt.mantissa_bits),
        " ".join(["inf"] * fmt.has_infinity + ["nan"] * fmt.has_nan) or "none",
    )


def details(fmt: FloatFormat, *, every_binade: bool = False) -> str:
    """One format: its layout, its range, its precision, and its binades with their spacing."""
    fields = {"sign": int(fmt.signed), "exponent": fmt.exponent_bits, "fraction": fmt.mantissa_bits}
    layout = " + ".join(f"{width} {name}" for name, width in fields.items() if width)
    p = fmt.precision
    equivalent, round_trip = p * math.log10(2), math.ceil(1 + p * math.log10(2))
    rows = {
        "bits": f"{fmt.bits} = {layout}",
        "precision": f"{p} = {fmt.mantissa_bits} stored bits and the implicit 1",
        "exponents": f"{fmt.min_exponent} to {fmt.max_exponent}, stored with bias {fmt.bias}",
        "largest": _with_power(fmt.max),
        "smallest normal": _with_power(fmt.min_normal),
        "subnormal": _with_power(fmt.min_subnormal) if fmt.has_subnormals else "none",
        "epsilon": f"{_with_power(fmt.epsilon)}, the distance from 1 to the next value",
        "unit roundoff": f"{_with_power(fmt.unit_roundoff)}, the largest relative error to nearest",
        "digits": f"{fmt.decimal_digits} survive decimal → {fmt.name} → decimal; p log₁₀2 = "
        f"{equivalent:.2f}; {round_trip} tell all values apart",
        "codes": _special_values(fmt),
    }
    lines = [fmt.name, "", *(f"  {label:<16}{text}" for label, text in rows.items()), ""]
    return "\n".join([*lines, *_binade_lines(fmt, every_binade=every_binade)])


def _with_power(value: float) -> str:
    """The value in decimal, and as a power of two if it is one."""
    text, (fraction, exponent) = decimal(Fraction(value), 24), math.frexp(value)
    if fraction == 0.5:
        return f"{power(exponent - 1)} = {text}".replace("= ≈", "≈ ")
    significand, bits = Fraction(value), 0
    while significand % 2 == 0:
        significand, bits = significand / 2, bits + 1
    product = f" = {significand} × {power(bits)}" if bits else ""
    return f"{text.removeprefix('≈')}{product.replace('=', '≈') if '≈' in text else product}"


def _special_values(fmt: FloatFormat) -> str:
    """Which special values have a code."""
    has = {
        "zero": fmt.has_zero,
        "-0": fmt.has_negative_zero,
        "infinity": fmt.has_infinity,
        "NaN": fmt.has_nan,
    }
    present = ", ".join(name for name, there in has.items() if there) or "numbers only"
    absent = ", ".join(name for name, there in has.items() if not there)
    return present + (f"; no {absent}" if absent else "")


def _binade_lines(fmt: FloatFormat, *, every_binade: bool) -> list[str]:
    found = binades(fmt)
    shown = set(range(len(found)))
    if not every_binade and len(found) > 40:
        one = next(i for i, b in enumerate(found) if b.low == 1)
        ends = [*range(_SHOWN), *range(len(found) - _SHOWN, len(found))]
        shown = {*ends, *range(one - _SHOWN, one + _SHOWN + 1)}
    lines = [f"  {'binade':<16}{'values':>8}  spacing"]
    for i, binade in enumerate(found):
        if i in shown:
            lines.append(f"  {_interval(binade):<16}{_values(fmt, binade):>8}  {_apart(binade)}")
        elif i - 1 in shown:
            lines.append("  …")
    return lines


def _interval(binade: Binade) -> str:
    low = power(binade.exponent) if binade.low else "0"
    return f"[{low}, {power(binade.exponent + (1 if binade.low else 0))})"


def _values(fmt: FloatFormat, binade: Binade) -> str:
    full = 2**fmt.mantissa_bits
    if binade.values == full or full <= 1024:
        return count(fmt.mantissa_bits) if binade.values == full else str(binade.values)
    return f"{count(fmt.mantissa_bits)} - {full - binade.values}"


def _apart(binade: Binade) -> str:
    return _with_power(float(binade.spacing))


def facts(fmt: FloatFormat) -> dict[str, object]:
    """The numbers of the table and of the details, for machines; subnormals have `low` 0."""
    return {
        "name": fmt.name,
        "bits": fmt.bits,
        "sign_bits": int(fmt.signed),
        "exponent_bits": fmt.exponent_bits,
        "mantissa_bits": fmt.mantissa_bits,
        "precision": fmt.precision,
        "bias": fmt.bias,
        "min_exponent": fmt.min_exponent,
        "max_exponent": fmt.max_exponent,
        "max": fmt.max,
        "min_normal": fmt.min_normal,
        "min_subnormal": fmt.min_subnormal if fmt.has_subnormals else None,
        "epsilon": fmt.epsilon,
        "unit_roundoff": fmt.unit_roundoff,
        "decimal_digits": fmt.decimal_digits,
        "values_per_binade": 2**fmt.mantissa_bits,
        "has_zero": fmt.has_zero,
        "has_negative_zero": fmt.has_negative_zero,
        "has_infinity": fmt.has_infinity,
        "has_nan": fmt.has_nan,
        "binades": [
            {
                "exponent": binade.exponent,
                "low": float(binade.low),
                "spacing": float(binade.spacing),
                "values": binade.values,
            }
            for binade in binades(fmt)
        ],
    }
