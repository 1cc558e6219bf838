"""Sums in a chosen format, one product after the other, each addition rounded once.

The order is that of K, ascending, and a product enters a sum exactly, as in a fused multiply-add.
An addition in a narrow format is done in FP32 with its error, and rounded to odd; so the rounding
to the format is as if it had been the only one (Boldo and Melquiond, "Emulation of FMA and
Correctly Rounded Sums", 2008). All of this holds for numbers in FP32's normal range: XLA on a CPU
takes subnormal numbers for zero in the additions.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats, rounding
from jprec.matmul.layout import Dimensions, matrices, zeros

#: Products of two numbers of this precision are FP32 numbers.
_NARROW = 12

_Add: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]


def dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    dims: Dimensions,
    *,
    operand_format: formats.FloatFormat,
    accumulator: formats.FloatFormat,
    compensated: bool,
) -> jax.Array:
    """The float32 product of float32 arrays, summed in `accumulator`, from 0 in ascending order.

    Args:
      lhs: float32, values of `operand_format`.
      rhs: float32, likewise.
      dims: As in lax; contracted axes are walked in the order listed, the last one fastest.
      operand_format: What the operands are; up to 12 bits of precision are the faster case.
      accumulator: Format of the sum, within FP32's range and precision.
      compensated: Whether Kahan's compensation is carried along.

    Returns:
      float32, values of `accumulator`, axes as lax orders them.
    """
    left, right, shape = matrices(lhs, rhs, dims)
    add = functools.partial(_rounded_sum, fmt=accumulator)
    exact = operand_format.precision <= _NARROW
    fused = _fused_narrow if exact else _fused_wide
    zero = zeros(left, right)
    if left.shape[0] == 0:
        return zero.reshape(shape)

    def operands(index: jax.Array) -> tuple[jax.Array, jax.Array]:
        a = lax.dynamic_index_in_dim(left, index, keepdims=False)
        b = lax.dynamic_index_in_dim(right, index, keepdims=False)
        return a[:, :, None], b[:, None, :]

    def plain(index: jax.Array, total: jax.Array) -> jax.Array:
        return fused(*operands(index), total, accumulator)

    def kahan(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, lost = carry  # `lost` is what the last addition put in too much
        term = fused(*operands(index), -lost, accumulator)
        new = add(total, term)
        lost = add(add(new, -total), -term)
        return new, jnp.where(jnp.isfinite(new), lost, 0.0)  # an infinite sum stays one

    if compensated:
        total, _ = lax.fori_loop(0, left.shape[0], kahan, (zero, zero))
    else:
        total = lax.fori_loop(0, left.shape[0], plain, zero)
    return total.reshape(shape)


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The FP32 sum and its error: together exactly a + b (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _to_odd(total: jax.Array, error: jax.Array) -> jax.Array:
    """`total` + `error`, where total is its nearest FP32 number, rounded to odd instead."""
    bits = lax.bitcast_convert_type(total, jnp.int32)
    outward = jnp.where((error > 0) == (total > 0), 1, -1)
    moves = (error != 0) & jnp.isfinite(total) & (bits & 1 == 0)
    return lax.bitcast_convert_type(jnp.where(moves, bits + outward, bits), jnp.float32)


def _rounded_sum(a: jax.Array, b: jax.Array, *, fmt: formats.FloatFormat) -> jax.Array:
    """a + b, rounded once to `fmt`."""
    if fmt.precision == formats.get("fp32").precision:
        return a + b
    return rounding.round_to(_to_odd(*_two_sum(a, b)), fmt)


def _fused_narrow(a: jax.Array, b: jax.Array, c: jax.Array, fmt: formats.FloatFormat) -> jax.Array:
    """a * b + c, rounded once to `fmt`: the product is an FP32 number."""
    return _rounded_sum(c, a * b, fmt=fmt)


def _fused_wide(a: jax.Array, b: jax.Array, c: jax.Array, fmt: formats.FloatFormat) -> jax.Array:
    """a * b + c, rounded once to `fmt`, for any FP32 numbers (Boldo and Melquiond 2008, fig. 4)."""
    product, rest = _two_product(a, b)
    small, error = _two_sum(c, rest)
    large, middle = _two_sum(product, small)
    tail = _to_odd(*_two_sum(middle, error))
    total = _rounded_sum(large, tail, fmt=fmt)
    # Infinities make NaN of errors; there the plain sum is right.
    plain = a * b + c
    return jnp.where(jnp.isfinite(plain), total, plain)


def _two_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The FP32 product and its error: together exactly a * b (Dekker, split by bits).

    Each operation but the first has a result that is an FP32 number, so it makes no difference
    whether the compiler contracts a product and a sum.
    """
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    product = a * b
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The upper 12 bits of the significand, and the lower 12."""
    high = lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32) & -(2**12), jnp.float32)
    return high, x - high
