"""Random bits for stochastic rounding: Threefry, drawn where they are used."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011: Threefry-2x32,
#: its rotations and the constant of its key schedule. The authors' header (Random123, threefry.h)
#: knows of no statistical flaw from 13 rounds on; JAX's own generator makes 20.
ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA

#: Each counter has its own 64 bits.
_COUNTERS = 2**32


def threefry(
    key: tuple[jax.Array, jax.Array], counter: tuple[jax.Array, jax.Array], *, rounds: int
) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 of `counter` under `key`, each two arrays of uint32 that broadcast."""
    schedule = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    low, high = counter[0] + schedule[0], counter[1] + schedule[1]
    for done in range(1, rounds + 1):
        turn = _ROTATIONS[(done - 1) % 8]
        low = low + high
        high = ((high << turn) | (high >> (32 - turn))) ^ low
        if done % 4 == 0:  # inject the key again
            injected = done // 4
            low = low + schedule[injected % 3]
            high = high + schedule[(injected + 1) % 3] + jnp.uint32(injected)
    return low, high


def draw(key: jax.Array, shape: tuple[int, ...], random_bits: int) -> jax.Array:
    """Uniform random bits: [*shape] uint32, `random_bits` bits at the top, zeros below.

    Element i in row-major order gets counter i, so XLA computes each where it is used, and no array
    of random bits is ever stored; `jax.random.bits` stores several (docs/decisions/0005).
    """
    low, high = threefry(_words(key), _counters(shape), rounds=ROUNDS)
    unused = 32 - random_bits
    return ((low ^ high) >> unused) << unused


def _words(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two words of a Threefry key; of another generator's key, two that it draws."""
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    if words.shape != (2,):
        words = jax.random.bits(key, (2,), jnp.uint32)
    return words[0], words[1]


def _counters(shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """A pair of words for each element: its position, row-major, as far as 32 bits go.

    The first word counts along the leading axes that are left over in larger arrays.
    """
    first = 0
    while math.prod(shape[first:]) > _COUNTERS:
        first += 1
    return _positions(shape, 0, first), _positions(shape, first, len(shape))


def _positions(shape: tuple[int, ...], start: int, stop: int) -> jax.Array:
    """The position of each element along the axes from `start` up to `stop`: [*shape] uint32."""
    position = jnp.zeros(shape, jnp.uint32)
    for axis in range(start, stop):
        stride = np.uint32(math.prod(shape[axis + 1 : stop]) % _COUNTERS)
        position = position + lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    return position
