"""A policy in a Flax NNX model: switches are set once, on a copy."""

import functools
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jprec import policy as policies
from jprec.nn.attention import attention
from jprec.nn.casting import cast_result, cast_step, is_castable
from jprec.nn.decisions import (
    check_rules,
    compute_dtype,
    joined,
    output_dtype,
    says,
    switch_dtype,
)
from jprec.nn.layers import Kind, layers_of, own_parameters
from jprec.nn.libraries import check_is_no_bridge
from jprec.nn.marks import POLICY, check_has_no_policy
from jprec.nn.trace import nnx_products, trace
from jprec.nn.variables import COMPUTE
from jprec.nn.verification import check_model, check_products, check_result


def apply_nnx(
    model: Any,
    policy: policies.Policy,
    inputs: tuple | None,
    kwargs: dict[str, Any],
    *,
    verify: bool,
) -> Any:
    """As `jprec.nn.apply` says."""
    # The outermost first: its message says most.
    for path, part in sorted(nnx.iter_modules(model), key=lambda entry: len(entry[0])):
        where = "/".join(map(str, path))
        check_is_no_bridge(part, where)
        marked = any(v.has_metadata(COMPUTE) for v in own_parameters(part).values())
        check_has_no_policy(model, part, where, is_marked=marked)
    model = nnx.clone(model)
    layers = layers_of(model)
    modules = [("/".join(map(str, path)), module) for path, module in nnx.iter_modules(model)]
    check_rules(
        policy,
        [path for path, _, kind in layers if kind is not None],
        [path for path, _ in modules],
        parameters_of(layers),
    )
    computes = {path: compute_dtype(policy, path, kind) for path, _, kind in layers}
    for path, layer, kind in layers:
        _set(path, layer, kind, computes[path], policy)
    # A layer may hold others, so all are set before one is traced.
    for path, layer, kind in layers:
        if verify and kind is not None:
            _verify(path, layer, kind, switch_dtype(policy, kind, computes[path]))
    kinds = {path: kind for path, _, kind in layers}
    for path, module in modules:
        output = output_dtype(policy, path, kinds.get(path), computes.get(path))
        if output is not None:
            _give_class(module, output, policy)
    if verify and inputs is not None:
        wants = {
            path: (type(layer).__name__, switch_dtype(policy, kind, computes[path]))
            for path, layer, kind in layers
            if kind is not None and not kind.is_wrapper
        }
        check_model(wants, nnx_products(model, inputs, kwargs))
    return model


def parameters_of(layers: list[tuple[str, Any, Kind | None]]) -> list[str]:
    """The paths of the parameters of these layers."""
    return [joined(path, name) for path, module, _ in layers for name in own_parameters(module)]


def _set(path: str, layer: Any, kind: Kind | None, compute: str, policy: policies.Policy) -> None:
    """Stores the parameters of one layer, and sets its switches."""
    for name, parameter in own_parameters(layer).items():
        value = parameter.get_value()
        stored = policy.for_path(joined(path, name)).params
        if is_castable(value):
            parameter.set_value(value.astype(stored))
        if kind is not None:
            # What two layers share is float32 if one of them computes in it.
            shared = parameter.get_metadata(COMPUTE, compute)
            parameter.set_metadata(COMPUTE, compute if shared == compute else "float32")
    if kind is None:
        return
    layer.dtype = jnp.dtype(switch_dtype(policy, kind, compute))
    if kind.is_norm and not kind.is_wrapper and policy.statistics != "float32":
        _set_statistics(path, layer, policy)
    if hasattr(layer, "param_dtype"):
        layer.param_dtype = jnp.dtype(policy.for_path(path + "/").params)
    plain = getattr(layer, "attention_fn", None) is nnx.dot_product_attention
    drops = getattr(layer, "dropout_rate", 0.0) > 0.0
    # In bfloat16 without dropout Flax's own attention is right, and JAX may have a fast one.
    if plain and (compute == "float16" or (compute == "bfloat16" and drops)):
        layer.attention_fn = attention


def _set_statistics(path: str, layer: Any, policy: policies.Policy) -> None:
    """Makes a norm take its statistics in 16 bits, or says that it cannot."""
    if not hasattr(layer, "force_float32_reductions"):
        raise ValueError(
            f"{says(path, type(layer).__name__)}: statistics={policy.statistics} has no effect, "
            "since norms of Flax NNX take means and variances in float32 whatever their dtype. "
            "Leave statistics=float32; norms of Flax Linen can be told otherwise."
        )
    layer.force_float32_reductions = False


def _verify(path: str, layer: Any, kind: Kind, want: str) -> None:
    """An error if the traced layer does not compute in `want`."""
    traced = trace(layer, kind)
    if traced is None:
        return
    check_products(says(path, type(layer).__name__), want, traced.products)
    if not kind.is_cell:
        check_result(says(path, type(layer).__name__), want, (traced.output,))


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
        return (
            cast_step(out, args[0] if args else kwargs["carry"], output)
            if is_cell
            else cast_result(out, output)
        )

    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        POLICY: policy,
    }
    if any("__call__" in vars(base) for base in cls.__mro__):
        body["__call__"] = functools.wraps(cls.__call__)(__call__)  # type: ignore[operator]
    return type(cls)(cls.__name__, (cls,), body)
