"""`round_explicitly` against NumPy and ml_dtypes, which round after each operation."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from jprec import formats, program

DTYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def numbers(dtype, size=4096, seed=0, low=-4, high=4):
    """Numbers of both signs with exponents from `low` to `high`."""
    rng = np.random.default_rng(seed)
    values = (
        rng.uniform(1, 2, size) * rng.choice([-1, 1], size) * 2.0 ** rng.integers(low, high, size)
    )
    return values.astype(dtype)


def rounded(f, *args):
    return np.asarray(jax.jit(program.round_explicitly(f))(*map(jnp.asarray, args)))


def assert_same_numbers(got, want):
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@each_dtype
def test_product_used_in_fp32_is_rounded_everywhere(dtype, record_property):
    a, b = numbers(dtype), numbers(dtype, seed=1)

    def f(a, b):
        return (a * b).astype(jnp.float32)

    want = (a * b).astype(np.float32)
    assert_same_numbers(rounded(f, a, b), want)
    # What this backend's compiler makes of the same program is its own affair; it is recorded.
    plain = np.asarray(jax.jit(f)(a, b))
    record_property("share rounded by the compiler", float(np.mean(plain == want)))


def chain(a, b, c, sqrt):
    return sqrt(((a + b) * c - a) / b * (c - b) * ((a + b) * c - a) / b * (c - b)) - c * a


@each_dtype
def test_chain_equals_rounding_after_each_operation(dtype):
    a, b, c = (numbers(dtype, seed=seed, low=-2, high=2) for seed in range(3))
    with np.errstate(all="ignore"):
        want = chain(a, b, c, np.sqrt)
    assert_same_numbers(rounded(lambda a, b, c: chain(a, b, c, jnp.sqrt), a, b, c), want)


def test_fp16_subnormals_are_kept():
    a, b = numbers(np.float16, low=-14, high=-8), numbers(np.float16, seed=1, low=-10, high=-4)
    want = a * b
    tiny = np.abs(want.astype(np.float32))
    assert np.sum((tiny > 0) & (tiny < 2.0**-14)) > 1000
    assert_same_numbers(rounded(lambda a, b: a * b, a, b), want)


@each_dtype
def test_overflow_goes_to_infinity(dtype):
    largest = np.asarray([ml_dtypes.finfo(dtype).max], dtype)
    assert np.isinf(rounded(lambda x: x * 2, largest)).all()
    assert_same_numbers(rounded(lambda x: x * 1, largest), largest)


@each_dtype
def test_conversion_from_fp32_rounds_once(dtype):
    x = numbers(np.float32, seed=5, low=-20, high=12)

    def back(x):
        return x.astype(dtype).astype(jnp.float32)

    assert_same_numbers(rounded(back, x), x.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("integer", ["int8", "int32", "uint32"])
def test_conversion_from_integers_rounds_once(integer):
    info = np.iinfo(integer)
    rng = np.random.default_rng(0)
    # Beside the middle between two values of bfloat16, where a rounding to FP32 first would err.
    middles = [
        (256 + k) * 2**e + 2 ** (e - 1) + d for k in (0, 1) for e in (9, 22) for d in (-1, 1)
    ]
    values = [info.min, info.max, 0, 1, *rng.integers(info.min, info.max, 100).tolist(), *middles]
    x = np.asarray([v for v in values if info.min <= v <= info.max], integer)
    got = rounded(lambda x: x.astype(jnp.bfloat16), x)
    want = [float(formats.round_exact(Fraction(int(v)), "bf16")) for v in x]
    np.testing.assert_array_equal(got.astype(np.float64), want)


def ones_and_threes(dtype, *shape):
    """Small integers, whose sums and products FP32 holds."""
    return np.random.default_rng(0).integers(-9, 10, shape).astype(dtype)


def exact_sums(a, b, dtype):
    """The functions below, computed exactly and rounded once."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    scattered = np.zeros((4, 64))
    np.add.at(scattered, np.arange(16) % 4, a)
    results = {
        "dot": a @ b,
        "sum": a.sum(0),
        "cumulative sum": a.cumsum(1),
        "reduce": (a * a).sum(1),
        "windows": a.reshape(16, 16, 4).sum(2),
        "scatter": scattered,
    }
    return {name: value.astype(dtype) for name, value in results.items()}


def sums(a, b):
    zero = np.zeros((), a.dtype)
    windows = ((1, 4), (1, 4), "VALID")

    # JAX does not recognise this as a sum, and calls it step by step.
    def add(x, y):
        return jnp.where(x == x, x, 0) + y

    return {
        "dot": a @ b,
        "sum": lax.reduce(a, zero, lax.add, (0,)),
        "cumulative sum": jnp.cumsum(a, 1),
        "reduce": lax.reduce(a * a, zero, add, (1,)),
        "windows": lax.reduce_window(a, zero, add, *windows),
        "scatter": jnp.zeros((4, 64), a.dtype).at[jnp.arange(16) % 4].add(a),
    }


