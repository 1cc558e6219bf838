"""What an audit says should be mended, one line each: settings in vain, risks, surprises."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax

from jprec.doctor.dataflow import ProductSite
from jprec.doctor.evidence import Evidence

if TYPE_CHECKING:
    from jprec.doctor.audit import Operation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Something to mend.

    Attributes:
      kind: Which check found it; a key of `KINDS`.
      message: What is the matter, in one sentence.
      source: "file:line" of the user's code; None where none is on record.
      scope: The names around it; "" without any.
      remedy: What to do.
      count: How many products it concerns; 0 where none in particular.
    """

    kind: str
    message: str
    source: str | None
    scope: str
    remedy: str
    count: int = 1

    def __str__(self) -> str:
        where = f"{place(self.source)}: " if self.source else ""
        places = f" ({self.count} products)" if self.count > 1 else ""
        return f"{where}{self.message}{places}. {self.remedy}."


#: Kind of finding -> what it is called on the page, in the order in which findings are listed.
KINDS = {
    "rejected": "The device refuses it",
    "assigned_setting": "A setting that was overwritten",
    "setting_without_effect": "A setting without effect",
    "attention_ignores_precision": "Attention ignores its precision",
    "no_setting": "A layer that has no setting",
    "fp64_made_fp32": "FP64 made narrower",
    "cancellation": "Distances by subtraction",
    "coordinates": "Sums over a few coordinates",
    "gram_factorised": "A Gram matrix that is factorised",
    "vmap_matrix_product": "vmap made a matrix product",
    "backward_differs": "The backward pass differs",
    "bf16_meets_fp32": "16-bit parameters meet FP32 inputs",
}


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, those of one line and kind as one, in the order of `KINDS`."""
    first: dict[Any, Finding] = {}
    counted: dict[Any, int] = {}
    for check in CHECKS:
        for finding in check(evidence):
            alike = (finding.kind, finding.message, finding.source, finding.remedy)
            first.setdefault(alike, finding)
            counted[alike] = counted.get(alike, 0) + finding.count
    merged = [
        dataclasses.replace(finding, count=counted[alike]) for alike, finding in first.items()
    ]
    order = list(KINDS)
    return tuple(sorted(merged, key=lambda finding: order.index(finding.kind)))


def _found(kind: str, operation: "Operation", message: str, remedy: str) -> Finding:
    return Finding(
        kind=kind,
        message=message,
        source=operation.source,
        scope=operation.scope,
        remedy=remedy,
    )


def place(source: str | None) -> str:
    """The source line, relative to the current folder where it lies below it."""
    if source is None:
        return "(no line on record)"
    here = os.path.join(os.getcwd(), "")
    return source[len(here) :] if source.startswith(here) else source


# ---- Settings


_HIGHEST = 'ask for precision="highest"'
_CONTEXT = 'wrap the call in `with jax.default_matmul_precision("highest"):`'


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _rejected(evidence: Evidence) -> Iterator[Finding]:
    for operation, _ in evidence.pairs():
        if operation.runs_as == "rejected":
            yield _found(
                "rejected",
                operation,
                f"{operation.precision} is refused on {evidence.target.name}: {operation.reason}",
                'Ask for a level ("high", "highest"), which every device takes, or for a preset '
                "that this one has",
            )


def _assigned_setting(evidence: Evidence) -> Iterator[Finding]:
    if not callable(evidence.setting):
        yield Finding(
            kind="assigned_setting",
            message=f"jax.default_matmul_precision was assigned {evidence.setting!r}, which sets "
            "nothing: it is a context manager, and now it is gone",
            source=None,
            scope="",
            remedy=f'Write jax.config.update("jax_default_matmul_precision", {evidence.setting!r})',
            count=0,
        )


def _setting_without_effect(evidence: Evidence) -> Iterator[Finding]:
    for operation, _ in evidence.pairs():
        if not operation.ignores or _fulfilled(operation):
            continue
        if operation.kind == "conv_general_dilated":
            remedy = f"A convolution heeds levels only: for FP32, {_HIGHEST}"
        else:
            remedy = 'To see BF16\'s effect on a processor, use jprec.emulate(fn, "bf16")'
        yield _found(
            "setting_without_effect",
            operation,
            f"{operation.precision} has no effect: {operation.reason}",
            remedy,
        )


def _fulfilled(operation: "Operation") -> bool:
    """Whether the product runs as an ignored preset asks, as it would without."""
    wanted = str(operation.precision).lower().replace("float", "fp").split("_")[0]
    wanted = {"f32": "fp32", "f16": "fp16", "f64": "fp64"}.get(wanted, wanted)
    return operation.runs_as == wanted


def _called_in(site: ProductSite | None, file: str, function: str = "") -> bool:
    """Whether a function of a library's file is among the calls that made the product."""
    frames = () if site is None else site.frames
    return any(
        name.replace(os.sep, "/").endswith(file) and function in called for name, called in frames
    )


