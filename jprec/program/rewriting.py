"""Rewrites the equations of a traced function, and keeps it differentiable.

`rewrite(fn, rule)` traces `fn`, and computes each equation that the rule wants with the rule's
function instead. Derivatives are *not* taken through what the rule computes. Instead
`jax.vjp(fn)` is traced, and both of its halves are rewritten in turn: the function that returns
the result and the residuals, and the pullback. So the gradient of the rewritten function is the
rewritten gradient, bit for bit, whatever the rule does; and since the halves go through
`rewrite` themselves, this holds for derivatives of any order.
"""

import dataclasses
import functools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend import core

from jprec.program import versions
from jprec.program.sources import source_line

#: Computes the outputs of an equation: `handler(equation, *inputs)`.
Handler = Callable[..., Sequence[Any]]


class Rule(Protocol):
    """Which equations are computed differently, and how. Hashable; equal rules do the same."""

    @property
    def name(self) -> str:
        """What the user called, for messages."""

    def handler(self, equation: Any) -> Handler | None:
        """The function that computes `equation`, or None to leave it as it is."""

    def may_be_inside(self, equation: Any) -> bool:
        """Whether an equation that does not show its inside could hold what the rule wants."""


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
        args, kwargs = jax.tree.unflatten(tree, _merged(is_array, arrays, leaves))
        return fn(*args, **kwargs)

    arrays = [leaf for leaf, here in zip(leaves, is_array, strict=True) if here]
    body, result = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
    program, consts = versions.parts(body)
    return Trace(program, [*consts, *arrays], jax.tree.structure(result))


def _merged(mask: Sequence[bool], chosen: Iterable[Any], others: Sequence[Any]) -> list[Any]:
    """`others`, with the places where `mask` holds taken by `chosen` in turn."""
    values = iter(chosen)
    return [next(values) if here else other for here, other in zip(mask, others, strict=True)]


def rewrite(fn: Callable, rule: Rule) -> Callable:
    """`fn`, with the equations that `rule` wants computed by the rule; its gradients likewise."""

    @functools.wraps(fn)
    def rewritten(*args: Any, **kwargs: Any) -> Any:
        traced = trace(fn, args, kwargs)
        _warn_of_what_stays(traced.program, rule)
        try:
            outputs = _differentiable(traced.program, rule)(*traced.values)
        except TypeError as error:
            if "forward-mode" not in str(error) or "custom_vjp" not in str(error):
                raise
            raise TypeError(
                f"{rule.name} has no forward-mode derivatives (jvp, jacfwd, hessian); take the "
                "derivative inside, where it is rewritten too: "
                "lambda x, t: jax.jvp(f, (x,), (t,)) in place of f"
            ) from error
        # A result that depends on no argument is a number in the program, and an array here.
        return jax.tree.unflatten(traced.result, map(jnp.asarray, outputs))

    return rewritten


# ---- Derivatives


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Differentiated:
    """Which of a program's inputs have a derivative that somebody wants."""

    mask: tuple[bool, ...]


