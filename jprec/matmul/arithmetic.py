"""How the operands of one product are rounded and how it is summed, forward and backward."""

import dataclasses

from jprec import formats, hardware
from jprec.matmul.spec import MatmulSpec, get

#: Formats of which a tensor core multiplies any two: PTX names one for each operand.
_FP8 = frozenset(hardware.FP8_NAMES.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The arithmetic of one product, whose operands need not be rounded alike.

    Attributes:
      lhs: Spec as whose operand the first operand is rounded, or split.
      rhs: The same for the second operand.
      sums: Spec whose accumulator, device and chunks add the products.
      gradient: Spec of the backward products: it rounds the cotangent and sums. The other operand
        is rounded there as it is here.
    """

    lhs: MatmulSpec
    rhs: MatmulSpec
    sums: MatmulSpec
    gradient: MatmulSpec

    def __post_init__(self) -> None:
        for sums in (self.sums, self.gradient):
            for operand in (self.lhs, self.rhs):
                _check(sums, operand)

    @classmethod
    def of(
        cls,
        spec: str | MatmulSpec,
        *,
        lhs_spec: str | MatmulSpec | None = None,
        rhs_spec: str | MatmulSpec | None = None,
        grad_spec: str | MatmulSpec | None = None,
    ) -> "Arithmetic":
        """What the arguments of `dot_general` say; `spec` stands for those that are None."""
        spec = get(spec)
        lhs, rhs, gradient = (
            spec if other is None else get(other) for other in (lhs_spec, rhs_spec, grad_spec)
        )
        return cls(lhs=lhs, rhs=rhs, sums=spec, gradient=gradient)

    @property
    def specs(self) -> tuple[MatmulSpec, ...]:
        """The different specs in it."""
        return tuple(dict.fromkeys((self.sums, self.lhs, self.rhs, self.gradient)))

    def backward(self, *, lhs: MatmulSpec, rhs: MatmulSpec) -> "Arithmetic":
        """A product of the backward pass, whose operands are rounded as `lhs` and `rhs` say."""
        return Arithmetic(lhs=lhs, rhs=rhs, sums=self.gradient, gradient=self.gradient)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Which summands of the operands are multiplied, the smallest products first.

        As `MatmulSpec.pairs`; where operands are split in different ways, as far down as the finer
        split goes.
        """
        kept = max(self.lhs.kept, self.rhs.kept)
        every = [(i, j) for i in range(self.lhs.terms) for j in range(self.rhs.terms)]
        return tuple(
            sorted((p for p in every if sum(p) <= kept), key=lambda pair: (-sum(pair), pair))
        )

    @property
    def input_formats(self) -> tuple[str, str]:
        """The formats in which a device's tensor core takes the two operands."""
        return _taken(self.sums, self.lhs), _taken(self.sums, self.rhs)

    @property
    def tensor_core(self) -> hardware.TensorCore | None:
        """The block that adds the products; None where no device's is emulated.

        Of FP8 formats that of the one with more digits, whose products are the largest.
        """
        core = self.sums.tensor_core
        if core is None or len(set(self.input_formats)) == 1:
            return core
        widest = max(self.input_formats, key=lambda name: formats.get(name).precision)
        return dataclasses.replace(core, input_format=widest)

    @property
    def operand_format(self) -> formats.FloatFormat:
        """The format of the operand with more digits."""
        both = (formats.get(spec.operand_format) for spec in (self.lhs, self.rhs))
        return max(both, key=lambda fmt: fmt.precision)


def _check(sums: MatmulSpec, operand: MatmulSpec) -> None:
    """An error if `sums` cannot add products of an operand that is rounded as `operand` says."""
    if operand == sums:
        return
    if sums.is_native:
        _check_native(sums, operand)
    elif operand.is_native:
        raise ValueError(
            f"an operand is to be rounded as in {operand}, but {sums} is emulated, and how this "
            f"machine rounds is not known. Give both specs @native, or neither."
        )
    elif sums.tensor_core is not None:
        _taken(sums, operand)


def _check_native(sums: MatmulSpec, operand: MatmulSpec) -> None:
    alike = (sums.operand_format, sums.rounding, sums.products) == (
        operand.operand_format,
        operand.rounding,
        operand.products,
    )
    if not (alike or _are_fp8(sums, operand)):
        raise ValueError(
            f"an operand is to be rounded as in {operand}, but the product is {sums}: a native "
            "product takes operands of one spec, or one in E4M3 and one in E5M2. Emulate it: leave "
            "@native out."
        )


def _are_fp8(*specs: MatmulSpec) -> bool:
    return all(spec.operand_format in _FP8 and spec.products == 1 for spec in specs)


def _taken(sums: MatmulSpec, operand: MatmulSpec) -> str:
    """The format in which the tensor core of `sums` takes an operand rounded as `operand` says."""
    core = sums.tensor_core
    assert core is not None
    fmt, own = formats.get(operand.operand_format), formats.get(core.input_format)
    if _holds(own, fmt):
        return own.name
    if {fmt.name, own.name} == _FP8:
        # The block is known for both formats, multiplies exactly and adds alike for both. That it
        # does so for one of each is assumed: no recorded output shows it.
        other = hardware.get(str(sums.device)).tensor_core(fmt.name, core.output_format)
        if dataclasses.replace(other, input_format=own.name) == core:
            return fmt.name
    raise ValueError(
        f"an operand is to be rounded to {fmt.name}, but the product is {sums}, and that tensor "
        f"core takes operands of {own.name}, which does not hold every value of {fmt.name}. Name a "
        "spec without a device, or round both operands to a format that the device takes."
    )


def _holds(wide: formats.FloatFormat, narrow: formats.FloatFormat) -> bool:
    """Whether every finite value of `narrow` is one of `wide`."""
    return (
        narrow.precision <= wide.precision
        and narrow.max <= wide.max
        and narrow.min_subnormal >= wide.min_subnormal
    )