def _attention(evidence: Evidence) -> Iterator[Finding]:
    inside = [
        (operation, _called_in(site, "flax/nnx/nn/attention.py", "dot_product_attention"))
        for operation, site in evidence.pairs()
        if _called_in(site, "flax/nnx/nn/attention.py")
    ]
    asked = {o.source: o.precision for o, is_inner in inside if not is_inner and o.precision}
    for operation, is_inner in inside:
        if is_inner and operation.precision is None and operation.source in asked:
            yield _found(
                "attention_ignores_precision",
                operation,
                f"MultiHeadAttention passes precision={asked[operation.source]} to its "
                "projections, but not to the products of queries, keys and values, which run as "
                f"{operation.runs_as}",
                _sentence(_CONTEXT),
            )


#: File of a library, part of a function's name there -> what has no `precision`.
_WITHOUT_SETTING = {
    ("flax/nnx/nn/recurrent.py", ""): "A recurrent cell",
    ("flax/linen/recurrent.py", ""): "A recurrent cell",
    ("flax/nnx/nn/linear.py", "Embed.attend"): "Embed.attend",
    ("flax/linen/linear.py", "Embed.attend"): "Embed.attend",
}


def _no_setting(evidence: Evidence) -> Iterator[Finding]:
    for operation, site in evidence.pairs():
        if operation.precision is not None or not _is_narrowed(operation):
            continue
        for (file, function), layer in _WITHOUT_SETTING.items():
            if _called_in(site, file, function):
                yield _found(
                    "no_setting",
                    operation,
                    f"{layer} has no `precision`: its products run as {operation.runs_as}",
                    f"If that is too little, {_CONTEXT}",
                )
                break


# ---- Formats

#: Arithmetics that keep every digit of FP32 operands.
_KEEPS_FP32 = ("fp32", "fp64", "bf16x9")


def _is_narrowed(operation: "Operation") -> bool:
    """Whether FP32 operands lose digits, or may."""
    return operation.is_single and operation.runs_as not in (*_KEEPS_FP32, "rejected")


def _fp64_made_fp32(evidence: Evidence) -> Iterator[Finding]:
    wide = [dtype for dtype in evidence.arguments if dtype in ("float64", "complex128")]
    if wide and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        yield Finding(
            kind="fp64_made_fp32",
            message=f"{len(wide)} of {len(evidence.arguments)} arguments are {wide[0]}, and JAX "
            "makes them 32 bits wide",
            source=None,
            scope="",
            remedy='For FP64, jax.config.update("jax_enable_x64", True) before the first array',
            count=0,
        )
    for narrowing in evidence.flow.narrowed:
        yield Finding(
            kind="fp64_made_fp32",
            message=f"an FP64 array is cast to {narrowing.after}; what follows has its digits only",
            source=narrowing.source,
            scope="",
            remedy="Keep FP64 here, or do not call the result an FP64 reference",
        )
    for operation, _ in evidence.pairs():
        is_wide = any(dtype in ("float64", "complex128") for dtype in operation.operand_dtypes)
        if is_wide and operation.runs_as not in ("fp64", "undetermined", "rejected"):
            yield _found(
                "fp64_made_fp32",
                operation,
                f"FP64 operands are multiplied in {operation.runs_as}, because "
                f"{operation.precision} casts them",
                'Ask for "highest", which leaves FP64 as it is',
            )


def _bf16_meets_fp32(evidence: Evidence) -> Iterator[Finding]:
    for operation, site in evidence.pairs("forward"):
        narrow = _narrow_operand(operation, site)
        if narrow is not None:
            yield _found(
                "bf16_meets_fp32",
                operation,
                f"an operand stored in {narrow} is widened to meet an FP32 one: the product runs "
                f"as {operation.runs_as}, and moves FP32 operands",
                f"If FP32 is not meant, cast the other operand to {narrow} too, or give the layer "
                f"dtype={narrow}",
            )


def _narrow_operand(operation: "Operation", site: ProductSite | None) -> str | None:
    """The 16-bit dtype of which only one of both operands is stored, while the other is FP32."""
    narrow = ("bfloat16", "float16")
    dtypes = operation.operand_dtypes
    if "float32" in dtypes and any(dtype in narrow for dtype in dtypes):
        return next(dtype for dtype in dtypes if dtype in narrow)
    if site is None or dtypes != ("float32", "float32"):
        return None
    stored = [value.marked("widened") & frozenset(narrow) for value in site.operands]
    one_only = bool(stored[0]) != bool(stored[1])
    return str(next(iter(stored[0] | stored[1]))) if one_only else None


