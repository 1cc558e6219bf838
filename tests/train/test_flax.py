import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training import train_state

import jprec
from jprec import optim, train


class Net(nnx.Module):
    """A convolution's worth of everything: norm with statistics, dropout with a random stream."""

    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def loss(model, x, y):
    return jnp.mean((model(x).astype(jnp.float32) - y) ** 2)


def data():
    x = np.random.default_rng(0).standard_normal((32, 4)).astype(np.float32)
    return x, x[:, :1]


@nnx.jit(static_argnames="policy")
def applied(policy):
    """The model with a policy, made by one compiled program."""
    return jprec.nn.apply(Net(nnx.Rngs(0)), policy)


def test_an_nnx_model_trains_in_float16_and_its_statistics_stay_float32():
    model = applied("mixed_fp16")
    optimizer = nnx.Optimizer(model, optim.wrap(optax.sgd(0.05), "mixed_fp16"), wrt=nnx.Param)
    traces = []

    @nnx.jit
    def step(model, optimizer, x, y):
        traces.append(1)
        scale = optim.loss_scale(optimizer.opt_state)
        value, grads = train.value_and_grad(loss, "mixed_fp16", scale=scale)(model, x, y)
        optimizer.update(model, grads)
        return value

    x, y = data()
    losses = [step(model, optimizer, x, y) for _ in range(30)]
    assert losses[-1] < losses[0]
    assert len(traces) == 1
    assert model.norm.mean[...].dtype == model.norm.var[...].dtype == jnp.float32
    assert np.any(np.asarray(model.norm.mean[...]) != 0)
    assert model.drop.rngs.count[...] == 30
    assert model.first.kernel[...].dtype == jnp.float32


def test_a_models_gradients_are_shaped_like_those_of_its_split_state():
    model = applied("mixed_bf16")
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def split_loss(params, rest, x, y):
        return loss(nnx.merge(graph, params, rest), x, y)

    want = jax.eval_shape(train.value_and_grad(split_loss, "mixed_bf16"), params, rest, *data())
    got = nnx.eval_shape(train.value_and_grad(loss, "mixed_bf16"), model, *data())
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert jax.tree.leaves(got) == jax.tree.leaves(want)


def test_norms_of_an_applied_model_get_float32_parameters_and_products_low_ones():
    model = applied("mixed_bf16")
    _, params, rest = nnx.split(model, nnx.Param, ...)
    seen = {}

    def split_loss(params, rest):
        for path, leaf in jax.tree_util.tree_flatten_with_path((params, rest))[0]:
            seen[jprec.policy.leaf_path(path)] = leaf.dtype
        return jnp.float32(0.0)

    train.value_and_grad(split_loss, "mixed_bf16")(params, rest)
    assert seen["0/first/kernel"] == seen["0/last/bias"] == jnp.bfloat16
    assert seen["0/norm/scale"] == seen["1/norm/mean"] == jnp.float32
    assert seen["1/drop/rngs/count"] == jnp.uint32


def test_a_linen_model_trains_in_float16_with_train_state():
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x, training):
            x = linen.Dense(8)(x)
            x = linen.relu(linen.BatchNorm(use_running_average=not training)(x))
            return linen.Dense(1)(x)

    module, (x, y) = Model(), data()
    variables = module.init(jax.random.key(0), x, training=False)
    state = train_state.TrainState.create(
        apply_fn=module.apply,
        params=variables["params"],
        tx=optim.wrap(optax.sgd(0.05), "mixed_fp16"),
    )

    # TrainState counts with a Python int, and a jitted step would trace twice for that alone.
    state = state.replace(step=jnp.int32(0))

    def linen_loss(params, batch_stats, x, y):
        out, updated = module.apply(
            {"params": params, "batch_stats": batch_stats}, x, training=True, mutable="batch_stats"
        )
        assert out.dtype == jnp.float16
        value = jnp.mean((out.astype(jnp.float32) - y.astype(jnp.float32)) ** 2)
        return value, updated["batch_stats"]

    @jax.jit
    def step(state, stats, x, y):
        value_and_grad = train.value_and_grad(
            linen_loss, "mixed_fp16", scale=optim.loss_scale(state.opt_state), has_aux=True
        )
        (value, stats), grads = value_and_grad(state.params, stats, x, y)
        return state.apply_gradients(grads=grads), stats, value

    stats, losses = variables["batch_stats"], []
    for _ in range(20):
        state, stats, value = step(state, stats, x, y)
        losses.append(value)
    assert losses[-1] < losses[0]
    assert step._cache_size() == 1
    assert {leaf.dtype for leaf in jax.tree.leaves(stats)} == {jnp.dtype("float32")}


