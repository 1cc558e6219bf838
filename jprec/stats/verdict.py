"""The verdict on one arm: identical, equivalent, different or undecided."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from jprec.stats.divergence import fisher_exact

IDENTICAL = "identical"
EQUIVALENT = "equivalent"
DIFFERENT = "different"
UNDECIDED = "undecided"

WORSE = "worse"
BETTER = "better"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the paired differences of one arm allow us to say.

    Attributes:
      verdict: "identical", "equivalent", "different" or "undecided".
      direction: "worse" or "better" where the verdict is "different", else None.
      n: Pairs, diverged ones included.
      mean: Mean paired difference, arm minus baseline; NaN if a difference is not finite.
      sd: Standard deviation of the differences; NaN for one pair or as above.
      low: Lower end of the interval of level 1 - 2 alpha; -inf for one pair.
      high: Its upper end.
      margin: δ.
      alpha: Level of each one-sided test.
      p_equivalence: The larger p value of the two one-sided tests; a small one says that the true
        difference lies within the margin.
      p_difference: The smaller p value of the two tests for a difference beyond the margin.
      diverged: Runs of the arm that diverged.
      baseline_diverged: Runs of the baseline that diverged.
      p_divergence: Fisher's exact test on these two counts, two-sided.
    """

    verdict: str
    direction: str | None
    n: int
    mean: float
    sd: float
    low: float
    high: float
    margin: float
    alpha: float
    p_equivalence: float
    p_difference: float
    diverged: int
    baseline_diverged: int
    p_divergence: float

    def __str__(self) -> str:
        return f"{self.verdict} ({self.direction})" if self.direction else self.verdict


