"""Products inside whatever can hold a program, against functions with the rounding written in."""

import warnings

import chex
import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from jprec import program


def round_to_tf32(x):
    """To nearest, ties away, by adding half of the last bit that TF32 keeps."""
    bits = lax.bitcast_convert_type(x, jnp.uint32) + jnp.uint32(1 << 12)
    return lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFE000), jnp.float32)


def plain(a, b):
    return jnp.matmul(a, b)


def by_hand(a, b):
    return jnp.matmul(round_to_tf32(a), round_to_tf32(b), precision=lax.Precision.HIGHEST)


def scan(dot):
    def f(w, x):
        def step(carry, t):
            return (jnp.tanh(dot(carry, w)) + t, carry.sum())

        return lax.scan(step, x, jnp.arange(3.0))[0]

    return f


def while_loop(dot):
    def f(w, x):
        def step(state):
            return (state[0] + 1, jnp.tanh(dot(state[1], w)))

        return lax.while_loop(lambda state: state[0] < 3, step, (0, x))[1]

    return f


def while_condition(dot):
    def f(w, x):
        def unequal():
            return dot(jnp.full((1, 1), 1.0001), jnp.ones((1, 1)))[0, 0] != 1.0

        return lax.while_loop(lambda n: (n < 3) & unequal(), lambda n: n + 1, 0)

    return f


def conditional(dot):
    def f(w, x):
        return lax.cond(x.sum() > -100, lambda x: dot(x, w), lambda x: x, x)

    return f


def switch(dot):
    def f(w, x):
        branches = [lambda x: x, lambda x: 2 * x, lambda x: dot(x, w)]
        return lax.switch(jnp.int32(x.sum() > -100) * 2, branches, x)

    return f


def nested_jit(dot):
    def f(w, x):
        inner = jax.jit(lambda x: dot(x, w) * x + jnp.sin(x))
        return jax.jit(lambda x: inner(x) + dot(inner(inner(x)), w))(x)

    return f


def checkpoint(dot):
    def f(w, x):
        return jax.checkpoint(lambda x: jnp.sin(dot(jnp.sin(dot(x, w)), w)))(x)

    return f


def checkpoint_with_policy(dot):
    def f(w, x):
        def block(x):
            return jnp.sin(dot(jnp.sin(dot(x, w)), w))

        return jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)(x)

    return f


def scan_of_checkpoint(dot):
    def f(w, x):
        step = jax.checkpoint(lambda carry, _: (jnp.tanh(dot(carry, w)), None))
        return lax.scan(step, x, None, length=3)[0]

    return f


def custom_vjp(dot):
    @jax.custom_vjp
    def g(x, w):
        return jnp.sin(dot(x, w))

    def backward(saved, cotangent):
        x, w = saved
        inner = cotangent * jnp.cos(dot(x, w))
        return dot(inner, w.T), dot(x.T, inner)

    g.defvjp(lambda x, w: (g(x, w), (x, w)), backward)
    return lambda w, x: g(x, w)


def custom_jvp(dot):
    @jax.custom_jvp
    def g(x, w):
        return jnp.sin(dot(x, w))

    @g.defjvp
    def _(primals, tangents):
        (x, w), (dx, dw) = primals, tangents
        return g(x, w), dot(dx, w) + dot(x, dw)

    return lambda w, x: g(x, w)


def custom_root(dot):
    def f(w, x):
        def step(g, start):
            return lax.fori_loop(0, 2, lambda _, v: v - 0.1 * g(v), start)

        return lax.custom_root(lambda v: dot(v, w) - 1, x, step, lambda g, y: y * 0.5)

    return f


def linear_solve(dot):
    def f(w, x):
        def solve(apply, b):
            return lax.fori_loop(0, 3, lambda _, v: v + 0.1 * (b - apply(v)), 0 * b)

        symmetric = w + w.T
        return lax.custom_linear_solve(lambda v: dot(symmetric, v), x[0], solve, symmetric=True)

    return f


def composite(dot):
    return lambda w, x: lax.composite(lambda x, w: dot(x, w), name="jprec.test")(x, w)


def sharded(dot):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec

    def f(w, x):
        def step(carry, t):
            return (jnp.tanh(dot(carry, w)) + t, None)

        return lax.psum(lax.scan(step, x, jnp.arange(2.0))[0], "i")

    return jax.shard_map(f, mesh=mesh, in_specs=(spec(), spec("i")), out_specs=spec())


def mapped(dot):
    return lambda w, x: jax.vmap(lambda row: dot(row[None], w)[0])(x)


DIFFERENTIABLE = {
    f.__name__: f
    for f in (
        scan,
        conditional,
        nested_jit,
        checkpoint_with_policy,
        scan_of_checkpoint,
        custom_vjp,
        custom_jvp,
        custom_root,
        linear_solve,
        sharded,
    )
}
#: JAX differentiates neither of these, or in the same way as one of the above.
OTHERS = {
    f.__name__: f for f in (while_loop, while_condition, switch, checkpoint, composite, mapped)
}
ALL = DIFFERENTIABLE | OTHERS


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_products_inside_are_those_written_by_hand(make, same, weights, inputs):
    emulated = jax.jit(program.emulate(make(plain), "tf32"))(weights, inputs)
    assert same(emulated, jax.jit(make(by_hand))(weights, inputs))


