"""Convolutions: rounded operands, any geometry, backward as forward, windows on a device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jprec import matmul, rounding

NHWC = ("NHWC", "HWIO", "NHWC")

#: lhs, rhs, strides, padding, and the rest; each with something unusual about it.
GEOMETRIES = {
    "plain": ((2, 6, 5, 3), (3, 2, 3, 4), (1, 1), "VALID", {"dimension_numbers": NHWC}),
    "strided, same": ((2, 6, 5, 3), (3, 3, 3, 4), (2, 1), "SAME", {"dimension_numbers": NHWC}),
    "dilated twice, padded, cropped": (
        (1, 2, 5, 6),
        (3, 2, 2, 3),
        (1, 2),
        ((2, 0), (-1, 3)),
        {"lhs_dilation": (1, 2), "rhs_dilation": (2, 1)},
    ),
    "by channel": (
        (2, 5, 5, 4),
        (3, 3, 2, 6),
        (1, 1),
        "SAME",
        {"dimension_numbers": NHWC, "feature_group_count": 2},
    ),
    "by image": ((4, 3, 5), (6, 3, 2), (1,), "VALID", {"batch_group_count": 2}),
    "one axis": ((2, 7, 3), (4, 3, 5), (2,), "SAME", {"dimension_numbers": ("NWC", "WIO", "NWC")}),
}


def small_integers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-3, 4, shape).astype(np.float32)


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def assert_same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{got.itemsize}"))


def assert_same_numbers(got, want):
    """As `assert_same_bits`, but -0 is +0."""
    assert_same_bits(np.asarray(got) + 0, np.asarray(want) + 0)


def in_lax(lhs, rhs, strides, padding, rest):
    return lax.conv_general_dilated(
        lhs, rhs, strides, padding, precision=lax.Precision.HIGHEST, **rest
    )


def forward_and_backward(convolve, lhs, rhs, cotangent):
    out, pull = jax.vjp(convolve, lhs, rhs)
    return (out, *pull(cotangent))


@pytest.mark.parametrize("case", GEOMETRIES)
def test_every_geometry_means_what_it_means_in_lax_forward_and_backward(case):
    lhs_shape, rhs_shape, strides, padding, rest = GEOMETRIES[case]

    def emulated(lhs, rhs):
        return matmul.conv_general_dilated(lhs, rhs, strides, padding, "tf32", **rest)

    plain = functools.partial(in_lax, strides=strides, padding=padding, rest=rest)

    @jax.jit
    def both(*operands):
        return forward_and_backward(emulated, *operands), forward_and_backward(plain, *operands)

    # Small integers: sums are exact, and the same in every order.
    lhs, rhs = small_integers(*lhs_shape), small_integers(*rhs_shape, seed=1)
    cotangent = small_integers(*jax.eval_shape(plain, lhs, rhs).shape, seed=2)
    for got, want in zip(*both(lhs, rhs, cotangent), strict=True):
        assert_same_numbers(got, want)


@pytest.mark.parametrize("case", ["dilated twice, padded, cropped", "by channel", "by image"])
def test_a_device_s_windows_are_those_of_lax(case):
    lhs_shape, rhs_shape, strides, padding, rest = GEOMETRIES[case]

    @jax.jit
    def both(lhs, rhs):
        got = matmul.conv_general_dilated(lhs, rhs, strides, padding, "tf32@a100", **rest)
        return got, in_lax(lhs, rhs, strides, padding, rest)

    assert_same_numbers(*both(small_integers(*lhs_shape), small_integers(*rhs_shape, seed=1)))


@pytest.mark.parametrize("spec", ["tf32", "bf16"])
def test_forward_and_backward_round_both_operands(spec):
    lhs_shape, rhs_shape, strides, padding, rest = GEOMETRIES["strided, same"]
    lhs, rhs = numbers(*lhs_shape), numbers(*rhs_shape)
    mode = matmul.get(spec).rounding
    rounded = functools.partial(rounding.round_to, fmt=spec, mode=mode)

    @jax.jit
    def both(lhs, rhs, cotangent):
        got = forward_and_backward(
            lambda lhs, rhs: matmul.conv_general_dilated(lhs, rhs, strides, padding, spec, **rest),
            lhs,
            rhs,
            cotangent,
        )
        plain = functools.partial(in_lax, strides=strides, padding=padding, rest=rest)
        return got, forward_and_backward(plain, *map(rounded, (lhs, rhs, cotangent)))

    for got, want in zip(*both(lhs, rhs, numbers(2, 3, 5, 4)), strict=True):
        assert_same_bits(got, want)


def test_a_device_walks_each_window_row_by_row_with_channels_fastest():
    lhs, rhs = numbers(1, 4, 5, 3), numbers(2, 3, 3, 2)
    got = jax.jit(
        lambda lhs, rhs: matmul.conv_general_dilated(
            lhs, rhs, (1, 1), "VALID", "tf32@a100", dimension_numbers=NHWC
        )
    )(lhs, rhs)
    windows = np.stack([lhs[0, i : i + 2, j : j + 3].ravel() for i in range(3) for j in range(3)])
    want = matmul.matmul(windows, rhs.reshape(18, 2), "tf32@a100")
    assert_same_bits(got.reshape(9, 2), want)
    assert not np.array_equal(want, windows @ rhs.reshape(18, 2))


def test_a_device_convolution_has_the_gradient_of_its_windows_product():
    """A kernel as large as its image is a matrix product; so is its backward pass."""
    lhs, rhs = numbers(3, 2, 2, 2), numbers(2, 2, 2, 5)

    def convolved(rhs):
        out = matmul.conv_general_dilated(
            lhs, rhs, (1, 1), "VALID", "tf32@a100", dimension_numbers=NHWC
        )
        return jnp.sum(jnp.sin(out))

    def multiplied(rhs):
        out = matmul.matmul(lhs.reshape(3, 8), rhs.reshape(8, 5), "tf32@a100")
        return jnp.sum(jnp.sin(out))

    assert_same_bits(jax.jit(jax.grad(convolved))(rhs), jax.jit(jax.grad(multiplied))(rhs))


def test_narrow_operands_give_narrow_results_and_cotangents():
    lhs, rhs = numbers(1, 4, 4, 2).astype(jnp.bfloat16), numbers(2, 2, 2, 3).astype(jnp.bfloat16)

    def convolve(lhs, rhs, **how):
        return matmul.conv_general_dilated(
            lhs, rhs, (1, 1), "VALID", "bf16", dimension_numbers=NHWC, **how
        )

    @jax.jit
    def both(lhs, rhs):
        raised = lhs.astype(jnp.float32), rhs.astype(jnp.float32)
        total = in_lax(*raised, (1, 1), "VALID", {"dimension_numbers": NHWC})
        out, pull = jax.vjp(convolve, lhs, rhs)
        wide = convolve(lhs, rhs, preferred_element_type=jnp.float32)
        return out, rounding.round_to(total, "bf16"), pull(out), wide

    out, want, cotangents, wide = both(lhs, rhs)
    assert_same_bits(out, np.asarray(want).astype(jnp.bfloat16))
    assert {cotangent.dtype.name for cotangent in cotangents} == {"bfloat16"}
    assert wide.dtype == jnp.float32


def test_fp32_asks_for_the_highest_precision_forward_and_backward():
    def loss(lhs, rhs):
        return matmul.conv_general_dilated(lhs, rhs, (1, 1), "SAME", "fp32").sum()

    shapes = numbers(1, 2, 4, 4), numbers(3, 2, 3, 3)
    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(*shapes))
    assert text.count("conv_general_dilated[") == 3
    assert text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") == 3


def test_other_dtypes_are_refused_by_specs_that_round():
    with pytest.raises(TypeError, match=r"int32.*take 'fp32'"):
        matmul.conv_general_dilated(
            jnp.ones((1, 1, 2, 2), int), jnp.ones((1, 1, 2, 2), int), (1, 1), "VALID", "tf32"
        )


def test_an_empty_convolution_has_a_gradient_of_zeros():
    def loss(x, k):
        return matmul.conv_general_dilated(x, k, (1, 1), "VALID", "tf32").sum()

    for shape in ((1, 1, 2, 2), (0, 1, 4, 4)):
        x, k = jnp.ones(shape), jnp.ones((1, 1, 3, 3))
        of_x, of_k = jax.grad(loss, (0, 1))(x, k)
        assert (of_x.shape, of_k.shape) == (x.shape, k.shape)
        assert not of_x.any()
        assert not of_k.any()


def test_a_padding_that_lax_has_no_rule_for_is_refused():
    with pytest.raises(ValueError, match="lhs_dilation"):
        matmul.conv_general_dilated(
            jnp.ones((1, 1, 4, 4)),
            jnp.ones((1, 1, 3, 3)),
            (1, 1),
            "SAME",
            "tf32",
            lhs_dilation=(2, 2),
        )
