"""A product as the rules of execution see it: where it is to run, its formats, what it asks for."""

import dataclasses
import math
import re
from typing import Literal, TypeAlias

from jprec import hardware
from jprec.program import Product

Kind: TypeAlias = Literal["nvidia", "tpu", "cpu"]

#: Targets that are no entry of `hardware`, and what they are called.
_OTHERS: dict[str, tuple[Kind, str]] = {
    "cpu": ("cpu", "XLA on a processor"),
    "tpu": ("tpu", "Google TPU"),
}

#: What the program asks for as a preset -> the arithmetic that it names.
PRESETS = {
    "F64_F64_F64": "fp64",
    "F32_F32_F32": "fp32",
    "TF32_TF32_F32": "tf32",
    "TF32_TF32_F32_X3": "tf32x3",
    "F16_F16_F32": "fp16",
    "F16_F16_F16": "fp16_acc16",
    "BF16_BF16_F32": "bf16",
    "BF16_BF16_F32_X3": "bf16x3",
    "BF16_BF16_F32_X6": "bf16x6",
    "BF16_BF16_F32_X9": "bf16x9",
    "BF16_BF16_BF16": "bf16_acc16",
    "ANY_F8_ANY_F8_F32": "fp8",
    "ANY_F8_ANY_F8_F32_FAST_ACCUM": "fp8",
    "ANY_F8_ANY_F8_ANY": "fp8",
    "ANY_F8_ANY_F8_ANY_FAST_ACCUM": "fp8",
}
_LEVELS = ("DEFAULT", "HIGH", "HIGHEST")

#: Dtype -> the format of its numbers, or of their real and imaginary parts.
_FORMATS = {
    "float64": "fp64",
    "complex128": "fp64",
    "float32": "fp32",
    "complex64": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
}
FP8 = ("e4m3fn", "e5m2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """The device that a program is judged for.

    Attributes:
      name: "a100", "tpu", "cpu", ...
      title: What it is called.
      kind: Who compiles for it: "nvidia", "tpu" or "cpu".
      device: What `hardware` knows of it; None for "tpu" and "cpu".
    """

    name: str
    title: str
    kind: Kind
    device: hardware.Device | None

    def multiplies(self, fmt: str) -> bool:
        """Whether its tensor cores take operands of `fmt`."""
        return self.device is not None and fmt in self.device.input_formats


def target(device: str | hardware.Device | Target) -> Target:
    """The target of that name: a device of `hardware`, "tpu" or "cpu".

    >>> target("l40s").title
    'NVIDIA RTX 1000 Ada, L40S'
    """
    if isinstance(device, Target):
        return device
    if isinstance(device, str) and device.lower() in _OTHERS:
        kind, title = _OTHERS[device.lower()]
        return Target(name=device.lower(), title=title, kind=kind, device=None)
    try:
        found = hardware.get(device)
    except ValueError as error:
        raise ValueError(f"{str(error).rstrip('.')}, {', '.join(_OTHERS)}.") from None
    return Target(name=found.name, title=found.title, kind="nvidia", device=found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """A product as the rules see it.

    Attributes:
      target: Where it is to run.
      is_convolution: A convolution; otherwise a `dot_general` or a ragged one.
      is_ragged: A ragged product.
      formats: Formats of both operands; a dtype's own name where it is no known format.
      is_complex: Whether an operand is complex.
      is_integer: Whether no operand is floating-point or complex.
      same_result: Whether the result has the dtype of the left operand.
      levels: The precision asked for, for both operands; None where a preset is.
      preset: The preset that the program asks for; "custom" for a `DotAlgorithm`.
      vectors: How many of both operands are vectors: nothing but summed and batch axes.
    """

    target: Target
    is_convolution: bool
    is_ragged: bool
    formats: tuple[str, str]
    is_complex: bool
    is_integer: bool
    same_result: bool
    levels: tuple[str, str] | None
    preset: str | None
    vectors: int

    @property
    def widest(self) -> str:
        """The operands' common format: XLA widens the narrower one first."""
        left, right = self.formats
        if left == right:
            return left
        for fmt in ("fp64", "fp32"):
            if fmt in self.formats:
                return fmt
        return "fp32" if set(self.formats) == {"fp16", "bf16"} else "mixed"

    @property
    def level(self) -> str:
        """The higher of both levels, which XLA's GPU compiler goes by; DEFAULT with a preset."""
        return max(self.levels or _LEVELS[:1], key=_LEVELS.index)


def request(product: Product, on: Target) -> Request:
    """What the rules must know of a product."""
    dtypes = product.operand_dtypes
    levels, preset = _asked(product.precision)
    return Request(
        target=on,
        is_convolution=product.kind == "conv_general_dilated",
        is_ragged=product.kind.startswith("ragged"),
        formats=(_FORMATS.get(dtypes[0], dtypes[0]), _FORMATS.get(dtypes[1], dtypes[1])),
        is_complex=any("complex" in dtype for dtype in dtypes),
        is_integer=all(re.match(r"u?int|bool", dtype) for dtype in dtypes),
        same_result=product.result_dtype == dtypes[0],
        levels=levels,
        preset=preset,
        vectors=0 if product.kind == "conv_general_dilated" else _vectors(product),
    )


def _asked(precision: str | None) -> tuple[tuple[str, str] | None, str | None]:
    """The levels, or the preset, that a description's `precision` stands for."""
    words = (precision or "DEFAULT").split(", ")
    if all(word in _LEVELS for word in words):
        return (words[0], words[-1]), None
    return None, precision if precision in PRESETS else "custom"


def _free_sizes(product: Product) -> tuple[int, int]:
    """For each operand of a dot, the size of its axes that are neither summed nor batch axes."""
    summed = product.flops // 2
    left, right = map(math.prod, product.operand_shapes)
    return (summed // right, summed // left) if left and right else (0, 0)


def _vectors(product: Product) -> int:
    return sum(size == 1 for size in _free_sizes(product))
