"""What `emulate` takes, keeps, refuses and differentiates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jprec import matmul, policy, program


def test_tf32_product_of_1_0001_and_1_is_exactly_1():
    dot = program.emulate(jnp.dot, "tf32")
    a, b = jnp.float32([1.0001]), jnp.float32([1.0])
    assert dot(a, b) == 1.0
    assert jax.jit(dot)(a, b) == 1.0
    assert jax.grad(dot)(b, a) == 1.0  # the backward product rounds as well
    assert program.emulate(jnp.dot, "fp32")(a, b) == a[0]


@pytest.mark.parametrize("spec", ["tf32", matmul.get("tf32"), policy.get("tf32"), "tf32@a100"])
def test_specs_and_policies_by_name_and_object(spec):
    assert program.emulate(jnp.dot, spec)(jnp.float32([1.0001]), jnp.float32([1.0])) == 1.0


def test_policy_is_found_by_name_where_no_spec_has_it():
    written = "params=float32,product=tf32"
    assert program.emulate(jnp.dot, written)(jnp.float32([1.0001]), jnp.float32([1.0])) == 1.0


@pytest.mark.parametrize("empty", ["mixed_bf16", policy.Policy()])
def test_a_policy_that_leaves_products_alone_is_an_error(empty):
    with pytest.raises(ValueError, match="nothing to emulate"):
        program.emulate(jnp.dot, empty)


def test_unknown_spec_names_what_is_close():
    with pytest.raises(ValueError, match="did you mean tf32"):
        program.emulate(jnp.dot, "tf23")
    with pytest.raises(TypeError, match="neither a product spec nor a policy"):
        program.emulate(jnp.dot, 32)


def test_fp32_asks_for_the_highest_precision(weights):
    def f(w):
        return jax.jit(lambda w: w @ w)(w)

    assert [p.precision for p in program.products(f, weights)] == [None]
    emulated = jax.grad(lambda w: program.emulate(f, "fp32")(w).sum())
    assert {p.precision for p in program.products(emulated, weights)} == {"HIGHEST"}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_16_bit_products_keep_their_dtype_and_are_rounded_once(dtype):
    exact = np.arange(1, 65) * 3  # sums below 2**24, so that FP32 holds them
    a = jnp.asarray(np.tile(np.arange(1, 65) % 7, (2, 1)), dtype)
    b = jnp.asarray(exact[:, None], dtype)
    for spec in ("fp32", "tf32"):
        got = program.emulate(jnp.matmul, spec)(a, b)
        want = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got), want.astype(dtype))


def test_other_products_are_left_untouched(same):
    whole = jnp.arange(4).reshape(2, 2)
    imaginary = jnp.full((2, 2), 1.0001 + 1j)
    with jax.enable_x64(True):
        double = jnp.full((2, 2), 1.0001, jnp.float64)
        for x in (whole, imaginary, double):
            assert same(program.emulate(jnp.matmul, "tf32")(x, x), x @ x)


def test_traced_values_that_are_closed_over_are_differentiated(same, weights, inputs):
    def closing(w, x):
        bent = jnp.sin(w)
        inner = program.emulate(lambda x: jax.jit(lambda x: jnp.tanh(x @ bent))(x) @ w, "tf32")
        return inner(x).sum()

    def open_(w, x):
        return (jnp.tanh(x @ jnp.sin(w)) @ w).sum()

    want = jax.jit(program.emulate(jax.grad(open_, (0, 1)), "tf32"))(weights, inputs)
    assert same(jax.jit(jax.grad(closing, (0, 1)))(weights, inputs), want)


def test_integers_keys_flags_and_auxiliary_results(same, weights):
    params = {"embedding": jax.random.normal(jax.random.key(0), (10, 8)), "w": weights}
    tokens, key = jnp.array([1, 2, 3]), jax.random.key(3, impl="rbg")

    def loss(params, tokens, key, *, dropout):
        hidden = params["embedding"][tokens] @ params["w"]
        if dropout:
            hidden = hidden * jax.random.bernoulli(key, 0.5, hidden.shape)
        # The last result is infinite. Its cotangent is zero, and must not become NaN.
        more = (hidden.argmax(-1), jax.random.split(key), hidden.sum() / jnp.zeros(()))
        return (hidden**2).mean(), more

    outside = jax.value_and_grad(program.emulate(loss, "tf32"), has_aux=True)
    inside = program.emulate(jax.value_and_grad(loss, has_aux=True), "tf32")
    got = jax.jit(lambda *args: outside(*args, dropout=True))(params, tokens, key)
    assert same(got, jax.jit(lambda *args: inside(*args, dropout=True))(params, tokens, key))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(got[1]))

    emulated = program.emulate(lambda tokens: loss(params, tokens, key, dropout=False)[0], "tf32")
    assert jax.jit(jax.grad(emulated, allow_int=True))(tokens).dtype == jax.dtypes.float0


def test_python_numbers_and_constants(weights):
    scaled = program.emulate(lambda scale, w: scale * (w @ w).sum(), "tf32")
    assert jax.grad(scaled)(2.0, weights) == scaled(1.0, weights)
    assert isinstance(program.emulate(lambda: 2.0, "tf32")(), jax.Array)


def test_inside_scan_and_checkpoint(same, weights, inputs):
    def plain(w, x):
        return jnp.tanh(x @ w)

    def repeated(layer):
        def loss(w, x):
            step = jax.checkpoint(lambda carry, _: (layer(w, carry), None))
            return jax.lax.scan(step, x, None, length=2)[0].sum()

        return jax.value_and_grad(loss, (0, 1))

    got = jax.jit(repeated(program.emulate(plain, "tf32")))(weights, inputs)
    want = jax.jit(program.emulate(repeated(plain), "tf32"))(weights, inputs)
    assert same(got, want)


def test_under_vmap(same, weights, inputs):
    def loss(w, row):
        return jnp.tanh(row @ w).sum()

    def mapped(grad):
        return jax.jit(jax.vmap(grad, (None, 0)))(weights, inputs)

    got = mapped(jax.grad(program.emulate(loss, "tf32")))
    assert same(got, mapped(program.emulate(jax.grad(loss), "tf32")))


def test_specs_may_be_nested(same, weights, inputs):
    def loss(w, x):
        return (jnp.tanh(x @ w) @ w).sum()

    tf32 = jax.jit(program.emulate(loss, "tf32"))(weights, inputs)
    for outer, inner in (("tf32", "fp32"), ("fp32", "tf32")):
        nested = program.emulate(program.emulate(loss, inner), outer)
        assert same(jax.jit(nested)(weights, inputs), tf32)


def test_forward_mode_outside_is_refused_and_inside_works(weights, inputs):
    def loss(w):
        return (inputs @ w).sum()

    with pytest.raises(TypeError, match="no forward-mode derivatives"):
        jax.jvp(program.emulate(loss, "tf32"), (weights,), (weights,))
    with pytest.raises(TypeError, match="no forward-mode derivatives"):
        jax.hessian(program.emulate(loss, "tf32"))(weights)
    inside = program.emulate(lambda w, t: jax.jvp(loss, (w,), (t,)), "tf32")
    value, tangent = inside(weights, weights)
    assert value == tangent


def test_placed_results_are_an_error_that_says_so():
    mesh = jax.make_mesh((1,), ("i",))

    def f(x):
        return jnp.einsum("ij,jk->ik", x, x, out_sharding=PartitionSpec("i", None))

    with jax.set_mesh(mesh), pytest.raises(NotImplementedError, match="out_sharding"):
        program.emulate(f, "tf32")(jnp.ones((2, 2)))


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_gradient_of_an_emulated_model_is_the_emulated_gradient(name, model, batch, same):
    state, loss = model(name)
    outside = jax.jit(jax.value_and_grad(program.emulate(loss, "tf32")))(state, batch)
    assert same(outside, jax.jit(program.emulate(jax.value_and_grad(loss), "tf32"))(state, batch))


def test_a_body_is_rewritten_once(weights, inputs):
    layer = jax.jit(lambda w, x: jnp.tanh(x @ w))
    f = program.emulate(lambda w, x: layer(w, layer(w, layer(w, x))), "tf32")
    equations = jax.make_jaxpr(f)(weights, inputs).eqns
    (body,) = {id(e.params["jaxpr"]) for e in _named(equations, "jit", "<lambda>")}
    assert body


def _named(equations, primitive, name):
    for equation in equations:
        if equation.primitive.name == primitive and equation.params["name"] == name:
            yield equation
        for value in equation.params.values():
            yield from _named(getattr(value, "eqns", ()), primitive, name)
