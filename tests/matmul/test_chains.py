"""Sums in a chosen format against the oracle in rational arithmetic, number by number."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import formats, matmul, rounding
from jprec.matmul import chains

#: spec, what the oracle is told.
SPECS = {
    "fp16+fp16": {"accumulator": "fp16"},
    "fp16+fp32": {"accumulator": "fp32"},
    "bf16+bf16": {"accumulator": "bf16"},
    "e4m3fn+fp16": {"accumulator": "fp16"},
    "tf32:nearest_even+tf32": {"accumulator": "tf32"},
    "fp32+fp32": {"accumulator": "fp32"},
    "fp32+bf16": {"accumulator": "bf16"},
    "fp16+fp16+kahan": {"accumulator": "fp16", "compensated": True},
    "bf16+fp32+kahan": {"accumulator": "fp32", "compensated": True},
    "fp32+fp32+kahan": {"accumulator": "fp32", "compensated": True},
    "fp16+fp16+chunk8": {"accumulator": "fp16", "chunk": 8},
    "e5m2+e8m2+kahan+chunk5": {"accumulator": "e8m2", "compensated": True, "chunk": 5},
}


def operands(spec, rows=24, terms=19):
    """[rows, K] pairs of numbers that are near each other, and cancel in every second row."""
    rng = np.random.default_rng(4)
    x = np.ldexp(rng.uniform(-2, 2, (2, rows, terms)), rng.integers(-3, 4, (2, rows, terms)))
    a, b = np.float32(x)
    a[::2, 1::2] = -a[::2, :-1:2] * np.float32(1 + 2.0**-9)
    b[::2, 1::2] = b[::2, :-1:2]
    return [np.asarray(jax.jit(lambda v: matmul_operand(v, spec))(v)) for v in (a, b)]


def matmul_operand(x, spec):
    """`x` as the spec rounds it: the product with the unit vectors of its format."""
    return matmul.matmul(jnp.eye(len(x)), x, matmul.get(spec).operand_format)


@pytest.mark.parametrize("name", SPECS)
def test_every_step_is_rounded_once_and_in_order(name):
    a, b = operands(name)
    dims = ((1,), (1,)), ((0,), (0,))
    got = jax.jit(lambda a, b: matmul.dot_general(a, b, dims, name))(a, b)
    want = [matmul.chain_exact(x, y, **SPECS[name]) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(got, np.float32(want))


def test_the_mistakes_that_a_sum_in_a_narrow_format_can_make_are_not_made():
    one = jnp.ones((1, 3000))
    assert matmul.matmul(one, one.T, "fp16_acc16") == 2048.0  # XLA on a CPU says 3000
    assert matmul.matmul(one, one.T, "bf16+bf16") == 256.0
    assert matmul.matmul(one, one.T, "bf16+bf16+kahan") > 2900.0
    assert matmul.matmul(one, one.T, "bf16+bf16+chunk128") == 3000.0
    # 1 + 2**-11 is a tie of fp16, and what lies beyond FP32's last place decides it.
    a, b = jnp.float32([[1.0, 1.0]]), jnp.float32([[1.0], [2.0**-11 + 2.0**-21]])
    assert matmul.matmul(a, b, "fp16+fp16") == 1.0 + 2.0**-10
    third = jnp.float32([[1.0, 2.0**-12 + 2.0**-22]]), jnp.float32([[1.0], [2.0 + 2.0**-9]])
    exact = matmul.chain_exact(*(np.ravel(x) for x in third), accumulator="fp16")
    assert matmul.matmul(*third, "fp16+fp16") == exact


def test_a_full_fp32_product_is_fused_into_the_sum():
    """fl(a * b) - a * b by a fused multiply-add is the error of the product, not 0."""
    a = np.float32(1 + 2.0**-12 + 2.0**-23)
    rounded = np.float32(a * a)
    left, right = jnp.float32([[-1.0, a]]), jnp.float32([[rounded], [a]])
    got = jax.jit(lambda x, y: matmul.matmul(x, y, "fp32+fp32"))(left, right)
    assert float(got[0, 0]) == float(a) * float(a) - float(rounded) != 0


def test_rounding_to_odd_moves_no_odd_number():
    rng = np.random.default_rng(3)
    total, error = np.float32(rng.uniform(1, 2, 4000)), np.float32(rng.uniform(-1, 1, 4000))
    error *= np.float32(2.0**-25)
    got = np.asarray(chains._to_odd(jnp.asarray(total), jnp.asarray(error)))
    for t, e, found in zip(total, error, got, strict=True):
        exact = Fraction(float(t)) + Fraction(float(e))
        assert float(found) == formats.round_exact(exact, "fp32", "to_odd")


def test_the_tail_of_a_full_product_decides_a_tie():
    """1 + 2**-24 (1 - 2**-46) and 1 + 2**-24 (1 + 2**-22 + 2**-46): below and above a midpoint."""
    step = 2.0**-23
    for low, high in ((1 - step, 1 + step), (1 + step, 1 + step)):
        a = np.float32([[1.0, 2.0**-12 * low]])
        b = np.float32([[1.0], [2.0**-12 * high]])
        for accumulator in ("fp32", "e8m12"):
            got = matmul.matmul(a, b, f"fp32+{accumulator}")
            want = matmul.chain_exact(a[0], b[:, 0], accumulator=accumulator)
            assert float(got[0, 0]) == want
    assert matmul.chain_exact([300.0], [300.0], accumulator="fp16") == np.inf


def test_a_chunk_longer_than_the_sum_costs_nothing():
    assert matmul.matmul(jnp.ones((2, 4)), jnp.ones((4, 2)), "fp32+chunk999999999")[0, 0] == 4.0


def test_contracted_axes_are_walked_as_they_are_listed():
    rng = np.random.default_rng(9)
    a, b = np.float32(rng.standard_normal((2, 5, 6, 7)))
    for axes, order in (((1, 2), (0, 1, 2)), ((2, 1), (0, 2, 1))):
        got = matmul.dot_general(a, b, ((axes, axes), ((0,), (0,))), "fp16+fp16")
        flat = [x.transpose(order).reshape(5, -1) for x in (a, b)]
        flat = [np.asarray(rounding.round_to(x, "fp16")) for x in flat]
        want = [matmul.chain_exact(x, y, accumulator="fp16") for x, y in zip(*flat, strict=True)]
        np.testing.assert_array_equal(got, np.float32(want))


def test_infinities_and_nan_are_those_of_ieee():
    inf, nan = np.inf, np.nan
    b = jnp.float32([[1.0], [1.0]])
    for name in ("fp16+fp16", "fp32+fp32", "fp16+fp16+kahan", "fp32+fp32+kahan", "fp16+fp32"):
        product = jax.jit(lambda a, name=name: matmul.matmul(a, b, name))
        got = product(jnp.float32([[inf, 1], [1, -inf], [inf, -inf], [nan, 1]]))[:, 0].tolist()
        assert got[:2] == [inf, -inf], name
        assert np.isnan(got[2:]).all(), name
    large = matmul.matmul(jnp.full((1, 2), 6e4), b, "fp16+fp16+kahan")
    assert large == inf


@pytest.mark.parametrize("name", ["fp16+fp16", "fp32+fp32+kahan", "fp16@a100+chunk16"])
def test_empty_sums_are_zero_and_shapes_are_those_of_numpy(name):
    assert matmul.matmul(jnp.ones((2, 0)), jnp.ones((0, 3)), name).tolist() == [[0.0] * 3] * 2
    assert matmul.matmul(jnp.ones((0, 4)), jnp.ones((4, 3)), name).shape == (0, 3)


def test_convolutions_and_derivatives_sum_in_the_same_way():
    x, w = jnp.ones((1, 1, 60, 60)), jnp.ones((1, 1, 55, 55))
    out = matmul.conv_general_dilated(x, w, (1, 1), "VALID", "bf16+bf16")
    assert (out == 256.0).all()
    slope = jax.grad(
        lambda w: matmul.conv_general_dilated(x, w, (1, 1), "VALID", "bf16+bf16").sum()
    )(jnp.ones((1, 1, 3, 3)))
    assert (slope == 256.0).all()  # the backward convolution sums 58 x 58 ones
    one = jnp.ones((1, 3000))
    grads = jax.grad(lambda w: matmul.matmul(one.T, w, "bf16+bf16").sum())(jnp.ones((1, 1)))
    assert float(grads[0, 0]) == 256.0  # the backward product sums 3000 ones


def test_chunks_of_a_device_start_from_zero_and_meet_in_fp32():
    rng = np.random.default_rng(0)
    a, b = np.float32(rng.standard_normal((2, 8, 64)))
    dims = ((1,), (1,)), ((0,), (0,))
    got = matmul.dot_general(a, b, dims, "fp16@a100+chunk16")
    total = np.zeros(8, np.float32)
    for start in range(0, 64, 16):
        part = slice(start, start + 16)
        total += np.asarray(matmul.dot_general(a[:, part], b[:, part], dims, "fp16@a100"))
    np.testing.assert_array_equal(got, total)
