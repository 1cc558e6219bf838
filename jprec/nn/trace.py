"""What a layer really does, read off its traced program."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jprec import program
from jprec.nn.layers import Kind


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
    """The dtypes in `layer`'s program for a float32 input; None if no input is known for it."""
    inputs = kind.inputs(layer)
    if inputs is None:
        return None
    graph, state = nnx.split(layer)

    def call(state: Any, *inputs: Any) -> Any:
        return nnx.merge(graph, state)(*inputs, **dict(kind.call))

    out = jax.eval_shape(call, state, *inputs)
    if kind.is_cell:
        _, out = out
    found = program.products(call, state, *inputs)
    products = sorted({dtype for product in found for dtype in product.operand_dtypes})
    return Traced(tuple(products), jnp.dtype(out.dtype).name)
