"""What is fixed before the judged runs: the margin and the number of seeds."""

import math
from collections.abc import Sequence

import numpy as np

#: Fewest pilot seeds from which a margin is taken: the standard deviation of 30 normal draws has a
#: relative error of about 1 / sqrt(2 * 29) = 13 %.
MIN_PILOT_SEEDS = 30

#: Fewest pairs of a judged run, however small the pilot's spread was.
MIN_SEEDS = 8

#: (z(0.95) + z(0.95))**2: two one-sided tests at 5 % with power 90 % when the true difference is 0.
SEEDS_FACTOR = 10.8


def margin_from_pilot(losses: Sequence[float]) -> float:
    """The margin δ: half the seed-to-seed standard deviation of the baseline's pilot losses.

    Args:
      losses: Final loss of each pilot run, at least 30; their seeds are not used again.

    >>> margin_from_pilot([0.0, 2.0] * 15)  # sd = sqrt(30 / 29)
    0.5085476277156078
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or values.size < MIN_PILOT_SEEDS:
        raise ValueError(
            f"pilot losses of shape {values.shape}; a margin needs one loss each of at least "
            f"{MIN_PILOT_SEEDS} pilot seeds. Run more pilot seeds."
        )
    if not np.isfinite(values).all():
        raise ValueError(
            f"{int((~np.isfinite(values)).sum())} of {values.size} pilot losses are not finite; a "
            "baseline that diverges gives no margin. Repair the baseline first."
        )
    sd = float(values.std(ddof=1))
    if sd == 0.0:
        raise ValueError(
            f"all {values.size} pilot losses are {values[0]}, so half their standard deviation is "
            "0 and no margin. Let the seed reach initial weights and batches, or argue a margin."
        )
    return 0.5 * sd


def seeds_needed(sd_difference: float, margin: float) -> int:
    """The number of paired seeds: 10.8 (sd / δ)², rounded up, at least 8.

    With it, two one-sided tests at 5 % find equivalence in about 90 % of studies whose true
    difference is zero.

    Args:
      sd_difference: Standard deviation of the paired differences, from pilot pairs.
      margin: δ, in the unit of the loss.

    >>> seeds_needed(0.88, 0.5)
    34
    >>> seeds_needed(0.0, 0.5)
    8
    """
    if not (math.isfinite(sd_difference) and sd_difference >= 0.0):
        raise ValueError(f"sd_difference={sd_difference}, but it is finite and at least 0.")
    if not (math.isfinite(margin) and margin > 0.0):
        raise ValueError(f"margin={margin}, but a margin is finite and above 0.")
    return max(MIN_SEEDS, math.ceil(SEEDS_FACTOR * (sd_difference / margin) ** 2))
