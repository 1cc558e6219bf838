"""Probes: small programs whose result tells what the backend does with a precision.

Compilers skip roundings, fuse operations, ignore requests and flush subnormals, and none of this
shows in a program's text. Each probe runs under `jit`, as training does, and answers in words.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jprec import matmul


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What one probe found.

    Attributes:
      name: Spelling used in records.
      question: What was asked.
      answer: What came out, in words.
      value: The number or word behind the answer, ready for JSON.
    """

    name: str
    question: str
    answer: str
    value: Any


def probe_backend() -> tuple[Probe, ...]:
    """What this backend does, one `Probe` a question; a second or two, mostly compilation.

    Raises:
      RuntimeError: if the emulation itself does not hold here: the emulated TF32 product of 1.0001
        and 1 is not exactly 1, or a full-precision product is not full FP32. No study may run then.
    """
    return tuple(probe() for probe in _PROBES)


def _full_precision() -> Probe:
    error = _product_error(lambda a, b: matmul.matmul(a, b, "fp32"))
    if not error < 2.0**-18:
        raise RuntimeError(
            f"products asked for in full FP32 have a relative error of {error:.1e} here, so there "
            "is no baseline to compare with. Unset flags that lower the precision of products."
        )
    return Probe(
        name="fp32_product",
        question="Is a product at Precision.HIGHEST full FP32?",
        answer=f"yes: its largest relative error is {error:.1e}",
        value=error,
    )


def _emulated_tf32() -> Probe:
    got = float(
        jax.jit(lambda a, b: matmul.matmul(a, b, "tf32"))(
            jnp.full((1, 1), 1.0001, jnp.float32), jnp.ones((1, 1), jnp.float32)
        )[0, 0]
    )
    if got != 1.0:
        raise RuntimeError(
            f"the emulated TF32 product of 1.0001 and 1 is {got!r} here, but 1.0001 in TF32 is "
            "exactly 1. The compiler has changed the emulation; results would be worthless."
        )
    return Probe(
        name="emulated_tf32",
        question="Is the emulated TF32 product of 1.0001 and 1 exactly 1?",
        answer="yes",
        value=True,
    )


def _default_product() -> Probe:
    error = _product_error(jnp.matmul)
    words = "full FP32" if error < 2.0**-18 else "less than FP32 (TF32 or BF16 operands)"
    return Probe(
        name="default_product",
        question="How is an FP32 product computed that asks for nothing?",
        answer=f"{words}: its largest relative error is {error:.1e}",
        value=error,
    )


def _preset(name: str, rounded_to: str) -> Callable[[], Probe]:
    """The probe of one `DotAlgorithmPreset`: rejected, ignored (full FP32) or honoured."""

    def probe() -> Probe:
        preset = lax.DotAlgorithmPreset[name]
        try:
            error = _product_error(lambda a, b: jnp.matmul(a, b, precision=preset))
        except Exception as reason:  # which class is raised depends on backend and version
            value, answer = "rejected", f"rejected: {str(reason).splitlines()[0][:160]}"
        else:
            value = "ignored" if error < 2.0**-18 else "honoured"
            answer = f"{value}: the largest relative error is {error:.1e}"
        return Probe(
            name=name.lower(),
            question=f"What becomes of a request for {rounded_to} products ({name})?",
            answer=answer,
            value=value,
        )

    return probe


def _convolution_preset() -> Probe:
    a, b = _operands()
    image, kernel = a.reshape(1, 1, 16, 64), b.reshape(1, 1, 64, 16)  # a 1 x 1 kernel

    def convolve(precision: Any) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.jit(
            lambda x, k: lax.conv_general_dilated(
                x, k, (1, 1), "VALID", dimension_numbers=layout, precision=precision
            )
        )(image, kernel)

    try:
        asked = convolve(lax.DotAlgorithmPreset.BF16_BF16_F32)
    except Exception as reason:
        value, answer = "rejected", f"rejected: {str(reason).splitlines()[0][:160]}"
    else:
        same = np.array_equal(asked, convolve(lax.Precision.DEFAULT))
        value = "ignored" if same else "honoured"
        answer = "ignored: the bits are those of no request" if same else "honoured"
    return Probe(
        name="convolution_preset",
        question="Does a convolution heed a preset (BF16_BF16_F32)?",
        answer=answer,
        value=value,
    )


