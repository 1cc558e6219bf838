"""Which operands of a program's backward products are gradients on their way back.

A backward product multiplies a cotangent with something that was saved: a weight, an activation.
The names around an equation say that it belongs to a backward pass, not which operand is which;
and a rule written by hand (`jax.custom_vjp`) may compute forward values anew, and multiply in any
order. So the values are followed: what a backward pass makes of a gradient is one, and what it
makes of saved values alone is none.

Where a program is a pullback, its cotangents are known. Elsewhere a backward pass begins with a
value that no forward pass has seen (the scale of a loss, an array for `jax.vjp`), or with a number,
the 1 of `jax.grad`. In a rule written by hand that computes anew and multiplies by just this
number, what it multiplies is taken for a gradient.
"""

import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax.extend import core

from jprec.program import versions
from jprec.program.description import PRODUCTS
from jprec.program.sources import differentiated, joined, source_line


class Kind(enum.IntEnum):
    """What a value is, as far as backward passes are concerned."""

    #: Made of numbers that the program holds.
    NUMBER = 0
    #: Made in a forward pass, or used in one.
    SAVED = 1
    #: Neither: should a backward pass lack a cotangent, then this is it.
    OUTSIDE = 2
    #: A cotangent, or made of one in a backward pass.
    GRADIENT = 3


class Origin(NamedTuple):
    """Of several, the largest counts.

    Attributes:
      kind: What the value is.
      depth: Of a gradient: in how many backward passes, one inside the other, it was made. For the
        second derivative, gradients of the first one are saved values.
    """

    kind: Kind
    depth: int = 0


NUMBER, SAVED, OUTSIDE = Origin(Kind.NUMBER), Origin(Kind.SAVED), Origin(Kind.OUTSIDE)
COTANGENT = Origin(Kind.GRADIENT, 1)


class Mark(NamedTuple):
    """What is known of one equation.

    Attributes:
      gradients: Of a backward product: which of both operands is a gradient.
      bodies: Of an equation that runs programs: the marks of each, in the order of `calls`.
    """

    gradients: tuple[bool, bool] = (False, False)
    bodies: "tuple[Marks, ...]" = ()


#: One for each equation of a program; None where it has no backward products.
Marks: TypeAlias = tuple[Mark | None, ...] | None


class Flow(NamedTuple):
    """How gradients run through a program.

    Attributes:
      inputs: Origins of its constants and arguments.
      in_pullback: Whether the whole program belongs to a backward pass.
      marks: Its backward products.
      outputs: Origins of its results.
    """

    inputs: tuple[Origin, ...]
    in_pullback: bool
    marks: Marks
    outputs: tuple[Origin, ...]


def follow(program: Any, inputs: Sequence[Origin], *, in_pullback: bool = False) -> Flow:
    """The way of gradients through `program`.

    Args:
      program: The program.
      inputs: Origins of its constants, then of its arguments.
      in_pullback: Whether the whole program is a pullback, whose cotangents are among the inputs.

    Raises:
      NotImplementedError: It cannot be told which operand of a backward product is the gradient.
    """
    walk = _Walk("transpose()" if in_pullback else "")
    marks, outputs = walk.walk(program, inputs)
    return Flow(tuple(inputs), in_pullback, marks, tuple(outputs))


def marks_of(equation: Any, body: Any, mark: Mark | None) -> Marks:
    """The marks of one of the programs that an equation holds; None where it does not run it."""
    if mark is None:
        return None
    if not versions.bodies(equation):  # its one program is made anew each time
        return mark.bodies[0]
    pairs = zip(versions.calls(equation), mark.bodies, strict=True)
    return next((marks for (called, _), marks in pairs if called is body), None)


def in_order(program: Any, marks: Marks) -> Iterator[tuple[bool, bool]]:
    """Which operands are gradients, of each equation that `visiting.visit` meets, in its order."""
    for equation, mark in zip(program.eqns, marks or [None] * len(program.eqns), strict=True):
        is_known, calls = versions.is_known(equation), versions.calls(equation)
        if not is_known:
            calls = [(body, places) for body, places in calls if not versions.is_combiner(body)]
        if not (is_known and calls):
            yield (False, False) if mark is None else mark.gradients
        for body, _ in calls:
            yield from in_order(versions.parts(body)[0], marks_of(equation, body, mark))


