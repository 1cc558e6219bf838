"""A tensor core's sums in 32-bit integers: blocks of exact products, aligned, cut off, added.

The model is Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv:2512.07004v2,
section III, and MMA-Sim, arXiv:2511.10909v2, there called T-FDPA. Floating-point arithmetic is not
used for values anywhere here, because XLA flushes subnormal numbers on some backends.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats, hardware

# Exponents that stand for something else. Each lies further from the next than the exponents of
# finite products span, about 560, so that by alignment alone the larger one swallows the smaller.
_NOTHING = -30_000  # of a zero: never the largest
_INFINITE_OPERAND = 10_000  # of an infinite operand; a product has 10_000 or 20_000
_INFINITE_SUM = 100_000  # of an accumulator that is infinite already

#: What is added to an exponent in a word, so that its 16 bits are not negative.
_BIAS = 30_000

_INFINITY_BITS = 0x7F80_0000


#: The words of some products, one entry each.
_Words: TypeAlias = jax.Array | Sequence[jax.Array]


class _Sum(NamedTuple):
    """An accumulator, taken apart; its value is (-1)**negative * magnitude * 2**(exponent - m).

    magnitude: int32, m + 1 bits. exponent: int32. sign: int32, -1 if negative, else 0.
    """

    magnitude: jax.Array
    exponent: jax.Array
    sign: jax.Array


def decode(x: jax.Array, fmt: formats.FloatFormat, shift: int) -> jax.Array:
    """Takes float32 numbers that are values of `fmt` apart; bits below `fmt` are dropped.

    An infinity or NaN becomes a word whose products exceed all finite ones.

    Args:
      x: [...] float32.
      fmt: An input format; at most 15 bits of significand and `shift` together.
      shift: By how much significands are shifted to the left, see `shifts`.

    Returns:
      [...] int32 words. The upper half is the significand with its sign, in units of the last
      place, shifted; the lower half the exponent, biased. The exponent is not normalised: a
      subnormal number has the format's least one.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    field = (bits >> 23) & 255
    exponent = jnp.maximum(field, 1) - 127
    magnitude = (jnp.minimum(field, 1) << 23) | (bits & 0x7F_FFFF)
    below_least = jnp.clip(fmt.min_exponent - exponent, 0, 31)
    magnitude = (magnitude >> (23 - fmt.mantissa_bits)) >> below_least
    exponent = jnp.maximum(exponent, fmt.min_exponent)
    exponent = jnp.where(magnitude == 0, _NOTHING, exponent)
    exponent = jnp.where(field == 255, _INFINITE_OPERAND, exponent)
    significand = jnp.where(bits < 0, -magnitude, magnitude)
    return (significand << (16 + shift)) | (exponent + _BIAS)


def shifts(
    core: hardware.TensorCore, input_formats: tuple[str, str] | None = None
) -> tuple[int, int]:
    """By how much the two operands are shifted, so that products are in units of the alignment.

    Their formats are `core.input_format` where none are given.
    """
    first, second = map(formats.get, input_formats or (core.input_format,) * 2)
    both = core.fraction_bits - first.mantissa_bits - second.mantissa_bits
    return both // 2, both - both // 2