def _fp16_accumulation() -> Probe:
    ones = jnp.ones((1, 4096), jnp.float16)
    got = float(jax.jit(lambda a: jnp.matmul(a, a.T))(ones)[0, 0])
    wide = got == 4096
    return Probe(
        name="fp16_accumulation",
        question="In which format does an FP16 product of 4096 ones add up?",
        answer=f"the sum is {got:g}: "
        + ("FP32 or wider" if wide else "FP16, which stalls at 2048"),
        value=got,
    )


def _subnormals() -> Probe:
    tiny = jnp.asarray(np.array([1e-40], np.float32))
    kept = float(jax.jit(lambda x: x * 1.5)(tiny)[0]) != 0
    return Probe(
        name="fp32_subnormals",
        question="Does FP32 arithmetic keep subnormal numbers?",
        answer="yes" if kept else "no: 1e-40 * 1.5 gives 0 (flush to zero)",
        value=kept,
    )


def _cast_pair() -> Probe:
    x = _random(4096)
    got = jax.jit(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32))(x)
    return _skipped_roundings(
        "cast_pair", "Does x.astype(bfloat16).astype(float32) round?", got, _bf16(x)
    )


def _low_product() -> Probe:
    a, b = _bf16(_random(4096)), _bf16(_random(4096, seed=1))
    low = jnp.bfloat16
    got = jax.jit(lambda a, b: (a.astype(low) * b.astype(low)).astype(jnp.float32))(a, b)
    return _skipped_roundings(
        "bf16_product_used_in_fp32",
        "Is a BF16 product rounded to BF16 before it is used in FP32?",
        got,
        _bf16(a * b),
    )


def _contraction() -> Probe:
    a, b, c = (_random(4096, seed=s) for s in range(3))
    got = np.asarray(jax.jit(lambda a, b, c: a * b + c)(a, b, c))
    share = float(np.mean(got != a * b + c))
    return Probe(
        name="fma_contraction",
        question="Is a * b + c rounded twice, as written?",
        answer="yes" if share == 0 else f"no: fused, and {share:.0%} of the results differ",
        value=share,
    )


def _skipped_roundings(name: str, question: str, got: Any, want: np.ndarray) -> Probe:
    share = float(np.mean(np.asarray(got) != want))
    answer = "yes" if share == 0 else f"no: {share:.1%} of the values keep their FP32 digits"
    return Probe(name=name, question=question, answer=answer, value=share)


def _random(n: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(n).astype(np.float32)


def _bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def _operands() -> tuple[np.ndarray, np.ndarray]:
    """Positive factors [16, 64] and [64, 16]: without cancellation, relative errors mean much."""
    a, b = np.abs(_random(1024)), np.abs(_random(1024, seed=1))
    return a.reshape(16, 64) + np.float32(0.1), b.reshape(64, 16) + np.float32(0.1)


def _product_error(product: Callable[[Any, Any], jax.Array]) -> float:
    """The largest relative error of `product` on `_operands`, against float64."""
    a, b = _operands()
    want = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.max(np.abs(np.asarray(jax.jit(product)(a, b)) - want) / want))


_PROBES: tuple[Callable[[], Probe], ...] = (
    _full_precision,
    _emulated_tf32,
    _default_product,
    _preset("TF32_TF32_F32", "TF32"),
    _preset("BF16_BF16_F32", "BF16"),
    _preset("F16_F16_F16", "FP16"),
    _convolution_preset,
    _fp16_accumulation,
    _subnormals,
    _cast_pair,
    _low_product,
    _contraction,
)
