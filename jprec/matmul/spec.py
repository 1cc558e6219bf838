"""How a product is done, as a value: operand format, rounding, splitting, accumulator."""

import dataclasses
import difflib
import functools
import re

from jprec import formats, hardware

#: Operand format -> how operands are rounded where a spec does not say. TF32 is rounded as the
#: conversion instruction cvt.rna.tf32.f32 of the PTX ISA does: to nearest, ties away from zero.
DEFAULT_MODES = {"tf32": "nearest_away"}

#: Specs that have a name of their own in `names()`; the grammar allows more.
_USUAL = (
    *("fp32", "tf32", "tf32x3", "bf16", "bf16x3", "bf16x6", "bf16x9"),
    *("fp16", "fp16x3", "fp16_acc16", "fp8_e4m3", "fp8_e5m2"),
)

#: Other spellings of the beginning of a spec.
_SYNONYMS = {"fp16_acc16": "fp16+fp16", **hardware.FP8_NAMES}

#: What a spec looks like, for errors.
_GRAMMAR = "FORMAT[x3|x6|x9][:rounding][@device][+ACCUMULATOR][+kahan][+chunkN]"

#: Products of split operands -> how many summands an operand is split into.
_TERMS = {1: 1, 3: 2, 6: 3, 9: 3}

#: Products of split operands -> the largest sum of two summands' numbers that is multiplied.
_KEPT = {1: 0, 3: 1, 6: 2, 9: 4}

#: Operand formats whose split keeps range by scaling the remainder: format -> power of two.
_SCALES = {"fp16": 11}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatmulSpec:
    """The arithmetic of a product, the same on every machine: it is emulated, but for "@native".

    Operands are rounded to `operand_format`, or split into two or three summands of it. Then their
    products are summed: by XLA in FP32 at its highest precision; or one after the other in the
    format `accumulator`; or as the tensor core of `device` does it, block by block.

    Attributes:
      operand_format: Name of the format of both operands. "fp32" rounds nothing. A number beyond
        the largest value of a format without infinity becomes NaN, as in a cast of JAX: in e4m3fn
        from 464 on. Conversion instructions saturate at 448 instead; for that, clip first.
      rounding: One of `formats.MODES`, how operands are rounded.
      products: 1; or 3, 6, 9 products of operands split into 2, 3, 3 summands, see `pairs`.
      device: Name of the device whose accumulator is emulated; "native" for this machine's own
        product; or None.
      accumulator: Format in which sums are held; None for FP32, summed in XLA's order or by the
        device. With a device, one of its output formats.
      compensated: Whether Kahan's compensation is carried along, in the accumulator's format.
      chunk: After so many products the partial sum is added to the total in FP32, to nearest,
        and the next one starts from 0; None for one sum.
    """

    operand_format: str
    rounding: str = "nearest_even"
    products: int = 1
    device: str | None = None
    accumulator: str | None = None
    compensated: bool = False
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.device is not None and not self.is_native:
            object.__setattr__(self, "device", hardware.get(self.device).name)
        object.__setattr__(self, "compensated", bool(self.compensated))
        fmt = formats.get(self.operand_format)
        for role in ("operand_format", "accumulator"):
            name = getattr(self, role)
            if name is not None and formats.get(name).name != name:
                raise ValueError(f"{role}={name!r}; the name is {formats.get(name).name!r}.")
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
        if self.operand_format == "fp32":
            self._check_fp32()
        if self.products not in _TERMS:
            raise ValueError(
                f"products={self.products} of split operands, but it is one of "
                f"{', '.join(map(str, _TERMS))}."
            )
        if self.chunk is not None and not (isinstance(self.chunk, int) and self.chunk >= 1):
            raise ValueError(f"chunk={self.chunk!r}, but a partial sum has at least 1 product.")
        if self.device is None:
            self._check_chain()
        elif self.is_native:
            self._check_native()
        else:
            if self.compensated:
                raise ValueError(f"spec {self}: a tensor core carries no compensation.")
            hardware.get(self.device).tensor_core(self.operand_format, self.accumulator or "fp32")

    def _check_fp32(self) -> None:
        if self.rounding != "nearest_even" or self.products != 1:
            raise ValueError(f"spec {self}: fp32 operands are neither rounded nor split.")
        if self.device is not None and not self.is_native:
            raise ValueError(
                f"spec {self}: no tensor core takes fp32 operands; write 'fp32' without a device."
            )

    def _check_chain(self) -> None:
        if self.compensated and self.accumulator is None:
            raise ValueError(
                f"spec {self}: XLA's own sums carry no compensation; name the accumulator's "
                "format, as in '+fp32+kahan'."
            )
        if self.accumulator is None or self.accumulator == "fp32":
            return
        fmt = formats.get(self.accumulator)
        # A sum is rounded to odd in FP32 first, which needs two bits more than are kept.
        if not _within_fp32(fmt) or fmt.precision > formats.get("fp32").precision - 2:
            raise ValueError(
                f"accumulator={self.accumulator!r}, but sums are held in FP32 storage; take fp32, "
                "or a signed format within FP32's range of at most 22 bits of precision."
            )

    def _check_native(self) -> None:
        if (
            self.compensated
            or self.chunk is not None
            or self.rounding != _default(self.operand_format)
        ):
            raise ValueError(
                f"spec {self}: a native product is rounded and summed as the machine does it; "
                "leave rounding, kahan and chunk out."
            )

    @property
    def rounds_operands(self) -> bool:
        """Whether operands change at all."""
        return self.operand_format != "fp32"

    @property
    def is_plain_fp32(self) -> bool:
        """Whether this is "fp32": XLA's product at its highest precision."""
        return self == MatmulSpec(operand_format="fp32")

    @property
    def is_native(self) -> bool:
        """Whether this machine's own product is asked for."""
        return self.device == "native"

    @property
    def terms(self) -> int:
        """How many summands each operand is split into."""
        return _TERMS[self.products]

    @property
    def split_scale(self) -> int:
        """Each further summand is held multiplied by 2 to this power.

        FP16's exponents would end before the remainder does; Ootomo and Yokota, "Recovering single
        precision accuracy from Tensor Cores", 2022, scale it by 2**11.
        """
        return _SCALES.get(self.operand_format, 0) if self.products > 1 else 0

    @property
    def kept(self) -> int:
        """Summands are multiplied whose numbers add up to no more than this, see `pairs`."""
        return _KEPT[self.products]

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Which summands of the operands are multiplied, the smallest products first.

        Summand 0 is the operand rounded, 1 the remainder rounded, and so on. Three products leave
        out that of both remainders; six leave out what is below FP32's last place.
        """
        every = [(i, j) for i in range(self.terms) for j in range(self.terms) if i + j <= self.kept]
        return tuple(sorted(every, key=lambda pair: (-sum(pair), pair)))

    @property
    def tensor_core(self) -> hardware.TensorCore | None:
        """The block that adds the products, or None where no device's is emulated."""
        if self.device is None or self.is_native:
            return None
        return hardware.get(self.device).tensor_core(
            self.operand_format, self.accumulator or "fp32"
        )

    @property
    def name(self) -> str:
        """The shortest spelling that `get` reads back."""
        parts = [self.operand_format]
        parts += [f"x{self.products}"] if self.products != 1 else []
        parts += [f":{self.rounding}"] if self.rounding != _default(self.operand_format) else []
        parts += [f"@{self.device}"] if self.device else []
        parts += [f"+{self.accumulator}"] if self.accumulator else []
        parts += ["+kahan"] if self.compensated else []
        parts += [f"+chunk{self.chunk}"] if self.chunk is not None else []
        return "".join(parts)

    def __str__(self) -> str:
        return self.name


