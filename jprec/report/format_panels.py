"""A picture of formats in parts, one below the other, and what the parts have in common."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from jprec.formats import FloatFormat
from jprec.report import canvas
from jprec.report.picture import quiet
from jprec.report.wording import power_of_two

WIDTH = 800.0

#: Left of the axes stand the names.
LEFT, RIGHT = 108.0, 24.0

#: Keys beside one another.
KEYS_A_ROW = 4

#: The exponents of formats with more exponent bits than fp32 are cut off, unless all have more.
WIDEST_EXPONENT_BITS = 8


@dataclasses.dataclass(frozen=True)
class Panel:
    """A part of a picture, as wide as the sheet.

    Attributes:
      height: In pixels.
      draw: Draws it into a figure, from a distance below the figure's upper edge.
    """

    height: float
    draw: Callable[[Figure, float], None]


def stack(panels: Sequence[Panel]) -> Figure:
    """The panels below one another on a white sheet; called within `canvas.drawing`."""
    figure = canvas.sheet(WIDTH, sum(panel.height for panel in panels))
    figure.set_facecolor(canvas.PAGE)
    top = 0.0
    for panel in panels:
        panel.draw(figure, top)
        top += panel.height
    return figure


def row_axes(figure: Figure, top: float, height: float, *, right: float = RIGHT) -> Axes:
    """Axes without ticks, beside the names of the rows."""
    axis = canvas.axes(figure, LEFT, top, WIDTH - LEFT - right, height)
    axis.set_yticks([])
    axis.set_xticks([])
    quiet(axis, keep=())
    return axis


def name_row(axis: Axes, y: float, name: str) -> None:
    """The name of a row, left of the axes."""
    axis.text(
        -12 / (WIDTH - LEFT - RIGHT),
        y,
        name,
        transform=axis.get_yaxis_transform(),
        ha="right",
        va="center",
    )


def title(
    figure: Figure, above: float, text: str, keys: Sequence[tuple[str, Any, str]] = ()
) -> None:
    """The panel's title, and below it what the colours mean.

    A key is a colour, a mark and a text. The mark is "|" for a stroke, ("-", dashes) for a line of
    those dashes, and else the hatch of a box, or None.
    """
    width, height = figure.get_size_inches() * 72
    figure.text(8 / width, 1 - (above + 8) / height, text, weight="bold", va="top", ha="left")
    if not keys:
        return
    figure.legend(
        handles=[_handle(*key) for key in keys],
        loc="upper left",
        bbox_to_anchor=(4 / width, 1 - (above + 24) / height),
        ncols=min(len(keys), KEYS_A_ROW),
        frameon=False,
        fontsize=canvas.TEXT,
        handletextpad=0.5,
        columnspacing=1.4,
        borderaxespad=0,
        borderpad=0.4,
    )


def _handle(colour: str, mark: Any, label: str) -> Artist:
    """The sample of a key."""
    if mark == "|":
        stroke: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": 1.6}
        return Line2D([], [], color=colour, linestyle="", label=label, **stroke)
    if isinstance(mark, tuple):
        return Line2D([], [], color=colour, linestyle=mark[1], linewidth=1.6, label=label)
    edge = canvas.BLUE if mark else canvas.INK
    return Patch(facecolor=colour, hatch=mark, label=label, linewidth=0.8, edgecolor=edge)


def exponent_axis(axis: Axes, low: float, high: float) -> None:
    """Ticks at round exponents, labelled as powers of two."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if (high - low) / s <= 15)
    ticks = [e for e in range(math.ceil(low), math.floor(high) + 1) if e % step == 0]
    axis.set_xticks(ticks, [power_of_two(t) for t in ticks])
    axis.tick_params(axis="x", labelsize=canvas.TEXT)
    quiet(axis)


def limits(fmts: Sequence[FloatFormat]) -> tuple[float, float]:
    """The exponents that are drawn: those of all formats but the very wide ones."""
    usual = [f for f in fmts if f.exponent_bits <= WIDEST_EXPONENT_BITS] or list(fmts)
    low = min(f.min_exponent - (f.mantissa_bits if f.has_subnormals else 0) for f in usual)
    return float(low), float(max(f.max_exponent for f in usual) + 1)
