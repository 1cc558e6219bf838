"""An audit in words: the table for terminals, at most 120 columns wide, and the facts for JSON."""

import dataclasses
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jprec.doctor.findings import KINDS, place
from jprec.doctor.request import PRESETS

if TYPE_CHECKING:
    from jprec.doctor.audit import Audit, Operation

WIDTH = 120

_SHORT = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Operations that differ in nothing but numbers in their names, such as those of layers.

    Attributes:
      first: One of them.
      count: How many there are.
      flops: Operations of them all.
      seconds: Roofline time of them all; None where no rate with a source is known.
    """

    first: "Operation"
    count: int
    flops: int
    seconds: float | None


def grouped(operations: Sequence["Operation"]) -> tuple[Group, ...]:
    """The operations in groups, the widest (most operations) first."""
    found: dict[Any, list[Operation]] = {}
    for operation in operations:
        found.setdefault(_alike(operation), []).append(operation)
    groups = [_group(those) for those in found.values()]
    return tuple(sorted(groups, key=lambda group: -group.flops))


def _group(those: Sequence["Operation"]) -> Group:
    times = [operation.seconds for operation in those]
    return Group(
        first=those[0],
        count=len(those),
        flops=sum(operation.flops for operation in those),
        seconds=None if None in times else sum(time for time in times if time is not None),
    )


def _alike(operation: "Operation") -> Any:
    """What operations of one group share: all but the numbers in their scope."""
    return dataclasses.replace(operation, scope=scope_pattern(operation.scope))


def scope_pattern(scope: str) -> str:
    """The names with their numbers starred.

    >>> scope_pattern("jvp(Net)/block_11/dense")
    'jvp(Net)/block_*/dense'
    """
    return re.sub(r"(?<=_)\d+|(?<=/)\d+", "*", scope)


# ---- The table


def table(audit: "Audit", *, every: bool = False) -> str:
    """The audit for a terminal: totals, time, products; `every` product on lines of its own."""
    lines = [*_heading(audit), "", *_totals(audit), "", *_times(audit), ""]
    lines += _findings(audit)
    groups = grouped(audit.operations)
    if every:
        groups = tuple(_group([operation]) for operation in audit.operations)
    lines += _products(groups, audit.flops, every=every)
    lines += ["", *_reasons(audit)]
    return "\n".join(line.rstrip() for line in lines)


def _heading(audit: "Audit") -> list[str]:
    asked = audit.default_precision or "not set"
    count = len(audit.operations)
    words = (
        f"{audit.name} on {audit.target.name} ({audit.target.title}): {count} "
        f"product{'s' * (count != 1)}, {flops_in_words(audit.flops)}; nothing was run. "
        f"jax.default_matmul_precision: {asked}."
    )
    return textwrap.wrap(words, WIDTH)


def _totals(audit: "Audit") -> list[str]:
    lines = [f"{'runs as':14}{'products':>9}{'operations':>14}{'share':>8}{'roofline':>11}"]
    lines.append("-" * len(lines[0]))
    for total in audit.totals:
        lines.append(
            f"{total.runs_as:14}{total.count:>9}{flops_in_words(total.flops):>14}"
            f"{percent(total.share):>8}{time_in_words(total.seconds):>11}"
        )
    return lines


def _times(audit: "Audit") -> list[str]:
    return textwrap.wrap(roofline_in_words(audit), WIDTH)


def roofline_in_words(audit: "Audit") -> str:
    """One sentence on the time that the products take at best, and what switching would gain."""
    roof = audit.roofline
    if not audit.operations:
        return "There are no products in it."
    if roof.now is None:
        return (
            f"Time: unknown; no peak rate with a source is at hand for {audit.target.name} and "
            "these formats."
        )
    words = f"At peak rates these products take {time_in_words(roof.now)} (roofline)."
    others = [
        f"{name}: {gain(roof.now, time)}"
        for name, time in (
            ("in TF32", roof.tf32),
            ("in BF16, and stored so", roof.bf16),
            ("in FP32", roof.fp32),
        )
        if time is not None
    ]
    if others and any(operation.is_single for operation in audit.operations):
        words += f" With all FP32 operands multiplied {'; '.join(others)}."
    if roof.uncounted:
        words += f" Of {roof.uncounted} products the rate is unknown; they are not counted."
    if any(operation.may_be for operation in audit.operations):
        words += " What is undetermined counts as its slowest possibility."
    if audit.opaque:
        words += (
            f" Not counted is what these do not show: {'; '.join(map(_near, audit.opaque[:5]))}"
            f"{' ...' if len(audit.opaque) > 5 else ''}."
        )
    return words


def _near(hidden: str) -> str:
    primitive, _, source = hidden.partition(" at ")
    return f"{primitive} at {place(source)}"


def gain(now: float, then: float) -> str:
    """A time and how many times shorter or longer than now: "1.2 ms (2.3 times faster)"."""
    ratio = now / then if then else 1.0
    if 0.995 < ratio < 1.005:
        return f"{time_in_words(then)} (no change)"
    change = f"{ratio:.3g} times faster" if ratio > 1 else f"{1 / ratio:.3g} times slower"
    return f"{time_in_words(then)} ({change})"


def _findings(audit: "Audit") -> list[str]:
    """The findings, and an empty line; one line each, wrapped where it is long."""
    if not audit.findings:
        return ["Nothing to mend was found.", ""]
    count = len(audit.findings)
    lines = [f"{count} finding{'s' * (count != 1)}:"]
    for finding in audit.findings:
        lines += textwrap.wrap(
            f"{KINDS[finding.kind]}: {finding}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return [*lines, ""]


#: Heading, width and alignment of the columns before the last, which takes the rest.
_COLUMNS = (
    ("FLOP", 7, ">"),
    ("share", 7, ">"),
    ("n", 4, ">"),
    ("runs as", 12, "<"),
    ("pass", 10, "<"),
    ("product", 34, "<"),
    ("asked", 8, "<"),
)

#: Fewer columns than this are not enough for a place.
_PLACE = 20


def _products(groups: Sequence[Group], every_flop: int, *, every: bool) -> list[str]:
    lines = [*_line([heading for heading, _, _ in _COLUMNS], "where"), "-" * WIDTH]
    for group in groups:
        first = group.first
        cells = [
            flops_in_words(group.flops).removesuffix("FLOP") + "*" * (first.trips is None),
            percent(group.flops / every_flop) if every_flop else "",
            str(group.count),
            first.runs_as,
            first.phase,
            product_in_words(first),
            asked_in_words(first.precision),
        ]
        lines += _line(cells, place(first.source))
        if every and first.scope:
            lines += textwrap.wrap(
                first.scope, WIDTH, initial_indent=" " * 20, subsequent_indent=" " * 22
            )
    if any(group.first.trips is None for group in groups):
        lines.append("* in a while loop: the operations of one run of its body")
    return lines


def _line(cells: Sequence[str], where: str) -> list[str]:
    """One line of the table; the place stands below it where little room is left."""
    line = ""
    for cell, (_, width, align) in zip(cells, _COLUMNS, strict=True):
        line += f"{cell:>{width}}" if align == ">" else f"  {cell:<{width}}"
    room = WIDTH - len(line) - 2
    if room < min(_PLACE, len(where)):
        below = where if len(where) <= WIDTH - 20 else "…" + where[21 - WIDTH :]
        return [_shortened(line.rstrip()), " " * 20 + below]
    return [f"{line}  {where if len(where) <= room else '…' + where[1 - room :]}"]


def _shortened(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _reasons(audit: "Audit") -> list[str]:
    """Why products run as they do: each rule that was used, once, with its source."""
    lines = ["Why:"]
    used = {operation.rule: operation for operation in audit.operations}
    for operation in used.values():
        possible = f" ({' or '.join(operation.may_be)})" if operation.may_be else ""
        words = (
            f"{operation.runs_as}{possible}: {operation.reason}. [{operation.status}: "
            f"{operation.evidence}]"
        )
        lines += textwrap.wrap(words, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


# ---- Words


def product_in_words(operation: "Operation") -> str:
    """The operands and the result: "f32[8,32] f32[32,4]", the result's dtype where it differs."""
    left, right = (
        f"{_SHORT.get(dtype, dtype)}[{','.join(map(str, shape))}]"
        for dtype, shape in zip(operation.operand_dtypes, operation.operand_shapes, strict=True)
    )
    symbol = {"conv_general_dilated": "*", "ragged_dot_general": "r·"}.get(operation.kind, "·")
    words = f"{left} {symbol} {right}"
    if operation.result_dtype not in operation.operand_dtypes:
        words += f" → {_SHORT.get(operation.result_dtype, operation.result_dtype)}"
    return words


