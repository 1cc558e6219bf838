"""The verdict table for terminals, at most 100 columns wide."""

import textwrap
from collections.abc import Sequence

from jprec.report.rows import Row, failed_controls
from jprec.report.wording import MINUS, interval_in_margins, number, p_equals, p_value

#: Heading, width, alignment; with two blanks between columns 100 characters in all.
_COLUMNS = (
    ("arm", 23, "<"),
    ("n", 3, ">"),
    ("difference", 10, ">"),
    ("90 % interval / δ", 19, ">"),
    ("verdict", 17, "<"),
    ("Holm p", 7, ">"),
    ("expected", 9, "<"),
)
WIDTH = sum(width for _, width, _ in _COLUMNS) + 2 * (len(_COLUMNS) - 1)

_EXPECTED = {"equivalent": "equiv.", "different": "worse", "identical": "identical", None: ""}


def verdict_table(rows: Sequence[Row]) -> str:
    """The verdicts as plain text, one block a setting; no line is longer than 100 characters."""
    lines: list[str] = []
    for setting in dict.fromkeys(row.setting for row in rows):
        block = [row for row in rows if row.setting == setting]
        same_place = len({row.ran for row in block if row.ran}) < 2
        lines += [*_heading(block, same_place=same_place)]
        lines += [line for row in block for line in _lines(row, same_place=same_place)]
        lines.append("")
    failed = failed_controls(rows)
    if failed:
        lines.append("A control did not do what it must, so this study shows nothing:")
        lines += [f"  {row.setting}/{row.arm}: {row.words}" for row in failed]
    elif any(row.role == "control" for row in rows):
        lines.append("Every control did what it must.")
    else:
        lines.append("No arm of this study was expected to fail, so nothing shows that one could.")
    return "\n".join(line.rstrip().replace(MINUS, "-") for line in lines) + "\n"


def _heading(block: Sequence[Row], *, same_place: bool) -> list[str]:
    first = block[0]
    ran = next((f"; {row.ran}" for row in block if row.ran), "") if same_place else ""
    compared = f"test loss minus that of {first.baseline}"
    title = f"{first.setting}: {compared}; δ = {number(first.margin)}{ran}"
    return [
        *textwrap.wrap(title, WIDTH),
        _line([heading for heading, _, _ in _COLUMNS]),
        "-" * WIDTH,
    ]


def _lines(row: Row, *, same_place: bool) -> list[str]:
    """The row's line, and below it what only some rows have to say."""
    lines = [] if len(row.arm) <= _COLUMNS[0][1] else [row.arm]
    cells = [
        "" if lines else row.arm,
        str(row.n) if row.finished else "",
        number(row.difference, signed=True) if row.verdict else "",
        interval_in_margins(row) if row.verdict else "",
        row.words,
        p_value(row.p_holm) if row.p_holm is not None else "",
        _EXPECTED[row.expected],
    ]
    lines.append(_line(cells))
    if row.met is False:
        lines.append(f"    NOT MET: expected {row.expected}, found {row.words}")
    if row.same_weights is False and row.role == "twin":
        lines.append(f"    the weights differ from those of {row.against}")
    if row.diverged or row.baseline_diverged:
        counts = f"    {row.diverged} of {row.n} runs diverged"
        if row.verdict:
            counts += f", {row.baseline_diverged} of {row.against} ({p_equals(row.p_divergence)})"
        lines.append(counts)
    if row.ran and not same_place:
        lines.append(f"    {row.ran}")
    return lines


def _line(cells: Sequence[str]) -> str:
    padded = (f"{c:{align}{width}}" for c, (_, width, align) in zip(cells, _COLUMNS, strict=True))
    return "  ".join(padded)
