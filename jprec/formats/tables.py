"""What a format can do, as plain text: all formats in a table, or one with its binades."""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction

from jprec.formats.description import FloatFormat, FormatLike, get
from jprec.formats.neighbours import values_in_binade
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


def binades(fmt: FormatLike) -> list[Binade]:
    """The binades of the positive values of `fmt`, smallest first; the subnormals are the first.

    >>> [(float(b.low), float(b.spacing), b.values) for b in binades("e2m1fn")]
    [(0.0, 0.5, 1), (1.0, 0.5, 2), (2.0, 1.0, 2), (4.0, 2.0, 2)]
    """
    fmt, two = get(fmt), Fraction(2)
    full = 2**fmt.mantissa_bits
    found = []
    if fmt.has_subnormals:
        smallest = two**fmt.min_exponent
        found.append(Binade(Fraction(0), smallest, smallest / full, full - 1, fmt.min_exponent))
    for exponent in range(fmt.min_exponent, fmt.max_exponent + 1):
        low = two**exponent
        values = values_in_binade(fmt, exponent)
        found.append(Binade(low, 2 * low, low / full, values, exponent))
    return found


def overview(formats: Sequence[FormatLike], width: int | None = None) -> str:
    """A table with one line a format; columns that do not fit into `width` stand below."""
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
    rows = [*head, *(_overview_row(get(fmt)) for fmt in formats)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    blocks = [[0]]
    for i in range(1, len(widths)):
        used = sum(widths[j] + 2 for j in blocks[-1])
        if width is not None and len(blocks[-1]) > 1 and used + widths[i] > width:
            blocks.append([0])  # each part begins with the names
        blocks[-1].append(i)
    return "\n\n".join(_columns(rows, widths, block) for block in blocks)


def _columns(rows: Sequence[Sequence[str]], widths: Sequence[int], chosen: Sequence[int]) -> str:
    """The chosen columns of the overview, below two lines of heads and a rule."""
    lines = []
    for row in rows:
        cells = [f"{row[i]:{'<' if i in _LEFT else '>'}{widths[i]}}" for i in chosen]
        lines.append("  ".join(cells).rstrip())
    lines.insert(2, "-" * (sum(widths[i] for i in chosen) + 2 * (len(chosen) - 1)))
    return "\n".join(lines)


#: Columns of the overview that are text and stand at the left.
_LEFT = (0, 1, 4, 11)


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


def details(fmt: FormatLike, *, every_binade: bool = False) -> str:
    """One format: its layout, its range, its precision, and its binades with their spacing."""
    fmt = get(fmt)
    fields = {"sign": int(fmt.signed), "exponent": fmt.exponent_bits, "fraction": fmt.mantissa_bits}
    layout = " + ".join(f"{width} {name}" for name, width in fields.items() if width)
    p = fmt.precision
    equivalent, round_trip = p * math.log10(2), math.ceil(1 + p * math.log10(2))
    rows = {
        "bits": f"{fmt.bits} = {layout}",
        "precision": f"{p} = {fmt.mantissa_bits} stored bit{'s' * (p != 2)} and the implicit 1",
        "exponents": f"{fmt.min_exponent} to {fmt.max_exponent}, stored with bias {fmt.bias}",
        "largest": _with_power(fmt.max),
        "smallest normal": _with_power(fmt.min_normal),
        "subnormal": _with_power(fmt.min_subnormal) if fmt.has_subnormals else "none",
        "epsilon": f"{_with_power(fmt.epsilon)}, the distance from 1 to the next value",
        "unit roundoff": f"u = {_with_power(fmt.unit_roundoff)}; for normal numbers, the relative "
        "error to nearest is at most u/(1 + u)",
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
    product = f"{significand} × {power(bits)}"
    if text.startswith("≈"):
        return f"{product} {text.replace('≈', '≈ ')}"
    return f"{text} = {product}" if bits else text


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
        one = next((i for i, b in enumerate(found) if b.low == 1), len(found) // 2)
        ends = [*range(_SHOWN), *range(len(found) - _SHOWN, len(found))]
        shown = {*ends, *range(one - _SHOWN, one + _SHOWN + 1)}
    lines = [f"  {'binade':<16}{'values':>8}  spacing"]  # of positive values
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


def facts(fmt: FormatLike, *, with_binades: bool = True) -> dict[str, object]:
    """The numbers of the table and of the details, for machines; subnormals have `low` 0."""
    fmt = get(fmt)
    found: dict[str, object] = {
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
    }
    if with_binades:
        found["binades"] = [
            {
                "exponent": binade.exponent,
                "low": float(binade.low),
                "spacing": float(binade.spacing),
                "values": binade.values,
            }
            for binade in binades(fmt)
        ]
    return found
