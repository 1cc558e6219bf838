import functools

import chex
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from flax import linen, nnx
from flax.training import train_state

from jprec import optim
from jprec.optim import WatchState, lost_updates, number_ranges, watch, watched

SCHEDULE = optax.linear_schedule(1e-2, 1e-3, 100)


def inner():
    return optax.sgd(SCHEDULE, momentum=0.9)


PARTS = {
    "no_loss_scale": lambda: optim.round_on_store(inner()),
    "dynamic_loss_scale": lambda: optim.dynamic_loss_scale(inner()),
    "master_weights": lambda: optim.wrap(inner(), "pure_fp16", store="master"),
    "stochastic_rounding": lambda: optim.wrap(
        inner(), "pure_fp16", store="stochastic", key=jax.random.key(1)
    ),
}


def parameters():
    return {
        "low": jnp.linspace(-1.0, 1.0, 6).astype(jnp.bfloat16),
        "layers": [jnp.linspace(1.0, 2.0, 3).astype(jnp.float16), jnp.ones((2, 2), jnp.float32)],
        "none": None,
    }


def gradients(params, value=1.0):
    values = jnp.float32([1e-9, 1e-6, 1.0, 0.0, 3e5, 2.0])
    return jax.tree.map(lambda p: value * values[: p.size].reshape(p.shape), params)


def types(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), tree)


def assert_same_bits(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


class Run:
    """Four jitted calls of update, watched every second one, beside those of the optimiser alone.

    The third has infinite gradients.
    """

    def __init__(self, name):
        self.name, self.alone = name, PARTS[name]()
        self.transform = watch(self.alone, every=2)
        chex.clear_trace_counter()  # It counts by the name of the function.
        update = chex.assert_max_traces(lambda *args: self.transform.update(*args), n=1)
        self.update = jax.jit(update)
        self.apply = jax.jit(optim.apply_updates)
        self.start = self.transform.init(parameters())
        self.steps = self.take(self.update, self.start)
        self.steps_alone = self.take(jax.jit(self.alone.update), self.alone.init(parameters()))

    def take(self, update, state):
        """(gradients, updates, the state after, the parameters before) of each call."""
        params, steps = parameters(), []
        for value in (1.0, 0.5, np.inf, 0.25):
            grads = gradients(params, value)
            updates, state = update(grads, state, params)
            steps.append((grads, updates, state, params))
            params = self.apply(params, updates)
        return steps


@pytest.fixture(scope="module", params=PARTS)
def run(request):
    return Run(request.param)


def test_updates_and_inner_state_pass_through_bit_for_bit(run):
    for (_, updates, state, _), (_, want, state_alone, _) in zip(
        run.steps, run.steps_alone, strict=True
    ):
        assert_same_bits(updates, want)
        assert_same_bits(state.inner_state, state_alone)


def test_each_second_call_is_measured_and_skipped_ones_count(run):
    states = [state for _, _, state, _ in run.steps]
    assert run.start.measured_at == -1
    assert [int(state.steps) for state in states] == [1, 2, 3, 4]
    assert [int(state.measured_at) for state in states] == [0, 0, 2, 2]
    assert_same_bits((states[0].gradients, states[0].lost), (states[1].gradients, states[1].lost))
    assert_same_bits((states[2].gradients, states[2].lost), (states[3].gradients, states[3].lost))
    assert states[2].gradients["low"].infinite == np.float32(5 / 6)  # infinity times 0 is NaN
    assert states[2].gradients["low"].nan == np.float32(1 / 6)


def test_what_is_measured_are_the_raw_gradients_at_the_live_scale_and_the_updates(run):
    scales = [optim.loss_scale(run.start), *(optim.loss_scale(step[2]) for step in run.steps)]
    assert scales == [optim.loss_scale(run.alone.init(parameters()))] + [
        optim.loss_scale(step[2]) for step in run.steps_alone
    ]
    for call in (0, 2):
        grads, updates, state, params = run.steps[call]
        assert_same_bits(state.gradients, jax.jit(number_ranges)(grads, scale=scales[call]))
        assert_same_bits(state.lost, jax.jit(lost_updates)(params, updates))
    assert list(run.steps[0][2].gradients) == ["layers/0", "layers/1", "low"]
    if run.name == "dynamic_loss_scale":
        first = run.steps[0][2].gradients["low"]
        assert (scales[0], scales[3]) == (2.0**16, 2.0**15)
        assert (first.overflow, first.flushed) == (np.float32(3 / 6), 0.0)


def test_types_do_not_drift_and_are_strong_and_no_step_traces_again(run):
    assert types(run.start) == types(run.steps[0][2]) == types(run.steps[3][2])
    assert [leaf for leaf in jax.tree.leaves(run.steps[3][2]) if leaf.weak_type] == []


def test_every_field_survives_jit_flatten_and_serialisation(run):
    state = run.steps[0][2]
    assert_same_bits(jax.jit(lambda s: s)(state), state)
    leaves, structure = jax.tree.flatten(state)
    assert_same_bits(structure.unflatten([np.asarray(leaf) for leaf in leaves]), state)
    back = flax.serialization.from_bytes(run.start, flax.serialization.to_bytes(state))
    assert type(back) is WatchState
    for field in state._fields:
        assert_same_bits(getattr(back, field), getattr(state, field))


def test_a_restored_state_continues_bit_for_bit(run, tmp_path):
    checkpointer = orbax.checkpoint.StandardCheckpointer()
    checkpointer.save(tmp_path / "saved", run.steps[0][2])
    checkpointer.wait_until_finished()
    back = checkpointer.restore(tmp_path / "saved", jax.tree.map(np.zeros_like, run.start))
    checkpointer.close()
    back = jax.tree.map(jnp.asarray, back)
    assert_same_bits(back, run.steps[0][2])
    grads, updates, state, params = run.steps[1]
    assert_same_bits(run.update(grads, back, params), (updates, state))


@pytest.mark.parametrize("run", ["dynamic_loss_scale"], indirect=True)
def test_scan_over_donated_steps_under_vmap_is_the_loop(run):
    def body(carry, value):
        params, state = carry
        updates, state = run.transform.update(gradients(parameters(), value), state, params)
        return (optim.apply_updates(params, updates), state), None

    def lane(carry, values):
        return jax.lax.scan(body, carry, values)[0]

    carry = jax.tree.map(lambda x: jnp.stack([x, x]), (parameters(), run.start))
    values = jnp.asarray([[1.0, 0.5, np.inf], [0.0, 0.0, 0.0]])
    _, state = jax.jit(jax.vmap(lane), donate_argnums=0)(carry, values)
    first = jax.tree.map(lambda x: x[0], state)
    want = run.steps[2][2]
    assert_same_bits(first._replace(inner_state=None), want._replace(inner_state=None))
    assert optim.loss_scale(first) == optim.loss_scale(want)
    assert state.gradients["low"].zero.tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match=r"shape \(2,\): the state of several runs"):
        watched(state)


