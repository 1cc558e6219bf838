import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from jprec import optim

LOW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
STORES = {
    "nearest": optim.round_on_store,
    "master": optim.master_weights,
    "stochastic": lambda inner: optim.stochastic_rounding(inner, jax.random.key(3)),
    "kahan": optim.kahan,
}


def train(transform, params, grads, steps):
    """Parameters after `steps` steps with the same gradients, in one scan."""

    @jax.jit
    def run(params, grads):
        def body(carry, _):
            params, state = carry
            updates, state = transform.update(grads, state, params)
            return (optim.apply_updates(params, updates), state), None

        return jax.lax.scan(body, (params, transform.init(params)), length=steps)[0]

    return run(params, grads)


def bits(array):
    array = np.asarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def wild(rng, dtype, count=4096):
    """Random values of very different sizes, with zeros, infinities and NaN among them."""
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-20, 14, count)
    values[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(np.float32).max]
    return jnp.asarray(values, jnp.float32).astype(dtype)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("apply", [optim.apply_updates, optax.apply_updates])
def test_parameters_equal_their_masters_cast_once_bit_for_bit_even_if_new_is_much_smaller(
    dtype, apply
):
    """As in 50 651 of 400 000 wild pairs where a difference cannot carry the new value."""
    rng = np.random.default_rng(0)
    old, new = wild(rng, dtype), wild(rng, jnp.float32)
    transform = optim.master_weights(optax.sgd(1.0))
    state = transform.init(old)
    # A gradient of old - new is not exact either; so the masters are set, and nothing is added.
    state = state._replace(masters=new)
    updates, state = transform.update(jnp.zeros_like(new), state, old)
    after = apply(old, updates)
    with np.errstate(over="ignore"):
        want = np.asarray(state.masters).astype(LOW[dtype])
    assert after.dtype == dtype
    np.testing.assert_array_equal(np.isnan(after), np.isnan(want))
    finite = ~np.isnan(want)
    np.testing.assert_array_equal(bits(after)[finite], bits(want)[finite])


def test_masters_move_where_bfloat16_stands_still():
    """SGD 1e-3 x 100 and weight decay 0.1 x 1e-3 x 1000 on bfloat16 1.0 (optax#1444)."""
    one = jnp.ones(2, jnp.bfloat16)
    still, _ = train(optim.round_on_store(optax.sgd(1e-3)), one, jnp.ones(2), 100)
    moved, _ = train(optim.master_weights(optax.sgd(1e-3)), one, jnp.ones(2), 100)
    assert still.tolist() == [1.0, 1.0]
    np.testing.assert_allclose(moved.astype(np.float32), 0.9, atol=2**-8)
    decay = optax.adamw(1e-3, weight_decay=0.1)
    decayed, _ = train(optim.master_weights(decay), one, jnp.zeros(2), 1000)
    np.testing.assert_allclose(decayed.astype(np.float32), 0.905, atol=2**-8)


def test_masters_are_not_rebuilt_from_parameters_on_restore():
    transform = optim.master_weights(optax.sgd(1e-3))
    params, state = train(transform, jnp.ones(1, jnp.bfloat16), jnp.ones(1), 1)
    assert params.tolist() == [1.0]
    leaves, structure = jax.tree.flatten(state)
    restored = jax.tree.unflatten(structure, [np.asarray(leaf) for leaf in leaves])
    _, state = transform.update(jnp.ones(1), restored, params)
    np.testing.assert_array_equal(state.masters, np.float32(1.0) - np.float32(1e-3) * 2)


def test_wide_parameters_have_no_second_copy_and_get_ordinary_updates():
    params = {"low": jnp.ones(2, jnp.bfloat16), "wide": jnp.ones(2)}
    for name, field in (("master", "masters"), ("kahan", "residuals")):
        transform = STORES[name](optax.sgd(0.5))
        state = transform.init(params)
        updates, state = transform.update(params, state, params)
        assert isinstance(updates["low"], optim.NewValue)
        assert updates["wide"].tolist() == [-0.5, -0.5]
        assert getattr(state, field)["wide"] is None


@pytest.mark.parametrize("build", STORES.values(), ids=STORES)
def test_moments_are_float32_and_updates_too_whatever_the_learning_rate_is(build):
    """optax#1552 and #1405: no moment in bfloat16, no dtype that depends on the learning rate's."""
    params = jnp.ones(2, jnp.bfloat16)
    for rate in (1e-3, jnp.bfloat16(1e-3), np.float32(1e-3)):
        transform = build(optax.adam(rate))
        state = transform.init(params)
        updates, state = transform.update(jnp.ones(2, jnp.bfloat16), state, params)
        moments = state.inner_state[0]
        assert moments.mu.dtype == moments.nu.dtype == jnp.float32
        assert updates.update.dtype == jnp.float32


