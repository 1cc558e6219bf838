"""A function beside its FP64 shadow, against the same function written in NumPy's FP64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jprec import program


def wide(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def close(shadow, want):
    assert np.asarray(shadow).dtype == np.float64
    np.testing.assert_allclose(shadow, want, rtol=1e-13, atol=1e-14)


def test_the_shadow_is_the_function_in_fp64(weights, inputs):
    def f(w, x):
        return jnp.tanh(x @ w) @ w

    result = program.shadow(f)(weights, inputs)
    w, x = wide(weights, inputs)
    close(result.shadow_outputs, np.tanh(x @ w) @ w)
    assert result.outputs.dtype == jnp.float32
    np.testing.assert_allclose(result.outputs, f(weights, inputs), rtol=1e-5, atol=1e-6)
    assert [e.primitive for e in result.errors] == ["dot_general", "tanh", "dot_general"]
    assert all(0 < e.made < 1e-6 for e in result.errors)
    assert not jax.config.jax_enable_x64


def test_casts_presets_and_16_bits_do_nothing_in_the_shadow(weights, inputs):
    def f(w, x):
        y = x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)  # 16 bits
        y = jnp.matmul(y.astype(jnp.float32), w, precision="BF16_BF16_F32")
        y = lax.reduce_precision(y, 8, 3)
        y = lax.dot(y, w, preferred_element_type=jnp.float32)
        return y.astype(jnp.float16) + jnp.arange(8, dtype=jnp.float16)

    result = program.shadow(f)(weights, inputs)
    w, x = wide(weights, inputs)
    close(result.shadow_outputs, x @ w @ w @ w + np.arange(8))
    assert result.outputs.dtype == jnp.float16
    by_name = {error.primitive: error for error in result.errors}
    assert by_name["reduce_precision"].made > 0.01


def test_the_error_is_where_it_enters(weights, inputs):
    def f(w, x):
        with jax.named_scope("first"):
            x = jnp.tanh(x @ w)
        with jax.named_scope("rounded"):
            x = x.astype(jnp.bfloat16).astype(jnp.float32)
        with jax.named_scope("last"):
            return jnp.sin(x @ w)

    errors = program.shadow(f)(weights, inputs).errors
    worst = max(errors, key=lambda error: error.made)
    assert (worst.scope, worst.primitive) == ("rounded", "convert_element_type")
    assert worst.source.startswith(f"{__file__}:")
    assert 2**-10 < worst.made <= 2**-8
    before = [e.total for e in errors if e.scope == "first"]
    after = [e.total for e in errors if e.scope == "last"]
    assert max(before) < 1e-6 < 1e-4 < min(after)


def test_cancellation_makes_no_error_and_shows_the_one_before():
    def f(x):
        return (x + 1.0) - 1.0

    result = program.shadow(f)(jnp.float32(1e-4))
    close(result.shadow_outputs, (np.float64(np.float32(1e-4)) + 1.0) - 1.0)
    (error,) = result.errors
    assert error.primitive == "add"
    assert result.outputs == np.float32(np.float32(1e-4) + np.float32(1.0)) - np.float32(1.0)


def test_products_of_another_arithmetic(weights, inputs):
    def f(w, x):
        return jnp.tanh(x @ w) @ w

    result = program.shadow(f, "tf32")(weights, inputs)
    w, x = wide(weights, inputs)
    close(result.shadow_outputs, np.tanh(x @ w) @ w)
    np.testing.assert_array_equal(result.outputs, program.emulate(f, "tf32")(weights, inputs))
    products = [e for e in result.errors if e.primitive == "dot_general"]
    assert all(2**-14 < e.made < 2**-10 for e in products)


def scan(w, x):
    def turn(c, t):
        return jnp.tanh(c @ w) + t, c.sum()

    return lax.scan(turn, x, jnp.arange(3.0))


def scan_in_numpy(w, x):
    sums = []
    for t in range(3):
        sums.append(x.sum())
        x = np.tanh(x @ w) + t
    return x, np.array(sums)


def loop(w, x):
    return lax.while_loop(
        lambda s: (s[0] < 3) & (jnp.sin(s[1][0, 0]) < 2), lambda s: (s[0] + 1, s[1] @ w), (0, x)
    )[1]


def branches(w, x):
    x = lax.cond(x.sum() > -1e9, lambda x: x @ w, lambda x: x + 1, x)
    return lax.switch(7, [jnp.sin, jnp.cos, lambda x: x @ w], x)


def branches_in_a_loop(w, x):
    def turn(c, t):
        return lax.cond(t == 1, lambda c: c @ w, lambda c: c * 0.5, c), None

    return lax.scan(turn, x, jnp.arange(3))[0]


@jax.custom_jvp
def squash(x):
    return jnp.tanh(x)


squash.defjvp(lambda primals, tangents: (squash(*primals), tangents[0]))


@jax.custom_vjp
def double(x):
    return 2 * x


double.defvjp(lambda x: (2 * x, None), lambda _, g: (3 * g,))


def nested(w, x):
    return jax.checkpoint(jax.jit(lambda x: double(squash(x @ w))))(x)


def root(w, x):
    def step(f, start):
        return lax.fori_loop(0, 3, lambda _, v: v - 0.1 * f(v), start)

    return lax.custom_root(lambda v: v @ w - 1, x, step, lambda g, y: y)


def root_in_numpy(w, x):
    for _ in range(3):
        x = x - np.float64(np.float32(0.1)) * (x @ w - 1)
    return x


def scatter(w, x):
    x = x.at[jnp.array([0, 0, 1])].add(w[:3]).at[2].set(w[0]).at[3].max(w[1])
    return lax.reduce(x, jnp.float32(0), lax.add, (0,))


def scatter_in_numpy(w, x):
    x = x.copy()
    np.add.at(x, [0, 0, 1], w[:3])
    x[2], x[3] = w[0], np.maximum(x[3], w[1])
    return x.sum(0)


HOLDERS = {
    "scan": (scan, scan_in_numpy),
    "while": (loop, lambda w, x: x @ w @ w @ w),
    "cond": (branches, lambda w, x: x @ w @ w),
    "cond in scan": (branches_in_a_loop, lambda w, x: 0.5 * ((0.5 * x) @ w)),
    "jit, checkpoint, custom derivatives": (nested, lambda w, x: 2 * np.tanh(x @ w)),
    "custom_root": (root, root_in_numpy),
    "linear solve": (lambda w, x: jnp.linalg.solve(w, x.T), lambda w, x: np.linalg.solve(w, x.T)),
    "scatter and reduce": (scatter, scatter_in_numpy),
    "vmap": (
        lambda w, x: jax.vmap(lambda row: row @ w + jnp.max(row))(x),
        lambda w, x: x @ w + x.max(1, keepdims=True),
    ),
    "complex": (
        lambda w, x: jnp.abs(jnp.exp(1j * (x @ w)) + 1),
        lambda w, x: abs(np.exp(1j * (x @ w)) + 1),
    ),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_through_whatever_runs_a_program(name, weights, inputs):
    fn, in_numpy = HOLDERS[name]
    result = program.shadow(fn)(weights, inputs)
    want = in_numpy(*wide(weights, inputs))
    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-13),
        result.shadow_outputs,
        want,
    )
    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4),
        result.outputs,
        want,
    )
    assert all(0 <= error.made < 1e-5 for error in result.errors)


def test_of_a_loop_the_largest_error_is_given_and_branches_not_taken_have_none(weights, inputs):
    errors = program.shadow(scan)(weights, inputs).errors
    (product,) = [e for e in errors if e.primitive == "dot_general"]
    assert product.total > product.made  # the errors of earlier turns are in it

    def f(x):
        return lax.scan(
            lambda c, _: (lax.cond(c[0, 0] > 9, jnp.sin, jnp.tanh, c), None), x, None, 2
        )

    names = [error.primitive for error in program.shadow(f)(inputs).errors]
    assert names == ["tanh"]


def test_a_path_is_chosen_by_the_original():
    def f(x):
        third = x / 3
        large = jnp.where(third + 1 > 1, 1.0, 2.0)
        return lax.cond(third + 1 == 1, lambda x: -x, lambda x: x, third), large, third > 0

    # In FP64, 1 + 1e-9 / 3 is more than 1.
    result = program.shadow(f)(jnp.float32(1e-9))
    assert result.outputs[1] == result.shadow_outputs[1] == 2.0
    assert result.shadow_outputs[0] < 0
    assert result.shadow_outputs[2].dtype == bool


def test_gradients_are_shadowed_with_their_phases(weights, inputs):
    def loss(w, x):
        return jnp.sum(jax.nn.relu(x @ w) ** 2)

    result = program.shadow(jax.value_and_grad(loss))(weights, inputs)
    w, x = wide(weights, inputs)
    value, gradient = result.shadow_outputs
    y = np.maximum(x @ w, 0)
    close(value, (y**2).sum())
    close(gradient, x.T @ (2 * y))
    assert {e.phase for e in result.errors if e.primitive == "dot_general"} == {
        "forward",
        "backward",
    }


def test_random_draws_are_the_same():
    def f(key):
        return jax.random.uniform(key, (5,)), jax.random.normal(key, (5,)), key

    result = program.shadow(f)(jax.random.key(0))
    uniform, normal, key = result.shadow_outputs
    np.testing.assert_allclose(uniform, result.outputs[0], rtol=1e-6)
    np.testing.assert_allclose(normal, result.outputs[1], rtol=1e-5)
    assert jnp.all(key == jax.random.key(0))


def test_overflow_is_an_infinite_error():
    (error,) = program.shadow(lambda x: x * x)(jnp.float32(1e30)).errors
    assert (error.made, error.total) == (np.inf, np.inf)
    assert program.shadow(lambda x: jnp.log(x))(jnp.float32(-1.0)).errors == ()  # NaN in both


def test_opaque_operations_are_named_and_the_shadow_goes_on(inputs):
    def f(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return 2 * jax.pure_callback(np.sin, shape, x)

    result = program.shadow(f)(inputs)
    (name,) = result.opaque
    assert name.startswith(f"pure_callback at {__file__}:")
    close(result.shadow_outputs, 2 * np.float64(np.sin(inputs)))


def test_what_cannot_be_shadowed_is_refused_by_name(inputs):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("i")
    sharded = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(NotImplementedError, match=r"shard_map at \S*test_shadow.py:\d+"):
        program.shadow(lambda x: sharded(x) + 1)(inputs)
    with pytest.raises(TypeError, match="inside jit"):
        jax.jit(lambda x: program.shadow(jnp.sin)(x).outputs)(inputs)


@pytest.mark.parametrize(("name", "products"), [("attention", 7), ("convolutions", 2)])
def test_of_a_model_each_product_has_its_error(name, products, model, batch):
    state, loss = model(name)
    result = program.shadow(loss)(state, batch)
    np.testing.assert_allclose(result.outputs, result.shadow_outputs, rtol=1e-5)
    kinds = ("dot_general", "conv_general_dilated")
    found = [e for e in result.errors if e.primitive in kinds]
    assert len(found) == products
    assert all(0 < e.made < 1e-6 and e.total < 1e-5 for e in found)