def indicator(x: jax.Array) -> jax.Array:
    """float32: -1, 0 or 1 where `x` is finite, and `x` itself where it is not.

    IEEE arithmetic on indicators says what the sum of the products is if it is not finite: small
    integers are exact, and infinities and NaN behave as they do in the tensor core.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    sign = jnp.where(bits < 0, -1.0, 1.0)
    finite = jnp.where(bits & 0x7FFF_FFFF == 0, 0.0, sign)
    return jnp.where((bits >> 23) & 255 == 255, x, finite)


def with_specials(total: jax.Array, special: jax.Array) -> jax.Array:
    """`total`, except where `special`, the same sum over indicators, is not finite.

    NaN is 0x7FFFFFFF. An infinity from overflow that meets an infinite product of the other sign
    is NaN: there `total` stayed at the sign of the overflow. `total` is NaN itself where two
    infinities from overflow met.
    """
    got = lax.bitcast_convert_type(total, jnp.int32)
    must = lax.bitcast_convert_type(special, jnp.int32)
    infinite = must & 0x7FFF_FFFF == _INFINITY_BITS
    nan = (must & 0x7FFF_FFFF > _INFINITY_BITS) | (infinite & (got != must))
    nan = nan | (got & 0x7FFF_FFFF > _INFINITY_BITS)
    return lax.bitcast_convert_type(jnp.where(nan, 0x7FFF_FFFF, got), jnp.float32)


def chain(
    a: jax.Array, b: jax.Array, c: jax.Array, core: hardware.TensorCore, *, outer: bool
) -> jax.Array:
    """The accumulator after all blocks, K being walked as `core` does it.

    Args:
      a: [K, ...] words with the first of `shifts(core)`, K a multiple of `core.stride`.
      b: [K, ...] words with the second.
      c: [...] float32, values of `core.output_format`.
      core: The block; of two input formats, with the one that has more digits.
      outer: False: `a`, `b` and `c` have the same axes, besides K. True: they are [K, batch, M],
        [K, batch, N] and [batch, M, N].

    Returns:
      [...] float32, values of `core.output_format`; not meaningful where an operand is NaN.
    """
    accumulator = formats.get(core.output_format)
    steps = a.shape[0] // core.stride
    if steps == 0:
        return c
    words = [x.reshape(steps, core.stride, *x.shape[1:]) for x in (a, b)]

    def products(index: jax.Array | int) -> list[jax.Array]:
        return [lax.dynamic_index_in_dim(x, index, keepdims=False) for x in words]

    def step(
        index: jax.Array, carry: tuple[jax.Array, list[jax.Array]]
    ) -> tuple[jax.Array, list[jax.Array]]:
        code, (step_a, step_b) = carry
        if outer:
            step_a, step_b = step_a[..., None], step_b[..., None, :]
        following = _interleaved if core.interleaved else _fused
        return following(step_a, step_b, code, core), products(index + 1)

    # The next block is part of what is carried, which puts it in memory: where it is cut out by the
    # loop that uses it, XLA's CPU compiler does not vectorise that loop, and it is 8 times slower.
    code, _ = lax.fori_loop(0, steps, step, (_to_code(c, accumulator), products(0)))
    return _from_code(code, accumulator)


def _fused(a: _Words, b: _Words, code: jax.Array, core: hardware.TensorCore) -> jax.Array:
    """The accumulator after one block in which it is a term."""
    accumulator = formats.get(core.output_format)
    return _close(_block(a, b, _open(code, accumulator), core), accumulator)


def _interleaved(a: _Words, b: _Words, code: jax.Array, core: hardware.TensorCore) -> jax.Array:
    """The accumulator after two interleaved blocks that start from 0, and to which it is added."""
    total = jnp.zeros_like(code)
    for parity in (0, 1):
        half = [i for i in range(core.stride) if i // 2 % 2 == parity]
        total = _fused([a[i] for i in half], [b[i] for i in half], total, core)
    return _plus(total, code, core)


def _plus(x: jax.Array, y: jax.Array, core: hardware.TensorCore) -> jax.Array:
    """x + y of accumulators, `x` not NaN, rounded to nearest even."""
    fmt = formats.get(core.output_format)
    first, second = _open(x, fmt), _open(y, fmt)
    top = jnp.maximum(first.exponent, second.exponent)
    terms = []
    for term in (first, second):
        # 29 bits, of which 5 or more lie below the format. Where bits are cut off, the last one
        # left is set: then at most one bit cancels, and rounding only asks if there was a rest.
        wide = term.magnitude << (28 - fmt.mantissa_bits)
        shift = jnp.minimum(top - term.exponent, 31)
        kept = wide >> shift
        kept = kept | (kept << shift != wide)
        terms.append((kept ^ term.sign) - term.sign)
    leading, sign, exponent = _normalised(terms[0] + terms[1])
    total = _close(_round(leading, sign, exponent + top - 28, fmt, "nearest_even"), fmt)
    infinity = (2**fmt.exponent_bits - 1) << fmt.mantissa_bits
    size_x, size_y = x & 0x7FFF_FFFF, y & 0x7FFF_FFFF
    opposite = (size_x == infinity) & (size_y == infinity) & ((x ^ y) < 0)
    nan = infinity | (2**fmt.mantissa_bits - 1)
    return jnp.where(opposite | (size_y > infinity), nan, total)


def _block(a: _Words, b: _Words, c: _Sum, core: hardware.TensorCore) -> _Sum:
    """The sum of one block's products and `c`, rounded to `core.sum_format`.

    Zero is +0, also where a negative sum is cut off to zero (MMA-Sim 2.1.1 does so).

    Returns:
      A value of the accumulator's format, with its `m`.
    """
    accumulator = formats.get(core.output_format)
    exponents = [((a[i] & 0xFFFF) - 2 * _BIAS) + (b[i] & 0xFFFF) for i in range(core.products)]
    top = functools.reduce(jnp.maximum, exponents)
    top = jnp.maximum(top, jnp.maximum(c.exponent, core.min_exponent))

    # The accumulator may have more bits than are kept, or fewer.
    widening = max(core.fraction_bits - accumulator.mantissa_bits, 0)
    narrowing = max(accumulator.mantissa_bits - core.fraction_bits, 0)
    shift = jnp.minimum(top - c.exponent + narrowing, 31)
    aligned = lax.shift_right_logical(c.magnitude << widening, shift)
    terms = [(aligned ^ c.sign) - c.sign]
    for i, exponent in enumerate(exponents):
        product = (a[i] >> 16) * (b[i] >> 16)
        # An arithmetic shift of the one's complement of a magnitude truncates towards zero.
        sign = product >> 31
        terms.append(((product + sign) >> jnp.minimum(top - exponent, 31)) - sign)
    leading, sign, exponent = _add(terms, core)
    sums = formats.get(core.sum_format)
    total = _round(leading, sign, exponent + top - core.fraction_bits, sums, core.final_rounding)
    unkept = accumulator.mantissa_bits - sums.mantissa_bits
    return total._replace(magnitude=total.magnitude << unkept)


def _add(
    terms: list[jax.Array], core: hardware.TensorCore
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The exact sum: its magnitude, shifted so that bit 30 leads; its sign; which bit had led."""
    # The accumulator is below 2 in units of the alignment, a product at most the square of the
    # largest significand: for FP8 with its few bits clearly less than 4, and that is needed.
    significand = 2 ** formats.get(core.input_format).precision - 1
    product = significand**2 << sum(shifts(core))
    most = core.products * product + 2 ** (core.fraction_bits + 1)
    half = len(terms) // 2
    if most >= 2**32 or (len(terms) - half) * product >= 2**31:
        raise ValueError(f"{core.products} products with {core.fraction_bits} bits exceed 32 bits.")
    if most < 2**31:
        return _normalised(functools.reduce(jnp.add, terms))
    # The sum may need 32 bits beside the sign: its halves tell the sign, its low 32 bits the rest.
    first = functools.reduce(jnp.add, terms[:half])
    second = functools.reduce(jnp.add, terms[half:])
    sign = ((first >> 1) + (second >> 1) + (first & second & 1)) >> 31
    magnitude = ((first + second) ^ sign) - sign
    zeros = lax.clz(magnitude) & 31
    shifted = magnitude << zeros
    # Both ways of rounding are content to know whether there was anything in the last bit.
    return ((shifted >> 1) & 0x7FFF_FFFF) | (shifted & 1), sign, 31 - zeros


