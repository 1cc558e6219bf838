import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jprec import optim
from jprec.optim import AverageState, averages, ema

STORES = {
    "nearest": optim.round_on_store,
    "master": optim.master_weights,
    "stochastic": lambda inner: optim.stochastic_rounding(inner, jax.random.key(3)),
    "kahan": optim.kahan,
}


@functools.partial(jax.jit, static_argnames=("transform", "steps"))
def train(transform, params, state, grads, steps):
    def body(carry, _):
        params, state = carry
        updates, state = transform.update(grads, state, params)
        return (optim.apply_updates(params, updates), state), None

    return jax.lax.scan(body, (params, state), length=steps)[0]


def types(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


def test_the_average_reaches_its_target_where_one_in_bfloat16_stands_still():
    """2000 steps of decay 0.999 from 1 to 2: exact 2 - 0.999**2000 = 1.865; in bfloat16 1."""
    params = jnp.ones(2, jnp.bfloat16)
    tx = optim.round_on_store(ema(optax.sgd(1.0), 0.999))
    _, state = tx.update(-jnp.ones(2), tx.init(params), params)
    params, state = train(tx, 2 * params, state, jnp.zeros(2), 1999)
    assert params.tolist() == [2.0, 2.0]
    np.testing.assert_allclose(averages(state, params), 2 - 0.999**2000, rtol=1e-4)

    def control(average, _):
        return optax.incremental_update(params, average, 1e-3), None

    start = jnp.ones(2, jnp.bfloat16)
    still, _ = jax.jit(lambda a: jax.lax.scan(control, a, length=2000))(start)
    assert still.tolist() == [1.0, 1.0]


def test_in_float32_it_stops_short_of_its_target_by_at_most_what_is_said():
    decay, target = 0.999, jnp.ones(1) * 1.5
    tx = ema(optax.sgd(0.0), decay)
    state = tx.init(jnp.ones(1) * 1.25)
    _, state = train(tx, target, state, jnp.zeros(1), 30000)
    distance = 1.5 - float(averages(state, target)[0])
    assert 2.0**-26 / (1 - decay) < distance <= 1.5 * 2.0**-24 / (1 - decay)


@pytest.mark.parametrize("name", STORES)
def test_inside_the_stores_it_follows_the_float32_value_and_outside_the_stored_one(name):
    step = 2.0**-10  # below half an ulp of 1 in bfloat16
    params, grads = jnp.ones(1, jnp.bfloat16), jnp.ones(1)
    sgd = optax.sgd(step)
    inside, outside = STORES[name](ema(sgd, 0.0)), ema(STORES[name](sgd), 0.0)
    _, state = inside.update(grads, inside.init(params), params)
    assert averages(state, params).tolist() == [1 - step]
    updates, state = outside.update(grads, outside.init(params), params)
    stored = optim.apply_updates(params, updates)
    assert averages(state, params).tolist() == stored.astype(jnp.float32).tolist()


def test_it_is_the_average_of_the_masters_by_hand():
    decay, rate = 0.75, 2.0**-10
    params = jnp.ones(1, jnp.bfloat16)
    tx = optim.master_weights(ema(optax.sgd(rate), decay))
    _, state = train(tx, params, tx.init(params), jnp.ones(1), 3)
    want, master = 1.0, 1.0
    for _ in range(3):
        master -= rate
        want += (1 - decay) * (master - want)
    assert averages(state, params).tolist() == [want]  # all sums are exact
    assert averages(state, params, cast=True).dtype == jnp.bfloat16


def test_a_skipped_step_leaves_the_average_and_its_count():
    tx = optim.wrap(ema(optax.sgd(0.5), 0.5), "pure_fp16", store="master")
    params = jnp.ones(2, jnp.float16)
    updates, state = tx.update(jnp.ones(2), tx.init(params), params)
    params = optim.apply_updates(params, updates)
    before = state.inner_state
    _, state = tx.update(jnp.asarray([jnp.nan, 0.0]), state, params)
    assert state.skipped == 1
    np.testing.assert_array_equal(averages(state, params), averages(before, params))
    assert averages(state, params).tolist() == [0.75, 0.75]
    assert state.inner_state.inner_state.steps == 1


def test_a_decay_that_grows_forgets_the_start_sooner():
    warm = ema(optax.sgd(1.0), lambda n: jnp.minimum(0.999, n / (1 + n)))
    params, state = train(warm, jnp.ones(1), warm.init(jnp.ones(1)), jnp.ones(1), 3)
    assert params.tolist() == [-2.0]
    # n / (1 + n) gives the plain mean of the three new parameters.
    np.testing.assert_allclose(averages(state, params), [(0 - 1 - 2) / 3], atol=1e-6)


def test_infinity_negative_zero_and_nan():
    """Infinity stays infinity, though infinity minus infinity is NaN; NaN is not hidden."""
    params = jnp.float32([np.inf, -np.inf, -0.0, 0.0, np.nan, 1.0])
    tx = ema(optax.sgd(1.0), 0.5)
    grads = jnp.zeros(6)
    _, state = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(averages(state, params), params)
    assert np.signbit(averages(state, -jnp.abs(params))[:2]).tolist() == [False, True]
    down = jnp.full(6, -0.0)
    keep = optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s))
    tx = ema(keep, 0.5)
    _, state = tx.update(down, tx.init(params), params)
    assert np.signbit(np.asarray(averages(state, params)))[2:4].tolist() == [True, False]


