"""Rounding to a number of mantissa bits that is data: one compilation for all of them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jprec import formats
from jprec.rounding import modes
from jprec.rounding.dither import draw
from jprec.rounding.kernel import MAX_RANDOM_BITS, described
from jprec.rounding.modes import Cut
from jprec.rounding.storage import as_floats, check_key

#: Mantissa bits that FP32 stores.
_MOST = 23


def round_to_mantissa(
    x: jax.typing.ArrayLike,
    mantissa_bits: jax.typing.ArrayLike,
    mode: str = "nearest_even",
    *,
    key: jax.Array | None = None,
) -> jax.Array:
    """Rounds `x` to FP32's range with so many stored mantissa bits, a number that may be traced.

    Bit for bit what `round_to` makes of the format "e8mN", with every option at its default: 23
    bits change nothing, 10 are TF32, 7 are BF16. There N is part of the program; here a sweep over
    N compiles once, and `vmap` may run along N. NaN stays the NaN it was, infinity infinity, and a
    number of the largest magnitude may round to infinity. Derivatives pass straight through.

    Args:
      x: [...] float32.
      mantissa_bits: Integers from 1 to 23, not counting the implicit bit: one for all, or an array
        that broadcasts to the shape of `x`. Where a traced one is none of these, which cannot be
        an error, the result is NaN.
      mode: One of `MODES`, see `round_to`.
      key: PRNG key, if and only if the mode is "stochastic".

    Returns:
      [...] float32.

    Raises:
      ValueError: No such mode; a key that is missing or of no use; a number of bits out of range,
        or of a shape that does not broadcast to that of `x`.
      TypeError: `x` is no float32 array, or `mantissa_bits` are no integers.

    >>> bits = jnp.arange(1, 5)[:, None]
    >>> round_to_mantissa(jnp.full((4, 1), 1.7), bits)[:, 0].tolist()
    [1.5, 1.75, 1.75, 1.6875]
    """
    described(formats.get("fp32"), mode=mode)  # an error for a mode that there is not
    check_key(mode, key)
    array, _ = as_floats(x)
    if array.dtype != jnp.float32:
        raise TypeError(
            f"x is an array of {array.dtype}, but it is one of float32 here. Convert it with "
            "x.astype(jnp.float32); round_to takes other dtypes."
        )
    return _round(array, _checked(mantissa_bits, array.shape), key, mode=mode)


def _checked(mantissa_bits: jax.typing.ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """The numbers of bits as an int32 array, after what can be checked was checked."""
    if not jnp.issubdtype(jnp.result_type(mantissa_bits), jnp.integer):
        raise TypeError(
            f"mantissa_bits={mantissa_bits!r}, but it counts bits: an integer, 1 to {_MOST}, or an "
            "array of integers."
        )
    if not isinstance(mantissa_bits, jax.core.Tracer):
        known = np.asarray(mantissa_bits)
        if known.size and not (known.min() >= 1 and known.max() <= _MOST):
            raise ValueError(
                f"mantissa_bits from {known.min()} to {known.max()}, but FP32 stores {_MOST} and a "
                f"format here has at least 1; give a number from 1 to {_MOST}."
            )
    bits = jnp.asarray(mantissa_bits)
    try:
        fits = jnp.broadcast_shapes(bits.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"mantissa_bits of shape {bits.shape} do not broadcast to x of shape {shape}; give one "
            "number for all, or one for each element."
        )
    return bits.astype(jnp.int32)


@functools.partial(jax.jit, static_argnames="mode")
def _round(
    x: jax.Array, mantissa_bits: jax.Array, key: jax.Array | None, *, mode: str
) -> jax.Array:
    # All random bits are drawn; of these a rounding uses as many as it drops, from the top. So the
    # result is that of `round_to`, which leaves out what it does not use.
    dither = None if key is None else draw(key, x.shape, MAX_RANDOM_BITS)
    return _rounded(x, mantissa_bits, dither, mode)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
def _rounded(
    x: jax.Array, mantissa_bits: jax.Array, dither: jax.Array | None, mode: str
) -> jax.Array:
    _, storage = as_floats(x)
    bits = storage.to_integer(x)
    valid = (mantissa_bits >= 1) & (mantissa_bits <= _MOST)
    dropped = _MOST - jnp.clip(mantissa_bits, 1, _MOST)
    # Sign and exponent stay in place: a carry out of the mantissa goes into the exponent as it
    # should, from the largest number to infinity, which itself has no bits to drop.
    unit = lax.shift_left(jnp.ones_like(dropped), dropped)
    cut = Cut(bits, dropped, unit, (bits & unit) != 0, bits < 0, dither)
    rounded = (bits + modes.TABLE[mode].addend(cut)) & -unit
    rounded = jnp.where(valid, rounded, storage.nan)
    return storage.from_integer(jnp.where((bits & ~storage.sign) > storage.infinity, bits, rounded))


@_rounded.defjvp
def _rounded_jvp(
    mode: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    return _rounded(*primals, mode), tangents[0]
