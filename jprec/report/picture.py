"""What every figure of the page has in common."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jprec.report import canvas
from jprec.report.rows import Row

#: Verdict -> colour. The word always stands beside it.
VERDICT_COLOURS = {
    "identical": canvas.GREEN,
    "equivalent": canvas.BLUE,
    "different": canvas.VERMILLION,
    "undecided": canvas.PURPLE,
    None: canvas.FAINT,
}

#: Finding -> marker, which repeats the colour for who can't tell colours apart.
VERDICT_MARKERS = {
    "identical": "D",
    "equivalent": "o",
    "undecided": "s",
    "different (worse)": ">",
    "different (better)": "<",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure to be drawn.

    Attributes:
      name: Unique on the page.
      title: What it shows, in a sentence, for a reader who doesn't see it.
      draw: Draws it; called within `canvas.drawing`.
    """

    name: str
    title: str
    draw: Callable[[], Figure]

    def svg(self) -> str:
        """The picture as an SVG element."""
        with canvas.drawing():
            return canvas.to_svg(self.draw(), name=self.name, title=self.title)


def slug(*parts: str) -> str:
    """The parts as an id that HTML, CSS and SVG accept.

    >>> slug("curve", "hot", "tf32@a100")
    'curve-hot-tf32_a100'
    """
    text = "-".join(parts)
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in text)


def finding_colour(row: Row | None) -> str:
    """The colour of the row's verdict."""
    return VERDICT_COLOURS[row.verdict if row else None]


def log_ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """Round numbers between two positive ones: 1, 2, 5 or fewer times powers of ten, as fit.

    >>> log_ticks(0.04, 30.0)
    [0.1, 1.0, 10.0]
    >>> log_ticks(0.04, 0.3)
    [0.05, 0.1, 0.2]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{f}e{d}") for d in decades for f in factors]
        ticks = [t for t in ticks if low <= t <= high]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def quiet(axis: Axes, *, keep: Sequence[str] = ("bottom",)) -> None:
    """Leaves only the named spines."""
    for side, spine in axis.spines.items():
        spine.set_visible(side in keep)
