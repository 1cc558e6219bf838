"""Products under a spec: rounded operands, FP32 sums, forward and backward."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jprec.matmul import native, operands, sums
from jprec.matmul.arithmetic import Arithmetic
from jprec.matmul.layout import Axes, Dimensions, alike
from jprec.matmul.spec import MatmulSpec

#: ((lhs contracting, rhs contracting), (lhs batch, rhs batch)), as lax.dot_general takes it.
DimensionNumbers: TypeAlias = tuple[
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
]


def dot_general(
    lhs: jax.typing.ArrayLike,
    rhs: jax.typing.ArrayLike,
    dimension_numbers: DimensionNumbers,
    spec: str | MatmulSpec,
    *,
    lhs_spec: str | MatmulSpec | None = None,
    rhs_spec: str | MatmulSpec | None = None,
    grad_spec: str | MatmulSpec | None = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """The product that lax.dot_general takes, in the arithmetic of `spec`.

    Both operands are raised to FP32 and rounded, products and sums are FP32 (or the device's), and
    the sum is rounded once to the result's dtype, which is the one that lax would give. In reverse
    mode the products of the backward pass are done in the same way: the cotangent is rounded as an
    operand is, or as `grad_spec` says, which then sums these products, too. Forward mode is
    refused, except where lax does the product itself: under "fp32" for FP32 throughout, and for
    float64, integer and complex operands, which only "fp32" accepts.

    XLA flushes subnormal operands and results of FP32 sums on a CPU; a device's sums keep them.

    Args:
      lhs: Array of any shape, or what jnp.asarray makes one of.
      rhs: Likewise.
      dimension_numbers: Which axes are contracted and which are batch axes, as in lax. A device
        walks the contracted axes in the order in which they are listed, the last one fastest.
      spec: A MatmulSpec or its spelling.
      lhs_spec: Spec as whose operand `lhs` is rounded, forward and backward, if not as that of
        `spec`, which sums. A device takes another format only where its own holds all values of
        it, and E4M3 beside E5M2.
      rhs_spec: The same for `rhs`.
      grad_spec: Spec of the backward products, if not `spec`: the cotangent is rounded and the
        products are summed as it says; the other operand is rounded as in the forward product.
        FP8 is trained with spec="fp8_e4m3", grad_spec="fp8_e5m2".
      preferred_element_type: The result's dtype, if not the default one.

    Raises:
      TypeError: A dtype whose values float32 does not hold, unless all specs are "fp32".
      ValueError: An unknown spec, or specs that have no product in common.

    >>> x = jnp.full((1, 1), 1.0001)
    >>> axes = ((1,), (0,)), ((), ())
    >>> dot_general(x, jnp.ones((1, 1)), axes, "tf32").item()
    1.0
    """
    how = Arithmetic.of(spec, lhs_spec=lhs_spec, rhs_spec=rhs_spec, grad_spec=grad_spec)
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    dims = _hashable(dimension_numbers)
    exact = functools.partial(
        lax.dot_general,
        dimension_numbers=dims,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=preferred_element_type,
    )
    dtype = jax.eval_shape(exact, lhs, rhs).dtype
    if operands.leaves_to_lax(how, lhs.dtype, rhs.dtype, dtype):
        return exact(lhs, rhs)
    return _dot(*alike(lhs, rhs), dims, how, dtype)


def matmul(
    a: jax.typing.ArrayLike,
    b: jax.typing.ArrayLike,
    spec: str | MatmulSpec,
    *,
    grad_spec: str | MatmulSpec | None = None,
) -> jax.Array:
    """The matrix product a @ b in the arithmetic of `spec`, see `dot_general`.

    Args:
      a: [..., M, K] or [K].
      b: [..., K, N] or [K]. Leading axes broadcast against those of `a`.
      spec: A MatmulSpec or its spelling.
      grad_spec: Spec of the backward products, if not `spec`.

    Returns:
      [..., M, N]; without M or N where an operand has one axis.

    >>> matmul(jnp.full(3, 1.0001), jnp.ones((3, 2)), "tf32").tolist()
    [3.0, 3.0]
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(
            f"matmul of shapes {a.shape} and {b.shape}: both operands need at least one axis; "
            "multiply by a scalar with *."
        )
    left, right = jnp.atleast_2d(a), b[:, None] if b.ndim == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"matmul of shapes {a.shape} and {b.shape}: the last axis of the first and the "
            f"{'last' if b.ndim == 1 else 'second-last'} of the second are summed over and differ, "
            f"{left.shape[-1]} and {right.shape[-2]}."
        )
    if right.ndim == 2:
        dims: DimensionNumbers = ((left.ndim - 1,), (0,)), ((), ())
    else:
        batch = jnp.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left = jnp.broadcast_to(left, batch + left.shape[-2:])
        right = jnp.broadcast_to(right, batch + right.shape[-2:])
        axes = tuple(range(len(batch)))
        dims = ((len(batch) + 1,), (len(batch),)), (axes, axes)
    out = dot_general(left, right, dims, spec, grad_spec=grad_spec)
    missing = [axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1]
    return out.squeeze(missing)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _dot(
    lhs: jax.Array, rhs: jax.Array, dims: Dimensions, how: Arithmetic, dtype: Any
) -> jax.Array:
    return operands.store(_product(lhs, rhs, dims, how), dtype)


