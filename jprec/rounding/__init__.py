"""How an array becomes numbers of a format: rounding, exponents and spacings, by bits."""

from jprec.rounding.blocks import block_scales, round_blocks
from jprec.rounding.kernel import DERIVATIVES, SUBNORMALS, Rounding
from jprec.rounding.modes import MODES
from jprec.rounding.rounder import round_to
from jprec.rounding.spacing import EXPONENT_OF_NONFINITE, EXPONENT_OF_ZERO, exponent, ulp
from jprec.rounding.traced import round_to_mantissa

__all__ = [
    "DERIVATIVES",
    "EXPONENT_OF_NONFINITE",
    "EXPONENT_OF_ZERO",
    "MODES",
    "SUBNORMALS",
    "Rounding",
    "block_scales",
    "exponent",
    "round_blocks",
    "round_to",
    "round_to_mantissa",
    "ulp",
]
