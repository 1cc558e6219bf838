import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jprec
from jprec import optim, policy, program, train
from jprec.policy import Policy, Rule

MLP_WIDTHS = (8, 16, 4)


def mlp(seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"w": jnp.asarray(rng.standard_normal((i, o)) / i**0.5, jnp.float32), "b": jnp.zeros(o)}
        for i, o in itertools.pairwise(MLP_WIDTHS)
    ]


def mlp_loss(params, x, labels):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    logits = x @ params[-1]["w"] + params[-1]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), labels
    ).mean()


def batch():
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.standard_normal((16, 8)), jnp.float32), jnp.arange(16) % 4


def square(w, x):
    return ((w * x).astype(jnp.float32) ** 2).sum()


def assert_same_bits(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def dtypes(tree):
    return jax.tree.map(lambda leaf: jnp.dtype(leaf.dtype).name, tree)


def seen_by(loss_policy, params, *args, **kwargs):
    """The dtypes in which a loss function gets its arguments."""
    seen = []

    def loss(params, *args, **kwargs):
        seen.append((dtypes(params), dtypes(args), dtypes(kwargs)))
        return jnp.float32(0.0)

    jprec.value_and_grad(loss, loss_policy, scale=1.0)(params, *args, **kwargs)
    return seen[0]


def test_a_power_of_two_scale_leaves_fifty_steps_of_training_the_same_bits():
    """One program, three scales in its state: every operation of the backward pass scales."""
    x, labels = batch()
    guards = [optim.static_loss_scale(optax.sgd(0.1, momentum=0.9), 2.0**k) for k in (0, 10, -10)]

    def step(carry, index):
        params, state = carry
        scale = optim.loss_scale(state)
        loss, grads = train.value_and_grad(mlp_loss, "fp32", scale=scale)(
            params, x + 0.01 * index, labels
        )
        updates, state = guards[0].update(grads, state, params)
        return (optim.apply_updates(params, updates), state), loss

    run = jax.jit(lambda params, state: jax.lax.scan(step, (params, state), jnp.arange(50)))
    params = mlp()
    runs = [run(params, guard.init(params)) for guard in guards]
    ((want, _), losses), *others = runs
    assert np.any(np.asarray(want[0]["w"]) != np.asarray(params[0]["w"]))
    for (got, state), scaled_losses in others:
        assert state.scale != 1.0
        assert_same_bits(got, want)
        assert_same_bits(scaled_losses, losses)


def test_the_scale_of_the_forward_pass_unscales_on_the_growth_step_too():
    """mpx halves the gradient at each growth: .5 .5 .25; here it is the same at every step."""
    transform = optim.dynamic_loss_scale(optax.sgd(0.0), initial=2.0**4, growth_interval=3)
    params = jnp.full(2, 0.5)

    def step(state, _):
        value_and_grad = train.value_and_grad(square, "mixed_fp16", scale=optim.loss_scale(state))
        loss, grads = value_and_grad(params, jnp.ones(2))
        return transform.update(grads, state)[1], (loss, grads, state.scale)

    _, (losses, grads, scales) = jax.jit(
        lambda: jax.lax.scan(step, transform.init(params), length=7)
    )()
    assert scales.tolist() == [16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 64.0]
    assert np.all(np.asarray(grads) == 1.0)
    assert np.all(np.asarray(losses) == 0.5)


def test_the_reported_loss_is_exact_whatever_the_scale():
    """A loss of 10 at scale 2**24 is 10; only the gradient overflows, and says so."""
    loss, grads = train.value_and_grad(
        lambda w: (w * 5).astype(jnp.float32).sum(), "mixed_fp16", scale=2.0**24
    )(jnp.ones(2))
    assert loss == 10.0
    assert np.all(np.isinf(grads))


def test_gradients_are_raised_before_they_are_unscaled():
    """1e-3 / 2**15 is 6e-8 in float16, off by a factor of two; in float32 it is right."""
    w, x = jnp.ones(1), jnp.float16([1e-3 / 2**15])
    assert x != jnp.float32(1e-3 / 2**15)
    big = jnp.full(1, 1e-3)
    _, grads = train.value_and_grad(
        lambda w, x: (w * x).astype(jnp.float32).sum() / 2**15, "mixed_fp16", scale=2.0**15
    )(w, big)
    np.testing.assert_allclose(grads, 1e-3 / 2**15, rtol=2.0**-11)


def test_gradients_have_the_structure_of_the_original_parameters_and_are_float32():
    for name in policy.names():
        params = train.cast(mlp(), name)
        loss, grads = jax.eval_shape(
            train.value_and_grad(mlp_loss, name, scale=1.0), params, *batch()
        )
        assert jax.tree.structure(grads) == jax.tree.structure(params)
        assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
        assert loss.dtype == jnp.float32


def test_the_gradient_is_the_cast_parameters_gradient_raised():
    w, x = batch()[0][:8], batch()[0]

    def loss(w, x):
        return (jnp.tanh(x @ w).astype(jnp.float32) ** 2).mean()

    @jax.jit
    def both():
        _, ours = train.value_and_grad(loss, "mixed_bf16")(w, x)
        return ours, jax.grad(loss)(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16))

    ours, low = both()
    assert low.dtype == jnp.bfloat16
    assert_same_bits(ours, low.astype(jnp.float32))


