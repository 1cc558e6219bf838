"""The front of the room: `round_to`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats
from jprec.rounding.dither import draw
from jprec.rounding.kernel import Rounding, default_random_bits, described, round_bits
from jprec.rounding.storage import Storage, as_floats, check_fits, check_key


def round_to(
    x: jax.typing.ArrayLike,
    fmt: formats.FormatLike,
    mode: str = "nearest_even",
    *,
    overflow: str = "format",
    subnormals: str = "keep",
    key: jax.Array | None = None,
    random_bits: int | None = None,
    derivative: str = "straight_through",
) -> jax.Array:
    """Rounds `x` to values of `fmt`, and returns them in the dtype of `x`.

    NaN stays the NaN it was, in every format. The sign of zero is kept in formats with -0. A number
    overflows when it exceeds the largest value after rounding as if the exponent had no end: it
    becomes infinity in a format that has it, else NaN, else the largest value; "toward_zero",
    "to_odd", and "up" and "down" where they point inward, stop at the largest value. A stochastic
    rounding overflows as the nearest modes do, with its own probability. Infinity counts as beyond
    every format without it. docs/rounding.md has the table. In a format without sign, negative
    numbers become NaN, or zero with "saturate", unless they round, or are flushed, to zero. e8m0fnu
    has neither sign nor zero: negative numbers and zero become NaN, smaller numbers than its
    smallest become that, and ties go up.

    The derivative of rounding is zero almost everywhere, and useless; so it is declared instead.

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
        `vmap`, and in the shards of `shard_map`, a shared key means shared draws.
      random_bits: Random bits for each element of a stochastic rounding, 1 to 32. Rounding is
        exactly unbiased where no more bits than these are dropped. By default 16 where that is
        everywhere (bf16 and tf32 from float32), else 32: enough for all but subnormal results.
        Elsewhere the bias is at most 2**-random_bits ulp, toward zero.
      derivative: "straight_through": tangents and cotangents pass unchanged (Bengio, Léonard,
        Courville, "Estimating or Propagating Gradients Through Stochastic Neurons", 2013);
        "clipped": they pass where `x` lies within the largest values of `fmt`, and are zero
        elsewhere (Hubara et al., "Binarized Neural Networks", 2016, eq. 4); "zero".

    Returns:
      [...] of the dtype of `x`.

    Raises:
      ValueError: An option has no such choice, or cannot act in this mode or format.
      TypeError: `x` is no array of these dtypes, or its dtype does not hold all values of `fmt`.

    >>> round_to(jnp.float32([1000.0, 43008.11, 70000.0]), "fp16").tolist()
    [1000.0, 43008.0, inf]
    """
    rounding = described(
        formats.get(fmt),
        mode=mode,
        overflow=overflow,
        subnormals=subnormals,
        random_bits=random_bits,
        derivative=derivative,
    )
    check_key(mode, key)
    array, storage = as_floats(x)
    check_fits(rounding.format, array.dtype)
    unchanged = rounding.is_plain and rounding.format == formats.get(array.dtype)
    if unchanged and derivative == "straight_through":
        return array
    return _round(array, key, rounding=rounding, storage=storage)


@functools.partial(jax.jit, static_argnames=("rounding", "storage"))
def _round(
    x: jax.Array, key: jax.Array | None, *, rounding: Rounding, storage: Storage
) -> jax.Array:
    dither = None
    if key is not None:
        wanted = rounding.random_bits or default_random_bits(rounding.format, storage.format)
        dither = draw(key, x.shape, wanted)
    return rounded(x, dither, rounding, storage)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def rounded(
    x: jax.Array, dither: jax.Array | None, rounding: Rounding, storage: Storage
) -> jax.Array:
    """Rounds `x`; its derivative is the one that `rounding` declares."""
    # Raising a 16-bit dtype to FP32 is exact, and so is the way back: `check_fits` has seen to it.
    held = lax.convert_element_type(x, storage.dtype)
    smallest_normal = formats.get(x.dtype).min_normal
    bits = round_bits(storage.to_integer(held), dither, rounding, storage, smallest_normal)
    result = lax.convert_element_type(storage.from_integer(bits), x.dtype)
    if x.dtype == storage.dtype:
        return result
    # The conversions quiet NaNs and drop their payload, and XLA selects BF16 numbers by converting.
    own, found = (lax.bitcast_convert_type(numbers, jnp.int16) for numbers in (x, result))
    kept = jnp.where((own & 0x7FFF) > formats.get(x.dtype).infinity_code, own, found)
    return lax.bitcast_convert_type(kept, x.dtype)


@rounded.defjvp
def _rounded_jvp(
    rounding: Rounding, storage: Storage, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    x, tangent = primals[0], tangents[0]
    if rounding.derivative == "zero":
        tangent = jnp.zeros_like(tangent)
    if rounding.derivative == "clipped":
        bits = storage.to_integer(lax.convert_element_type(x, storage.dtype))
        inside = (bits & ~storage.sign) <= storage.pattern(rounding.format.max)
        if not rounding.format.signed:
            inside &= (bits >= 0) | (bits == storage.sign)  # -0 is no negative number
        tangent = jnp.where(inside, tangent, jnp.zeros_like(tangent))
    return rounded(*primals, rounding, storage), tangent
