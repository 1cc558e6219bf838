"""Axes of a product: how any dot_general is a stack of matrix products."""

import math
from typing import TypeAlias

import jax

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
