"""Rounding to block formats: a scale for each block, elements rounded in units of it.

Patterns are scaled as integers, as in the kernel, so FP32's subnormals and the far ends of its
range are as exact as the middle.
"""

import functools
import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats
from jprec.rounding.dither import draw
from jprec.rounding.kernel import MAX_RANDOM_BITS, Rounding, round_bits
from jprec.rounding.storage import Storage, as_floats, check_key


def round_blocks(
    x: jax.typing.ArrayLike,
    fmt: formats.BlockLike,
    mode: str = "nearest_even",
    *,
    axis: int = -1,
    key: jax.Array | None = None,
    random_bits: int | None = None,
) -> jax.Array:
    """Rounds `x` to values of a block format, and returns them in the dtype of `x`.

    Along `axis`, every `size` numbers share a scale; the last block may be shorter. The format's
    rule finds the scale from the block's largest magnitude (see `jprec.formats.ScaleRule`), and the
    quotient of each number by the scale is rounded to the element's format, once and exactly.
    Scales and elements saturate. A block with an infinity or NaN becomes NaN. Where the scale
    itself rounds to zero (a block below 6 * 2**-10 in nvfp4), the block becomes zero. The sign of
    zero is kept where elements have -0. With the rules "nearest" and "ceil", numbers at the end of
    the dtype's range may round up to infinity.

    The derivative is straight-through by declaration.

    NVFP4 is used with a second scale, one FP32 number for a tensor, which is the caller's. In FP32,
    and kept from zero: `t = jnp.maximum(jnp.max(jnp.abs(x)) / (6 * 448), 2.0**-126)`, and then
    `round_blocks(x / t, "nvfp4") * t`.

    Args:
      x: [...] float32, bfloat16 or float16 (float64 under jax_enable_x64).
      fmt: A block format or its name: mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4,
        nvfp4; "mxfp4:ceil" is mxfp4 with another scale rule.
      mode: How elements are rounded, see `round_to`. Scales follow their rule.
      axis: The axis that is cut into blocks.
      key: PRNG key, if and only if the mode is "stochastic".
      random_bits: As in `round_to`; 32 by default. Where scales are no powers of two, quotients
        have infinitely many bits, of which 24 are looked at: with elements of precision p, the
        bias is at most 2**(p - 24) ulp (2**-22 in nvfp4).

    Returns:
      [...] of the dtype of `x`.

    Raises:
      ValueError: An option has no such choice, or cannot act; or `axis` does not exist.
      TypeError: `x` is no array of these dtypes, or its dtype has too few bits for the values.

    >>> round_blocks(jnp.float32([0.3, -1.0, 7.0]), "mxfp4").tolist()
    [0.5, -1.0, 6.0]
    """
    fmt, array, storage, axis = _checked(x, fmt, axis)
    check_key(mode, key)
    rounding = Rounding(format=fmt.element, mode=mode, overflow="saturate", random_bits=random_bits)
    return _round(array, key, fmt=fmt, rounding=rounding, storage=storage, axis=axis)


def block_scales(x: jax.typing.ArrayLike, fmt: formats.BlockLike, *, axis: int = -1) -> jax.Array:
    """The scales that `round_blocks` uses.

    Args:
      x: [..., n, ...] as for `round_blocks`.
      fmt: A block format or its name.
      axis: The axis that is cut into blocks.

    Returns:
      [..., ceil(n / size), ...] float32 (float64 for float64).

    >>> block_scales(jnp.float32([0.3, -1.0, 7.0]), "mxfp4").tolist()
    [1.0]
    """
    fmt, array, storage, axis = _checked(x, fmt, axis)
    return _scales(array, fmt=fmt, storage=storage, axis=axis)


def _checked(
    x: jax.typing.ArrayLike, fmt: formats.BlockLike, axis: int
) -> tuple[formats.BlockFormat, jax.Array, Storage, int]:
    fmt = formats.get_block(fmt)
    array, storage = as_floats(x)
    axis = operator.index(axis) if hasattr(axis, "__index__") else axis
    if not isinstance(axis, int) or not -array.ndim <= axis < array.ndim:
        raise ValueError(
            f"axis={axis}, but x has {array.ndim} axes: choose {-array.ndim} to {array.ndim - 1}."
            if array.ndim
            else "x is a scalar, but blocks are cut along an axis; give it one."
        )
    # An element times a scale that is no power of two has the bits of both.
    bits = fmt.element.precision + (fmt.scale.precision if fmt.scale.mantissa_bits else 0)
    held, smallest = formats.get(array.dtype), fmt.element.min_subnormal * fmt.scale.min_subnormal
    if bits > held.precision or (fmt.scale.mantissa_bits and smallest < held.min_subnormal):
        raise TypeError(
            f"{array.dtype} does not hold every value of {fmt.name}, multiples of {smallest:g} "
            f"with up to {bits} significand bits; convert x to a wider dtype, which is exact."
        )
    return fmt, array, storage, axis % array.ndim


