"""The front of the room: `round_to`."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats
from jprec.rounding.kernel import Rounding, default_random_bits, round_bits
from jprec.rounding.storage import Storage, as_floats, check_fits


def round_to(
    x: jax.typing.ArrayLike,
    fmt: formats.FormatLike,
    mode: str = "nearest_even",
    *,
    overflow: str = "format",
    subnormals: str = "keep",
    key: jax.Array | None = None,
    random_bits: int | None = None,
) -> jax.Array:
    """Rounds `x` to values of `fmt`, and returns them in the dtype of `x`.

    NaN stays the NaN it was, in every format. A number overflows when it exceeds the largest value
    after rounding as if the exponent had no end: it becomes infinity in a format that has it, else
    NaN, else the largest value; "toward_zero", "to_odd", and "up" and "down" where they point
    inward, stop at the largest value. Infinity counts as beyond every format without it. The sign
    of zero is kept in formats with -0. e8m0fnu has neither sign nor zero: negative numbers and zero
    become NaN, and smaller numbers than its smallest become that.

    The derivative is straight-through by declaration: tangents and cotangents pass unchanged.

    Args:
      x: [...] float32, bfloat16 or float16 (float64 under jax_enable_x64). All values of `fmt` must
        be values of that dtype.
      fmt: A format or its name, see `jprec.formats.get`.
      mode: "nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd" (the neighbour
        whose last bit is odd), or "stochastic": away from zero with the probability that is the
        distance from the neighbour toward zero in ulps, cut off after `random_bits` bits.
      overflow: "format", or "saturate": what overflows becomes the largest value.
      subnormals: "keep"; "flush_input", which zeroes what is subnormal in the dtype of `x`, before
        rounding; "flush_output", which zeroes what is subnormal in `fmt`, after rounding; "flush":
        both. The sign stays.
      key: PRNG key, if and only if the mode is "stochastic". Elements draw independently. Under
        `vmap` a shared key means shared draws.
      random_bits: Random bits for each element of a stochastic rounding, 1 to 32. Rounding is
        exactly unbiased where no more bits than these are dropped. By default 16 where that is
        everywhere (bf16 and tf32 from float32), else 32: enough for all but subnormal results.

    Returns:
      [...] of the dtype of `x`.

    >>> round_to(jnp.float32([1000.0, 43008.11, 70000.0]), "fp16").tolist()
    [1000.0, 43008.0, inf]
    """
    rounding = _rounding(formats.get(fmt), mode, overflow, subnormals, random_bits)
    if (key is not None) != (mode == "stochastic"):
        raise ValueError(
            f"mode={mode!r} "
            + (
                "uses no key; leave it out."
                if key is not None
                else "needs a key=jax.random.key(...)."
            )
        )
    array, storage = as_floats(x)
    check_fits(rounding.format, array.dtype)
    if rounding.is_plain and rounding.format == formats.get(array.dtype):
        return array
    return _round(array, key, rounding=rounding, storage=storage)


@functools.cache
def _rounding(
    fmt: formats.FloatFormat, mode: str, overflow: str, subnormals: str, random_bits: int | None
) -> Rounding:
    return Rounding(
        format=fmt, mode=mode, overflow=overflow, subnormals=subnormals, random_bits=random_bits
    )


@functools.partial(jax.jit, static_argnames=("rounding", "storage"))
def _round(
    x: jax.Array, key: jax.Array | None, *, rounding: Rounding, storage: Storage
) -> jax.Array:
    dither = None if key is None else _draw(key, x.shape, rounding, storage)
    return straight_through(x, dither, rounding, storage)


def _draw(
    key: jax.Array, shape: tuple[int, ...], rounding: Rounding, storage: Storage
) -> jax.Array:
    """Uniform random bits: [*shape] uint32, the wanted number of bits at the top, zeros below."""
    wanted = rounding.random_bits or default_random_bits(rounding.format, storage.format)
    if wanted > 16:
        drawn = jax.random.bits(key, shape, jnp.uint32)
    else:  # drawing is most of the work, and one draw is enough for two numbers
        count = math.prod(shape)
        pairs = jax.random.bits(key, ((count + 1) // 2,), jnp.uint32)
        drawn = jnp.concatenate([pairs, pairs << 16])[:count].reshape(shape)
    unused = 32 - wanted
    return (drawn >> unused) << unused


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def straight_through(
    x: jax.Array, dither: jax.Array | None, rounding: Rounding, storage: Storage
) -> jax.Array:
    """Rounds `x`; its derivative is declared to be 1."""
    # Raising a 16-bit dtype to FP32 is exact, and so is the way back: `check_fits` has seen to it.
    held = lax.convert_element_type(x, storage.dtype)
    smallest_normal = formats.get(x.dtype).min_normal
    bits = round_bits(storage.to_integer(held), dither, rounding, storage, smallest_normal)
    return lax.convert_element_type(storage.from_integer(bits), x.dtype)


@straight_through.defjvp
def _straight_through_jvp(
    rounding: Rounding, storage: Storage, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    return straight_through(*primals, rounding, storage), tangents[0]
