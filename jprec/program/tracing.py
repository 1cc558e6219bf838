"""A function as a program."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from jprec.program import versions


@dataclasses.dataclass(frozen=True)
class Trace:
    """A function as a program.

    Attributes:
      program: The program. Its variables for constants stand before its arguments.
      values: One value for each of them: what the function closes over (traced values as well),
        then its array arguments.
      result: Structure of the function's result.
    """

    program: Any
    values: list[Any]
    result: Any


def trace(fn: Callable, args: tuple, kwargs: dict[str, Any]) -> Trace:
    """The program of `fn(*args, **kwargs)`. What is no array (a flag, a name) is not traced."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_array = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves]

    def of_arrays(*arrays: Any) -> Any:
        args, kwargs = jax.tree.unflatten(tree, merged(is_array, arrays, leaves))
        return fn(*args, **kwargs)

    arrays = [leaf for leaf, here in zip(leaves, is_array, strict=True) if here]
    body, result = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
    program, consts = versions.parts(body)
    return Trace(program, [*consts, *arrays], jax.tree.structure(result))


def merged(mask: Sequence[bool], chosen: Iterable[Any], others: Sequence[Any]) -> list[Any]:
    """`others`, with the places where `mask` holds taken by `chosen` in turn."""
    values = iter(chosen)
    return [next(values) if here else other for here, other in zip(mask, others, strict=True)]
