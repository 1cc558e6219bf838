"""The dtypes between which a policy casts, and the casts of what modules return."""

from typing import Any

import jax
import jax.numpy as jnp

#: Arrays of all other dtypes are left alone.
CASTABLE = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


def are_castable(*dtypes: Any) -> bool:
    """Whether a policy casts all of these; None, for what was left open, is one that it does."""
    return all(dtype is None or jnp.dtype(dtype) in CASTABLE for dtype in dtypes)


def is_castable(leaf: Any) -> bool:
    """Whether `leaf` is an array, or stands for one, that a policy casts."""
    return getattr(leaf, "dtype", None) in CASTABLE


def cast_result(out: Any, dtype: str) -> Any:
    """`out` with its arrays in `dtype`."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if is_castable(leaf) else leaf, out)


def cast_step(out: tuple[Any, Any], carry: Any, dtype: str) -> tuple[Any, Any]:
    """What a recurrent cell returns, the result in `dtype` and the new carry as `carry`.

    The carry goes round a scan, so it comes out in the dtypes it came in with.
    """
    new, result = out
    new = jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), new, carry)
    return new, cast_result(result, dtype)


def dtypes_in(tree: Any) -> tuple[str, ...]:
    """The names of the dtypes of the castable arrays in `tree`, each once, sorted."""
    leaves = filter(is_castable, jax.tree.leaves(tree))
    return tuple(sorted({jnp.dtype(leaf.dtype).name for leaf in leaves}))
