import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx
from flax.training import train_state

from jprec import optim
from jprec.optim import DynamicScale

PURE = jnp.ones((2, 2), jnp.bfloat16)


def kinds(transform, params):
    """The names of the nested states, outermost first."""
    state, names = transform.init(params), []
    while hasattr(state, "inner_state"):
        names.append(type(state).__name__)
        state = state.inner_state
    return names


@pytest.mark.parametrize(
    ("policy", "settings", "want"),
    [
        ("fp32", {}, []),
        ("mixed_bf16", {}, []),
        ("mixed_fp16", {}, ["LossScaleState"]),
        ("mixed_fp16", {"loss_scale": "none"}, []),
        ("fp32", {"loss_scale": 2.0**-18}, ["LossScaleState"]),
        ("pure_bf16", {}, ["RoundOnStoreState"]),
        ("pure_bf16", {"store": "kahan", "loss_scale": 1}, ["LossScaleState", "KahanState"]),
        ("pure_fp16", {"store": "master"}, ["LossScaleState", "MasterWeightsState"]),
        (
            "pure_bf16",
            {"store": "stochastic", "key": jax.random.key(0)},
            ["StochasticRoundingState"],
        ),
        ("compute=bfloat16;head->compute=float16", {}, ["LossScaleState"]),
    ],
)
def test_the_right_parts_are_put_around_an_optimiser_the_guard_outermost(policy, settings, want):
    params = PURE if policy.startswith("pure") else PURE.astype(jnp.float32)
    assert kinds(optim.wrap(optax.sgd(1.0), policy, **settings), params) == want


def test_a_dynamic_scale_is_given_by_its_settings():
    transform = optim.wrap(
        optax.sgd(1.0), "fp32", loss_scale=DynamicScale(initial=4.0, growth_interval=1, ceiling=8.0)
    )
    state = transform.init(jnp.ones(2))
    for want in (4.0, 8.0, 8.0):
        assert optim.loss_scale(state) == want
        _, state = transform.update(jnp.ones(2), state, jnp.ones(2))


@pytest.mark.parametrize(
    ("policy", "settings", "says"),
    [
        ("mixed_bf16", {"store": "kahan"}, "would do nothing.*their own master weights"),
        ("mixed_bf16", {"store": "nearest"}, "would do nothing"),
        ("pure_bf16", {"store": "khan"}, "Close: kahan"),
        ("pure_bf16", {"key": jax.random.key(0)}, "uses no key"),
        ("pure_bf16", {"store": "stochastic"}, "needs a key"),
        ("mixed_bf16", {"loss_scale": "dynamic"}, "DynamicScale"),
        ("mixed_bf16", {"loss_scale": True}, "not a number"),
        ("mixed_bf16", {"loss_scale": 1000.0}, "not a power of two"),
        ("mixed_bf15", {}, "Close: mixed_bf16"),
    ],
)
def test_a_setting_that_cannot_act_is_an_error(policy, settings, says):
    with pytest.raises(ValueError, match=says):
        optim.wrap(optax.sgd(1.0), policy, **settings)


def test_extra_arguments_reach_the_inner_optimiser():
    def update(updates, state, params=None, *, factor, **extra):
        return jax.tree.map(lambda u: u * factor, updates), state

    inner = optax.GradientTransformationExtraArgs(lambda params: (), update)
    transform = optim.wrap(inner, "pure_fp16", store="master")
    params = jnp.ones(2, jnp.float16)
    updates, _ = transform.update(jnp.ones(2), transform.init(params), params, factor=2.0)
    assert updates.value.tolist() == [3.0, 3.0]


def test_nnx_optimizer_stores_exactly_the_new_value():
    """Its update calls optax.apply_updates; a skipped step leaves every bit."""
    model = nnx.Linear(2, 3, param_dtype=jnp.float16, rngs=nnx.Rngs(0))
    transform = optim.wrap(optax.sgd(1e-3), "pure_fp16", store="master")
    optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
    before = jnp.copy(model.kernel[...])
    gradients = jax.tree.map(lambda p: jnp.ones(p.shape, jnp.float32), nnx.state(model, nnx.Param))

    @nnx.jit
    def step(model, optimizer, gradients):
        optimizer.update(model, gradients)

    step(model, optimizer, jax.tree.map(lambda g: g * jnp.inf, gradients))
    assert jnp.array_equal(model.kernel[...], before)
    assert optim.loss_scale(optimizer.opt_state) == 2.0**15
    step(model, optimizer, gradients)
    kernel = model.kernel[...]
    assert kernel.dtype == jnp.float16
    want = (before.astype(jnp.float32) - 1e-3).astype(jnp.float16)
    assert jnp.allclose(kernel, want, rtol=2.0**-10)
    assert jnp.all(kernel != before)
    masters = optimizer.opt_state.inner_state.masters["kernel"][...]
    assert jnp.array_equal(masters.astype(jnp.float16), kernel)


def test_train_state_stores_exactly_the_new_value():
    module = linen.Dense(3, param_dtype=jnp.bfloat16)
    params = module.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
    transform = optim.wrap(optax.sgd(1e-3), "pure_bf16", store="master", loss_scale=2.0**4)
    state = train_state.TrainState.create(apply_fn=module.apply, params=params, tx=transform)

    @jax.jit
    def step(state, gradients):
        return state.apply_gradients(grads=gradients)

    gradients = jax.tree.map(lambda p: jnp.ones(p.shape, jnp.float32), params)
    for _ in range(3):
        state = step(state, gradients)
    masters = state.opt_state.inner_state.masters
    for parameter, master in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(masters), strict=True
    ):
        assert jnp.array_equal(parameter, master.astype(jnp.bfloat16))
    assert optim.loss_scale(state) == 2.0**4


def test_16_bit_parameters_under_a_policy_that_stores_float32_are_an_error():
    """Adam would divide by a second moment that is zero in float16, and the step would count."""
    transform = optim.wrap(optax.adam(1e-3), "mixed_fp16")
    with pytest.raises(ValueError, match=r"parameter 'b' is float16.*a rule with params=float16"):
        transform.init({"w": jnp.ones(2), "b": jnp.ones(2, jnp.float16)})


def test_what_is_no_optimiser_is_an_error():
    with pytest.raises(TypeError, match=r"optax\.adam\(1e-3\)"):
        optim.wrap(optax.adam, "mixed_fp16")


def test_masters_inside_stored_moments_stay_float32():
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    for store, name in [("master", "masters"), ("kahan", "residuals")]:
        inner = optim.wrap(optax.adam(0.1), "pure_bf16", store=store)
        state = optim.store_moments(inner, "bfloat16").init(params).inner_state
        want = inner.init(params)
        assert getattr(state, name)["w"].dtype == getattr(want, name)["w"].dtype
