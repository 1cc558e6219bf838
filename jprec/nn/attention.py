"""Dot-product attention for float16 on every backend."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    is_causal: bool = False,
    **rest: Any,
) -> jax.Array:
    """Attention with 16-bit operands, logits and softmax in float32.

    `jax.nn.dot_product_attention`, which Flax calls, asks for a float16 product with a float32
    sum by a preset that XLA on a CPU does not compile under jit. This asks for the same by the
    result's dtype. With dropout or kept weights, Flax's own function is called, which does not
    take that path.

    Args:
      query: [..., t, heads, d].
      key: [..., s, kv_heads, d], where kv_heads divides heads.
      value: [..., s, kv_heads, v].
      bias: Added to the logits, broadcastable to [..., heads, t, s].
      mask: Where it is False nothing is attended to; same shape.
      is_causal: Position t sees only s <= t.
      rest: What else Flax's layer passes.

    Returns:
      [..., t, heads, v] in the dtype of the operands.
    """
    if rest.get("dropout_rate") or rest.get("module") is not None:
        return nnx.dot_product_attention(
            query, key, value, bias=bias, mask=mask, is_causal=is_causal, **rest
        )
    dtype = rest.get("dtype") or query.dtype
    query, key, value = (array.astype(dtype) for array in (query, key, value))
    groups = query.shape[-2] // key.shape[-2]
    key, value = (jnp.repeat(array, groups, axis=-2) for array in (key, value))
    logits = jnp.einsum("...thd,...shd->...hts", query, key, preferred_element_type=jnp.float32)
    logits = logits * query.shape[-1] ** -0.5
    if bias is not None:
        logits = logits + bias
    if is_causal:
        causal = jnp.tril(jnp.ones(logits.shape[-2:], bool))
        mask = causal if mask is None else causal & mask.astype(bool)
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(logits).astype(dtype)
    return jnp.einsum("...hts,...shv->...thv", weights, value)
