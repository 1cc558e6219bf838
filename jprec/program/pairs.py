"""A program run in pairs: each value as the program has it, and in FP64."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jprec.program import versions, widening
from jprec.program.rewriting import Rule
from jprec.program.sources import source_line
from jprec.program.visiting import Visit, visit


class Pair(NamedTuple):
    """A value, and the same in FP64; None for what is no float."""

    original: Any
    wide: Any


#: Number of an operation -> the error made, and that come together; -1 where it did not run.
Measured = dict[int, tuple[Any, Any]]


def pair(value: Any) -> Pair:
    """A value with the same in FP64, exactly."""
    return Pair(value, widening.widened(value) if widening.is_float(value) else None)


def in_fp64(value: Pair) -> Any:
    """The value in FP64; what is no float as it is."""
    return value.original if value.wide is None else value.wide


class Runner:
    """Runs a program in pairs.

    Operations are numbered in the order in which `visit` meets them. The originals are computed
    by the first rule that wants them.

    Args:
      visits: The operations.
      rules: The rules.
      gradients: Which operands of each operation are gradients on their way back.
    """

    def __init__(
        self,
        visits: Sequence[Visit],
        rules: Sequence[Rule],
        gradients: Sequence[tuple[bool, bool]],
    ) -> None:
        self._visits = visits
        self._rules = rules
        self._gradients = gradients

    def run(
        self, program: Any, inputs: Sequence[Pair], number: int
    ) -> tuple[list[Pair], Measured, int]:
        """The outputs, the errors, and the number of the first operation after the program."""
        known = dict(zip((*program.constvars, *program.invars), inputs, strict=True))

        def read(atom: Any) -> Pair:
            if isinstance(atom, core.Literal):
                aval: Any = atom.aval
                return pair(jnp.asarray(atom.val, aval.dtype))
            return known[atom]

        measured: Measured = {}
        for equation in program.eqns:
            pairs = [read(atom) for atom in equation.invars]
            with versions.as_written(equation):
                outputs, found, number = self._equation(equation, pairs, number)
            measured |= found
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in program.outvars], measured, number

    def _equation(
        self, equation: Any, inputs: list[Pair], number: int
    ) -> tuple[list[Pair], Measured, int]:
        name = equation.primitive.name
        if name in _LOOPS:
            return _LOOPS[name](self, equation, inputs, number)
        if versions.is_shard_map(equation):
            place = source_line(equation) or "an unknown line"
            raise NotImplementedError(
                f"shadow: shard_map at {place} is not shadowed. Shadow the function that one "
                "device runs."
            )
        if versions.is_known(equation) and (bodies := versions.executed_bodies(equation)):
            (body,) = bodies
            if name == "custom_linear_solve":
                inputs = versions.solve_inputs(equation, inputs)
            return self._body(body, inputs, number)
        outputs, measured = self._operation(equation, inputs, self._gradients[number])
        assert self._visits[number].equation.primitive is equation.primitive
        return outputs, {} if measured is None else {number: measured}, number + 1

    def _operation(
        self, equation: Any, inputs: Sequence[Pair], gradients: tuple[bool, bool]
    ) -> tuple[list[Pair], Any]:
        """The outputs of one operation, and its errors; None where it has no float as a result."""
        originals = [value.original for value in inputs]
        handlers = (rule.handler(equation, gradients) for rule in self._rules)
        handler = next((found for found in handlers if found is not None), None)
        results = (
            versions.bind(equation, originals) if handler is None else handler(equation, *originals)
        )
        # Where a compiler sees more than one operation, it must not simplify them together.
        are_floats = [widening.is_float(result) for result in results]
        results = [
            lax.optimization_barrier(r) if is_float and isinstance(r, jax.core.Tracer) else r
            for r, is_float in zip(results, are_floats, strict=True)
        ]
        if not any(are_floats) or widening.starts_anew(equation):
            return [*map(pair, results)], None
        wides = widening.compute(equation, [in_fp64(value) for value in inputs])
        alone = widening.compute(equation, [in_fp64(pair(value)) for value in originals])
        outputs, errors = [], []
        for result, wide, own, is_float in zip(results, wides, alone, are_floats, strict=True):
            outputs.append(Pair(result, wide if is_float else None))
            if is_float:
                errors.append(widening.relative_errors(result, own, wide))
        made, total = (functools.reduce(jnp.maximum, kind) for kind in zip(*errors, strict=True))
        return outputs, (made, total)

    def _body(
        self, body: Any, inputs: Sequence[Pair], number: int
    ) -> tuple[list[Pair], Measured, int]:
        program, consts = versions.parts(body)
        return self.run(program, [*(pair(jnp.asarray(c)) for c in consts), *inputs], number)

    def _scan(
        self, equation: Any, inputs: list[Pair], number: int
    ) -> tuple[list[Pair], Measured, int]:
        consts, carried = versions.scan_sizes(equation)
        body = equation.params["jaxpr"]

        def turn(carry: list[Pair], xs: list[Pair]) -> Any:
            outputs, measured, _ = self._body(body, [*inputs[:consts], *carry, *xs], number)
            return outputs[:carried], (outputs[carried:], measured)

        split = consts + carried
        carry, (stacked, measured) = lax.scan(
            turn,
            inputs[consts:split],
            inputs[split:],
            length=equation.params["length"],
            reverse=equation.params["reverse"],
        )
        largest = jax.tree.map(lambda errors: jnp.max(errors, initial=-1.0), measured)
        return [*carry, *stacked], largest, number + _count(body)

    def _while(
        self, equation: Any, inputs: list[Pair], number: int
    ) -> tuple[list[Pair], Measured, int]:
        params = equation.params
        tested, fixed = params["cond_nconsts"], params["body_nconsts"]
        split = tested + fixed
        condition, consts = versions.parts(params["cond_jaxpr"])
        first = number + _count(params["cond_jaxpr"])

        def goes_on(state: tuple[list[Pair], Measured]) -> Any:
            originals = [value.original for value in (*inputs[:tested], *state[0])]
            return versions.evaluate(condition, [*consts, *originals])[0]

        def turn(state: tuple[list[Pair], Measured]) -> tuple[list[Pair], Measured]:
            carry, before = state
            values = [*inputs[tested:split], *carry]
            outputs, measured, _ = self._body(params["body_jaxpr"], values, first)
            return outputs, jax.tree.map(jnp.maximum, before, measured)

        shapes = jax.eval_shape(lambda: self._body(params["body_jaxpr"], inputs[tested:], first)[1])
        carry, measured = lax.while_loop(goes_on, turn, (inputs[split:], _not_run(shapes)))
        return carry, measured, first + _count(params["body_jaxpr"])

    def _cond(
        self, equation: Any, inputs: list[Pair], number: int
    ) -> tuple[list[Pair], Measured, int]:
        index, *operands = inputs
        branches = equation.params["branches"]
        starts, after = [], number
        for body in branches:
            starts.append(after)
            after += _count(body)
        if not isinstance(index.original, jax.core.Tracer):
            taken = min(max(int(index.original), 0), len(branches) - 1)
            outputs, measured, _ = self._body(branches[taken], operands, starts[taken])
            return outputs, measured, after

        def measures(body: Any, start: int) -> Measured:
            return jax.eval_shape(lambda: self._body(body, operands, start)[1])

        def branch(body: Any, start: int) -> Callable:
            def run(operands: list[Pair]) -> Any:
                outputs, measured, _ = self._body(body, operands, start)
                return outputs, nothing | measured

            return run

        shapes: Measured = {}
        for body, start in zip(branches, starts, strict=True):
            shapes |= measures(body, start)
        nothing = _not_run(shapes)
        outputs, measured = lax.switch(index.original, [*map(branch, branches, starts)], operands)
        return outputs, measured, after


def _count(body: Any) -> int:
    """How many operations a body has."""
    return sum(1 for _ in visit(versions.parts(body)[0]))


def _not_run(shapes: Measured) -> Measured:
    return jax.tree.map(lambda error: jnp.full(error.shape, -1.0, error.dtype), shapes)


_LOOPS: dict[str, Callable] = {
    "scan": Runner._scan,
    "while": Runner._while,
    "cond": Runner._cond,
}
