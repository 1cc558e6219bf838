"""Which arrays `watch_products` hands out."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import program

SIZES = (6, 5, 4, 3)


@pytest.fixture(scope="module")
def layers():
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = itertools.pairwise(SIZES)
    return [jax.random.normal(k, shape) * 0.5 for k, shape in zip(keys, shapes, strict=True)]


@pytest.fixture(scope="module")
def points():
    return jax.random.normal(jax.random.key(1), (7, 6))


def net(layers, x):
    for w in layers[:-1]:
        x = jnp.tanh(x @ w)
    return x @ layers[-1]


def loss(layers, x):
    return jnp.mean(net(layers, x) ** 2)


def cast(tree, dtype):
    return jax.tree.map(lambda a: a.astype(dtype), tree)


def low(layers, x):
    return jnp.mean(
        net(cast(layers, jnp.bfloat16), x.astype(jnp.bfloat16)).astype(jnp.float32) ** 2
    )


def shapes(operands):
    return {name: [a.shape for a in arrays] for name, arrays in operands.items()}


EXPECTED = {
    "activations": [(7, 6), (7, 5), (7, 4)],
    "activation_gradients": [(7, 3), (7, 4), (7, 5)],
}

FUNCTIONS = {
    "plain": jax.value_and_grad(loss),
    "emulated inside": jax.value_and_grad(program.emulate(loss, "tf32")),
    "emulated outside": program.emulate(jax.value_and_grad(loss), "tf32"),
    "cast": jax.value_and_grad(low),
    "rounded": program.round_explicitly(jax.value_and_grad(low)),
    "fp16 products": program.emulate(jax.value_and_grad(loss), "fp16"),
    "both": program.emulate(program.round_explicitly(jax.value_and_grad(low)), "tf32"),
    "checkpoint": jax.value_and_grad(jax.checkpoint(loss)),
    "jit": jax.jit(jax.value_and_grad(jax.jit(loss))),
}


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_each_activation_and_each_gradient_once(f, layers, points):
    out, operands = jax.eval_shape(program.watch_products(f), layers, points)
    assert shapes(operands) == EXPECTED
    assert out == jax.eval_shape(f, layers, points)


def test_values_are_those_of_the_layers(layers, points):
    (value, _), operands = jax.jit(program.watch_products(jax.value_and_grad(loss)))(layers, points)
    np.testing.assert_allclose(value, loss(layers, points), rtol=1e-6)
    hidden = jnp.tanh(points @ layers[0])
    want = [points, hidden, jnp.tanh(hidden @ layers[1])]
    for got, expected in zip(operands["activations"], want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    gradient = 2 * net(layers, points) / (7 * 3)
    np.testing.assert_allclose(operands["activation_gradients"][0], gradient, rtol=1e-5, atol=1e-7)


def test_emulated_operands_are_rounded(layers, points):
    watched = program.watch_products(program.emulate(jax.value_and_grad(loss), "e8m2"))
    _, operands = jax.jit(watched)(layers, points)
    for array in jax.tree.leaves(operands):
        mantissa = np.asarray(array).view(np.uint32) & ((1 << 21) - 1)
        assert not mantissa.any()


def test_under_vmap_over_seeds(layers, points):
    stacked = jax.tree.map(lambda w: jnp.stack([w, 2 * w]), layers)
    watched = jax.jit(jax.vmap(program.watch_products(jax.value_and_grad(loss)), (0, None)))
    _, operands = watched(stacked, points)
    activations = operands["activations"]
    assert [a.shape for a in activations] == [(2, 7, 6), (2, 7, 5), (2, 7, 4)]
    np.testing.assert_allclose(activations[1][1], jnp.tanh(points @ stacked[0][1]), rtol=1e-5)


def test_gradients_begin_at_a_scale_that_is_an_argument(layers, points):
    def scaled(layers, x, scale):
        value, pullback = jax.vjp(lambda layers: loss(layers, x), layers)
        return value, pullback(scale)

    watched = program.watch_products(scaled)
    _, operands = jax.eval_shape(watched, layers, points, jnp.float32(8.0))
    assert shapes(operands) == EXPECTED


def test_parameters_are_not_activations_however_they_are_rounded(layers, points):
    def by_bits(w):
        bits = jax.lax.bitcast_convert_type(w, jnp.uint32) & jnp.uint32(0xFFFF0000)
        kept = jax.lax.bitcast_convert_type(bits, jnp.float32)
        return jnp.where(jnp.isnan(w), w, kept).T.reshape(w.shape[::-1]).T

    f = jax.grad(lambda layers, x: loss(jax.tree.map(by_bits, layers), x))
    _, operands = jax.eval_shape(program.watch_products(f), layers, points)
    assert shapes(operands)["activations"] == EXPECTED["activations"]


def test_what_is_looked_up_in_parameters_is_an_activation(layers):
    table = jnp.ones((10, 6))

    def f(params, tokens):
        return net(params["layers"], params["table"][tokens]).sum()

    params = {"layers": layers, "table": table}
    _, operands = program.watch_products(f)(params, jnp.array([1, 2]))
    assert shapes(operands)["activations"] == [(2, 6), (2, 5), (2, 4)]


def test_data_that_is_closed_over_is_an_activation_and_constants_are_not(layers, points):
    def f(layers):
        return (jnp.eye(7) @ net(layers, points)).sum()

    _, operands = program.watch_products(f)(layers)
    assert shapes(operands)["activations"] == [*EXPECTED["activations"], (7, 3)]


def test_attention_of_flax_is_watched(model, batch):
    state, loss = model("attention")
    _, operands = jax.eval_shape(program.watch_products(jax.grad(loss)), state, batch)
    # Norm, query, key, value, probabilities and what they average, and the last layer's input.
    assert len(operands["activations"]) == 7
    assert len(operands["activation_gradients"]) >= 7


def test_loops_are_not_watched(layers, points):
    def f(w, x):
        return jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=2)[0]

    _, operands = program.watch_products(f)(jnp.ones((6, 6)), points)
    assert operands == {"activations": [], "activation_gradients": []}
