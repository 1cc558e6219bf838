"""Which gradients are not finite: infinities and NaNs, counted in each leaf in one pass."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jprec import policy

#: A gradient with float32's range counts as infinite from here on: its square, which second
#: moments and norms take, is beyond the largest float32 or close to it.
TOO_LARGE = 2.0**63


def names(tree: Any) -> dict[str, None]:
    """The paths of the inexact leaves of `tree`, sorted; a dict without leaves of its own."""
    return dict.fromkeys(sorted({name for name, _ in _inexact(tree)}))


def count_nonfinite(tree: Any) -> dict[str, jax.Array]:
    """For each inexact leaf its numbers of infinities and of NaNs, [2] int32, by the leaf's path.

    A number of float32's range and magnitude 2**63 or more counts as an infinity (`TOO_LARGE`). A
    complex number counts once, as NaN if one of its parts is. Integers, keys and float0 have no
    entry.

    >>> count_nonfinite({"w": jnp.asarray([1.0, jnp.inf, jnp.nan, jnp.nan])})["w"].tolist()
    [1, 2]
    """
    found: dict[str, jax.Array] = {}
    for name, leaf in _inexact(tree):
        counted = _count(jnp.asarray(leaf))
        found[name] = found[name] + counted if name in found else counted
    return found


def all_finite(tree: Any) -> jax.Array:
    """[] bool: no inexact leaf of `tree` has an infinity or a NaN; other leaves do not count."""
    return _none(count_nonfinite(tree))


def _none(counts: dict[str, jax.Array]) -> jax.Array:
    """[] bool: all counts are zero."""
    return jnp.all(jnp.stack(list(counts.values())) == 0) if counts else jnp.asarray(True)


def judge(tree: Any, of: dict[str, None]) -> tuple[jax.Array, jax.Array]:
    """([] bool: all finite, [len(of), 2] int32: the counts of the leaves named in `of`)."""
    counts = count_nonfinite(tree)
    zero = jnp.zeros(2, jnp.int32)
    table = [counts.get(name, zero) for name in sorted(of)]
    return _none(counts), jnp.stack(table) if table else jnp.zeros((0, 2), jnp.int32)


def _inexact(tree: Any) -> list[tuple[str, Any]]:
    return [
        (policy.leaf_path(path), leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.inexact)
    ]


def _count(x: jax.Array) -> jax.Array:
    """[2] int32: infinities, NaNs. One reduction of a pair reads `x` once, which two would not."""
    is_nan = jnp.isnan(x)
    is_infinite = jnp.isinf(x) & ~is_nan
    if x.dtype in (jnp.float32, jnp.bfloat16, jnp.complex64):
        is_infinite = (jnp.abs(x) >= TOO_LARGE) & ~is_nan
    pair = (is_infinite.astype(jnp.int32), is_nan.astype(jnp.int32))
    zero = jnp.zeros([], jnp.int32)
    axes = tuple(range(x.ndim))
    return jnp.stack(lax.reduce(pair, (zero, zero), _add, axes))


def _add(a: Any, b: Any) -> tuple[Any, Any]:
    """The sum of two pairs; one function, so that JAX compiles an eager reduction once."""
    return a[0] + b[0], a[1] + b[1]