def _normalised(total: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What `_add` returns, of a sum within 31 bits and a sign."""
    sign = total >> 31
    magnitude = (total ^ sign) - sign
    # Without the bit after the leading one, no rounding of the conversion reaches the next power of
    # two, so its exponent field is that of the leading bit. For 0 it is 0. A direct count of zeros
    # takes four times as many instructions without AVX-512.
    as_float = (magnitude & ~(magnitude >> 1)).astype(jnp.float32)
    field = lax.bitcast_convert_type(as_float, jnp.int32) >> 23
    return magnitude << ((157 - field) & 31), sign, field - 127


def _round(
    leading: jax.Array, sign: jax.Array, exponent: jax.Array, fmt: formats.FloatFormat, mode: str
) -> _Sum:
    """leading * 2**(exponent - 30), rounded to `fmt`, whatever its exponent."""
    kept = jnp.maximum(exponent, fmt.min_exponent)
    drop = 30 - fmt.mantissa_bits + kept - exponent
    if mode == "toward_zero":
        return _Sum(leading >> jnp.minimum(drop, 31), kept, sign)
    # Half a unit less one, plus one if the last kept bit is odd; nothing is left beyond 31.
    shift = jnp.minimum(drop, 31)
    odd = (leading >> shift) & 1
    up = leading + ((1 << (shift - 1)) - 1) + odd
    rounded = lax.shift_right_logical(up, shift)
    return _Sum(jnp.where(drop > 31, 0, rounded), kept, sign)


def _close(total: _Sum, fmt: formats.FloatFormat) -> jax.Array:
    """int32: the IEEE code of an accumulator, its sign moved to bit 31."""
    infinity = (2**fmt.exponent_bits - 1) << fmt.mantissa_bits
    # The leading bit of a normal magnitude adds 1 to the field, a carry of rounding another 1.
    code = ((total.exponent - fmt.min_exponent) << fmt.mantissa_bits) + total.magnitude
    code = jnp.where(total.exponent > fmt.max_exponent, infinity, code) | (total.sign << 31)
    return jnp.where(total.magnitude == 0, 0, code)


def _open(code: jax.Array, fmt: formats.FloatFormat) -> _Sum:
    """The accumulator that `_close` packed; an infinite one exceeds everything."""
    last_field = 2**fmt.exponent_bits - 1
    field = (code >> fmt.mantissa_bits) & last_field
    magnitude = jnp.minimum(field, 1) << fmt.mantissa_bits
    magnitude = magnitude | (code & (2**fmt.mantissa_bits - 1))
    exponent = jnp.maximum(field, 1) + (fmt.min_exponent - 1)
    exponent = jnp.where(magnitude == 0, _NOTHING, exponent)
    exponent = jnp.where(field == last_field, _INFINITE_SUM, exponent)
    return _Sum(magnitude, exponent, code >> 31)


def _to_code(c: jax.Array, fmt: formats.FloatFormat) -> jax.Array:
    if fmt.name == "fp32":
        return lax.bitcast_convert_type(c, jnp.int32)
    half = lax.bitcast_convert_type(c.astype(jnp.float16), jnp.int16).astype(jnp.int32)
    return (half & 0x7FFF) | (half & -(2**31))


def _from_code(code: jax.Array, fmt: formats.FloatFormat) -> jax.Array:
    if fmt.name == "fp32":
        return lax.bitcast_convert_type(code, jnp.float32)
    half = (code & 0x7FFF) | ((code >> 16) & 0x8000)
    return lax.bitcast_convert_type(half.astype(jnp.uint16), jnp.float16).astype(jnp.float32)
