"""A function run beside its FP64 shadow, to see where its error enters."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jprec import matmul, policy
from jprec.program import gradients, pairs, versions
from jprec.program.description import PRODUCTS
from jprec.program.emulation import to_rule
from jprec.program.explicit_rounding import ExplicitRounding
from jprec.program.rewriting import Rule
from jprec.program.sources import Phase
from jprec.program.tracing import Trace, trace
from jprec.program.visiting import Visit, visit


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperationError:
    """How far one operation is from FP64.

    Errors are relative: the largest difference over the largest magnitude of the FP64 result.
    Infinite where only one of both is finite; of no meaning where the exact result is zero, as for
    sums that cancel (the gradient of a key's bias in attention). Of several runs of a loop, the
    largest is given.

    Attributes:
      primitive: JAX's name of the operation.
      phase: "forward", "recomputed", "backward" or "optimiser".
      scope: The names around it.
      source: "file:line" of the user's code; None where none is on record.
      made: The error that the operation itself makes: its result against the same operation in
        FP64 on the same operands.
      total: The error that has come together: its result against the shadow's.
    """

    primitive: str
    phase: Phase
    scope: str
    source: str | None
    made: float
    total: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shadow:
    """A function's result, the same in FP64, and the errors on the way.

    Attributes:
      outputs: What the function returns.
      shadow_outputs: The same with every float as a NumPy float64; what is no float is the
        function's own.
      errors: One for each operation that makes an error, and for each product, in the order of
        the program. Branches that were not taken have none.
      opaque: Operations that do not show what they compute, with their lines. The shadow goes on
        from their results as they are, so errors that they make are not seen.
    """

    outputs: Any
    shadow_outputs: Any
    errors: tuple[OperationError, ...]
    opaque: tuple[str, ...]


def shadow(fn: Callable, spec: str | matmul.MatmulSpec | policy.Policy | None = None) -> Callable:
    """A function that returns the `Shadow` of `fn`: its result beside the same in FP64.

    Both are computed from the same arguments, each operation by itself, so that no compiler
    simplifies the original; a loop is compiled as a whole, where a multiplication and an addition
    may be fused. In the shadow every float is FP64: casts to fewer digits do nothing, and products
    ask for full precision, presets or not. 16-bit values of the original are rounded as by
    `round_explicitly`. What is no float is the original's in both: comparisons, branches, indices,
    the number of turns of a `while` loop, random bits. So the two never part ways, and their
    difference is the error of the arithmetic along the path that the original takes.

    Through `jit`, `scan`, `while`, `cond`, `checkpoint` and functions with derivatives of their
    own (their values; for gradients write `shadow(jax.grad(f))`). Not through `shard_map`, nor
    under another transformation.

    This is not the exact result: the shadow has rounding errors of FP64. A constant that the
    program holds in FP32, such as 0.1, stays the FP32 number. What rounds by operations on bits, as
    functions returned by `emulate` and `round_explicitly` do, is not seen through: the shadow goes
    on from the rounded value. Give the spec here instead.

    Args:
      fn: Any function that JAX can trace.
      spec: The arithmetic of the original's products, as for `emulate`, a policy's backward
        products included; None leaves them to this machine.

    Raises:
      NotImplementedError: When called, for `shard_map` and other operations that run programs
        of an unknown kind.
      TypeError: When called inside `jit`, `grad` or `vmap`.

    >>> import jax.numpy as jnp
    >>> result = shadow(lambda x: (x + 1.0) - 1.0)(jnp.float32(1e-4))
    >>> result.outputs.item(), result.shadow_outputs.item()
    (0.00010001659393310547, 9.999999747378752e-05)
    >>> [(error.primitive, f"{error.made:.0e}") for error in result.errors]
    [('add', '2e-08')]
    """

    rules: list[Rule] = [ExplicitRounding()]
    if spec is not None:
        rules.insert(0, to_rule(spec))

    @functools.wraps(fn)
    def shadowed(*args: Any, **kwargs: Any) -> Shadow:
        traced = trace(fn, args, kwargs)
        if any(isinstance(value, jax.core.Tracer) for value in traced.values):
            raise TypeError(
                "shadow: called inside jit, grad or vmap, where nothing can be computed in FP64 "
                "yet. Put these inside: shadow(jax.grad(f))(x)."
            )
        return _shadow(traced, rules)

    return shadowed


def _shadow(traced: Trace, rules: list[Rule]) -> Shadow:
    visits = tuple(visit(traced.program))
    runner = pairs.Runner(
        visits, rules, _gradients(traced, rules) or [(False, False)] * len(visits)
    )
    with jax.enable_x64(True):
        values = [*map(pairs.pair, traced.values)]
        outputs, measured, _ = runner.run(traced.program, values, 0)
        wide = [out.original if out.wide is None else np.asarray(out.wide) for out in outputs]
        errors = [
            _error(visits[number], float(made), float(total))
            for number, (made, total) in sorted(measured.items())
        ]
    return Shadow(
        outputs=jax.tree.unflatten(traced.result, [out.original for out in outputs]),
        shadow_outputs=jax.tree.unflatten(traced.result, wide),
        errors=tuple(e for e in errors if e.made > 0 or (e.primitive in PRODUCTS and e.made == 0)),
        opaque=tuple(
            f"{v.equation.primitive.name} at {v.source or 'an unknown line'}"
            for v in visits
            if versions.is_opaque(v.equation)
        ),
    )


def _gradients(traced: Trace, rules: list[Rule]) -> list[tuple[bool, bool]]:
    """Which operands of each operation are gradients; empty if no rule asks for it."""
    if not any(rule.tells_backward for rule in rules):
        return []
    inputs = [gradients.OUTSIDE] * len(traced.values)
    flow = gradients.follow(traced.program, inputs)
    return [*gradients.in_order(traced.program, flow.marks)]


def _error(place: Visit, made: float, total: float) -> OperationError:
    return OperationError(
        primitive=place.equation.primitive.name,
        phase=place.phase,
        scope=place.scope,
        source=place.source,
        made=made,
        total=total,
    )
