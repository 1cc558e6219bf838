"""The page: one HTML file with everything in it, made from the records alone."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from jprec import records as files
from jprec.report import findings, wording
from jprec.report.curves import curves
from jprec.report.exponents import TENSORS, exponent_histograms
from jprec.report.intervals import intervals
from jprec.report.picture import Picture
from jprec.report.rows import Row, failed_controls, verdicts
from jprec.report.study_records import Cell, Histogram, Setting, StudyRecords, read_study
from jprec.report.traces import (
    loses_updates,
    loss_scale_trace,
    static_scale,
    update_histogram,
)

#: Name of the page in the study's folder.
PAGE = "report.html"

_TEMPLATES = Path(__file__).parent / "templates"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exponents:
    """The exponent histograms of one cell and the shares that FP16 would flush."""

    cell: Cell
    pictures: tuple[Picture, ...]
    last: tuple[Histogram, ...]
    is_baseline: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class SettingPart:
    """What the page shows of one setting."""

    setting: Setting
    rows: tuple[Row, ...]
    intervals: Picture | None
    curves: tuple[tuple[Cell, Picture], ...]
    exponents: tuple[Exponents, ...]
    scales: tuple[tuple[Cell, Picture], ...]
    static_scales: tuple[tuple[Cell, int], ...]
    updates: tuple[tuple[Cell, Picture], ...]
    counted: tuple[Cell, ...]


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into the study's folder and returns its path.

    The same records give the same bytes.
    """
    path = Path(folder) / PAGE
    files.write_text(path, page(read_study(folder)))
    return path


def page(records: StudyRecords) -> str:
    """The page as HTML, with nothing that must be fetched."""
    rows = verdicts(records)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=wording.number,
        signed=lambda value: wording.number(value, signed=True),
        p_equals=wording.p_equals,
        p_value=wording.p_value,
        percent=wording.percent,
        svg=lambda picture: Markup(picture.svg()),
        seeds=wording.seed_ranges,
        interval=wording.interval_in_margins,
        scale=_scale_in_words,
        power=wording.power_of_two,
    )
    parts = setting_parts(records, rows)
    return environment.get_template("report.html.j2").render(
        records=records,
        rows=rows,
        parts=parts,
        answer=findings.answer(records, rows),
        failed=failed_controls([row for row in rows if row.finished]),
        where=findings.where_it_ran(rows),
        tensors=TENSORS,
        css=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
    )


def setting_parts(records: StudyRecords, rows: Sequence[Row]) -> tuple[SettingPart, ...]:
    """What the page shows, setting by setting, its pictures not yet drawn."""
    return tuple(_part(records, setting, rows) for setting in records.settings)


def pictures(parts: Sequence[SettingPart]) -> tuple[Picture, ...]:
    """All pictures of the page."""
    found: list[Picture] = []
    for part in parts:
        found += [part.intervals] if part.intervals else []
        found += [p for e in part.exponents for p in e.pictures]
        found += [picture for _, picture in (*part.curves, *part.scales, *part.updates)]
    return tuple(found)


def _part(records: StudyRecords, setting: Setting, rows: Sequence[Row]) -> SettingPart:
    cells = [cell for cell in records.cells if cell.setting == setting.name]
    traces = [(cell, loss_scale_trace(cell)) for cell in cells]
    static = [(cell, static_scale(cell.loss_scale)) for cell in cells if cell.loss_scale]
    counted = tuple(cell for cell in cells if cell.updates)
    # Arms that store FP32 all look alike: the baseline speaks for those that lose nothing.
    shown = [c for c in counted if c.arm == setting.baseline or loses_updates(c)]
    updates = [(cell, update_histogram(cell)) for cell in shown]
    return SettingPart(
        setting=setting,
        rows=tuple(row for row in rows if row.setting == setting.name),
        intervals=intervals(setting.name, rows),
        curves=curves(records, setting, rows),
        exponents=tuple(_exponents(setting, cell) for cell in cells if cell.histograms),
        scales=tuple((cell, picture) for cell, picture in traces if picture),
        static_scales=tuple((cell, log2) for cell, log2 in static if log2 is not None),
        updates=tuple((cell, picture) for cell, picture in updates if picture),
        counted=counted,
    )


def _exponents(setting: Setting, cell: Cell) -> Exponents:
    last: dict[str, Any] = {}
    for histogram in sorted(cell.histograms, key=lambda h: h.step):
        last[histogram.tensor] = histogram
    return Exponents(
        cell=cell,
        pictures=exponent_histograms(cell),
        last=tuple(last[tensor] for tensor in TENSORS if tensor in last),
        is_baseline=cell.arm == setting.baseline,
    )


def _scale_in_words(scale: int) -> str:
    """A loss scale as people write it: "128", but "2¹⁵"."""
    return str(scale) if scale < 1024 else wording.power_of_two(round(math.log2(scale)))