def test_only_real_and_complex_parameters_have_an_average():
    params = {
        "n": jnp.arange(3),
        "key": jax.random.key(0),
        "none": None,
        "z": jnp.asarray([1 + 2j], jnp.complex64),
        "low": jnp.ones(1, jnp.float16),
        "f8": jnp.ones(1, jnp.float8_e5m2),
        "empty": jnp.zeros((0, 2)),
    }
    grads = {name: jnp.zeros_like(params[name]) for name in ("z", "low", "f8", "empty")}
    no_grad = {"n": np.zeros(3, jax.dtypes.float0), "key": None, "none": None}
    keep = optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s))
    tx = ema(keep, 0.9)
    _, state = tx.update(grads | no_grad, tx.init(params), params)
    assert (state.average["n"], state.average["key"]) == (None, None)
    got = averages(state, params)
    dtypes = {name: got[name].dtype.name for name in ("z", "low", "f8", "empty", "n")}
    assert dtypes == {
        "z": "complex64",
        "low": "float32",
        "f8": "float32",
        "empty": "float32",
        "n": "int32",
    }
    cast = averages(state, params, cast=True)
    assert jax.tree.map(lambda x: x.dtype, cast) == jax.tree.map(lambda x: x.dtype, params)
    assert averages(ema(keep, 0.9).init({}), {}) == {}


def test_the_state_keeps_its_types_and_a_second_step_does_not_trace_again():
    params = {"low": jnp.ones(2, jnp.bfloat16), "wide": jnp.ones(2)}
    tx = optim.master_weights(ema(optax.sgd(optax.linear_schedule(0.1, 0.0, 5)), 0.9))
    step = jax.jit(chex.assert_max_traces(lambda g, s, p: tx.update(g, s, p)[1], n=1))
    start = tx.init(params)
    state = step(params, start, params)
    assert types(step(params, state, params)) == types(state)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    assert state.inner_state.steps.dtype == jnp.int32


def test_types_hold_with_x64_on_and_float64_is_averaged_in_float64():
    with jax.enable_x64(True):
        params = {"low": jnp.ones(1, jnp.float16), "wide": jnp.ones(1, jnp.float64)}
        tx = ema(optax.sgd(0.1), lambda n: jnp.asarray(0.5))
        start = jax.eval_shape(tx.init, params)
        state = jax.eval_shape(lambda g, s, p: tx.update(g, s, p)[1], params, start, params)
        assert types(state) == types(start)
        dtypes = {name: leaf.dtype.name for name, leaf in state.average.items()}
        assert dtypes == {"low": "float32", "wide": "float64"}


def test_the_average_is_no_alias_of_donated_parameters():
    params = jnp.ones(3)
    state = ema(optax.sgd(0.1), 0.9).init(params)
    jax.jit(lambda p: p + 1, donate_argnums=0)(params)
    assert state.average.tolist() == [1.0, 1.0, 1.0]