@functools.partial(jax.jit, static_argnames=("fmt", "rounding", "storage", "axis"))
def _round(
    x: jax.Array,
    key: jax.Array | None,
    *,
    fmt: formats.BlockFormat,
    rounding: Rounding,
    storage: Storage,
    axis: int,
) -> jax.Array:
    blocks, shape = _cut(x, fmt.size, axis)
    dither = None
    if key is not None:
        dither, _ = _cut(
            draw(key, x.shape, rounding.random_bits or MAX_RANDOM_BITS), fmt.size, axis
        )
    rounded = _rounded(blocks, dither, fmt, rounding, storage, axis + 1)
    joined = rounded.reshape(shape)
    return lax.slice_in_dim(joined, 0, x.shape[axis], axis=axis)


@functools.partial(jax.jit, static_argnames=("fmt", "storage", "axis"))
def _scales(x: jax.Array, *, fmt: formats.BlockFormat, storage: Storage, axis: int) -> jax.Array:
    blocks, _ = _cut(x, fmt.size, axis)
    bits = storage.to_integer(lax.convert_element_type(blocks, storage.dtype))
    largest = jnp.max(bits & ~storage.sign, axis=axis + 1)
    scale = _scale(largest, fmt, storage)
    return storage.from_integer(jnp.where(largest >= storage.infinity, storage.nan, scale))


def _cut(x: jax.Array, size: int, axis: int) -> tuple[jax.Array, tuple[int, ...]]:
    """`x` with `axis` cut in two, blocks and places, and the shape before: padded with zeros."""
    missing = -x.shape[axis] % size
    if missing:
        widths = [(0, missing if a == axis else 0, 0) for a in range(x.ndim)]
        x = lax.pad(x, jnp.zeros([], x.dtype), widths)
    places = (x.shape[axis] // size, size)
    return x.reshape(*x.shape[:axis], *places, *x.shape[axis + 1 :]), x.shape


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4, 5))
def _rounded(
    blocks: jax.Array,
    dither: jax.Array | None,
    fmt: formats.BlockFormat,
    rounding: Rounding,
    storage: Storage,
    axis: int,
) -> jax.Array:
    """Rounds blocks that lie along `axis`; its derivative is declared to be 1."""
    bits = storage.to_integer(lax.convert_element_type(blocks, storage.dtype))
    magnitude = bits & ~storage.sign
    largest = jnp.max(magnitude, axis=axis, keepdims=True)
    scale = _scale(largest, fmt, storage)
    wide = _widen(magnitude, storage)
    if fmt.scale.mantissa_bits:
        scale = jnp.maximum(scale, 1)  # a scale of zero makes zeros; below, anything but 0 will do
        quotient = _divide(wide, _split(_widen(scale, storage), storage), storage)
    else:
        scale = _widen(scale, storage) - storage.one
        quotient = _times(wide, -(scale >> storage.format.mantissa_bits), storage)
    # What leaves the storage's normal range at the bottom is far below the element's values.
    quotient = jnp.where(magnitude == 0, 0, jnp.maximum(quotient, storage.implicit_bit))
    quotient = jnp.minimum(quotient, storage.infinity)
    negative = bits & storage.sign
    element = round_bits(quotient | negative, dither, rounding, storage, 0.0)
    kept = element & ~storage.sign
    if fmt.scale.mantissa_bits:
        product = _multiply(kept, _widen(scale, storage), storage)
        kept = jnp.where((kept == 0) | (scale == 1), 0, _narrow(product, storage))
    else:
        kept = jnp.where(kept == 0, 0, _narrow(kept + scale, storage))
    sign = element & storage.sign
    if not fmt.element.has_negative_zero:
        sign = jnp.where(kept == 0, 0, sign)
    result = kept | sign
    result = jnp.where(largest >= storage.infinity, storage.nan, result)
    return lax.convert_element_type(storage.from_integer(result), blocks.dtype)


@_rounded.defjvp
def _rounded_jvp(
    fmt: formats.BlockFormat,
    rounding: Rounding,
    storage: Storage,
    axis: int,
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
) -> tuple[jax.Array, jax.Array]:
    return _rounded(*primals, fmt, rounding, storage, axis), tangents[0]


