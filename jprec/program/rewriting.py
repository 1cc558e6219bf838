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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend import core

from jprec.program import gradients, versions
from jprec.program.gradients import Flow, Mark, Marks, Origin, marks_of
from jprec.program.sources import source_line
from jprec.program.tracing import merged, trace

#: Computes the outputs of an equation: `handler(equation, *inputs)`.
Handler = Callable[..., Sequence[Any]]


class Rule(Protocol):
    """Which equations are computed differently, and how. Hashable; equal rules do the same."""

    @property
    def name(self) -> str:
        """What the user called, for messages."""

    @property
    def tells_backward(self) -> bool:
        """Whether backward products are computed differently from others."""

    def handler(
        self, equation: Any, gradients: tuple[bool, bool] = (False, False)
    ) -> Handler | None:
        """The function that computes `equation`, or None to leave it as it is.

        `gradients` says which operands of a backward product are gradients, if the rule
        `tells_backward`.
        """

    def may_be_inside(self, equation: Any) -> bool:
        """Whether an equation that does not show its inside could hold what the rule wants."""


def rewrite(fn: Callable, rule: Rule) -> Callable:
    """`fn`, with the equations that `rule` wants computed by the rule; its gradients likewise."""

    @functools.wraps(fn)
    def rewritten(*args: Any, **kwargs: Any) -> Any:
        return _run(fn, rule, args, kwargs)[0]

    return rewritten


def _run(
    fn: Callable,
    rule: Rule,
    args: tuple,
    kwargs: dict[str, Any] | None = None,
    *,
    origins: Sequence[Origin] | None = None,
    in_pullback: bool = False,
) -> tuple[Any, tuple[Origin, ...] | None]:
    """The result of the rewritten `fn`; the origins of its leaves, if the rule asks for them.

    Args:
      fn: The function.
      rule: The rule.
      args: Arguments of `fn`.
      kwargs: Its keyword arguments.
      origins: What is known of the arrays among the arguments.
      in_pullback: Whether `fn` is a pullback, or a part of one.
    """
    traced = trace(fn, args, kwargs or {})
    _warn_of_what_stays(traced.program, rule)
    flow = None
    if rule.tells_backward:
        if origins is None:
            inputs = [gradients.OUTSIDE] * len(traced.values)
        else:
            inputs = [gradients.SAVED] * (len(traced.values) - len(origins)) + [*origins]
        flow = gradients.follow(traced.program, inputs, in_pullback=in_pullback)
    try:
        outputs = _differentiable(traced.program, rule, flow)(*traced.values)
    except TypeError as error:
        if "forward-mode" not in str(error) or "custom_vjp" not in str(error):
            raise
        raise TypeError(
            f"{rule.name} has no forward-mode derivatives (jvp, jacfwd, hessian); take the "
            "derivative inside, where it is rewritten too: "
            "lambda x, t: jax.jvp(f, (x,), (t,)) in place of f"
        ) from error
    # A result that depends on no argument is a number in the program, and an array here.
    result = jax.tree.unflatten(traced.result, map(jnp.asarray, outputs))
    return result, None if flow is None else flow.outputs


# ---- Derivatives


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Differentiated:
    """Which of a program's inputs have a derivative that somebody wants; what is saved for it."""

    mask: tuple[bool, ...]
    saved: tuple[Origin, ...] | None