def test_lanes_of_a_vmap_average_apart():
    tx = ema(optax.sgd(1.0), 0.5)

    def lane(grads):
        params = jnp.ones(1)
        return averages(tx.update(grads, tx.init(params), params)[1], params)

    assert jax.vmap(lane)(jnp.asarray([[0.0], [1.0]])).tolist() == [[1.0], [0.5]]


def test_it_is_found_in_the_state_of_an_nnx_optimizer():
    model = nnx.Linear(2, 2, use_bias=False, param_dtype=jnp.float16, rngs=nnx.Rngs(0))
    tx = optim.wrap(ema(optax.sgd(1.0), 0.0), "pure_fp16", store="master")
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    params = nnx.state(model, nnx.Param)
    optimizer.update(model, jax.tree.map(lambda p: jnp.ones(p.shape), params))
    got = averages(optimizer.opt_state, nnx.state(model, nnx.Param))
    assert jax.tree.structure(got) == jax.tree.structure(params)
    (kernel,) = jax.tree.leaves(got)
    assert kernel.dtype == jnp.float32
    assert jnp.array_equal(kernel.astype(jnp.float16), model.kernel[...])


def test_no_average_or_two_is_an_error_that_says_where_it_goes():
    params = jnp.ones(1)
    with pytest.raises(ValueError, match="0 averages of the parameters"):
        averages(optax.sgd(1.0).init(params), params)
    twice = ema(optax.chain(ema(optax.sgd(1.0), 0.5)), 0.9).init(params)
    with pytest.raises(ValueError, match="2 averages"):
        averages(twice, params)


def test_other_parameters_than_the_optimisers_are_an_error():
    state = ema(optax.sgd(1.0), 0.5).init({"w": jnp.ones(1)})
    with pytest.raises(ValueError, match=r"no 'v'. It has w. Pass the parameters with which"):
        averages(state, {"v": jnp.ones(1)})


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan"), True, 2])
def test_a_decay_outside_its_range_is_an_error(decay):
    with pytest.raises(ValueError, match=r"outside \[0, 1\)"):
        ema(optax.sgd(1.0), decay)


def test_missing_parameters_are_an_error():
    tx = ema(optax.sgd(1.0), 0.9)
    with pytest.raises(ValueError, match="ema needs the parameters"):
        tx.update(jnp.ones(1), tx.init(jnp.ones(1)))
    assert isinstance(tx.init(jnp.ones(1)), AverageState)


# --- gradient accumulation: optax.MultiSteps inside the wrappers

ACCUMULATED = {name: {"store": name} for name in STORES} | {
    "stochastic": {"store": "stochastic", "key": jax.random.key(0)}
}


def accumulating(inner, settings, **how):
    multi = optax.MultiSteps(inner, 2, **how)
    return optim.wrap(multi, "pure_fp16", **settings)