def test_what_is_no_float_of_32_or_16_bits_is_never_damaged():
    with jax.enable_x64(True):
        others = {
            "int": jnp.arange(3),
            "bool": jnp.asarray([True]),
            "key": jax.random.key(1),
            "double": jnp.ones(2, jnp.float64),
            "complex": jnp.ones(2, jnp.complex64) * 1j,
            "byte": jnp.ones(2, jnp.float8_e4m3fn),
            "zero": np.zeros(2, jax.dtypes.float0),
        }
        params = others | {"w": jnp.ones(2, jnp.float32)}

        def loss(params, batch):
            for got in (params, batch):
                assert {k: got[k].dtype for k in others} == {k: others[k].dtype for k in others}
            value = params["double"].sum() + (params["complex"] * 2).imag.sum()
            return value.astype(jnp.float32) + params["w"].astype(jnp.float32).sum()

        _, grads = train.value_and_grad(loss, "mixed_bf16", scale=8.0)(params, others)
    assert jax.tree.structure(grads) == jax.tree.structure(params)
    assert grads["double"].tolist() == [1.0, 1.0]
    assert grads["double"].dtype == jnp.float64
    assert grads["complex"].tolist() == [-2j, -2j]
    assert grads["w"].dtype == jnp.float32
    for name in ("int", "bool", "key", "zero"):
        assert grads[name].dtype == jax.dtypes.float0


def test_parameters_and_inputs_are_cast_by_path():
    params = {"block": {"norm": jnp.ones(1), "dense": jnp.ones(1)}}
    inputs = {"image": jnp.ones(1), "label": jnp.arange(1)}
    by_path = Policy(
        compute="bf16",
        rules=(Rule("norm", compute="f32"), Rule("^targets", compute="f32")),
    )
    got, _, kwargs = seen_by(by_path, params, inputs=inputs, targets=jnp.ones(1))
    assert got == {"block": {"norm": "float32", "dense": "bfloat16"}}
    assert kwargs["inputs"] == {"image": "bfloat16", "label": "int32"}
    assert kwargs["targets"] == "float32"


def test_inputs_are_called_by_the_names_of_the_loss_functions_arguments():
    def loss(params, x, targets, *more):
        assert (x.dtype, targets.dtype) == (jnp.bfloat16, jnp.float32)
        assert [m.dtype for m in more] == [jnp.bfloat16, jnp.float32]
        return jnp.float32(0.0)

    rules = (Rule("^targets$", compute="f32"), Rule("^args/4", compute="f32"))
    one = jnp.ones(1)
    train.value_and_grad(loss, Policy(compute="bf16", rules=rules))(one, one, one, one, one)


