"""The Flax NNX layers that a policy reaches: how each computes, and an input to trace it with."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jprec.nn.casting import are_castable

#: What a layer is called with when it is traced: arguments, or None where none can be told.
Inputs = tuple[Any, ...] | None


def _unknown(layer: Any) -> Inputs:
    """For a layer whose inputs cannot be told."""
    del layer
    return None


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _linear_general(layer: Any) -> Inputs:
    fixed = dict(zip(_sizes(layer.axis), _sizes(layer.in_features), strict=True))
    fixed |= dict(layer.batch_axis)
    rank = len(fixed) + 1
    shape = [2] * rank
    for axis, size in fixed.items():
        shape[axis % rank] = size
    return (_array(*shape),)


def _einsum(layer: Any) -> Inputs:
    if layer.einsum_str is None:
        return None
    inputs, kernel = layer.einsum_str.replace(" ", "").split("->")[0].split(",")
    size = dict(zip(kernel, layer.kernel_shape, strict=False))
    return (_array(*(size.get(letter, 2) for letter in inputs.replace("...", ""))),)


def _conv(layer: Any) -> Inputs:
    kernel = _sizes(layer.kernel_size)
    dilation = _sizes(layer.kernel_dilation)
    dilation = dilation * len(kernel) if len(dilation) == 1 else dilation
    space = ((size - 1) * (step or 1) + 1 for size, step in zip(kernel, dilation, strict=True))
    return (_array(1, *space, layer.in_features),)


def _attention(layer: Any) -> Inputs:
    if layer.decode:
        return None
    return (_array(1, 2, layer.in_features), _array(1, 2, layer.in_kv_features))


def _norm(layer: Any) -> Inputs:
    """Group normalisation does not keep its number of features; its parameters have it."""
    features = [p.shape[-1] for p in own_parameters(layer).values()]
    features.append(getattr(layer, "num_features", None) or getattr(layer, "num_groups", 1))
    return (_array(2, 3, features[0]),)


def _cell(layer: Any) -> Inputs:
    carry = jax.ShapeDtypeStruct((1, layer.hidden_features), layer.param_dtype)
    paired = isinstance(layer, nnx.LSTMCell | nnx.OptimizedLSTMCell)
    return ((carry, carry) if paired else carry, _array(1, layer.in_features))


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a policy has to know of a layer class.

    Attributes:
      inputs: layer -> arguments that it can be traced with, as float32 shapes.
      is_norm: Takes statistics: in the policy's dtype for them, while a rule about its compute
        dtype is about its *result*.
      is_cell: Called with (carry, inputs), returns (carry, output).
      is_wrapper: A norm of weights: rewrites, in float32, the kernel of the layer that it holds,
        whose result it hands on, and which is looked at by itself.
      call: Keyword arguments for tracing.
    """

    inputs: Callable[[Any], Inputs] = _unknown
    is_norm: bool = False
    is_cell: bool = False
    is_wrapper: bool = False
    call: tuple[tuple[str, Any], ...] = ()


_NORM = Kind(_norm, is_norm=True)
_WRAPPER = Kind(is_norm=True, is_wrapper=True)
_CELL = Kind(_cell, is_cell=True)

#: The first class that a layer is an instance of holds, so subclasses come before their bases.
KINDS: dict[type, Kind] = {
    nnx.LoRA: Kind(lambda layer: (_array(2, layer.in_features),)),
    nnx.Linear: Kind(lambda layer: (_array(2, layer.in_features),)),
    nnx.LinearGeneral: Kind(_linear_general),
    nnx.Einsum: Kind(_einsum),
    nnx.Conv: Kind(_conv),
    nnx.ConvTranspose: Kind(_conv),
    nnx.Embed: Kind(lambda layer: (jax.ShapeDtypeStruct((2,), jnp.int32),)),
    nnx.MultiHeadAttention: Kind(_attention, call=(("deterministic", True),)),
    nnx.BatchNorm: dataclasses.replace(_NORM, call=(("use_running_average", True),)),
    nnx.LayerNorm: _NORM,
    nnx.RMSNorm: _NORM,
    nnx.GroupNorm: _NORM,
    nnx.InstanceNorm: _NORM,
    nnx.WeightNorm: _WRAPPER,
    nnx.SpectralNorm: _WRAPPER,
    nnx.LSTMCell: _CELL,
    nnx.OptimizedLSTMCell: _CELL,
    nnx.SimpleCell: _CELL,
    nnx.GRUCell: _CELL,
}


def kind_of(module: Any) -> Kind | None:
    """What is known of `module`'s class; None for a module that is no Flax layer.

    None also for a layer whose dtypes are not those of a policy (float64, complex, 8 bits): it is
    left as it was written.
    """
    kind = next((kind for cls, kind in KINDS.items() if isinstance(module, cls)), None)
    if kind is None:
        return None
    own = (parameter.get_value().dtype for parameter in own_parameters(module).values())
    return kind if are_castable(module.dtype, *own) else None


def layers_of(model: Any) -> list[tuple[str, Any, Kind | None]]:
    """(path, module, kind) of every module that is a Flax layer or holds parameters itself."""
    found = []
    for path, module in nnx.iter_modules(model):
        kind = kind_of(module)
        if kind is not None or own_parameters(module):
            found.append(("/".join(map(str, path)), module, kind))
    return sorted(found, key=lambda entry: entry[0])


def own_parameters(module: Any) -> dict[str, Any]:
    """Name -> the `Param`s that hang directly on `module`."""
    return {name: v for name, v in vars(module).items() if isinstance(v, nnx.Param)}
