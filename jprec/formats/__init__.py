"""Which numbers exist: floating-point formats, their codes, and exact rounding (the oracle)."""

from jprec.formats.codes import decode, encode, values
from jprec.formats.description import FloatFormat, FormatLike, Specials, get, names
from jprec.formats.explanation import Explanation, explain
from jprec.formats.oracle import MODES, OVERFLOWS, Number, round_exact

__all__ = [
    "MODES",
    "OVERFLOWS",
    "Explanation",
    "FloatFormat",
    "FormatLike",
    "Number",
    "Specials",
    "decode",
    "encode",
    "explain",
    "get",
    "names",
    "round_exact",
    "values",
]
