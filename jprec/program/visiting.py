"""Every equation of a program, in order, with where it comes from and how often it runs.

The one walk through a program that descriptions are made from. It enters whatever runs a program
of its own, so that each equation is met where it computes.

Outside of what is differentiated, the phase follows from what an equation is made of: the walk
keeps track of which values are gradients. `jprec.program.operations` states the rule.
"""

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from jax.extend import core

from jprec.program import versions
from jprec.program.sources import (
    Phase,
    differentiated,
    is_in_optimiser,
    joined,
    makes_parameters,
    source_line,
)


@dataclasses.dataclass(frozen=True)
class Visit:
    """An equation where it runs.

    Attributes:
      equation: The equation.
      phase: Its part in a training step.
      scope: The names around it, joined by "/".
      source: "file:line" of the user's code; None where none is on record. For an equation that a
        library's compiled function holds it is the line that calls the library.
      trips: How often it runs; None inside a `while` loop.
      copies: How often the lowered program holds it: loops may be written out in part.
    """

    equation: Any
    phase: Phase
    scope: str
    source: str | None
    trips: int | None
    copies: int


@dataclasses.dataclass(frozen=True)
class _Place:
    """What the equations of a body have from the equation that runs it."""

    scope: str = ""
    source: str | None = None
    trips: int | None = 1
    copies: int = 1
    is_update: bool = False


def visit(program: Any) -> Iterator[Visit]:
    """Each equation that computes something; those that run programs are entered instead.

    An equation of a kind that is not known is entered *and* visited itself.
    """
    yield from _visit(program, _Place(), [False] * len(program.invars))


#: Visits, and finally which results of a program are gradients.
_Visits = Generator[Visit, None, list[bool]]


def _visit(program: Any, place: _Place, are_gradients: Sequence[bool]) -> _Visits:
    pairs = zip(program.invars, are_gradients, strict=True)
    gradients = {variable for variable, is_gradient in pairs if is_gradient}

    def is_gradient(atom: Any) -> bool:
        return not isinstance(atom, core.Literal) and atom in gradients

    for equation in program.eqns:
        entering = [is_gradient(atom) for atom in equation.invars]
        here = _place_of(equation, place)
        phase = _phase(here, any(entering))
        is_known, bodies = versions.is_known(equation), versions.calls(equation)
        if not is_known:
            bodies = [(body, places) for body, places in bodies if not versions.is_combiner(body)]
        if not (is_known and bodies):
            yield Visit(equation, phase, here.scope, here.source, here.trips, here.copies)
        if bodies:
            results = yield from _visit_bodies(equation, bodies, here, entering)
        else:
            is_made = differentiated(here.scope) is None and any(entering)
            results = [phase == "backward" or is_made] * len(equation.outvars)
        if not makes_parameters(equation):
            gradients |= {v for v, is_one in zip(equation.outvars, results, strict=True) if is_one}
    return [is_gradient(atom) for atom in program.outvars]


def _place_of(equation: Any, outer: _Place) -> _Place:
    return _Place(
        scope=joined(outer.scope, equation),
        source=source_line(equation) or outer.source,
        trips=outer.trips,
        copies=outer.copies,
        is_update=outer.is_update or is_in_optimiser(equation),
    )


def _phase(place: _Place, meets_gradient: bool) -> Phase:
    if (of_names := differentiated(place.scope)) is not None:
        return of_names
    return "optimiser" if place.is_update or meets_gradient else "forward"


def _visit_bodies(
    equation: Any,
    bodies: Sequence[tuple[Any, list[int] | None]],
    here: _Place,
    entering: list[bool],
) -> _Visits:
    results = [False] * len(equation.outvars)
    turns = versions.trips(equation)
    trips = None if here.trips is None or turns is None else here.trips * turns
    inside = dataclasses.replace(here, trips=trips, copies=here.copies * versions.copies(equation))
    for body, places in bodies:
        program, _ = versions.parts(body)
        if places is None:
            are_gradients = [any(entering)] * len(program.invars)
        else:
            are_gradients = [entering[index] for index in places]
        found = yield from _visit(program, inside, are_gradients)
        if len(found) != len(results):
            found = [any(entering)] * len(results)
        results = [a or b for a, b in zip(results, found, strict=True)]
    return results