def test_a_skipped_step_keeps_the_batch_statistics_and_random_streams_go_on():
    """The forward pass has renewed them before anybody knows that the step is skipped."""
    model = applied("mixed_fp16")
    tx = optim.wrap(optax.sgd(0.05), "mixed_fp16", loss_scale=optim.DynamicScale(initial=2.0**8))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        scale = optim.loss_scale(optimizer.opt_state)
        value, grads = train.value_and_grad(loss, "mixed_fp16", scale=scale)(model, x, y)
        optimizer.update(model, grads)
        return value

    x, y = data()
    step(model, optimizer, x, y)
    before = jax.tree.map(jnp.array, nnx.state(model))
    step(model, optimizer, x, jnp.full_like(y, 1e30))
    assert optim.report(optimizer.opt_state).skipped == 1
    after = nnx.state(model)
    assert model.drop.rngs.count[...] == before["drop"]["rngs"]["count"][...] + 1
    for name in ("mean", "var"):
        np.testing.assert_array_equal(after["norm"][name][...], before["norm"][name][...])
    # A guard that does not scale skips, too, and no scale tells of it.
    nan = jnp.full_like(x, jnp.nan)
    train.value_and_grad(loss, "mixed_fp16", scale=1.0)(model, nan, y)
    np.testing.assert_array_equal(model.norm.mean[...], before["norm"]["mean"][...])
    train.value_and_grad(loss, "mixed_fp16", scale=1.0)(model, x, y)
    assert np.any(np.asarray(model.norm.mean[...]) != np.asarray(before["norm"]["mean"][...]))


def test_inputs_of_a_model_with_a_policy_are_cast_by_its_layers_and_targets_not_at_all():
    model, seen = applied("mixed_bf16"), []

    def regress(model, x, y):
        seen.append((x.dtype.name, y.dtype.name))
        return loss(model, x, y)

    nnx.eval_shape(train.value_and_grad(regress, "mixed_bf16"), model, *data())
    assert set(seen) == {("float32", "float32")}


def test_an_nnx_model_that_was_given_no_policy_is_an_error():
    model = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"Net has no policy.*jprec\.nn\.apply\(model, policy\)"):
        train.value_and_grad(loss, "mixed_bf16")(model, *data())


def test_another_policy_than_the_models_is_an_error():
    model = applied("mixed_fp16")
    with pytest.raises(ValueError, match=r"the model has the policy.*One step has one policy"):
        train.value_and_grad(loss, "mixed_bf16")(model, *data())
    more = dataclasses.replace(jprec.policy.get("mixed_fp16"), product="fp32", moments="bfloat16")
    nnx.eval_shape(train.value_and_grad(loss, more, scale=1.0), model, *data())


@pytest.mark.parametrize("store", ["nearest", "master", "stochastic", "kahan"])
def test_flax_optimisers_store_parameters_as_the_wrapper_says(store):
    """nnx.Optimizer and TrainState call optax.apply_updates; the new value travels through it."""
    key = {"key": jax.random.key(0)} if store == "stochastic" else {}
    tx = optim.wrap(optax.sgd(1.0), "pure_bf16", store=store, **key)
    model = nnx.eval_shape(lambda: jprec.nn.apply(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "pure_bf16"))
    graph, abstract = nnx.split(model)
    model = nnx.merge(graph, jax.tree.map(lambda p: jnp.full(p.shape, 1.0, p.dtype), abstract))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    grads = jax.tree.map(lambda p: jnp.full(p.shape, 2.0**-10, jnp.float32), params)
    updates, _ = tx.update(grads, tx.init(params), params)
    want = optim.apply_updates(params, updates)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    optimizer.update(
        model,
        jax.tree.map(
            lambda p: jnp.full(p.shape, 2.0**-10, jnp.float32), nnx.state(model, nnx.Param)
        ),
    )
    state = train_state.TrainState.create(apply_fn=None, params=params, tx=tx)
    state = state.apply_gradients(grads=grads)
    for got in (nnx.to_pure_dict(nnx.state(model, nnx.Param)), state.params):
        assert jax.tree.map(lambda p: p.dtype, got) == jax.tree.map(lambda p: p.dtype, want)
        jax.tree.map(np.testing.assert_array_equal, got, want)


