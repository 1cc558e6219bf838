"""A Flax Linen model while it runs: each layer is told its dtype, looked at, and cast.

Linen makes its layers anew whenever a model runs, so that there is no layer to set a dtype on
beforehand. `linen.intercept_methods` puts a function around each method of each module instead.
"""

import collections
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from jprec import policy as policies
from jprec import program
from jprec.nn.casting import cast_result, cast_step, dtypes_in
from jprec.nn.decisions import compute_dtype, joined, output_dtype, says, switch_dtype
from jprec.nn.layers import Kind
from jprec.nn.libraries import check_is_no_bridge
from jprec.nn.linen_layers import METHODS, linen_kind_of, switches
from jprec.nn.verification import check_result, users_line


@dataclasses.dataclass
class Seen:
    """One module of a model that ran.

    Attributes:
      layer: Its class.
      kind: What is known of it; None for a module of the user's own.
      dtype: What it was told, or written, to compute in; None for neither.
      results: Dtypes of what it returned, each once.
      parameters: Names of its own parameters.
    """

    layer: str
    kind: Kind | None
    dtype: str | None
    results: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()


@dataclasses.dataclass
class Run:
    """One run of a model with a policy.

    Attributes:
      policy: The policy.
      root: Path of the model among those that hold it; () for a model that runs by itself.
      verify: Whether to compare what layers return with the policy.
      calls: Path in the model -> how many methods of that module run inside one another.
      seen: Path in the model -> what was found there.
    """

    policy: policies.Policy
    root: tuple[str, ...]
    verify: bool
    calls: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    seen: dict[str, Seen] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def call(self, path: str) -> Iterator[bool]:
        """Counts a method of the module at `path`; True unless another of its own called it."""
        self.calls[path] += 1
        try:
            yield self.calls[path] == 1
        finally:
            self.calls[path] -= 1


#: What `Run.call` counts methods of the model under that were called from outside.
WHOLE = "/"

#: How a module's path is written into the names of its operations while it is watched.
_MARK, _SLASH = "module:", "|"

_running: contextvars.ContextVar[Run | None] = contextvars.ContextVar("jprec_run", default=None)
_watched: contextvars.ContextVar[dict[str, Seen] | None] = contextvars.ContextVar(
    "jprec_watched", default=None
)


@contextlib.contextmanager
def running(policy: policies.Policy, root: tuple[str, ...], *, verify: bool) -> Iterator[Run]:
    """The run of the model at `root`: the one that goes on, or a new one."""
    run = _running.get()
    if run is not None:
        if (run.policy, run.root) != (policy, root):
            where = "/".join(root[len(run.root) :]) or "a model"
            raise ValueError(
                f"{where} has a policy ({policy}), and runs inside a model that has one "
                f"({run.policy}). One model has one policy: give it to the whole, with rules for "
                "its parts."
            )
        yield run
        return
    run = Run(policy, root, verify)
    token = _running.set(run)
    try:
        with linen.intercept_methods(lambda *call: _with_policy(run, *call)):
            yield run
    finally:
        _running.reset(token)


@contextlib.contextmanager
def watching() -> Iterator[dict[str, Seen]]:
    """What is found in the modules that run meanwhile, by their whole paths."""
    seen: dict[str, Seen] = {}
    token = _watched.set(seen)
    try:
        with linen.intercept_methods(_without_policy):
            yield seen
    finally:
        _watched.reset(token)


def is_watched() -> bool:
    """Whether `watching` goes on."""
    return _watched.get() is not None


def _without_policy(method: Callable, args: Any, kwargs: Any, context: Any) -> Any:
    """The result of a module's method, looked at unless a policy's own interceptor does."""
    module, seen, run = context.module, _watched.get(), _running.get()
    if module.scope is None or seen is None:
        return method(*args, **kwargs)
    path = "/".join(module.path)
    # Linen names a module that is held by another than its caller after both.
    with jax.named_scope(_MARK + path.replace("/", _SLASH)):
        out = method(*args, **kwargs)
    if (run is None or not _is_in(module, run)) and _is_method(module, context.method_name):
        kind = linen_kind_of(module)
        written = None if kind is None or module.dtype is None else jnp.dtype(module.dtype).name
        _note(seen, path, module, kind, written, context.method_name, out)
    return out


def watched_path(scope: str) -> str:
    """The path of the module that a scope names, in a program that was watched."""
    marked = [name for name in program.names(scope) if name.startswith(_MARK)]
    return marked[-1].removeprefix(_MARK).replace(_SLASH, "/") if marked else ""


