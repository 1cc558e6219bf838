"""Tables, figures and the HTML page of a study, made from its records without JAX."""

from jprec.report.findings import answer
from jprec.report.html_page import page, write_report
from jprec.report.rows import Row, failed_controls, verdicts
from jprec.report.study_records import StudyRecords, read_study
from jprec.report.text_table import verdict_table

__all__ = [
    "Row",
    "StudyRecords",
    "answer",
    "failed_controls",
    "page",
    "read_study",
    "verdict_table",
    "verdicts",
    "write_report",
]
