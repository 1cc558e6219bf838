"""What an audit finds: each finding where it belongs, and not beside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax import lax

import jprec
from jprec.doctor.findings import KINDS


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def kinds(fn, *args, device="a100"):
    found = jprec.audit(fn, *args, device=device).findings
    return {finding.kind for finding in found}


def at(precision):
    return lambda a, b: jnp.matmul(a, b, precision=precision)


def convolve(precision):
    def fn(x, k):
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=layout, precision=precision
        )

    return fn


def of_module(module):
    graph, state = nnx.split(module)
    return lambda state, *inputs: nnx.merge(graph, state)(*inputs), state


def attention(precision):
    return nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0), decode=False, precision=precision)


def in_context(fn):
    def inside(*args):
        with jax.default_matmul_precision("highest"):
            return fn(*args)

    return inside


def squared(x):
    return jnp.sum(x**2, -1)


IMAGE, KERNEL = f32(2, 8, 8, 3), f32(3, 3, 3, 4)
POINTS, MATRIX = f32(16, 8), f32(8, 8)


def distances(precision):
    def fn(a, b):
        return squared(a)[:, None] - 2 * jnp.matmul(a, b.T, precision=precision) + squared(b)[None]

    return fn


def gram(precision, factorise=jnp.linalg.cholesky):
    return lambda x: factorise(jnp.matmul(x, x.T, precision=precision) + jnp.eye(x.shape[0]))


def narrow_backward(w, x):
    numbers = (((1,), (0,)), ((), ()))
    y = lax.dot_general(x, w, numbers, preferred_element_type=jnp.bfloat16)
    return jnp.sum(y.astype(jnp.float32))


def attend(state, x):
    return nnx.merge(ATTENDED, state).attend(x)


LINEAR, LINEAR_STATE = of_module(nnx.Linear(8, 4, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
CELLS, CELLS_STATE = of_module(nnx.RNN(nnx.LSTMCell(8, 8, rngs=nnx.Rngs(0))))
ATTENDED, EMBEDDING = nnx.split(nnx.Embed(16, 8, rngs=nnx.Rngs(0)))
NNX_ATTENTION, ATTENTION_STATE = of_module(attention("highest"))
LINEN_ATTENTION = linen.MultiHeadAttention(2, precision="highest")

#: Kind -> (function, arguments) in which it is found.
POSITIVE = {
    "rejected": (at("TF32_TF32_F32"), POINTS, MATRIX, "t4"),
    "setting_without_effect": (convolve("F32_F32_F32"), IMAGE, KERNEL, "a100"),
    "attention_ignores_precision": (NNX_ATTENTION, ATTENTION_STATE, f32(2, 5, 8), "a100"),
    "no_setting": (CELLS, CELLS_STATE, f32(2, 5, 8), "a100"),
    "cancellation": (distances(None), POINTS, POINTS, "a100"),
    "coordinates": (at(None), f32(100, 3), f32(3, 3), "a100"),
    "gram_factorised": (gram(None), POINTS, "a100"),
    "vmap_matrix_product": (
        lambda w, x: jax.vmap(lambda v: w @ v)(x),
        MATRIX,
        POINTS,
        "a100",
    ),
    "backward_differs": (jax.grad(narrow_backward), MATRIX, bf16(16, 8), "a100"),
    "bf16_meets_fp32": (LINEAR, LINEAR_STATE, POINTS, "a100"),
}

#: (kind that must not be found, function, arguments, device), nearly as above.
NEGATIVE = [
    ("rejected", at("TF32_TF32_F32"), POINTS, MATRIX, "a100"),
    ("setting_without_effect", convolve("highest"), IMAGE, KERNEL, "a100"),
    ("setting_without_effect", at("F32_F32_F32"), POINTS, MATRIX, "a100"),
    (
        "attention_ignores_precision",
        in_context(NNX_ATTENTION),
        ATTENTION_STATE,
        f32(2, 5, 8),
        "a100",
    ),
    (
        "attention_ignores_precision",
        lambda x: LINEN_ATTENTION.init_with_output(jax.random.key(0), x)[0],
        f32(2, 5, 8),
        "a100",
    ),
    ("no_setting", in_context(CELLS), CELLS_STATE, f32(2, 5, 8), "a100"),
    ("no_setting", CELLS, CELLS_STATE, f32(2, 5, 8), "v100"),
    ("no_setting", in_context(attend), EMBEDDING, POINTS, "a100"),
    ("cancellation", distances("highest"), POINTS, POINTS, "a100"),
    (
        "cancellation",
        lambda a, b: squared(a[:, None] - b[None]) + at(None)(a, b.T),
        POINTS,
        POINTS,
        "a100",
    ),
    # A penalty on weights is no distance, although it adds squares of an operand.
    (
        "cancellation",
        lambda w, x: jnp.mean(x @ w) + 0.1 * jnp.sum(w**2),
        MATRIX,
        POINTS,
        "a100",
    ),
    ("coordinates", at("highest"), f32(100, 3), f32(3, 3), "a100"),
    ("coordinates", at(None), POINTS, MATRIX, "a100"),
    ("gram_factorised", gram("highest"), POINTS, "a100"),
    ("gram_factorised", gram(None), POINTS, "v100"),
    ("gram_factorised", gram(None, jnp.tanh), POINTS, "a100"),
    ("gram_factorised", lambda x, y: jnp.linalg.cholesky(x @ y.T), POINTS, POINTS, "a100"),
    ("vmap_matrix_product", lambda w, x: x @ w, MATRIX, POINTS, "a100"),
    (
        "vmap_matrix_product",
        lambda w, x: jax.vmap(lambda m: w @ m)(x),
        MATRIX,
        f32(4, 8, 7),
        "a100",
    ),
    ("vmap_matrix_product", lambda w, x: jax.vmap(lambda v: w @ v)(x), MATRIX, POINTS, "v100"),
    (
        "backward_differs",
        jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))),
        MATRIX,
        POINTS,
        "a100",
    ),
    ("bf16_meets_fp32", LINEAR, LINEAR_STATE, bf16(16, 8), "a100"),
    (
        "bf16_meets_fp32",
        lambda w, x: x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16),
        MATRIX,
        POINTS,
        "a100",
    ),
]


@pytest.mark.parametrize("kind", POSITIVE)
def test_it_is_found(kind):
    fn, *args, device = POSITIVE[kind]
    assert kind in kinds(fn, *args, device=device)


@pytest.mark.parametrize("case", NEGATIVE, ids=[f"{n}_{c[0]}" for n, c in enumerate(NEGATIVE)])
def test_it_is_not_found(case):
    kind, fn, *args, device = case
    assert kind not in kinds(fn, *args, device=device)


def test_every_kind_is_tested():
    assert set(KINDS) - set(POSITIVE) == {"assigned_setting", "fp64_made_fp32"}


def test_embed_attend_has_no_setting():
    (finding,) = jprec.audit(attend, EMBEDDING, POINTS).findings
    assert finding.message == "Embed.attend has no `precision`: its products run as tf32"


def test_an_assigned_setting_is_found(monkeypatch):
    monkeypatch.setattr(jax, "default_matmul_precision", "float32")
    (finding,) = jprec.audit(at(None), POINTS, MATRIX).findings
    assert finding.kind == "assigned_setting"
    assert "jax.config.update(\"jax_default_matmul_precision\", 'float32')" in str(finding)


def test_fp64_made_fp32_is_found_in_arguments_casts_and_presets():
    wide = np.ones((8, 8))
    assert kinds(at(None), wide, wide) == {"fp64_made_fp32"}
    with jax.enable_x64(True):
        assert kinds(at(None), wide, wide) == set()
        assert kinds(at("highest"), wide, wide) == set()
        assert kinds(at("F32_F32_F32"), wide, wide) == {"fp64_made_fp32"}
        cast = lambda a, b: at(None)(a.astype(jnp.float32).astype(jnp.float64), b)
        (finding,) = jprec.audit(cast, wide, wide).findings
        assert finding.source.startswith(__file__)


def test_a_cpu_ignores_bf16_presets_and_the_audit_says_so():
    assert kinds(at("BF16_BF16_F32"), POINTS, MATRIX, device="cpu") == {"setting_without_effect"}
    assert kinds(at("BF16_BF16_F32"), POINTS, MATRIX, device="a100") == set()


def test_distances_are_seen_in_every_usual_spelling():
    def by_einsum(a, b):
        squares = lambda x: jnp.einsum("id,id->i", x, x)
        return squares(a)[:, None] + squares(b)[None] - 2 * jnp.einsum("id,jd->ij", a, b)

    def by_diagonal(a, b):
        g = a @ a.T
        return jnp.diagonal(g)[:, None] + jnp.diagonal(g)[None] - 2 * g

    @jax.jit
    def jitted(a, b):
        return jnp.sqrt(distances(None)(a, b))

    def kernel(a, b):
        return jnp.exp(-jax.vmap(lambda x: distances(None)(x, x))(a[None]))

    for spelling in (by_einsum, by_diagonal, jitted, kernel):
        assert "cancellation" in kinds(spelling, POINTS, POINTS)


def test_a_gram_matrix_is_seen_in_every_usual_spelling():
    spellings = (
        lambda x: jnp.linalg.eigh(jnp.cov(x, rowvar=False)),
        lambda x: jnp.linalg.svd(jnp.einsum("ni,nj->ij", x, x)),
        lambda x: jnp.linalg.solve(x.T @ x + 0.1 * jnp.eye(8), x.T),
        lambda x: jax.scipy.linalg.cho_factor((x - x.mean(0)).T @ (x - x.mean(0))),
        jax.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c, jnp.linalg.cholesky(x @ x.T))),
    )
    for spelling in spellings:
        assert "gram_factorised" in kinds(spelling, POINTS)


def test_findings_of_one_line_are_one_and_are_counted():
    def twice(x):
        for _ in range(3):
            x = at("F32_F32_F32")(x, x)
        for _ in range(3):
            x = convolve("F32_F32_F32")(x[None, ..., None], jnp.ones((3, 3, 1, 1)))[0, ..., 0]
        return x

    (finding,) = jprec.audit(twice, MATRIX).findings
    assert finding.count == 3
    assert "(3 products)" in str(finding)


def test_each_finding_is_one_sentence_and_a_remedy_with_its_place():
    for fn, *args, device in POSITIVE.values():
        for finding in jprec.audit(fn, *args, device=device).findings:
            assert "\n" not in str(finding)
            assert str(finding).endswith(".")
            assert not finding.message.endswith(".")
            assert finding.source is not None
            assert finding.remedy[0].isupper()


def test_a_preset_that_is_ignored_but_granted_anyway_is_no_finding():
    for preset, device in (
        ("F32_F32_F32", "v100"),
        ("F32_F32_F32", "cpu"),
        ("TF32_TF32_F32", "a100"),
    ):
        assert "setting_without_effect" not in kinds(convolve(preset), IMAGE, KERNEL, device=device)
    assert "setting_without_effect" in kinds(convolve("F32_F32_F32"), IMAGE, KERNEL)


def test_four_features_are_no_coordinates():
    assert "coordinates" in kinds(at(None), f32(64, 3), f32(3, 3))
    assert "coordinates" not in kinds(at(None), f32(64, 4), f32(4, 64))
