"""The picture that leads: every arm's interval against the margin."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jprec.report import canvas
from jprec.report.picture import VERDICT_MARKERS, Picture, finding_colour, quiet, slug
from jprec.report.rows import Row
from jprec.report.wording import MINUS, number

WIDTH = 360.0
ROW_HEIGHT = 36.0
TOP = 34.0
BOTTOM = 44.0

#: Inside ±LINEAR the axis is linear, beyond it logarithmic: the band and a control 1000 δ away.
LINEAR = 2.0

#: Room for the label of a power of ten, in pixels.
LABEL = 46.0


def intervals(setting: str, rows: Sequence[Row]) -> Picture | None:
    """The intervals of one setting's arms in units of δ; None while no arm is judged."""
    judged = [row for row in rows if row.setting == setting and row.verdict]
    if not judged:
        return None
    words = "; ".join(f"{row.arm} {row.words}" for row in judged)
    return Picture(
        name=slug("intervals", setting),
        title=f"Each arm of {setting} against the baseline, in units of the margin: {words}.",
        draw=lambda: _draw(setting, judged),
    )


def _draw(setting: str, rows: Sequence[Row]) -> Figure:
    figure = canvas.sheet(WIDTH, TOP + ROW_HEIGHT * len(rows) + BOTTOM)
    canvas.heading(figure, setting, f"δ = {number(rows[0].margin)}", colour=canvas.FAINT)
    axis = canvas.axes(figure, 14, TOP, WIDTH - 28, ROW_HEIGHT * len(rows))
    low, high = _limits(rows)
    decades = math.log10(-low / LINEAR) + math.log10(high / LINEAR)
    # However far the axis reaches, a fifth of it and more is left to the linear part.
    linear = max(1.2, 0.2 * decades)
    axis.set_xscale("symlog", linthresh=LINEAR, linscale=linear)
    axis.set_xlim(low, high)
    axis.set_ylim(len(rows), 0)
    axis.hlines(range(1, len(rows)), low, high, color=canvas.GRID, linewidth=0.6)
    for i, row in enumerate(rows):
        _draw_row(axis, i, row)
    every = math.ceil(LABEL * (decades + 2 * linear) / (WIDTH - 28))
    ticks = [
        *(-t for t in reversed(_powers(-low, every))), -1.0, 0.0, 1.0, *_powers(high, every)
    ]  # fmt: skip
    axis.set_xticks(ticks, [_tick_label(t) for t in ticks])
    axis.minorticks_off()
    axis.set_yticks([])
    axis.set_xlabel("(test loss − baseline's) / δ, right is worse", color=canvas.FAINT)
    quiet(axis)
    return figure


def _draw_row(axis: Axes, i: int, row: Row) -> None:
    """The arm's name and verdict on one line, its interval below."""
    colour = finding_colour(row)
    y = i + 0.7
    line = axis.get_yaxis_transform()  # x in shares of the axes, y in data
    # The longest verdict, "different (better)", takes a third of the width.
    name = canvas.fitted(row.arm, 0.63 * WIDTH)
    axis.text(0, i + 0.28, name, transform=line, va="center", ha="left")
    axis.text(1, i + 0.28, row.words, transform=line, va="center", ha="right", color=colour)
    ends = (row.low, row.difference, row.high)
    if any(end is None or math.isnan(end) for end in ends):
        counts = f"no interval: {row.diverged} of {row.n} runs diverged"
        axis.text(1, y, counts, transform=line, va="center", ha="right", color=canvas.FAINT)
        return
    # The margin's band is drawn behind the intervals only, so that no line runs through a name.
    canvas.box(axis, -1, i + 0.46, 2, 0.48, facecolor=canvas.GRID, alpha=0.7)
    axis.vlines([-1, 0, 1], i + 0.46, i + 0.94, color=canvas.FAINT, linewidth=[0.9, 0.6, 0.9])
    left, right = axis.get_xlim()
    low, middle, high = (min(max(e / row.margin, left), right) for e in ends if e is not None)
    axis.plot([low, high], [y, y], color=colour, linewidth=2.4, solid_capstyle="butt")
    axis.vlines([low, high], y - 0.12, y + 0.12, color=colour, linewidth=1.4)
    axis.plot(
        [middle],
        [y],
        marker=VERDICT_MARKERS[row.words],
        markersize=8.0,
        color=colour,
        markeredgecolor=canvas.PAGE,
        markeredgewidth=0.8,
        zorder=3,
    )


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """Where the axis ends: beyond every finite end of an interval, and at least at ±3 δ."""
    ends = [end / row.margin for row in rows for end in (row.low, row.high) if end is not None]
    finite = [end for end in ends if math.isfinite(end)]
    return 1.6 * min([-2.0, *finite]), 1.6 * max([2.0, *finite])


def _powers(reach: float, every: int) -> list[float]:
    """Each `every`-th power of ten up to half of `reach`, where a label still fits."""
    return [10.0**k for k in range(every, 300, every) if 10.0**k <= reach / 2]


def _tick_label(value: float) -> str:
    magnitude = abs(value)
    text = f"{magnitude:.0f}" if magnitude < 1e5 else f"{magnitude:.0e}"
    return f"{MINUS if value < 0 else ''}{text}"
