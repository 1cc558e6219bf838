"""The one place where a spec's products are done: operands split, multiplied, summed."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats, rounding
from jprec.matmul import chains, device
from jprec.matmul.arithmetic import Arithmetic
from jprec.matmul.layout import Dimensions, matrices, zeros
from jprec.matmul.spec import MatmulSpec

#: A product of two float32 arrays, as XLA does it in FP32.
Plain: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]

#: The same product, given a dot_general that takes operands and dimension numbers.
Walked: TypeAlias = Callable[[jax.Array, jax.Array, Callable[..., jax.Array]], jax.Array]


def product(
    lhs: jax.Array, rhs: jax.Array, how: Arithmetic, *, plain: Plain, walked: Walked
) -> jax.Array:
    """The float32 product of two arrays in the arithmetic `how`.

    Args:
      lhs: Any narrow floating-point dtype, not rounded yet.
      rhs: Likewise.
      how: Arithmetic, but "@native".
      plain: The product as XLA does it.
      walked: The product in terms of dot_general, which defines the order of the sums.
    """
    left, right = split(lhs, how.lhs), split(rhs, how.rhs)
    # What is not finite is the business of the product of the rounded operands alone: an infinity
    # times a remainder of 0 would be NaN.
    finite = [[jnp.where(jnp.isfinite(p), p, 0.0) for p in parts] for parts in (left, right)]
    total = None
    for i, j in how.pairs:
        a, b = (left[0], right[0]) if i == j == 0 else (finite[0][i], finite[1][j])
        part = _one(a, b, how, plain, walked)
        if scale := how.lhs.split_scale * i + how.rhs.split_scale * j:
            part = part * jnp.float32(2.0**-scale)
        # Small products first, in FP32 to nearest, outside any tensor core.
        total = part if total is None else total + part
    assert total is not None
    return total


def split(x: jax.Array, spec: MatmulSpec) -> list[jax.Array]:
    """`x` as float32 summands, values of the operand format: rounded, the rest rounded, ...

    Where `x` is not finite, or becomes so, the further summands are 0.
    """
    raised = x.astype(jnp.float32)
    if not spec.rounds_operands:
        return [raised]
    if spec.products == 1 and formats.get(x.dtype).name == spec.operand_format:
        return [raised]
    rest, parts = raised, []
    for number in range(spec.terms):
        part = rounding.round_to(rest, spec.operand_format, spec.rounding)
        parts.append(part)
        if number + 1 < spec.terms:  # the difference is an FP32 number
            rest = jnp.where(jnp.isfinite(part), rest - part, 0.0)
            rest = rest * jnp.float32(2.0**spec.split_scale)
    return parts


def _one(
    lhs: jax.Array, rhs: jax.Array, how: Arithmetic, plain: Plain, walked: Walked
) -> jax.Array:
    """One product of float32 operands that are values of their operand formats."""
    spec = how.sums
    if how.tensor_core is not None:
        summed = functools.partial(
            device.dot_general, core=how.tensor_core, input_formats=how.input_formats
        )
    elif spec.accumulator is not None:
        summed = functools.partial(
            chains.dot_general,
            operand_format=how.operand_format,
            accumulator=formats.get(spec.accumulator),
            compensated=spec.compensated,
        )
    elif spec.chunk is None:
        return plain(lhs, rhs)
    else:
        summed = functools.partial(lax.dot_general, precision=lax.Precision.HIGHEST)
    if spec.chunk is not None:
        summed = functools.partial(_in_chunks, summed=summed, size=spec.chunk)
    return walked(lhs, rhs, summed)


def _in_chunks(
    lhs: jax.Array,
    rhs: jax.Array,
    dims: Dimensions,
    *,
    summed: Callable[..., jax.Array],
    size: int,
) -> jax.Array:
    """Partial sums of `size` products each, added one after the other in FP32."""
    left, right, shape = matrices(lhs, rhs, dims)
    terms = left.shape[0]
    size = min(size, max(terms, 1))
    count = -(-terms // size)
    fill = [(0, count * size - terms), (0, 0), (0, 0)]
    left, right = (jnp.pad(x, fill).reshape(count, size, *x.shape[1:]) for x in (left, right))
    inner = ((0,), (0,)), ((1,), (1,))

    def add(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + summed(*chunk, inner), None

    if count == 0:
        return jnp.zeros(shape, jnp.float32)
    return lax.scan(add, zeros(left[0], right[0]), (left, right))[0].reshape(shape)
