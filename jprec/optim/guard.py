"""The loss scale and the guarded step: an overflow lowers the scale and changes nothing else."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jprec.optim.new_value import NewValue, is_new_value

#: Scales between these have exact float32 reciprocals that no machine flushes to zero.
_SMALLEST, _LARGEST = 2.0**-126, 2.0**126


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
    """The state of a guard. All fields but inner_state are scalars; none is weakly typed.

    inner_state: the inner optimiser's; untouched by a skipped step.
    scale: float32, for the next forward pass.
    clean_steps: int32, steps without overflow since the last overflow or growth.
    skipped: int32, steps skipped so far. skipped_in_row: int32, of these the latest in a row.
    steps_at_floor: int32, steps taken with the scale at its floor (0 for a static scale).
    """

    inner_state: Any
    scale: jax.Array
    clean_steps: jax.Array
    skipped: jax.Array
    skipped_in_row: jax.Array
    steps_at_floor: jax.Array


def all_finite(tree: Any) -> jax.Array:
    """[] bool: no inexact leaf of `tree` has an infinity or a NaN; other leaves do not count."""
    flags = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.inexact)
    ]
    return jnp.all(jnp.stack(flags)) if flags else jnp.asarray(True)


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


def _no_update(finite: jax.Array, updates: Any, params: Any) -> Any:
    """`updates` where `finite`, else updates that leave every bit of the parameters alone."""

    def nothing(update: Any) -> Any:
        if not jnp.issubdtype(update.dtype, jnp.inexact):
            return update
        # p + (-0.0) is p for every p; p + 0.0 would turn -0.0 into 0.0.
        return jnp.where(finite, update, -jnp.zeros([], update.dtype))

    def guard(update: Any, parameter: Any = None) -> Any:
        if not isinstance(update, NewValue):
            return nothing(update)
        value = jnp.where(finite, update.value, parameter)
        return NewValue(value, nothing(update.update))

    if params is None:
        return jax.tree.map(nothing, updates)
    return jax.tree.map(guard, updates, params, is_leaf=is_new_value)


def _guard(
    inner: optax.GradientTransformation,
    initial: float,
    following: Callable[[LossScaleState, jax.Array], tuple[jax.Array, jax.Array]],
    floor: float | None,
) -> optax.GradientTransformationExtraArgs:
    """`inner`, skipped on overflow; `following` says the next scale and count of clean steps."""
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> LossScaleState:
        zero = jnp.zeros([], jnp.int32)
        inner_state = jax.tree.map(_strong, inner.init(params))
        scale = jnp.asarray(initial, jnp.float32)
        return LossScaleState(inner_state, scale, zero, zero, zero, zero)

    def update(gradients: Any, state: LossScaleState, params: Any = None, **extra: Any) -> Any:
        finite = all_finite(gradients)
        updates, inner_state = inner.update(gradients, state.inner_state, params, **extra)
        scale, clean_steps = following(state, finite)
        at_floor = jnp.asarray(floor is not None and state.scale <= floor)
        add = optax.safe_increment
        state = LossScaleState(
            inner_state=_select(finite, inner_state, state.inner_state),
            scale=scale,
            clean_steps=clean_steps,
            skipped=jnp.where(finite, state.skipped, add(state.skipped)),
            skipped_in_row=jnp.where(finite, 0, add(state.skipped_in_row)),
            steps_at_floor=jnp.where(at_floor, add(state.steps_at_floor), state.steps_at_floor),
        )
        return _no_update(finite, updates, params), state

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

    def following(state: LossScaleState, finite: jax.Array) -> tuple[jax.Array, jax.Array]:
        return state.scale, jnp.where(finite, optax.safe_increment(state.clean_steps), 0)

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

    def following(state: LossScaleState, finite: jax.Array) -> tuple[jax.Array, jax.Array]:
        clean_steps = optax.safe_increment(state.clean_steps)
        grow = clean_steps >= setting.growth_interval
        grown = jnp.where(grow, state.scale * 2.0, state.scale)
        scale = jnp.where(finite, grown, state.scale * 0.5)
        # Written so that a restored NaN or zero comes back to the floor, infinity to the ceiling.
        scale = jnp.where(
            scale >= setting.floor, jnp.minimum(scale, setting.ceiling), setting.floor
        )
        return scale, jnp.where(finite & ~grow, clean_steps, 0)

    return _guard(inner, setting.initial, following, floor=setting.floor)


def loss_scale(opt_state: Any) -> jax.Array:
    """[] float32: the loss scale in an optimiser's state, however deep; 1.0 if there is none.

    >>> tx = optax.chain(static_loss_scale(optax.sgd(0.1), 2.0**10))
    >>> loss_scale(tx.init({"w": jnp.ones(2)})).item()
    1024.0
    """
    found = _scale_states(opt_state)
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} loss scales in one optimiser state, so none is the scale of the loss. "
            "One loss has one scale: wrap the whole optimiser once, outermost, for example "
            "jprec.optim.wrap(optax.chain(...), policy), and no part of it."
        )
    return jnp.asarray(found[0].scale, jnp.float32) if found else jnp.asarray(1.0, jnp.float32)


def _scale_states(tree: Any) -> list[LossScaleState]:
    """Every LossScaleState in `tree`, the outer before the inner."""

    def is_state(node: Any) -> bool:
        return isinstance(node, LossScaleState)

    found = []
    for node in jax.tree.leaves(tree, is_leaf=is_state):
        if is_state(node):
            found += [node, *_scale_states(node.inner_state)]
    return found