def _default(operand_format: str) -> str:
    return DEFAULT_MODES.get(operand_format, "nearest_even")


def _within_fp32(fmt: formats.FloatFormat) -> bool:
    return (
        fmt.signed
        and fmt.has_zero
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
    """The spec that a string means; a MatmulSpec is returned as it is.

    A string is FORMAT, which may be followed by x3, x6 or x9 (operands split, so many products), by
    :rounding, @device, +FORMAT of the accumulator, +kahan, and +chunkN (a new sum after N of them).
    "fp16_acc16", "fp8_e4m3" and "fp8_e5m2" are "fp16+fp16", "e4m3fn" and "e5m2".

    >>> get("tf32").rounding, get("tf32:toward_zero@a100").tensor_core.products
    ('nearest_away', 4)
    >>> get("tf32:nearest_away") == get("tf32"), str(get("bfloat16"))
    (True, 'bf16')
    >>> get("bf16x6").pairs, str(get("fp16_acc16@v100"))
    (((0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0)), 'fp16@v100+fp16')
    """
    if isinstance(spec, MatmulSpec):
        return spec
    if not isinstance(spec, str):
        raise TypeError(f"{spec!r} is no spec; pass a string such as 'tf32' or a MatmulSpec.")
    return _parse(spec.strip().lower())


@functools.cache
def _parse(text: str) -> MatmulSpec:
    head = re.match(r"[^:@+]*", text).group()  # type: ignore[union-attr]  # matches anything
    rest = text[len(head) :]
    base, products = _split_count(head)
    name, plus, more = _SYNONYMS.get(base, base).partition("+")
    try:
        fmt = formats.get(name)
    except ValueError:
        raise ValueError(_unknown(text)) from None
    fields: dict[str, object] = {}
    for mark, word in re.findall(r"([:@+])([^:@+]*)", rest + plus + more):
        if not word:
            raise ValueError(f"spec {text!r} ends where something should follow: {_GRAMMAR}.")
        field, value = _field(mark, word, text)
        if field in fields:
            raise ValueError(f"spec {text!r} says twice what its {field} is.")
        fields[field] = value
    fields.setdefault("rounding", _default(fmt.name))
    return MatmulSpec(operand_format=fmt.name, products=products, **fields)  # type: ignore[arg-type]


def _split_count(head: str) -> tuple[str, int]:
    """A format's name, and how many products its split operands have."""
    found = re.fullmatch(r"(.+)x([1-9][0-9]?)", head)
    return (found[1], int(found[2])) if found else (head, 1)


def _field(mark: str, word: str, text: str) -> tuple[str, object]:
    """The field that one part of a spec sets, and its value."""
    if mark == ":":
        return "rounding", word
    if mark == "@":
        return "device", word if word == "native" else hardware.get(word).name
    if word == "kahan":
        return "compensated", True
    if chunk := re.fullmatch(r"chunk([0-9]{1,9})", word):
        return "chunk", int(chunk[1])
    try:
        return "accumulator", formats.get(_SYNONYMS.get(word, word)).name
    except ValueError:
        raise ValueError(
            f"spec {text!r}: +{word} is no accumulator; write the format of sums as in '+fp16', "
            "'+kahan', or '+chunk128'."
        ) from None


def _unknown(text: str) -> str:
    close = difflib.get_close_matches(text, names(), n=3)
    return (
        f"unknown product spec {text!r}; "
        + (f"did you mean {' or '.join(close)}? " if close else "")
        + f"A spec is {_GRAMMAR}, e.g. {', '.join(_USUAL)}, 'tf32:toward_zero', 'tf32@a100'."
    )
