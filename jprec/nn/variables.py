"""Flax NNX variables as a policy sees them: what is a parameter, and what a layer does to it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jprec import policy as policies

#: Metadata of a parameter: the dtype in which the layer that owns it computes.
COMPUTE = "jprec_compute"


def is_variable(node: Any) -> bool:
    """Whether `node` is an NNX variable, for `is_leaf` of tree functions."""
    return isinstance(node, nnx.Variable)


def is_module(node: Any) -> bool:
    """Whether `node` is an NNX module."""
    return isinstance(node, nnx.Module)


def dtype_of_variable(variable: Any, policy: policies.Policy, role: str) -> str | None:
    """The dtype of a variable in `role`; None for state that is not a parameter: leave it alone.

    What `apply` decided for the layer comes before what the policy says of the path: parameters
    of norms stay float32 where the norm computes in float32.
    """
    if not isinstance(variable, nnx.Param):
        return None
    if role == "compute" and variable.has_metadata(COMPUTE):
        return variable.get_metadata(COMPUTE)
    return getattr(policy, role)


def split(module: Any) -> tuple[Any, Any, Callable, Callable]:
    """(parameters, other state, merge, state_of) of a module.

    `merge(parameters, state)` is a module like it; `state_of(module)` the other state of one.
    """
    graph, parameters, state = nnx.split(module, nnx.Param, ...)

    def merge(parameters: Any, state: Any) -> Any:
        return nnx.merge(graph, parameters, state)

    def state_of(module: Any) -> Any:
        return nnx.split(module, nnx.Param, ...)[2]

    return parameters, state, merge, state_of


def renew(module: Any, state: Any) -> None:
    """Puts `state` (batch statistics, counts of random streams) into `module`."""
    nnx.update(module, state)


def unless_skipped(take: jax.Array, new: Any, old: Any) -> Any:
    """State as it was where a step is not taken; random streams go on, and so does what is new.

    Args:
      take: [] bool.
      new: State that is no parameter, after the step.
      old: The same before it.
    """
    before = dict(jax.tree_util.tree_flatten_with_path(old, is_leaf=is_variable)[0])

    def choose(path: Any, variable: Any) -> Any:
        if path not in before or isinstance(variable, nnx.RngState):
            return variable

        def leaf(new: Any, old: Any) -> Any:
            same = jnp.shape(new) == jnp.shape(old)
            return jnp.where(take, new, jnp.asarray(old, new.dtype)) if same else new

        return jax.tree.map(leaf, variable, before[path])

    return jax.tree_util.tree_map_with_path(choose, new, is_leaf=is_variable)