def _product(lhs: jax.Array, rhs: jax.Array, dims: Dimensions, how: Arithmetic) -> jax.Array:
    if how.sums.is_native:
        return native.dot_general(lhs, rhs, dims, how)
    return sums.product(
        lhs,
        rhs,
        how,
        plain=lambda a, b: lax.dot_general(a, b, dims, precision=lax.Precision.HIGHEST),
        walked=lambda a, b, summed: summed(a, b, dims),
    )


def _forward(
    lhs: jax.Array, rhs: jax.Array, dims: Dimensions, how: Arithmetic, dtype: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _dot(lhs, rhs, dims, how, dtype), (lhs, rhs)


def _backward(
    dims: Dimensions,
    how: Arithmetic,
    dtype: Any,
    saved: tuple[jax.Array, jax.Array],
    cotangent: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    del dtype
    lhs, rhs = saved
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    swapped = (rhs_contract, lhs_contract), (rhs_batch, lhs_batch)
    # The cotangent's axes: batch, what lhs keeps, what rhs keeps.
    batch = len(lhs_batch)
    lhs_keeps = lhs.ndim - len(lhs_contract) - batch
    of_lhs = tuple(range(batch, batch + lhs_keeps))
    of_rhs = tuple(range(batch + lhs_keeps, cotangent.ndim))
    return (
        _transposed(cotangent, of_rhs, rhs, lhs, dims, how.backward(lhs=how.gradient, rhs=how.rhs)),
        _transposed(
            cotangent, of_lhs, lhs, rhs, swapped, how.backward(lhs=how.gradient, rhs=how.lhs)
        ),
    )


def _transposed(
    cotangent: jax.Array,
    summed: Axes,
    other: jax.Array,
    own: jax.Array,
    dims: Dimensions,
    how: Arithmetic,
) -> jax.Array:
    """The cotangent of the operand `own`: the product of `cotangent` with the operand `other`.

    Operands and contracted axes are in the order in which lax writes its own transposed product.

    Args:
      cotangent: The result's cotangent.
      summed: Its axes that came from `other`, ascending.
      other: The operand that is multiplied with.
      own: The operand whose cotangent this is.
      dims: Dimension numbers of the product of `own` and `other`.
      how: Arithmetic of the product, whose first operand is the cotangent.
    """
    (own_contract, other_contract), (own_batch, other_batch) = dims
    own_keeps = _others(own.ndim, own_contract + own_batch)
    other_keeps = _others(other.ndim, other_contract + other_batch)
    batch = tuple(range(len(own_batch)))
    product = _dot(cotangent, other, ((summed, other_keeps), (batch, other_batch)), how, own.dtype)
    # The product's axes are those of `own` in another order; what is contracted in the forward
    # product comes last, in ascending order of the axes of `other`.
    by_other = [own_axis for _, own_axis in sorted(zip(other_contract, own_contract, strict=True))]
    return product.transpose(np.argsort((*own_batch, *own_keeps, *by_other)))


_dot.defvjp(_forward, _backward)


def _others(ndim: int, axes: Iterable[int]) -> Axes:
    return tuple(sorted(set(range(ndim)) - set(axes)))


def _hashable(dims: DimensionNumbers) -> Dimensions:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dims
    plain = tuple(
        tuple(map(int, axes)) for axes in (lhs_contract, rhs_contract, lhs_batch, rhs_batch)
    )
    return (plain[0], plain[1]), (plain[2], plain[3])
