"""What tests of this room share: a comparison of trees by bits, arrays, and Flax models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx


class Attention(nnx.Module):
    """A norm, attention and a dense layer, with a residual."""

    def __init__(self, rngs, dtype=None):
        self.norm = nnx.LayerNorm(8, rngs=rngs, dtype=dtype)
        self.attention = nnx.MultiHeadAttention(2, 8, rngs=rngs, decode=False, dtype=dtype)
        self.dense = nnx.Linear(8, 4, rngs=rngs, dtype=dtype)

    def __call__(self, x):
        x = x.reshape(x.shape[0], -1, 8)
        return self.dense(nnx.gelu(x + self.attention(self.norm(x))))


class Convolutions(nnx.Module):
    """A convolution and a strided one in groups."""

    def __init__(self, rngs, dtype=None):
        self.first = nnx.Conv(1, 4, (3, 3), rngs=rngs, dtype=dtype)
        self.second = nnx.Conv(
            4, 4, (3, 3), strides=2, feature_group_count=2, rngs=rngs, dtype=dtype
        )

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x.reshape(x.shape[0], 8, -1, 1))))


class Layers(nnx.Module):
    """Dense layers."""

    def __init__(self, rngs, dtype=None):
        self.layers = nnx.List(
            nnx.Linear(i, o, rngs=rngs, dtype=dtype) for i, o in ((32, 8), (8, 4))
        )

    def __call__(self, x):
        return self.layers[1](nnx.relu(self.layers[0](x)))


MODELS = {"mlp": Layers, "convolutions": Convolutions, "attention": Attention}


@pytest.fixture(scope="session")
def weights():
    return jax.random.normal(jax.random.key(0), (8, 8)) * 0.4


@pytest.fixture(scope="session")
def inputs():
    return jax.random.normal(jax.random.key(1), (4, 8))


@pytest.fixture(scope="session")
def batch():
    return jax.random.normal(jax.random.key(2), (4, 32))


@pytest.fixture(scope="session")
def model():
    """A function from a name and a dtype to a model's parameters and its loss."""

    def build(name, dtype=None):
        graph, state = nnx.split(MODELS[name](nnx.Rngs(0), dtype=dtype))

        def loss(state, x):
            return jnp.mean(nnx.merge(graph, state)(x).astype(jnp.float32) ** 2)

        return state, loss

    return build


@pytest.fixture(scope="session")
def same():
    """A function that says whether two trees have the same structure, dtypes and bits."""

    def bits(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()

    def check(got, want):
        return jax.tree.structure(got) == jax.tree.structure(want) and all(
            bits(a) == bits(b)
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
        )

    return check
