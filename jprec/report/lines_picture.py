"""Curves over a logarithmic axis, written to a file."""

import os
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from jprec.report import canvas
from jprec.report.format_pictures import write_figure

_COLOURS = (canvas.BLUE, canvas.VERMILLION, canvas.GREEN, canvas.PURPLE, canvas.INK)
_STYLES = ("-", "--", ":", "-.")
#: Curves that coincide are told apart by markers of falling size.
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")


def write_lines_picture(
    path: str | os.PathLike,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
) -> None:
    """Writes named curves of positive numbers, both axes logarithmic, to a .svg, .png or .pdf file.

    Args:
      path: Where to.
      curves: Name -> points; what is not positive is left out.
      title: What is shown.
      x: What the horizontal axis counts.
      y: What the vertical axis measures.
    """
    with canvas.drawing():
        figure = Figure(figsize=(800 / 72, 460 / 72), layout="constrained")
        axis = figure.add_subplot()
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        for number, (name, points) in enumerate(curves.items()):
            kept = [(a, b) for a, b in points if a > 0 and b > 0]
            colour = _COLOURS[number % len(_COLOURS)]
            style = _STYLES[number // len(_COLOURS) % len(_STYLES)]
            axis.plot(
                [a for a, _ in kept],
                [b for _, b in kept],
                style,
                marker=_MARKERS[number % len(_MARKERS)],
                color=colour,
                label=name,
                markersize=max(3.5, 9.0 - number),
                fillstyle="none",
            )
        axis.set_title(title, loc="left")
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        axis.grid(color=canvas.GRID)
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    write_figure(path, figure)
