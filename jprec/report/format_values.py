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
    RIGHT,
    WIDEST_EXPONENT_BITS,
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

_LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_INKS = (canvas.BLUE, canvas.VERMILLION, canvas.GREEN, canvas.PURPLE)


def density(fmts: Sequence[FloatFormat]) -> Panel:
    """How many values a format has between one power of two and the next."""
    top, bottom = 36.0, 48.0
    shown = _distinct(fmts)
    low, high = limits(shown)
    most = max(fmt.mantissa_bits for fmt in shown)
    # Names of formats that differ by one bit stand one above the other.
    inside = 220.0 if len(shown) == 1 else min(max(220.0, 14.5 * (most + 3)), 400.0)

    def draw(figure: Figure, above: float) -> None:
        axis = row_axes(figure, above + top, inside, right=RIGHT + 70)
        axis.set_xlim(low - 3, high + 3)
        axis.set_ylim(-0.5, most * 1.09 + 1)
        for i, fmt in enumerate(shown):
            _staircase(axis, fmt, i, shown, high)
        exponent_axis(axis, low, high)
        ticks = sorted({0, *(fmt.mantissa_bits for fmt in shown)})
        ticks = [t for i, t in enumerate(ticks) if i == 0 or t - ticks[i - 1] > most / 24]
        axis.set_yticks(ticks, [_count(t) for t in ticks])
        axis.tick_params(axis="y", labelsize=canvas.TEXT)
        axis.set_ylabel("values a binade", size=canvas.TEXT)
        quiet(axis, keep=("left", "bottom"))
        title(figure, above, "Values between one power of two and the next")

    return Panel(top + inside + bottom, draw)


def _staircase(
    axis: Axes, fmt: FloatFormat, i: int, shown: Sequence[FloatFormat], high: float
) -> None:
    """The stored bits that a value of each exponent can use; subnormals lose one a binade."""
    smallest = fmt.min_exponent - (fmt.mantissa_bits if fmt.has_subnormals else 0)
    edges = np.arange(smallest, fmt.max_exponent + 2)
    bits = (
        np.minimum(fmt.mantissa_bits, edges[:-1] - smallest)
        if fmt.has_subnormals
        else (np.full(len(edges) - 1, fmt.mantissa_bits))
    )
    ink, line = _INKS[i % len(_INKS)], _LINES[i // len(_INKS) % len(_LINES)]
    axis.stairs(bits, edges, baseline=-0.5, color=ink, linewidth=1.6, linestyle=line)
    end = min(fmt.max_exponent + 1, high)
    covered = any(
        other.mantissa_bits == fmt.mantissa_bits and other.max_exponent > fmt.max_exponent
        for other in shown
    )
    label: dict[str, Any] = {"color": ink, "size": canvas.TEXT}
    if covered:
        middle = (fmt.min_exponent + end) / 2
        axis.text(middle, fmt.mantissa_bits, fmt.name, ha="center", va="bottom", **label)
    else:
        paper = {"facecolor": canvas.PAGE, "linewidth": 0, "pad": 0.5}
        place: dict[str, Any] = {
            "xytext": (6, 0),
            "textcoords": "offset points",
            "ha": "left",
            "va": "center",
        }
        axis.annotate(fmt.name, (end, fmt.mantissa_bits), bbox=paper, **place, **label)


def _distinct(fmts: Sequence[FloatFormat], most: int = 6) -> list[FloatFormat]:
    """The first format of each pair of widths, without the very wide if there are others."""
    usual = [f for f in fmts if f.exponent_bits <= WIDEST_EXPONENT_BITS] or list(fmts)
    kinds: dict[tuple[int, int], FloatFormat] = {}
    for fmt in usual:
        kinds.setdefault((fmt.mantissa_bits, fmt.exponent_bits), fmt)
    return list(kinds.values())[:most]


def number_lines(fmts: Sequence[FloatFormat], *, end: float | None = None) -> Panel:
    """The values of each format on a line from 0 to `end`, by default all of the shortest range."""
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
            f"The values from 0 to {_power_or_plain(limit)}",
            (
                (canvas.BLUE, "|", "normal"),
                (canvas.VERMILLION, "|", "zero and subnormal"),
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
