"""The models: small, ordinary, and silent about precision (every layer has `dtype=None`)."""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx


class MLP(nnx.Module):
    """Dense layers with an activation between them: [..., widths[0]] -> [..., widths[-1]]."""

    def __init__(
        self,
        widths: Sequence[int],
        *,
        activation: Callable[[jax.Array], jax.Array],
        kernel_init: nnx.Initializer,
        rngs: nnx.Rngs,
    ) -> None:
        self.layers = nnx.List(
            nnx.Linear(i, o, kernel_init=kernel_init, rngs=rngs)
            for i, o in itertools.pairwise(widths)
        )
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """The last layer's output, without an activation."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class CNN(nnx.Module):
    """Two convolutions, each followed by ReLU and 2 x 2 mean pooling, and a dense layer."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        he = nnx.initializers.he_normal()
        self.first = nnx.Conv(1, 8, (3, 3), kernel_init=he, rngs=rngs)
        self.second = nnx.Conv(8, 16, (3, 3), kernel_init=he, rngs=rngs)
        self.head = nnx.Linear(2 * 2 * 16, 10, kernel_init=he, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [n, 10] of images [n, 64]."""
        x = images.reshape(-1, 8, 8, 1)
        for layer in (self.first, self.second):
            x = _halve(nnx.relu(layer(x)))
        return self.head(x.reshape(x.shape[0], -1))


def _halve(x: jax.Array) -> jax.Array:
    """The means of 2 x 2 squares of [n, h, w, c]; pooling by reduce_window hides the additions."""
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))


class Transformer(nnx.Module):
    """One pre-norm block over characters; norms compute in FP32 and hand on the stream's dtype."""

    def __init__(self, characters: int, *, width: int, context: int, rngs: nnx.Rngs) -> None:
        # Not nnx.Embed, which fixes its dtype when it is built.
        self.token = nnx.Param(jax.random.normal(rngs.params(), (characters, width)) / 8)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (context, width)))
        self.attention_norm = _norm(width, rngs)
        self.query_key_value = nnx.Linear(width, 3 * width, rngs=rngs)
        self.mix = nnx.Linear(width, width, rngs=rngs)
        self.mlp_norm = _norm(width, rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.head_norm = _norm(width, rngs)
        self.head = nnx.Linear(width, characters, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        """Logits [n, t, characters] of the next character after each of text [n, t] int32."""
        x = self.token[...][text] + self.position[: text.shape[1]]
        x = x + self.mix(self._attend(self.query_key_value(_normed(self.attention_norm, x))))
        x = x + self.down(nnx.gelu(self.up(_normed(self.mlp_norm, x))))
        return self.head(_normed(self.head_norm, x))

    def _attend(self, projected: jax.Array) -> jax.Array:
        """Causal attention with four heads; the softmax is taken in FP32."""
        n, t, _ = projected.shape
        query, key, value = jnp.split(projected.reshape(n, t, 4, -1), 3, axis=-1)
        scale = jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
        logits = jnp.einsum("nqhd,nkhd->nhqk", query * scale, key).astype(jnp.float32)
        seen = jnp.tril(jnp.ones((t, t), bool))
        weights = jax.nn.softmax(jnp.where(seen, logits, -1e9))
        return jnp.einsum("nhqk,nkhd->nqhd", weights.astype(value.dtype), value).reshape(n, t, -1)


def _norm(width: int, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer normalisation in FP32, with the two-pass variance (the fast one cancels)."""
    return nnx.LayerNorm(width, dtype=jnp.float32, use_fast_variance=False, rngs=rngs)


def _normed(norm: nnx.LayerNorm, x: jax.Array) -> jax.Array:
    return norm(x).astype(x.dtype)