def test_the_second_moment_decays_where_0_999_would_be_1_in_bfloat16():
    transform = optim.round_on_store(optax.adam(1e-3))
    params = jnp.ones(1, jnp.bfloat16)
    state = transform.init(params)
    _, state = transform.update(jnp.ones(1), state, params)
    start = state.inner_state[0].nu

    def body(state, _):
        return transform.update(jnp.zeros(1), state, params)[1], None

    end = jax.jit(lambda s: jax.lax.scan(body, s, length=2000)[0])(state).inner_state[0].nu
    np.testing.assert_allclose(end / start, 0.999**2000, rtol=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "adabelief", "rmsprop", "adamax"])
def test_optimisers_that_fail_on_float16_gradients_work_inside(optimizer):
    """Zero, small and large gradients; alone these give NaN or infinity at the first step."""
    transform = optim.round_on_store(getattr(optax, optimizer)(1e-3))
    params = jnp.ones(3, jnp.float16)
    grads = jnp.asarray([0.0, 1e-4, 300.0], jnp.float16)
    updates, state = transform.update(grads, transform.init(params), params)
    assert np.all(np.isfinite(updates.value))
    assert updates.value[0] == 1.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state))


def test_norms_of_float16_gradients_are_taken_in_float32():
    """In float16 the norm of 300 is infinite and the clipped update silently zero."""
    transform = optim.round_on_store(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)))
    params = jnp.ones(1, jnp.float16)
    updates, _ = transform.update(jnp.full(1, 300.0, jnp.float16), transform.init(params), params)
    assert updates.value.tolist() == [0.0]


def test_kahan_adds_a_thousandth_a_thousand_times_within_an_ulp():
    params, _ = train(
        optim.kahan(optax.sgd(1.0)), jnp.ones(1, jnp.bfloat16), -1e-3 * jnp.ones(1), 1000
    )
    assert abs(float(params[0]) - 2.0) <= 2.0**-6


@pytest.mark.parametrize("name", STORES)
def test_infinities_and_nans_stay_where_they_are(name):
    values = [np.inf, np.nan, 1.0, 0.0]
    params = {dtype: jnp.asarray(values, dtype) for dtype in LOW}
    grads = jax.tree.map(lambda p: jnp.zeros(4), params)
    after, _ = train(STORES[name](optax.sgd(1.0)), params, grads, 3)
    for dtype in LOW:
        np.testing.assert_array_equal(np.asarray(after[dtype], np.float32), values)


def test_a_parameter_that_overflows_is_infinite_not_nan():
    params = jnp.full(2, 60000.0, jnp.float16)
    for name in ("master", "kahan"):
        after, _ = train(STORES[name](optax.sgd(1.0)), params, jnp.full(2, -1e5), 2)
        assert after.tolist() == [np.inf, np.inf]


def test_stochastic_rounding_is_right_on_average():
    """1 + 2**-10 in bfloat16, whose ulp is 2**-7: rounded up with probability 1/8."""
    count = 1 << 15
    transform = optim.stochastic_rounding(optax.sgd(1.0), jax.random.key(0))
    params = jnp.ones(count, jnp.bfloat16)
    after, _ = train(transform, params, jnp.full(count, -(2.0**-10)), 1)
    up = np.asarray(after, np.float32) > 1
    assert set(np.unique(after.astype(np.float32))) == {1.0, 1.0 + 2.0**-7}
    # Five standard deviations of a binomial share.
    assert abs(up.mean() - 1 / 8) < 5 * np.sqrt(1 / 8 * 7 / 8 / count)


def test_stochastic_rounding_keeps_what_is_exact_and_the_largest_value_finite():
    largest = {"bfloat16": 3.3895314e38, "float16": 65504.0}
    params = {d: jnp.asarray([1.0, -m, m, 2.0**-14], d) for d, m in largest.items()}
    grads = jax.tree.map(lambda p: jnp.zeros(4), params)
    after, _ = train(STORES["stochastic"](optax.sgd(1.0)), params, grads, 20)
    for dtype in LOW:
        np.testing.assert_array_equal(bits(after[dtype]), bits(params[dtype]))


def test_stochastic_rounding_depends_on_the_key_and_the_name_and_nothing_else():
    params = {name: jnp.ones(256, jnp.bfloat16) for name in "ab"}
    grads = jax.tree.map(lambda p: jnp.full(p.shape, 1e-3), params)

    @jax.jit
    def step(key, params):
        transform = optim.stochastic_rounding(optax.sgd(1.0), key)
        state = transform.init(params)
        updates, state = transform.update({n: grads[n] for n in params}, state, params)
        return optim.apply_updates(params, updates), state.key

    first, following = step(jax.random.key(0), params)
    raw, _ = step(jax.random.key_data(jax.random.key(0)), params)
    alone, _ = step(jax.random.key(0), {"b": params["b"]})
    later, _ = step(jax.random.wrap_key_data(following), params)
    np.testing.assert_array_equal(bits(first["a"]), bits(raw["a"]))
    np.testing.assert_array_equal(bits(first["b"]), bits(alone["b"]))
    assert np.any(bits(first["a"]) != bits(first["b"]))
    assert np.any(bits(first["a"]) != bits(later["a"]))


