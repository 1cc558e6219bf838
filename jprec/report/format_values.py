"""Where the values of a format lie: how many in each binade, and each on a number line."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jprec import formats
from jprec.formats import FloatFormat
from jprec.report import canvas
from jprec.report.format_panels import (
    KEYS_A_ROW,
    RIGHT,
    WIDEST_EXPONENT_BITS,
    WIDTH,
    Panel,
    exponent_axis,
    limits,
    name_row,
    row_axes,
    title,
)
from jprec.report.picture import quiet
from jprec.report.wording import power_of_two

#: Formats up to this width have few enough values to be drawn one by one; of others it is
#: 2**_STROKE_BITS values a binade.
_LISTABLE_BITS, _STROKE_BITS = 8, 3

#: Of more formats than this, the density is drawn for those that the page on IEEE 754 compares.
_MOST_LINES = 7
_WELL_KNOWN = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3fn", "e2m1fn")

#: Longer names do not fit at the end of a line.
_LONGEST_NAME = 8

_LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_INKS = (canvas.BLUE, canvas.VERMILLION, canvas.GREEN, canvas.PURPLE)


def density(fmts: Sequence[FloatFormat]) -> Panel:
    """How many values a format has between one power of two and the next, for at most 7 formats."""
    shown = _comparable(fmts)
    left_out = ", ".join(fmt.name for fmt in fmts if fmt not in shown)
    low, high = limits(shown)
    most = max(fmt.mantissa_bits for fmt in shown)
    direct = _have_room(shown)
    rows = 0 if direct else math.ceil(len(shown) / KEYS_A_ROW)
    top, bottom = 36.0 + 22.0 * rows, 48.0 + (22.0 if left_out else 0.0)
    inside = min(max(26.0 * (most + 1), 60.0), 220.0)
    if len(shown) > 1:  # names of formats that differ by one bit stand one above the other
        inside = min(max(inside, 14.5 * (most + 3)), 400.0)

    def draw(figure: Figure, above: float) -> None:
        axis = row_axes(figure, above + top, inside, right=RIGHT + (70 if direct else 0))
        margin = 0.02 * (high - low)
        axis.set_xlim(low - margin, high + margin)
        head = 20.0 if direct else 6.0  # pixels for a name above the highest line
        axis.set_ylim(-0.5, -0.5 + (most + 0.5) * inside / (inside - head))
        for i, fmt in enumerate(shown):
            # What other lines cover is broader than they are.
            later = sum(other.mantissa_bits == fmt.mantissa_bits for other in shown[i + 1 :])
            _staircase(axis, fmt, _pen(i), 1.6 if direct else 1.6 + 2 * later)
            if direct:
                _name(axis, fmt, _pen(i)[0], shown)
        exponent_axis(axis, low, high)
        ticks = sorted({0, *(fmt.mantissa_bits for fmt in shown)})
        ticks = [t for i, t in enumerate(ticks) if i == 0 or t - ticks[i - 1] > most / 24]
        axis.set_yticks(ticks, [_count(t) for t in ticks])
        axis.tick_params(axis="y", labelsize=canvas.TEXT)
        axis.set_ylabel("values", size=canvas.TEXT)
        quiet(axis, keep=("left", "bottom"))
        lines = [(_pen(i)[0], ("-", _pen(i)[1]), fmt.name) for i, fmt in enumerate(shown)]
        title(
            figure, above, "Values between one power of two and the next", () if direct else lines
        )
        if left_out:
            width, height = figure.get_size_inches() * 72
            text = canvas.fitted(f"Not drawn: {left_out}", WIDTH - 16, size=canvas.TEXT)
            place = (8 / width, 1 - (above + top + inside + 44) / height)
            figure.text(*place, text, color=canvas.FAINT, size=canvas.TEXT, va="center")

    return Panel(top + inside + bottom, draw)


def _pen(i: int) -> tuple[str, Any]:
    """The colour and the dashes of the i-th line."""
    return _INKS[i % len(_INKS)], _LINES[i // len(_INKS) % len(_LINES)]


def _staircase(axis: Axes, fmt: FloatFormat, pen: tuple[str, Any], width: float) -> None:
    """The binary logarithm of how many values lie between one power of two and the next."""
    edges, values = steps(fmt)
    style = {"color": pen[0], "linestyle": pen[1], "linewidth": width}
    axis.stairs(np.log2(values), edges, baseline=-0.5, **style)


def steps(fmt: FloatFormat) -> tuple[np.ndarray, np.ndarray]:
    """The exponents e of a format, one more than there are, and its values in [2**e, 2**(e + 1)).

    Subnormals have half as many in each binade as in the next one up, and the last binade has less
    where codes at its end are set aside.
    """
    first = fmt.min_exponent - (fmt.mantissa_bits if fmt.has_subnormals else 0)
    below = [2.0**i for i in range(fmt.min_exponent - first)]
    counts = [float(b.values) for b in formats.binades(fmt) if b.low]
    return np.arange(first, fmt.max_exponent + 2), np.array(below + counts)


def _name(axis: Axes, fmt: FloatFormat, ink: str, shown: Sequence[FloatFormat]) -> None:
    """The name at the end of the line, or above it where another line goes on."""
    end = fmt.max_exponent + 1
    label: dict[str, Any] = {"color": ink, "size": canvas.TEXT}
    if _is_covered(fmt, shown):
        middle = (fmt.min_exponent + end) / 2
        axis.text(middle, fmt.mantissa_bits, fmt.name, ha="center", va="bottom", **label)
        return
    paper = {"facecolor": canvas.PAGE, "linewidth": 0, "pad": 0.5}
    place: dict[str, Any] = {
        "xytext": (6, 0),
        "textcoords": "offset points",
        "ha": "left",
        "va": "center",
    }
    axis.annotate(fmt.name, (end, fmt.mantissa_bits), bbox=paper, **place, **label)


def _is_covered(fmt: FloatFormat, shown: Sequence[FloatFormat]) -> bool:
    """Whether another format's line goes on at the same height where this one's ends."""
    return any(
        other.mantissa_bits == fmt.mantissa_bits and other.max_exponent > fmt.max_exponent
        for other in shown
    )


def _have_room(shown: Sequence[FloatFormat]) -> bool:
    """Whether the names can stand at their lines: one at an end, and one above each line."""
    places = [(fmt.mantissa_bits, _is_covered(fmt, shown)) for fmt in shown]
    widest = max(len(fmt.name) for fmt in shown)
    return len(set(places)) == len(places) and widest <= _LONGEST_NAME


def _comparable(fmts: Sequence[FloatFormat]) -> list[FloatFormat]:
    """The formats without the very wide if there are others; of too many those best known."""
    usual = [f for f in fmts if f.exponent_bits <= WIDEST_EXPONENT_BITS] or list(fmts)
    if len(usual) <= _MOST_LINES:
        return usual
    known = [f for f in usual if f.name in _WELL_KNOWN]
    return [f for f in usual if f in (known or usual)[:_MOST_LINES]]


def number_lines(fmts: Sequence[FloatFormat], *, end: float | None = None, note: str = "") -> Panel:
    """The values of each format on a line from 0 to `end`, by default all of the shortest range.

    The title ends with `note`.
    """
    zero = any(fmt.has_zero for fmt in fmts)
    subnormal = " and subnormal" if any(fmt.has_subnormals for fmt in fmts) else ""
    thinned = any(_each(fmt) > 1 for fmt in fmts)
    row, top, bottom = (48.0 if thinned else 34.0), (48.0 if thinned else 58.0), 40.0
    limit = end or min(fmt.max for fmt in fmts)

    def draw(figure: Figure, above: float) -> None:
        axis = row_axes(figure, above + top, row * len(fmts))
        axis.set_xlim(-0.01, 1.01)  # in units of the limit, which may be close to float64's
        axis.set_ylim(len(fmts), 0)
        for i, fmt in enumerate(fmts):
            name_row(axis, i + 0.5, fmt.name)
            _values(axis, fmt, i, limit)
        top_binade = math.frexp(limit)[1] - 1
        ticks = [0.0, *(2.0**e for e in range(top_binade - 3, top_binade + 1))]
        if limit > 1.25 * ticks[-1] and len(_power_or_plain(limit)) <= 6:
            ticks.append(limit)
        axis.set_xticks([t / limit for t in ticks], [_power_or_plain(tick) for tick in ticks])
        axis.tick_params(axis="x", labelsize=canvas.TEXT)
        quiet(axis)
        title(
            figure,
            above,
            f"The values {'from 0' if zero else 'up'} to {_power_or_plain(limit)}{note}",
            (
                (canvas.BLUE, "|", "normal"),
                *([(canvas.VERMILLION, "|", f"zero{subnormal}")] if zero else []),
            ),
        )

    return Panel(top + row * len(fmts) + bottom, draw)


def _values(axis: Axes, fmt: FloatFormat, i: int, limit: float) -> None:
    """A stroke for each value, or for every few of them where a format has too many."""
    values = _strokes(fmt, limit)
    for ink, chosen in (
        (canvas.BLUE, values[values >= fmt.min_normal]),
        (canvas.VERMILLION, values[values < fmt.min_normal]),
    ):
        axis.vlines(chosen / limit, i + 0.2, i + 0.8, color=ink, linewidth=1.2)
    axis.plot([0, 1], [i + 0.8, i + 0.8], color=canvas.FAINT, linewidth=0.8)
    if _each(fmt) > 1:
        text = f"one stroke for {_count(fmt.mantissa_bits - _STROKE_BITS)} values"
        axis.text(1, i + 0.18, text, ha="right", va="bottom", size=canvas.TEXT, color=canvas.FAINT)


def _each(fmt: FloatFormat) -> int:
    """How many values one stroke stands for."""
    return 1 if fmt.bits <= _LISTABLE_BITS else 2 ** max(fmt.mantissa_bits - _STROKE_BITS, 0)


def _strokes(fmt: FloatFormat, limit: float) -> np.ndarray:
    """The values from 0 to `limit`; every few of them for formats that are too wide for all."""
    each = _each(fmt)
    found = [0.0] if fmt.has_zero else []
    for binade in formats.binades(fmt):
        first = 1 if binade.low == 0 else 0
        steps = np.arange(first, 2**fmt.mantissa_bits // each) * float(binade.spacing) * each
        found += (float(binade.low) + steps).tolist()
        if float(binade.low) > limit:
            break
    return np.unique([v for v in found if v <= min(limit, fmt.max)])


def _power_or_plain(value: float) -> str:
    """A value in decimal, or as a power of two where that is shorter."""
    fraction, exponent = math.frexp(value)
    if fraction == 0.5 and not 2.0**-4 < value < 2.0**11:
        return power_of_two(exponent - 1)
    return formats.short(value, 6)


def _count(bits: int) -> str:
    return str(2**bits) if bits <= 10 else power_of_two(bits)
