"""Which exponents a model's tensors use, against the windows of the narrow formats."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D, Transform, blended_transform_factory

from jprec import formats
from jprec.report import canvas
from jprec.report.picture import Picture, quiet, slug
from jprec.report.study_records import Cell, Histogram
from jprec.report.wording import percent, power_of_two

WIDTH, HEIGHT = 344.0, 236.0

#: Formats whose windows are drawn, with the label that stands beside them.
WINDOWS = (("fp16", "FP16"), ("bf16", "BF16"), ("e4m3fn", "E4M3"), ("e5m2", "E5M2"))

#: Tensor -> its name in words, in the order of the page.
TENSORS = {
    "weights": "weights",
    "activations": "activations",
    "activation_gradients": "activation gradients",
    "weight_gradients": "weight gradients",
    "updates": "updates",
}

#: Exponents beyond ±EXTREME are gathered in the outermost bins.
EXTREME = 52

_LEFT, _TOP, _BOTTOM = 80.0, 40.0, 26.0

# Heights in units of the histogram's: it fills 0 to 1, the windows stand below 0.
_ROW = 0.125
_FIRST_ROW = -0.26
_FLOOR = _FIRST_ROW - _ROW * (len(WINDOWS) - 0.35)


def exponent_histograms(cell: Cell) -> tuple[Picture, ...]:
    """One picture a kind of tensor: the exponents at the last recorded step over the first."""
    by_tensor = {
        tensor: sorted((h for h in cell.histograms if h.tensor == tensor), key=lambda h: h.step)
        for tensor in TENSORS
    }
    limits = _limits(cell.histograms)
    return tuple(
        _picture(cell, tensor, steps, limits) for tensor, steps in by_tensor.items() if steps
    )


def window(fmt: str) -> tuple[int, int, int]:
    """The exponents of the smallest subnormal, the smallest normal and the largest value.

    >>> window("fp16")
    (-24, -14, 15)
    """
    found = formats.get(fmt)
    return found.min_exponent - found.mantissa_bits, found.min_exponent, found.max_exponent


def _picture(
    cell: Cell, tensor: str, steps: Sequence[Histogram], limits: tuple[int, int]
) -> Picture:
    last = steps[-1]
    return Picture(
        name=slug("exponents", cell.setting, cell.arm, tensor),
        title=f"Exponents of the {TENSORS[tensor]} of {cell.arm} in {cell.setting} at step "
        f"{last.step}, with the windows of FP16, BF16, E4M3 and E5M2; "
        f"{percent(last.zeros / max(last.total, 1))} are zero.",
        draw=lambda: _draw(steps, limits),
    )


def _draw(steps: Sequence[Histogram], limits: tuple[int, int]) -> Figure:
    first, last = steps[0], steps[-1]
    low, high = limits
    figure = canvas.sheet(WIDTH, HEIGHT)
    canvas.heading(figure, TENSORS[last.tensor], f"step {last.step}", colour=canvas.FAINT)
    axis = canvas.axes(figure, _LEFT, _TOP, WIDTH - _LEFT - 12, HEIGHT - _TOP - _BOTTOM)
    axis.set_xlim(low, high + 1)
    axis.set_ylim(_FLOOR, 1)
    _draw_exponents(axis, last, first if len(steps) > 1 else None, limits)
    _draw_zeros(axis, last)
    _draw_windows(axis, limits)
    ticks = [e for e in range(-120, 121, 12) if low <= e <= high]
    axis.set_xticks(ticks, [power_of_two(t) for t in ticks])
    axis.set_yticks([])
    quiet(axis)
    return figure


def _draw_exponents(
    axis: Axes, last: Histogram, first: Histogram | None, limits: tuple[int, int]
) -> None:
    edges = np.arange(limits[0], limits[1] + 2)
    shares = _shares(last, limits)
    before = np.zeros_like(shares) if first is None else _shares(first, limits)
    peak = max(float(shares.max()), float(before.max())) or 1.0
    scale = 0.9 / peak
    smallest, normal, largest = window("fp16")
    axis.vlines(
        [smallest, normal, largest + 1],
        _FIRST_ROW,
        1,
        color=canvas.FAINT,
        linewidth=0.7,
        linestyle=(0, (1, 2)),
    )
    axis.stairs(shares * scale, edges, fill=True, color=canvas.BLUE, linewidth=0)
    if first is not None:
        axis.stairs(before * scale, edges, color=canvas.INK, linewidth=1.0, linestyle=(0, (2, 1.5)))
    axis.plot([limits[0], limits[1] + 1], [0, 0], color=canvas.FAINT, linewidth=0.8)
    if shares.any() or before.any():
        _beside(axis, 0.9, f"{percent(peak)} –", colour=canvas.FAINT)


def _draw_zeros(axis: Axes, last: Histogram) -> None:
    """The bin of the exact zeros, left of the axes, on a scale of its own from 0 to 100 %."""
    share = last.zeros / max(last.total, 1)
    left, width = -70.0, 24.0
    place = _pixels_from_left(axis)
    frame = {"facecolor": "none", "edgecolor": canvas.GRID, "linewidth": 0.8}
    canvas.box(axis, left, 0, width, 1, transform=place, clip_on=False, **frame)
    canvas.box(axis, left, 0, width, share, transform=place, clip_on=False, facecolor=canvas.FAINT)
    for y, text, va in ((1.02, percent(share), "bottom"), (-0.03, "zero", "top")):
        axis.text(left + width / 2, y, text, transform=place, ha="center", va=va, size=canvas.SMALL)


def _draw_windows(axis: Axes, limits: tuple[int, int]) -> None:
    """A bar a format: solid where it is normal, hatched where it is subnormal."""
    low, high = limits
    for i, (fmt, label) in enumerate(WINDOWS):
        smallest, normal, largest = window(fmt)
        y, height = _FIRST_ROW - i * _ROW, 0.65 * _ROW
        start, end = max(normal, low), min(largest + 1, high + 1)
        canvas.box(axis, start, y - height / 2, end - start, height, facecolor=canvas.BAND)
        begin = max(smallest, low)
        if begin < normal:
            hatched = {"facecolor": "none", "edgecolor": canvas.FAINT, "hatch": "////"}
            canvas.box(axis, begin, y - height / 2, normal - begin, height, **hatched)
        _beside(axis, y, label, colour=canvas.INK)


def _beside(axis: Axes, y: float, text: str, *, colour: str) -> None:
    """A label left of the axes at height y."""
    axis.text(
        -5,
        y,
        text,
        transform=_pixels_from_left(axis),
        ha="right",
        va="center",
        size=canvas.SMALL,
        color=colour,
    )


def _pixels_from_left(axis: Axes) -> Transform:
    """The transform with x in pixels from the left edge of the axes, y in data."""
    width = axis.get_position().width * axis.figure.bbox.width
    return blended_transform_factory(Affine2D().scale(1 / width) + axis.transAxes, axis.transData)


def _shares(histogram: Histogram, limits: tuple[int, int]) -> np.ndarray:
    """The share of all values in each exponent; what lies beyond the limits is put at the ends."""
    low, high = limits
    shares = np.zeros(high - low + 1)
    at = np.clip(np.asarray(histogram.exponents, dtype=np.int64), low, high) - low
    np.add.at(shares, at, np.asarray(histogram.counts, dtype=np.float64))
    return shares / max(histogram.total, 1)


def _limits(histograms: Sequence[Histogram]) -> tuple[int, int]:
    """Exponents shown for all tensors of an arm: FP16's window at least, and all that occurs."""
    smallest, _, largest = window("fp16")
    occurring = [e for h in histograms for e, n in zip(h.exponents, h.counts, strict=True) if n]
    low = min([smallest - 6, *occurring])
    high = max([largest + 2, *occurring])
    return max(low, -EXTREME), min(high, EXTREME)