def test_batch_statistics_are_not_cast():
    """jmp's cast_to_half casts them too, and their dtype changes in the carry."""
    stats = {"batch_stats": {"mean": jnp.ones(1)}, "params": {"w": jnp.ones(1)}}
    _, (got,), kwargs = seen_by("mixed_fp16", jnp.ones(1), stats, batch_stats=stats["batch_stats"])
    assert got == {"batch_stats": {"mean": "float32"}, "params": {"w": "float16"}}
    assert kwargs["batch_stats"] == {"mean": "float32"}


def test_running_statistics_are_not_cast_under_any_name():
    stats = {"BatchNorm_0": {"mean": jnp.ones(1), "var": jnp.ones(1)}}
    others = {"mean": jnp.ones(1), "scale": jnp.ones(1)}
    _, (got, more), _ = seen_by("mixed_fp16", jnp.ones(1), stats, others)
    assert got == {"BatchNorm_0": {"mean": "float32", "var": "float32"}}
    assert more == {"mean": "float16", "scale": "float16"}


def test_auxiliary_output_is_handed_through_and_judges_nothing():
    """An infinite metric must not lower the scale, as in jaxamp."""

    def loss(w, x):
        return square(w, x), {"metric": jnp.inf, "x": x}

    transform = optim.dynamic_loss_scale(optax.sgd(1.0))
    (value, aux), grads = train.value_and_grad(loss, "mixed_bf16", has_aux=True)(
        jnp.ones(2), x=jnp.full(2, 3.0)
    )
    _, state = transform.update(grads, transform.init(grads))
    assert (float(value), state.skipped) == (18.0, 0)
    assert aux["metric"] == jnp.inf
    assert aux["x"].dtype == jnp.bfloat16


@pytest.mark.parametrize("scale", [3.0, 0.0, float("inf"), jnp.float32(3.0)])
def test_a_known_scale_that_is_no_power_of_two_is_an_error(scale):
    with pytest.raises(ValueError, match="power of two"):
        train.value_and_grad(square, "fp32", scale=scale)


@pytest.mark.parametrize(
    "scale", [None, optim.loss_scale(optax.sgd(1.0).init(jnp.ones(2)))], ids=["none", "unguarded"]
)
def test_float16_without_a_loss_scale_is_an_error_unless_one_asks_for_it(scale):
    """Gradients would vanish unseen, and the optimiser's report would speak of a scale."""
    for name in ("mixed_fp16", "product=fp8_e4m3"):
        with pytest.raises(ValueError, match=r"vanish unseen.*optim\.wrap.*or scale=1\.0"):
            train.value_and_grad(square, name, scale=scale)
        train.value_and_grad(square, name, scale=1.0)
    train.value_and_grad(square, "mixed_bf16", scale=scale)


def test_a_word_for_a_scale_is_an_error():
    with pytest.raises(ValueError, match=r"scale='dynamic': give scale=jprec\.optim\.loss_scale"):
        train.value_and_grad(square, "mixed_fp16", scale="dynamic")


def test_a_batch_of_scales_is_an_error_that_says_where_vmap_belongs():
    """flax#4114: the scale becomes an array, and later an opaque TypeError."""
    with pytest.raises(ValueError, match=r"one loss has one scale.*map the whole step"):
        train.value_and_grad(square, "fp32", scale=jnp.ones(3))


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda w: (w * 2).sum(), "loss_fn returned bfloat16.*logits.astype"),
        (lambda w: w.astype(jnp.float32), "shape \\(2,\\).*scalar"),
        (lambda w: (w.astype(jnp.float32).sum(), 1), "has_aux=True"),
        (lambda w: jnp.int32(1), "returned int32"),
    ],
)
def test_a_loss_that_is_no_float32_scalar_is_an_error_with_the_way_out(loss, says):
    with pytest.raises(TypeError, match=says):
        train.value_and_grad(loss, "mixed_bf16")(jnp.ones(2))


def test_has_aux_without_aux_is_an_error():
    with pytest.raises(TypeError, match=r"loss_fn returns \(loss, aux\)"):
        train.value_and_grad(square, "fp32", has_aux=True)(jnp.ones(2), jnp.ones(2))


