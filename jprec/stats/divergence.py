"""Which runs diverged, and is that more than chance?"""

import math
from collections.abc import Iterable


def count_diverged(losses: Iterable[float], guess: float) -> int:
    """The number of runs whose loss is not finite or lies above `guess`.

    Args:
      losses: Final loss of each run.
      guess: The loss that guessing gives, e.g. log(10) for ten balanced classes.

    >>> count_diverged([0.06, 2.4, float("nan"), 2.3], guess=2.3)
    2
    """
    if not math.isfinite(guess):
        raise ValueError(f"guess={guess}, but it is the finite loss that guessing gives.")
    return sum(not math.isfinite(loss) or loss > guess for loss in losses)


def fisher_exact(first: int, second: int, *, of: int) -> float:
    """The two-sided p value of Fisher's exact test for two counts out of `of` runs each.

    Computed in integers, so tables as probable as the observed one are found without a tolerance.

    Args:
      first: Events among the `of` runs of the first group.
      second: Events among the `of` runs of the second group.
      of: Runs in each group.

    >>> fisher_exact(8, 0, of=8) == 2 / math.comb(16, 8)
    True
    >>> fisher_exact(1, 1, of=8)
    1.0
    """
    if of < 1 or not (0 <= first <= of and 0 <= second <= of):
        raise ValueError(
            f"counts {first} and {second} of {of} runs; each count lies between 0 and the number "
            "of runs, which is at least 1."
        )
    events = first + second
    # Ways to place `k` of the events in the first group: the hypergeometric weights.
    ways = [
        math.comb(of, k) * math.comb(of, events - k)
        for k in range(max(0, events - of), min(of, events) + 1)
    ]
    observed = math.comb(of, first) * math.comb(of, second)
    return sum(w for w in ways if w <= observed) / sum(ways)