def test_rounding_by_hand_changes_the_result(same, weights, inputs):
    for make in (nested_jit, while_condition):
        assert not same(make(by_hand)(weights, inputs), make(plain)(weights, inputs))


@pytest.mark.parametrize("spec", ["tf32", "product=fp8_e4m3"])
@pytest.mark.parametrize("make", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE)
def test_gradient_of_emulated_is_emulated_gradient(make, spec, same, weights, inputs):
    def loss(w, x):
        return jnp.sum(make(plain)(w, x) ** 2)

    outside = jax.value_and_grad(program.emulate(loss, spec), (0, 1))
    inside = program.emulate(jax.value_and_grad(loss, (0, 1)), spec)
    assert same(jax.jit(outside)(weights, inputs), jax.jit(inside)(weights, inputs))


def test_second_derivatives_agree(same, weights, inputs):
    def loss(w, x):
        return jnp.sum(custom_vjp(plain)(w, x) ** 2)

    def twice(grad):
        return jax.grad(lambda w, x: jnp.sum(grad(w, x) ** 2))

    outside = twice(jax.grad(program.emulate(loss, "tf32")))
    inside = program.emulate(twice(jax.grad(loss)), "tf32")
    assert same(jax.jit(outside)(weights, inputs), jax.jit(inside)(weights, inputs))


def test_equation_by_equation_gives_the_emulation_as_well(same, weights, inputs):
    got = program.emulate(scan(plain), "tf32")(weights, inputs)
    assert same(got, scan(by_hand)(weights, inputs))


def test_constants_inside_bodies_are_kept(same, weights, inputs):
    table = jax.device_get(weights)  # a NumPy array, which becomes a constant of each body

    def loss(x):
        x = jax.jit(lambda x: x @ table)(x)
        x = lax.scan(lambda h, _: (jnp.tanh(h @ table), None), x, None, length=2)[0]
        x = jax.checkpoint(lambda h: jnp.tanh(jnp.tanh(h @ table) @ table))(x)
        return lax.cond(x.sum() > -100, lambda x: x @ table, lambda x: x, x).sum()

    outside = jax.jit(jax.grad(program.emulate(loss, "tf32")))(inputs)
    assert same(outside, jax.jit(program.emulate(jax.grad(loss), "tf32"))(inputs))


def test_loops_stay_loops_and_recomputation_stays(weights, inputs):
    def loss(w, x):
        return jnp.sum(scan_of_checkpoint(plain)(w, x))

    emulated = jax.grad(program.emulate(loss, "tf32"))
    found = program.products(emulated, weights, inputs)
    assert [p.trips for p in found] == [3] * len(found)
    assert [p.phase for p in found] == ["forward", "recomputed", "backward", "backward"]


def test_collectives_over_a_mapped_axis_outside_are_kept(same, weights, inputs):
    def loss(w, row):
        def step(carry, _):
            return (lax.psum(jnp.tanh(carry @ w), "batch"), None)

        return lax.pmean(lax.scan(step, row, None, length=2)[0], "batch").sum()

    def mapped(f):
        return jax.jit(jax.vmap(f, (None, 0), axis_name="batch"))

    outside = mapped(jax.grad(program.emulate(loss, "tf32")))(weights, inputs)
    assert same(outside, mapped(program.emulate(jax.grad(loss), "tf32"))(weights, inputs))


def test_ragged_products_are_emulated():
    keys = jax.random.split(jax.random.key(0), 2)
    lhs, rhs = jax.random.normal(keys[0], (6, 4)), jax.random.normal(keys[1], (3, 4, 5))
    sizes = jnp.array([1, 3, 1])  # the last row is in no group

    def dot(lhs, rhs):
        return jnp.sum(lax.ragged_dot(lhs, rhs, sizes) ** 2)

    both = jax.value_and_grad(dot, (0, 1))

    full = jax.jit(program.emulate(both, "fp32"))(lhs, rhs)
    # The compiler is free to add up in another order, and does on some processors.
    chex.assert_trees_all_close(full, jax.jit(both)(lhs, rhs), rtol=1e-5, atol=1e-5)

    got = jax.jit(program.emulate(dot, "tf32"))(lhs, rhs)
    rounded = jax.jit(dot)(round_to_tf32(lhs), round_to_tf32(rhs))
    assert abs(got - rounded) < 1e-5 * rounded < abs(got - full[0])


def test_what_cannot_be_seen_is_named(weights):
    def f(w):
        shape = jax.ShapeDtypeStruct(w.shape, w.dtype)
        return jax.jit(lambda w: jax.pure_callback(lambda a: a @ a, shape, w))(w) @ w

    with pytest.warns(UserWarning, match=r"pure_callback at \S*test_control_flow.py:\d+"):
        program.emulate(f, "tf32")(weights)


def test_callbacks_that_cannot_multiply_are_not_named(weights):
    def f(w):
        jax.debug.print("{}", w.sum() > 1e9)
        return w @ w

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(jax.grad(lambda w: program.emulate(f, "tf32")(w).sum()))(weights)
