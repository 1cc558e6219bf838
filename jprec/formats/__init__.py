"""Which numbers exist: floating-point formats, their codes, and exact rounding (the oracle)."""

from jprec.formats.blocks import BlockFormat, BlockLike, block_names, get_block, round_block_exact
from jprec.formats.codes import decode, encode, values
from jprec.formats.description import FloatFormat, FormatLike, Specials, get, names
from jprec.formats.explanation import Explanation, explain
from jprec.formats.oracle import MODES, OVERFLOWS, Number, round_exact

__all__ = [
    "MODES",
    "OVERFLOWS",
    "BlockFormat",
    "BlockLike",
    "Explanation",
    "FloatFormat",
    "FormatLike",
    "Number",
    "Specials",
    "block_names",
    "decode",
    "encode",
    "explain",
    "get",
    "get_block",
    "names",
    "round_block_exact",
    "round_exact",
    "values",
]
