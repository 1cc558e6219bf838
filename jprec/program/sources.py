"""Where an equation comes from: the user's line, the names around it, forward or backward."""

import os
from importlib import util
from typing import Any, Literal

from jprec.program import versions

Phase = Literal["forward", "backward"]


def _folder(package: str) -> str:
    """The folder of a package, found without importing it; empty where it is not installed."""
    found = util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found else []
    return os.path.join(places[0], "") if places else ""


#: Lines in these packages are not what a user wrote. Models that come with jprec are.
_LIBRARIES = tuple(filter(None, map(_folder, ("jax", "jaxlib", "flax", "optax", "jprec"))))
_MODELS = os.path.join(_folder("jprec"), "workloads", "")


def source_line(equation: Any) -> str | None:
    """The user's line that made the equation, as "file:line"; None where none is on record.

    It is the innermost line that is not in JAX, Flax, Optax or jprec.
    """
    for frame in versions.frames(equation):
        path = frame.file_name
        if path.startswith(_MODELS) or not path.startswith(_LIBRARIES):
            return f"{path}:{frame.line_num}"
    return None


def joined(scope: str, equation: Any) -> str:
    """The names around an equation inside a body whose own names are `scope`."""
    return "/".join(filter(None, (scope, str(equation.source_info.name_stack))))


def phase(scope: str) -> Phase:
    """Whether names belong to a forward or a backward pass.

    A forward value that is computed anew for the backward pass (`jax.checkpoint`) is forward.
    """
    transposed = scope.rfind("transpose(")
    recomputed = scope.rfind(versions.RECOMPUTED)
    return "backward" if transposed > recomputed else "forward"
