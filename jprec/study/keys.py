"""Random keys that belong to names, not to the order of calls."""

import hashlib

import jax


def key_for(seed: int | jax.Array, *path: str) -> jax.Array:
    """The PRNG key that `path` owns under `seed`; `seed` may be traced.

    Two arms that name the same path draw the same numbers, whatever else each of them draws.

    >>> a = key_for(3, "digits-mlp", "init")
    >>> b = key_for(3, "digits-mlp", "batches")
    >>> bool((jax.random.key_data(a) == jax.random.key_data(b)).all())
    False
    """
    digest = hashlib.sha256("/".join(path).encode()).digest()
    return jax.random.fold_in(jax.random.key(seed), int.from_bytes(digest[:4], "big"))
