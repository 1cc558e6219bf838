"""The findings in sentences, made from the verdicts alone."""

from collections.abc import Iterable, Sequence

from jprec.report.rows import Row, failed_controls
from jprec.report.study_records import StudyRecords
from jprec.report.wording import joined, p_equals


def answer(records: StudyRecords, rows: Sequence[Row]) -> str:
    """The finding in one paragraph, made from the verdicts alone."""
    sentences = [
        _unfinished(records),
        _broken_controls(rows),
        *_claims([row for row in rows if row.role == "claim" and row.met is not None]),
        _controls(rows),
        _twins(rows),
        _without_expectation(rows),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def where_it_ran(rows: Iterable[Row]) -> str:
    """Whether the results were emulated, in a sentence.

    Arms differ only if some were emulated and some not; then each row says so itself.
    """
    places = sorted({row.ran for row in rows if row.ran})
    if not places:
        return "Nothing has run yet."
    if len(places) == 1:
        return f"Every result here: {places[0]}."
    return f"Results come from different places ({joined(places)}); each one says from which."


def _places(rows: Sequence[Row]) -> str:
    """The arms with their settings: "tf32 and mixed_bf16 in hot and cold; mixed_fp16 in hot"."""
    settings: dict[str, list[str]] = {}
    for row in rows:
        settings.setdefault(row.arm, []).append(row.setting)
    arms: dict[tuple[str, ...], list[str]] = {}
    for arm, names in settings.items():
        arms.setdefault(tuple(names), []).append(arm)
    parts = [f"{joined(group)} in {joined(names)}" for names, group in arms.items()]
    # With an "and" inside, an "and" between could be misread.
    return "; ".join(parts) if any(" and " in part for part in parts) else joined(parts)


def _unfinished(records: StudyRecords) -> str:
    if not records.missing:
        return ""
    total = len(records.missing) + len(records.cells)
    return f"The study is not complete: {len(records.missing)} of {total} cells have no result yet."


def _broken_controls(rows: Sequence[Row]) -> str:
    failed = [row for row in failed_controls(rows) if row.finished]
    if not failed:
        return ""
    found = joined([f"{row.arm} in {row.setting} is {row.words}" for row in failed])
    return (
        f"This study shows nothing, because a control did not do what it must: {found}. What "
        "follows is only a listing."
    )


def _claims(claims: Sequence[Row]) -> list[str]:
    """What was claimed and holds, then each claim that doesn't."""
    if not claims:
        return []
    met = [row for row in claims if row.met]
    equal = [row for row in met if row.expected == "equivalent"]
    other = [row for row in met if row.expected != "equivalent"]
    count = "All" if len(met) == len(claims) > 1 else f"{len(met)} of"
    sentences = [f"{count} {len(claims)} claims hold."]
    if equal:
        baselines = joined(list(dict.fromkeys(row.against for row in equal)))
        everywhere = not {row.arm for row in equal} & {row.arm for row in claims if not row.met}
        arms = list(dict.fromkeys(row.arm for row in equal))
        where = (
            "in every setting where it was tried" if len(arms) == 1 else "wherever they were tried"
        )
        subject = f"{joined(arms)}, {where}," if everywhere else _places(equal)
        verb = "ends" if len(equal) == 1 else "end"
        sentences.append(
            f"To within the margin δ, {subject} {verb} at the test loss of {baselines}."
        )
    if other:
        sentences.append(f"As claimed, {_places(other)} come out {other[0].expected}.")
    shortfalls: dict[str, list[Row]] = {}
    for row in claims:
        if not row.met:
            words = f"Claimed {row.expected}, found {_shortfall(row)}"
            shortfalls.setdefault(words, []).append(row)
    return [*sentences, *(f"{words}: {_places(group)}." for words, group in shortfalls.items())]


def _shortfall(row: Row) -> str:
    """What was found instead of the claim; the right verdict may lack the corrected p value."""
    right = row.verdict == row.expected or (row.verdict, row.expected) == (
        "identical",
        "equivalent",
    )
    if right and row.p_holm is not None and row.direction != "better":
        return f"{row.words}, but not after Holm's correction ({p_equals(row.p_holm)})"
    return row.words


def _controls(rows: Sequence[Row]) -> str:
    failed = failed_controls(rows)
    passed = [row for row in rows if row.role == "control" and row not in failed]
    if not passed:
        return ""
    several = len(passed) > 1
    which = "The other control" if failed else "The control"
    ends = f"{which}{'s end' if several else ' ends'} worse by more than δ"
    must = f"as {'they' if several else 'it'} must ({_places(passed)})"
    if failed:
        return f"{ends}, {must}."
    return f"{ends}, {must}, so the comparison can see a difference where there is one."


def _twins(rows: Sequence[Row]) -> str:
    twins = [row for row in rows if row.role == "twin" and row.verdict == "identical"]
    if not twins:
        return ""
    verb = "equals" if len({row.arm for row in twins}) == 1 else "equal"
    originals = joined(list(dict.fromkeys(row.against for row in twins)))
    return f"{_places(twins)} {verb} {originals} bit for bit."


def _without_expectation(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row.role == "report" and row.verdict]
    if not found:
        return ""
    by_words: dict[str, list[Row]] = {}
    for row in found:
        by_words.setdefault(row.words, []).append(row)
    parts = [
        f"{_places(group)} {'is' if len(group) == 1 else 'are'} {words}"
        for words, group in by_words.items()
    ]
    return f"Without a claim: {'; '.join(parts)}."
