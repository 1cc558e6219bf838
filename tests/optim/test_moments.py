import functools

import chex
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from jprec import optim
from jprec.optim import StoredMomentsState, ema, store_moments
from jprec.optim.moments import KEPT

KEY = jax.random.key(7)


@functools.partial(jax.jit, static_argnames=("transform", "steps"))
def after(transform, state, params, grads, steps):
    """The optimiser's state after `steps` steps with the same gradients and parameters."""
    step = lambda state, _: (transform.update(grads, state, params)[1], None)
    return jax.lax.scan(step, state, length=steps)[0]


def bits(array):
    array = np.asarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def types(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


def test_the_second_moment_decays_on_average_where_nearest_rounding_is_stuck():
    """2000 steps without gradient: 0.999**2000 = 0.135 (optax#1552)."""
    count = 4096
    params, zeros = jnp.ones(count), jnp.zeros(count)
    shares = {}
    for mode in ("stochastic", "nearest"):
        tx = store_moments(optax.scale_by_adam(), "bfloat16", mode=mode)
        start = after(tx, tx.init(params), params, jnp.ones(count), 1)
        end = after(tx, start, params, zeros, 2000)
        nu = [np.float64(np.float32(s.inner_state.nu)) for s in (start, end)]
        shares[mode] = nu[1] / nu[0]
    np.testing.assert_array_equal(shares["nearest"], 1.0)
    share = shares["stochastic"]
    error = np.std(share) / np.sqrt(count)
    assert error < 0.003
    assert abs(np.mean(share) - 0.999**2000) < 5 * error


def test_the_arithmetic_is_float32_and_each_moment_is_rounded_once():
    params, grads = jnp.float32([1.0, 2.0, -3.0]), jnp.float32([0.3, -0.7, 1e-5])
    plain, stored = optax.adam(1e-3), store_moments(optax.adam(1e-3), "bfloat16", mode="nearest")
    want, wide = plain.update(grads, plain.init(params), params)
    got, state = stored.update(grads, stored.init(params), params)
    np.testing.assert_array_equal(got, want)  # from the unrounded moments of this step
    for name in ("mu", "nu"):
        moment = getattr(state.inner_state[0], name)
        np.testing.assert_array_equal(
            bits(moment), bits(getattr(wide[0], name).astype(jnp.bfloat16))
        )
    assert state.inner_state[0].count.dtype == jnp.int32
    widened = jax.tree.map(
        lambda x: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x, state.inner_state
    )
    want, _ = plain.update(grads, widened, params)
    got, _ = stored.update(grads, state, params)
    np.testing.assert_array_equal(got, want)


def test_float16_moments_underflow_and_overflow():
    """The second moment of 1e-4 is 1e-11: mostly zero, so that Adam divides by eps alone."""
    params = jnp.ones(4096)
    tx = store_moments(optax.scale_by_adam(), "float16")
    exact = optax.scale_by_adam()
    updates = {}
    for size in (1e-4, 1e4):
        grads = jnp.full(4096, size)
        state = after(tx, tx.init(params), params, grads, 20)
        nu = np.float64(state.inner_state.nu)
        updates[size] = np.abs(tx.update(0 * grads, state, params)[0])
        if size < 1:
            assert np.mean(nu == 0) > 0.99
            # The least value above zero is 300 times too large, and comes as rarely.
            np.testing.assert_allclose(np.mean(nu), 20e-11, rtol=0.5)
        else:
            assert np.all(np.isinf(nu))
        exact_state = after(exact, exact.init(params), params, grads, 20)
        right = np.abs(exact.update(0 * grads, exact_state, params)[0])
        assert np.all((right > 0.5) & (right < 1.0))
    assert np.median(updates[1e-4]) > 1000
    assert np.all(updates[1e4] == 0)
    tx = store_moments(optax.scale_by_adam(), "bfloat16")
    state = after(tx, tx.init(params), params, jnp.full(4096, 1e-4), 20)
    np.testing.assert_allclose(np.float32(state.inner_state.nu), 2e-10, rtol=0.1)


def test_rounding_depends_on_the_key_and_the_path_and_nothing_else():
    params = {name: jnp.ones(64) for name in "ab"}
    grads = jax.tree.map(lambda p: jnp.linspace(0.1, 0.2, 64), params)

    def first(params, **settings):
        tx = store_moments(optax.adam(1e-3), "bfloat16", **settings)
        start = tx.init(params)
        state = tx.update({name: grads[name] for name in params}, start, params)[1]
        later = tx.update(grads, start._replace(key=state.key), {n: grads[n] for n in "ab"})[1]
        return state.inner_state[0].nu, later.inner_state[0].nu if len(params) == 2 else None

    both, later = first(params, key=KEY)
    again, _ = first(params, key=jax.random.key_data(KEY))
    default, _ = first(params)
    np.testing.assert_array_equal(bits(both["a"]), bits(again["a"]))
    np.testing.assert_array_equal(
        bits(default["a"]), bits(first(params, key=jax.random.key(0))[0]["a"])
    )
    assert np.any(bits(both["a"]) != bits(both["b"]))
    assert np.any(bits(both["a"]) != bits(default["a"]))
    assert np.any(bits(both["a"]) != bits(later["a"]))
    alone = store_moments(optax.adam(1e-3), "bfloat16", key=KEY)
    only = {"b": params["b"]}
    state = alone.update({"b": grads["b"]}, alone.init(only), only)[1]
    np.testing.assert_array_equal(bits(state.inner_state[0].nu["b"]), bits(both["b"]))


def test_what_a_moment_is_negative_zero_infinity_nan_stays_it():
    values = jnp.float32([np.inf, -np.inf, np.nan, -0.0, 0.0, 1.0, 3e38])
    hold = optax.GradientTransformation(lambda p: optax.EmaState(0, p), lambda u, s, p: (u, s))
    for mode in ("stochastic", "nearest"):
        tx = store_moments(hold, "bfloat16", mode=mode)
        state = tx.update(values, tx.init(values), values)[1]
        got = np.float32(state.inner_state.ema)
        np.testing.assert_array_equal(got[:6], values[:6])
        assert np.signbit(got[3:5]).tolist() == [True, False]
        assert np.isfinite(got[6])


def test_only_moments_are_stored_and_scalars_counts_and_other_leaves_stay():
    params = {
        "w": jnp.ones((2, 3)),
        "none": None,
        "empty": jnp.zeros((0, 2)),
        "scalar": jnp.ones([]),
    }
    inner = optax.inject_hyperparams(optax.sgd)(
        learning_rate=optax.linear_schedule(0.1, 0.0, 10), momentum=0.9
    )
    tx = store_moments(inner, "float16")
    state = tx.update(params, tx.init(params), params)[1]
    trace = state.inner_state.inner_state[0].trace
    assert {name: leaf.dtype.name for name, leaf in trace.items() if leaf is not None} == {
        "w": "float16",
        "empty": "float16",
        "scalar": "float16",
    }
    assert trace["none"] is None
    rates = state.inner_state.hyperparams
    assert {leaf.dtype.name for leaf in jax.tree.leaves(rates)} == {"float32"}
    tx = store_moments(optax.trace(0.9), "float16")
    params = {"w": jnp.ones(2), "z": jnp.ones(2, jnp.complex64)}
    state = tx.update(params, tx.init(params), params)[1]
    dtypes = {name: leaf.dtype.name for name, leaf in state.inner_state.trace.items()}
    assert dtypes == {"w": "float16", "z": "complex64"}


def test_masked_parts_and_partitions_are_stored_too():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    masked = optax.masked(optax.trace(0.9), {"a": True, "b": False})
    tx = store_moments(masked, "bfloat16", key=KEY)
    state = tx.update(params, tx.init(params), params)[1]
    trace = state.inner_state.inner_state.trace
    assert trace["a"].dtype == jnp.bfloat16
    assert isinstance(trace["b"], optax.MaskedNode)


def copies(tx, params):
    """The fields of a fresh state that equal the parameters: class and name."""
    found = set()
    is_node = lambda node: hasattr(node, "_fields")

    def visit(node):
        for name, field in node._asdict().items():
            for part in jax.tree.leaves(field, is_leaf=is_node):
                if is_node(part):
                    visit(part)
                elif getattr(part, "shape", None) == params.shape and np.all(part == params):
                    found.add((type(node), name))

    for node in jax.tree.leaves(tx.init(params), is_leaf=is_node):
        if is_node(node):
            visit(node)
    return found


WITH_COPIES = {
    "cocob": lambda: contrib.cocob(),
    "dog": lambda: contrib.dog(),
    "dowg": lambda: contrib.dowg(),
    "madgrad": lambda: contrib.madgrad(1e-3),
    "mechanize": lambda: contrib.mechanize(optax.adam(1e-3)),
    "prodigy": lambda: contrib.prodigy(),
    "schedule_free": lambda: contrib.schedule_free_adamw(1e-3),
    "ema": lambda: ema(optax.adam(1e-3), 0.9),
}


@pytest.mark.parametrize("build", WITH_COPIES.values(), ids=WITH_COPIES)
def test_copies_of_the_parameters_and_sums_of_gradients_stay_in_float32(build):
    params = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3)), jnp.float32)
    seen = copies(build(), params)
    assert seen
    assert all(name in KEPT[state] for state, name in seen)
    multi = optax.MultiSteps(optax.chain(build()), 2)
    if build is WITH_COPIES["dog"] or build is WITH_COPIES["dowg"]:
        with pytest.raises(ValueError, match="no float32 moments"):
            store_moments(multi, "bfloat16").init(params)
        return
    state = store_moments(multi, "bfloat16").init(params)
    assert not copies(store_moments(multi, "bfloat16"), params) ^ seen
    assert state.inner_state.acc_grads.dtype == jnp.float32
    assert any(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(state))


