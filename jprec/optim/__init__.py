"""A policy in the optimiser: loss scale, master weights, stochastic rounding, compensation.

Wrappers nest around an Optax optimiser, the loss scale outermost (`wrap` does it). What the
storage wrappers return are updates for `apply_updates`, not gradients: put nothing after them in
a chain.
"""

from jprec.optim.average import AverageState, averages, ema
from jprec.optim.finite import all_finite, count_nonfinite
from jprec.optim.guard import (
    DynamicScale,
    LossScaleState,
    Unguarded,
    dynamic_loss_scale,
    guard_state,
    if_taken,
    loss_scale,
    power_of_two,
    static_loss_scale,
)
from jprec.optim.moments import StoredMomentsState, store_moments
from jprec.optim.new_value import NewValue, apply_updates
from jprec.optim.norm import clip_by_global_norm, global_norm
from jprec.optim.ranges import (
    CLASSES,
    FIRST_EXPONENT,
    LAST_EXPONENT,
    LostUpdates,
    Ranges,
    lost_updates,
    number_ranges,
)
from jprec.optim.report import Report, check, report
from jprec.optim.storage import (
    KahanState,
    MasterWeightsState,
    RoundOnStoreState,
    StochasticRoundingState,
    kahan,
    master_weights,
    round_on_store,
    stochastic_rounding,
)
from jprec.optim.watch import Watched, WatchState, watch, watched
from jprec.optim.wrap import wrap

__all__ = [
    "CLASSES",
    "FIRST_EXPONENT",
    "LAST_EXPONENT",
    "AverageState",
    "DynamicScale",
    "KahanState",
    "LossScaleState",
    "LostUpdates",
    "MasterWeightsState",
    "NewValue",
    "Ranges",
    "Report",
    "RoundOnStoreState",
    "StochasticRoundingState",
    "StoredMomentsState",
    "Unguarded",
    "WatchState",
    "Watched",
    "all_finite",
    "apply_updates",
    "averages",
    "check",
    "clip_by_global_norm",
    "count_nonfinite",
    "dynamic_loss_scale",
    "ema",
    "global_norm",
    "guard_state",
    "if_taken",
    "kahan",
    "loss_scale",
    "lost_updates",
    "master_weights",
    "number_ranges",
    "power_of_two",
    "report",
    "round_on_store",
    "static_loss_scale",
    "stochastic_rounding",
    "store_moments",
    "watch",
    "watched",
    "wrap",
]
