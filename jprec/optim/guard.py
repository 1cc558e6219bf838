"""The loss scale and the guarded step: an overflow lowers the scale and changes nothing else."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jprec.optim import finite
from jprec.optim.new_value import NewValue, is_new_value

#: Scales between these have exact float32 reciprocals that no machine flushes to zero.
_SMALLEST, _LARGEST = 2.0**-126, 2.0**126

#: A loss scale that magnifies nothing.
UNSCALED = 1.0

#: After so many steps in a row with NaN and no infinity, a scale of at most 1 is lowered no
#: further: from 2**16 it has come to 2**-8 by then, if its floor allows.
NAN_PATIENCE = 24


def power_of_two(value: Any, *, name: str) -> float:
    """`value` as a float, if it is a power of two that float32 can also divide by."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}={value!r} is not a number. Give a power of two such as 2.0**16.")
    if not (_SMALLEST <= value <= _LARGEST) or math.frexp(value)[0] != 0.5:
        near = ""
        if 0 < value < math.inf:
            exponent = min(max(round(math.log2(value)), -126), 126)
            near = f" The nearest is 2.0**{exponent}."
        raise ValueError(
            f"{name}={value!r} is not a power of two from 2**-126 to 2**126; only with these "
            f"scaling and unscaling are exact.{near}"
        )
    return float(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DynamicScale:
    """How a dynamic loss scale moves; the defaults are those of PyTorch's GradScaler.

    Attributes:
      initial: The first scale, a power of two.
      growth_interval: Clean steps in a row after which the scale is doubled.
      floor: It is never halved below this power of two.
      ceiling: It is never doubled above this power of two.
    """

    initial: float = 2.0**16
    growth_interval: int = 2000
    floor: float = 1.0
    ceiling: float = 2.0**24

    def __post_init__(self) -> None:
        for name in ("initial", "floor", "ceiling"):
            object.__setattr__(self, name, power_of_two(getattr(self, name), name=name))
        if not self.floor <= self.initial <= self.ceiling:
            raise ValueError(
                f"initial={self.initial}, but floor={self.floor} and ceiling={self.ceiling}: "
                "the scale starts between the two. Move one of them."
            )
        interval = self.growth_interval
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(
                f"growth_interval={interval!r}: it counts clean steps, so a whole number of at "
                "least 1. For a scale that never grows set ceiling=initial."
            )


class LossScaleState(NamedTuple):
    """The state of a guard. The counters are int32 scalars; nothing is weakly typed.

    inner_state: the inner optimiser's; untouched by a skipped step.
    scale: [] float32, for the next forward pass.
    clean_steps: steps without overflow since the last overflow or growth.
    taken: steps taken so far. skipped: steps skipped so far.
    skipped_at_start: of these, the ones before the first step that was taken.
    skipped_in_row: of these, the latest in a row.
    nan_in_row: of the latest in a row, the latest whose gradients had NaN and no infinity.
    steps_at_floor: steps with the scale at its floor (0 for a static scale).
    nonfinite: [leaves, 2] int32, infinities and NaNs in each leaf at the latest skipped step.
    leaves: the paths of these leaves, in order. A dict of None has no leaves of its own.
    """

    inner_state: Any
    scale: jax.Array
    clean_steps: jax.Array
    taken: jax.Array
    skipped: jax.Array
    skipped_at_start: jax.Array
    skipped_in_row: jax.Array
    nan_in_row: jax.Array
    steps_at_floor: jax.Array
    nonfinite: jax.Array
    leaves: dict[str, None]


def _strong(leaf: Any) -> Any:
    """`leaf` as an array that is not weakly typed, so that a step does not change its type."""
    leaf = jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf
    return jax.lax.convert_element_type(leaf, leaf.dtype)


def _select(keep: jax.Array, new: Any, old: Any) -> Any:
    """`new` where `keep`, else `old`, leaf by leaf and in the old leaf's dtype."""

    def select(new: Any, old: Any) -> Any:
        old, new = _strong(old), jnp.asarray(new)
        return jnp.where(keep, new if new.dtype == old.dtype else new.astype(old.dtype), old)

    return jax.tree.map(select, new, old)


def _no_update(take: jax.Array, updates: Any, params: Any) -> Any:
    """`updates` where `take`, else updates that leave every bit of the parameters alone."""

    def nothing(update: Any) -> Any:
        if jnp.issubdtype(update.dtype, jnp.integer):
            return jnp.where(take, update, jnp.zeros([], update.dtype))
        if not jnp.issubdtype(update.dtype, jnp.inexact):
            return update
        # p + (-0.0) is p for every p; p + 0.0 would turn -0.0 into 0.0.
        return jnp.where(take, update, -jnp.zeros([], update.dtype))

    def guard(update: Any, parameter: Any = None) -> Any:
        if not isinstance(update, NewValue):
            return nothing(update)
        value = jnp.where(take, update.value, parameter)
        return NewValue(value, nothing(update.update), update.intact)

    if params is None:
        return jax.tree.map(nothing, updates)
    return jax.tree.map(guard, updates, params, is_leaf=is_new_value)


def _is_placeholder(params: Any) -> bool:
    return type(params).__name__ == "_ParamsPlaceholder"


def _guard(
    inner: optax.GradientTransformation,
    initial: float,
    following: Callable[[LossScaleState, jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
    floor: float | None,
) -> optax.GradientTransformationExtraArgs:
    """`inner`, skipped on overflow.

    `following(state, all finite, NaN without infinity)` says the next scale and count of clean
    steps.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> LossScaleState:
        # optax.tree_map_params asks for the state of a placeholder, to find what has its shape.
        leaves = params if _is_placeholder(params) else finite.names(params)
        # Each leaf has a buffer of its own, so that the state may be donated.
        return LossScaleState(
            inner_state=jax.tree.map(_strong, inner.init(params)),
            scale=jnp.asarray(initial, jnp.float32),
            clean_steps=jnp.zeros([], jnp.int32),
            taken=jnp.zeros([], jnp.int32),
            skipped=jnp.zeros([], jnp.int32),
            skipped_at_start=jnp.zeros([], jnp.int32),
            skipped_in_row=jnp.zeros([], jnp.int32),
            nan_in_row=jnp.zeros([], jnp.int32),
            steps_at_floor=jnp.zeros([], jnp.int32),
            nonfinite=jnp.zeros((len(finite.names(params)), 2), jnp.int32),
            leaves=leaves,
        )

    def update(gradients: Any, state: LossScaleState, params: Any = None, **extra: Any) -> Any:
        take, nonfinite = finite.judge(gradients, state.leaves)
        skip = ~take
        only_nan = skip & jnp.all(nonfinite[:, 0] == 0) & jnp.any(nonfinite[:, 1] > 0)
        updates, inner_state = inner.update(gradients, state.inner_state, params, **extra)
        scale, clean_steps = following(state, take, only_nan)
        at_floor = jnp.asarray(floor is not None and state.scale <= floor)

        def count(field: jax.Array, when: jax.Array) -> jax.Array:
            return jnp.where(when, optax.safe_increment(field), field)

        state = LossScaleState(
            inner_state=_select(take, inner_state, state.inner_state),
            scale=scale,
            clean_steps=clean_steps,
            taken=count(state.taken, take),
            skipped=count(state.skipped, skip),
            skipped_at_start=count(state.skipped_at_start, skip & (state.taken == 0)),
            skipped_in_row=jnp.where(take, 0, optax.safe_increment(state.skipped_in_row)),
            nan_in_row=jnp.where(only_nan, optax.safe_increment(state.nan_in_row), 0),
            steps_at_floor=count(state.steps_at_floor, at_floor),
            nonfinite=jnp.where(take, state.nonfinite, nonfinite),
            leaves=state.leaves,
        )
        return _no_update(take, updates, params), state

    return optax.GradientTransformationExtraArgs(init, update)


def static_loss_scale(
    inner: optax.GradientTransformation, scale: float
) -> optax.GradientTransformationExtraArgs:
    """Holds a fixed loss scale, and skips a step whose gradients are not all finite.

    Args:
      inner: The optimiser; the guard goes outermost, so that it sees the raw gradients.
      scale: A power of two. `jprec.value_and_grad` takes it from `loss_scale(state)`.

    The gradients given to `update` are unscaled and float32.
    """
    initial = power_of_two(scale, name="scale")

    def following(
        state: LossScaleState, take: jax.Array, only_nan: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        del only_nan
        return state.scale, jnp.where(take, optax.safe_increment(state.clean_steps), 0)

    return _guard(inner, initial, following, floor=None)


def dynamic_loss_scale(
    inner: optax.GradientTransformation,
    *,
    initial: float = 2.0**16,
    growth_interval: int = 2000,
    floor: float = 1.0,
    ceiling: float = 2.0**24,
) -> optax.GradientTransformationExtraArgs:
    """Halves the loss scale on overflow, doubles it after `growth_interval` clean steps.

    A step whose raw gradients are not all finite changes no parameter, moment or schedule
    count: only the scale and the counters move. The count of clean steps starts again after an
    overflow, a growth, and a growth that the ceiling refused. Underflow of the gradients is what
    the scale is for: Micikevicius et al., Mixed Precision Training, 2018, section 3.2.

    Gradients that have NaN and no infinity lower the scale, too, as an overflow on the way back may
    end as NaN; but after 24 such steps in a row not below 1: what persists there is no overflow by
    the scale. `jprec.optim.report` says what was found in which leaf.

    Args:
      inner: The optimiser; the guard goes outermost, so that it sees the raw gradients.
      initial: The first scale.
      growth_interval: It doubles on exactly this clean step.
      floor: Smallest scale. It may be below 1.
      ceiling: Largest scale.

    The gradients given to `update` are unscaled and float32; the scales are powers of two.
    """
    setting = DynamicScale(
        initial=initial, growth_interval=growth_interval, floor=floor, ceiling=ceiling
    )

    def following(
        state: LossScaleState, take: jax.Array, only_nan: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        clean_steps = optax.safe_increment(state.clean_steps)
        grow = clean_steps >= setting.growth_interval
        grown = jnp.where(grow, state.scale * 2.0, state.scale)
        # An overflow on the way back may arrive as NaN alone; what so many halvings have not
        # removed is none.
        in_vain = only_nan & (state.nan_in_row >= NAN_PATIENCE) & (state.scale <= UNSCALED)
        lowered = jnp.where(in_vain, state.scale, state.scale * 0.5)
        scale = jnp.where(take, grown, lowered)
        # Written so that a restored NaN or zero comes back to the floor, infinity to the ceiling.
        scale = jnp.where(
            scale >= setting.floor, jnp.minimum(scale, setting.ceiling), setting.floor
        )
        return scale, jnp.where(take & ~grow, clean_steps, 0)

    return _guard(inner, setting.initial, following, floor=setting.floor)


class Unguarded(float):
    """The loss scale of an optimiser's state without a guard: 1.0, and known to be no scale.

    `jprec.value_and_grad` refuses it where the policy needs a scale.
    """


def loss_scale(opt_state: Any) -> jax.Array | Unguarded:
    """[] float32: the loss scale in an optimiser's state, however deep; the number 1.0 without one.

    >>> tx = optax.chain(static_loss_scale(optax.sgd(0.1), 2.0**10))
    >>> loss_scale(tx.init({"w": jnp.ones(2)})).item()
    1024.0
    """
    found = guard_state(opt_state)
    return Unguarded(1.0) if found is None else jnp.asarray(found.scale, jnp.float32)


def guard_state(opt_state: Any) -> LossScaleState | None:
    """The state of the guard in an optimiser's state, however deep; None if there is none.

    Raises:
      ValueError: if there are two.
    """
    found = _scale_states(opt_state)
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} loss scales in one optimiser state, so none is the scale of the loss. "
            "One loss has one scale: wrap the whole optimiser once, outermost, for example "
            "jprec.optim.wrap(optax.chain(...), policy), and no part of it."
        )
    return found[0] if found else None


def if_taken(opt_state: Any, new: Any, old: Any) -> Any:
    """`new` where the latest step was taken, `old` where it was skipped, leaf by leaf.

    For what a training step carries beside parameters and optimiser state: batch statistics of
    Flax Linen, running averages, caches. `jprec.value_and_grad` does it for Flax NNX modules.

    Args:
      opt_state: The optimiser's state *after* the step.
      new: A pytree, as the step left it.
      old: The same, before the step.

    >>> tx = static_loss_scale(optax.sgd(0.1), 1.0)
    >>> params = {"w": jnp.ones(2)}
    >>> _, state = tx.update({"w": jnp.full(2, jnp.inf)}, tx.init(params), params)
    >>> if_taken(state, {"mean": jnp.ones([])}, {"mean": jnp.zeros([])})["mean"].item()
    0.0
    """
    found = guard_state(opt_state)
    return new if found is None else _select(found.skipped_in_row == 0, new, old)


def _scale_states(tree: Any) -> list[LossScaleState]:
    """Every LossScaleState in `tree`, the outer before the inner."""

    def is_state(node: Any) -> bool:
        return isinstance(node, LossScaleState)

    found = []
    for node in jax.tree.leaves(tree, is_leaf=is_state):
        if is_state(node):
            found += [node, *_scale_states(node.inner_state)]
    return found