def test_each_weight_is_cast_once():
    params = mlp()
    program_text = jax.make_jaxpr(train.value_and_grad(mlp_loss, "mixed_bf16"))(params, *batch())
    casts = [
        eqn.invars[0]
        for eqn in program_text.jaxpr.eqns
        if eqn.primitive.name == "convert_element_type"
        and eqn.outvars[0].aval.dtype == jnp.bfloat16
        and eqn.invars[0] in program_text.jaxpr.invars
    ]
    assert len(casts) == len(set(casts)) == len(jax.tree.leaves(params)) + 1


def test_a_policys_product_holds_forward_and_backward():
    w, x = jnp.full((2, 2), 1.0001), jnp.eye(2) * 1.0001

    def loss(w, x):
        return (x @ w).sum()

    value, grads = train.value_and_grad(loss, "tf32")(w, x)
    assert value == 4.0
    assert np.all(np.asarray(grads) == 1.0)
    value, grads = train.value_and_grad(loss, "fp32")(w, x)
    assert value > 4.0
    assert np.all(np.asarray(grads) > 1.0)


def test_gradients_enter_backward_products_in_e5m2_where_products_are_in_e4m3():
    """The hybrid recipe of FP8: 1.25 * 2**-12 is no number of E4M3, and zero in it."""
    small = 1.25 * 2.0**-12

    def loss(w, x):
        return (x @ w).sum() * small

    w, x = jnp.full((2, 2), 0.3), jnp.eye(2)
    for text, want in [("", small), (",grad_product=fp8_e4m3", 0.0)]:
        _, grads = train.value_and_grad(loss, f"product=fp8_e4m3{text}", scale=1.0)(w, x)
        np.testing.assert_array_equal(grads, np.full((2, 2), want, np.float32))


def test_emulated_products_are_those_of_the_differentiated_function():
    got = jax.make_jaxpr(train.value_and_grad(mlp_loss, "tf32"))
    want = jax.make_jaxpr(program.emulate(jax.value_and_grad(mlp_loss), "tf32"))
    params, args = mlp(), batch()
    assert str(got(params, *args)) == str(want(params, *args))


def test_exact_rounds_where_the_compiler_would_not():
    """(a * b).astype(float32) skips the bfloat16 rounding of the product under jit on a CPU."""
    w, x = jax.random.normal(jax.random.key(0), (2, 512)).astype(jnp.bfloat16)

    def loss(w, x):
        return (w * x).astype(jnp.float32).sum(), (w * x).astype(jnp.float32)

    step = train.value_and_grad(loss, "pure_bf16", has_aux=True, exact=True)
    (_, products), grads = jax.jit(step)(w, x)
    exact = np.asarray(w, np.float32) * np.asarray(x, np.float32)
    np.testing.assert_array_equal(products, exact.astype(w.dtype).astype(np.float32))
    np.testing.assert_array_equal(grads, x.astype(jnp.float32))


def test_a_traced_scale_and_donated_buffers_and_vmap_over_seeds_work():
    transform = optim.wrap(optax.sgd(0.1), "mixed_fp16")

    def step(params, state, x, labels):
        scale = optim.loss_scale(state)
        loss, grads = train.value_and_grad(mlp_loss, "mixed_fp16", scale=scale)(params, x, labels)
        updates, state = transform.update(grads, state, params)
        return optim.apply_updates(params, updates), state, loss

    params = jax.tree.map(lambda *seeds: jnp.stack(seeds), *map(mlp, range(3)))
    state = jax.vmap(transform.init)(params)
    over_seeds = jax.jit(jax.vmap(step, in_axes=(0, 0, None, None)), donate_argnums=(0, 1))
    losses = []
    for _ in range(5):
        params, state, loss = over_seeds(params, state, *batch())
        losses.append(loss)
    assert np.all(np.asarray(losses[-1]) < np.asarray(losses[0]))
    assert len(set(losses[0].tolist())) == 3
    assert over_seeds._cache_size() == 1


