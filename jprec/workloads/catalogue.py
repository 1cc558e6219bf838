"""The workloads that jprec's own studies train."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jprec.workloads import digits, plays
from jprec.workloads.models import CNN, MLP, Transformer
from jprec.workloads.workload import Workload, functions


def _drawer(arrays: tuple[np.ndarray, ...], size: int) -> Callable[[jax.Array], Any]:
    """key -> `size` rows of each array, drawn with replacement."""

    def batches(key: jax.Array) -> tuple[jax.Array, ...]:
        rows = jax.random.randint(key, (size,), 0, len(arrays[0]))
        return tuple(jnp.asarray(a)[rows] for a in arrays)

    return batches


def _classifier(name: str, make: Callable[[nnx.Rngs], nnx.Module]) -> Workload:
    """Digits to ten classes, batch 64, by the model that `make` builds."""
    train, test = digits.load()
    init, apply = functions(make)

    def loss(parameters: Any, batch: Any) -> jax.Array:
        images, labels = batch
        logits = apply(parameters, images).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def accuracy(parameters: Any, batch: Any) -> jax.Array:
        images, labels = batch
        return (apply(parameters, images).argmax(-1) == labels).mean(dtype=jnp.float32)

    return Workload(
        init, loss, _drawer(train, 64), test, name=name, guess=math.log(10), accuracy=accuracy
    )


@functools.cache
def digits_mlp() -> Workload:
    """Digits by a 64-128-128-10 MLP with ReLU."""
    return _classifier(
        "digits-mlp",
        lambda rngs: MLP(
            (64, 128, 128, 10),
            activation=nnx.relu,
            kernel_init=nnx.initializers.he_normal(),
            rngs=rngs,
        ),
    )


@functools.cache
def digits_cnn() -> Workload:
    """Digits by a CNN of two 3 x 3 convolutions and a dense layer."""
    return _classifier("digits-cnn", lambda rngs: CNN(rngs=rngs))


@functools.cache
def digits_autoencoder() -> Workload:
    """Digits through 64-64-16-64-64 with tanh, mean squared error over pixels, batch 1024.

    The mean over 65536 pixels makes gradients small: the study of FP16's range lives here.
    Guessing is the mean image, whose loss is the pixels' variance.
    """
    (train, _), (test, _) = digits.load()
    init, apply = functions(
        lambda rngs: MLP(
            (64, 64, 16, 64, 64),
            activation=nnx.tanh,
            kernel_init=nnx.initializers.lecun_normal(),
            rngs=rngs,
        )
    )

    def loss(parameters: Any, images: jax.Array) -> jax.Array:
        difference = apply(parameters, images).astype(jnp.float32) - images.astype(jnp.float32)
        return jnp.mean(difference * difference)

    draw = _drawer((train,), 1024)
    return Workload(
        init,
        loss,
        lambda key: draw(key)[0],
        test,
        name="digits-autoencoder",
        guess=float(np.mean((test - train.mean(0)) ** 2)),
    )


@functools.cache
def plays_transformer() -> Workload:
    """The next of 64 characters of three plays by a one-layer transformer, 64 wide, 4 heads."""
    train, test, characters = plays.load()
    context = 64
    init, apply = functions(
        lambda rngs: Transformer(characters, width=64, context=context, rngs=rngs)
    )

    def loss(parameters: Any, text: jax.Array) -> jax.Array:
        logits = apply(parameters, text[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()

    def batches(key: jax.Array) -> jax.Array:
        starts = jax.random.randint(key, (16,), 0, len(train) - context)
        return jnp.asarray(train)[starts[:, None] + jnp.arange(context + 1)]

    starts = np.linspace(0, len(test) - context - 1, 128).astype(int)
    held_out = test[starts[:, None] + np.arange(context + 1)]
    return Workload(init, loss, batches, held_out, name="plays-transformer", guess=plays.guess())
