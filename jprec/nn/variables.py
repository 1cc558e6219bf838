"""Flax NNX variables as a policy sees them: what is a parameter, and what a layer does to it."""

from collections.abc import Callable
from typing import Any

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
