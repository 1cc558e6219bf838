"""Where an equation comes from: the user's line, the names around it, the pass it belongs to."""

import os
import re
from importlib import util
from typing import Any, Literal

from jprec.program import versions

#: A part of a training step. `visit` says which equation belongs to which.
Phase = Literal["forward", "recomputed", "backward", "optimiser"]


def _folder(package: str) -> str:
    """The folder of a package, found without importing it; empty where it is not installed."""
    found = util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found else []
    return os.path.join(places[0], "") if places else ""


#: Lines in these packages are not what a user wrote. Models that come with jprec are.
_LIBRARIES = tuple(filter(None, map(_folder, ("jax", "jaxlib", "flax", "optax", "jprec"))))
_MODELS = os.path.join(_folder("jprec"), "workloads", "")


def is_users(path: str) -> bool:
    """Whether a file is a user's: in none of JAX, Flax, Optax, jprec, or a model of jprec's."""
    return path.startswith(_MODELS) or not path.startswith(_LIBRARIES)


def source_line(equation: Any) -> str | None:
    """The user's line that made the equation, as "file:line"; None where none is on record.

    It is the innermost line that is not in JAX, Flax, Optax or jprec.
    """
    for frame in versions.frames(equation):
        path = frame.file_name
        if is_users(path):
            return f"{path}:{frame.line_num}"
    return None


def joined(scope: str, equation: Any) -> str:
    """The names around an equation inside a body whose own names are `scope`.

    In a backward pass JAX names a `jax.checkpoint` twice over. It is named once here.
    """
    own = str(equation.source_info.name_stack)
    names = "/".join(filter(None, (scope, own)))
    if not (versions.is_checkpoint(equation) and is_backward(names)):
        return names
    parts = own.split("/")
    half = len(parts) // 2
    if [*map(_plain, parts[:half])] == [*map(_plain, parts[half:])]:
        parts = parts[:half]
    return "/".join(filter(None, (scope, *parts)))


def names(scope: str) -> tuple[str, ...]:
    """The names in a scope, without what JAX writes around and between them.

    >>> names("transpose(jvp(blocks))/rematted_computation/query")
    ('blocks', 'query')
    """
    return tuple(
        plain
        for name in scope.split("/")
        if (plain := _plain(name)) and plain != versions.RECOMPUTED
    )


def _plain(name: str) -> str:
    """A name without what JAX writes around it: "blocks" for "transpose(jvp(blocks))"."""
    return re.sub(r"\w+\(|\)", "", name)


def differentiated(scope: str) -> Literal["forward", "recomputed", "backward"] | None:
    """The pass of a differentiated function that names belong to; None outside of one.

    JAX writes `jvp(...)` around the names of a forward pass, `transpose(jvp(...))` around those of
    a backward pass, and a name of its own around forward values that `jax.checkpoint` computes
    anew. Where these are nested, the innermost counts.
    """
    transposed = scope.rfind("transpose(")
    recomputed = scope.rfind(versions.RECOMPUTED)
    if transposed > recomputed:
        return "backward"
    if recomputed >= 0:
        return "recomputed"
    return "forward" if "jvp(" in scope else None


def is_backward(scope: str) -> bool:
    """Whether names belong to a backward pass, what is recomputed for it left out."""
    return differentiated(scope) == "backward"


#: Where optimisers are, and what the functions that update are called there.
_OPTIMISERS = tuple(
    os.path.join(folder, path)
    for package, path in (
        ("optax", ""),
        ("jprec", os.path.join("optim", "")),
        ("flax", os.path.join("nnx", "training", "optimizer.py")),
        ("flax", os.path.join("training", "train_state.py")),
    )
    if (folder := _folder(package))
)
_APPLY = frozenset({"apply_updates"})
_UPDATE = _APPLY | {
    "update",
    "update_fn",
    "apply_gradients",
    "incremental_update",
    "periodic_update",
}


def is_in_optimiser(equation: Any) -> bool:
    """Whether an update of Optax, Flax or jprec made the equation. Losses of Optax are none."""
    return _is_made_by(equation, _UPDATE)


def makes_parameters(equation: Any) -> bool:
    """Whether the equation adds an update to parameters, in Optax's or jprec's `apply_updates`."""
    return _is_made_by(equation, _APPLY)


def _is_made_by(equation: Any, functions: frozenset[str]) -> bool:
    return any(
        frame.function_name.rpartition(".")[2] in functions
        and frame.file_name.startswith(_OPTIMISERS)
        for frame in versions.frames(equation)
    )
