"""The Flax Linen layers that a policy reaches, and what each is told to compute in a dtype."""

from typing import Any

import jax.numpy as jnp
from flax import linen

from jprec.nn.attention import attention
from jprec.nn.casting import are_castable
from jprec.nn.layers import Kind

_LAYER = Kind()
_NORM = Kind(is_norm=True)
_WRAPPER = Kind(is_norm=True, is_wrapper=True)
_CELL = Kind(is_cell=True)

#: The first class that a layer is an instance of holds. A lifted layer (`nn.remat(nn.Dense)`) and
#: a user's subclass are instances too.
LINEN_KINDS: dict[type, Kind] = {
    linen.Dense: _LAYER,
    linen.DenseGeneral: _LAYER,
    linen.Einsum: _LAYER,
    linen.Conv: _LAYER,
    linen.ConvLocal: _LAYER,
    linen.ConvTranspose: _LAYER,
    linen.Embed: _LAYER,
    linen.MultiHeadDotProductAttention: _LAYER,
    linen.BatchNorm: _NORM,
    linen.LayerNorm: _NORM,
    linen.RMSNorm: _NORM,
    linen.GroupNorm: _NORM,
    linen.InstanceNorm: _NORM,
    linen.WeightNorm: _WRAPPER,
    linen.SpectralNorm: _WRAPPER,
    linen.LSTMCell: _CELL,
    linen.OptimizedLSTMCell: _CELL,
    linen.SimpleCell: _CELL,
    linen.GRUCell: _CELL,
    linen.MGUCell: _CELL,
    linen.ConvLSTMCell: _CELL,
}

#: Methods that compute, of the layers above; a layer's others only prepare.
METHODS = ("__call__", "attend")


def linen_kind_of(module: Any) -> Kind | None:
    """What is known of `module`'s class; None for one that is no Flax layer.

    None also for a layer whose dtypes are not those of a policy (float64, complex, 8 bits): it is
    left as it was written.
    """
    kind = next((kind for cls, kind in LINEN_KINDS.items() if isinstance(module, cls)), None)
    return kind if kind is not None and are_castable(module.dtype, module.param_dtype) else None


def switches(module: Any, kind: Kind, dtype: str) -> dict[str, Any]:
    """The fields of `module`, with values, that make it compute in `dtype`."""
    fields: dict[str, Any] = {"dtype": jnp.dtype(dtype)}
    if kind.is_norm and hasattr(module, "force_float32_reductions"):
        fields["force_float32_reductions"] = dtype == "float32"
        if dtype != "float32":
            # Without the force, running statistics are made, and read, in the parameters' dtype.
            fields["param_dtype"] = jnp.dtype(jnp.float32)
    if isinstance(module, linen.MultiHeadDotProductAttention) and dtype != "float32":
        if _is_plain(module):
            fields["attention_fn"] = attention
        else:
            fields["force_fp32_for_softmax"] = True
    return fields


def _is_plain(module: Any) -> bool:
    """Whether attention is Flax's own, with its own products."""
    replaced = (module.qk_attn_weights_einsum_cls, module.attn_weights_value_einsum_cls)
    return module.attention_fn is linen.dot_product_attention and not any(replaced)
