"""Axes of a product: how any dot_general is a stack of matrix products."""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

Axes: TypeAlias = tuple[int, ...]

#: ((lhs contracting, rhs contracting), (lhs batch, rhs batch)), hashable.
Dimensions: TypeAlias = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]


def matrices(
    lhs: jax.Array, rhs: jax.Array, dims: Dimensions
) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """The operands as [K, batch, M] and [K, batch, N], and the shape of the product.

    K runs over the contracted axes in the order in which `dims` lists them, the last one fastest.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    left, lhs_keeps = _matrix(lhs, lhs_contract, lhs_batch)
    right, rhs_keeps = _matrix(rhs, rhs_contract, rhs_batch)
    batch = tuple(lhs.shape[axis] for axis in lhs_batch)
    return left, right, batch + lhs_keeps + rhs_keeps


def _matrix(x: jax.Array, contract: Axes, batch: Axes) -> tuple[jax.Array, tuple[int, ...]]:
    """`x` as [K, batch, kept], and the shape of what it keeps."""
    keeps = tuple(axis for axis in range(x.ndim) if axis not in contract + batch)
    groups = (contract, batch, keeps)
    shape = tuple(math.prod(x.shape[axis] for axis in group) for group in groups)
    kept_shape = tuple(x.shape[axis] for axis in keeps)
    return x.transpose(contract + batch + keeps).reshape(shape), kept_shape


def zeros(left: jax.Array, right: jax.Array) -> jax.Array:
    """float32 zeros of the shape of the product of `matrices`: [batch, M, N].

    They are made of the operands, so that they are spread over devices as the product is; a sum
    that is carried through a loop must begin with the type that it ends with.
    """
    shape = (left.shape[1], left.shape[2], right.shape[2])
    if left.shape[0] == 0:
        return jnp.zeros(shape, jnp.float32)
    a, b = (lax.bitcast_convert_type(x[0], jnp.int32) for x in (left, right))
    return lax.bitcast_convert_type((a[:, :, None] | b[:, None, :]) & 0, jnp.float32)


def alike(lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The operands, varying over the same axes of a mesh, as lax makes them inside `shard_map`.

    The derivative of this is the sum over the axes that are added.
    """
    axes = _varying(lhs) | _varying(rhs)
    return _spread(lhs, axes), _spread(rhs, axes)


def _spread(x: jax.Array, axes: frozenset[str]) -> jax.Array:
    missing = tuple(sorted(axes - _varying(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def _varying(x: jax.Array) -> frozenset[str]:
    """The axes of a mesh over which `x` may differ between devices; none outside `shard_map`."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)
