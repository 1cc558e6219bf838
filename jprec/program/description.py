"""The products of a function, as a list."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jprec.program.sources import Phase
from jprec.program.tracing import trace
from jprec.program.visiting import Visit, visit

#: Primitives that multiply two arrays and sum.
PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})


def is_narrow(variable: Any) -> bool:
    """Whether a variable is floating-point and FP32 holds each of its values."""
    dtype = getattr(variable.aval, "dtype", np.dtype(bool))
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize <= 4


def is_narrow_product(equation: Any) -> bool:
    """Whether an equation is a product whose operands and result FP32 holds."""
    return equation.primitive.name in PRODUCTS and all(
        map(is_narrow, (*equation.invars[:2], *equation.outvars))
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """One product in a program.

    Attributes:
      kind: "dot_general", "conv_general_dilated" or "ragged_dot_general".
      phase: "forward", "recomputed" (what `jax.checkpoint` computes anew), "backward", or
        "optimiser": outside of differentiation and in an update of Optax, Flax or `jprec.optim`,
        or made of gradients (`jprec.program.operations` says how that is known).
      scope: The names around it, e.g. "transpose(jvp(Net))/block_0"; "" without any.
      source: "file:line" of the user's code; None where none is on record.
      operand_dtypes: Dtypes of both operands.
      operand_shapes: Their shapes.
      result_dtype: Dtype of the result.
      result_shape: Its shape.
      precision: What the program asks for: "HIGHEST", the name of a preset, or both operands'
        levels ("HIGH, DEFAULT"); None where it asks for nothing.
      flops: Floating-point operations of one run, two for each product in a sum. The zeros of a
        convolution's padding and dilation count.
      trips: How often it runs, the lengths of loops multiplied; None inside a `while` loop. Each
        branch of a conditional counts as if it ran.
    """

    kind: str
    phase: Phase
    scope: str
    source: str | None
    operand_dtypes: tuple[str, str]
    operand_shapes: tuple[tuple[int, ...], tuple[int, ...]]
    result_dtype: str
    result_shape: tuple[int, ...]
    precision: str | None
    flops: int
    trips: int | None


def products(fn: Callable, *args: Any, **kwargs: Any) -> tuple[Product, ...]:
    """The products that `fn(*args, **kwargs)` runs, in the order of the program.

    Nothing is computed: the arguments may be `jax.ShapeDtypeStruct`. Kernels and callbacks do not
    show their products.

    >>> import jax, jax.numpy as jnp
    >>> loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    >>> [p.phase for p in products(jax.grad(loss), jnp.ones((3, 2)), jnp.ones((4, 3)))]
    ['forward', 'backward']
    """
    visits = visit(trace(fn, args, kwargs).program)
    return tuple(_product(v) for v in visits if v.equation.primitive.name in PRODUCTS)


def _product(visit: Visit) -> Product:
    equation = visit.equation
    left, right = (variable.aval for variable in equation.invars[:2])
    result = equation.outvars[0].aval
    return Product(
        kind=equation.primitive.name,
        phase=visit.phase,
        scope=visit.scope,
        source=visit.source,
        operand_dtypes=(left.dtype.name, right.dtype.name),
        operand_shapes=(tuple(left.shape), tuple(right.shape)),
        result_dtype=result.dtype.name,
        result_shape=tuple(result.shape),
        precision=_precision(equation.params["precision"]),
        flops=2 * math.prod(result.shape) * _terms(equation),
        trips=visit.trips,
    )


def _terms(equation: Any) -> int:
    """How many products are summed for each element of the result."""
    left, right = (variable.aval.shape for variable in equation.invars[:2])
    params = equation.params
    match equation.primitive.name:
        case "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            return math.prod(left[axis] for axis in contracted)
        case "conv_general_dilated":
            out_feature, *summed = params["dimension_numbers"].rhs_spec
            del out_feature  # the kernel's input features are those of one group
            return math.prod(right[axis] for axis in summed)
        case _:  # each row of a ragged product meets the weights of its own group
            numbers = params["ragged_dot_dimension_numbers"]
            (contracted, _), _ = numbers.dot_dimension_numbers
            return math.prod(left[axis] for axis in contracted)


def _precision(value: Any) -> str | None:
    if isinstance(value, tuple):
        names = [_precision(level) or "DEFAULT" for level in value]
        return names[0] if len(set(names)) == 1 else ", ".join(names)
    return None if value is None else str(getattr(value, "name", value))