def paired_differences(arm: Sequence[float], baseline: Sequence[float]) -> np.ndarray:
    """The differences arm - baseline, pair by pair, with a sign also where a loss is not finite.

    Returns:
      [n] float64: +inf where only the arm's loss is not finite, -inf where only the baseline's is
      not, NaN where neither is.

    >>> paired_differences([1.0, math.nan, 1.0, math.inf], [0.5, 0.5, math.inf, math.inf]).tolist()
    [0.5, inf, -inf, nan]
    """
    a, b = np.asarray(arm, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(
            f"losses of shapes {a.shape} and {b.shape}; pairs need one loss each per shared seed."
        )
    finite_a, finite_b = np.isfinite(a), np.isfinite(b)
    difference = np.full(a.shape, math.nan)
    both = finite_a & finite_b
    difference[both] = a[both] - b[both]
    difference[finite_b & ~finite_a] = math.inf
    difference[finite_a & ~finite_b] = -math.inf
    return difference


def judge(
    differences: Sequence[float] | np.ndarray,
    margin: float,
    *,
    alpha: float = 0.05,
    diverged: int = 0,
    baseline_diverged: int = 0,
) -> Verdict:
    """The verdict on the paired differences of a loss, arm minus baseline.

    1. All differences exactly zero: *identical*.
    2. Interval of level 1 - 2 alpha (paired t) inside (-margin, margin): *equivalent*.
    3. Interval wholly outside: *different*; *worse* if the difference is positive.
    4. Otherwise *undecided*.

    Diverged runs stay in the denominator:

    - More of them than the baseline has forbid *identical* and *equivalent*.
    - A pair with a loss that is not finite has no t interval, and none is computed from the other
      pairs. A sign test takes the place of rule 3: how many of all n pairs lie beyond the margin,
      where +inf is beyond it on the bad side, -inf on the good side, and NaN on neither.
    - If Fisher's exact test finds that arm and baseline diverge unequally often (p < alpha), the
      arm is *different* in that direction, unless rule 3 says the opposite; then *undecided*. With
      diverged runs the level of *different* is therefore up to twice alpha.

    Args:
      differences: [n] paired differences, e.g. from `paired_differences`.
      margin: δ > 0, fixed before the run.
      alpha: Level of each one-sided test; 0.05 gives a 90 % interval.
      diverged: Runs of the arm that diverged (see `count_diverged`).
      baseline_diverged: The same for the baseline's runs in these pairs.

    >>> str(judge([0.1, -0.1, 0.2, 0.0], margin=0.5))
    'equivalent'
    >>> str(judge([2.0, 2.1, 2.2, 1.9], margin=0.5))
    'different (worse)'
    """
    d = _checked(differences, margin, alpha)
    n = d.size
    # A difference of +inf is a diverged run, whether or not the caller counted it.
    diverged = max(diverged, int(np.isposinf(d).sum()))
    baseline_diverged = max(baseline_diverged, int(np.isneginf(d).sum()))
    p_divergence = fisher_exact(diverged, baseline_diverged, of=n)

    if np.isfinite(d).all():
        mean, sd, low, high = _interval(d, alpha)
        p_equivalence, p_worse, p_better = _t_tests(mean, sd, n, margin)
    else:
        mean = sd = low = high = math.nan
        p_equivalence, p_worse, p_better = 1.0, *_sign_tests(d, margin)

    more_diverge = diverged > baseline_diverged
    directions = {
        WORSE: p_worse < alpha or (more_diverge and p_divergence < alpha),
        BETTER: p_better < alpha or (not more_diverge and p_divergence < alpha),
    }
    found = [name for name, holds in directions.items() if holds]
    if not more_diverge and not d.any():  # NaN counts as true
        verdict = IDENTICAL
    elif len(found) == 1:
        verdict = DIFFERENT
    elif not more_diverge and not found and -margin < low and high < margin:
        verdict = EQUIVALENT
    else:
        verdict = UNDECIDED
    return Verdict(
        verdict=verdict,
        direction=found[0] if verdict == DIFFERENT else None,
        n=n,
        mean=mean,
        sd=sd,
        low=low,
        high=high,
        margin=float(margin),
        alpha=alpha,
        p_equivalence=p_equivalence,
        p_difference=min(p_worse, p_better),
        diverged=diverged,
        baseline_diverged=baseline_diverged,
        p_divergence=p_divergence,
    )


def _checked(differences: Sequence[float] | np.ndarray, margin: float, alpha: float) -> np.ndarray:
    """The differences as [n] float64, after all arguments were found sound."""
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or d.size < 1:
        raise ValueError(
            f"differences of shape {d.shape}; a verdict needs one number for each pair."
        )
    if not (math.isfinite(margin) and margin > 0.0):
        raise ValueError(
            f"margin={margin}, but a margin is finite and above 0. Take it from pilot seeds with "
            "margin_from_pilot."
        )
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha={alpha}, but the level of a one-sided test lies in (0, 0.5).")
    return d


def _interval(d: np.ndarray, alpha: float) -> tuple[float, float, float, float]:
    """Mean, standard deviation and the ends of the t interval of level 1 - 2 alpha."""
    n = d.size
    mean = float(d.mean())
    if n == 1:
        return mean, math.nan, -math.inf, math.inf
    with np.errstate(over="ignore"):  # squares of losses above 1e154; then sd is inf, as it should
        sd = float(d.std(ddof=1))
    half = float(special.stdtrit(n - 1, 1.0 - alpha)) * sd / math.sqrt(n)
    return mean, sd, mean - half, mean + half


def _t_tests(mean: float, sd: float, n: int, margin: float) -> tuple[float, float, float]:
    """P values of the t tests for |difference| < margin, difference > margin, and < -margin."""
    if n == 1:
        return 1.0, 1.0, 1.0
    if sd == 0.0:  # no spread: the mean is known, and so is on which side of a margin it lies
        return float(not abs(mean) < margin), float(not mean > margin), float(not mean < -margin)
    error = sd / math.sqrt(n)
    above = float(special.stdtr(n - 1, (mean + margin) / error))  # P(T <= t) at the lower margin
    below = float(special.stdtr(n - 1, (margin - mean) / error))  # P(T >= t) at the upper margin
    # 1 - above loses digits for large t; by symmetry it is the same function at -t.
    not_above = float(special.stdtr(n - 1, -(mean + margin) / error))
    not_below = float(special.stdtr(n - 1, (mean - margin) / error))
    return max(not_above, not_below), below, above


def _sign_tests(d: np.ndarray, margin: float) -> tuple[float, float]:
    """P values of the sign tests for a median above margin and below -margin, over all pairs."""
    n = d.size
    worse, better = int((d > margin).sum()), int((d < -margin).sum())
    return tuple(sum(math.comb(n, i) for i in range(k, n + 1)) / 2**n for k in (worse, better))
