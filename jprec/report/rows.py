"""One row an arm: what was expected of it, and what the numbers say."""

import dataclasses
import math
from collections.abc import Sequence

from jprec import stats
from jprec.report.study_records import Arm, Cell, Setting, StudyRecords


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The judged result of one arm in one setting.

    The fields from `difference` on are None for a baseline and for a cell without a result.

    Attributes:
      setting: The setting's name.
      arm: The arm's name.
      what: One sentence on the arm.
      role: "baseline", "claim", "control", "report" or "twin".
      expected: "equivalent", "different", "identical" or None.
      baseline: The setting's baseline.
      against: The arm it is compared with: the baseline, or for a twin its original.
      finished: Whether there is a result.
      ran: Where it comes from, e.g. "emulated on cpu"; None without a result.
      margin: The setting's δ.
      n: Pairs; for a baseline its seeds.
      diverged: Runs that diverged.
      test_loss: Mean final test loss; NaN if one of them is not finite.
      difference: Mean paired difference of the final test loss, arm minus `against`.
      low: Lower end of its 90 % interval.
      high: Upper end.
      verdict: "identical", "equivalent", "different" or "undecided".
      direction: "worse" or "better" if different.
      p_equivalence: Of the two one-sided tests.
      p_difference: Of a difference beyond δ.
      p_holm: The claim's p value after Holm's correction; None for what is no claim.
      baseline_diverged: Runs of `against` in the same pairs that diverged.
      p_divergence: Fisher's exact test on the two counts.
      same_weights: Whether the digests of all final weights equal those of `against`.
      met: Whether the expectation was met; None if there was none.
    """

    setting: str
    arm: str
    what: str
    role: str
    expected: str | None
    baseline: str
    against: str
    finished: bool
    ran: str | None
    margin: float
    n: int
    diverged: int | None = None
    test_loss: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str | None = None
    direction: str | None = None
    p_equivalence: float | None = None
    p_difference: float | None = None
    p_holm: float | None = None
    baseline_diverged: int | None = None
    p_divergence: float | None = None
    same_weights: bool | None = None
    met: bool | None = None

    @property
    def words(self) -> str:
        """The verdict in words, with its direction; "baseline" or "no result" where none is due."""
        if not self.finished:
            return "no result"
        if self.verdict is None:
            return "baseline" if self.role == "baseline" else "no baseline yet"
        return f"{self.verdict} ({self.direction})" if self.direction else self.verdict


def verdicts(records: StudyRecords) -> tuple[Row, ...]:
    """One row for each setting and arm, judged by the rules of `jprec.stats`.

    Arms are paired with the baseline seed by seed; an arm may have run a part of the baseline's
    seeds. Claims of all settings form one family for Holm's correction, unfinished ones included. A
    twin is *identical* only if all its losses and the digests of all its weights equal those of its
    original.
    """
    pairs = [
        (setting, arm, records.cell(setting.name, arm.name), _original(records, setting, arm))
        for setting in records.settings
        for arm in setting.arms
    ]
    judged, unfinished, comparisons = [], 0, []
    for setting, arm, cell, original in pairs:
        if arm.role == "baseline":
            continue
        if cell is None or original is None:
            unfinished += arm.role == "claim"
            continue
        judged.append((setting.name, arm.name))
        comparisons.append(_comparison(setting, arm, cell, original))
    judgements = dict(zip(judged, stats.judge_all(comparisons, unfinished=unfinished), strict=True))
    return tuple(
        _row(setting, arm, cell, original, judgements.get((setting.name, arm.name)))
        for setting, arm, cell, original in pairs
    )


def failed_controls(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The controls that are not *different* on the bad side, and the twins that are not identical.

    While there is one, the study shows nothing; an unfinished control is one as well.
    """
    return tuple(
        row
        for row in rows
        if (row.role == "control" and (row.verdict, row.direction) != ("different", "worse"))
        or (row.role == "twin" and row.verdict != "identical")
    )


def _against(setting: Setting, arm: Arm) -> str:
    return arm.twin_of if arm.role == "twin" and arm.twin_of else setting.baseline


def _original(records: StudyRecords, setting: Setting, arm: Arm) -> Cell | None:
    """The cell that the arm is compared with."""
    return records.cell(setting.name, _against(setting, arm))


def _paired(cell: Cell, original: Cell) -> tuple[list[float], list[str]]:
    """The original's losses and weight digests for the cell's seeds, in their order."""
    position = {seed: i for i, seed in enumerate(original.seeds)}
    alone = [seed for seed in cell.seeds if seed not in position]
    if alone:
        raise ValueError(
            f"{cell.setting}/{cell.arm} has seeds {alone} that {original.arm} lacks; pairs need "
            "the same seeds. Delete the older of the two results and run the study again."
        )
    at = [position[seed] for seed in cell.seeds]
    return [original.test_loss[i] for i in at], [original.weights_sha256[i] for i in at]


def _comparison(setting: Setting, arm: Arm, cell: Cell, original: Cell) -> stats.Comparison:
    losses, _ = _paired(cell, original)
    return stats.Comparison(
        name=f"{setting.name}/{arm.name}",
        differences=tuple(stats.paired_differences(cell.test_loss, losses).tolist()),
        margin=setting.margin,
        expected=arm.expected,
        claim=arm.role == "claim",
        diverged=stats.count_diverged(cell.test_loss, setting.guess),
        baseline_diverged=stats.count_diverged(losses, setting.guess),
    )


def _row(
    setting: Setting,
    arm: Arm,
    cell: Cell | None,
    original: Cell | None,
    judgement: stats.Judgement | None,
) -> Row:
    row = Row(
        setting=setting.name,
        arm=arm.name,
        what=arm.what,
        role=arm.role,
        expected=arm.expected,
        baseline=setting.baseline,
        against=_against(setting, arm),
        finished=cell is not None,
        ran=cell.ran if cell else None,
        margin=setting.margin,
        n=len(cell.seeds) if cell else 0,
        diverged=stats.count_diverged(cell.test_loss, setting.guess) if cell else None,
        test_loss=_mean(cell.test_loss) if cell else None,
    )
    if judgement is None or cell is None or original is None:
        return row
    verdict = judgement.verdict
    row = dataclasses.replace(
        row,
        difference=verdict.mean,
        low=verdict.low,
        high=verdict.high,
        verdict=verdict.verdict,
        direction=verdict.direction,
        p_equivalence=verdict.p_equivalence,
        p_difference=verdict.p_difference,
        p_holm=judgement.p_holm,
        diverged=verdict.diverged,
        baseline_diverged=verdict.baseline_diverged,
        p_divergence=verdict.p_divergence,
        same_weights=list(cell.weights_sha256) == _paired(cell, original)[1],
        met=judgement.met,
    )
    return _judged_as_twin(row, cell, original) if arm.role == "twin" else row


def _judged_as_twin(row: Row, cell: Cell, original: Cell) -> Row:
    """The row, *identical* only if losses (NaN equals NaN) and digests of the weights agree."""
    losses, _ = _paired(cell, original)
    same_losses = all(
        a == b or (math.isnan(a) and math.isnan(b))
        for a, b in zip(cell.test_loss, losses, strict=True)
    )
    if same_losses and row.same_weights:
        return dataclasses.replace(row, verdict="identical", direction=None, met=True)
    # Equal losses of unequal weights: every difference is zero, and so within the margin.
    verdict = "equivalent" if row.verdict == "identical" else row.verdict
    return dataclasses.replace(row, verdict=verdict, met=False)


def _mean(losses: Sequence[float]) -> float:
    """The mean, NaN if a loss is not finite."""
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.nan
