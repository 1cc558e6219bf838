"""Operands rounded, sums in FP32, the result rounded once; backward as forward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jprec import matmul, rounding

SPECS = ("fp32", "tf32", "tf32:toward_zero", "bf16", "fp16", "e8m2:toward_zero", "tf32@a100")
PLAIN = (((1,), (0,)), ((), ()))

#: Shapes and dimension numbers, each with something unusual about it.
DIMENSIONS = {
    "matrices": ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
    "first axes": ((4, 3), (5, 4), (((0,), (1,)), ((), ()))),
    "batch in the middle": ((3, 2, 4), (4, 5, 2), (((2,), (0,)), ((1,), (2,)))),
    "two contracted, crosswise": ((2, 3, 4), (4, 5, 2), (((0, 2), (2, 0)), ((), ()))),
    "two batch axes, crosswise": ((2, 3, 4, 5), (3, 5, 2), (((3,), (1,)), ((0, 1), (2, 0)))),
    "outer product": ((2,), (3,), (((), ()), ((), ()))),
    "inner product": ((4,), (4,), (((0,), (0,)), ((), ()))),
    "no products": ((2, 0), (0, 3), (((1,), (0,)), ((), ()))),
}

#: The ones that a device could get wrong by itself; few, because compiling a device takes seconds.
FOR_A_DEVICE = ("two contracted, crosswise", "no products")


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def small_integers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-3, 4, shape).astype(np.float32)


def rounded(x, spec):
    spec = matmul.get(spec)
    return rounding.round_to(x.astype(jnp.float32), spec.operand_format, spec.rounding)


def in_lax(lhs, rhs, dims):
    return lax.dot_general(lhs, rhs, dims, precision=lax.Precision.HIGHEST)


def assert_same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{got.itemsize}"))


def assert_same_numbers(got, want):
    """As `assert_same_bits`, but -0 is +0: a tensor core returns +0."""
    assert_same_bits(np.asarray(got) + 0, np.asarray(want) + 0)


# --- forward


def test_a_product_that_tells_rounded_operands_from_fp32():
    x, one = jnp.full((1, 1), 1.0001), jnp.ones((1, 1))

    @jax.jit
    def products(x, one):
        return {s: (matmul.matmul(x, one, s), matmul.matmul(one, x, s)) for s in SPECS}

    for spec, (left, right) in products(x, one).items():
        expected = jnp.float32(1.0001) if spec == "fp32" else 1.0
        assert (spec, left.item(), right.item()) == (spec, expected, expected)


@pytest.mark.parametrize("spec", ["tf32", "tf32:toward_zero", "bf16", "fp16", "e8m2:toward_zero"])
def test_the_product_is_the_fp32_product_of_the_rounded_operands(spec):
    @jax.jit
    def wanted(a, b):
        return in_lax(rounded(a, spec), rounded(b, spec), PLAIN)

    a, b = numbers(16, 32), numbers(32, 8)
    assert_same_bits(jax.jit(matmul.matmul, static_argnums=2)(a, b, spec), wanted(a, b))


def test_ties_of_tf32_operands_go_away_from_zero_unless_told_otherwise():
    tie, one = jnp.full((1, 1), -(1 + 2.0**-11)), jnp.ones((1, 1))
    specs = ("tf32", "tf32:nearest_even", "tf32:toward_zero")
    got = jax.jit(lambda x, one: [matmul.matmul(x, one, spec) for spec in specs])(tie, one)
    assert [x.item() for x in got] == [-(1 + 2.0**-10), -1.0, -1.0]


@pytest.mark.parametrize(
    ("spec", "case"),
    [*(("tf32", case) for case in DIMENSIONS), *(("tf32@a100", case) for case in FOR_A_DEVICE)],
)
def test_dimension_numbers_mean_what_they_mean_in_lax_forward_and_backward(spec, case):
    lhs_shape, rhs_shape, dims = DIMENSIONS[case]

    @jax.jit
    def both(lhs, rhs, cotangent):
        out, pull = jax.vjp(lambda lhs, rhs: matmul.dot_general(lhs, rhs, dims, spec), lhs, rhs)
        want, pull_lax = jax.vjp(lambda lhs, rhs: in_lax(lhs, rhs, dims), lhs, rhs)
        return (out, *pull(cotangent)), (want, *pull_lax(cotangent))

    # Small integers: sums are exact, and the same in every order.
    lhs, rhs = small_integers(*lhs_shape), small_integers(*rhs_shape, seed=1)
    out_shape = jax.eval_shape(functools.partial(in_lax, dims=dims), lhs, rhs).shape
    for got, want in zip(*both(lhs, rhs, small_integers(*out_shape, seed=2)), strict=True):
        assert_same_numbers(got, want)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((3,), (5, 3, 4)),
     ((2, 1, 2, 3), (5, 3, 4)), ((5, 2, 3), (3,)), ((2, 3), (5, 3, 4))],
)  # fmt: skip
def test_matmul_takes_the_shapes_that_jax_numpy_takes(a, b):
    @jax.jit
    def both(a, b):
        return matmul.matmul(a, b, "fp32"), jnp.matmul(a, b)

    assert_same_bits(*both(small_integers(*a), small_integers(*b, seed=1)))


def test_matmul_refuses_scalars():
    with pytest.raises(ValueError, match="at least one axis"):
        matmul.matmul(1.0, jnp.ones(3), "tf32")


# --- dtypes


def test_a_16_bit_result_is_the_fp32_sum_rounded_once():
    a, b = numbers(8, 64).astype(jnp.bfloat16), numbers(64, 8).astype(jnp.bfloat16)

    def products(a, b, spec):
        total = in_lax(a.astype(jnp.float32), b.astype(jnp.float32), PLAIN)
        narrow = matmul.matmul(a, b, spec)
        wide = matmul.dot_general(a, b, PLAIN, spec, preferred_element_type=jnp.float32)
        # Where the result is used in FP32, a compiler may not leave out the rounding.
        return narrow, narrow.astype(jnp.float32), wide, rounded(total, "bf16"), total

    for spec in ("tf32", "fp32"):
        narrow, used, wide, want, total = jax.jit(products, static_argnums=2)(a, b, spec)
        assert_same_bits(used, want)
        assert_same_bits(narrow, np.asarray(want).astype(jnp.bfloat16))
        assert_same_bits(wide, total)


def test_16_bit_operands_are_rounded_to_the_format_of_the_spec():
    x, one = jnp.full((1, 1), 1.0078125, jnp.bfloat16), jnp.ones((1, 1), jnp.bfloat16)
    assert matmul.matmul(x, one, "bf16") == 1.0078125
    assert matmul.matmul(x, one, "e8m2:toward_zero") == 1.0
    beyond = jnp.full((1, 1), 1e6, jnp.bfloat16)
    assert matmul.matmul(beyond, one, "fp16") == jnp.inf


def test_an_fp16_result_overflows_to_infinity():
    a, b = jnp.full((1, 2), 256.0, jnp.float16), jnp.full((2, 1), 128.0, jnp.float16)
    assert matmul.matmul(a, b, "fp16").dtype == jnp.float16
    assert matmul.matmul(a, b, "fp16") == jnp.inf


@pytest.mark.parametrize(
    ("lhs", "rhs"),
    [("bfloat16", "float32"), ("float16", "bfloat16"), ("float16", "float16"), ("float32",) * 2],
)
def test_the_result_has_the_dtype_that_lax_gives(lhs, rhs):
    shapes = [jax.ShapeDtypeStruct((2, 2), dtype) for dtype in (lhs, rhs)]
    for preferred in (None, jnp.float32, jnp.bfloat16):
        how = {"dimension_numbers": PLAIN, "preferred_element_type": preferred}
        got = jax.eval_shape(functools.partial(matmul.dot_general, spec="tf32", **how), *shapes)
        like = jax.eval_shape(functools.partial(lax.dot_general, **how), *shapes)
        assert (got.dtype, got.weak_type) == (like.dtype, False)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.complex64])
def test_other_dtypes_are_lax_s_under_fp32_and_refused_by_the_rest(dtype):
    with jax.enable_x64(True):
        x = jnp.asarray([[1.0001, 2.0], [3.0, 4.0]], dtype)
        assert_same_bits(
            np.asarray(matmul.matmul(x, x, "fp32")).view(np.uint8),
            np.asarray(in_lax(x, x, PLAIN)).view(np.uint8),
        )
        for spec in ("tf32", "tf32@a100"):
            with pytest.raises(TypeError, match=rf"{np.dtype(dtype)}.*take 'fp32'"):
                matmul.matmul(x, x, spec)


def test_fp32_asks_for_the_highest_precision_forward_and_backward():
    def loss(a, b):
        return matmul.matmul(a, b, "fp32").sum()

    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(numbers(2, 3), numbers(3, 4)))
    assert text.count("dot_general[") == 3
    assert text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") == 3


# --- backward


@pytest.mark.parametrize("spec", ["tf32", "bf16", "e8m2:toward_zero"])
def test_backward_products_round_the_cotangent_and_the_other_operand(spec):
    lhs_shape, rhs_shape, dims = DIMENSIONS["two contracted, crosswise"]

    @jax.jit
    def both(lhs, rhs, cotangent):
        _, pull = jax.vjp(lambda lhs, rhs: matmul.dot_general(lhs, rhs, dims, spec), lhs, rhs)
        # The products that lax transposes to, with both operands rounded beforehand.
        _, pull_lax = jax.vjp(
            lambda lhs, rhs: in_lax(lhs, rhs, dims), rounded(lhs, spec), rounded(rhs, spec)
        )
        return pull(cotangent), pull_lax(rounded(cotangent, spec))

    lhs, rhs = numbers(*lhs_shape), numbers(*rhs_shape)
    for got, want in zip(*both(lhs, rhs, numbers(3, 5)), strict=True):
        assert_same_bits(got, want)


def test_backward_products_of_a_device_walk_the_axes_as_the_program_lists_them():
    spec = "tf32@a100"
    a, b = numbers(8, 8), numbers(8, 8, seed=1)  # one shape, so that all products compile once
    cotangent = numbers(8, 8, seed=2)
    _, pull = jax.vjp(lambda a, b: matmul.matmul(a, b, spec), a, b)
    left, right = pull(cotangent)
    assert_same_bits(left, matmul.matmul(cotangent, b.T, spec))
    assert_same_bits(right, matmul.matmul(a.T, cotangent, spec))


def test_cotangents_of_16_bit_operands_are_rounded_once():
    a, b = numbers(4, 8).astype(jnp.bfloat16), numbers(8, 4)

    @jax.jit
    def both(a, b, cotangent):
        _, pull = jax.vjp(lambda a, b: matmul.matmul(a, b, "bf16"), a, b)
        total = in_lax(rounded(cotangent, "bf16"), rounded(b, "bf16").T, PLAIN)
        return *pull(cotangent), rounded(total, "bf16").astype(jnp.bfloat16)

    left, right, want = both(a, b, numbers(4, 4))
    assert_same_bits(left, want)
    assert right.dtype == jnp.float32


def test_second_derivatives_are_products_of_the_same_kind():
    spec = "tf32"
    x, one = jnp.full((1, 1), 1.0001), jnp.ones((1, 1))

    def square(x):
        return matmul.matmul(matmul.matmul(x, x, spec), one, spec).sum()

    assert jax.grad(square)(x) == 2.0
    assert jax.grad(lambda x: jax.grad(square)(x).sum() * 1.0001)(x).item() == 2.0


def test_forward_mode_is_refused():
    x = numbers(2, 2)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: matmul.matmul(x, x, "tf32"), (x,), (x,))


# --- transformations


@pytest.mark.parametrize("way", ["vmap", "remat", "scan"])
def test_jit_vmap_scan_and_remat_change_no_bit_of_the_gradient(way):
    a, b = numbers(2, 4, 8), numbers(2, 8, 4)

    def loss(a, b):
        return jnp.sum(jnp.sin(matmul.matmul(a, b, "tf32")))

    gradient = jax.grad(loss, (0, 1))
    ways = {
        "vmap": jax.vmap(gradient),
        "remat": jax.vmap(jax.grad(jax.checkpoint(loss), (0, 1))),
        "scan": lambda a, b: lax.scan(lambda _, ab: (None, gradient(*ab)), None, (a, b))[1],
    }
    got = jax.jit(ways[way])(a, b)
    single = jax.jit(gradient)
    want = jax.tree.map(lambda *rows: jnp.stack(rows), *map(single, a, b))
    for got_one, want_one in zip(got, want, strict=True):
        assert_same_bits(got_one, want_one)


# --- devices


def test_a_device_product_is_its_tensor_core_s_dot_of_rounded_operands():
    spec = "fp16@a100"
    a, b = numbers(5, 2, 11), numbers(2, 11, 3)  # 22 products: the last block is filled up
    got = matmul.dot_general(a, b, (((1, 2), (0, 1)), ((), ())), spec)
    left = np.asarray(rounded(a, spec)).reshape(5, 1, 22)
    right = np.asarray(rounded(b, spec)).reshape(22, 3).T
    want = matmul.tensor_core_dot(left, right, 0.0, device="a100", input_format="fp16")
    assert_same_bits(got, want)
    assert not np.array_equal(got, left[:, 0] @ right.T)


def test_vmap_changes_no_bit_of_a_device_product():
    a, b = numbers(3, 4, 8), numbers(8, 5)
    product = jax.jit(functools.partial(matmul.matmul, spec="tf32@a100"))
    rows = jax.jit(jax.vmap(product, (0, None)))(a, b)
    assert_same_bits(rows, np.stack([product(row, b) for row in a]))


def test_a_device_product_knows_infinity_and_nan_and_keeps_subnormals():
    a = jnp.asarray([[np.inf, 1.0], [np.inf, 0.0], [2.0**-100, 0.0]], jnp.float32)
    b = jnp.asarray([[1.0, -2.0, 0.0, 2.0**-40], [1.0, 1.0, 1.0, 1.0]], jnp.float32)
    got = np.asarray(matmul.matmul(a, b, "tf32@a100"))
    np.testing.assert_array_equal(got[0], [np.inf, -np.inf, np.nan, np.inf])
    np.testing.assert_array_equal(got[1], got[0])
    assert got.view(np.uint32)[2].tolist() == [
        *np.float32([2.0**-100, -(2.0**-99), 0.0]).view(np.uint32).tolist(),
        2**9,  # 2**-140 in units of 2**-149
    ]


def test_memory_of_a_device_product_does_not_grow_with_the_number_of_multiplications():
    m = n = k = 128
    product = jax.jit(functools.partial(matmul.matmul, spec="tf32@a100"))
    shape = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    analysis = product.lower(shape, shape).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 12 * 4 * (m * k + k * n + m * n) < 4 * m * n * k