def _differentiable(program: Any, rule: Rule) -> Callable:
    """The rewritten program as a function of its inputs; its pullback is rewritten, too."""
    has_tangent = [_is_inexact(output.aval) for output in program.outvars]

    def run(*inputs: Any) -> list[Any]:
        return interpret(program, inputs, rule)

    def forward(*primals: Any) -> tuple[list[Any], Any]:
        inputs = [primal.value for primal in primals]
        mask = [bool(primal.perturbed) and _is_inexact(primal.value) for primal in primals]

        def vjp(inputs: Sequence[Any]) -> tuple[list[Any], Any]:
            def of(active: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                outputs = versions.evaluate(program, _merged(mask, active, inputs))
                return [o for o, here in zip(outputs, has_tangent, strict=True) if here], outputs

            active = [value for value, here in zip(inputs, mask, strict=True) if here]
            _, pullback, outputs = jax.vjp(of, active, has_aux=True)
            return outputs, pullback

        outputs, pullback = rewrite(vjp, rule)(inputs)
        return outputs, (pullback, _Differentiated(tuple(mask)))

    def backward(residuals: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        pullback, differentiated = residuals
        cotangents = [c for c, here in zip(cotangents, has_tangent, strict=True) if here]
        # A zero that JAX knows to be one stays known: 0 times infinity would be NaN.
        given = [not isinstance(cotangent, SymbolicZero) for cotangent in cotangents]
        zeros = [
            None if here else versions.Zero(c.aval)
            for c, here in zip(cotangents, given, strict=True)
        ]

        def pull(pullback: Callable, cotangents: Sequence[Any]) -> list[Any]:
            (gradients,) = pullback(_merged(given, cotangents, zeros))
            return gradients

        known = [c for c, here in zip(cotangents, given, strict=True) if here]
        gradients = rewrite(pull, rule)(pullback, known)
        mask = differentiated.mask
        return tuple(_merged(mask, gradients, [None] * len(mask)))

    differentiable = jax.custom_vjp(run)
    differentiable.defvjp(forward, backward, symbolic_zeros=True)
    return differentiable


def _is_inexact(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


# ---- Interpretation


def interpret(program: Any, values: Sequence[Any], rule: Rule) -> list[Any]:
    """The program's outputs for `values` (constants, then arguments), computed by the rule.

    Equations that hold programs are kept with rewritten programs, so that loops stay loops and
    recomputation stays recomputation; custom derivatives are replaced by what they compute.
    """
    known = dict(zip((*program.constvars, *program.invars), values, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in program.eqns:
        inputs = [read(atom) for atom in equation.invars]
        with versions.as_written(equation):
            outputs = _compute(equation, inputs, rule)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in program.outvars]


def _compute(equation: Any, inputs: Sequence[Any], rule: Rule) -> Sequence[Any]:
    handler = rule.handler(equation)
    if handler is not None:
        return handler(equation, *inputs)
    if not (versions.is_known(equation) and _holds_wanted(equation, rule)):
        return versions.bind(equation, inputs)
    body = versions.evaluated_body(equation)
    if body is not None:
        program, consts = versions.parts(body)
        return interpret(program, [*consts, *inputs], rule)
    if versions.is_shard_map(equation):
        program, consts = versions.parts(equation.params["jaxpr"])

        def on_device(*values: Any) -> tuple[Any, ...]:
            return tuple(interpret(program, [*consts, *values], rule))

        return versions.sharded(on_device, equation)(*inputs)
    if versions.is_checkpoint(equation):
        program, consts = versions.opened(_rewritten_body(equation.params["jaxpr"], rule))
        return versions.bind(equation, [*consts, *inputs], jaxpr=program)
    changed = {
        name: jax.tree.map(lambda body: _rewritten_body(body, rule), held, is_leaf=versions.is_body)
        for name, held in versions.bodies(equation).items()
    }
    return versions.bind(equation, inputs, **changed)


#: body -> rule -> whether the rule wants one of its equations; body -> rule -> the new body.
#: One body rewritten once also means that JAX compiles it once.
_WANTED: weakref.WeakKeyDictionary[Any, dict[Rule, bool]] = weakref.WeakKeyDictionary()
_REWRITTEN: weakref.WeakKeyDictionary[Any, dict[Rule, Any]] = weakref.WeakKeyDictionary()


def _rewritten_body(body: Any, rule: Rule) -> Any:
    if not _wants_in(body, rule):
        return body
    done = _REWRITTEN.setdefault(body, {})
    if rule not in done:
        program, consts = versions.parts(body)

        def run(*values: Any) -> list[Any]:
            return interpret(program, [*consts, *values], rule)

        done[rule] = jax.make_jaxpr(run)(*[variable.aval for variable in program.invars])
    return done[rule]


def _wants_in(body: Any, rule: Rule) -> bool:
    done = _WANTED.setdefault(body, {})
    if rule not in done:
        program, _ = versions.parts(body)
        done[rule] = any(
            rule.handler(equation) is not None or _holds_wanted(equation, rule)
            for equation in program.eqns
        )
    return done[rule]


def _holds_wanted(equation: Any, rule: Rule) -> bool:
    return any(_wants_in(body, rule) for body in versions.executed_bodies(equation))


# ---- What cannot be rewritten


def _warn_of_what_stays(program: Any, rule: Rule) -> None:
    places = sorted(
        {
            f"{e.primitive.name} at {source_line(e) or 'an unknown line'}"
            for e in _hidden(program, rule)
        }
    )
    if places:
        warnings.warn(
            f"{rule.name} leaves these operations as they are, since they do not show what they "
            f"compute: {'; '.join(places)}. What they hold runs in this machine's own "
            "arithmetic. Use an implementation written in jax.numpy to include it.",
            stacklevel=3,
        )


def _hidden(program: Any, rule: Rule) -> Iterator[Any]:
    for equation in program.eqns:
        if rule.handler(equation) is not None:
            continue
        if versions.is_opaque(equation):
            if rule.may_be_inside(equation):
                yield equation
        elif versions.is_known(equation):
            for body in versions.executed_bodies(equation):
                yield from _hidden(versions.parts(body)[0], rule)
        elif _holds_wanted(equation, rule):
            yield equation
