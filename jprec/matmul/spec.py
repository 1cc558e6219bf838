"""How a product is done, as a value: operand format, rounding of the operands, accumulator."""

import dataclasses
import difflib
import functools

from jprec import formats, hardware

#: Operand format -> how operands are rounded where a spec does not say. TF32 is rounded as the
#: conversion instruction cvt.rna.tf32.f32 of the PTX ISA does: to nearest, ties away from zero.
DEFAULT_MODES = {"tf32": "nearest_away"}

#: Specs that have a name of their own in `names()`; the grammar allows more.
_USUAL = ("fp32", "tf32", "bf16", "fp16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatmulSpec:
    """The arithmetic of a product, the same on every machine: it is emulated.

    Without a device, operands are rounded to `operand_format`; products and sums are XLA's, in
    FP32 at the highest precision. With a device, the operands so rounded are multiplied and summed
    as that device's tensor core does it, block by block.

    Operands out of range become what `rounding.round_to` makes of them: infinity, and NaN in
    e4m3fn, which has none, from 464 on. This is what a cast in JAX does, and shows that a scale is
    missing; conversion instructions saturate at 448 instead, for which the operands are to be
    clipped first.

    Attributes:
      operand_format: Name of the format that both operands are rounded to. "fp32" rounds nothing.
      rounding: One of `formats.MODES`, how operands are rounded.
      device: Name of the device whose accumulator is emulated, or None for FP32 sums by XLA.
    """

    operand_format: str
    rounding: str = "nearest_even"
    device: str | None = None

    def __post_init__(self) -> None:
        fmt = formats.get(self.operand_format)
        if fmt.name != self.operand_format:
            raise ValueError(f"operand_format={self.operand_format!r}; the name is {fmt.name!r}.")
        if not _within_fp32(fmt):
            raise ValueError(
                f"operand_format={fmt.name!r}, but operands are rounded in FP32 storage, which "
                f"cannot hold all values of {fmt.name}; take a signed format within FP32's range."
            )
        if self.rounding not in formats.MODES:
            raise ValueError(
                f"rounding={self.rounding!r} of operands, but a spec needs one of "
                f"{', '.join(formats.MODES)} (random rounding would need a key for each product)."
            )
        if self.operand_format == "fp32" and (self.device or self.rounding != "nearest_even"):
            raise ValueError(
                f"spec {self}: fp32 operands are not rounded and no tensor core takes them; "
                "write 'fp32' alone."
            )
        if self.device is not None:
            hardware.get(self.device).tensor_core(self.operand_format)

    @property
    def rounds_operands(self) -> bool:
        """Whether operands change at all."""
        return self.operand_format != "fp32"

    @property
    def tensor_core(self) -> hardware.TensorCore | None:
        """The block that adds the products, or None where XLA adds them in FP32."""
        if self.device is None:
            return None
        return hardware.get(self.device).tensor_core(self.operand_format)

    @property
    def name(self) -> str:
        """The shortest spelling that `get` reads back: FORMAT[:rounding][@device]."""
        default = DEFAULT_MODES.get(self.operand_format, "nearest_even")
        mode = "" if self.rounding == default else f":{self.rounding}"
        return self.operand_format + mode + (f"@{self.device}" if self.device else "")

    def __str__(self) -> str:
        return self.name


def _within_fp32(fmt: formats.FloatFormat) -> bool:
    return (
        fmt.signed
        and fmt.precision <= 24
        and fmt.max_exponent <= 127
        and fmt.min_exponent - fmt.mantissa_bits >= -149
    )


def names() -> tuple[str, ...]:
    """The usual specs: the plain ones, and those with a device's accumulator."""
    on_devices = (
        f"{fmt}@{device}"
        for device in hardware.names()
        for fmt in hardware.get(device).input_formats
    )
    return (*_USUAL, *on_devices)


def get(spec: str | MatmulSpec) -> MatmulSpec:
    """The spec that a string FORMAT[:rounding][@device] means; a MatmulSpec is returned as it is.

    >>> get("tf32").rounding, get("tf32:toward_zero@a100").tensor_core.products
    ('nearest_away', 4)
    >>> get("tf32:nearest_away") == get("tf32"), str(get("bfloat16"))
    (True, 'bf16')
    >>> str(get("fp8_e4m3@h100"))
    'e4m3fn@h100'
    """
    if isinstance(spec, MatmulSpec):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"{spec!r} is no spec; pass a string such as 'tf32' or a MatmulSpec.")
    return _parse(spec)


@functools.cache
def _parse(text: str) -> MatmulSpec:
    rest, at, device = text.partition("@")
    fmt_name, colon, mode = rest.partition(":")
    try:
        fmt = formats.get(hardware.FP8_NAMES.get(fmt_name, fmt_name))
    except ValueError:
        close = difflib.get_close_matches(text, names(), n=3)
        raise ValueError(
            f"unknown product spec {text!r}; "
            + (f"did you mean {' or '.join(close)}? " if close else "")
            + "A spec is FORMAT[:rounding][@device], e.g. "
            + f"{', '.join(_USUAL)}, 'tf32:toward_zero', 'tf32@a100'."
        ) from None
    if (colon and not mode) or (at and not device):
        raise ValueError(f"spec {text!r} ends where a rounding mode or a device should follow.")
    return MatmulSpec(
        operand_format=fmt.name,
        rounding=mode or DEFAULT_MODES.get(fmt.name, "nearest_even"),
        device=hardware.get(device).name if device else None,
    )