def test_a_rule_that_finds_nothing_among_parameters_and_inputs_is_an_error():
    params = {"norm": jnp.ones(1), "dense": jnp.ones(1)}

    def tried(*rules, **inputs):
        by_path = Policy(compute="bf16", rules=rules)
        loss = lambda params, targets: jnp.float32(0.0)
        train.value_and_grad(loss, by_path, scale=1.0)(params, targets=jnp.ones(1))

    tried(Rule("norm", compute="f32"), Rule("^targets", compute="f32"))
    tried(Rule("head", output="f32"))  # no business of this function's
    with pytest.raises(ValueError, match=r"'nrom->compute=float32' finds nothing.*norm, targets"):
        tried(Rule("nrom", compute="f32"))
    with pytest.raises(ValueError, match=r"'norm->compute=float16' never holds: the earlier"):
        tried(Rule("nor", compute="f32"), Rule("norm", compute="f16"))


def test_a_rule_about_a_layer_is_no_error():
    params = {"block": {"norm": {"scale": jnp.ones(1)}}}
    rule = Rule("norm$", compute="f32")
    train.value_and_grad(lambda p: jnp.float32(0.0), Policy(compute="bf16", rules=(rule,)))(params)


@pytest.mark.parametrize("given", [jnp.float16, jnp.float32])
def test_a_loss_in_16_bits_is_rounded_if_the_policy_says_so_and_reported_in_float32(given):
    low = Policy(compute="f16", loss="f16")

    def loss(w):
        return (w.astype(given) * jnp.asarray(1.0 + 2.0**-12, given)).sum()

    value, grads = train.value_and_grad(loss, low, scale=2.0**15)(jnp.ones(1))
    assert (value, value.dtype) == (1.0, jnp.float32)
    assert np.isfinite(grads).all()
    # 2**16 is infinite in float16, which the guard sees and halves.
    _, grads = train.value_and_grad(loss, low, scale=2.0**16)(jnp.ones(1))
    assert np.isinf(grads).all()


DEVICES = """
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import AxisType, PartitionSpec as P
import jprec
from jprec import optim

mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
tx = optim.wrap(optax.sgd(1.0), "mixed_fp16")
params = {"w": jnp.ones(3)}

def loss(params, x):
    return jax.lax.pmean((params["w"] * x).astype(jnp.float32).sum(), "data")

def own(params, x):
    return (params["w"] * x).astype(jnp.float32).sum()

def step(params, state, x):
    value_and_grad = jprec.value_and_grad(loss, "mixed_fp16", scale=1.0)
    value, grads = value_and_grad(params, x)
    updates, state = tx.update(grads, state, params)
    return optim.apply_updates(params, updates), state, grads

spread = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P("data")), out_specs=P()))
x = jnp.full((2, 3), 40000.0)
after, state, grads = spread(params, tx.init(params), x)
assert grads["w"].tolist() == [40000.0] * 3, grads  # in FP16 80000 is infinite
assert after["w"].tolist() == [-39999.0] * 3, after

# One device's overflow is everybody's: all skip, and the scale is one.
x = x.at[1, 0].set(70000.0)
after, state, grads = spread(params, tx.init(params), x)
assert after["w"].tolist() == [1.0] * 3, after
assert (int(state.skipped), float(state.scale)) == (1, 2.0**15), state

# Without pmean the gradient is that of the sum of the losses, as JAX has it, in FP32.
for policy in ("mixed_fp16", "params=float32,compute=float16,product=fp32"):
    f = lambda w, x: jprec.value_and_grad(own, policy, scale=1.0)(w, x)[1]
    summed = jax.shard_map(f, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    assert jax.jit(summed)(params, jnp.full((2, 3), 40000.0))["w"].tolist() == [80000.0] * 3

# Without JAX's account of what varies, gradients are the device's own, in FP32.
f = lambda w, x: jax.lax.pmean(
    jprec.value_and_grad(own, "mixed_fp16", scale=1.0)(w, x)[1], "data"
)
alone = jax.shard_map(
    f, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False
)
assert jax.jit(alone)(params, jnp.full((2, 3), 40000.0))["w"].tolist() == [40000.0] * 3
"""


def test_devices_add_gradients_up_in_float32_and_agree_to_skip():
    """Data-parallel FP16 gradients overflow in the sum (jax#27496); ranks that do not agree on
    the skip diverge (pytorch#115710)."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", DEVICES], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
