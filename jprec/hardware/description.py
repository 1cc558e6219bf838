"""What is said about a machine, and how it is known: rates, formats, tensor-core arithmetic."""

import dataclasses
from typing import Literal, TypeAlias, get_args

from jprec import formats

#: How a fact is known. "measured": somebody read it off that hardware; "documented": the vendor
#: says so; "assumed": neither, taken over from a related device.
Status: TypeAlias = Literal["measured", "documented", "assumed"]

#: Output format -> how a block's exact sum is rounded.
_FINAL_ROUNDINGS = {"fp32": "toward_zero", "fp16": "nearest_even"}

#: What FP8 operands are called elsewhere -> the format: OCP 8-bit Floating Point Specification 1.0.
FP8_NAMES = {"fp8_e4m3": "e4m3fn", "fp8_e5m2": "e5m2"}


def _check_status(owner: str, status: str) -> None:
    if status not in get_args(Status):
        raise ValueError(
            f"{owner}: status={status!r}, but a fact is one of {', '.join(get_args(Status))}."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """The peak rate of dense products with operands of one format.

    Attributes:
      format: Operand format, e.g. "tf32".
      teraflops: Peak in 1e12 operations per second, a multiplication and an addition counted as
        two, without the factor 2 that 2:4 sparsity promises.
      status: How this is known.
      source: Who says so.
    """

    format: str
    teraflops: float
    status: Status
    source: str

    def __post_init__(self) -> None:
        _check_status(f"rate of {self.format}", self.status)
        if formats.get(self.format).name != self.format:
            raise ValueError(f"rate: format={self.format!r} is not the name of a format.")
        if not self.teraflops > 0:
            raise ValueError(f"rate of {self.format}: teraflops={self.teraflops}, but it is > 0.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """The peak bandwidth of a device's memory.

    Attributes:
      terabytes: In 1e12 bytes per second.
      status: How this is known.
      source: Who says so.
    """

    terabytes: float
    status: Status
    source: str

    def __post_init__(self) -> None:
        _check_status("bandwidth", self.status)
        if not self.terabytes > 0:
            raise ValueError(f"bandwidth: terabytes={self.terabytes}, but it is > 0.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorCore:
    """The arithmetic of one fused block: `products` exact products and an accumulator, summed.

    The block aligns all its terms to the largest exponent among them, cuts each off below
    `fraction_bits`, adds exactly, and rounds once: toward zero, for FP16 output to nearest even.
    Two blocks that add alike are equal, whatever is known about them.

    Attributes:
      input_format: Format of both operands.
      output_format: Format of the accumulator and of the result, "fp32" or "fp16".
      products: How many products one block sums, beside the accumulator.
      fraction_bits: Bits kept below the largest exponent when terms are aligned.
      min_exponent: Terms are never aligned to an exponent smaller than this.
      sum_format: Format that a block's sum is rounded to: the output format, or one with fewer
        bits of mantissa, whose values are then stored in the output format.
      interleaved: False: blocks follow each other in ascending order, the accumulator being a term
        of each. True: of every 2 * `products` products, those in even pairs (0 1, 4 5, ...) are
        summed from 0, those in odd pairs on top of these, and the accumulator is added last, in
        one addition of the output format that is rounded to nearest even.
      status: How this is known.
      source: Who says so.
    """

    input_format: str
    output_format: str
    products: int
    fraction_bits: int
    min_exponent: int
    sum_format: str
    interleaved: bool = False
    status: Status = dataclasses.field(compare=False)
    source: str = dataclasses.field(compare=False)

    def __post_init__(self) -> None:
        owner = f"tensor core for {self.input_format}"
        _check_status(owner, self.status)
        if self.output_format not in _FINAL_ROUNDINGS:
            raise ValueError(
                f"{owner}: output_format={self.output_format!r}, but the known outputs are "
                f"{', '.join(_FINAL_ROUNDINGS)}."
            )
        if self.products < 1:
            raise ValueError(f"tensor core: products={self.products}, but a block has at least 1.")
        sums, output = formats.get(self.sum_format), formats.get(self.output_format)
        if sums.exponent_bits != output.exponent_bits or sums.mantissa_bits > output.mantissa_bits:
            raise ValueError(
                f"{owner}: sum_format={self.sum_format!r}, but sums are stored in {output.name}: "
                f"it has {output.exponent_bits} bits of exponent and at most "
                f"{output.mantissa_bits} of mantissa."
            )
        if self.interleaved and self.products % 2:
            raise ValueError(
                f"{owner}: products={self.products}, but interleaved blocks take whole pairs."
            )

    @property
    def final_rounding(self) -> str:
        """How a block's exact sum becomes a value of `sum_format`."""
        return _FINAL_ROUNDINGS[self.output_format]

    @property
    def stride(self) -> int:
        """How many products there are from one value of the accumulator to the next."""
        return 2 * self.products if self.interleaved else self.products


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """A machine: what it is called, how fast it is at most, and how its tensor cores add.

    Attributes:
      name: Spelling used everywhere, e.g. "a100".
      title: What the vendor calls it.
      architecture: The family that shares its arithmetic, e.g. "Ampere".
      rates: Peak dense rates; empty where no figure with a source is at hand.
      bandwidth: That of its memory; None where no figure with a source is at hand.
      tensor_cores: The block of each pair of input and output format. Where the instructions of
        one machine add differently, each is a device of its own, e.g. "h100" and "h100_mma".

    >>> from jprec import hardware
    >>> hardware.get("a100").tensor_core("tf32").products
    4
    """

    name: str
    title: str
    architecture: str
    rates: tuple[Rate, ...]
    bandwidth: Bandwidth | None
    tensor_cores: tuple[TensorCore, ...]

    @property
    def input_formats(self) -> tuple[str, ...]:
        """The formats that its tensor cores multiply, as far as they are described here."""
        return tuple(dict.fromkeys(core.input_format for core in self.tensor_cores))

    def tensor_core(self, input_format: str, output_format: str = "fp32") -> TensorCore:
        """The block that multiplies `input_format` and accumulates in `output_format`.

        FP8 is "e4m3fn" or "fp8_e4m3", and "e5m2" or "fp8_e5m2".
        """
        input_format = FP8_NAMES.get(input_format, input_format)
        wanted = formats.get(input_format).name, formats.get(output_format).name
        for core in self.tensor_cores:
            if (core.input_format, core.output_format) == wanted:
                return core
        known = ", ".join(
            f"{core.input_format} to {core.output_format}" for core in self.tensor_cores
        )
        raise ValueError(
            f"{self.name} ({self.title}): no tensor core is known here that multiplies {wanted[0]} "
            f"and accumulates in {wanted[1]}. Known on this device: {known}."
        )

    def rate(self, fmt: str) -> Rate:
        """The peak dense rate of products with operands of `fmt`."""
        wanted = formats.get(fmt).name
        for rate in self.rates:
            if rate.format == wanted:
                return rate
        known = ", ".join(rate.format for rate in self.rates) or "none"
        raise ValueError(
            f"{self.name} ({self.title}): no peak rate with a source is known for {wanted}. "
            f"Known on this device: {known}."
        )
