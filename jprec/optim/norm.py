"""The norm of all gradients together, and clipping by it, in float32 whatever their dtype is.

In float16 the square of 300 is infinite and that of 1e-4 is zero, so that `optax.global_norm` of
either is useless and a clipped gradient silently zero.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jprec import rounding
from jprec.optim.new_value import check_is_difference, is_low, store


def _is_counted(leaf: Any) -> bool:
    """Whether a leaf is real or complex; integers, keys and float0 have no part in the norm."""
    return jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.inexact)


def _wide(leaf: Any) -> jax.Array:
    """`leaf` in float32 (exact) if it is narrower."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.float32) if leaf.dtype.itemsize < 4 else leaf


def _parts(leaf: jax.Array) -> list[jax.Array]:
    """The real parts of a leaf: itself, or real and imaginary part."""
    return [leaf.real, leaf.imag] if jnp.iscomplexobj(leaf) else [leaf]


def _scaled_norm(tree: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A power of two near the largest magnitude, its reciprocal, and the norm divided by it.

    All three are [] float32 (float64 if a leaf is). The quotient is 0 for zero gradients, infinite
    or NaN where a gradient is, and moderate otherwise.
    """
    wide = [_wide(leaf) for leaf in jax.tree.leaves(tree) if _is_counted(leaf)]
    parts = [part for leaf in wide for part in _parts(leaf)]
    dtype = jnp.result_type(jnp.float32, *parts)
    largest = jnp.zeros([], dtype)
    for part in parts:
        largest = jnp.maximum(largest, jnp.max(jnp.abs(part), initial=0.0).astype(dtype))
    # Both powers are normal numbers, so that scaling is exact. No square overflows then, and those
    # that underflow are far below the last digit of the sum.
    end = -int(jnp.finfo(dtype).minexp)
    power = jnp.clip(rounding.exponent(largest), -end, end)
    unit, reciprocal = (jnp.ldexp(jnp.ones([], dtype), sign * power) for sign in (1, -1))
    total = jnp.zeros([], dtype)
    for part in parts:
        total += jnp.sum(jnp.square(part.astype(dtype) * reciprocal))
    return unit, reciprocal, jnp.sqrt(total)


def global_norm(tree: Any) -> jax.Array:
    """The root of the sum of all squared magnitudes: right where the squares leave float32.

    Leaves that are neither real nor complex do not count. It is infinite or NaN if a leaf is.
    XLA on a CPU takes float32 numbers below 2**-126 for zero.

    Args:
      tree: Arrays of any shapes and dtypes.

    Returns:
      [] float32 (float64 if a leaf is); 0 for an empty tree.

    >>> global_norm({"w": jnp.full(4, 1e-4, jnp.float16), "b": jnp.float16(0.0)}).item()
    0.00020003318786621094
    >>> f"{global_norm(jnp.float32([3e30, 4e30])):.3g}"
    '5e+30'
    """
    unit, _, quotient = _scaled_norm(tree)
    return unit * quotient


def clip_by_global_norm(max_norm: float | jax.Array) -> optax.GradientTransformation:
    """Scales gradients whose norm is above `max_norm` down to it; all others keep every bit.

    The arithmetic is float32, and leaves keep their dtype, rounded once. Gradients that are not
    all finite pass unchanged, for the loss scale's guard to judge: in the guard,
    `wrap(optax.chain(clip_by_global_norm(1.0), ...), policy)`, such a step is skipped anyway. Zero
    gradients stay zero, with max_norm=0 too.

    Args:
      max_norm: At least 0, in the units of unscaled gradients.

    Raises:
      ValueError: max_norm is negative or NaN; at `update`, it stands behind a storage wrapper.
    """
    if isinstance(max_norm, int | float) and not max_norm >= 0:
        raise ValueError(f"max_norm={max_norm!r} is not a norm. Give a number of at least 0.")

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> Any:
        del params
        check_is_difference(updates, "clip_by_global_norm")
        unit, reciprocal, quotient = _scaled_norm(updates)
        # The quotient, not the norm, which may exceed float32 though every gradient is finite.
        too_long = jnp.isfinite(quotient) & (unit * quotient > max_norm)
        factor = max_norm / jnp.where(too_long, quotient, 1.0)

        def clip(leaf: Any) -> Any:
            if not _is_counted(leaf):
                return leaf
            leaf = jnp.asarray(leaf)
            # Scaled first: factor / unit could be too small a number.
            wide = _wide(leaf) * reciprocal * factor
            clipped = store(wide, leaf.dtype) if is_low(leaf) else wide.astype(leaf.dtype)
            return jnp.where(too_long, clipped, leaf)

        return jax.tree.map(clip, updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)
