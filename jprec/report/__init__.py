"""Tables, figures and HTML pages of studies and audits, and pictures of formats, without JAX."""

from jprec.report.audit_page import audit_page
from jprec.report.canvas import drawing
from jprec.report.findings import answer
from jprec.report.format_panels import stack
from jprec.report.format_pictures import formats_picture, write_figure, write_formats_picture
from jprec.report.format_ranges import layouts, windows
from jprec.report.format_values import density, number_lines
from jprec.report.generated_parts import generated_parts, markdown_table, renewed
from jprec.report.html_page import page, write_report
from jprec.report.lines_picture import write_lines_picture
from jprec.report.plot import Curve, Mark, Panel, plot, write_plot
from jprec.report.rows import Row, failed_controls, verdicts
from jprec.report.study_records import StudyRecords, read_study
from jprec.report.text_table import verdict_table

__all__ = [
    "Curve",
    "Mark",
    "Panel",
    "Row",
    "StudyRecords",
    "answer",
    "audit_page",
    "density",
    "drawing",
    "failed_controls",
    "formats_picture",
    "generated_parts",
    "layouts",
    "markdown_table",
    "number_lines",
    "page",
    "plot",
    "read_study",
    "renewed",
    "stack",
    "verdict_table",
    "verdicts",
    "windows",
    "write_figure",
    "write_formats_picture",
    "write_lines_picture",
    "write_plot",
    "write_report",
]
