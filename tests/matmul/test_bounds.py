"""A bound is never exceeded where it holds, and is where it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import matmul

SPECS = (
    *("fp32", "tf32", "tf32:toward_zero", "bf16", "fp16", "tf32x3", "bf16x3", "bf16x6"),
    *("fp16+fp16", "bf16+bf16", "fp32+fp32+kahan", "fp16+fp16+kahan", "fp16+fp16+chunk32"),
    *("tf32@a100", "fp16@v100", "fp16@h100", "bf16@h100", "fp16@h100+fp16", "bf16@a100+chunk64"),
    *("e5m2@ada", "e5m2@h100", "e5m2@h100_mma", "e5m2@h100_mma+fp16", "e5m2@b200"),
)
TERMS = 256


def operands():
    """Signed, positive, of very different sizes, and such as truncation is hard on."""
    rng = np.random.default_rng(8)
    rows = 12
    signed = rng.standard_normal((2, rows, TERMS))
    positive = np.abs(signed)
    spread = signed * 2.0 ** rng.integers(-8, 3, (2, rows, TERMS))
    hard = np.full((2, rows, TERMS), 2.0**-6)
    hard[:, :, 0] = 1.0
    hard[1, :, 1:] = 2.0**-6 * (2 - 2.0**-9) * rng.uniform(0.99, 1, (rows, TERMS - 1))
    return np.float32(np.concatenate([signed, positive, spread, hard], 1))


@pytest.fixture(scope="module")
def sums():
    a, b = operands()
    products = np.float64(a) * np.float64(b)
    return a, b, products.sum(-1), np.abs(products).sum(-1)


def errors(name, a, b, exact, size):
    """|error| / |A||B| of each row."""
    dims = ((1,), (1,)), ((0,), (0,))
    got = jax.jit(lambda a, b: matmul.dot_general(a, b, dims, name))(a, b)
    return np.abs(np.float64(got) - exact) / size


@pytest.mark.parametrize("name", SPECS)
def test_the_bound_is_never_exceeded(name, sums):
    worst = errors(name, *sums).max()
    bound = matmul.error_bound(name, TERMS)
    assert worst <= bound.coefficient
    assert bound.coefficient >= max(bound.operands, bound.sums)


def test_textbook_bounds_are_exceeded_by_a_tensor_core_that_truncates():
    """Products of which the A100 cuts off nearly one unit each, and one more at the end of a block.

    1 comes first. Then each block of four loses four times almost 2**-24 in alignment: what is left
    is 1, 1, 1 and 2 of these, an odd number, of which truncation to FP32 takes one more. n u allows
    4 * 2**-24 for each block.
    """
    terms = 4 * 500
    a, b = np.ones((2, 1, terms), np.float32)
    small = np.float32(2.0**-12)
    a[0, 1:], b[0, 1:] = small, small * np.float32(2 - 2.0**-10)  # 2**-24 (2 - 2**-10)
    a[0, 4::4], b[0, 4::4] = small * 2, small * np.float32(1.5 - 2.0**-10)  # nearly 3 * 2**-24
    exact = (np.float64(a) * np.float64(b)).sum(-1)
    worst = errors("tf32@a100", a, b, exact, exact)[0]
    assert matmul.error_bound("fp32", terms).sums < worst  # n u
    assert worst <= matmul.error_bound("tf32@a100", terms).sums
    rounded = errors("tf32", a, b, exact, exact)[0]
    assert rounded <= matmul.error_bound("fp32", terms).sums


def test_the_probabilistic_bound_is_kept_by_nearest_and_broken_by_truncation():
    rng = np.random.default_rng(0)
    terms = 2**16
    a, b = np.float32(rng.uniform(1, 2, (2, 8, terms)))
    a, b = (np.asarray(x.astype(jnp.bfloat16).astype(np.float32)) for x in (a, b))
    products = np.float64(a) * np.float64(b)
    exact = products.sum(-1)
    near = matmul.probabilistic_bound("fp32+fp32", terms, likelihood=1 - 1e-3)
    assert near < matmul.error_bound("fp32+fp32", terms).coefficient / 5
    assert errors("bf16+fp32", a, b, exact, exact).max() <= near
    assert errors("bf16@h100", a, b, exact, exact).min() > near


def test_bounds_are_those_of_the_page():
    u, v = 2.0**-24, 2.0**-11  # FP32's and TF32's
    once, thrice = (1 + v) ** 2, ((1 + v) * (1 + v)) ** 2  # what the parts are together, at most

    def check(name, terms, operands, sums):
        bound = matmul.error_bound(name, terms)
        assert bound.operands == pytest.approx(operands, rel=1e-12)
        assert bound.sums == pytest.approx(sums, rel=1e-12)
        assert bound.coefficient == bound.operands + bound.sums

    check("fp32", 100, 0, 100 * u)
    check("tf32", 100, 2 * v + v**2, 100 * u * once)
    check("tf32:toward_zero", 100, 4 * v + 4 * v**2, 100 * u * (1 + 2 * v) ** 2)
    check("tf32@a100", 10, 2 * v + v**2, 3 * (5 * 2.0**-24 + 2.0**-23) * once)
    check("fp16@h100+fp16", 17, 2 * v + v**2, 2 * (17 * 2.0**-25 + 2.0**-11) * once)
    check("fp16+fp16", 100, 2 * v + v**2, 100 * v * once)
    check("fp32+fp32+kahan", 100, 0, 3 * u + 200 * u**2)
    check("fp32+chunk64", 256, 0, (64 + 4) * u)
    split = 2 * v**2 + v**4 + v**2 * (1 + v) ** 2
    check("tf32x3", 100, split, ((1 + 100 * u) * (1 + 2 * u) - 1) * thrice)
    # Of mma.sync with FP8, two halves of 16 from 0, and the accumulator last, to nearest.
    w = 2.0**-4
    check("e4m3fn@h100_mma", 32, 2 * w + w**2, (2 * (17 * 2.0**-25 + 2.0**-23) + u) * (1 + w) ** 2)
    factor = np.sqrt(2 * np.log(2 * 64 / 0.01)) / (1 - u)
    want = np.expm1((factor * 8 * u + 64 * u**2) / (1 - u))
    assert matmul.probabilistic_bound("fp32", 64) == pytest.approx(want, rel=1e-9)


def test_kahan_errs_by_more_than_two_roundings():
    """A counterexample to 2 u: the product is rounded into the term."""
    a = np.float32([[0.1278553158044815, 37.77998352050781, 51.19941711425781]])
    b = np.float32([[1.2717615365982056], [1.723354458808899], [1.2762141227722168]])
    exact = np.float64(a) @ np.float64(b)
    error = abs(float(matmul.matmul(a, b, "fp32+fp32+kahan")[0, 0]) - exact[0, 0]) / exact[0, 0]
    assert 2 * 2.0**-24 < error <= matmul.error_bound("fp32+fp32+kahan", 3).coefficient


def test_what_is_no_length_and_no_likelihood_is_refused():
    for terms in (-4, 4.5):
        with pytest.raises(ValueError, match="0 or more"):
            matmul.error_bound("fp32", terms)
    for likelihood in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            matmul.probabilistic_bound("fp32", 8, likelihood=likelihood)


def test_a_comparison_takes_any_arrays_and_says_what_shapes_it_wants():
    a, b = (jnp.asarray(x[:8, :8]) for x in operands())
    for name in ("fp32", ["fp32"]):
        (one,) = matmul.compare(a, b, name)
        assert 0 < one.largest < 1e-5  # against float64, also for arrays of JAX
    with pytest.raises(ValueError, match=r"compare of shapes \(8,\) and \(8, 8\)"):
        matmul.compare(a[0], b, "fp32")


def test_what_no_bound_is_known_for_is_refused():
    with pytest.raises(ValueError, match="how this machine sums is not known"):
        matmul.error_bound("tf32@native", 8)
    for name in ("tf32@a100", "fp16+fp16+kahan", "bf16+chunk8"):
        with pytest.raises(ValueError, match="error_bound holds for this one"):
            matmul.probabilistic_bound(name, 8)
