import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import rounding

NAMES = ("tf32", "fp16")
X = np.random.default_rng(2).standard_normal((6, 50)).astype(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_jit_vmap_and_op_by_op_give_the_same_bits(name, assert_same_bits):
    rounder = functools.partial(rounding.round_to, fmt=name)
    want = rounder(X)
    assert_same_bits(jax.jit(rounder)(X), want)
    assert_same_bits(jax.vmap(rounder)(X), want)
    assert_same_bits(jax.lax.map(rounder, X), want)
    with jax.disable_jit():
        assert_same_bits(rounder(X), want)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_shape_and_dtype_stay_and_types_are_strong(shape):
    for dtype in ("float32", "bfloat16", "float16"):
        got = rounding.round_to(jnp.zeros(shape, dtype), "e5m2")
        assert (got.shape, got.dtype, got.weak_type) == (shape, dtype, False)
    assert not rounding.round_to(jnp.asarray(1.0), "fp16").weak_type
    assert not rounding.round_to(jnp.asarray(1.0), "fp32").weak_type


@pytest.mark.parametrize("name", ["fp32", *NAMES])
def test_the_derivative_is_straight_through_in_both_directions(name, assert_same_bits):
    rounder = functools.partial(rounding.round_to, fmt=name)
    ones = np.ones_like(X)
    x = X * 1e6  # overflow, too
    value, tangent = jax.jvp(rounder, (x,), (X,))
    assert_same_bits(value, rounder(x))
    assert_same_bits(tangent, X)
    assert_same_bits(jax.grad(lambda x: rounder(x).sum())(x), ones)
    assert_same_bits(jax.jit(jax.vmap(jax.grad(lambda x: rounder(x).sum())))(x), ones)
    (cotangent,) = jax.vjp(rounder, x)[1](X)
    assert_same_bits(cotangent, X)
    assert float(jax.grad(jax.grad(lambda x: rounder(x) ** 3))(jnp.float32(2.0))) == 12.0


@pytest.mark.parametrize(
    ("derivative", "want"),
    [
        ("straight_through", [1, 1, 1, 1, 1, 1, 1]),
        ("clipped", [1, 1, 1, 0, 0, 0, 0]),
        ("zero", [0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_the_derivative_is_the_declared_one(derivative, want, assert_same_bits):
    x = np.float32([0.0, -448.0, 448.0, 448.0001, -1e9, np.inf, np.nan])
    rounder = functools.partial(rounding.round_to, fmt="e4m3fn", derivative=derivative)
    assert_same_bits(rounder(x), rounding.round_to(x, "e4m3fn"))
    want = np.float32(want)
    assert_same_bits(jax.jit(jax.grad(lambda x: rounder(x).sum()))(x), want)
    assert_same_bits(jax.jvp(rounder, (x,), (np.ones_like(x),))[1], want)
    half = jax.grad(lambda x: rounder(x).sum())(jnp.bfloat16(x[:3]))
    assert half.dtype == jnp.bfloat16
    assert half.tolist() == want[:3].tolist()


def test_the_derivative_is_declared_where_nothing_is_rounded_too():
    zero = functools.partial(rounding.round_to, fmt="fp32", derivative="zero")
    assert float(jax.grad(zero)(jnp.float32(1.0))) == 0.0
    without_sign = functools.partial(rounding.round_to, fmt="binary8p3uf", derivative="clipped")
    slopes = jax.grad(lambda x: without_sign(x).sum())(jnp.float32([1.0, 0.0, -0.0, -1.0]))
    assert slopes.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_the_derivative_passes_through_a_random_rounding_in_half_precision():
    def loss(x, key):
        return rounding.round_to(x, "e4m3fn", "stochastic", key=key).astype(jnp.float32).sum()

    for dtype in (jnp.float16, jnp.bfloat16):
        grads = jax.jit(jax.grad(loss))(jnp.ones(3, dtype), jax.random.key(0))
        assert grads.dtype == dtype
        assert grads.tolist() == [1.0] * 3


def test_four_devices_round_as_one():
    """In a process of its own: the number of devices is fixed when JAX starts."""
    program = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jprec import rounding
assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()), ("i",))
x = jax.random.normal(jax.random.key(0), (8, 64))
def rounds(x):
    key = jax.random.key(1)
    plain = rounding.round_to(x, "fp16") + rounding.round_blocks(x, "mxfp4")
    return plain + rounding.round_to(x, "e4m3fn", "stochastic", key=key)
want = rounds(x)
spread = jax.device_put(x, NamedSharding(mesh, P("i")))
got = jax.jit(rounds)(spread)
assert got.sharding.spec == P("i"), got.sharding
assert np.array_equal(got, want)
per_shard = jax.jit(jax.shard_map(
    lambda x: rounding.round_to(x, "fp16") + rounding.round_blocks(x, "nvfp4"),
    mesh=mesh, in_specs=P("i"), out_specs=P("i")))(spread)
assert np.array_equal(per_shard, rounding.round_to(x, "fp16") + rounding.round_blocks(x, "nvfp4"))
slope = jax.jit(jax.grad(lambda x: rounds(x).sum()))(spread)
assert np.array_equal(slope, np.full(x.shape, 3))
"""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_rounding_works_inside_scan_and_remat():
    @jax.jit
    @jax.grad
    def total(w):
        @jax.checkpoint
        def step(carry, _):
            return rounding.round_to(carry * w, "bf16"), None

        return jax.lax.scan(step, jnp.float32(1.0), None, length=3)[0]

    assert float(total(jnp.float32(1.5))) == 3 * 1.5**2


def test_the_traced_program_holds_only_ordinary_operations():
    jaxpr = jax.make_jaxpr(lambda x: rounding.round_to(x, "fp16"))(X)
    seen = set()

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            seen.add(equation.primitive.name)
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(jaxpr.jaxpr)
    assert "custom_jvp_call" in seen
    assert not seen & {"reduce_precision", "custom_vjp_call", "pure_callback", "custom_call"}


@pytest.mark.parametrize(("name", "mode"), [("tf32", "nearest_away"), ("fp16", "nearest_even")])
def test_it_compiles_to_one_kernel_of_integer_operations(name, mode):
    rounder = jax.jit(functools.partial(rounding.round_to, fmt=name, mode=mode))
    text = rounder.lower(X).compile().as_text()
    entry = text[text.index("ENTRY") :]
    assert entry.count(" fusion(") == 1
    assert "reduce-precision" not in text
    for line in text.splitlines():
        # Nothing computes with floats: they come in, and they are reinterpreted.
        if "f32[6,50]" in line.split("=")[-1].split("(")[0] and "=" in line:
            assert any(op in line for op in ("parameter", "bitcast", "fusion")), line