def asked_in_words(precision: str | None) -> str:
    """What the program asks for, short: presets by the names of `jprec.matmul`."""
    if precision is None:
        return "-"
    return PRESETS.get(precision, precision.lower().replace(", ", "/"))


def flops_in_words(flops: float) -> str:
    """Operations with a unit.

    >>> flops_in_words(16384), flops_in_words(2.5e12), flops_in_words(12)
    ('16.4 kFLOP', '2.5 TFLOP', '12 FLOP')
    """
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}FLOP"
    return f"{flops:.3g} FLOP"


def time_in_words(seconds: float | None) -> str:
    """A time with a unit; "unknown" for None.

    >>> time_in_words(0.0123), time_in_words(3e-7), time_in_words(None)
    ('12.3 ms', '300 ns', 'unknown')
    """
    if seconds is None:
        return "unknown"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def percent(share: float) -> str:
    """A share in percent; what is not zero never reads 0 %."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.3g} %"


# ---- Facts


def facts(audit: "Audit") -> dict[str, Any]:
    """Everything that an audit holds, ready for JSON and for the page."""
    return {
        "name": audit.name,
        "device": audit.target.name,
        "title": audit.target.title,
        "default_precision": audit.default_precision,
        "flops": audit.flops,
        "findings": [dataclasses.asdict(finding) for finding in audit.findings],
        "totals": [dataclasses.asdict(total) for total in audit.totals],
        "roofline": dataclasses.asdict(audit.roofline),
        "operations": [dataclasses.asdict(operation) for operation in audit.operations],
    }


def page_facts(audit: "Audit") -> dict[str, Any]:
    """What the page shows, in words, ready for `report.audit_page`."""
    return {
        "name": audit.name,
        "device": audit.target.name,
        "title": audit.target.title,
        "setting": audit.default_precision or "not set",
        "answer": answer(audit),
        "time": roofline_in_words(audit),
        "rate_sources": audit.roofline.sources,
        "totals": [
            {
                "runs_as": total.runs_as,
                "count": total.count,
                "flops": flops_in_words(total.flops),
                "share": percent(total.share),
                "width": f"{100 * total.share:.2f}",
                "seconds": time_in_words(total.seconds),
            }
            for total in audit.totals
        ],
        "findings": [
            {
                "kind": KINDS[finding.kind],
                "where": place(finding.source) if finding.source else "",
                "message": finding.message,
                "remedy": finding.remedy,
                "count": finding.count,
            }
            for finding in audit.findings
        ],
        "groups": [_group_in_words(group, audit.flops) for group in grouped(audit.operations)],
        "rules": [
            {
                "runs_as": operation.runs_as,
                "may_be": " or ".join(operation.may_be),
                "reason": operation.reason,
                "status": operation.status,
                "source": operation.evidence,
            }
            for operation in {o.rule: o for o in audit.operations}.values()
        ],
        "in_while": any(operation.trips is None for operation in audit.operations),
    }


def answer(audit: "Audit") -> str:
    """The result in one or two sentences."""
    shares = ", ".join(f"{percent(total.share)} as {total.runs_as}" for total in audit.totals)
    count = len(audit.findings)
    found = f"{count} finding{'s' * (count != 1)} to look at" if count else "nothing to mend found"
    return (
        f"Of {flops_in_words(audit.flops)} in {len(audit.operations)} products run on "
        f"{audit.target.name}: {shares}; {found}."
    )


def _group_in_words(group: Group, every_flop: int) -> dict[str, Any]:
    first = group.first
    return {
        "flops": flops_in_words(group.flops) + ("*" if first.trips is None else ""),
        "share": percent(group.flops / every_flop) if every_flop else "",
        "count": group.count,
        "trips": first.trips,
        "runs_as": first.runs_as,
        "may_be": " or ".join(first.may_be),
        "phase": first.phase,
        "product": product_in_words(first),
        "asked": asked_in_words(first.precision),
        "where": place(first.source),
        "scope": scope_pattern(first.scope),
        "seconds": time_in_words(group.seconds),
        "reason": first.reason,
    }
