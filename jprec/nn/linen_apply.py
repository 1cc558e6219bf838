"""A policy in a Flax Linen model: a subclass that tells each layer what to do while it runs."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
from flax import core, linen

from jprec import policy as policies
from jprec.nn.casting import cast_result
from jprec.nn.decisions import check_rules, joined, output_dtype
from jprec.nn.interception import WHOLE, Seen, is_watched, note, running
from jprec.nn.libraries import check_is_no_bridge
from jprec.nn.linen_layers import linen_kind_of
from jprec.nn.linen_trace import look
from jprec.nn.marks import POLICY, check_has_no_policy
from jprec.nn.verification import check_model

#: Flag of a Linen scope. `nn.jit` keeps what it has traced by a module's fields and its scope's
#: flags, so that it does not take the program of another policy for this one's.
_FLAG = "jprec_policy"
_NUMBERS = itertools.count()


def apply_linen(
    model: Any,
    policy: policies.Policy,
    inputs: tuple | None,
    kwargs: dict[str, Any],
    *,
    verify: bool,
) -> Any:
    """As `jprec.nn.apply` says."""
    if model.scope is not None:
        raise ValueError(
            f"{type(model).__name__} is bound already: it has a place in a model that runs. Give "
            "it the policy before: build it outside, or in setup() without a name, and apply the "
            "policy at once; or give the policy to the whole model, with a rule for this part."
        )
    for path, part in _parts(model, ""):
        check_is_no_bridge(part, path)
        check_has_no_policy(model, part, path)
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model) if f.init}
    cls = _with_policy(type(model), policy, policy.name, verify)  # type: ignore[arg-type]
    applied = cls(**{**fields, "parent": None})
    if inputs is not None:
        looked = look(applied, inputs, kwargs)
        if verify:
            wants = {
                path: (seen.layer, seen.dtype)
                for path, seen in looked.seen.items()
                if seen.kind is not None and not seen.kind.is_wrapper and seen.dtype is not None
            }
            check_model(wants, looked.products)
    return applied


def _parts(module: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, module) of a model and of the modules in its fields."""
    yield path, module
    for field in dataclasses.fields(module):
        if field.name in ("parent", "name") or not field.init:
            continue
        # Modules are leaves of any tree that a field may hold.
        for leaf in jax.tree.leaves(getattr(module, field.name)):
            if isinstance(leaf, linen.Module):
                yield from _parts(leaf, joined(path, field.name))


@functools.cache
def _with_policy(cls: type, policy: policies.Policy, name: str | None, verify: bool) -> type:
    """A subclass of `cls` that runs as `policy` says; the same one for the same arguments.

    The same, because models are compared to tell whether to trace again. The policy's name is an
    argument because two policies of different names are equal.
    """
    del name

    @linen.nowrap
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        with running(policy, (), verify=verify):
            return cls.apply(self, *args, **kwargs)  # type: ignore[attr-defined]

    @linen.nowrap
    def init_with_output(self: Any, *args: Any, **kwargs: Any) -> Any:
        with running(policy, (), verify=verify) as run:
            out, variables = cls.init_with_output(self, *args, **kwargs)  # type: ignore[attr-defined]
        if kwargs.get("method") is None:
            _check_rules(policy, run.seen, variables)
        return out, _stored(policy, variables)

    @linen.nowrap
    def clone(self: Any, *, parent: Any = None, **rest: Any) -> Any:
        if isinstance(parent, core.Scope):
            _flag(parent, policy)
        return cls.clone(self, parent=parent, **rest)  # type: ignore[attr-defined]

    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        # Dataclasses would make these anew, in place of a user's own.
        "__eq__": cls.__eq__,
        "__hash__": cls.__hash__,
        POLICY: policy,
    }
    for method, function in _methods(cls).items():
        body[method] = _with_run(function, policy, verify)
    body |= {
        what.__name__: functools.wraps(getattr(cls, what.__name__))(what)
        for what in (apply, init_with_output, clone)
    }
    return type(cls)(cls.__name__, (cls,), body)


def _methods(cls: type) -> dict[str, Any]:
    """The methods in which a model computes."""
    found: dict[str, Any] = {}
    fields = {field.name for field in dataclasses.fields(cls)}
    for base in reversed(cls.__mro__[: cls.__mro__.index(linen.Module)]):
        for name, value in vars(base).items():
            is_method = name == "__call__" or not name.startswith("__")
            is_method &= callable(value) and hasattr(value, "__get__")
            is_method &= not isinstance(value, type | staticmethod | classmethod)
            if is_method and name not in fields and name != "setup":
                found[name] = value
            else:
                found.pop(name, None)
    return {name: method for name, method in found.items() if not hasattr(method, "nowrap")}


def _with_run(method: Any, policy: policies.Policy, verify: bool) -> Any:
    """`method`, in a run of the model; what it returns to others is in the policy's output."""

    @functools.wraps(method)
    def run_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.scope is None:
            return method(self, *args, **kwargs)
        with running(policy, self.path, verify=verify) as run, run.call(WHOLE) as is_asked:
            if is_asked:
                _flag(self.scope, policy)
            out = method(self, *args, **kwargs)
            kind = linen_kind_of(self)
            if is_asked and (kind is None or not kind.is_cell):
                out = cast_result(out, output_dtype(policy, "", kind, None) or policy.output)
            if is_asked:
                note(run, self, kind, None, method.__name__, out)
        return out

    return run_method


def _flag(scope: core.Scope, policy: policies.Policy) -> None:
    """Marks a scope, and those that will be opened inside, with the policy."""
    # What is looked at must run: then the flag is one that no trace was kept for. It is a number,
    # since Flax keeps its hash alone, and that of a dead object may come again.
    is_looked_at = is_watched() or scope.has_flag("initializing")
    flag = (str(policy), next(_NUMBERS) if is_looked_at else None)
    scope.flags = core.freeze({**scope.flags, _FLAG: flag})


def _parameter(key_path: Any) -> str | None:
    """The path of a parameter among variables; None for another variable."""
    collection, _, path = policies.leaf_path(key_path).partition("/")
    return path if collection == "params" else None


def _check_rules(policy: policies.Policy, seen: dict[str, Seen], variables: Any) -> None:
    """An error for a rule that cannot act on a model that has run and made these variables."""
    leaves = jax.tree_util.tree_flatten_with_path(variables)[0]
    parameters = [path for key_path, _ in leaves if (path := _parameter(key_path))]
    modules = sorted({*seen, *(path.rpartition("/")[0] for path in parameters)})
    layers = [path for path in modules if path in seen and seen[path].kind is not None]
    check_rules(policy, layers, modules, parameters)


def _stored(policy: policies.Policy, variables: Any) -> Any:
    """`variables` with parameters as the policy stores them.

    Most are so already; one that a module makes in `setup`, and that others take, is not.
    """

    def store(key_path: Any, leaf: Any) -> Any:
        path = _parameter(key_path)
        return leaf if path is None else cast_result(leaf, policy.for_path(path).params)

    return jax.tree_util.tree_map_with_path(store, variables)
