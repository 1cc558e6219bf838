"""What layers and models really do, read off their traced programs."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jprec import program
from jprec.nn.layers import Kind
from jprec.nn.scopes import scope_path, scoped
from jprec.nn.verification import Found


@dataclasses.dataclass(frozen=True)
class Traced:
    """Dtypes found in a layer's program.

    Attributes:
      products: Dtypes of the operands of its products, each once.
      output: Dtype of its result.
    """

    products: tuple[str, ...]
    output: str


def trace(layer: Any, kind: Kind) -> Traced | None:
    """The dtypes in `layer`'s program for a float32 input; None if no input is known for it.

    None, too, for a layer that does not run alone: a stack of layers for `nnx.vmap`, or a class
    that is called in another way.
    """
    inputs = kind.inputs(layer)
    if inputs is None:
        return None
    graph, state = nnx.split(layer)

    def call(state: Any, *inputs: Any) -> Any:
        return nnx.merge(graph, state)(*inputs, **dict(kind.call))

    try:
        out = jax.eval_shape(call, state, *inputs)
    except (TypeError, ValueError, IndexError):
        return None
    if kind.is_cell:
        _, out = out
    found = program.products(call, state, *inputs)
    products = sorted({dtype for product in found for dtype in product.operand_dtypes})
    return Traced(tuple(products), jnp.dtype(out.dtype).name)


def nnx_products(model: Any, inputs: tuple, kwargs: dict[str, Any]) -> tuple[Found, ...]:
    """(path of the module, product) of all products that `model(*inputs, **kwargs)` runs."""
    graph, state = nnx.split(scoped(model))
    arrays, call = abstract(inputs, kwargs)
    found = program.products(
        lambda state, arrays: call(nnx.merge(graph, state), arrays), state, arrays
    )
    return tuple((scope_path(product.scope), product) for product in found)


def abstract(inputs: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], Callable]:
    """(arrays, call) with call(function, arrays) = function(*inputs, **kwargs).

    Only what stands for an array is traced: flags stay what they are.
    """
    leaves, structure = jax.tree.flatten((inputs, kwargs))
    places = [
        i for i, leaf in enumerate(leaves) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ]

    def call(function: Callable, arrays: list[Any]) -> Any:
        given = dict(zip(places, arrays, strict=True))
        full = [given.get(index, leaf) for index, leaf in enumerate(leaves)]
        args, named = jax.tree.unflatten(structure, full)
        return function(*args, **named)

    return [leaves[index] for index in places], call
