"""The list of a function's operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import custom_partitioning, io_callback, pallas
from jax.sharding import AxisType, PartitionSpec

from jprec import program


def primitives(fn, *args):
    return [operation.primitive for operation in program.operations(fn, *args)]


def pure_callback(w):
    return jax.pure_callback(np.negative, jax.ShapeDtypeStruct(w.shape, w.dtype), w)


def ordered_callback(w):
    return io_callback(np.negative, jax.ShapeDtypeStruct(w.shape, w.dtype), w)


def report(w):
    jax.debug.print("{}", w)
    return w


def kernel(w):
    def double(source, target):
        target[...] = 2 * source[...]

    shape = jax.ShapeDtypeStruct(w.shape, w.dtype)
    return pallas.pallas_call(double, out_shape=shape, interpret=True)(w)


def foreign(w):
    return jax.ffi.ffi_call("jprec_test", jax.ShapeDtypeStruct(w.shape, w.dtype))(w)


def exported(w):
    return jax.export.export(jax.jit(lambda w: w @ w))(w).call(w)


@custom_partitioning.custom_partitioning
def partitioned(w):
    return w @ w


partitioned.def_partition(partition=lambda mesh, *rest: None, sharding_rule="i j -> i j")

OPAQUE = {
    "pure_callback": pure_callback,
    "io_callback": ordered_callback,
    "pallas_call": kernel,
    "ffi_call": foreign,
    "call_exported": exported,
    "custom_partitioning": partitioned,
}


@pytest.mark.parametrize("name", OPAQUE)
def test_what_does_not_show_its_inside_is_named(name, weights):
    @jax.jit
    def f(w):
        return lax.scan(lambda w, _: (OPAQUE[name](w), None), w, None, length=2)[0] + 1

    hidden, add = program.operations(f, weights)
    assert (hidden.primitive, hidden.opaque, hidden.trips) == (name, True, 2)
    assert hidden.source.startswith(__file__)
    assert hidden.operand_shapes == hidden.result_shapes == ((8, 8),)
    assert (add.primitive, add.opaque, add.trips) == ("add", False, 1)


def test_calls_that_give_nothing_back_are_named(weights):
    # A newer JAX prints by another operation.
    (found,) = program.operations(report, weights)
    assert found.primitive.startswith("debug_")
    assert found.opaque
    assert found.result_dtypes == ()


def test_an_operation_says_what_it_takes_and_gives(weights):
    def f(w):
        with jax.named_scope("outer"):
            return jax.jit(lambda w: jnp.exp(w.astype(jnp.bfloat16)))(w)

    cast, exp = program.operations(f, weights)
    assert (cast.primitive, cast.operand_dtypes) == ("convert_element_type", ("float32",))
    assert (exp.operand_dtypes, exp.result_dtypes) == (("bfloat16",), ("bfloat16",))
    assert exp.result_shapes == ((8, 8),)
    assert exp.scope == "outer"
    assert exp.phase == "forward"


@jax.custom_vjp
def twice(x):
    return 2 * x


twice.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


@jax.custom_jvp
def sine(x):
    return jnp.sin(x)


sine.defjvp(lambda primals, tangents: (sine(*primals), jnp.cos(primals[0]) * tangents[0]))


def sharded(x):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("i")
    return jax.shard_map(jnp.tan, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def rooted(x):
    def solve(f, start):
        return start - f(start)

    return lax.custom_root(lambda v: jnp.tan(v) - x, x, solve, lambda g, y: y)


def solved(x):
    return lax.custom_linear_solve(lambda v: 3 * v, x, lambda _, b: jnp.tan(b), symmetric=True)


#: A function, and an operation that is found only by going into it.
HOLDERS = {
    "jit": (lambda x: jax.jit(jnp.tan)(x), "tan"),
    "scan": (lambda x: lax.scan(lambda c, _: (jnp.tan(c), None), x, None, length=2)[0], "tan"),
    "while": (lambda x: lax.while_loop(lambda c: c[0] < 0, jnp.tan, x), "tan"),
    "while condition": (lambda x: lax.while_loop(lambda c: jnp.tan(c[0]) < 0, jnp.sin, x), "tan"),
    "cond": (lambda x: lax.cond(x[0] < 0, jnp.tan, jnp.sin, x), "tan"),
    "checkpoint": (lambda x: jax.checkpoint(jnp.tan)(x), "tan"),
    "custom_vjp": (twice, "mul"),
    "custom_jvp": (sine, "sin"),
    "gradient of custom_vjp": (jax.grad(lambda x: twice(x).sum()), "mul"),
    "gradient of custom_jvp": (jax.grad(lambda x: sine(x).sum()), "cos"),
    "shard_map": (sharded, "tan"),
    "custom_root": (rooted, "tan"),
    "custom_linear_solve": (solved, "tan"),
    "vmap": (jax.vmap(jnp.tan), "tan"),
    "scalars": (lambda x: jax.jit(jnp.tan)(x[0]), "tan"),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_what_runs_a_program_is_entered(name):
    fn, wanted = HOLDERS[name]
    found = primitives(fn, jnp.ones(3))
    assert wanted in found
    programs = {"jit", "pjit", "scan", "while", "cond", "checkpoint", "remat2", "shard_map"}
    assert not programs & set(found)
    assert not any(name.startswith(("custom_", "call_hi")) for name in found)


def test_how_elements_combine_is_part_of_the_operation():
    def f(x):
        x = x.at[jnp.array([0, 1])].add(1.0)
        return lax.reduce(x, 0.0, lambda a, b: a + jnp.sin(b), (0,))

    found = primitives(f, jnp.ones(3))
    assert "sin" not in found
    assert found[-1] == "reduce"
    assert any(name.startswith("scatter") for name in found)


def test_products_are_operations_with_their_place(weights, inputs):
    def f(w, x):
        step = jax.checkpoint(lambda x, _: (jnp.tanh(x @ w), None))
        return lax.scan(step, x, None, length=3)[0].sum()

    products = program.products(jax.grad(f), weights, inputs)
    found = program.operations(jax.grad(f), weights, inputs)
    found = [operation for operation in found if operation.primitive == "dot_general"]
    for product, operation in zip(products, found, strict=True):
        for name in ("phase", "scope", "source", "trips", "operand_dtypes", "operand_shapes"):
            assert getattr(product, name) == getattr(operation, name)
        assert (product.result_dtype,) == operation.result_dtypes
        assert (product.result_shape,) == operation.result_shapes


def test_random_keys_have_a_dtype():
    key = jax.random.key(0)
    found = program.operations(lambda key: jax.random.normal(key, (2,)), key)
    assert any("key<" in dtype for operation in found for dtype in operation.operand_dtypes)