def test_a_linen_model_with_a_policy_takes_the_policys_place_and_casts_its_parameters():
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.LayerNorm()(linen.Dense(8)(x))
            seen.append(self.variables["params"])
            return linen.Dense(1)(x)

    seen = []
    model = jprec.nn.apply(Model(), "mixed_bf16")
    x, y = data()
    variables = jax.eval_shape(model.init, jax.random.key(0), x)

    def linen_loss(params, x, y):
        dtypes.add((x.dtype.name, y.dtype.name))
        return jnp.mean((model.apply({"params": params}, x) - y.astype(jnp.float32)) ** 2)

    step = train.value_and_grad(linen_loss, model)
    dtypes = set()
    _, grads = jax.eval_shape(step, variables["params"], x, y)
    assert dtypes == {("float32", "float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(seen[-1])} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    with pytest.raises(
        ValueError, match=r"LayerNorm_0/\w+ arrives in bfloat16.*the model in place"
    ):
        jax.eval_shape(train.value_and_grad(linen_loss, "mixed_bf16"), variables["params"], x, y)


def test_random_streams_metrics_and_second_models_among_the_arguments_carry_their_state_on():
    model = jprec.nn.apply(nnx.Dropout(0.5, deterministic=False), "mixed_bf16")
    other = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    streams, metric = nnx.Rngs(3), nnx.metrics.Average("value")
    x = jnp.ones((4, 4))

    def of_all(model, x, rngs, *, other, metric):
        out = other(model(x, rngs=rngs).astype(jnp.float32))
        metric.update(value=out.sum())
        return out.std()

    step = train.value_and_grad(of_all, "mixed_bf16")
    losses = [float(step(model, x, streams, other=other, metric=metric)[0]) for _ in range(3)]
    assert len(set(losses)) == 3
    assert streams.default.count[...] == 3
    assert metric.count[...] == 3
    assert np.any(np.asarray(other.mean[...]) != 0)


def test_modules_in_a_container_are_an_error_with_the_way_out():
    model = applied("mixed_bf16")
    with pytest.raises(ValueError, match=r"1 NNX objects in a dict.*nnx\.Dict"):
        train.value_and_grad(loss, "mixed_bf16")({"a": model}, *data())


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_what_is_sown_grows_without_harm():
    class Sows(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            self.sow(nnx.Intermediate, "seen", x)
            return self.dense(x)

    model = jprec.nn.apply(Sows(nnx.Rngs(0)), "mixed_fp16")
    step = train.value_and_grad(loss, "mixed_fp16", scale=2.0)
    for _ in range(3):
        step(model, *data())
    assert len(model.seen.get_value()) == 3


@pytest.mark.parametrize("what", ["a stream twice", "the model again", "a part of it"])
def test_an_object_that_is_given_twice_is_an_error_since_its_state_would_part(what):
    """Taken apart twice, two uses of one stream would draw the same mask."""
    model, streams = applied("mixed_bf16"), nnx.Rngs(3)
    twice = {
        "a stream twice": (streams, streams),
        "the model again": (streams, model),
        "a part of it": (streams, {"norm": [model.norm]}),
    }
    step = train.value_and_grad(lambda model, x, *others: loss(model, x, x[:, :1]), "mixed_bf16")
    with pytest.raises(ValueError, match="hold the same variables"):
        step(model, data()[0], *twice[what])