def _backward_differs(evidence: Evidence) -> Iterator[Finding]:
    forward: dict[Any, list[Operation]] = {}
    for operation, _ in evidence.pairs("forward", "recomputed"):
        forward.setdefault((operation.source, operation.kind), []).append(operation)
    for operation, _ in evidence.pairs("backward"):
        ahead = forward.get((operation.source, operation.kind), [])
        if operation.source and ahead and not any(_alike(operation, one) for one in ahead):
            known = dict.fromkeys(map(_how, ahead))
            yield _found(
                "backward_differs",
                operation,
                f"the backward pass multiplies {_how(operation)}, the forward pass "
                f"{' and '.join(known)}",
                "If that is not meant, cast the cotangent to the forward pass's dtype, or set the "
                "precision by jax.default_matmul_precision around both passes",
            )


def _alike(one: "Operation", other: "Operation") -> bool:
    """Whether both have the same dtypes, and may run as the same."""
    may_be = [
        {operation.runs_as, *operation.may_be} - {"undetermined"} for operation in (one, other)
    ]
    runs_alike = one.runs_as == other.runs_as or bool(may_be[0] & may_be[1])
    same_operands = set(one.operand_dtypes) == set(other.operand_dtypes)
    return runs_alike and same_operands and one.result_dtype == other.result_dtype


def _how(operation: "Operation") -> str:
    left, right = operation.operand_dtypes
    return f"{left} with {right} into {operation.result_dtype} as {operation.runs_as}"


# ---- Risks


def _cancellation(evidence: Evidence) -> Iterator[Finding]:
    for operation, _ in evidence.of(evidence.flow.cancelled):
        if _is_narrowed(operation) and operation.phase != "backward":
            yield _found(
                "cancellation",
                operation,
                f"a product in {operation.runs_as} is added to squares of its own operands: if "
                "these are squared distances |a|² - 2ab + |b|², nothing but its rounding error is "
                "left for points near each other",
                f"Take differences first, or {_HIGHEST} for this product",
            )


def _coordinates(evidence: Evidence) -> Iterator[Finding]:
    for operation, site in evidence.pairs("forward"):
        summed = _summed(operation)
        is_small = operation.kind == "dot_general" and summed in (2, 3)
        if is_small and _is_narrowed(operation) and not _called_in(site, "attention.py"):
            yield _found(
                "coordinates",
                operation,
                f"a sum over {summed} numbers runs as {_possibly(operation)}: if they are "
                "coordinates, they move by up to 1 part in 2000",
                f"{_sentence(_HIGHEST)}; so short a sum gains nothing from less",
            )


def _possibly(operation: "Operation") -> str:
    return " or ".join(operation.may_be) or operation.runs_as


def _summed(operation: "Operation") -> int:
    size = math.prod(operation.result_shape) * (operation.trips or 1)
    return operation.flops // (2 * size) if size else 0


def _gram(evidence: Evidence) -> Iterator[Finding]:
    for operation, number in evidence.of(evidence.flow.factorised):
        if _is_narrowed(operation):
            factorisation = evidence.flow.factorised[number]
            yield _found(
                "gram_factorised",
                operation,
                f"a Gram matrix in {operation.runs_as} reaches {factorisation}: its small "
                "eigenvalues lose their digits and, where its two operands differ or a mean is "
                "subtracted, may come out negative",
                f"{_sentence(_HIGHEST)} for this product alone",
            )


def _vmap(evidence: Evidence) -> Iterator[Finding]:
    for operation, _ in evidence.pairs():
        if operation.rule not in ("nvidia_default", "nvidia_high") or not _is_vmapped_vector(
            operation
        ):
            continue
        yield _found(
            "vmap_matrix_product",
            operation,
            f"vmap made a matrix product of a matrix times a vector: it runs as "
            f"{operation.runs_as}, where one example alone may run in FP32",
            f"If both must agree, {_HIGHEST}",
        )


def _is_vmapped_vector(operation: "Operation") -> bool:
    """Whether there is no batch axis, and as many free axes as one vmap adds to one."""
    left, right = (math.prod(shape) for shape in operation.operand_shapes)
    summed, result = _summed(operation), math.prod(operation.result_shape)
    levels = operation.scope.count("vmap(")
    has_batch = left * right != summed * summed * result
    return (
        operation.kind == "dot_general"
        and levels > 0
        and not has_batch
        and len(operation.result_shape) <= levels + 1
    )


CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _rejected,
    _assigned_setting,
    _setting_without_effect,
    _attention,
    _no_setting,
    _fp64_made_fp32,
    _cancellation,
    _coordinates,
    _gram,
    _vmap,
    _backward_differs,
    _bf16_meets_fp32,
)
