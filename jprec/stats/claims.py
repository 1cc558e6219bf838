"""Several claims at once: Holm's correction, and whether each expectation was met."""

import dataclasses
import math
from collections.abc import Sequence

from jprec.stats import verdict as verdicts
from jprec.stats.verdict import Verdict, judge

EXPECTATIONS = (None, verdicts.IDENTICAL, verdicts.EQUIVALENT, verdicts.DIFFERENT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """An arm's paired differences and what the study said about them beforehand.

    Attributes:
      name: For messages, e.g. "hot/tf32".
      differences: Paired differences, arm minus baseline.
      margin: δ.
      expected: "equivalent", "different" (which means worse), "identical", or None.
      claim: Whether the study's answer rests on it; only claims enter Holm's correction.
      diverged: Runs of the arm that diverged.
      baseline_diverged: Runs of the baseline that diverged.
    """

    name: str
    differences: tuple[float, ...]
    margin: float
    expected: str | None = None
    claim: bool = False
    diverged: int = 0
    baseline_diverged: int = 0

    def __post_init__(self) -> None:
        if self.expected not in EXPECTATIONS:
            raise ValueError(
                f"{self.name}: expected={self.expected!r}; it is one of {EXPECTATIONS}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """A comparison's verdict, seen with all claims of the study.

    Attributes:
      name: The comparison's.
      verdict: By the interval rule alone; the correction does not change its words.
      p_holm: The claim's p value adjusted by Holm; None for what is no claim.
      met: Whether the expectation was met; None if there was none.
    """

    name: str
    verdict: Verdict
    p_holm: float | None
    met: bool | None


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p values adjusted by Holm's step-down method, in the order given.

    >>> [round(p, 6) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    for p in p_values:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p value {p} does not lie in [0, 1].")
    adjusted = [math.nan] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return tuple(adjusted)


def judge_all(
    comparisons: Sequence[Comparison], *, alpha: float = 0.05, unfinished: int = 0
) -> tuple[Judgement, ...]:
    """The judgements of all comparisons of one study, its claims corrected by Holm.

    The family is every comparison with `claim` that expects *equivalent* (p value of the two
    one-sided tests) or *different* (p value for a difference beyond the margin or, if smaller, of
    the exact test on divergences). The correction enters only `met`: a claim is met if its verdict
    is the expected one (*identical* is also equivalent) *and* its adjusted p value is below alpha.

    Controls stay outside the family: all of them must fail for the study to count, and a demand
    that all of several tests reject needs no correction. *Identical* is no statistical claim.

    Args:
      comparisons: Finished comparisons.
      alpha: Level of each one-sided test and of the family of claims.
      unfinished: Claims of the study that have no result yet. They enter with p = 1, so that a
        study is not judged more leniently before it is complete.
    """
    judged = [
        judge(
            c.differences,
            c.margin,
            alpha=alpha,
            diverged=c.diverged,
            baseline_diverged=c.baseline_diverged,
        )
        for c in comparisons
    ]
    tested = [
        i
        for i, c in enumerate(comparisons)
        if c.claim and c.expected in (verdicts.EQUIVALENT, verdicts.DIFFERENT)
    ]
    p_values = [_claim_p(comparisons[i].expected, judged[i]) for i in tested]
    adjusted = dict(zip(tested, holm([*p_values, *[1.0] * unfinished]), strict=False))
    return tuple(
        Judgement(
            name=c.name,
            verdict=v,
            p_holm=adjusted.get(i),
            met=_met(c.expected, v, adjusted.get(i), alpha),
        )
        for i, (c, v) in enumerate(zip(comparisons, judged, strict=True))
    )


def _claim_p(expected: str | None, verdict: Verdict) -> float:
    """The p value that speaks for the expectation."""
    if expected == verdicts.EQUIVALENT:
        return verdict.p_equivalence
    return min(verdict.p_difference, verdict.p_divergence)


def _met(expected: str | None, verdict: Verdict, p_holm: float | None, alpha: float) -> bool | None:
    """Whether the verdict is the expected one, and confirmed where it is a claim."""
    if expected is None:
        return None
    if p_holm is not None and not p_holm < alpha:
        return False
    if expected == verdicts.EQUIVALENT:
        return verdict.verdict in (verdicts.IDENTICAL, verdicts.EQUIVALENT)
    if expected == verdicts.DIFFERENT:
        return verdict.verdict == verdicts.DIFFERENT and verdict.direction == verdicts.WORSE
    return verdict.verdict == expected
