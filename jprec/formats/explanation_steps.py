"""The steps from a number to its fields, as a teacher writes them on the board."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from jprec.formats.notation import (
    binary,
    count,
    decimal,
    fraction,
    in_units,
    power,
    short_exponent,
)
from jprec.formats.oracle import floor_log2, nearest_float, unit_in_last_place

if TYPE_CHECKING:
    from jprec.formats.explanation import Explanation

#: Width of the labels.
LABEL = 12

#: Bits shown beyond those that are kept.
_CUT_BITS = 8


def row(label: str, text: str) -> str:
    """A line with its label."""
    return f"  {label:<{LABEL}}{text}"


def given(e: "Explanation") -> str:
    """The number as it was given, in the shortest way that names it."""
    exact = decimal(e.given)
    if not exact.startswith("≈"):
        return exact
    assert isinstance(e.given, Fraction)
    nearest = nearest_float(e.given)
    if math.isfinite(nearest) and Fraction(nearest) == e.given:
        return short_exponent(repr(nearest))
    if 0 < len(e.text) <= 30:
        return e.text
    if max(e.given.numerator.bit_length(), e.given.denominator.bit_length()) > 80:
        return exact
    text = fraction(e.given)
    return text if len(text) <= 24 else exact


def steps(e: "Explanation") -> list[str]:
    """From the number to its fields: binary, normalised, rounded, exponent with its bias."""
    if not isinstance(e.given, Fraction):
        return []
    fmt, magnitude, sign = e.format, abs(e.given), "-" if e.given < 0 else ""
    exponent = floor_log2(magnitude)
    places = fmt.mantissa_bits + _CUT_BITS
    ways = []
    if exponent and -12 <= exponent <= 24:
        ways.append(f"= {sign}{binary(magnitude, max(places - exponent, 4))}₂")
    normalised = binary(magnitude / Fraction(2) ** exponent, places)
    ways.append(f"= {sign}{normalised}₂ × {power(exponent)}")
    indent = max(len(given(e)) + 1, LABEL)
    lines = [f"  {'' if i else given(e):<{indent}}{step}" for i, step in enumerate(ways)]
    if e.code is not None and (fmt.signed or e.given > 0):
        lines += _rounding(e, exponent)
    return [*lines, *_exponent_steps(e)]


def _rounding(e: "Explanation", exponent: int) -> list[str]:
    """The bits that are kept and what happens to the rest."""
    assert isinstance(e.given, Fraction)
    fmt, unit = e.format, unit_in_last_place(abs(e.given), e.format)
    kept, rest = divmod(abs(e.given) / unit, 1)
    digits = f"{kept:0{fmt.precision}b}"
    cut = binary(rest, _CUT_BITS)[2:] if rest else ""
    used = max(exponent, fmt.min_exponent)
    shown = f"{digits[0]}.{digits[1:]}|{cut}₂ × {power(used)}"
    if used > exponent and fmt.has_subnormals:
        shown += f"   ({power(used)} is the smallest exponent: subnormal)"
    if not rest:
        return [row("rounding", shown), row("", "nothing is left over")]
    stored = abs(Fraction(e.value)) if math.isfinite(e.value) else None
    outcome = {kept * unit: "; it is cut off", (kept + 1) * unit: "; one is added to the last bit"}
    done = outcome.get(stored, "") if stored is not None and (kept or fmt.has_zero) else ""
    if e.exponent is not None and stored == (kept + 1) * unit and e.exponent > used:
        done += f", which carries to {power(e.exponent)}"
    # Past the last binade the ulp stays that of the last one, but rounding goes by a wider step.
    step = "ulp" if unit == Fraction(e.ulp) else f"of {power(floor_log2(unit))}"
    left = f"left over: {in_units(rest, Fraction(1))} {step}{_reason(e, rest)}{done}"
    return [row("rounding", shown), row("", left)]


def _reason(e: "Explanation", rest: Fraction) -> str:
    """Why the mode cuts off `rest`, a share of an ulp, or adds one."""
    if not e.mode.startswith("nearest"):
        return f"; {_DIRECTED[e.mode][e.given < 0]}"
    if rest == Fraction(1, 2):
        return ", a tie"
    return f", {'less' if rest < Fraction(1, 2) else 'more'} than a half"


_ODD = "to_odd takes the neighbour whose code ends in 1, whatever is left over"
_INWARD, _OUTWARD = "which is toward zero here", "which is away from zero here"

#: Mode that does not go by the half -> what it does with a positive number, and a negative one.
_DIRECTED = {
    "toward_zero": ("toward_zero never adds one",) * 2,
    "up": (f"up goes toward +∞, {_OUTWARD}", f"up goes toward +∞, {_INWARD}"),
    "down": (f"down goes toward -∞, {_INWARD}", f"down goes toward -∞, {_OUTWARD}"),
    "to_odd": (_ODD, _ODD),
}


def _exponent_steps(e: "Explanation") -> list[str]:
    """The sum that makes the exponent field."""
    if e.exponent is None:
        return []
    bits = f"{e.exponent_field:0{e.format.exponent_bits}b}₂"
    if e.kind == "subnormal":
        return [row("exponent", f"field 0 = {bits}: no implicit 1, and the exponent {e.exponent}")]
    return [row("exponent", f"{e.exponent} + {e.format.bias} = {e.exponent_field} = {bits}")]


def fields(e: "Explanation") -> list[str]:
    """The code, with a line to each of its fields; or why there is none."""
    fmt = e.format
    if e.code is None:
        return [
            f"  {fmt.name} has no NaN: each of its codes is a number, so there is none for this."
        ]
    parts = e.bits.split()
    meanings = [
        *([f"sign  {parts[0]}: {'-' if parts[0] == '1' else '+'}"] if fmt.signed else []),
        f"exponent  {_exponent_meaning(e)}",
        *([f"fraction  {e.mantissa}/{count(fmt.mantissa_bits)}"] if fmt.mantissa_bits else []),
    ]
    stems = ["│".ljust(len(part) + 1) for part in parts]
    lines = [f"  {e.bits} = 0x{e.code:0{math.ceil(fmt.bits / 4)}x}"]
    for i in reversed(range(len(parts))):
        lines.append(f"  {''.join(stems[:i])}└ {meanings[i]}")
    return lines


def _exponent_meaning(e: "Explanation") -> str:
    field = e.exponent_field
    if e.kind == "normal":
        return f"{field} - {e.format.bias} = {e.exponent}"
    if e.kind in ("zero", "subnormal"):
        return f"{field}: zero and the subnormals" if e.format.has_subnormals else f"{field}: zero"
    return f"{field} (all ones)" if field == 2**e.format.exponent_bits - 1 else f"{field}"
