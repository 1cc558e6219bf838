"""Names for the modules of a Flax NNX model, so that its operations say where they belong."""

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from jprec import program
from jprec.nn.libraries import check_is_nnx

#: Class attribute of the classes made here: the path of the module.
_PATH = "_jprec_scope"

#: Modules that only hold others.
_CONTAINERS = (nnx.List, nnx.Dict)

#: The path of the module whose method runs; "" outside of all.
_running: contextvars.ContextVar[str] = contextvars.ContextVar("jprec_running", default="")


def scoped(model: Any) -> Any:
    """A copy of an NNX model whose operations carry the paths of their modules as scopes.

    NNX leaves no names in a traced program. Here every method that a module has by its own class
    runs inside `jax.named_scope` with the module's path, so that `jprec.program.products` and all
    that is built on it speak of "blocks/0/attention/query". Nothing else changes: values to the
    bit, states, graph structure and paths are those of the model. A module called from outside of
    the one that holds it is named by its whole path inside the caller's; one that is held twice
    has the path that comes first.

    It may be given a policy by `apply`, before or after. A second application changes nothing.
    `unscoped` is the way back.

    Raises:
      TypeError: for what is no NNX module. Linen names its operations itself; `scope_path` is the
        same for both.

    >>> from jprec import program
    >>> model = scoped(nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0))))
    >>> graph, state = nnx.split(model)
    >>> forward = lambda state, x: nnx.merge(graph, state)(x)
    >>> [p.scope for p in program.products(forward, state, jax.ShapeDtypeStruct((1, 2), "float32"))]
    ['layers/0']
    """
    check_is_nnx(model, "nn.scoped")
    model = nnx.clone(model)
    for path, module in nnx.iter_modules(model):
        name = "/".join(map(str, path))
        if isinstance(module, _CONTAINERS) or _path_of(module) == name:
            continue
        object.__setattr__(module, "__class__", _with_scope(_without_scope(module), name))
    return model


def unscoped(model: Any) -> Any:
    """A copy of an NNX model with the names taken away that `scoped` gave it.

    Raises:
      TypeError: for what is no NNX module.
      ValueError: if a policy was given to the model after the names.
    """
    check_is_nnx(model, "nn.unscoped")
    model = nnx.clone(model)
    for _, module in nnx.iter_modules(model):
        object.__setattr__(module, "__class__", _without_scope(module))
    return model


def scope_path(scope: str) -> str:
    """The path of the module that a scope names, the same for scoped NNX models and for Linen.

    It is the path under which the module's parameters are: "blocks/0/attention/query" in NNX,
    "blocks_0/attention/query" in Linen. What JAX writes around names is left out, and so are
    equations of einsum, and in Linen the class of the outermost module (a first name that begins
    with a capital) and the method.

    >>> scope_path("transpose(jvp(Net))/blocks_0/attention/query")
    'blocks_0/attention/query'
    >>> scope_path("transpose(jvp(blocks/0))/rematted_computation/attention/...qhd,...khd->...hqk")
    'blocks/0/attention'
    """
    names = [name for name in program.names(scope) if "->" not in name]
    if names and names[0][0].isupper():
        names = names[1:]
    return "/".join(name.partition(".")[0] for name in names)


def _path_of(module: Any) -> str | None:
    return getattr(type(module), _PATH, None)


def _without_scope(module: Any) -> type:
    """The module's class before `scoped`."""
    cls = type(module)
    if _PATH in vars(cls):
        return cls.__bases__[0]
    if _path_of(module) is not None:
        raise ValueError(
            f"{cls.__name__}: the names that nn.scoped gave to {_path_of(module)!r} lie below a "
            "policy that nn.apply gave afterwards, and cannot be changed. Apply the policy first, "
            "or begin with the model that has neither."
        )
    return cls


@functools.cache
def _with_scope(cls: type, path: str) -> type:
    """A subclass of `cls` whose methods run inside the scope `path`; one for the same arguments.

    One, because NNX compares the classes of two graphs to tell whether to trace again.
    """
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        _PATH: path,
    }
    for name, method in _methods(cls).items():
        body[name] = _inside(method, path)
    return type(cls)(cls.__name__, (cls,), body)


#: What every module has.
_COMMON = frozenset(name for base in nnx.Module.__mro__ for name in vars(base))


def _methods(cls: type) -> dict[str, Any]:
    """What a module can be asked to compute: the methods that NNX does not give to every module."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if not issubclass(base, nnx.Module) or base is nnx.Module:
            continue
        for name, value in vars(base).items():
            is_public = name == "__call__" or not name.startswith("_")
            is_method = (
                callable(value) and hasattr(value, "__get__") and not isinstance(value, type)
            )
            if is_public and is_method and name not in _COMMON:
                found[name] = value
            else:
                found.pop(name, None)
    return found


def _inside(method: Any, path: str) -> Callable:
    """`method`, run inside the part of `path` that is not open yet."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer = _running.get()
        token = _running.set(path)
        try:
            name = _remaining(path, outer)
            bound = method.__get__(self, type(self))
            if not name:
                return bound(*args, **kwargs)
            with jax.named_scope(name):
                return bound(*args, **kwargs)
        finally:
            _running.reset(token)

    try:
        return functools.wraps(method)(run)
    except AttributeError:  # a descriptor without a name
        return run


def _remaining(path: str, outer: str) -> str:
    if path == outer:
        return ""
    return path.removeprefix(outer + "/") if outer else path
