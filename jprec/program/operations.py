"""The operations of a function, as a list."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jprec.program import versions
from jprec.program.sources import Phase
from jprec.program.tracing import trace
from jprec.program.visiting import Visit, visit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation in a program.

    Attributes:
      primitive: JAX's name of the operation, e.g. "exp".
      phase: "forward", "recomputed", "backward" or "optimiser".
      scope: The names around it, e.g. "transpose(jvp(Net))/block_0"; "" without any.
      source: "file:line" of the user's code; None where none is on record. For an operation inside
        a compiled function of a library it is the line that calls the library.
      operand_dtypes: Dtypes of the operands.
      operand_shapes: Their shapes.
      result_dtypes: Dtypes of the results.
      result_shapes: Their shapes.
      trips: How often it runs, the lengths of loops multiplied; None inside a `while` loop. Each
        branch of a conditional counts as if it ran.
      opaque: Whether it computes something that the program does not show: a kernel, foreign
        code, a callback.
    """

    primitive: str
    phase: Phase
    scope: str
    source: str | None
    operand_dtypes: tuple[str, ...]
    operand_shapes: tuple[tuple[int, ...], ...]
    result_dtypes: tuple[str, ...]
    result_shapes: tuple[tuple[int, ...], ...]
    trips: int | None
    opaque: bool


def operations(fn: Callable, *args: Any, **kwargs: Any) -> tuple[Operation, ...]:
    """The operations that `fn(*args, **kwargs)` runs, in the order of the program.

    What only runs a program (`jit`, loops, conditionals, `checkpoint`, `shard_map`, functions
    with derivatives of their own) is not listed; what it runs is. Kernels (Pallas, cuDNN), foreign
    functions and callbacks are listed as `opaque`. Nothing is computed: the arguments may be
    `jax.ShapeDtypeStruct`.

    The phase is read from the names that JAX gives to what is differentiated: "forward",
    "backward", and "recomputed" for forward values that `jax.checkpoint` computes anew. Outside of
    what is differentiated, an operation is "optimiser" if an update in Optax, Flax or `jprec.optim`
    made it, or if a gradient enters it: unscaling, clipping, moments, the step itself, sums over
    micro-batches. Any other is "forward": preparing data, a loss that nobody differentiates.

    What `apply_updates` returns are parameters and no gradients, and so is what one turn of a loop
    hands to the next: a loss taken with new parameters is forward. After an update by hand
    (`w - rate * gradient`) the new parameters still count as made of a gradient, and so does
    what follows a gradient that trains nothing, such as a force.

    >>> import jax, jax.numpy as jnp
    >>> def step(w, x):
    ...     gradient = jax.grad(lambda w: jnp.sin(x * w))(w)
    ...     return w - 0.1 * gradient
    >>> for operation in operations(step, jnp.float32(1.0), jnp.float32(2.0)):
    ...     print(operation.phase, operation.primitive)
    forward mul
    forward sin
    forward cos
    backward mul
    backward mul
    optimiser mul
    optimiser sub
    """
    return tuple(map(_operation, visit(trace(fn, args, kwargs).program)))


def _operation(visit: Visit) -> Operation:
    equation = visit.equation
    return Operation(
        primitive=equation.primitive.name,
        phase=visit.phase,
        scope=visit.scope,
        source=visit.source,
        operand_dtypes=_dtypes(equation.invars),
        operand_shapes=_shapes(equation.invars),
        result_dtypes=_dtypes(equation.outvars),
        result_shapes=_shapes(equation.outvars),
        trips=visit.trips,
        opaque=versions.is_opaque(equation) or versions.is_report(equation),
    )


def _dtypes(variables: Sequence[Any]) -> tuple[str, ...]:
    """Their dtypes; for what is no array (a token) what JAX calls it."""
    avals = [variable.aval for variable in variables]
    return tuple(str(aval.dtype) if hasattr(aval, "dtype") else str(aval) for aval in avals)


def _shapes(variables: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(getattr(variable.aval, "shape", ())) for variable in variables)
