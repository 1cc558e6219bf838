"""Random keys in an optimiser's state: kept as data, owned by the names of leaves."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp


def key_parts(key: Any) -> tuple[Any, jax.Array]:
    """The implementation and the uint32 data of `key`; data alone means the default's (None).

    Raises:
      ValueError: `key` is neither a key of `jax.random.key` nor the uint32 data of one.
    """
    dtype = getattr(key, "dtype", jnp.float32)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.key_impl(key), jax.random.key_data(key)
    if dtype == jnp.uint32:
        return None, jnp.asarray(key)
    raise ValueError(f"key={key!r} is not a random key. Write jax.random.key(0).")


def fold_path(key: jax.Array, path: str) -> jax.Array:
    """The key owned by a leaf, by its name: a new leaf changes no other's rounding."""
    digest = hashlib.sha256(path.encode()).digest()
    return jax.random.fold_in(key, int.from_bytes(digest[:4], "big"))
