"""Which leaves a policy casts, to what, and which it leaves alone.

Only float32, bfloat16 and float16 arrays are ever cast. Integers, booleans, random keys, float0,
float64, complex and 8-bit arrays are not, nor is anything that is not an array. State that is not
a parameter is not: in Flax NNX every variable that is not a `Param` (batch statistics, caches,
random streams), in Flax Linen what lies below a collection named in `STATE`, and what is called
`mean` and `var` side by side, as the running statistics of Flax's BatchNorm are: they may be
handed over under any name.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jprec import nn
from jprec import policy as policies

#: Names of collections that hold state: at any place in a path they keep what is below.
STATE = ("batch_stats", "cache", "intermediates", "spectral_stats")

#: What Flax's BatchNorm calls its running statistics.
_STATISTICS = ("mean", "var")

_CASTABLE = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


def is_array(leaf: Any) -> bool:
    """Whether `leaf` is an array or stands for one."""
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")


def dtypes_of(tree: Any, policy: policies.Policy, role: str, *, prefix: str = "") -> list[Any]:
    """For each leaf of `tree`, in order, the dtype that `policy` gives it, or None: leave it.

    Args:
      tree: A pytree; Flax NNX states and modules are looked into.
      policy: Its rules see the leaf's path.
      role: "params" or "compute".
      prefix: What the paths begin with.
    """
    found: list[Any] = []
    named = list(_named(tree, prefix))
    names = {name for name, _ in named}
    for name, node in named:
        leaves = jax.tree.leaves(node)
        if nn.is_variable(node):
            dtype = nn.dtype_of_variable(node, policy.for_path(name), role)
        elif _is_state(name, names):
            dtype = None
        else:
            dtype = getattr(policy.for_path(name), role)
        found += [dtype if _castable(leaf) else None for leaf in leaves]
    return found


def _named(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf or variable) of all that `tree` holds."""
    for path, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=nn.is_variable)[0]:
        yield "/".join(part for part in (prefix, policies.leaf_path(path)) if part), node


def _is_state(name: str, names: set[str]) -> bool:
    """Whether the leaf called `name`, among all of `names`, is state of a Flax Linen model."""
    *above, last = name.split("/")
    if any(part in STATE for part in (*above, last)):
        return True
    return last in _STATISTICS and all("/".join((*above, s)) in names for s in _STATISTICS)


def check_rules(policy: policies.Policy, role: str, trees: Iterable[tuple[str, Any]]) -> None:
    """An error for a rule about `role` that finds nothing, or nothing that is left to it.

    Args:
      policy: Its rules.
      role: "params" or "compute"; rules that say nothing of it are not looked at.
      trees: (prefix, tree) of all that the policy casts.
    """
    rules = tuple(rule for rule in policy.rules if role in rule.changes)
    if not rules:
        return
    leaves = [name for prefix, tree in trees for name, _ in _named(tree, prefix)]
    # A rule may be about a layer, which `jprec.nn.apply` sees and a cast does not.
    parts = {name[: end.start()] + "/" for name in leaves for end in re.finditer("/", name)}
    for remark in policies.review(policy, [*leaves, *sorted(parts)]):
        if remark.rule in rules and remark.kind != "contradiction":
            raise ValueError(
                f"{remark} Looked at: {', '.join(leaves[:8])}{', ...' if leaves[8:] else ''}."
            )


def _castable(leaf: Any) -> bool:
    return is_array(leaf) and leaf.dtype in _CASTABLE


def cast_leaf(leaf: Any, dtype: str | None) -> Any:
    """`leaf` in `dtype`, rounded to nearest even; as it is if dtype is None."""
    if dtype is None or leaf.dtype == jnp.dtype(dtype):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype), sharding=leaf.sharding)
    return jnp.asarray(leaf).astype(dtype)


def cast(tree: Any, policy: Any, role: str = "params") -> Any:
    """`tree` in the dtypes that `policy` gives its leaves in `role`.

    Args:
      tree: Parameters. State that is not a parameter, and all that is not float32, bfloat16 or
        float16, is returned as it is.
      policy: A policy, its name or its string.
      role: "params" (how they are stored) or "compute".

    Raises:
      ValueError: for another role; for a rule about this role that finds nothing in `tree`.

    >>> cast({"w": jnp.ones(2), "n": jnp.arange(2)}, "pure_bf16")["w"].dtype
    dtype(bfloat16)
    """
    if role not in ("params", "compute"):
        raise ValueError(f"role={role!r}. {policies.close_to(str(role), ('params', 'compute'))}")
    policy = policies.get(policy)
    check_rules(policy, role, [("", tree)])
    leaves, structure = jax.tree.flatten(tree)
    dtypes = dtypes_of(tree, policy, role)
    return jax.tree.unflatten(structure, map(cast_leaf, leaves, dtypes))


def argument_names(function: Callable, count: int) -> Iterator[str]:
    """What `function` calls its first `count` positional arguments, for the paths of inputs."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for index in range(count):
        if index < len(parameters) and parameters[index].kind != inspect.Parameter.VAR_POSITIONAL:
            yield parameters[index].name
        else:
            yield f"args/{index}"