def test_a_step_that_is_not_jitted_measures_the_same():
    run = Run("no_loss_scale")
    updates, state = run.transform.update(run.steps[0][0], run.start, parameters())
    assert_same_bits(state.gradients, run.steps[0][2].gradients)
    assert_same_bits(state.lost, run.steps[0][2].lost)
    want = run.alone.update(run.steps[0][0], run.alone.init(parameters()), parameters())[0]
    assert_same_bits(updates, want)
    assert isinstance(updates["low"].intact, np.int8)  # A constant, as without the watcher.


@pytest.mark.parametrize("build", PARTS.values(), ids=PARTS)
def test_types_hold_with_x64_on(build):
    with jax.enable_x64(True):
        transform, params = watch(build()), parameters()
        start = jax.eval_shape(transform.init, params)
        _, after = jax.eval_shape(transform.update, gradients(params), start, params)
        assert types(after) == types(start)
        dtypes = {jnp.dtype(leaf.dtype).name for leaf in jax.tree.leaves(start)}
        assert not dtypes & {"float64", "int64"}


def test_a_fixed_scale_goes_before_the_live_one():
    params = {"w": jnp.ones(2)}
    transform = watch(optim.wrap(optax.sgd(1.0), "fp32", loss_scale=2.0**20), scale=1.0)
    state = transform.init(params)
    assert optim.loss_scale(state) == 2.0**20
    _, state = transform.update({"w": jnp.float32([1e-9, 1.0])}, state, params)
    assert (state.gradients["w"].flushed, state.gradients["w"].overflow) == (0.5, 0.0)


def test_integers_keys_and_float0_leaves_pass_and_have_no_row():
    params = {"w": jnp.ones(2), "n": jnp.int32(2), "key": jax.random.key(0)}
    nothing = lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0)
    grads = {"w": jnp.ones(2), "n": nothing(params["n"]), "key": nothing(params["key"])}
    identity = optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s))

    @jax.jit
    def step(w, params):
        transform = watch(identity)
        updates, state = transform.update(grads | {"w": w}, transform.init(params), params)
        assert updates["n"].dtype == updates["key"].dtype == jax.dtypes.float0
        return updates["w"], state

    updates, state = step(grads["w"], params)
    assert updates.tolist() == [1.0, 1.0]
    assert list(state.gradients) == list(state.lost) == ["w"]


