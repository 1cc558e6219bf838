"""A policy in the optimiser: loss scale, master weights, stochastic rounding, compensation.

Wrappers nest around an Optax optimiser, the loss scale outermost (`wrap` does it). What the
storage wrappers return are updates for `apply_updates`, not gradients: put nothing after them in
a chain.
"""

from jprec.optim.finite import all_finite, count_nonfinite
from jprec.optim.guard import (
    DynamicScale,
    LossScaleState,
    dynamic_loss_scale,
    guard_state,
    if_taken,
    loss_scale,
    power_of_two,
    static_loss_scale,
)
from jprec.optim.new_value import NewValue, apply_updates
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
from jprec.optim.wrap import wrap

__all__ = [
    "DynamicScale",
    "KahanState",
    "LossScaleState",
    "MasterWeightsState",
    "NewValue",
    "Report",
    "RoundOnStoreState",
    "StochasticRoundingState",
    "all_finite",
    "apply_updates",
    "check",
    "count_nonfinite",
    "dynamic_loss_scale",
    "guard_state",
    "if_taken",
    "kahan",
    "loss_scale",
    "master_weights",
    "power_of_two",
    "report",
    "round_on_store",
    "static_loss_scale",
    "stochastic_rounding",
    "wrap",
]
