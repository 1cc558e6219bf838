"""Products whose operands are rounded in two ways; backward products with a spec of their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jprec import hardware, matmul, rounding
from jprec.matmul import native
from jprec.matmul.arithmetic import Arithmetic

FORWARD, BACKWARD = "fp8_e4m3", "fp8_e5m2"
DIMS = (((0, 2), (2, 0)), ((), ()))
PLAIN = (((1,), (0,)), ((), ()))


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def assert_same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{got.itemsize}"))


def to(spec):
    spec = matmul.get(spec)
    return lambda x: rounding.round_to(x, spec.operand_format, spec.rounding)


def by_hand(product, *, saved, cotangents):
    """`product`, bilinear, with operands rounded by `saved` and cotangents by `cotangents`."""

    @jax.custom_vjp
    def rounded(lhs, rhs):
        return product(saved(lhs), saved(rhs))

    def backward(operands, cotangent):
        _, pull = jax.vjp(product, *map(saved, operands))
        return pull(cotangents(cotangent))

    rounded.defvjp(lambda lhs, rhs: (rounded(lhs, rhs), (lhs, rhs)), backward)
    return rounded


def plain_dot(lhs, rhs):
    return lax.dot_general(lhs, rhs, DIMS, precision=lax.Precision.HIGHEST)


def plain_convolution(lhs, rhs):
    return lax.conv_general_dilated(
        lhs, rhs, (2, 1), ((1, 0), (1, 1)), precision=lax.Precision.HIGHEST
    )


#: Product in lax, the same in jprec, shapes of both operands and of the result.
PRODUCTS = {
    "dot": (
        plain_dot,
        lambda lhs, rhs, **specs: matmul.dot_general(lhs, rhs, DIMS, FORWARD, **specs),
        (2, 3, 4),
        (4, 5, 2),
        (3, 5),
    ),
    "convolution": (
        plain_convolution,
        lambda lhs, rhs, **specs: matmul.conv_general_dilated(
            lhs, rhs, (2, 1), ((1, 0), (1, 1)), FORWARD, **specs
        ),
        (2, 3, 6, 5),
        (4, 3, 3, 3),
        (2, 4, 3, 5),
    ),
}


def values_and_gradients(product, lhs, rhs, cotangent):
    out, pull = jax.vjp(product, lhs, rhs)
    return out, *pull(cotangent)


@pytest.mark.parametrize("kind", PRODUCTS)
def test_the_cotangent_is_rounded_as_grad_spec_says_and_the_other_operand_as_spec_says(kind):
    plain, emulated, *shapes = PRODUCTS[kind]
    arrays = [numbers(*shape) for shape in shapes]

    @jax.jit
    def run(*arrays):
        def hand(saved, cotangents):
            product = by_hand(plain, saved=to(saved), cotangents=to(cotangents))
            return values_and_gradients(product, *arrays)

        got = values_and_gradients(functools.partial(emulated, grad_spec=BACKWARD), *arrays)
        controls = hand(FORWARD, FORWARD), hand(BACKWARD, BACKWARD), hand(BACKWARD, FORWARD)
        return got, hand(FORWARD, BACKWARD), controls

    got, want, controls = run(*arrays)
    for one, other in zip(got, want, strict=True):
        assert_same_bits(one, other)
    for control in controls:  # both gradients tell each wrong assignment
        assert all((one != other).any() for one, other in zip(got[1:], control[1:], strict=True))


@pytest.mark.parametrize("kind", PRODUCTS)
def test_each_operand_is_rounded_as_its_own_spec_says_forward_and_backward(kind):
    plain, emulated, *shapes = PRODUCTS[kind]
    lhs, rhs, cotangent = (numbers(*shape, seed=1) for shape in shapes)
    specs = {"lhs_spec": BACKWARD, "rhs_spec": "bf16"}

    @jax.jit
    def run(lhs, rhs, cotangent):
        got = values_and_gradients(functools.partial(emulated, **specs), lhs, rhs, cotangent)
        first, second = to(BACKWARD)(lhs), to("bf16")(rhs)
        _, pull = jax.vjp(plain, first, second)
        return got, (plain(first, second), *pull(to(FORWARD)(cotangent)))

    for got, want in zip(*run(lhs, rhs, cotangent), strict=True):
        assert_same_bits(got, want)


def test_fp32_forward_may_have_a_narrower_backward_pass():
    a, b = jnp.full((1, 1), 1.0001), jnp.ones((1, 1))

    def product(a, b):
        return matmul.matmul(a, b, "fp32", grad_spec="tf32").sum()

    value, (of_a, of_b) = jax.value_and_grad(product, (0, 1))(a, b)
    assert (value, of_a, of_b) == (a[0, 0], 1.0, a[0, 0])
    # The cotangent is rounded, 1.0001 to 1; the other operand is not.
    assert jax.grad(lambda a: product(a, b) * 1.0001)(a) == 1.0


def test_second_derivatives_round_each_gradient_as_a_gradient():
    x, t, u = (numbers(4, 4, seed=seed) for seed in range(3))

    def pulled(x, t):
        _, pull = jax.vjp(lambda x: matmul.matmul(x, x.T, FORWARD, grad_spec=BACKWARD), x)
        return pull(t)[0]

    @jax.jit
    def both(x, t, u):
        _, pull = jax.vjp(pulled, x, t)
        # The gradient is t x + tᵀ x. That of it is u xᵀ + x uᵀ, and products of two gradients.
        saved, first, second = to(FORWARD)(x), to(BACKWARD)(t), to(BACKWARD)(u)
        dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
        of_x = dot(first.T, second) + dot(first, second)
        return pull(u), (of_x, dot(second, saved.T) + dot(saved, second.T))

    for got, want in zip(*both(x, t, u), strict=True):  # the order of sums may differ
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_operands_split_in_different_ways_are_multiplied_as_far_as_the_finer_split_goes():
    how = Arithmetic.of("bf16x6", lhs_spec="bf16")
    assert how.pairs == ((0, 2), (0, 1), (0, 0))
    assert Arithmetic.of("bf16x6").pairs == matmul.get("bf16x6").pairs
    a, b = numbers(4, 8), numbers(8, 4)
    got = matmul.dot_general(a, b, PLAIN, "bf16x6", lhs_spec="bf16")
    exact = np.asarray(to("bf16")(a), np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5)
    scaled = matmul.dot_general(a, b, PLAIN, "fp16x3", lhs_spec="bf16")
    np.testing.assert_allclose(scaled, exact, rtol=0, atol=1e-5)


# --- accumulators and devices


@pytest.mark.parametrize("device", ["ada", "h100", "h100_mma"])
def test_a_device_multiplies_e5m2_by_e4m3_as_the_oracle_does(device):
    core = hardware.get(device).tensor_core("e4m3fn")
    a, b = 8 * numbers(3, 70), 8 * numbers(70, 5)
    a[0, :8], b[:8, 0] = 2.0**-16, 2.0**-9  # the least subnormal numbers of both
    left, right = np.asarray(to(BACKWARD)(a)), np.asarray(to(FORWARD)(b))
    for one, other, names in (
        (left, right, (BACKWARD, FORWARD)),
        (right.T, left.T, (FORWARD, BACKWARD)),
    ):
        got = matmul.dot_general(
            one, other, PLAIN, f"{BACKWARD}@{device}", lhs_spec=names[0], rhs_spec=names[1]
        )
        rows = np.repeat(one[:, None], other.shape[1], 1)
        columns = np.repeat(other.T[None], one.shape[0], 0)
        want = matmul.tensor_core_dot_exact(
            rows,
            columns,
            np.zeros(rows.shape[:2], np.float32),
            core,
            input_formats=tuple(matmul.get(name).operand_format for name in names),
        )
        assert_same_bits(got, want)
    exact = left.astype(np.float64) @ right
    assert (exact != want.T).any()  # the device does cut off


def test_a_device_takes_operands_that_its_format_holds():
    a, b = numbers(3, 8), numbers(8, 2)
    got = matmul.dot_general(a, b, PLAIN, "tf32@a100", lhs_spec="fp16", rhs_spec="bf16")
    want = matmul.matmul(to("fp16")(a), to("bf16")(b), "tf32@a100")
    assert_same_bits(got, want)


def test_an_accumulator_sums_exact_products_of_two_formats():
    a, b = numbers(3, 8), numbers(8, 2)
    got = matmul.dot_general(a, b, PLAIN, "fp16+fp16", lhs_spec=BACKWARD)
    assert_same_bits(got, matmul.matmul(to(BACKWARD)(a), b, "fp16+fp16"))
    # Products of FP32 operands are no FP32 numbers; the slower, exact way is taken for them.
    got = matmul.dot_general(a, b, PLAIN, "e5m2+bf16", rhs_spec="fp32")
    assert_same_bits(got, matmul.matmul(to(BACKWARD)(a), b, "fp32+bf16"))


@pytest.mark.parametrize(
    ("spec", "other", "reason"),
    [
        ("tf32@a100", "fp32", "takes operands of tf32, which does not hold every value of fp32"),
        ("e5m2@h100", "fp16", "takes operands of e5m2, which does not hold every value of fp16"),
        ("bf16", "bf16@native", "how this machine rounds is not known"),
        ("bf16@native", "tf32@native", "takes operands of one spec, or one in E4M3"),
    ],
)
def test_specs_that_have_no_product_in_common_are_refused(spec, other, reason):
    x = numbers(2, 2)
    with pytest.raises(ValueError, match=reason):
        matmul.dot_general(x, x, PLAIN, spec, lhs_spec=other)
    with pytest.raises(ValueError, match=reason):
        matmul.matmul(x, x, other, grad_spec=spec)


def test_float64_is_left_to_lax_only_where_all_specs_are_fp32():
    with jax.enable_x64(True):
        x = jnp.ones((2, 2), jnp.float64)
        assert matmul.matmul(x, x, "fp32", grad_spec="fp32").dtype == jnp.float64
        with pytest.raises(TypeError, match="spec tf32 computes in FP32 or narrower"):
            matmul.matmul(x, x, "fp32", grad_spec="tf32")


def test_a_native_product_may_have_one_operand_of_each_fp8_format():
    x = jnp.ones((16, 16))
    traced = jax.jit(
        lambda a, b: native.requested_dot(a, b, PLAIN, "e4m3fn", ("e5m2", "e4m3fn"))
    ).trace(x, x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "(tensor<16x16xf8E5M2>, tensor<16x16xf8E4M3FN>)" in text
    if jax.default_backend() == "cpu":
        with pytest.raises(ValueError, match="the backend here is 'cpu'"):
            matmul.dot_general(x, x, PLAIN, "e5m2@native", rhs_spec="e4m3fn@native")
    with pytest.raises(ValueError, match="no native product is known"):
        matmul.matmul(x, x, "e5m2@native")


def test_the_same_spec_for_all_is_the_plain_product():
    x = numbers(4, 4)

    def program(**specs):
        def gradient(x):
            return jax.grad(lambda x: matmul.dot_general(x, x, PLAIN, FORWARD, **specs).sum())(x)

        return jax.make_jaxpr(gradient)(x)

    spelled = dict.fromkeys(("lhs_spec", "rhs_spec", "grad_spec"), FORWARD)
    assert str(program(**spelled)) == str(program())
    assert str(program(grad_spec=BACKWARD)) != str(program())