@functools.cache
def micro_step(name):
    """One trace for every case: a step on each store that sums two micro-batches."""
    tx = accumulating(optax.sgd(2.0**-16), ACCUMULATED[name], use_grad_mean=False)

    @jax.jit
    @functools.partial(chex.assert_max_traces, n=1)
    def step(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    chex.clear_trace_counter()
    return tx, step


def run_micro(name, batches):
    tx, step = micro_step(name)
    params = jnp.ones(2, jnp.float16)
    state = tx.init(params)
    seen = []
    for batch in batches:
        params, state = step(jnp.full(2, batch, jnp.float16), state, params)
        seen.append(params.astype(jnp.float32).tolist()[0])
    return seen, state


def multi_state(state):
    return state.inner_state.inner_state


@pytest.mark.parametrize("name", STORES)
def test_micro_batches_are_summed_in_float32(name):
    """60000 + 60000 is infinite in float16; 120000 / 2**16 = 1.83 is the step."""
    seen, state = run_micro(name, [60000, 60000])
    np.testing.assert_allclose(seen, [1.0, 1 - 120000 / 2**16], rtol=2.0**-10)
    assert state.skipped == 0
    assert multi_state(state).acc_grads.dtype == jnp.float32


def test_the_control_fails_multi_steps_alone_overflows_in_float16():
    tx = optax.MultiSteps(optax.sgd(2.0**-16), 2, use_grad_mean=False)
    params = jnp.ones(2, jnp.float16)
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(jnp.full(2, 60000, jnp.float16), state, params)
    assert not np.any(np.isfinite(updates))


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bad_micro_batch_is_dropped_and_the_next_good_one_completes_the_window(name, bad):
    """Alone, one infinity makes the accumulator NaN for ever."""
    big = 2.0**14
    seen, state = run_micro(name, [big, bad, bad, big, big, big])
    assert seen == [1.0, 1.0, 1.0, 0.5, 0.5, 0.0]
    multi = multi_state(state)
    assert (state.skipped, multi.gradient_step, multi.mini_step) == (2, 2, 0)
    assert np.all(np.isfinite(multi.acc_grads))


def test_the_control_fails_multi_steps_alone_is_nan_for_ever():
    tx = optax.MultiSteps(optax.sgd(1.0), 2)
    params = jnp.ones(1)
    state = tx.init(params)
    for batch in (np.inf, 1.0, 1.0, 1.0):
        updates, state = tx.update(jnp.full(1, batch), state, params)
    assert np.isnan(updates)


def test_accumulation_is_safe_only_with_the_guard_which_bfloat16_has_on_demand():
    params = jnp.ones(1, jnp.bfloat16)
    after = []
    for scale in (None, 1):
        tx = optim.wrap(optax.MultiSteps(optax.sgd(0.5), 2), "pure_bf16", loss_scale=scale)
        p, state = params, tx.init(params)
        for batch in (np.inf, 1.0, 1.0):
            updates, state = tx.update(jnp.full(1, batch), state, p)
            p = optim.apply_updates(p, updates)
        after.append(float(p[0]))
    assert np.isnan(after[0])
    assert after[1] == 0.5


def test_the_loss_scale_may_change_within_a_window():
    """Gradients are unscaled before they are summed, so each micro-batch may have its own scale."""
    inner = optax.sgd(1.0)
    settings = {
        "store": "master",
        "loss_scale": optim.DynamicScale(initial=4.0, growth_interval=1),
    }
    tx = accumulating(inner, settings)
    params = jnp.asarray([4.0], jnp.float16)
    state, scales = tx.init(params), []
    for batch in (1.0, np.inf, 3.0):
        scale = optim.loss_scale(state)
        scales.append(float(scale))
        grads = (jnp.full(1, batch) * scale) / scale
        updates, state = tx.update(grads, state, params)
        params = optim.apply_updates(params, updates)
    assert scales == [4.0, 8.0, 4.0]
    assert params.tolist() == [2.0]  # 4 - mean(1, 3)


def test_within_a_window_nothing_is_lost_by_rounding():
    """Kahan's residual and random rounding act once a window, not once a micro-batch."""
    for name in ("kahan", "stochastic", "nearest", "master"):
        tx = accumulating(optax.sgd(0.0), ACCUMULATED[name])
        params = jnp.float16([1.0, -0.0, 3e-7, 65504.0])
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(jnp.zeros(4), state, params)
            assert optim.apply_updates(params, updates).tolist() == params.tolist()


def test_an_average_within_counts_windows_and_around_it_micro_batches():
    params = jnp.float16([1.0])
    within = accumulating(ema(optax.sgd(0.5), 0.5), {"store": "master"})
    around = optim.wrap(ema(optax.MultiSteps(optax.sgd(0.5), 2), 0.5), "pure_fp16", store="master")
    got = []
    for tx in (within, around):
        p, state = params, tx.init(params)
        for _ in range(4):
            updates, state = tx.update(jnp.ones(1), state, p)
            p = optim.apply_updates(p, updates)
        got.append(averages(state, p).tolist()[0])
    # Parameters 1, 0.5, 0 after the windows.
    assert got == [0.5 * (0.5 * 1 + 0.5 * 0.5), 0.5 * (0.5 * (0.5 * 1 + 0.5 * 0.5) + 0.25) + 0.0]
