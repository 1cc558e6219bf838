"""Loss curves with the spread of the seeds, each arm over its baseline."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jprec.report import canvas
from jprec.report.picture import Picture, finding_colour, log_ticks, slug
from jprec.report.rows import Row
from jprec.report.study_records import Cell, Setting, StudyRecords

WIDTH, HEIGHT = 264.0, 186.0

#: The band holds the central 80 % of the seeds.
BAND_PERCENTILES = (10.0, 90.0)


def curves(
    records: StudyRecords, setting: Setting, rows: Sequence[Row]
) -> tuple[tuple[Cell, Picture], ...]:
    """One picture an arm: the test loss over the steps, with the baseline's behind it."""
    baseline = records.cell(setting.name, setting.baseline)
    cells = [c for c in records.cells if c.setting == setting.name]
    others = [c for c in cells if c.arm != setting.baseline] or cells
    limits = _limits(cells)
    found = {row.arm: row for row in rows if row.setting == setting.name}
    return tuple(
        (cell, _picture(setting, found[cell.arm], cell, baseline, limits))
        for cell in others
        if cell.curve.step
    )


def _picture(
    setting: Setting, row: Row, cell: Cell, baseline: Cell | None, limits: tuple[float, float]
) -> Picture:
    return Picture(
        name=slug("curve", setting.name, cell.arm),
        title=f"Test loss of {cell.arm} in {setting.name} over {setting.steps} steps, beside that "
        f"of {setting.baseline}: {row.words}.",
        draw=lambda: _draw(setting, row, cell, baseline, limits),
    )


def _draw(
    setting: Setting, row: Row, cell: Cell, baseline: Cell | None, limits: tuple[float, float]
) -> Figure:
    figure = canvas.sheet(WIDTH, HEIGHT)
    colour = finding_colour(row)
    canvas.heading(figure, row.arm)
    for x, text, side, text_colour in (
        (4, row.words, "left", colour),
        (WIDTH - 4, "test loss", "right", canvas.FAINT),
    ):
        y = 1 - 21 / HEIGHT
        figure.text(x / WIDTH, y, text, ha=side, va="top", size=canvas.SMALL, color=text_colour)
    axis = canvas.axes(figure, 42, 42, WIDTH - 60, HEIGHT - 80)
    axis.set_ylim(limits)
    if limits[0] > 0:
        axis.set_yscale("log")
        ticks = log_ticks(*limits)
        axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
        axis.minorticks_off()
    else:
        axis.yaxis.set_major_locator(MaxNLocator(4, prune="both"))
    axis.grid(axis="y", color=canvas.GRID, linewidth=0.6)
    if limits[0] < setting.guess < limits[1]:
        axis.axhline(setting.guess, color=canvas.FAINT, linewidth=0.8, linestyle=(0, (1, 2)))
        near_top = setting.guess > 0.6 * limits[1]
        axis.annotate(
            "guessing",
            (1, setting.guess),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="top" if near_top else "bottom",
            color=canvas.FAINT,
            size=canvas.SMALL,
            xytext=(0, -2 if near_top else 2),
            textcoords="offset points",
        )
    if baseline is not None and baseline is not cell:
        _curve(axis, baseline, canvas.BAND, linewidth=5.0, alpha=0.5)
    _curve(axis, cell, colour, linewidth=1.5, alpha=0.25)
    axis.set_xlim(0, setting.steps)
    axis.set_xticks([0, setting.steps // 2, setting.steps])
    axis.set_xlabel("step", color=canvas.FAINT, labelpad=1)
    return figure


def _curve(axis: Axes, cell: Cell, colour: str, *, linewidth: float, alpha: float) -> None:
    """The median over the seeds as a line, their central 80 % as a band; it ends where runs did."""
    losses = np.asarray(cell.curve.test_loss, dtype=np.float64)
    losses = np.where(np.isfinite(losses), losses, np.inf)  # a run that broke down is at the top
    low, middle, high = np.percentile(
        losses, (BAND_PERCENTILES[0], 50.0, BAND_PERCENTILES[1]), axis=1, method="nearest"
    )
    top = axis.get_ylim()[1]
    shown = np.isfinite(middle)
    steps = np.asarray(cell.curve.step)
    axis.fill_between(
        steps,
        low,
        np.minimum(high, top),
        where=np.isfinite(low),
        color=colour,
        alpha=alpha,
        linewidth=0,
    )
    axis.plot(
        steps[shown], middle[shown], color=colour, linewidth=linewidth, solid_joinstyle="round"
    )
    if shown.any() and not shown[-1]:
        last = np.flatnonzero(shown)[-1]
        axis.plot(steps[last], middle[last], marker="X", color=colour, markersize=7)
        early = steps[last] < steps[-1] / 2
        axis.annotate(
            "not finite from here",
            (steps[last], middle[last]),
            xytext=(8 if early else -8, 0),
            textcoords="offset points",
            ha="left" if early else "right",
            va="center",
            color=colour,
            size=canvas.SMALL,
        )


def _limits(cells: Sequence[Cell]) -> tuple[float, float]:
    """Limits around the losses of the setting, so that its panels compare.

    The lower one is above 0 for a logarithmic axis, unless there are losses that have no logarithm.
    """
    values = np.concatenate([np.ravel(c.curve.test_loss) for c in cells] or [np.ones(1)])
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.1, 10.0
    low, high = float(values.min()), float(np.percentile(values, 99.5))
    if low > 0:
        return low / 1.3, high * 1.5
    margin = 0.08 * (high - low) or 1.0
    return low - margin, high + margin