def test_extra_arguments_reach_the_inner_optimiser_functions_too():
    def update(updates, state, params=None, *, function, **extra):
        return jax.tree.map(function, updates), state

    transform = watch(optax.GradientTransformationExtraArgs(lambda params: (), update))
    params = jnp.ones(2)
    state = transform.init(params)
    double = jax.jit(lambda g, s, p: transform.update(g, s, p, function=lambda u: 2.0 * u))
    updates, state = double(params, state, params)
    assert updates.tolist() == [2.0, 2.0]
    assert state.gradients[""].normal == 1.0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"every": 0}, "every=0.*at least 1"),
        ({"every": True}, "whole number"),
        ({"every": 2.5}, "whole number"),
        ({"scale": 1000.0}, "not a power of two"),
        ({"scale": float("nan")}, "not a power of two"),
        ({"format": "e8m0fnu"}, "no sign"),
        ({"format": "fp61"}, "fp16"),
        ({"sample": 0}, "at least 1"),
    ],
)
def test_a_setting_out_of_range_is_an_error(settings, says):
    with pytest.raises(ValueError, match=says):
        watch(optax.sgd(1.0), **settings)


def test_parameters_and_a_gradient_for_each_are_asked_for():
    transform = watch(optax.sgd(1.0))
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    state = transform.init(params)
    with pytest.raises(ValueError, match=r"needs the parameters: write tx.update\("):
        transform.update(params, state)
    with pytest.raises(ValueError, match="no floating-point gradient at 'b', one of 1"):
        transform.update({"a": jnp.ones(2)}, state, params)


def test_nnx_optimizer_is_watched():
    model = nnx.Linear(2, 3, param_dtype=jnp.float16, rngs=nnx.Rngs(0))
    transform = watch(optim.wrap(optax.sgd(1e-6), "pure_fp16", store="master"), every=2)
    optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, value):
        kernel = nnx.state(model, nnx.Param)
        optimizer.update(model, jax.tree.map(lambda p: jnp.full(p.shape, value), kernel))

    for value in (1e-9, 1.0):
        step(model, optimizer, value)
    found = watched(optimizer.opt_state)
    assert (found.steps, found.measured_at, list(found.gradients)) == (2, 0, ["bias", "kernel"])
    assert found.gradients["kernel"].subnormal == 0.0
    assert found.gradients["kernel"].normal == 1.0  # 1e-9 at a scale of 2**16
    assert found.lost["kernel"].lost == 1.0
    assert optim.loss_scale(optimizer.opt_state) == 2.0**16


def test_train_state_is_watched_and_read():
    module = linen.Dense(3)
    params = module.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
    transform = watch(optim.wrap(optax.sgd(1.0), "mixed_fp16"))
    state = train_state.TrainState.create(apply_fn=module.apply, params=params, tx=transform)
    assert str(watched(state)) == "no step was measured yet"
    grads = {"bias": jnp.zeros(3), "kernel": jnp.full((2, 3), 1e-9).at[0].set([0, 1e-13, np.nan])}
    state = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))(state, grads)
    assert str(watched(state)) == (
        "step 0: gradients as scaled, in percent; updates lost\n"
        "path    zero  flushed  subnormal  overflow  not finite   exponents  lost  log2 |u|/ulp\n"
        "bias     100        0          0         0           0           -     0             -\n"
        "kernel  16.7     16.7          0         0        16.7  -44 .. -30     0             -"
    )
    scalars = watched(state).scalars()
    assert scalars["kernel"]["nan"] == pytest.approx(1 / 6)
    assert np.isnan(scalars["bias"]["log2_ratio"])


def test_what_is_little_is_not_written_as_none_or_all():
    transform = watch(optax.sgd(1.0))
    params = {"w": jnp.ones(4000)}
    grads = {"w": jnp.full(4000, 1e-9).at[0].set(1e6)}
    text = str(watched(transform.update(grads, transform.init(params), params)[1]))
    assert text.splitlines()[-1].split()[1:5] == ["0", ">99.9", "0", "<0.1"]


def test_a_state_without_a_watcher_or_with_two_is_an_error():
    with pytest.raises(ValueError, match=r"no watcher.*jprec.optim.watch\(jprec.optim.wrap"):
        watched(optax.adam(1.0).init(jnp.ones(2)))
    transform = watch(watch(optax.sgd(1.0)), format="bf16")
    state = transform.init(jnp.ones(2))
    with pytest.raises(ValueError, match=r"2 watchers.*_replace"):
        watched(state)
    assert watched(state._replace(inner_state=None)).measured_at == -1
    assert watched((state.inner_state,)).steps == 0


@functools.cache
def large():
    transform = watch(optax.sgd(1.0), sample=100)
    params = {"w": jnp.ones((30, 40))}
    state = jax.jit(transform.init)(params)
    return jax.jit(transform.update)(params, state, params)[1]


def test_of_a_large_leaf_a_sample_is_counted():
    found = watched(large())
    assert 50 < found.gradients["w"].size <= 100
    assert found.gradients["w"].size == found.lost["w"].size
    assert found.gradients["w"].normal == 1.0