def _differentiable(program: Any, rule: Rule, flow: Flow | None) -> Callable:
    """The rewritten program as a function of its inputs; its pullback is rewritten, too."""
    marks = None if flow is None else flow.marks
    known_of_inputs = None if flow is None else flow.inputs
    in_pullback = flow is not None and flow.in_pullback
    has_tangent = [_is_inexact(output.aval) for output in program.outvars]

    def run(*inputs: Any) -> list[Any]:
        return interpret(program, inputs, rule, marks)

    def forward(*primals: Any) -> tuple[list[Any], Any]:
        inputs = [primal.value for primal in primals]
        mask = [bool(primal.perturbed) and _is_inexact(primal.value) for primal in primals]

        def vjp(inputs: Sequence[Any]) -> tuple[list[Any], Any]:
            def of(active: Sequence[Any]) -> tuple[list[Any], list[Any]]:
                outputs = versions.evaluate(program, merged(mask, active, inputs))
                return [o for o, here in zip(outputs, has_tangent, strict=True) if here], outputs

            active = [value for value, here in zip(inputs, mask, strict=True) if here]
            _, pullback, outputs = jax.vjp(of, active, has_aux=True)
            return outputs, pullback

        (outputs, pullback), origins = _run(
            vjp, rule, (inputs,), origins=known_of_inputs, in_pullback=in_pullback
        )
        saved = None if origins is None else origins[len(outputs) :]
        return outputs, (pullback, _Differentiated(tuple(mask), saved))

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
            (pulled,) = pullback(merged(given, cotangents, zeros))
            return pulled

        known = [c for c, here in zip(cotangents, given, strict=True) if here]
        saved = differentiated.saved
        origins = None if saved is None else [*saved, *[gradients.COTANGENT] * len(known)]
        pulled, _ = _run(pull, rule, (pullback, known), origins=origins, in_pullback=True)
        mask = differentiated.mask
        return tuple(merged(mask, pulled, [None] * len(mask)))

    differentiable = jax.custom_vjp(run)
    differentiable.defvjp(forward, backward, symbolic_zeros=True)
    return differentiable


def _is_inexact(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


# ---- Interpretation


def interpret(program: Any, values: Sequence[Any], rule: Rule, marks: Marks = None) -> list[Any]:
    """The program's outputs for `values` (constants, then arguments), computed by the rule.

    Equations that hold programs are kept with rewritten programs, so that loops stay loops and
    recomputation stays recomputation; custom derivatives are replaced by what they compute.
    `marks` are the program's backward products, for a rule that tells them apart.
    """
    known = dict(zip((*program.constvars, *program.invars), values, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation, mark in zip(program.eqns, marks or [None] * len(program.eqns), strict=True):
        inputs = [read(atom) for atom in equation.invars]
        with versions.as_written(equation):
            outputs = _compute(equation, inputs, rule, mark)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in program.outvars]


def _compute(equation: Any, inputs: Sequence[Any], rule: Rule, mark: Mark | None) -> Sequence[Any]:
    handler = rule.handler(equation) if mark is None else rule.handler(equation, mark.gradients)
    if handler is not None:
        return handler(equation, *inputs)
    if not (versions.is_known(equation) and _holds_wanted(equation, rule)):
        return versions.bind(equation, inputs)
    body = versions.evaluated_body(equation)
    if body is not None:
        program, consts = versions.parts(body)
        return interpret(program, [*consts, *inputs], rule, marks_of(equation, body, mark))
    if versions.is_shard_map(equation):
        body = equation.params["jaxpr"]
        program, consts = versions.parts(body)
        marks = marks_of(equation, body, mark)

        def on_device(*values: Any) -> tuple[Any, ...]:
            return tuple(interpret(program, [*consts, *values], rule, marks))

        return versions.sharded(on_device, equation)(*inputs)

    def rewritten(body: Any) -> Any:
        return _rewritten_body(body, rule, marks_of(equation, body, mark))

    if versions.is_checkpoint(equation):
        program, consts = versions.opened(rewritten(equation.params["jaxpr"]))
        return versions.bind(equation, [*consts, *inputs], jaxpr=program)
    changed = {
        name: jax.tree.map(rewritten, held, is_leaf=versions.is_body)
        for name, held in versions.bodies(equation).items()
    }
    return versions.bind(equation, inputs, **changed)


#: body -> rule -> whether the rule wants one of its equations; body -> rule and marks -> the new
#: body.
#: One body rewritten once also means that JAX compiles it once.
_WANTED: weakref.WeakKeyDictionary[Any, dict[Rule, bool]] = weakref.WeakKeyDictionary()
_REWRITTEN: weakref.WeakKeyDictionary[Any, dict[tuple[Rule, Marks], Any]]
_REWRITTEN = weakref.WeakKeyDictionary()


def _rewritten_body(body: Any, rule: Rule, marks: Marks) -> Any:
    if not _wants_in(body, rule):
        return body
    done = _REWRITTEN.setdefault(body, {})
    key = rule, marks
    if key not in done:
        program, consts = versions.parts(body)

        def run(*values: Any) -> list[Any]:
            return interpret(program, [*consts, *values], rule, marks)

        done[key] = jax.make_jaxpr(run)(*[variable.aval for variable in program.invars])
    return done[key]


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
            stacklevel=4,
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
