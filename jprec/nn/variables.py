"""Flax NNX variables as a policy sees them: what is a parameter, and what a layer does to it."""

import dataclasses
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
        leaves, structure = jax.tree.flatten(variable)
        olds = jax.tree.leaves(before[path])
        if [jnp.shape(leaf) for leaf in leaves] != [jnp.shape(old) for old in olds]:
            return variable  # what was sown, one more each time
        kept = [
            jnp.where(take, leaf, jnp.asarray(old, leaf.dtype))
            for leaf, old in zip(leaves, olds, strict=True)
        ]
        return jax.tree.unflatten(structure, kept)

    return jax.tree_util.tree_map_with_path(choose, new, is_leaf=is_variable)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Held:
    """A Flax NNX object with state, taken apart so that it goes through a traced function.

    Attributes:
      graph: What it is, static.
      state: Its arrays.
    """

    graph: Any
    state: Any

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        """The state, and what is static."""
        return (self.state,), self.graph

    @classmethod
    def tree_unflatten(cls, graph: Any, children: tuple[Any]) -> "Held":
        """From state and what is static."""
        return cls(graph, *children)


def is_object(node: Any) -> bool:
    """Whether `node` is an NNX object, which carries state: a module, random streams, a metric."""
    return isinstance(node, nnx.Pytree | nnx.Object)


def check_given_once(*trees: Any) -> None:
    """An error if two NNX objects in the trees share a variable: taken apart, each has its own.

    Raises:
      ValueError: for a stream, model or part of one that is given twice; one of the two would lose
        its state, or draw the same numbers.
    """
    seen: dict[int, str] = {}
    for node in jax.tree.leaves(trees, is_leaf=is_object):
        if not is_object(node):
            continue
        name = type(node).__name__
        variables = {id(v) for _, v in nnx.iter_graph(node) if is_variable(v)}
        if shared := variables & seen.keys():
            raise ValueError(
                f"a {name} and a {seen[shared.pop()]} among the arguments hold the same variables, "
                "and their state would part. Give each NNX object once, or use it through the one "
                "that holds it."
            )
        seen |= dict.fromkeys(variables, name)


def take_apart(tree: Any) -> Any:
    """`tree` with each NNX object in it as `Held`."""
    return jax.tree.map(
        lambda node: Held(*nnx.split(node)) if is_object(node) else node, tree, is_leaf=is_object
    )


def put_together(tree: Any) -> Any:
    """`tree` with each `Held` in it as a new NNX object."""
    is_held = lambda node: isinstance(node, Held)  # noqa: E731
    return jax.tree.map(
        lambda node: nnx.merge(node.graph, node.state) if is_held(node) else node,
        tree,
        is_leaf=is_held,
    )


def states_in(tree: Any) -> list[Any]:
    """The states of the NNX objects in `tree`, in order."""
    return [
        nnx.split(node)[1] for node in jax.tree.leaves(tree, is_leaf=is_object) if is_object(node)
    ]


def renew_all(tree: Any, states: list[Any]) -> None:
    """Puts the states into the NNX objects in `tree`."""
    objects = [node for node in jax.tree.leaves(tree, is_leaf=is_object) if is_object(node)]
    for node, state in zip(objects, states, strict=True):
        nnx.update(node, state)
