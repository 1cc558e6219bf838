"""The rounding itself, on integers.

XLA flushes FP32 subnormals in arithmetic and comparisons on a CPU, removes pairs of casts on a GPU,
and its `reduce_precision` flushes the target's subnormals. Integers are left alone by all of them.
"""

import dataclasses
import difflib
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats
from jprec.rounding import modes
from jprec.rounding.modes import Cut, Integers, Tiny
from jprec.rounding.storage import Storage

#: What happens to subnormal numbers, see `round_to`.
SUBNORMALS = ("keep", "flush_input", "flush_output", "flush")

#: What is declared as the derivative, see `round_to`.
DERIVATIVES = ("straight_through", "clipped", "zero")

#: Most random bits that a stochastic rounding uses for one number.
MAX_RANDOM_BITS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounding:
    """How numbers are rounded; the options are those of `round_to`, and are checked here."""

    format: formats.FloatFormat
    mode: str = "nearest_even"
    overflow: str = "format"
    subnormals: str = "keep"
    random_bits: int | None = None
    derivative: str = "straight_through"

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, modes.MODES)
        _check_choice("overflow", self.overflow, formats.OVERFLOWS)
        _check_choice("subnormals", self.subnormals, SUBNORMALS)
        _check_choice("derivative", self.derivative, DERIVATIVES)
        if self.flushes_output and not self.format.has_subnormals:
            raise ValueError(
                f"subnormals={self.subnormals!r}, but {self.format.name} has no subnormals; leave "
                "it at 'keep'."
            )
        if self.random_bits is not None and self.mode != "stochastic":
            raise ValueError(
                f"random_bits={self.random_bits}, but mode={self.mode!r} is not random; leave it "
                "out or choose mode='stochastic'."
            )
        if self.random_bits is not None and self.random_bits not in range(1, MAX_RANDOM_BITS + 1):
            raise ValueError(f"random_bits={self.random_bits!r}, but it is 1 to {MAX_RANDOM_BITS}.")

    @property
    def flushes_input(self) -> bool:
        """Whether subnormal inputs become zero."""
        return self.subnormals in ("flush_input", "flush")

    @property
    def flushes_output(self) -> bool:
        """Whether subnormal results become zero."""
        return self.subnormals in ("flush_output", "flush")

    @property
    def is_plain(self) -> bool:
        """Whether overflow and subnormals are left to the format."""
        return self.overflow == "format" and self.subnormals == "keep"


@functools.cache
def _described(fmt: formats.FloatFormat, options: tuple[tuple[str, Any], ...]) -> Rounding:
    return Rounding(format=fmt, **dict(options))


def described(fmt: formats.FloatFormat, **options: Any) -> Rounding:
    """The Rounding with these options; the same object for the same ones."""
    try:
        return _described(fmt, tuple(sorted(options.items())))
    except TypeError:  # an option that cannot be hashed is none: say so
        return Rounding(format=fmt, **options)


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        close = difflib.get_close_matches(str(value), allowed, n=1)
        raise ValueError(
            f"{option}={value!r}, but it is one of {', '.join(allowed)}."
            + (f" Did you mean {close[0]!r}?" if close else "")
        )


def round_bits(
    bits: jax.Array,
    dither: jax.Array | None,
    rounding: Rounding,
    storage: Storage,
    smallest_normal_input: float,
) -> jax.Array:
    """The bits of the rounded numbers.

    Args:
      bits: [...] signed integers, the bits of numbers in `storage`.
      dither: [...] uint32 uniform random bits, left-aligned; None unless the mode is stochastic.
      rounding: What to do.
      storage: How the numbers are stored, before and after.
      smallest_normal_input: Below this, inputs count as subnormal.

    Returns:
      [...] signed integers like `bits`. NaNs are returned as they came.
    """
    fmt = rounding.format
    magnitude = bits & ~storage.sign
    if _same_range(fmt, storage.format) and rounding.is_plain:
        rounded = _round_in_place(bits, dither, rounding, storage)
        return jnp.where(magnitude > storage.infinity, bits, rounded)

    negative = bits < 0
    kept = magnitude
    if rounding.flushes_input:
        kept = jnp.where(magnitude < storage.pattern(smallest_normal_input), 0, magnitude)
    rounded = _round_magnitude(kept, negative, dither, rounding, storage)
    if rounding.flushes_output:
        rounded = jnp.where(rounded < storage.pattern(fmt.min_normal), 0, rounded)
    if not fmt.has_zero:
        rounded = jnp.maximum(rounded, storage.pattern(fmt.min_subnormal))
    rounded = _overflow(kept, rounded, negative, rounding, storage)
    sign: Integers = bits & storage.sign
    if not fmt.signed:
        rounded, sign = _without_sign(kept, rounded, negative, rounding, storage), 0
    elif not fmt.has_negative_zero:
        sign = jnp.where(rounded == 0, 0, sign)
    return jnp.where(magnitude > storage.infinity, bits, rounded | sign)


def _same_range(fmt: formats.FloatFormat, held: formats.FloatFormat) -> bool:
    """Whether `fmt` is `held` with a shorter mantissa."""
    same_exponents = (fmt.exponent_bits, fmt.bias) == (held.exponent_bits, held.bias)
    return same_exponents and fmt.specials == held.specials


def default_random_bits(fmt: formats.FloatFormat, held: formats.FloatFormat) -> int:
    """16 where no number loses more bits than that, else 32."""
    dropped = held.mantissa_bits - fmt.mantissa_bits
    return 16 if _same_range(fmt, held) and dropped <= 16 else MAX_RANDOM_BITS