@each_dtype
def test_sums_are_fp32_and_rounded_once(dtype):
    a, b = ones_and_threes(dtype, 16, 64), ones_and_threes(dtype, 64, 16)
    got = jax.jit(program.round_explicitly(sums))(a, b)
    for name, want in exact_sums(a, b, dtype).items():
        assert got[name].dtype == dtype, name
        np.testing.assert_array_equal(np.asarray(got[name]), want, err_msg=name)


@each_dtype
def test_convolution_and_pooling_are_rounded_once(dtype):
    x, kernel = ones_and_threes(dtype, 1, 8, 8, 16), ones_and_threes(dtype, 3, 3, 16, 4)

    def f(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=numbers)

    patches = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (1, 2))
    want = np.einsum("nhwcij,ijco->nhwo", patches, kernel.astype(np.float64)).astype(dtype)
    assert_same_numbers(rounded(f, x, kernel), want)


def test_gradient_of_maximum_pooling_sums_in_fp32():
    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (3,), (1,), "VALID")

    x = np.asarray([0, 0, 5, 0, 0], jnp.bfloat16)  # the maximum of each window
    weights = np.asarray([1.0, 2.0**-8, 2.0**-8], jnp.bfloat16)

    def grad(x, w):
        return jax.grad(lambda x: jnp.sum((pool(x) * w).astype(jnp.float32)))(x)

    # Step by step, 1 + 2**-8 + 2**-8 would stay 1 in bfloat16.
    assert rounded(grad, x, weights)[2] == 1.0 + 2.0**-7


def test_control_flow_is_entered():
    a = numbers(ml_dtypes.bfloat16, 64)

    def f(a):
        def step(carry, x):
            carry = lax.cond(x[0] > 0, lambda c: c * x, lambda c: c - x, carry)
            return carry, carry.astype(jnp.float32)

        return lax.scan(jax.checkpoint(step), a, jnp.stack([a, -a, a + a]))[1]

    carry, want = a, []
    for x in (a, -a, a + a):
        carry = carry * x if x[0] > 0 else carry - x
        want.append(carry.astype(np.float32))
    assert_same_numbers(rounded(f, a), np.stack(want))


def test_bits_random_bits_and_data_movement_stay(same):
    x = jnp.asarray(numbers(ml_dtypes.bfloat16, 64))

    def f(x):
        moved = jnp.concatenate([jnp.sort(x)[::-1], -jnp.maximum(x, 0)]).reshape(2, -1).T
        bits = lax.bitcast_convert_type(moved, jnp.uint16) ^ 1
        return lax.bitcast_convert_type(bits, x.dtype), jax.random.bits(jax.random.key(0), (3,))

    assert same(jax.jit(program.round_explicitly(f))(x), jax.jit(f)(x))


def test_nothing_of_16_bits_is_left_to_the_compiler(model, batch):
    state, loss = model("attention", jnp.bfloat16)
    explicit = program.round_explicitly(jax.value_and_grad(loss))
    for product in program.products(explicit, state, batch):
        assert product.operand_dtypes == ("float32", "float32")
        assert (product.result_dtype, product.precision) == ("float32", "HIGHEST")


def test_gradient_of_a_rounded_model_is_the_rounded_gradient(model, batch, same):
    state, loss = model("convolutions", jnp.float16)
    outside = jax.jit(jax.value_and_grad(program.round_explicitly(loss)))(state, batch)
    inside = jax.jit(program.round_explicitly(jax.value_and_grad(loss)))(state, batch)
    assert same(outside, inside)


def test_combines_with_emulate_in_both_orders(model, batch, same):
    state, loss = model("mlp", jnp.bfloat16)
    grad = jax.value_and_grad(loss)

    def result(f):
        return jax.jit(f)(state, batch)

    explicit = program.round_explicitly(grad)
    coarse = result(program.emulate(explicit, "e8m2"))
    assert same(coarse, result(program.round_explicitly(program.emulate(grad, "e8m2"))))
    assert not same(coarse, result(explicit))


def test_forward_mode_outside_is_refused():
    x = jnp.ones(3, jnp.bfloat16)
    with pytest.raises(TypeError, match="no forward-mode derivatives"):
        jax.jvp(program.round_explicitly(lambda x: x * x), (x,), (x,))


def test_callbacks_with_16_bit_results_are_named():
    x = jnp.ones(3, jnp.float16)

    def f(x):
        return jax.pure_callback(lambda x: x * x, jax.ShapeDtypeStruct((3,), x.dtype), x)

    with pytest.warns(UserWarning, match="round_explicitly leaves .* pure_callback"):
        program.round_explicitly(f)(x)


def test_random_numbers_of_16_bits_are_rounded_draws():
    key = jax.random.key(0)

    def draws():
        shape, dtype = (8,), jnp.bfloat16
        normal = jax.random.normal(key, shape, dtype)
        return normal, jax.random.uniform(key, shape, dtype), jnp.linspace(0, 1, 8, dtype=dtype)

    for got in jax.jit(program.round_explicitly(draws))():
        assert got.dtype == jnp.bfloat16
        assert jnp.isfinite(got).all()
