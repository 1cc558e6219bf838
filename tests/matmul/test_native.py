"""What is asked of a GPU, read off the lowered program; and the refusal everywhere else."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jprec import matmul
from jprec.matmul import native

pytestmark = pytest.mark.skipif(
    jax.default_backend() in ("gpu", "cuda"), reason="these are the promises for other backends"
)
DIMS = ((1,), (0,)), ((), ())
X = jnp.ones((16, 16))


@pytest.mark.parametrize(
    ("request_", "asks"),
    [
        ("tf32", "lhs_precision_type = tf32"),
        ("tf32x3", "num_primitive_operations = 3"),
        ("bf16", "lhs_precision_type = bf16"),
        ("bf16x9", "num_primitive_operations = 9"),
        ("fp16+fp16", "accumulation_type = f16"),
        ("fp32", "lhs_precision_type = f32"),
        ("e4m3fn", "f8E4M3FN"),
    ],
)
def test_the_lowered_program_asks_for_the_algorithm(request_, asks):
    traced = jax.jit(lambda a, b: native.requested_dot(a, b, DIMS, request_)).trace(X, X)
    assert asks in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("request_", "asks"),
    [("fp32", "precision HIGHEST>"), ("tf32", "precision DEFAULT>"), ("fp16", "f16>")],
)
def test_a_convolution_asks_for_a_precision(request_, asks):
    convolve = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(1, 1), padding="SAME"
    )
    ask = jax.jit(lambda x, k: native.requested_convolution(x, k, convolve, request_))
    traced = ask.trace(jnp.ones((1, 1, 4, 4)), jnp.ones((1, 1, 3, 3)))
    assert asks in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_sums_in_fp16_come_out_in_fp16_first():
    traced = jax.jit(lambda a, b: native.requested_dot(a, b, DIMS, "fp16+fp16")).trace(X, X)
    assert "-> tensor<16x16xf16>" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("name", ["tf32@native", "bf16x6@native", "fp16_acc16@native"])
def test_a_backend_that_would_ignore_it_is_refused(name):
    with pytest.raises(ValueError, match=r"the backend here is 'cpu'.*is emulated"):
        matmul.matmul(X, X, name)
    with pytest.raises(ValueError, match="native"):
        matmul.conv_general_dilated(
            jnp.ones((1, 1, 4, 4)), jnp.ones((1, 1, 2, 2)), (1, 1), "VALID", name
        )


def test_what_no_machine_offers_is_refused():
    with pytest.raises(ValueError, match="no native product is known for it; native ones are"):
        matmul.matmul(X, X, "e5m2@native")
