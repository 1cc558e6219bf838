"""How a device runs a product: one table of rules, each with its reason and its source.

Nothing runs and no GPU is asked: a rule looks at the operands' formats, at what the program asks
for, and at what the device can do. The first rule that holds decides. Where what is known does
not settle the question, the answer is "undetermined", with the arithmetics that remain possible.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from jprec import hardware
from jprec.doctor.request import FP8, PRESETS, Kind, Request, Target, request, target
from jprec.program import Product

Answer: TypeAlias = str | Callable[[Request], str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One line of the table.

    Attributes:
      name: Short name, for tests and for JSON.
      kinds: The targets' kinds that it speaks about.
      when: Whether it holds for a request.
      runs_as: The arithmetic, or a function that gives it; "rejected"; "undetermined".
      reason: Why, in a phrase.
      source: Who says so.
      status: How it is known.
      may_be: Where undetermined, what remains possible, fastest first.
      ignores: Whether the program asks for something that has no effect.
    """

    name: str
    kinds: tuple[Kind, ...]
    when: Callable[[Request], bool]
    runs_as: Answer
    reason: str
    source: str
    status: hardware.Status
    may_be: tuple[str, ...] = ()
    ignores: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution:
    """How a product runs.

    Attributes:
      runs_as: A name of `jprec.matmul` such as "tf32" or "bf16x3"; also "fp64" and names of integer
        dtypes; "rejected" where the compiler refuses it; "undetermined".
      reason: Why, in a phrase.
      rule: The rule that decided.
      source: Who says so.
      status: How this is known.
      may_be: Where undetermined, what remains possible, fastest first.
      ignores: Whether the program asks for something that has no effect.
    """

    runs_as: str
    reason: str
    rule: str
    source: str
    status: hardware.Status
    may_be: tuple[str, ...] = ()
    ignores: bool = False


def execution(product: Product, device: str | hardware.Device | Target) -> Execution:
    """How `device` will run a product, by the first rule that holds.

    >>> import jax.numpy as jnp
    >>> from jprec import program
    >>> (product,) = program.products(lambda a: a @ a, jnp.ones((8, 8)))
    >>> [execution(product, device).runs_as for device in ("a100", "v100", "tpu", "cpu")]
    ['tf32', 'fp32', 'bf16', 'fp32']
    """
    asked = request(product, target(device))
    rule = next(rule for rule in RULES if asked.target.kind in rule.kinds and rule.when(asked))
    return Execution(
        runs_as=rule.runs_as(asked) if callable(rule.runs_as) else rule.runs_as,
        reason=rule.reason,
        rule=rule.name,
        source=rule.source,
        status=rule.status,
        may_be=rule.may_be,
        ignores=rule.ignores,
    )


# ---- The table

_ALL: tuple[Kind, ...] = ("nvidia", "tpu", "cpu")
_PROBED = "measured with JAX 0.10.2 and 0.12.0 on x86-64; `jprec probe` asks this machine"
_ALGORITHM_UTIL = "openxla/xla, xla/service/algorithm_util.cc, and jax.lax.DotAlgorithmPreset"
_CUBLAS = "openxla/xla, GPU gemm_rewriter and matmul_utils: TF32 where compute_precision <= HIGH"
_TRITON = "openxla/xla, Triton IsTf32Allowed: only at DEFAULT"
_CUDNN = "openxla/xla, GPU conv_rewriter and cuDNN math types: TF32 where precision <= HIGH"
_SIMPLIFIER = "openxla/xla, gpu/transforms/algebraic_simplifier.cc, ShouldStrengthReduceDotToReduce"
_CONV_LOWERING = "jax, conv_general_dilated's lowering maps every preset to DEFAULT; measured"
_JAX_LAX = "jax, documentation of jax.lax.Precision"
_JAX_TESTS = "jax, tests/lax_test.py, presets on TPU"
_TPU_DOCS = "jax, documentation of jax.lax.Precision; jax issues 7010, 10413"


def _widest(asked: Request) -> str:
    return asked.widest


def _preset(asked: Request) -> str:
    return PRESETS[asked.preset or ""]


def _dot(*presets: str) -> Callable[[Request], bool]:
    """Whether a dot (no convolution) asks for one of these presets."""
    return lambda asked: not asked.is_convolution and asked.preset in presets


