"""Which numbers a format reaches: its bits, and the window from smallest to largest."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jprec import formats
from jprec.formats import FloatFormat
from jprec.report import canvas
from jprec.report.format_panels import (
    LEFT,
    RIGHT,
    WIDTH,
    Panel,
    exponent_axis,
    limits,
    name_row,
    row_axes,
    title,
)

#: Room beside the bars for the smallest and the largest value, in pixels.
_ROOM = 70.0

_HATCH = {"facecolor": canvas.PAGE, "edgecolor": canvas.BLUE, "hatch": "////", "linewidth": 0.8}


def layouts(fmts: Sequence[FloatFormat]) -> Panel:
    """A box for each bit of each format: sign, exponent, fraction."""
    row, top = 34.0, 58.0
    side = min(20.0, (WIDTH - LEFT - RIGHT - 60) / max(fmt.bits for fmt in fmts))

    def draw(figure: Figure, above: float) -> None:
        axis = row_axes(figure, above + top, row * len(fmts))
        axis.set_xlim(0, (WIDTH - LEFT - RIGHT) / side)
        axis.set_ylim(len(fmts), 0)
        for i, fmt in enumerate(fmts):
            name_row(axis, i + 0.5, fmt.name)
            signs, exponents = int(fmt.signed), int(fmt.signed) + fmt.exponent_bits
            for bit in range(fmt.bits):
                fill = (
                    canvas.VERMILLION if bit < signs else canvas.BAND if bit < exponents else "none"
                )
                style = {"facecolor": fill, "edgecolor": canvas.INK, "linewidth": 0.8}
                canvas.box(axis, bit + 0.06, i + 0.2, 0.88, 0.6, **style)
            widths = f"{signs} + {fmt.exponent_bits} + {fmt.mantissa_bits}"
            axis.text(fmt.bits + 0.5, i + 0.5, widths, va="center", size=canvas.TEXT)
        keys = (
            *([(canvas.VERMILLION, None, "sign")] if any(fmt.signed for fmt in fmts) else []),
            (canvas.BAND, None, "exponent"),
            *([(canvas.PAGE, None, "fraction")] if any(fmt.mantissa_bits for fmt in fmts) else []),
        )
        title(figure, above, "The bits, first to last", keys)

    return Panel(top + row * len(fmts) + 10, draw)


def windows(fmts: Sequence[FloatFormat]) -> Panel:
    """A bar for each format from its smallest to its largest value, on a scale of powers of two."""
    row, top, bottom = 27.0, 58.0, 44.0
    low, high = limits(fmts)

    def draw(figure: Figure, above: float) -> None:
        axis = row_axes(figure, above + top, row * len(fmts))
        # Room for the values beside the bars.
        pixel = (high - low) / (WIDTH - LEFT - RIGHT - 2 * _ROOM)
        axis.set_xlim(low - _ROOM * pixel, high + _ROOM * pixel)
        axis.set_ylim(len(fmts), 0)
        for i, fmt in enumerate(fmts):
            name_row(axis, i + 0.5, fmt.name)
            _window(axis, fmt, i, (low, high), pixel)
        exponent_axis(axis, low, high)
        subnormal = [(canvas.PAGE, "////", "subnormal")]
        keys = (
            (canvas.BLUE, None, "normal"),
            *(subnormal if any(fmt.has_subnormals for fmt in fmts) else []),
        )
        title(figure, above, "From the smallest to the largest value", keys)

    return Panel(top + row * len(fmts) + bottom, draw)


def _window(axis: Axes, fmt: FloatFormat, i: int, ends: tuple[float, float], pixel: float) -> None:
    """One bar, with the smallest, the smallest normal and the largest value."""
    low, high = ends
    first = math.log2(fmt.min_subnormal if fmt.has_subnormals else fmt.min_normal)
    begin, end = max(fmt.min_exponent, low), min(math.log2(fmt.max), high)
    y, height = i + 0.16, 0.68
    canvas.box(axis, begin, y, end - begin, height, facecolor=canvas.BLUE)
    if max(first, low) < begin:
        start = max(first, low)
        canvas.box(axis, start, y, begin - start, height, **_HATCH)
    small: dict[str, Any] = {"size": canvas.TEXT, "va": "center"}
    smallest = formats.short(fmt.min_subnormal if fmt.has_subnormals else fmt.min_normal)
    left, right = max(first, low), end
    cut = ("◂ " if first < low else ""), (" ▸" if math.log2(fmt.max) > high else "")
    axis.text(left - 5 * pixel, i + 0.5, cut[0] + smallest, ha="right", **small)
    axis.text(right + 5 * pixel, i + 0.5, formats.short(fmt.max, 5) + cut[1], ha="left", **small)
    normal = formats.short(fmt.min_normal)
    if fmt.has_subnormals and (end - begin) / pixel > 90 and fmt.min_exponent >= low:
        axis.text(begin + 5 * pixel, i + 0.5, normal, ha="left", color=canvas.PAGE, **small)
