"""This machine's own products: what a spec asks a GPU for, and whether it would obey."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jprec.matmul.arithmetic import Arithmetic
from jprec.matmul.layout import Dimensions
from jprec.matmul.spec import MatmulSpec

#: Spec without "@native" -> the algorithm that a dot is asked for.
ALGORITHMS = {
    "fp32": lax.DotAlgorithmPreset.F32_F32_F32,
    "tf32": lax.DotAlgorithmPreset.TF32_TF32_F32,
    "tf32x3": lax.DotAlgorithmPreset.TF32_TF32_F32_X3,
    "bf16": lax.DotAlgorithmPreset.BF16_BF16_F32,
    "bf16x3": lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
    "bf16x6": lax.DotAlgorithmPreset.BF16_BF16_F32_X6,
    "bf16x9": lax.DotAlgorithmPreset.BF16_BF16_F32_X9,
    "fp16": lax.DotAlgorithmPreset.F16_F16_F32,
    "fp16+fp16": lax.DotAlgorithmPreset.F16_F16_F16,
    # Also E5M2 by E4M3, in either order. Not E5M2 by E5M2: cuBLASLt has no such product, and XLA
    # would widen the operands.
    "e4m3fn": lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32,
}

#: Operands are converted to these dtypes first; TF32 has none, the machine rounds FP32.
_DTYPES = {
    "bf16": jnp.bfloat16,
    "fp16": jnp.float16,
    "fp16+fp16": jnp.float16,
    "e4m3fn": jnp.float8_e4m3fn,
    "e5m2": jnp.float8_e5m2,
}

#: Spec -> the precision that a convolution is asked for: those ignore every algorithm.
PRECISIONS = {
    "fp32": lax.Precision.HIGHEST,
    "tf32": lax.Precision.DEFAULT,
    "bf16": lax.Precision.DEFAULT,
    "fp16": lax.Precision.DEFAULT,
}


def _request(spec: MatmulSpec) -> str:
    return spec.name.replace("@native", "")


def check(spec: MatmulSpec, table: dict[str, Any], what: str) -> str:
    """The row of `table` that `spec` asks for.

    Raises:
      ValueError: there is none, or this backend is not known to heed the request.
    """
    request = _request(spec)
    if request not in table:
        raise ValueError(
            f"spec {spec}: no native {what} is known for it; native ones are "
            f"{', '.join(f'{name}@native' for name in table)}. {request!r} is emulated."
        )
    backend = jax.default_backend()
    if backend not in ("gpu", "cuda"):
        raise ValueError(
            f"spec {spec}: native products are for NVIDIA GPUs, the backend here is {backend!r}. "
            "On a CPU, XLA rejects TF32, computes BF16 presets in FP32 and sums FP16 in FP32: what "
            f"it would return is not what was asked for. {request!r} is emulated on every backend."
        )
    return request


def dot_general(lhs: jax.Array, rhs: jax.Array, dims: Dimensions, how: Arithmetic) -> jax.Array:
    """The product as this machine does it, in float32.

    Args:
      lhs: Narrow floating-point.
      rhs: Likewise.
      dims: As in lax.
      how: Arithmetic with a native sum.
    """
    inputs = how.lhs.operand_format, how.rhs.operand_format
    if inputs[0] == inputs[1]:
        return requested_dot(lhs, rhs, dims, check(how.sums, ALGORITHMS, "product"))
    mixed = dataclasses.replace(how.sums, operand_format="e4m3fn")
    return requested_dot(lhs, rhs, dims, check(mixed, ALGORITHMS, "product"), inputs)


def requested_dot(
    lhs: jax.Array,
    rhs: jax.Array,
    dims: Dimensions,
    request: str,
    inputs: tuple[str, str] | None = None,
) -> jax.Array:
    """The product by the algorithm of `request`, whatever the backend makes of it.

    `inputs` are the operands' formats, if not those of the request.
    """
    first, second = (_DTYPES.get(name, jnp.float32) for name in inputs or (request, request))
    algorithm = ALGORITHMS[request]
    result = jnp.float16 if request == "fp16+fp16" else jnp.float32
    out = lax.dot_general(
        lhs.astype(first),
        rhs.astype(second),
        dims,
        precision=algorithm,
        preferred_element_type=result,
    )
    return out.astype(jnp.float32)


def convolve(lhs: jax.Array, rhs: jax.Array, convolution: Any, how: Arithmetic) -> jax.Array:
    """The convolution as this machine does it, in float32.

    Convolutions of FP32 operands at the default precision run in TF32 where the device has it.
    """
    return requested_convolution(lhs, rhs, convolution, check(how.sums, PRECISIONS, "convolution"))


def requested_convolution(
    lhs: jax.Array, rhs: jax.Array, convolution: Any, request: str
) -> jax.Array:
    """The convolution at the precision of `request`, whatever the backend makes of it."""
    dtype = _DTYPES.get(request, jnp.float32)
    run = functools.partial(convolution, precision=PRECISIONS[request])
    return run(lhs.astype(dtype), rhs.astype(dtype), preferred_element_type=jnp.float32)
