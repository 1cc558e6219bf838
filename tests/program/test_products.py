"""The list of a function's products."""

import functools
import inspect
import warnings

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

from jprec import program


def line_after(mark):
    """The place of the line in this file that ends with the comment `mark`."""
    for number, line in enumerate(inspect.getsource(inspect.getmodule(line_after)).splitlines(), 1):
        if line.endswith(f"# {mark}"):
            return f"{__file__}:{number}"
    raise AssertionError(mark)


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs, precision="high")

    def __call__(self, x):
        with jax.named_scope("features"):
            x = self.conv(x)  # convolution
        return self.head(x.mean((1, 2)).astype(jnp.bfloat16))  # dense


def test_products_of_a_training_step_say_what_and_where():
    graph, state = nnx.split(Net())

    def loss(state, x):
        return nnx.merge(graph, state)(x).sum()

    x = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32)
    forward, dense, *backward = program.products(jax.value_and_grad(loss), state, x)

    assert forward.kind == "conv_general_dilated"
    assert (forward.phase, forward.trips, forward.precision) == ("forward", 1, None)
    assert forward.operand_shapes == ((2, 8, 8, 1), (3, 3, 1, 4))
    assert forward.result_shape == (2, 8, 8, 4)
    assert "features" in forward.scope
    assert forward.source == line_after("convolution")

    assert dense.kind == "dot_general"
    assert dense.operand_dtypes == ("float32", "float32")  # promoted by the layer
    assert dense.precision == "HIGH"
    assert dense.source == line_after("dense")

    assert {p.phase for p in backward} == {"backward"}
    assert [p.kind for p in backward] == ["dot_general", "dot_general", "conv_general_dilated"]
    assert all("transpose(" in p.scope for p in backward)


def test_trips_multiply_and_are_unknown_in_while_loops(weights, inputs):
    def f(w, x):
        def inner(x):
            return lax.scan(lambda c, _: (c @ w, None), x, None, length=3)[0]

        x = lax.scan(lambda c, _: (inner(c), None), x, None, length=5)[0]
        x = lax.cond(x[0, 0] > 0, lambda x: x @ w, lambda x: x, x)
        return lax.while_loop(lambda x: x[0, 0] < 0, lambda x: inner(x), x)

    assert [p.trips for p in program.products(f, weights, inputs)] == [15, 1, None]


def test_precision_is_named(weights):
    levels = (lax.Precision.HIGH, lax.Precision.DEFAULT)

    def f(w):
        w = jnp.matmul(w, w, precision="highest")
        w = jnp.matmul(w, w, precision=levels)
        return jnp.matmul(w, w, precision="BF16_BF16_F32")

    found = [p.precision for p in program.products(f, weights)]
    assert found == ["HIGHEST", "HIGH, DEFAULT", "BF16_BF16_F32"]


def test_hidden_bodies_are_seen(weights, inputs):
    def step(f, start):
        return start - f(start)

    def root(w, x):
        return lax.custom_root(lambda v: v @ w - 1, x, step, lambda g, y: y)

    assert len(program.products(root, weights, inputs)) == 1


def test_products_of_an_emulated_function_keep_their_source(weights, inputs):
    def loss(w, x):
        return (x @ w).sum()  # emulated

    found = program.products(jax.grad(program.emulate(loss, "tf32")), weights, inputs)
    assert [p.source for p in found] == [line_after("emulated")] * 2
    assert [p.phase for p in found] == ["forward", "backward"]


def test_kernels_show_nothing_and_raise_nothing(weights):
    shape = jax.ShapeDtypeStruct(weights.shape, weights.dtype)

    def f(w):
        return jax.pure_callback(lambda a: a @ a, shape, w)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert program.products(f, weights) == ()


def test_description_is_frozen(weights):
    (found,) = program.products(lambda w: w @ w, weights)
    with pytest.raises(AttributeError):
        found.phase = "backward"


def test_operations_are_counted_as_by_hand():
    def count(fn, *shapes):
        return [p.flops for p in program.products(fn, *(jnp.ones(shape) for shape in shapes))]

    assert count(lambda a, b: a @ b, (3, 4), (4, 5)) == [2 * 3 * 4 * 5]
    assert count(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (7, 3, 4), (7, 4, 5)) == [840]
    layout = ("NHWC", "HWIO", "NHWC")

    def convolve(x, k, **how):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=layout, **how)

    assert count(convolve, (2, 8, 8, 4), (3, 3, 4, 6)) == [2 * (2 * 8 * 8 * 6) * (3 * 3 * 4)]
    depthwise = functools.partial(convolve, feature_group_count=4)
    assert count(depthwise, (2, 8, 8, 4), (3, 3, 1, 4)) == [2 * (2 * 8 * 8 * 4) * (3 * 3)]
    ragged = lambda x, w: jax.lax.ragged_dot(x, w, jnp.array([2, 4]))
    assert count(ragged, (6, 3), (2, 3, 5)) == [2 * 6 * 3 * 5]
