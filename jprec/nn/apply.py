"""A policy in a Flax model that nobody edits."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from jprec import policy as policies
from jprec.nn.attention import attention
from jprec.nn.layers import Kind, layers_of, own_parameters
from jprec.nn.trace import trace
from jprec.nn.variables import COMPUTE

#: Class attribute of the classes made here: the policy of a model, or of one layer.
_POLICY = "_jprec_policy"

_CASTABLE = (jnp.float32, jnp.bfloat16, jnp.float16)


def apply(model: Any, policy: Any, *, verify: bool = True) -> Any:
    """A copy of an NNX model that computes, stores and answers as `policy` says.

    Each Flax layer computes in the policy's compute dtype, or in that of the first rule found in
    its path ("blocks/0/norm"). Norms compute in float32; a rule that gives a norm a 16-bit dtype
    gives it to the norm's *result*, since Flax would cast running statistics to it. Parameters
    are stored in the policy's params dtype; batch statistics, counters and random keys keep
    theirs. What the model's `__call__` returns is cast to the policy's output dtype, and so is
    the result of a layer whose rule names an output. Paths stay as they are. The policy's product
    is not the model's business: `jprec.value_and_grad` and `jprec.emulate` see to it.

    Args:
      model: A Flax NNX module. The original is not changed.
      policy: A policy, its name or its string.
      verify: Trace each layer and compare its products and result with the policy. A layer whose
        dtype switch has no effect is an error.

    Raises:
      TypeError: for what is no NNX module.
      ValueError: if the model, or a part of it, already has a policy; if a rule finds nothing; if
        a layer does not do what it is told.

    Parameters held by modules of your own, and products and casts written in `__call__`, follow
    the dtypes they meet; `describe` lists them.

    >>> model = apply(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "mixed_bf16")
    >>> model.dtype.name, model(jnp.ones((1, 2))).dtype.name
    ('bfloat16', 'float32')
    """
    check_is_nnx(model, "nn.apply")
    _check_has_no_policy(model)
    policy = policies.get(policy)
    model = nnx.clone(model)
    layers = layers_of(model)
    modules = [("/".join(map(str, path)), module) for path, module in nnx.iter_modules(model)]
    _check_rules(policy, layers, [path for path, _ in modules])
    computes = {path: _compute_dtype(policy, path, kind) for path, _, kind in layers}
    for path, layer, kind in layers:
        _set(path, layer, kind, computes[path], policy)
    # A layer may hold others, so all are set before one is traced.
    for path, layer, kind in layers:
        if verify and kind is not None:
            _verify(path, layer, kind, computes[path])
    kinds = {path: kind for path, _, kind in layers}
    for path, module in modules:
        output = _output_dtype(policy, path, kinds.get(path), computes.get(path))
        if output is not None:
            _give_class(module, output, policy)
    return model


def policy_of(model: Any) -> policies.Policy | None:
    """The policy that `apply` gave to `model`; None if it has none."""
    return getattr(type(model), _POLICY, None)


def check_is_nnx(model: Any, what: str) -> None:
    """An error that names the way that works, unless `model` is a Flax NNX module."""
    if isinstance(model, linen.Module):
        raise TypeError(
            f"{type(model).__name__} is a Flax Linen module; {what} takes Flax NNX modules. "
            "For Linen leave the layers' dtype at None and use jprec.value_and_grad(loss_fn, "
            "policy): it casts parameters and inputs, and the layers follow."
        )
    if not isinstance(model, nnx.Module):
        raise TypeError(
            f"{what} takes a Flax NNX module, not a {type(model).__name__}. For pure functions "
            "of parameters use jprec.value_and_grad(loss_fn, policy)."
        )


def _check_has_no_policy(model: Any) -> None:
    # The outermost first: its message says most.
    for path, part in sorted(nnx.iter_modules(model), key=lambda entry: len(entry[0])):
        marked = any(v.has_metadata(COMPUTE) for v in own_parameters(part).values())
        if marked or policy_of(part) is not None:
            where = f"its part {'/'.join(map(str, path))!r}" if path else "it"
            raise ValueError(
                f"{type(model).__name__}: {where} already has a policy"
                f"{'' if policy_of(part) is None else f' ({policy_of(part)})'}. One model has one "
                "policy: apply the new one to the original model."
            )


def _check_rules(
    policy: policies.Policy, layers: list[tuple[str, Any, Kind | None]], modules: list[str]
) -> None:
    """An error for a rule one of whose roles finds nothing to act on."""
    paths = [path for path, _, kind in layers if kind is not None]
    parameters = [
        f"{path}/{name}" if path else name for path, m, _ in layers for name in own_parameters(m)
    ]

    for rule in policy.rules:
        found = {
            "params": [p for p in parameters if rule.finds(p)],
            "compute": [p for p in paths if rule.finds(p + "/")],
            "output": [p for p in modules if rule.finds(p + "/")],
        }
        idle = [role for role in rule.changes if not found[role]]
        if not idle:
            continue
        if found["params"]:
            first = found["params"][0]
            raise ValueError(
                f"rule {str(rule)!r}: {' and '.join(idle)} can do nothing, since it finds only "
                f"parameters ({first}), and that belongs to layers. Write a pattern that is found "
                f"in a layer's path, such as {first.rpartition('/')[0]!r}."
            )
        raise ValueError(
            f"rule {str(rule)!r}: {' and '.join(idle)} finds nothing in this model. Layers: "
            f"{', '.join(p or '(the model)' for p in paths)}."
        )


def _compute_dtype(policy: policies.Policy, path: str, kind: Kind | None) -> str:
    rule = policy.rule_for(path + "/")
    if rule is not None and rule.compute is not None:
        return rule.compute
    return "float32" if kind is not None and kind.is_norm else policy.compute


def _output_dtype(
    policy: policies.Policy, path: str, kind: Kind | None, compute: str | None
) -> str | None:
    """The dtype that a module's result is cast to; None where it comes out right by itself."""
    rule = policy.rule_for(path + "/")
    if rule is not None and rule.output is not None:
        return rule.output
    if not path:
        return policy.output
    # Gates are multiplied by the carry, which has the parameters' dtype, and so has the result.
    casts = kind is not None and (kind.is_cell or (kind.is_norm and compute != "float32"))
    return compute if casts else None