def _round_in_place(
    bits: jax.Array, dither: jax.Array | None, rounding: Rounding, storage: Storage
) -> jax.Array:
    """Rounds where the same number of bits is dropped everywhere, subnormals included.

    Sign and exponent stay in place: a carry out of the mantissa goes into the exponent as it
    should, from the largest number to infinity, which itself has no bits to drop.
    """
    dropped = storage.format.mantissa_bits - rounding.format.mantissa_bits
    unit = 1 << dropped
    cut = Cut(bits, dropped, unit, (bits & unit) != 0, bits < 0, dither)
    return (bits + modes.TABLE[rounding.mode].addend(cut)) & -unit


def _round_magnitude(
    magnitude: jax.Array,
    negative: jax.Array,
    dither: jax.Array | None,
    rounding: Rounding,
    storage: Storage,
) -> jax.Array:
    """The patterns of the rounded magnitudes, as if the format's exponent had no end."""
    mode, fmt = modes.TABLE[rounding.mode], rounding.format
    dropped = _dropped(magnitude, fmt, storage)
    unit = lax.shift_left(
        jnp.ones_like(magnitude), jnp.broadcast_to(dropped, magnitude.shape).astype(magnitude.dtype)
    )
    is_odd = _is_odd(magnitude, unit, fmt, storage)
    cut = Cut(magnitude, dropped, unit, is_odd, negative, dither)
    rounded = (magnitude + mode.addend(cut)) & -unit
    if not _has_tiny(fmt, storage):
        return rounded
    smallest = storage.pattern(fmt.min_subnormal)
    tiny = Tiny(magnitude, smallest - storage.implicit_bit, negative, dither, storage)
    lifted = jnp.where(mode.lifts(tiny), smallest, 0)
    return jnp.where(magnitude < smallest, lifted, rounded)


def _first_field(fmt: formats.FloatFormat, storage: Storage) -> int:
    """The exponent field, in the storage, of the format's smallest normal value."""
    return fmt.min_exponent + storage.format.bias


def _has_tiny(fmt: formats.FloatFormat, storage: Storage) -> bool:
    """Whether normal numbers of the storage lie below the format's smallest value.

    Their patterns are cut off wrongly: their leading bit is implicit, and would have to be cut.
    """
    return fmt.has_zero and _first_field(fmt, storage) - 1 > fmt.mantissa_bits


def _dropped(magnitude: jax.Array, fmt: formats.FloatFormat, storage: Storage) -> Integers:
    """How many low bits the patterns lose; right from the format's smallest value on."""
    held, first_field = storage.format, _first_field(fmt, storage)
    always = held.mantissa_bits - fmt.mantissa_bits
    if first_field == 1 or (first_field > 1 and not fmt.has_zero):
        return always
    field = magnitude >> held.mantissa_bits
    if first_field == 0:
        # The format's smallest binade is normal there, subnormal here: it has one bit less.
        return always - (field == 0).astype(magnitude.dtype)
    # Below its smallest normal value, the format drops one bit more for each binade. The storage's
    # subnormal numbers share the spacing of its first binade.
    more = jnp.maximum(first_field - jnp.maximum(field, 1), 0)
    return jnp.minimum(always + more, held.mantissa_bits)


def _is_odd(
    magnitude: jax.Array, unit: jax.Array, fmt: formats.FloatFormat, storage: Storage
) -> jax.Array:
    """Whether the code of the neighbour toward zero ends in 1."""
    if fmt.mantissa_bits == 0 and fmt.has_zero:
        # The code is the exponent field, which counts from 1.
        field, first_field = magnitude >> storage.format.mantissa_bits, _first_field(fmt, storage)
        odd = ((field - first_field + 1) & 1) != 0
        return jnp.where(field == 0, (magnitude & unit) != 0, odd) if first_field == 0 else odd
    if fmt.mantissa_bits == 0 or _has_tiny(fmt, storage):
        # Where only the significand's implicit bit is kept, that is the last bit kept.
        return ((magnitude | storage.implicit_bit) & unit) != 0
    return (magnitude & unit) != 0


def _overflow(
    magnitude: jax.Array,
    rounded: jax.Array,
    negative: jax.Array,
    rounding: Rounding,
    storage: Storage,
) -> jax.Array:
    """Puts in what stands for numbers beyond the largest value, as `round_exact` documents."""
    fmt = rounding.format
    largest = storage.pattern(fmt.max)
    beyond = storage.infinity if fmt.has_infinity else storage.nan
    if rounding.overflow == "saturate" or not fmt.has_nan:
        beyond = largest
    outward: Integers = beyond  # what finite numbers become
    if rounding.mode in ("toward_zero", "to_odd"):
        outward = largest
    elif rounding.mode in ("up", "down"):
        inward = negative if rounding.mode == "up" else ~negative
        outward = jnp.where(inward, largest, beyond)
    rounded = jnp.where(rounded > largest, outward, rounded)
    if outward is beyond:
        return rounded
    return jnp.where(magnitude == storage.infinity, beyond, rounded)


def _without_sign(
    magnitude: jax.Array,
    rounded: jax.Array,
    negative: jax.Array,
    rounding: Rounding,
    storage: Storage,
) -> jax.Array:
    """Puts in what a format without sign has for negative numbers, and e8m0fnu for zero."""
    fmt = rounding.format
    if not fmt.has_zero:
        return jnp.where(negative | (magnitude == 0), storage.nan, rounded)
    below = 0 if rounding.overflow == "saturate" or not fmt.has_nan else storage.nan
    return jnp.where(negative & (rounded != 0), below, rounded)
