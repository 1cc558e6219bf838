"""Exponents and spacings of arrays, by bits: right for FP32 subnormals on every backend."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats
from jprec.rounding.storage import Storage, as_floats, check_fits

#: `exponent` of zero: below every exponent, and far from the ends of int32.
EXPONENT_OF_ZERO = -(2**30)

#: `exponent` of infinity and NaN: above every exponent, and far from the ends of int32.
EXPONENT_OF_NONFINITE = 2**30


def exponent(x: jax.typing.ArrayLike) -> jax.Array:
    """The exponent e with 2**e <= |x| < 2**(e + 1), subnormals included.

    Args:
      x: [...] float32, bfloat16 or float16 (float64 under jax_enable_x64).

    Returns:
      [...] int32; EXPONENT_OF_ZERO for zero, EXPONENT_OF_NONFINITE for infinity and NaN.

    >>> exponent(jnp.float32([1.0, 1.999, 2.0, 1e-45])).tolist()
    [0, 0, 1, -149]
    """
    array, storage = as_floats(x)
    return _exponent(array, storage=storage)


@functools.partial(jax.jit, static_argnames="storage")
def _exponent(x: jax.Array, *, storage: Storage) -> jax.Array:
    held = storage.format
    bits = storage.to_integer(lax.convert_element_type(x, storage.dtype))
    magnitude = bits & ~storage.sign
    field = magnitude >> held.mantissa_bits
    # A subnormal number is an integer multiple of the smallest: its highest bit says the rest.
    highest_bit = held.bits - 1 - lax.clz(magnitude)
    subnormal = highest_bit + (held.min_exponent - held.mantissa_bits)
    result = jnp.where(field > 0, field - held.bias, subnormal).astype(jnp.int32)
    result = jnp.where(magnitude == 0, EXPONENT_OF_ZERO, result)
    return jnp.where(magnitude >= storage.infinity, EXPONENT_OF_NONFINITE, result)


def ulp(x: jax.typing.ArrayLike, fmt: formats.FormatLike) -> jax.Array:
    """The spacing of the values of `fmt` around `x`: 2**(max(exponent, min_exponent) - p + 1).

    Args:
      x: [...] float32, bfloat16 or float16 (float64 under jax_enable_x64).
      fmt: A format whose values are all values of FP32 (of FP64 for float64).

    Returns:
      [...] float32 (float64 for float64); the smallest spacing for zero, NaN for infinity and NaN.
      Beyond the largest value of `fmt` the formula goes on.

    >>> ulp(jnp.float32([43008.0, 0.0]), "fp16").tolist() == [32.0, 2.0**-24]
    True
    """
    fmt = formats.get(fmt)
    array, storage = as_floats(x)
    check_fits(fmt, storage.dtype)
    return _ulp(array, fmt=fmt, storage=storage)


@functools.partial(jax.jit, static_argnames=("fmt", "storage"))
def _ulp(x: jax.Array, *, fmt: formats.FloatFormat, storage: Storage) -> jax.Array:
    held = storage.format
    exponents = _exponent(x, storage=storage)
    power = jnp.maximum(exponents, fmt.min_exponent) - fmt.mantissa_bits
    power = power.astype(storage.integer)
    # 2**power, as a normal number or as a subnormal one.
    last = held.max_exponent - fmt.mantissa_bits
    normal = (jnp.minimum(power, last) + held.bias) << held.mantissa_bits
    shift = jnp.clip(power - (held.min_exponent - held.mantissa_bits), 0, held.mantissa_bits)
    subnormal = lax.shift_left(jnp.ones_like(power), shift)
    bits = jnp.where(power < held.min_exponent, subnormal, normal)
    bits = jnp.where(exponents == EXPONENT_OF_NONFINITE, storage.nan, bits)
    return storage.from_integer(bits)
