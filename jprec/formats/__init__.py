"""Which numbers exist: floating-point formats, their codes, and exact rounding (the oracle)."""

from jprec.formats.blocks import BlockFormat, BlockLike, block_names, get_block, round_block_exact
from jprec.formats.codes import decode, encode, values
from jprec.formats.comparison import side_by_side
from jprec.formats.description import FloatFormat, FormatLike, Specials, get, names
from jprec.formats.explanation import Explanation, Midpoint, explain
from jprec.formats.notation import decimal, power, short
from jprec.formats.oracle import MODES, OVERFLOWS, Number, round_exact
from jprec.formats.reading import BitPattern, read
from jprec.formats.tables import Binade, binades, details, facts, overview

__all__ = [
    "MODES",
    "OVERFLOWS",
    "Binade",
    "BitPattern",
    "BlockFormat",
    "BlockLike",
    "Explanation",
    "FloatFormat",
    "FormatLike",
    "Midpoint",
    "Number",
    "Specials",
    "binades",
    "block_names",
    "decimal",
    "decode",
    "details",
    "encode",
    "explain",
    "facts",
    "get",
    "get_block",
    "names",
    "overview",
    "power",
    "read",
    "round_block_exact",
    "round_exact",
    "short",
    "side_by_side",
    "values",
]
