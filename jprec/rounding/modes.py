"""The rounding modes, each as what it adds before the low bits are cut off."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jprec.rounding.storage import Storage

Integers: TypeAlias = jax.Array | int


class Cut(NamedTuple):
    """Patterns about to lose their low bits.

    Attributes:
      pattern: [...] integers, the numbers' magnitudes (or, where no mode minds, with their signs).
      dropped: How many bits are lost: an integer for all, or [...].
      unit: What they count to, 2**dropped.
      is_odd: [...] bool, whether the last bit that is kept is set.
      negative: [...] bool, whether the number is negative.
      dither: [...] uint32 random bits, left-aligned, or None.
    """

    pattern: jax.Array
    dropped: Integers
    unit: Integers
    is_odd: jax.Array
    negative: jax.Array
    dither: jax.Array | None


class Tiny(NamedTuple):
    """Magnitudes below the smallest value of a format: each becomes that value or zero.

    Attributes:
      pattern: [...] integers.
      half: The pattern of half the smallest value.
      negative: [...] bool, whether the number is negative.
      dither: [...] uint32 random bits, left-aligned, or None.
      storage: How the patterns are to be read.
    """

    pattern: jax.Array
    half: int
    negative: jax.Array
    dither: jax.Array | None
    storage: Storage


class Mode(NamedTuple):
    """A rounding mode, as two functions.

    Attributes:
      addend: What is added to a pattern before its low bits are cut off. It is less than the unit;
        so no mode moves a value of the format, or goes past one of a number's neighbours.
      lifts: Which of the tiny numbers become the smallest value, not zero.
    """

    addend: Callable[[Cut], Integers]
    lifts: Callable[[Tiny], jax.Array | bool]


def _all_but_one(cut: Cut, wanted: jax.Array) -> jax.Array:
    """Enough to pass to the next multiple of the unit from anything but a multiple."""
    return jnp.where(wanted, cut.unit - 1, jnp.zeros_like(cut.pattern))


def _dither_addend(cut: Cut) -> jax.Array:
    """As many of the random bits as are dropped."""
    assert cut.dither is not None
    width = 8 * cut.pattern.dtype.itemsize
    aligned = cut.dither.astype(f"uint{width}") << (width - 32)
    shift = jnp.broadcast_to(width - cut.dropped, aligned.shape).astype(aligned.dtype)
    return lax.shift_right_logical(aligned, shift).astype(cut.pattern.dtype)


def _dither_lifts(tiny: Tiny) -> jax.Array:
    """Compares the random bits with the fraction of the smallest value, cut off at 2**-32."""
    assert tiny.dither is not None
    bits, implicit_bit = tiny.storage.format.mantissa_bits, tiny.storage.implicit_bit
    field = tiny.pattern >> bits
    significand = tiny.pattern & (implicit_bit - 1)
    significand = jnp.where(field > 0, significand | implicit_bit, significand)
    from_31 = bits - 31  # so that the implicit bit becomes 2**31: half of the smallest value
    aligned = significand >> from_31 if from_31 > 0 else significand.astype(jnp.uint32) << -from_31
    binades = (tiny.half >> bits) - jnp.maximum(field, 1)
    fraction = lax.shift_right_logical(
        aligned.astype(jnp.uint32), jnp.clip(binades, 0, 32).astype(jnp.uint32)
    )
    # ~dither < fraction: a carry out of dither + fraction.
    return ~tiny.dither < fraction


#: Every mode that `round_to` takes.
TABLE = {
    "nearest_even": Mode(
        # Half a unit, less one if the last bit that is kept is even; nothing if the unit is 1.
        addend=lambda cut: (cut.unit - 1 + cut.is_odd.astype(cut.pattern.dtype)) >> 1,
        lifts=lambda tiny: tiny.pattern > tiny.half,
    ),
    "nearest_away": Mode(
        addend=lambda cut: cut.unit >> 1,
        lifts=lambda tiny: tiny.pattern >= tiny.half,
    ),
    "toward_zero": Mode(addend=lambda cut: 0, lifts=lambda tiny: False),
    "up": Mode(
        addend=lambda cut: _all_but_one(cut, ~cut.negative),
        lifts=lambda tiny: (tiny.pattern > 0) & ~tiny.negative,
    ),
    "down": Mode(
        addend=lambda cut: _all_but_one(cut, cut.negative),
        lifts=lambda tiny: (tiny.pattern > 0) & tiny.negative,
    ),
    "to_odd": Mode(
        addend=lambda cut: _all_but_one(cut, ~cut.is_odd),
        lifts=lambda tiny: tiny.pattern > 0,
    ),
    "stochastic": Mode(addend=_dither_addend, lifts=_dither_lifts),
}

#: The names of the rounding modes.
MODES = tuple(TABLE)
