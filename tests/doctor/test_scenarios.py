"""What users met, each with the message that they should have got. On a CPU, without a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax import lax

import jprec


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def said(fn, *args, device="a100"):
    """What is found, by kind."""
    found = jprec.audit(fn, *args, device=device).findings
    return {finding.kind: str(finding) for finding in found}


def test_jax_19444_a_gram_matrix_is_no_longer_positive():
    def covariance(x):
        return x.T @ x / x.shape[0] - jnp.outer(x.mean(0), x.mean(0))

    def least_eigenvalue(x):
        return jnp.min(jnp.linalg.eigvalsh(covariance(x)))

    def normal_equations(a, weights):
        gram = a.T @ (weights[:, None] * a)
        return jax.scipy.linalg.cholesky(gram + 1e-3 * jnp.eye(a.shape[1]), lower=True)

    words = said(least_eigenvalue, f32(1000, 8))["gram_factorised"]
    assert "a Gram matrix in tf32 reaches eigh" in words
    assert 'precision="highest"' in words
    assert said(least_eigenvalue, f32(1000, 8), device="v100") == {}
    assert "reaches cholesky" in said(normal_equations, f32(32, 64), f32(32))["gram_factorised"]
    # And it is true, emulated: least eigenvalues become negative, the factorisation fails.
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((1000, 8)) + 300).astype(np.float32)
    assert jprec.emulate(least_eigenvalue, "tf32")(x) < -1 < 0.5 < least_eigenvalue(x)
    a = rng.standard_normal((32, 64)).astype(np.float32)
    weights = rng.uniform(0.5, 1.5, 32).astype(np.float32)
    assert jnp.isfinite(normal_equations(a, weights)).all()
    assert not jnp.isfinite(jprec.emulate(normal_equations, "tf32")(a, weights)).all()
    # But A Aᵀ alone is the Gram matrix of the rounded A, and stays positive but for FP32's error.
    plain = lambda a: jnp.min(jnp.linalg.eigvalsh(a @ a.T))
    assert abs(jprec.emulate(plain, "tf32")(a.T)) < 1e-4


def test_jax_11628_and_15362_vmap_makes_a_matrix_product():
    mat = jnp.ones((100, 1000))

    def gradient(x, i):
        return jax.grad(lambda x: (mat @ x)[i])(x)

    def jacobian(x):
        return jax.vmap(gradient, in_axes=(None, 0))(x, jnp.arange(100))

    assert "vmap made a matrix product" in said(jacobian, f32(1000))["vmap_matrix_product"]
    one = jprec.audit(gradient, f32(1000), 3)
    assert one.findings == ()
    assert {operation.runs_as for operation in one.operations} == {"undetermined"}

    def predict(params, image):
        for w, b in params:
            image = jax.nn.relu(jnp.dot(w, image) + b)
        return image

    params = [(f32(512, 1), f32(512)), (f32(512, 512), f32(512)), (f32(1, 512), f32(1))]
    batched = lambda params, x: jax.vmap(predict, in_axes=(None, 0))(params, x)
    assert "it runs as tf32" in said(batched, params, f32(100, 1))["vmap_matrix_product"]
    assert said(batched, params, f32(100, 1), device="t4") == {}


def test_jax_27362_a_setting_that_was_assigned(monkeypatch):
    monkeypatch.setattr(jax, "default_matmul_precision", "float32")
    found = jprec.audit(lambda a: a @ a, f32(8, 8))
    assert found.operations[0].runs_as == "tf32"
    assert found.default_precision is None
    assert "jax.default_matmul_precision was assigned 'float32', which sets nothing" in str(
        found.findings[0]
    )


def test_jax_24047_the_backward_pass_of_attention():
    def loss(q, k, v):
        return jnp.sum(jax.nn.dot_product_attention(q, k, v).astype(jnp.float32))

    head = jax.ShapeDtypeStruct((2, 16, 2, 8), jnp.bfloat16)
    found = jprec.audit(jax.grad(loss, argnums=(0, 1, 2)), head, head, head)
    assert [operation.phase for operation in found.operations].count("backward") == 4
    words = str(next(f for f in found.findings if f.kind == "backward_differs"))
    assert "the backward pass multiplies" in words
    assert "float32" in words


def test_jax_34330_the_gradient_of_a_wide_weight_is_narrow():
    def loss(w, x):
        numbers = (((1,), (0,)), ((), ()))
        y = lax.dot_general(x, w, numbers, preferred_element_type=jnp.bfloat16)
        return jnp.sum(y.astype(jnp.float32))

    words = said(jax.grad(loss), f32(8, 4), jax.ShapeDtypeStruct((16, 8), jnp.bfloat16))
    assert (
        "multiplies bfloat16 with bfloat16 into bfloat16 as bf16, the forward pass bfloat16 with "
        "float32 into bfloat16 as tf32"
    ) in words["backward_differs"]


def test_flax_4008_whether_a_softmax_in_fp32_was_asked_for_shows_in_its_product():
    x = jax.ShapeDtypeStruct((2, 5, 8), jnp.bfloat16)

    def products(**how):
        layer = linen.MultiHeadAttention(2, dtype=jnp.bfloat16, **how)
        found = jprec.audit(lambda x: layer.init_with_output(jax.random.key(0), x)[0], x)
        return [(operation.operand_dtypes, operation.runs_as) for operation in found.operations]

    narrow = (("bfloat16", "bfloat16"), "bf16")
    assert products() == [narrow] * 6
    threaded = products(force_fp32_for_softmax=True)
    assert [product for product in threaded if product != narrow] == [
        (("bfloat16", "float32"), "tf32")  # its FP32 weights widen the values
    ]


def test_keras_21112_a_preset_that_the_gpu_lacks():
    def dense(w, x):
        return jnp.matmul(x, w, precision="BF16_BF16_F32")

    words = said(dense, f32(8, 8), f32(8, 8), device="t4")["rejected"]
    assert "BF16_BF16_F32 is refused on t4" in words
    assert "compute capability 8.0" in words
    assert said(dense, f32(8, 8), f32(8, 8), device="a100") == {}


@pytest.mark.parametrize("by_context", [False, True])
def test_a_preset_on_a_convolution_has_no_effect(by_context):
    asked = None if by_context else "F32_F32_F32"

    def fn(x, k):
        with jax.default_matmul_precision("F32_F32_F32" if by_context else None):
            return lax.conv_general_dilated(x, k, (1, 1), "SAME", precision=asked)

    image, kernel = f32(1, 3, 8, 8), f32(4, 3, 3, 3)
    words = said(fn, image, kernel)["setting_without_effect"]
    assert "F32_F32_F32 has no effect: a convolution ignores every preset" in words
    # The program that JAX hands to a GPU's compiler says the same.
    traced = jax.jit(fn).trace(image, kernel)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    (line,) = (line for line in text.splitlines() if "stablehlo.convolution" in line)
    assert "HIGHEST" not in line
    assert "algorithm" not in line


def test_nnx_attention_keeps_its_precision_to_its_projections():
    layer = nnx.MultiHeadAttention(
        2, 8, rngs=nnx.Rngs(0), decode=False, precision=lax.Precision.HIGHEST
    )
    graph, state = nnx.split(layer)
    found = jprec.audit(lambda state, x: nnx.merge(graph, state)(x), state, f32(2, 5, 8))
    assert [o.runs_as for o in found.operations].count("tf32") == 2
    (finding,) = found.findings
    assert finding.kind == "attention_ignores_precision"
    assert finding.count == 2