def test_plain_updates_of_16_bit_parameters_are_added_in_float32_and_rounded_once():
    params = {"low": jnp.ones(1, jnp.bfloat16), "wide": jnp.ones(1), "n": jnp.arange(2)}
    updates = {
        # Twice rounded this would be 1: 0.0039 + 2**-30 is above the half of an ulp.
        "low": jnp.full(1, 2.0**-8 + 2.0**-20, jnp.float32),
        "wide": jnp.full(1, 1e-3, jnp.bfloat16),
        "n": np.zeros(2, jax.dtypes.float0),
    }
    after = optim.apply_updates(params | {"none": None}, updates | {"none": None})
    assert after["low"].tolist() == [1.0 + 2.0**-7]
    assert after["low"].dtype == jnp.bfloat16
    assert after["wide"].dtype == jnp.float32
    assert after["n"].tolist() == [0, 1]
    assert after["none"] is None


def test_a_new_value_for_a_parameter_of_another_dtype_is_an_error():
    update = optim.NewValue(jnp.ones(1, jnp.bfloat16), jnp.ones(1))
    with pytest.raises(ValueError, match="NewValue of bfloat16 for a parameter of float16"):
        optim.apply_updates(jnp.ones(1, jnp.float16), update)


@pytest.mark.parametrize("parameter", [np.ones(1, np.float32), np.float16(1), 1.0, jnp.ones(1)])
def test_whoever_adds_a_new_value_gets_the_value(parameter):
    assert parameter + optim.NewValue("the value", None) == "the value"


@pytest.mark.parametrize("behind", [optax.scale(0.5), optax.clip(0.5)], ids=["scale", "clip"])
@pytest.mark.parametrize("apply", [optim.apply_updates, optax.apply_updates])
def test_a_transformation_behind_the_wrapper_is_an_error_with_the_way_out(behind, apply):
    transform = optax.chain(optim.wrap(optax.sgd(1.0), "pure_bf16"), behind)
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    updates, _ = transform.update({"w": jnp.ones(2)}, transform.init(params), params)
    with pytest.raises(ValueError, match=r"scaled or clipped.*optax\.chain"):
        apply(params, updates)


def test_a_whole_factor_behind_the_wrapper_gives_nan_and_no_frozen_parameter():
    for factor in (-1, 2):
        transform = optax.chain(optim.wrap(optax.sgd(1.0), "pure_bf16"), optax.scale(factor))
        params = {"w": jnp.ones(2, jnp.bfloat16)}
        updates, _ = transform.update({"w": jnp.ones(2)}, transform.init(params), params)
        assert jnp.isnan(optim.apply_updates(params, updates)["w"]).all()


def test_each_step_draws_with_a_key_of_its_own():
    transform = optim.stochastic_rounding(optax.sgd(1.0), jax.random.key(3))
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    state, keys = transform.init(params), []
    for _ in range(3):
        following, now = jax.random.split(jax.random.wrap_key_data(state.key))
        keys.append(jax.random.key_data(now).tolist())
        _, state = transform.update({"w": jnp.ones(2)}, state, params)
        assert state.key.tolist() == jax.random.key_data(following).tolist()
    assert len({tuple(key) for key in keys}) == 3


@pytest.mark.parametrize("wide", [False, True])
def test_clipping_behind_the_wrapper_is_an_error_with_the_way_out(wide):
    clipped = optax.chain(optim.wrap(optax.sgd(1.0), "pure_bf16"), optim.clip_by_global_norm(1e-4))
    params = {"w": jnp.ones(2, jnp.bfloat16)} | ({"b": jnp.ones(2)} if wide else {})
    grads = jax.tree.map(lambda p: jnp.ones(p.shape), params)
    with pytest.raises(ValueError, match=r"clip_by_global_norm stands behind.*optax\.chain"):
        clipped.update(grads, clipped.init(params), params)


@pytest.mark.parametrize("name", STORES)
def test_a_wrapper_with_nothing_to_do_is_an_error(name):
    with pytest.raises(
        ValueError, match=r"has nothing to do: the parameters are float32.*wrapped twice"
    ):
        STORES[name](optax.sgd(1.0)).init({"w": jnp.ones(1)})
    STORES[name](optax.sgd(1.0)).init({})


def test_a_missing_argument_or_a_wrong_key_says_so():
    params = jnp.ones(1, jnp.bfloat16)
    transform = optim.kahan(optax.sgd(1.0))
    with pytest.raises(ValueError, match="kahan needs the parameters"):
        transform.update(params, transform.init(params))
    with pytest.raises(ValueError, match="key=7 is not a random key"):
        optim.stochastic_rounding(optax.sgd(1.0), 7)
