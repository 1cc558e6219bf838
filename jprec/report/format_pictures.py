"""The picture of `jprec formats --plot`, written to a file."""

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from jprec.formats import FloatFormat
from jprec.report import canvas
from jprec.report.format_panels import stack
from jprec.report.format_ranges import layouts, windows
from jprec.report.format_values import density, number_lines

#: Values beyond this are left out of the number lines of several formats.
_LINE_END = 8.0


def formats_picture(fmts: Sequence[FloatFormat]) -> Figure:
    """The formats' bits, windows, density and number lines.

    The number lines are those of the formats of up to 8 bits, if there are any.

    Called within `canvas.drawing`.
    """
    if len(fmts) == 1:
        fmt = fmts[0]
        panels = [layouts(fmts), windows(fmts), density(fmts), number_lines(fmts)]
        if fmt.has_subnormals and fmt.max > 16 * fmt.min_normal:
            panels.append(number_lines(fmts, end=4 * fmt.min_normal))
        return stack(panels)
    small = [fmt for fmt in fmts if fmt.bits <= 8] or list(fmts)
    note = " of the formats of up to 8 bits" if len(small) < len(fmts) else ""
    lines = number_lines(small, end=_LINE_END, note=note)
    return stack([layouts(fmts), windows(fmts), density(fmts), lines])


def write_figure(path: str | os.PathLike, figure: Figure) -> None:
    """Writes the figure as the .svg, .png or .pdf that the name ends in; same figure, same bytes.

    Raises:
      OSError: when the file cannot be written.
    """
    path = Path(path)
    buffer = io.BytesIO()
    with canvas.drawing():
        match path.suffix.lower():
            case ".svg":
                FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
                buffer = io.BytesIO(_for_browsers(buffer.getvalue()))
            case ".png":
                figure.set_dpi(144)
                FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
            case ".pdf":
                FigureCanvasPdf(figure).print_pdf(buffer, metadata={"CreationDate": None})
            case ending:
                raise ValueError(f"a picture's name ends in .svg, .png or .pdf, not in {ending!r}.")
    path.write_bytes(buffer.getvalue())


def _for_browsers(svg: bytes) -> bytes:
    """The SVG in pixels instead of points, and with a typeface to fall back on."""
    svg = re.sub(rb'(width|height)="([\d.]+)pt"', rb'\1="\2"', svg)
    return svg.replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, sans-serif")


def write_formats_picture(path: str | os.PathLike, fmts: Sequence[FloatFormat]) -> None:
    """Writes the picture of the formats to a .svg, .png or .pdf file."""
    with canvas.drawing():
        figure = formats_picture(fmts)
    write_figure(path, figure)