#: Operations that are not linear, and so no part of JAX's own backward pass: a number in them is no
#: cotangent.
_NOT_LINEAR = frozenset(["add", "sub", "max", "min", "pow", "rem", "atan2"])


class _Walk:
    """A walk through one program."""

    def __init__(self, scope: str, *, begins: bool = False) -> None:
        self._scope = scope
        self._origins: dict[Any, Origin] = {}
        self._used_forward: set[Any] = set()
        #: Whether a backward pass has yet to meet its cotangent; the product that it met before.
        self.begins = begins
        self.waiting: Any = None
        #: The number that is the cotangent, where it is one.
        self._number: float | None = None

    def walk(self, program: Any, inputs: Sequence[Origin]) -> tuple[Marks, list[Origin]]:
        """The marks of the program, and the origins of its results."""
        variables = (*program.constvars, *program.invars)
        self._origins.update(zip(variables, inputs, strict=True))
        scopes = [joined(self._scope, equation) for equation in program.eqns]
        self._used_forward = {
            atom
            for equation, scope in zip(program.eqns, scopes, strict=True)
            if differentiated(scope) in ("forward", "recomputed")
            for atom in equation.invars
            if not isinstance(atom, core.Literal)
        }
        marks = [self._equation(e, scope) for e, scope in zip(program.eqns, scopes, strict=True)]
        if differentiated(self._scope) != "backward":
            self._check_begun()
        outputs = [self._origin(atom) for atom in program.outvars]
        return (tuple(marks) if any(marks) else None), outputs

    def _origin(self, atom: Any) -> Origin:
        if isinstance(atom, core.Literal):
            return NUMBER
        origin = self._origins[atom]
        if origin.kind is not Kind.GRADIENT and not _is_float(atom):
            return NUMBER  # an index, a mask; of a gradient it is the bits, as in a rounding
        return SAVED if origin == OUTSIDE and atom in self._used_forward else origin

    def _equation(self, equation: Any, scope: str) -> Mark | None:
        phase = differentiated(scope)
        if phase == "forward":
            self._check_begun()
            self.begins, self._number = True, None
        origins = [self._origin(atom) for atom in equation.invars]
        depth = scope.count("transpose(")
        if phase == "backward":
            origins = self._with_cotangents(equation, origins, depth)
        mark = None
        if versions.is_known(equation) and (calls := versions.calls(equation)):
            mark, results = self._calls(equation, calls, scope, origins)
        elif phase == "backward":
            mark, result = self._backward(equation, origins, depth)
            results = [result] * len(equation.outvars)
        else:
            results = [OUTSIDE if phase is None else SAVED] * len(equation.outvars)
        self._origins.update(zip(equation.outvars, results, strict=True))
        return mark

    def _check_begun(self) -> None:
        """An error if a backward pass that has products ends without a cotangent."""
        if self.begins and self.waiting is not None:
            raise _undecided(
                self.waiting, "the cotangent that the pass begins with was used in a forward pass"
            )
        self.waiting = None

    def _with_cotangents(self, equation: Any, origins: list[Origin], depth: int) -> list[Origin]:
        """The origins of a backward equation's inputs, if the pass begins with some of them."""
        places: list[int] = []
        if self.begins:
            places = [i for i, origin in enumerate(origins) if origin == OUTSIDE]
            if places and equation.primitive.name in PRODUCTS:
                operands = _gradient_operands(equation, origins, depth)
                places = [i for i, is_gradient in enumerate(operands) if is_gradient]
            for atom in (equation.invars[place] for place in places):
                self._origins[atom] = Origin(Kind.GRADIENT, depth)
            if not places and (numbers := _numbers(equation)):
                self._number = 1.0 if 1.0 in numbers.values() else next(iter(numbers.values()))
        if self._number is not None:
            places += [i for i, value in _numbers(equation).items() if value == self._number]
        if places or any(_has_arrived(origin, depth) for origin in origins):
            self.begins, self.waiting = False, None
        gradient = Origin(Kind.GRADIENT, depth)
        return [gradient if place in places else o for place, o in enumerate(origins)]

    def _backward(
        self, equation: Any, origins: list[Origin], depth: int
    ) -> tuple[Mark | None, Origin]:
        """The mark of a backward equation, and the origin of its results."""
        highest = max(origins, default=NUMBER)
        if any(_has_arrived(origin, depth) for origin in origins):
            highest = Origin(Kind.GRADIENT, depth)
        elif OUTSIDE in origins:
            highest = OUTSIDE
        if equation.primitive.name not in PRODUCTS:
            return None, highest
        gradients = _gradient_operands(equation, origins, depth)
        if not any(gradients):
            if self.begins and self.waiting is None:
                self.waiting = equation
            return None, highest
        if highest == OUTSIDE:
            highest = Origin(Kind.GRADIENT, depth)
        return Mark(gradients), highest

    def _calls(
        self,
        equation: Any,
        calls: Sequence[tuple[Any, list[int] | None]],
        scope: str,
        origins: list[Origin],
    ) -> tuple[Mark | None, list[Origin]]:
        """The mark of an equation that runs programs, and the origins of its results."""
        highest = max(origins, default=NUMBER)
        begins = self.begins and differentiated(scope) == "backward"
        results = [NUMBER] * len(equation.outvars)
        marks = []
        for number, (body, places) in enumerate(calls):
            program, consts = versions.parts(body)
            held = [SAVED] * len(consts)
            entering = [highest] * len(program.invars)
            if places is not None:
                entering = [origins[place] for place in places]
            while True:
                walk = _Walk(scope, begins=begins)
                found, outputs = walk.walk(program, [*held, *entering])
                wider = _carried(equation, number, entering, outputs)
                if wider == entering:
                    break
                entering = wider
            marks.append(found)
            if begins:
                self.begins = self.begins and walk.begins
                self.waiting = (self.waiting or walk.waiting) if self.begins else None
            if equation.primitive.name == "while" and number == 0:
                continue  # the result of the condition stays inside
            if len(outputs) != len(results):
                outputs = [highest] * len(results)
            results = [max(pair) for pair in zip(results, outputs, strict=True)]
        return (Mark(bodies=tuple(marks)) if any(marks) else None), results


