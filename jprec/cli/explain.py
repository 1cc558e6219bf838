"""`jprec explain`: how is this number stored?"""

import dataclasses
import math
from fractions import Fraction
from typing import Annotated, Any

import tyro

from jprec import formats, records
from jprec.cli.trouble import Trouble


@dataclasses.dataclass(frozen=True)
class Explain:
    """Shows a number as a format stores it: the steps, the bits, the neighbours, the error.

    With one format the whole derivation, with several a table. For instance:

    jprec explain 43008.111
    jprec explain 43008.111 --format fp16
    jprec explain 1.5*2^-24 --format fp16,bf16 --mode toward_zero
    jprec explain 0x7bff --format fp16
    """

    number: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NUMBER")]
    """A decimal, 1/3, 2^-24, 1.5*2^-24, 0x1.8p3, bits (0x7bff, 0b0_11110_1111111111), inf, nan."""

    format: Annotated[str, tyro.conf.arg(metavar="NAMES")] = "fp16,bf16,tf32,fp32"
    """Formats, separated by commas. `jprec formats` lists them."""

    mode: Annotated[str, tyro.conf.arg(metavar="MODE")] = "nearest_even"
    """Rounding: nearest_even, nearest_away, toward_zero, up, down or to_odd."""

    overflow: Annotated[str, tyro.conf.arg(metavar="RULE")] = "format"
    """Beyond the largest value: format (infinity, or NaN, if there is one) or saturate."""

    json: bool = False
    """Print JSON for machines."""

    def run(self) -> int:
        """Prints the explanation; 0."""
        try:
            number = formats.read(self.number)
            explained = [
                formats.explain(number, name.strip(), self.mode, overflow=self.overflow)
                for name in self.format.split(",")
            ]
        except ValueError as error:
            raise Trouble(str(error)) from error
        if self.json:
            print(records.dumps([_for_machines(e) for e in explained], indent=1))
        elif len(explained) == 1:
            print(explained[0])
        else:
            rule = "" if self.overflow == "format" else f", overflow {self.overflow}"
            print(f"{self.number.strip()}, {self.mode}{rule}\n")
            print(formats.side_by_side(explained))
        return 0


def _exact(number: Fraction | float) -> str:
    """The number as a fraction, "1/3"; in rounded decimals if it has thousands of digits."""
    try:
        return str(number)
    except ValueError:  # Python's limit on the digits of integers
        return formats.decimal(number, 40)


def _for_machines(e: formats.Explanation) -> dict[str, Any]:
    """The explanation in JSON's terms; fractions are text, "1/3"."""
    return {
        "given": _exact(e.given),
        "format": e.format.name,
        "mode": e.mode,
        "overflow": e.overflow,
        "code": e.code,
        "bits": e.bits,
        "kind": e.kind,
        "value": e.value,
        "fraction": None if e.fraction is None else str(e.fraction),
        "exponent": e.exponent,
        "exponent_field": e.exponent_field,
        "mantissa": e.mantissa,
        "ulp": e.ulp,
        "below": e.below,
        "above": e.above,
        "neighbours": e.neighbours,
        "binade": None if e.binade is None else [str(end) for end in e.binade],
        "spacing": e.spacing,
        "midpoints": [
            None if m is None else {"at": str(m.at), "goes_to": m.goes_to} for m in e.midpoints
        ],
        "error": e.error,
        "error_in_ulps": e.error_in_ulps,
        "relative_error": None if math.isnan(e.relative_error) else e.relative_error,
    }