def _names(pattern: str) -> tuple[str, ...]:
    return tuple(name for name in PRESETS if re.fullmatch(pattern, name))


_F8_PRESETS = _names("ANY_F8.*")
_NEEDS_AMPERE = _names("(TF32|BF16)_.*_F32(_X.)?")


def _is(fmt: str) -> Callable[[Request], bool]:
    return lambda asked: asked.widest == fmt


def _single(asked: Request) -> bool:
    return asked.widest == "fp32"


def _single_at(level: str) -> Callable[[Request], bool]:
    return lambda asked: _single(asked) and asked.level == level


def _single_convolution(asked: Request) -> bool:
    return _single(asked) and asked.is_convolution and not asked.is_complex


def _fp8_operands(asked: Request) -> bool:
    known = all(fmt in FP8 and asked.target.multiplies(fmt) for fmt in asked.formats)
    return known and asked.formats != ("e5m2", "e5m2")


def _fp8_format(asked: Request) -> str:
    return "fp8_e5m2" if "e5m2" in asked.formats else "fp8_e4m3"


def _rule(
    name: str,
    kinds: tuple[Kind, ...],
    when: Callable[[Request], bool],
    runs_as: Answer,
    reason: str,
    source: str,
    status: hardware.Status,
    **more: Any,
) -> Rule:
    return Rule(
        name=name,
        kinds=kinds,
        when=when,
        runs_as=runs_as,
        reason=reason,
        source=source,
        status=status,
        **more,
    )


_NV: tuple[Kind, ...] = ("nvidia",)
_TPU: tuple[Kind, ...] = ("tpu",)
_CPU: tuple[Kind, ...] = ("cpu",)