def test_every_kept_field_exists():
    for state, fields in KEPT.items():
        assert set(fields) <= set(state._fields), state


def test_accumulated_gradients_are_summed_in_float32_around_stored_moments():
    tx = store_moments(
        optax.MultiSteps(optax.trace(0.9), 256, use_grad_mean=False), "bfloat16", key=KEY
    )
    params = jnp.zeros(1)
    state = after(tx, tx.init(params), params, jnp.ones(1), 255)
    updates, state = tx.update(jnp.full(1, 2.0), state, params)
    assert updates.tolist() == [257.0]  # 256 in bfloat16
    assert state.inner_state.inner_opt_state.trace.dtype == jnp.bfloat16


@functools.cache
def full():
    """Guard, masters and stored moments, with one trace."""
    tx = optim.dynamic_loss_scale(
        optim.master_weights(store_moments(optax.adam(0.1), "bfloat16", key=KEY))
    )

    @jax.jit
    @functools.partial(chex.assert_max_traces, n=1)
    def step(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return optim.apply_updates(params, updates), state

    chex.clear_trace_counter()
    params = {"low": jnp.ones(3, jnp.bfloat16), "half": jnp.ones(2, jnp.float16)}
    return tx, step, params


def ones(params, value=1.0):
    return jax.tree.map(lambda p: jnp.full(p.shape, value), params)


def test_a_skipped_step_changes_neither_moments_nor_key():
    tx, step, params = full()
    _, state = step(ones(params), tx.init(params), params)
    _, skipped = step(ones(params, np.inf), state, params)
    assert skipped.skipped == 1
    for new, old in zip(
        jax.tree.leaves(skipped.inner_state), jax.tree.leaves(state.inner_state), strict=True
    ):
        np.testing.assert_array_equal(bits(new), bits(old))


def test_the_state_keeps_its_types_and_survives_serialisation():
    tx, step, params = full()
    start = tx.init(params)
    _, state = step(ones(params), start, params)
    assert types(state) == types(start)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    stored = state.inner_state.inner_state
    assert isinstance(stored, StoredMomentsState)
    assert stored.inner_state[0].nu["half"].dtype == jnp.bfloat16
    back = flax.serialization.from_bytes(start, flax.serialization.to_bytes(state))
    again = [step(ones(params), s, params) for s in (state, jax.tree.map(jnp.asarray, back))]
    chex.assert_trees_all_equal(*again)


def test_a_donated_state_does_not_take_the_key_of_the_next_one_with_it():
    tx, params = store_moments(optax.trace(0.9), "bfloat16", key=KEY), jnp.ones(2)
    step = jax.jit(lambda s: tx.update(params, s, params)[1], donate_argnums=0)
    first, second = (step(tx.init(params)) for _ in range(2))
    chex.assert_trees_all_equal(first, second)


def test_types_hold_with_x64_on():
    with jax.enable_x64(True):
        params = {"low": jnp.ones(2, jnp.bfloat16), "wide": jnp.ones(2, jnp.float64)}
        for mode in ("stochastic", "nearest"):
            tx = optim.master_weights(store_moments(optax.adamw(1e-3), "bfloat16", mode=mode))
            start = jax.eval_shape(tx.init, params)
            state = jax.eval_shape(
                lambda g, s, p, tx=tx: tx.update(g, s, p)[1], params, start, params
            )
            assert types(state) == types(start)
            nu = state.inner_state.inner_state[0].nu
            assert (nu["low"].dtype.name, nu["wide"].dtype.name) == ("bfloat16", "float64")


def test_lanes_of_a_vmap_are_the_loop_if_each_has_its_key():
    def lane(key, size):
        tx = store_moments(optax.trace(0.9), "bfloat16", key=key)
        params = jnp.ones(8)
        return tx.update(jnp.full(8, size), tx.init(params), params)[1].inner_state.trace

    keys, sizes = jax.random.split(KEY, 2), jnp.float32([0.1, 0.3])
    together = jax.jit(jax.vmap(lane))(keys, sizes)
    for i in range(2):
        np.testing.assert_array_equal(bits(together[i]), bits(lane(keys[i], sizes[i])))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dtype": "float32"}, "float32 they are without this wrapper"),
        ({"dtype": "bf17"}, "moments are stored in bfloat16 or float16"),
        ({"dtype": "bfloat16", "mode": "nearist"}, "Close: nearest"),
        ({"dtype": "bfloat16", "mode": "nearest", "key": KEY}, "uses no key"),
        ({"dtype": "bfloat16", "key": 7}, "key=7 is not a random key"),
    ],
)
def test_a_setting_that_cannot_act_is_an_error(settings, says):
    with pytest.raises(ValueError, match=says):
        store_moments(optax.adam(1e-3), **settings)


def test_an_optimiser_without_moments_is_an_error_but_for_an_empty_tree():
    tx = store_moments(optax.sgd(1e-3), "bfloat16")
    with pytest.raises(ValueError, match="has nothing to do"):
        tx.init(jnp.ones(1))
    tx.init({})


def test_an_optimiser_whose_state_cannot_be_read_is_an_error():
    def init(params):
        return {"m": jnp.zeros(params["w"].shape)}

    opaque = optax.GradientTransformation(init, lambda u, s, p=None: (u, s))
    with pytest.raises(ValueError, match=r"cannot tell which parts .* Keep its moments in"):
        store_moments(opaque, "bfloat16").init({"w": jnp.ones(2)})