def _carried(
    equation: Any, number: int, entering: list[Origin], outputs: list[Origin]
) -> list[Origin]:
    """What enters a loop's body next, if it began with what is `entering`; of others, just that."""
    name = equation.primitive.name
    if name == "scan":
        first, count = versions.scan_sizes(equation)
    elif name == "while" and number == 1:
        first, count = equation.params["body_nconsts"], len(outputs)
    else:
        return entering
    wider = list(entering)
    for place in range(count):
        wider[first + place] = max(wider[first + place], outputs[place])
    return wider


def _has_arrived(origin: Origin, depth: int) -> bool:
    """Whether a value is a gradient on its way through a backward pass that deep."""
    return origin.kind is Kind.GRADIENT and origin.depth >= depth


def _gradient_operands(equation: Any, origins: Sequence[Origin], depth: int) -> tuple[bool, bool]:
    """Which operands of a product in a backward pass are gradients; none: a value made anew."""
    operands = first, second = origins[0], origins[1]
    if any(_has_arrived(origin, depth) for origin in operands):
        return first.kind is Kind.GRADIENT, second.kind is Kind.GRADIENT
    if first == second == OUTSIDE:
        if equation.primitive.name != "dot_general":
            raise _undecided(equation, "neither operand was seen in a forward pass")
        return True, False  # JAX writes the cotangent first
    return first >= OUTSIDE, second >= OUTSIDE


def _undecided(equation: Any, reason: str) -> NotImplementedError:
    return NotImplementedError(
        f"emulate: of the {equation.primitive.name} at {source_line(equation)} in a backward pass "
        f"it cannot be told which operand is the gradient: {reason}. Emulate the function itself "
        "before jax.vjp or jax.linear_transpose is taken of it, or use one arithmetic for both "
        "passes."
    )


def _is_float(atom: Any) -> bool:
    return bool(jnp.issubdtype(getattr(atom.aval, "dtype", bool), jnp.inexact))


def _numbers(equation: Any) -> dict[int, float]:
    """Place -> value of numbers, not zero, in an equation that is linear in them."""
    name = equation.primitive.name
    if name in _NOT_LINEAR:
        return {}
    found = {}
    for place, atom in enumerate(equation.invars[:1] if name == "div" else equation.invars):
        is_number = isinstance(atom, core.Literal) and _is_float(atom)
        if is_number and not jnp.shape(atom.val) and atom.val != 0:
            found[place] = complex(atom.val).real
    return found
