"""Block formats: numbers in groups, each group with one scale."""

import dataclasses
import difflib
import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

from jprec.formats.description import FloatFormat, get
from jprec.formats.oracle import Number, floor_log2, round_exact, to_exact

#: How the scale follows from the largest magnitude of a block, amax:
#:   floor    2**(exponent of amax - exponent of the element's largest value), as in OCP's MX; what
#:            then still lies beyond the element's largest value becomes that
#:   nearest  amax / (the element's largest value), rounded to the nearest scale
#:   ceil     the same, rounded up: nothing lies beyond, unless the largest scale is too small
ScaleRule: TypeAlias = Literal["floor", "nearest", "ceil"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockFormat:
    """Blocks of `size` numbers, each an element times the block's scale.

    Elements and scales are given as formats or by name.

    Attributes:
      name: Spelling used everywhere, e.g. "mxfp4".
      size: Numbers in a block.
      element: Format of the elements, at most 8 bits wide.
      scale: Format of the scales, at most 8 bits wide.
      scale_rule: How the scale is chosen, see `ScaleRule`.

    >>> fmt = get_block("nvfp4")
    >>> fmt.size, fmt.element.name, fmt.scale.name, fmt.bits_per_value
    (16, 'e2m1fn', 'e4m3fn', 4.5)
    >>> mine = BlockFormat(
    ...     name="mine", size=8, element="e3m2fn", scale="e8m0fnu", scale_rule="ceil"
    ... )
    """

    name: str
    size: int
    element: FloatFormat
    scale: FloatFormat
    scale_rule: ScaleRule

    def __post_init__(self) -> None:
        for role in ("element", "scale"):
            object.__setattr__(self, role, get(getattr(self, role)))
        if not isinstance(self.size, int) or self.size < 1:
            self._refuse(f"size={self.size!r}", "a block holds an integer number, at least 1")
        if self.scale_rule not in get_args(ScaleRule):
            rules = ", ".join(get_args(ScaleRule))
            self._refuse(f"scale_rule={self.scale_rule!r}", f"it is one of {rules}")
        for role, fmt in (("element", self.element), ("scale", self.scale)):
            if fmt.bits > 8:
                self._refuse(f"{role}={fmt} has {fmt.bits} bits", "block formats have at most 8")
        if self.scale_rule == "floor" and self.scale.mantissa_bits:
            self._refuse(
                f"scale_rule='floor' with scales in {self.scale}",
                "that rule gives powers of two; take 'nearest' or 'ceil', or scales in e8m0fnu",
            )
        if not (self.element.signed and self.element.has_zero):
            self._refuse(f"element={self.element}", "elements have a sign and a zero")
        if self.element.min_subnormal < 2.0**-64 or self.element.max > 2.0**64:
            self._refuse(f"element={self.element}", "elements lie between 2**-64 and 2**64")
        if self.scale.has_zero and not self.scale.mantissa_bits:
            self._refuse(f"scale={self.scale}", "powers of two as scales are without zero: e8m0fnu")
        if self.scale.min_subnormal < 2.0**-127 or self.scale.max > 2.0**127:
            self._refuse(f"scale={self.scale}", "scales lie between 2**-127 and 2**127")

    def _refuse(self, value: str, rule: str) -> None:
        raise ValueError(f"block format {self.name!r}: {value}, but {rule}.")

    def __str__(self) -> str:
        return self.name

    @property
    def bits_per_value(self) -> float:
        """Bits of storage for each number, its share of the scale included."""
        return self.element.bits + self.scale.bits / self.size


def _mx(name: str, element: str) -> BlockFormat:
    return BlockFormat(
        name=name, size=32, element=get(element), scale=get("e8m0fnu"), scale_rule="floor"
    )


# OCP Microscaling Formats (MX) Specification 1.0, 2023, table 1 and section 6.3 (the scale);
# NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, for nvfp4: blocks of 16, scales in
# E4M3, amax / 6 rounded to nearest.
_BLOCKS = {
    fmt.name: fmt
    for fmt in (
        _mx("mxfp8_e4m3", "e4m3fn"),
        _mx("mxfp8_e5m2", "e5m2"),
        _mx("mxfp6_e2m3", "e2m3fn"),
        _mx("mxfp6_e3m2", "e3m2fn"),
        _mx("mxfp4", "e2m1fn"),
        BlockFormat(
            name="nvfp4",
            size=16,
            element=get("e2m1fn"),
            scale=get("e4m3fn"),
            scale_rule="nearest",
        ),
    )
}

#: A block format or its name.
BlockLike: TypeAlias = BlockFormat | str


def block_names() -> tuple[str, ...]:
    """The names of the block formats that have one."""
    return tuple(_BLOCKS)


@functools.cache
def get_block(fmt: BlockLike) -> BlockFormat:
    """The block format that a name means, with another scale rule after a colon: "mxfp4:ceil".

    >>> get_block("mxfp4").scale_rule, get_block("mxfp4:ceil").scale_rule
    ('floor', 'ceil')
    """
    if isinstance(fmt, BlockFormat):
        return fmt
    if not isinstance(fmt, str):
        raise TypeError(
            f"{fmt!r} names no block format; pass a name such as 'mxfp4' or a BlockFormat."
        )
    name, _, rule = fmt.lower().partition(":")
    if name not in _BLOCKS:
        close = [known for known in _BLOCKS if name and known.startswith(name)]
        close = close or difflib.get_close_matches(name, _BLOCKS, n=2, cutoff=0.5)
        raise ValueError(
            f"unknown block format {name!r}; "
            + (f"did you mean {' or '.join(close)}? " if close else "")
            + f"Known: {', '.join(_BLOCKS)}, each also with a scale rule, as in 'mxfp4:ceil'; or "
            "pass a jprec.formats.BlockFormat. Formats of single numbers are for round_to."
        )
    if not rule:
        return _BLOCKS[name]
    changes: dict[str, Any] = {"name": fmt.lower(), "scale_rule": rule}  # checked by __post_init__
    return dataclasses.replace(_BLOCKS[name], **changes)


def round_block_exact(
    values: Sequence[Number], fmt: BlockLike, mode: str = "nearest_even"
) -> tuple[float, list[float]]:
    """The scale and the elements of one block, in rational arithmetic: values are scale * element.

    The oracle of `jprec.rounding.round_blocks`, which states the rules. Scales and elements
    saturate. Zero as the scale (a small block in a format whose scales have one) makes elements
    zero; infinity or NaN anywhere makes everything NaN.

    >>> round_block_exact([0.3, -1.0, 7.0], "mxfp4")
    (1.0, [0.5, -1.0, 6.0])
    """
    fmt = get_block(fmt)
    round_exact(0, fmt.element, mode)  # refuses what is no mode
    exact = [to_exact(value) for value in values]
    if any(isinstance(value, float) and value != 0 for value in exact):
        return math.nan, [math.nan] * len(exact)
    scale = scale_exact(max((abs(Fraction(value)) for value in exact), default=Fraction(0)), fmt)
    if scale == 0:
        return scale, [round_exact(math.copysign(0, value), fmt.element) for value in exact]
    divided = [value and Fraction(value) / Fraction(scale) for value in exact]
    return scale, [round_exact(y, fmt.element, mode, overflow="saturate") for y in divided]


def scale_exact(amax: Fraction, fmt: BlockFormat) -> float:
    """The scale of a block whose largest magnitude is `amax`."""
    smallest, largest = Fraction(fmt.scale.min_subnormal), Fraction(fmt.scale.max)
    if amax == 0:
        return 0.0 if fmt.scale.has_zero else fmt.scale.min_subnormal
    if fmt.scale_rule == "floor":
        power = Fraction(2) ** (floor_log2(amax) - fmt.element.max_exponent)
        return float(min(max(power, smallest), largest))
    mode = {"nearest": "nearest_even", "ceil": "up"}[fmt.scale_rule]
    return round_exact(amax / Fraction(fmt.element.max), fmt.scale, mode, overflow="saturate")