def _with_policy(run: Run, method: Callable, args: Any, kwargs: Any, context: Any) -> Any:
    """The result of a module's method, as the policy says."""
    module, name = context.module, context.method_name
    if module.scope is None or not _is_in(module, run):
        return method(*args, **kwargs)
    path = "/".join(module.path[len(run.root) :])
    check_is_no_bridge(module, path)
    kind = linen_kind_of(module)
    compute = compute_dtype(run.policy, path, kind)
    told = None if kind is None else switch_dtype(run.policy, kind, compute)
    fields = {} if kind is None or told is None else switches(module, kind, told)
    computes = _is_method(module, name) and (name in METHODS or not path)
    with _set(module, fields), run.call(path) if computes else contextlib.nullcontext() as is_asked:
        out = method(*args, **kwargs)
    if not _is_method(module, name):
        return out
    _store(run, path, module)
    # A layer that calls its base, or a method of the model that another calls, hands out nothing.
    if is_asked:
        if run.verify and kind is not None and told is not None:
            _check_parameters(run, path, module, compute)
            _check_result(path, module, kind, told, out)
        output = output_dtype(run.policy, path, kind, compute)
        if output is not None and kind is not None and kind.is_cell:
            out = cast_step(out, args[0] if args else kwargs["carry"], output)
        elif not path and run.calls[WHOLE]:
            is_asked = False  # What was called from outside casts, and notes, what it hands out.
        elif output is not None:
            out = cast_result(out, output)
    note(run, module, kind, told, name, out if is_asked else None)
    return out


def _is_method(module: Any, name: str) -> bool:
    """Whether a module's class has a method of this name that computes.

    Functions of a module that Flax transforms (nn.scan in nn.RNN) are intercepted like methods.
    """
    return name != "setup" and hasattr(type(module), name)


def _is_in(module: Any, run: Run) -> bool:
    return module.path[: len(run.root)] == run.root


@contextlib.contextmanager
def _set(module: Any, fields: Mapping[str, Any]) -> Iterator[None]:
    """Gives `module` these fields for a while."""
    before = {field: getattr(module, field) for field in fields}
    try:
        for field, value in fields.items():
            object.__setattr__(module, field, value)
        yield
    finally:
        for field, value in before.items():
            object.__setattr__(module, field, value)


def _own(module: Any) -> dict[str, Any]:
    """Name -> value of the parameters that a module, which has just run, holds itself."""
    names = [name for name, kept in module.scope.reservations.items() if "params" in kept]
    return {name: module.get_variable("params", name) for name in names}


def _store(run: Run, path: str, module: Any) -> None:
    """Puts parameters that are being made into the dtype in which the policy stores them."""
    if not module.is_initializing() or not module.is_mutable_collection("params"):
        return
    for name, value in _own(module).items():
        stored = run.policy.for_path(joined(path, name)).params
        if any(dtype != stored for dtype in dtypes_in(value)):
            module.put_variable("params", name, cast_result(value, stored))


def _check_parameters(run: Run, path: str, module: Any, compute: str) -> None:
    """An error for a parameter that has lost digits which the policy keeps."""
    for name, value in _own(module).items():
        stored = run.policy.for_path(joined(path, name)).params
        for dtype in dtypes_in(value):
            if dtype in ("float32", stored, compute) or module.is_initializing():
                continue
            raise ValueError(
                f"{joined(path, name)} arrives in {dtype}, but the policy stores it in {stored} "
                f"and computes in {compute}: it was cast on its way. A model with a policy casts "
                "its parameters itself. Give jprec.value_and_grad the model in place of the "
                f"policy; or, if they are stored in {dtype}, say params={dtype} in the policy."
            )


def note(run: Run, module: Any, kind: Kind | None, told: str | None, method: str, out: Any) -> None:
    """Adds what a method of a module did to what was seen in this run."""
    _note(run.seen, "/".join(module.path[len(run.root) :]), module, kind, told, method, out)
    if (seen := _watched.get()) is not None:
        _note(seen, "/".join(module.path), module, kind, told, method, out)


def _check_result(path: str, module: Any, kind: Kind, told: str, out: Any) -> None:
    """An error for a layer that does not hand out the dtype that it was told."""
    results = dtypes_in(out)
    if not kind.is_cell and not kind.is_wrapper and {told, *results} != {told}:
        check_result(says(path, type(module).__name__), told, results, users_line())


def _note(
    seen: dict[str, Seen],
    path: str,
    module: Any,
    kind: Kind | None,
    dtype: str | None,
    method: str,
    out: Any,
) -> None:
    """Adds what a method of a module did to what was seen."""
    entry = seen.setdefault(path, Seen(type(module).__name__, kind, dtype))
    result = out[1] if kind is not None and kind.is_cell and method == "__call__" else out
    if method in METHODS:
        entry.results = tuple(sorted({*entry.results, *dtypes_in(result)}))
    entry.parameters = tuple(sorted({*entry.parameters, *_own(module)}))
