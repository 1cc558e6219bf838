"""Panels of curves with bands, windows and limits: the figures of experiments."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jprec.report import canvas
from jprec.report.format_pictures import write_figure
from jprec.report.picture import log_ticks

Scale = Literal["linear", "log2", "log10"]

_COLOURS = (canvas.BLUE, canvas.VERMILLION, canvas.GREEN, canvas.PURPLE, canvas.INK)
_STYLES = ("-", "--", ":", "-.")
#: Curves that coincide are told apart by markers of falling size.
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """One named curve. A name has the same colour and marker in all panels of a figure.

    Attributes:
      name: As in the legend.
      x: Places. What is not finite, or not positive on a logarithmic axis, is left out.
      y: Values at these places.
      low: Lower end of a band around the curve, or None.
      high: Upper end of it.
      kind: "line" with markers, "plain" without, "points" alone, or "steps" as of a histogram.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    kind: Literal["line", "plain", "points", "steps"] = "line"

    def __post_init__(self) -> None:
        given = (self.x, self.y, self.low, self.high)
        lengths = [None if values is None else len(values) for values in given]
        if len(set(lengths) - {None}) != 1 or (self.low is None) != (self.high is None):
            raise ValueError(
                f"curve {self.name!r}: x, y and the band's two ends are of lengths {lengths}; "
                "they have one value each for each place, and a band has two ends."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """A line or a window across a panel, with its name.

    Attributes:
      label: Written at its end; "" for none.
      x: Place of a vertical line, or (from, to) of a window.
      y: The same, horizontally; just one of the two is given.
    """

    label: str = ""
    x: float | tuple[float, float] | None = None
    y: float | tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if (self.x is None) == (self.y is None):
            raise ValueError(f"mark {self.label!r}: give x or y, and one of them only.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Attributes:
      title: What it shows.
      x: What the horizontal axis counts. y: What the vertical axis measures.
      curves: In the order of the legend.
      x_scale: "linear", "log2" or "log10". y_scale: the same.
      marks: Lines and windows behind the curves.
      ticks: Places on the horizontal axis -> their text; None for Matplotlib's own.
      limits: Of the vertical axis; None for Matplotlib's own.
    """

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    marks: Sequence[Mark] = ()
    ticks: dict[float, str] | None = None
    limits: tuple[float, float] | None = None


def plot(
    panels: Sequence[Panel], *, title: str = "", columns: int = 1, height: float = 300.0
) -> Figure:
    """A figure of panels side by side and below each other, with one legend for all.

    Called within `canvas.drawing`.

    Args:
      panels: From left to right, then down.
      title: Of the whole figure.
      columns: How many panels stand side by side.
      height: Of a row, in pixels of the page.
    """
    if not panels:
        raise ValueError("a figure without panels shows nothing; give one or more.")
    rows = math.ceil(len(panels) / columns)
    size = (860 / 72, (rows * height + 60) / 72)
    figure = Figure(figsize=size, layout="constrained")
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axis, panel in zip(grid.flat, panels, strict=False):
        _draw(axis, panel, names)
    for axis in grid.flat[len(panels) :]:
        axis.remove()
    if title:
        figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=canvas.TEXT)
    if len(names) > 1:
        handles: dict[str, Any] = {}
        for axis in figure.axes:
            found = axis.get_legend_handles_labels()
            handles |= dict(zip(found[1], found[0], strict=True))
        figure.legend(
            [handles[name] for name in names],
            names,
            loc="outside lower center",
            ncols=min(len(names), 5),
            frameon=False,
        )
    return figure


def write_plot(path: str | os.PathLike, panels: Sequence[Panel], **options: object) -> None:
    """Writes the figure that `plot` draws to a .svg, .png or .pdf file."""
    with canvas.drawing():
        figure = plot(panels, **options)  # type: ignore[arg-type]
    write_figure(path, figure)


def _draw(axis: Axes, panel: Panel, names: Sequence[str]) -> None:
    for scale, set_scale in ((panel.x_scale, axis.set_xscale), (panel.y_scale, axis.set_yscale)):
        if scale != "linear":
            set_scale("log", base=int(scale.removeprefix("log")))
    for mark in panel.marks:
        _mark(axis, mark)
    for curve in panel.curves:
        _curve(axis, panel, curve, names.index(curve.name))
    if panel.limits is not None:
        axis.set_ylim(panel.limits)
    for scale, axes in ((panel.x_scale, axis.xaxis), (panel.y_scale, axis.yaxis)):
        low, high = sorted(axes.get_view_interval())
        if scale == "linear":
            # Ticks beyond the ends are never drawn, and yet take room in the layout.
            axes.set_ticks([tick for tick in axes.get_ticklocs() if low <= tick <= high])
        else:
            ticks = _ticks(scale, low, high)
            axes.set_ticks(list(ticks), list(ticks.values()))
        axes.set_view_interval(low, high, ignore=True)
    if panel.ticks is not None:
        axis.set_xticks(list(panel.ticks), list(panel.ticks.values()))
    axis.minorticks_off()
    axis.set_title(panel.title, loc="left", fontsize=canvas.TEXT)
    axis.set_xlabel(panel.x)
    axis.set_ylabel(panel.y)
    axis.grid(color=canvas.GRID, linewidth=0.6)
    axis.set_axisbelow(True)


def _ticks(scale: Scale, low: float, high: float) -> dict[float, str]:
    """A few places on a logarithmic axis -> their text."""
    if scale == "log10":
        return {tick: f"{tick:g}" for tick in log_ticks(low, high)}
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, math.ceil((last - first + 1) / 7))
    return {2.0**e: f"2^{e}" if abs(e) > 3 else f"{2.0**e:g}" for e in range(first, last + 1, step)}


def _curve(axis: Axes, panel: Panel, curve: Curve, number: int) -> None:
    colour = _COLOURS[number % len(_COLOURS)]
    style = _STYLES[number // len(_COLOURS) % len(_STYLES)]

    def is_shown(x: float, y: float) -> bool:
        return (
            math.isfinite(x)
            and math.isfinite(y)
            and (x > 0 or panel.x_scale == "linear")
            and (y > 0 or panel.y_scale == "linear")
        )

    kept = [i for i in range(len(curve.x)) if is_shown(curve.x[i], curve.y[i])]
    x, y = ([values[i] for i in kept] for values in (curve.x, curve.y))
    if curve.low is not None and curve.high is not None:
        ends = [i for i in kept if is_shown(curve.x[i], curve.low[i])]
        ends = [i for i in ends if math.isfinite(curve.high[i])]
        axis.fill_between(
            [curve.x[i] for i in ends],
            [curve.low[i] for i in ends],
            [curve.high[i] for i in ends],
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
    if curve.kind == "steps":
        axis.plot(x, y, style, color=colour, label=curve.name, drawstyle="steps-mid", linewidth=1.3)
        return
    axis.plot(
        x,
        y,
        linestyle="none" if curve.kind == "points" else style,
        marker=None if curve.kind == "plain" else _MARKERS[number % len(_MARKERS)],
        color=colour,
        label=curve.name,
        linewidth=1.4,
        markersize=max(3.5, 8.0 - number),
        fillstyle="none",
    )


def _mark(axis: Axes, mark: Mark) -> None:
    style: dict[str, Any] = {"color": canvas.FAINT, "linewidth": 0.9, "linestyle": (0, (2, 2))}
    if isinstance(mark.x, tuple):
        axis.axvspan(*mark.x, color=canvas.BAND, alpha=0.35, linewidth=0)
    elif isinstance(mark.y, tuple):
        axis.axhspan(*mark.y, color=canvas.BAND, alpha=0.35, linewidth=0)
    elif mark.x is not None:
        axis.axvline(mark.x, **style)
    elif mark.y is not None:
        axis.axhline(mark.y, **style)
    if not mark.label:
        return
    vertical = mark.x is not None
    place = mark.x if vertical else mark.y
    if isinstance(place, tuple):
        place = place[0] if vertical else place[1]
    axis.annotate(
        mark.label,
        (place, 1.0) if vertical else (1.0, place),
        xycoords=("data", "axes fraction") if vertical else ("axes fraction", "data"),
        xytext=(3, -3) if vertical else (-3, 2),
        textcoords="offset points",
        ha="left" if vertical else "right",
        va="top" if vertical else "bottom",
        color=canvas.FAINT,
        size=canvas.SMALL,
    )
