"""The products that are found, counted against the lowered program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas
from jax.extend import core
from jax.interpreters import mlir
from jax.sharding import AxisType, PartitionSpec

from jprec import program


def shared(w, x):
    inner = jax.jit(lambda x: jnp.sin(x @ w) @ w)
    return inner(inner(inner(x))) + inner(x)


def loops(w, x):
    x = lax.scan(lambda c, _: (c @ w, None), x, None, length=5)[0]
    x = lax.fori_loop(0, x.shape[0], lambda _, c: c @ w, x)
    x = lax.while_loop(lambda c: (c @ w)[0, 0] < 0, lambda c: c @ w @ w, x)
    return lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: x @ w @ w, x)


def unrolled(w, x):
    for unroll in (1, 2, 3, 7, 9, True):
        x = lax.scan(lambda c, _: (c @ w, None), x, None, length=7, unroll=unroll)[0]
    return x


def convolution(w, x):
    layout = ("NHWC", "HWIO", "NHWC")
    kernel = jnp.broadcast_to(w[:3, :3, None, None], (3, 3, 1, 4))
    image = jnp.broadcast_to(x[None, :, :, None], (2, 4, 8, 4))
    image = lax.conv_general_dilated(
        image, kernel, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=4
    )
    return lax.conv_general_dilated(
        image, jnp.ones((2, 2, 4, 3)), (2, 2), "SAME", dimension_numbers=layout
    )


def ragged(w, x):
    return lax.ragged_dot(x, jnp.stack([w, w]), jnp.array([1, 3])) @ w


def root(w, x):
    def step(f, start):
        return start - f(start)

    return lax.custom_root(lambda v: v @ w - 1, x, step, lambda g, y: y)


def linear_algebra(w, x):
    w = w @ w.T + jnp.eye(8)
    return jnp.linalg.solve(w, x.T) + jnp.linalg.inv(w)[:, :4] + jnp.linalg.cholesky(w)[:, :4]


def custom(w, x):
    @jax.custom_vjp
    def f(x, w):
        return x @ w

    f.defvjp(lambda x, w: (f(x, w), (x, w)), lambda saved, g: (g @ saved[1].T, saved[0].T @ g))
    return jax.nn.relu(f(x, w))


def composite(w, x):
    return lax.composite(lambda w, x: jax.nn.relu(x @ w), name="jprec.test")(w, x)


def checkpoint(w, x):
    return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x @ w) @ w))(x)


def sharded(w, x):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec
    return jax.shard_map(
        lambda w, x: x @ w, mesh=mesh, in_specs=(spec(), spec("i")), out_specs=spec("i")
    )(w, x)


def low(w, x):
    w, x = w.astype(jnp.bfloat16), x.astype(jnp.bfloat16)
    return jnp.matmul(x, w, precision="BF16_BF16_F32", preferred_element_type=jnp.float32)


def mapped(w, x):
    return jax.vmap(lambda row: lax.cond(row[0] > 0, lambda r: r @ w, lambda r: r, row))(x)


DIFFERENTIABLE = (shared, unrolled, convolution, ragged, root, linear_algebra, custom)
DIFFERENTIABLE += (checkpoint, sharded, low, mapped)
CASES = {f.__name__: f for f in (*DIFFERENTIABLE, loops, composite)}
CASES |= {
    f"gradient of {f.__name__}": jax.grad(
        lambda w, x, f=f: jnp.sum(f(w, x).astype(jnp.float32) ** 2), (0, 1)
    )
    for f in DIFFERENTIABLE
}


@pytest.mark.parametrize("fn", CASES.values(), ids=CASES)
def test_every_lowered_product_is_found(fn, weights, inputs):
    check = program.check_products(fn, weights, inputs)
    assert check.agrees, check
    assert not check.opaque
    assert check.found > 0


def test_nothing_is_found_that_is_not_lowered_except_what_nothing_depends_on(weights, inputs):
    for fn in (shared, loops, unrolled, convolution, custom, composite, sharded):
        check = program.check_products(fn, weights, inputs)
        assert not check.unused, check
        assert check.found == check.lowered

    # Nobody asks for the loss, so its last product is not computed.
    check = program.check_products(jax.grad(lambda w: jnp.sum(w @ w)), weights)
    assert check.agrees
    assert check.unused == ("dot (8, 8) x (8, 8)",)
    assert (check.found, check.lowered) == (3, 2)


def test_shared_functions_count_for_each_call(weights, inputs):
    check = program.check_products(shared, weights, inputs)
    assert (check.found, check.lowered) == (8, 8)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_on_platforms_that_are_not_here(platform, weights, inputs):
    for fn in (shared, ragged, linear_algebra):
        check = program.check_products(fn, weights, inputs, platform=platform)
        assert check.agrees, (fn, check)


secret = core.Primitive("secret")
secret.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
mlir.register_lowering(secret, mlir.lower_fun(lambda x: x @ x, multiple_results=False))


def test_a_product_that_only_lowering_shows_is_hidden(weights):
    def f(w):
        return jax.jit(secret.bind)(w) @ w[:, :2]

    check = program.check_products(f, weights)
    assert not check.agrees
    assert check.hidden == ("dot (8, 8) x (8, 8)",)
    assert (check.found, check.lowered) == (1, 2)
    assert str(check).splitlines() == [
        "1 products found, 2 in the lowered program",
        "hidden: dot (8, 8) x (8, 8)",
    ]


def test_a_kernel_is_named_beside_what_it_hides(weights):
    def multiply(source, target):
        target[...] = source[...] @ source[...]

    def f(w):
        shape = jax.ShapeDtypeStruct(w.shape, w.dtype)
        return pallas.pallas_call(multiply, out_shape=shape, interpret=True)(w)

    check = program.check_products(f, weights)
    assert not check.agrees
    (name,) = check.opaque
    assert name.startswith(f"pallas_call at {__file__}:")


def test_a_callback_is_named_and_in_neither_count(weights):
    def f(w):
        shape = jax.ShapeDtypeStruct(w.shape, w.dtype)
        return jax.pure_callback(np.matmul, shape, w, w)

    check = program.check_products(f, weights)
    assert (check.found, check.lowered, check.agrees) == (0, 0, True)
    assert check.opaque[0].startswith("pure_callback at ")
