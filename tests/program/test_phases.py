"""Which part of a training step an operation belongs to."""

import flax.linen
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.training import train_state
from jax import lax

from jprec import program


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def phases(fn, *args):
    """The phases of the products, in order, each run of one phase once."""
    found = [product.phase for product in program.products(fn, *args)]
    return [phase for phase, before in zip(found, [None, *found], strict=False) if phase != before]


def step(transform):
    def run(w, state, x):
        value, gradient = jax.value_and_grad(loss)(w, x)
        updates, state = transform.update(gradient, state, w)
        return optax.apply_updates(w, updates), state, value

    return run


def whiten(gradient):
    """An update in the manner of Shampoo: a product for the statistics, two to apply them."""
    left = jnp.linalg.inv(jnp.eye(8) + gradient @ gradient.T)
    return left @ gradient


WHITEN = optax.GradientTransformation(
    lambda params: optax.EmptyState(),
    lambda updates, state, params=None: (jax.tree.map(whiten, updates), state),
)
TRANSFORMS = {
    "shampoo-like": WHITEN,
    "in a chain": optax.chain(optax.clip_by_global_norm(1.0), WHITEN, optax.scale(-0.1)),
    "muon": optax.contrib.muon(0.1),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_products_of_an_optimiser_are_its_own(transform, weights, inputs):
    state = transform.init(weights)
    run = step(transform)
    want = ["forward", "backward", "optimiser"]
    assert phases(run, weights, state, inputs) == want
    assert phases(jax.jit(run), weights, state, inputs) == want
    compiled_alone = step(transform._replace(update=jax.jit(transform.update)))
    assert phases(compiled_alone, weights, state, inputs) == want


class Model(nnx.Module):
    def __init__(self):
        self.dense = nnx.Linear(8, 8, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.dense(x)


def test_products_of_an_nnx_optimizer(inputs):
    model = Model()
    optimizer = nnx.Optimizer(model, optax.contrib.muon(0.1), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    def run(state, x):
        model, optimizer = nnx.merge(graph, state)
        gradient = nnx.grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, gradient)
        return nnx.state((model, optimizer))

    assert phases(run, state, inputs) == ["forward", "backward", "optimiser"]


def test_products_of_a_linen_train_state(inputs):
    model = flax.linen.Dense(8)
    params = model.init(jax.random.key(0), inputs)["params"]
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=params, tx=optax.contrib.muon(0.1)
    )

    def run(state, x):
        def loss(params):
            return jnp.mean(state.apply_fn({"params": params}, x) ** 2)

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    assert phases(run, state, inputs) == ["forward", "backward", "optimiser"]


def test_an_update_by_hand_is_known_by_its_gradient(weights, inputs):
    def run(w, x):
        gradient = jax.grad(loss)(w, x)
        return w - 0.1 * whiten(gradient)

    assert phases(run, weights, inputs) == ["forward", "backward", "optimiser"]


def test_what_is_no_gradient_is_no_optimiser(weights, inputs):
    def run(w, x):
        x = x @ jnp.ones((8, 8))  # data are prepared
        value, gradient = jax.value_and_grad(loss)(w, x)
        metric = x @ w * value  # made of data, parameters and the loss
        w = optax.apply_updates(w, -0.1 * gradient)
        return loss(w, x), metric

    found = [product.phase for product in program.products(run, weights, inputs)]
    assert found == ["forward", "forward", "backward", "forward", "forward"]


def test_losses_of_optax_are_forward(weights, inputs):
    def run(w, x):
        return optax.ctc_loss(x[:, None] @ w, jnp.zeros((4, 1)), jnp.ones((4, 3), int), x[:, :3])

    assert set(phases(run, weights, inputs)) == {"forward"}


def test_a_training_loop_starts_each_turn_with_data(weights, inputs):
    def turn(w, x):
        before = x @ w  # an evaluation
        gradient = jax.grad(loss)(w, x)
        return w - 0.1 * whiten(gradient), before.sum()

    def run(w, x):
        return lax.scan(turn, w, jnp.stack([x, x]))

    assert phases(run, weights, inputs) == ["forward", "backward", "optimiser"]


def test_sums_over_micro_batches_are_gradients(weights, inputs):
    def run(w, x):
        def turn(total, x):
            return total + jax.grad(loss)(w, x), None

        total, _ = lax.scan(turn, jnp.zeros_like(w), jnp.stack([x, x]))
        return whiten(total)

    assert phases(run, weights, inputs) == ["forward", "backward", "optimiser"]


def test_gradients_stay_gradients_through_control_flow(weights, inputs):
    def run(w, x):
        gradient = jax.grad(loss)(w, x)
        gradient = lax.cond(x.sum() > 0, lambda g: g, lambda g: g / 2, gradient)
        gradient = lax.while_loop(lambda g: g.sum() > 1, lambda g: g / 2, gradient)
        gradient = jax.checkpoint(lambda g: g * 2)(gradient)
        return gradient @ gradient

    assert phases(run, weights, inputs) == ["forward", "backward", "optimiser"]


def test_inner_gradients_of_a_differentiated_function_are_not_an_optimiser(weights, inputs):
    def meta(w, x):
        return loss(w - 0.1 * jax.grad(loss)(w, x), x)

    assert "optimiser" not in phases(jax.grad(meta), weights, inputs)


def test_recomputed_products_are_told_from_forward_ones(weights, inputs):
    def block(w, x):
        return jnp.sin(jnp.sin(x @ w) @ w).sum()

    def count(fn):
        found = [p.phase for p in program.products(jax.grad(fn), weights, inputs)]
        return [found.count(phase) for phase in ("forward", "recomputed", "backward")]

    assert count(block) == [2, 0, 3]
    assert count(jax.checkpoint(block)) == [2, 2, 3]
    saving = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)
    assert count(saving) == [2, 0, 3]

    def loop(w, x):
        turn = jax.checkpoint(lambda x, _: (jnp.sin(x @ w), None))
        return lax.scan(turn, x, None, length=3)[0].sum()

    found = program.products(jax.grad(loop), weights, inputs)
    assert [(p.phase, p.trips) for p in found] == [
        ("forward", 3),
        ("recomputed", 3),
        ("backward", 3),
        ("backward", 3),
    ]


def test_the_line_of_what_a_library_compiled_is_the_line_that_calls_it(weights):
    def f(w):
        first = jnp.linalg.matrix_power(w, 2)
        second = jnp.linalg.matrix_power(w, 2)
        return first + second

    lines = [int(p.source.rpartition(":")[2]) for p in program.products(f, weights)]
    assert lines[1] == lines[0] + 1