def _scale(largest: jax.Array, fmt: formats.BlockFormat, storage: Storage) -> jax.Array:
    """The patterns of the scales of blocks with these largest magnitudes."""
    wide = _widen(largest, storage)
    if fmt.scale_rule == "floor":
        field = (wide >> storage.format.mantissa_bits) - fmt.element.max_exponent
        ends = (fmt.scale.min_subnormal, fmt.scale.max)
        low, high = (math.frexp(end)[1] - 1 + storage.format.bias for end in ends)
        return _narrow(jnp.clip(field, low, high) << storage.format.mantissa_bits, storage)
    maximum = _split(jnp.asarray(storage.pattern(fmt.element.max), storage.integer), storage)
    quotient = _divide(wide, maximum, storage)
    mode = {"nearest": "nearest_even", "ceil": "up"}[fmt.scale_rule]
    rounding = Rounding(format=fmt.scale, mode=mode, overflow="saturate")
    quotient = jnp.where(largest == 0, 0, _narrow(quotient, storage))
    rounded = round_bits(quotient, None, rounding, storage, 0.0)
    if fmt.scale.has_zero:
        return rounded
    return jnp.where(largest == 0, storage.pattern(fmt.scale.min_subnormal), rounded)


# A wide pattern is a pattern whose exponent field may go on below 1, or above its end: subnormal
# numbers are normalised in it, and to multiply by a power of two is to add to the field.


class _Parts(NamedTuple):
    """Numbers as `significand * 2**exponent`, the significand an integer below 2**8."""

    significand: jax.Array
    exponent: jax.Array


def _widen(pattern: jax.Array, storage: Storage) -> jax.Array:
    """The wide patterns of patterns; that of zero is that of a number below all others."""
    held = storage.format
    # An integer below 2**mantissa_bits is exact as a float, whose field says where its top bit is.
    as_float = lax.convert_element_type(pattern, storage.dtype)
    lowest = held.min_exponent - held.mantissa_bits
    normalised = storage.to_integer(as_float) + lowest * storage.implicit_bit
    return jnp.where(pattern < storage.implicit_bit, normalised, pattern)


def _times(wide: jax.Array, power: jax.Array, storage: Storage) -> jax.Array:
    """The wide patterns of `wide * 2**power`; from infinity on, some pattern not below that."""
    bits = storage.format.mantissa_bits
    field = jnp.minimum((wide >> bits) + power, storage.infinity >> bits)
    return (wide & (storage.implicit_bit - 1)) | (field << bits)


def _narrow(wide: jax.Array, storage: Storage) -> jax.Array:
    """The patterns of wide patterns: infinity above, and below cut off with a sticky last bit."""
    field = wide >> storage.format.mantissa_bits
    significand = (wide & (storage.implicit_bit - 1)) | storage.implicit_bit
    subnormal = _cut_off(significand, jnp.clip(1 - field, 0, storage.format.mantissa_bits + 1))
    return jnp.where(field < 1, subnormal, jnp.minimum(wide, storage.infinity))


def _cut_off(number: jax.Array, places: jax.Array) -> jax.Array:
    """`number` >> `places`, its last bit set if any bit was lost: rounded to odd."""
    kept = number >> places
    return kept | ((kept << places) != number).astype(number.dtype)


def _split(wide: jax.Array, storage: Storage) -> _Parts:
    """A number with at most 8 significand bits as integers."""
    above = storage.format.mantissa_bits - 7
    significand = ((wide & (storage.implicit_bit - 1)) | storage.implicit_bit) >> above
    exponent = (wide >> storage.format.mantissa_bits) - storage.format.bias - 7
    return _Parts(significand, exponent)


def _divide(wide: jax.Array, by: _Parts, storage: Storage) -> jax.Array:
    """The wide patterns of quotients, rounded to odd: exact for any rounding to fewer bits."""
    held = storage.format
    significand = (wide & (storage.implicit_bit - 1)) | storage.implicit_bit
    unsigned = jnp.uint32 if held.bits == 32 else jnp.uint64
    dividend = significand.astype(unsigned) << 8
    divisor = by.significand.astype(unsigned)
    quotient = dividend // divisor
    inexact = (dividend - quotient * divisor != 0).astype(storage.integer)
    # In [2**mantissa_bits, 2**(mantissa_bits + 2)): bring it to where the implicit bit is.
    quotient = quotient.astype(storage.integer)
    over = (quotient >= 2 * storage.implicit_bit).astype(storage.integer)
    quotient = _cut_off(quotient, over) | inexact
    field = (wide >> held.mantissa_bits) - by.exponent - 8 + over
    field = jnp.minimum(field, storage.infinity >> held.mantissa_bits)
    return ((field - 1) << held.mantissa_bits) + quotient


def _multiply(kept: jax.Array, scale: jax.Array, storage: Storage) -> jax.Array:
    """The wide patterns of products of normal patterns and wide ones, exact by their few bits."""
    fraction = storage.implicit_bit - 1
    one = storage.one
    factors = [storage.from_integer((pattern & fraction) | one) for pattern in (kept, scale)]
    product = storage.to_integer(factors[0] * factors[1])  # both in [1, 2)
    fields = ((kept & ~fraction) - one) + ((scale & ~fraction) - one)
    return product + fields
