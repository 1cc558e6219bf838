"""Dot-product attention with 16-bit operands and a float32 softmax, on every backend."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    is_causal: bool = False,
) -> jax.Array:
    """Attention whose two products have operands in `dtype`, with logits and softmax in float32.

    In place of Flax's own, which in 16 bits is one of four: NNX asks for a float16 product with a
    float32 sum by a preset that XLA on a CPU does not compile under jit, and with dropout takes
    the softmax in 16 bits; Linen always does, or, told to take it in float32
    (`force_fp32_for_softmax`), it multiplies float32 weights by values raised to float32.

    Args:
      query: [..., t, heads, d].
      key: [..., s, kv_heads, d], where kv_heads divides heads.
      value: [..., s, kv_heads, v].
      bias: Added to the logits, broadcastable to [..., heads, t, s].
      mask: Where it is False nothing is attended to; same shape.
      broadcast_dropout: Drop the same weights in the whole batch and in all heads.
      dropout_rng: Random key for dropout. The same weights are dropped as by Flax.
      dropout_rate: Share of the weights that is dropped.
      deterministic: Drop nothing.
      dtype: That of the operands if None.
      precision: What the products ask for.
      module: The module in which the weights are kept; None keeps none.
      is_causal: Position t sees only s <= t.

    Returns:
      [..., t, heads, v] in `dtype`.
    """
    dtype = dtype or query.dtype
    query, key, value = (array.astype(dtype) for array in (query, key, value))
    groups = query.shape[-2] // key.shape[-2]
    key, value = (jnp.repeat(array, groups, axis=-2) for array in (key, value))
    # By the result's dtype, since a preset for it is not compiled everywhere.
    logits = jnp.einsum(
        "...thd,...shd->...hts", query, key, precision=precision, preferred_element_type=jnp.float32
    )
    logits = logits * query.shape[-1] ** -0.5
    if bias is not None:
        logits = logits + bias
    if is_causal:
        causal = jnp.tril(jnp.ones(logits.shape[-2:], bool))
        mask = causal if mask is None else causal & mask.astype(bool)
    if mask is not None:
        logits = jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(logits)
    if module is not None:
        kept = "intermediates" if isinstance(module, linen.Module) else nnx.Intermediate
        module.sow(kept, "attention_weights", weights)
    if dropout_rng is not None and dropout_rate > 0.0 and not deterministic:
        shape = weights.shape
        if broadcast_dropout:
            shape = (1,) * (len(shape) - 2) + shape[-2:]
        keep = jax.random.bernoulli(dropout_rng, 1.0 - dropout_rate, shape)
        weights = jnp.where(keep, weights / (1.0 - dropout_rate), 0.0)
    weights = weights.astype(dtype)
    return jnp.einsum("...hts,...shv->...thv", weights, value, precision=precision)