RULES = (
    _rule(
        "integers", _ALL, lambda asked: asked.is_integer and asked.preset is None,
        lambda asked: asked.formats[0],
        "integers are multiplied and added as integers", "XLA operation semantics", "documented",
    ),
    _rule(
        "integers_preset", _ALL, lambda asked: asked.is_integer, "undetermined",
        "integers under a preset: JAX converts them to the preset's format, or refuses when it "
        "lowers", "JAX, lowering of dot_general", "documented",
    ),
    # ---- Presets that a compiler refuses
    _rule(
        "cpu_custom", _CPU, _dot("custom"), "rejected",
        "the CPU compiler takes no DotAlgorithm of one's own", _PROBED, "measured",
    ),
    _rule(
        "cpu_rejects", _CPU,
        _dot(*_F8_PRESETS, "TF32_TF32_F32", "TF32_TF32_F32_X3", "F16_F16_F32",
             "BF16_BF16_BF16", "BF16_BF16_F32_X9"),
        "rejected", "the CPU compiler has no such algorithm, and says so when it lowers",
        _PROBED, "measured",
    ),
    _rule(
        "tpu_rejects", _TPU,
        lambda asked: not asked.is_convolution and asked.preset is not None
        and asked.preset not in ("custom", *_names("BF16_BF16_F32(_X[36])?")),
        "rejected", "the TPU compiler takes DEFAULT, BF16_BF16_F32 and its X3 and X6 only",
        _JAX_TESTS, "documented",
    ),
    _rule(
        "nvidia_never", _NV, _dot("F16_F16_F16", "BF16_BF16_BF16"), "rejected",
        "the CUDA compiler has no such algorithm", _ALGORITHM_UTIL, "documented",
    ),
    _rule(
        "nvidia_before_ampere", _NV,
        lambda asked: _dot(*_NEEDS_AMPERE)(asked) and not asked.target.multiplies("tf32"),
        "rejected", "TF32 and BF16 algorithms need Ampere or newer (compute capability 8.0)",
        _ALGORITHM_UTIL + "; keras issue 21112", "documented",
    ),
    _rule(
        "nvidia_fp8_preset", _NV,
        lambda asked: _dot(*_F8_PRESETS)(asked) and _fp8_operands(asked), _fp8_format,
        "the preset asks for it, and both operands are FP8", _ALGORITHM_UTIL, "documented",
    ),
    _rule(
        "nvidia_rejects_fp8", _NV, _dot(*_F8_PRESETS), "rejected",
        "FP8 algorithms need Ada or newer and two FP8 operands, not both E5M2",
        _ALGORITHM_UTIL, "documented",
    ),
    _rule(
        "custom", ("nvidia", "tpu"), _dot("custom"), "undetermined",
        "a DotAlgorithm of one's own is accepted or refused by value", _ALGORITHM_UTIL, "assumed",
    ),
    # ---- Presets that count
    _rule(
        "cpu_bf16_ignored", _CPU,
        lambda asked: _dot(*_names("BF16_BF16_F32.*"))(asked) and _single(asked), "fp32",
        "the CPU compiler accepts a BF16 preset and computes in FP32", _PROBED, "measured",
        ignores=True,
    ),
    _rule(
        "cpu_fp16_preset", _CPU, _dot("F16_F16_F16"), "fp16",
        "operands and result are rounded to FP16, sums are FP32", _PROBED, "measured",
    ),
    _rule(
        "preset", _ALL,
        lambda asked: not asked.is_convolution and asked.preset is not None, _preset,
        "the preset asks for it", _ALGORITHM_UTIL, "documented",
    ),
    # ---- FP64
    _rule(
        "fp64_tpu", _TPU, _is("fp64"), "undetermined",
        "a TPU has no FP64 units; how the compiler replaces them is not documented",
        "nothing at hand", "assumed", may_be=("fp64",),
    ),
    _rule(
        "fp64", ("nvidia", "cpu"), _is("fp64"), "fp64",
        "FP64 operands are multiplied in FP64 whatever precision is asked for",
        _JAX_LAX, "documented",
    ),
    # ---- A processor
    _rule(
        "cpu_preset_on_convolution", _CPU,
        lambda asked: asked.is_convolution and asked.preset is not None and _single(asked), "fp32",
        "a convolution ignores every preset", _CONV_LOWERING, "measured", ignores=True,
    ),
    _rule(
        "cpu_fp32", _CPU, _single, "fp32",
        "the CPU compiler computes in FP32 whatever precision is asked for", _PROBED, "measured",
    ),
    _rule(
        "cpu_narrow", _CPU, lambda asked: asked.widest in ("fp16", "bf16"), _widest,
        "operands are widened, sums are FP32, the result is rounded once", _PROBED, "measured",
    ),
    # ---- TPU
    _rule(
        "tpu_complex", _TPU, lambda asked: asked.is_complex, "undetermined",
        "how the compiler splits complex products is not documented", "nothing at hand", "assumed",
    ),
    _rule(
        "tpu_preset_on_convolution", _TPU,
        lambda asked: asked.is_convolution and asked.preset is not None and _single(asked), "bf16",
        "a convolution ignores every preset: one BF16 pass, as at DEFAULT",
        _CONV_LOWERING, "documented", ignores=True,
    ),
    _rule(
        "tpu_two_levels", _TPU,
        lambda asked: _single(asked) and len(set(asked.levels or ())) > 1, "undetermined",
        "the number of passes for two different levels is not documented", "nothing at hand",
        "assumed", may_be=("bf16", "bf16x3", "bf16x6"),
    ),
    *(
        _rule(
            f"tpu_{level.lower()}", _TPU, _single_at(level), runs_as,
            f"FP32 at {level} is {passes} on a TPU", _TPU_DOCS, "documented",
        )
        for level, runs_as, passes in (
            ("DEFAULT", "bf16", "one BF16 pass"),
            ("HIGH", "bf16x3", "three BF16 passes"),
            ("HIGHEST", "bf16x6", "six BF16 passes"),
        )
    ),
    _rule(
        "tpu_bf16", _TPU, _is("bf16"), "bf16",
        "BF16 operands, FP32 sums", _TPU_DOCS, "documented",
    ),
    # ---- NVIDIA, FP32
    _rule(
        "nvidia_complex_convolution", _NV,
        lambda asked: asked.is_complex and asked.is_convolution, "undetermined",
        "how complex convolutions are split is not documented", "nothing at hand", "assumed",
        may_be=("tf32", "fp32"),
    ),
    _rule(
        "nvidia_no_tf32_preset_on_convolution", _NV,
        lambda asked: _single_convolution(asked) and asked.preset is not None
        and not asked.target.multiplies("tf32"), "fp32",
        "a convolution ignores every preset, and this device has no TF32", _CONV_LOWERING,
        "documented", ignores=True,
    ),
    _rule(
        "nvidia_no_tf32", _NV,
        lambda asked: _single(asked) and not asked.target.multiplies("tf32"), "fp32",
        "this device has no TF32; FP32 stays FP32", "jprec hardware; jax issue 11628 (T4, V100)",
        "documented",
    ),
    _rule(
        "nvidia_preset_on_convolution", _NV,
        lambda asked: _single_convolution(asked) and asked.preset is not None, "tf32",
        "a convolution ignores every preset: cuDNN may use TF32, as at DEFAULT",
        f"{_CONV_LOWERING}; {_CUDNN}", "documented", ignores=True,
    ),
    _rule(
        "nvidia_highest", _NV, lambda asked: _single(asked) and asked.level == "HIGHEST", "fp32",
        "HIGHEST asks for FP32", f"{_CUBLAS}; {_TRITON}", "documented",
    ),
    _rule(
        "nvidia_convolution", _NV, _single_convolution, "tf32",
        "cuDNN may use TF32 at DEFAULT and HIGH; only HIGHEST forbids it", _CUDNN, "documented",
    ),
    _rule(
        "nvidia_ragged", _NV, lambda asked: _single(asked) and asked.is_ragged, "undetermined",
        "how a ragged product becomes dots depends on JAX's version", "nothing at hand",
        "assumed", may_be=("tf32", "fp32"),
    ),
    _rule(
        "nvidia_two_vectors", _NV, lambda asked: _single(asked) and asked.vectors == 2, "fp32",
        "a product of two vectors is rewritten as multiply and sum, without tensor cores",
        _SIMPLIFIER, "documented",
    ),
    _rule(
        "nvidia_other_result", _NV,
        lambda asked: _single(asked) and not asked.same_result and len(set(asked.formats)) == 1,
        "undetermined", "TF32 is allowed where operands and result share a dtype; here they do not",
        _CUBLAS, "assumed", may_be=("tf32", "fp32"),
    ),
    _rule(
        "nvidia_vector", _NV, lambda asked: _single(asked) and asked.vectors == 1, "undetermined",
        "a matrix times a vector: the library chooses; jax issue 11628 saw FP32", "jax issue 11628",
        "assumed", may_be=("tf32", "fp32"),
    ),
    _rule(
        "nvidia_high", _NV, lambda asked: _single(asked) and asked.level == "HIGH", "undetermined",
        "HIGH is TF32 by cuBLAS and FP32 by Triton, and the autotuner decides",
        f"{_CUBLAS}; {_TRITON}", "documented", may_be=("tf32", "fp32"),
    ),
    _rule(
        "nvidia_default", _NV, _single, "tf32",
        "FP32 at DEFAULT is TF32 on Ampere and newer, by cuBLAS and by Triton",
        f"{_CUBLAS}; {_TRITON}", "documented",
    ),
    # ---- NVIDIA, 16 and 8 bits
    _rule(
        "nvidia_fp16", _NV, _is("fp16"), "fp16",
        "FP16 operands, FP32 sums", "openxla/xla, GPU matmul_utils: F16 computes in F32",
        "documented",
    ),
    _rule(
        "nvidia_bf16", _NV,
        lambda asked: asked.widest == "bf16" and asked.target.multiplies("bf16"), "bf16",
        "BF16 operands, FP32 sums", "openxla/xla, GPU matmul_utils: BF16 computes in F32",
        "documented",
    ),
    _rule(
        "nvidia_no_bf16", _NV, _is("bf16"), "undetermined",
        "this device has no BF16 tensor cores; where the compiler widens is not settled",
        "jprec hardware", "assumed", may_be=("fp32",),
    ),
    _rule(
        "nvidia_fp8", _NV, _fp8_operands, "undetermined",
        "cuBLASLt takes FP8 where it recognises the scaling around it; else operands are widened",
        "openxla/xla, GPU gemm_rewriter", "documented", may_be=("fp8", "fp16"),
    ),
    _rule(
        "unknown", _ALL, lambda asked: True, "undetermined",
        "no rule with a source speaks of these operands on this device", "nothing at hand",
        "assumed",
    ),
)  # fmt: skip
