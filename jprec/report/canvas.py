"""From a Matplotlib figure to an SVG that lives inside the page.

Figures are drawn in pixels of the page, without Matplotlib's global state, in colours that stand
for CSS variables: the page decides what they are in light and in dark mode.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

#: Role -> colour on a light page (the fallback where an SVG stands alone). Okabe and Ito's palette
#: without its yellow, which is too pale on white.
COLOURS = {
    "ink": "#1c2024",
    "faint": "#646b73",
    "grid": "#d9dde1",
    "band": "#c3c9cf",
    "page": "#ffffff",
    "blue": "#0072b2",
    "vermillion": "#d55e00",
    "green": "#009e73",
    "purple": "#aa4499",
}
INK, FAINT, GRID, BAND, PAGE, BLUE, VERMILLION, GREEN, PURPLE = COLOURS.values()

#: Size of the text in pixels of the page.
TEXT = 12.0
SMALL = 10.5

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "jprec",
    "figure.dpi": 72,
    "savefig.dpi": 72,
    "font.size": TEXT,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": FAINT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "hatch.linewidth": 0.8,
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draws by jprec's style alone, whatever the reader's Matplotlib configuration says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def sheet(width: float, height: float) -> Figure:
    """An empty figure of that many pixels of the page."""
    return Figure(figsize=(width / 72, height / 72))


def axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place given in pixels from the figure's upper left corner."""
    total_width, total_height = figure.get_size_inches() * 72
    return figure.add_axes(
        (
            left / total_width,
            1 - (top + height) / total_height,
            width / total_width,
            height / total_height,
        )
    )


def box(axis: Axes, x: float, y: float, width: float, height: float, **style: Any) -> None:
    """A rectangle from its lower left corner, in data unless `style` has a transform."""
    # An artist, not a bar: the limits are set by hand, and a page has hundreds of boxes.
    axis.add_artist(Rectangle((x, y), width, height, **{"linewidth": 0, **style}))


def heading(figure: Figure, left: str, right: str = "", *, colour: str = INK) -> None:
    """A line at the top of the figure: the subject in bold, the finding at the right."""
    width, height = figure.get_size_inches() * 72
    room = width - 16 - _text_width(right, TEXT, "normal")
    left = fitted(left, room, weight="bold")
    figure.text(4 / width, 1 - 5 / height, left, weight="bold", va="top", ha="left")
    figure.text(1 - 4 / width, 1 - 5 / height, right, color=colour, va="top", ha="right")


def fitted(text: str, room: float, *, size: float = TEXT, weight: str = "normal") -> str:
    """The text, its middle left out if it is wider than `room` pixels.

    >>> fitted("mixed_fp16", 200.0), fitted("a_policy_with_a_very_long_name", 120.0)
    ('mixed_fp16', 'a_policy…ng_name')
    """
    shown, kept = text, len(text)
    while kept > 2 and _text_width(shown, size, weight) > room:
        kept -= 1
        shown = f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
    return shown


def _text_width(text: str, size: float, weight: str) -> float:
    font = FontProperties(family="DejaVu Sans", size=size, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width)


def text_faults(figure: Figure) -> list[str]:
    """What a reader would miss: texts beyond the figure's edge, and texts that cover each other.

    Measured by a renderer, with Matplotlib's own typeface, which is wider than most.
    """
    with drawing():
        agg = FigureCanvasAgg(figure)
        agg.draw()
        texts = [
            (text.get_text(), text.get_window_extent(agg.get_renderer()).padded(-0.5))
            for text in figure.findobj(Text)
            if text.get_visible() and text.get_text().strip() and _is_drawn(text)
        ]
    edge = figure.bbox
    outside = [
        f"{text!r} is cut off"
        for text, box in texts
        if box.x0 < edge.x0 or box.x1 > edge.x1 or box.y0 < edge.y0 or box.y1 > edge.y1
    ]
    covering = [
        f"{first!r} and {second!r} cover each other"
        for i, (first, box) in enumerate(texts)
        for second, other in texts[i + 1 :]
        if box.overlaps(other)
    ]
    return outside + covering


def _is_drawn(text: Text) -> bool:
    """False for labels of ticks beyond the axis' limits, which Matplotlib keeps but never draws."""
    for owner in (text.axes and (text.axes.xaxis, text.axes.yaxis)) or ():
        low, high = sorted(owner.get_view_interval())
        for tick in [*owner.get_major_ticks(), *owner.get_minor_ticks()]:
            if text in (tick.label1, tick.label2):
                return bool(low <= tick.get_loc() <= high)
    return True


def to_svg(figure: Figure, *, name: str, title: str) -> str:
    """The figure as an SVG element for a page: the same text for the same figure.

    Args:
      figure: Drawn within `drawing`.
      name: Unique on the page; it prefixes every id.
      title: What the picture shows, for a reader who doesn't see it.
    """
    buffer = io.BytesIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("metadata", "style")):
                parent.remove(child)
    _shorten(root)
    _own_ids(root, name)
    width, height = figure.get_size_inches() * 72
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": f"0 0 {width:g} {height:g}",
            "role": "img",
            "aria-labelledby": f"{name}-title",
            "style": f"--w: {width:g}px",
        }
    )
    label = ElementTree.Element(f"{{{_SVG}}}title", {"id": f"{name}-title"})
    label.text = title
    root.insert(0, label)
    text = ElementTree.tostring(root, encoding="unicode")
    # Inside an HTML page an SVG needs no namespaces.
    text = re.sub(r"<(/?)\w+:", r"<\1", re.sub(r' xmlns:\w+="[^"]*"', "", text))
    for role, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{role}, {colour})")
    return text


def _shorten(root: ElementTree.Element) -> None:
    """Two decimals are a hundredth of a pixel; more only make the page heavier."""
    for element in root.iter():
        element.text = (element.text or "").strip() if len(element) else element.text
        element.tail = None
        for key, value in element.attrib.items():
            if key in ("d", "x", "y", "transform", "points", "width", "height"):
                value = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", value)
                element.set(key, re.sub(r"\s+", " ", value).strip())
        if element.tag.endswith("text") and "style" in element.attrib:
            # The page chooses the typeface.
            element.set("style", re.sub(r"font-family: [^;]*;?\s*", "", element.attrib["style"]))


def _own_ids(root: ElementTree.Element, name: str) -> None:
    """Drops the ids that nothing refers to and prefixes the others, so that a page has no two."""
    everything = " ".join(v for e in root.iter() for k, v in e.attrib.items() if k != "id")
    used = set(re.findall(r"#([\w.-]+)", everything))
    for element in root.iter():
        identity = element.attrib.pop("id", None)
        if identity in used:
            element.set("id", f"{name}-{identity}")
        for key, value in list(element.attrib.items()):
            if key == _HREF:
                del element.attrib[key]
                element.set("href", value.replace("#", f"#{name}-"))
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))
