"""What happened along the way: the loss scale with its skips, and the updates that were lost."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jprec.report import canvas
from jprec.report.picture import Picture, quiet, slug
from jprec.report.study_records import Cell, LossScale, Updates
from jprec.report.wording import percent, power_of_two

SCALE_WIDTH, SCALE_HEIGHT = 380.0, 208.0
UPDATE_WIDTH, UPDATE_HEIGHT = 344.0, 190.0

#: Ratios outside are gathered in the outermost bins.
RATIOS = (-24, 24)

#: An update below half an ulp is lost when it is rounded to nearest.
LOST_BELOW = -1

#: A share of lost updates from here on is worth a picture and a colour.
NOTEWORTHY = 0.01


def loss_scale_trace(cell: Cell) -> Picture | None:
    """The loss scale over the steps, and where steps were skipped; None if it never moves."""
    trace = cell.loss_scale
    if trace is None or static_scale(trace) is not None:
        return None
    skipped = skips_in_words(trace)
    return Picture(
        name=slug("scale", cell.setting, cell.arm),
        title=f"Loss scale of {cell.arm} in {cell.setting} over the steps: {skipped}.",
        draw=lambda: _draw_scale(cell, trace),
    )


def static_scale(trace: LossScale) -> int | None:
    """log2 of a scale that stays the same and skips nothing; None if it moves."""
    values = {value for seed in trace.log2 for value in seed}
    return values.pop() if len(values) == 1 and not any(map(any, trace.skipped)) else None


def skips_in_words(trace: LossScale) -> str:
    """How many steps a seed skipped: "12.5 of 600 steps skipped per seed (2.1 %)"."""
    skipped = sum(map(sum, trace.skipped))
    steps = sum(map(len, trace.skipped))
    seeds = max(len(trace.skipped), 1)
    each = f"{skipped / seeds:.1f}".removesuffix(".0")
    return f"{each} of {steps // seeds} steps skipped per seed ({percent(skipped / max(steps, 1))})"


def update_histogram(cell: Cell) -> Picture | None:
    """The distribution of log2(|update| / ulp(weight)); None if it was not recorded."""
    updates = cell.updates
    if updates is None:
        return None
    return Picture(
        name=slug("updates", cell.setting, cell.arm),
        title=f"Size of the updates of {cell.arm} in {cell.setting} in ulps of their weight in "
        f"{updates.format}: {percent(updates.lost_share)} of the nonzero ones are lost.",
        draw=lambda: _draw_updates(cell, updates),
    )


def loses_updates(cell: Cell) -> bool:
    """Whether updates of the arm lie below half an ulp, be they lost or saved in another way."""
    updates = cell.updates
    if updates is None:
        return False
    small = sum(
        n for r, n in zip(updates.log2_ratio, updates.counts, strict=True) if r < LOST_BELOW
    )
    return small >= NOTEWORTHY * max(updates.total - updates.zeros, 1)


def _draw_scale(cell: Cell, trace: LossScale) -> Figure:
    figure = canvas.sheet(SCALE_WIDTH, SCALE_HEIGHT)
    canvas.heading(figure, f"{cell.setting} / {cell.arm}")
    figure.text(
        4 / SCALE_WIDTH,
        1 - 21 / SCALE_HEIGHT,
        skips_in_words(trace),
        color=canvas.FAINT,
        va="top",
        size=canvas.SMALL,
    )
    scales = np.asarray(trace.log2, dtype=np.float64)
    skips = np.asarray(trace.skipped, dtype=np.int64).sum(axis=0)
    steps = np.arange(scales.shape[1])
    axis = canvas.axes(figure, 44, 42, SCALE_WIDTH - 62, SCALE_HEIGHT - 104)
    low, high = scales.min(axis=0), scales.max(axis=0)
    axis.fill_between(steps, low, high, step="post", color=canvas.BLUE, alpha=0.25, linewidth=0)
    changes = _changes(np.median(scales, axis=0))
    axis.step(
        steps[changes],
        np.median(scales, axis=0)[changes],
        where="post",
        color=canvas.BLUE,
        linewidth=1.5,
    )
    axis.set_xlim(0, scales.shape[1])
    margin = max(1.0, 0.08 * float(high.max() - low.min()))
    axis.set_ylim(float(low.min()) - margin, float(high.max()) + margin)
    every = max(1, math.ceil((high.max() - low.min()) / 4))
    ticks = range(int(low.min()), int(high.max()) + 1, every)
    axis.set_yticks(ticks, [power_of_two(t) for t in ticks])
    axis.set_xticks([])
    axis.grid(axis="y", color=canvas.GRID, linewidth=0.6)
    quiet(axis, keep=("left",))
    _draw_skips(
        canvas.axes(figure, 44, SCALE_HEIGHT - 58, SCALE_WIDTH - 62, 22), skips, len(scales)
    )
    return figure


def _draw_skips(axis: Axes, skips: np.ndarray, seeds: int) -> None:
    """A tick at each skipped step; the more seeds skipped it, the taller."""
    at = np.flatnonzero(skips)
    # A single seed of many still makes a tick that can be seen.
    axis.vlines(at, 0, 0.3 + 0.7 * skips[at] / seeds, color=canvas.VERMILLION, linewidth=1.0)
    axis.set_xlim(0, skips.size)
    axis.set_ylim(0, 1)
    axis.set_yticks([0.5], ["skips"])
    axis.tick_params(axis="y", length=0)
    axis.set_xticks(np.linspace(0, skips.size, 5).round().astype(int))
    axis.set_xlabel("step", color=canvas.FAINT, labelpad=1)
    quiet(axis)


def _changes(values: np.ndarray) -> np.ndarray:
    """Where a step function changes, with its first and last point: all that a line needs."""
    return np.flatnonzero(
        np.r_[True, values[1:] != values[:-1]] | (np.arange(values.size) == values.size - 1)
    )


def _draw_updates(cell: Cell, updates: Updates) -> Figure:
    figure = canvas.sheet(UPDATE_WIDTH, UPDATE_HEIGHT)
    canvas.heading(
        figure,
        cell.arm,
        f"{percent(updates.lost_share)} lost",
        colour=canvas.VERMILLION if updates.lost_share >= NOTEWORTHY else canvas.FAINT,
    )
    axis = canvas.axes(figure, 40, 36, UPDATE_WIDTH - 54, UPDATE_HEIGHT - 76)
    low, high = RATIOS
    counts = np.zeros(high - low + 1)
    np.add.at(
        counts,
        np.clip(np.asarray(updates.log2_ratio, dtype=np.int64), low, high) - low,
        np.asarray(updates.counts, dtype=np.float64),
    )
    shares = counts / max(updates.total - updates.zeros, 1)
    ratios = np.arange(low, high + 1)
    small = ratios < LOST_BELOW
    edges = np.arange(low, high + 2)
    axis.stairs(shares * small, edges, fill=True, color=canvas.VERMILLION, linewidth=0)
    axis.stairs(shares * ~small, edges, fill=True, color=canvas.BLUE, linewidth=0)
    axis.axvline(LOST_BELOW, color=canvas.INK, linewidth=1.0, linestyle=(0, (3, 2)))
    top = 1.22 * float(shares.max(initial=0.0)) or 1.0
    axis.set_ylim(0, top)
    axis.set_xlim(low, high + 1)
    for x, words, side in (
        (LOST_BELOW - 0.5, "below ½ ulp", "right"),
        (LOST_BELOW + 0.5, "moves the weight", "left"),
    ):
        axis.text(x, top, words, ha=side, va="top", size=canvas.SMALL, color=canvas.FAINT)
    peak = float(shares.max(initial=0.0))
    axis.set_yticks([peak] if peak else [], [percent(peak)] if peak else [])
    axis.set_xticks(range(-24, 25, 8), [power_of_two(t) for t in range(-24, 25, 8)])
    axis.set_xlabel(f"|update| / ulp(weight), {updates.format}", color=canvas.FAINT, labelpad=2)
    axis.tick_params(axis="y", length=2, pad=1)
    quiet(axis)
    return figure