def _set(path: str, layer: Any, kind: Kind | None, compute: str, policy: policies.Policy) -> None:
    """Stores the parameters of one layer, and sets its switches."""
    for name, parameter in own_parameters(layer).items():
        value = parameter.get_value()
        stored = policy.for_path(f"{path}/{name}" if path else name).params
        if value.dtype in _CASTABLE:
            parameter.set_value(value.astype(stored))
        if kind is not None:
            # What two layers share is float32 if one of them computes in it.
            shared = parameter.get_metadata(COMPUTE, compute)
            parameter.set_metadata(COMPUTE, compute if shared == compute else "float32")
    if kind is None:
        return
    layer.dtype = jnp.dtype("float32" if kind.is_norm else compute)
    if hasattr(layer, "param_dtype"):
        layer.param_dtype = jnp.dtype(policy.for_path(path + "/").params)
    plain = getattr(layer, "attention_fn", None) is nnx.dot_product_attention
    if plain and compute == "float16":
        layer.attention_fn = attention


def _verify(path: str, layer: Any, kind: Kind, compute: str) -> None:
    """An error if the traced layer does not compute in `compute`."""
    traced = trace(layer, kind)
    if traced is None:
        return
    want = "float32" if kind.is_norm else compute
    name = f"{path or 'the model'} ({type(layer).__name__})"
    wrong = [dtype for dtype in traced.products if dtype != want]
    if wrong:
        raise ValueError(
            f"{name}: dtype={want} was set, but its products have operands in "
            f"{', '.join(wrong)}: the switch has no effect there. Give this layer a rule with "
            f"compute={wrong[0]}, or a class that follows its dtype."
        )
    if traced.output != want and not kind.is_cell:
        raise ValueError(
            f"{name}: dtype={want} was set, but its result is {traced.output}: the switch has no "
            f"effect. Give this layer a rule with compute={traced.output}, or a class that "
            "follows its dtype."
        )


def _give_class(module: Any, output: str, policy: policies.Policy) -> None:
    """Makes `module` cast what it returns. Its attributes, and so all paths, stay."""
    cls = _with_output(type(module), output, policy, policy.name)  # type: ignore[arg-type]
    object.__setattr__(module, "__class__", cls)


@functools.cache
def _with_output(cls: type, output: str, policy: policies.Policy, name: str | None) -> type:
    """A subclass of `cls` whose call casts to `output`; the same one for the same arguments.

    The same, because NNX compares the classes of two graphs to tell whether to trace again. The
    policy's name is an argument because two policies of different names are equal.
    """
    del name

    is_cell = issubclass(cls, nnx.RNNCellBase)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = cls.__call__(self, *args, **kwargs)  # type: ignore[operator]
        if is_cell:
            # The carry goes round a scan, so it comes out in the dtypes it came in with.
            carry = jax.tree.map(lambda new, old: new.astype(old.dtype), out[0], args[0])
            return carry, _cast_result(out[1], output)
        return _cast_result(out, output)

    body = {
        "__call__": functools.wraps(cls.__call__)(__call__),  # type: ignore[operator]
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        _POLICY: policy,
    }
    return type(cls)(cls.__name__, (cls,), body)


def _cast_result(out: Any, dtype: str) -> Any:
    """`out` with its floating arrays in `dtype`."""

    def cast(leaf: Any) -> Any:
        castable = getattr(leaf, "dtype", None) in _CASTABLE
        return leaf.astype(dtype) if castable else leaf

    return jax.tree.map(cast, out)
