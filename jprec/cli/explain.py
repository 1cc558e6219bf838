"""`jprec explain`: how is this number stored?"""

import dataclasses
from fractions import Fraction
from typing import Annotated, Any

import tyro

from jprec import formats, records
from jprec.cli.trouble import Trouble
from jprec.cli.words import check_choice, format_names, terminal_width


@dataclasses.dataclass(frozen=True)
class Explain:
    """Shows a number as a format stores it: the steps, the bits, the neighbours, the error.

    With one format the whole derivation, with several a table. For instance:
      jprec explain 43008.111
      jprec explain 43008.111 --format fp16
      jprec explain 1.5*2^-24 --format fp16,bf16 --mode toward_zero
      jprec explain 0x7bff --format fp16

    An ulp is the distance between the values around NUMBER; where rounding carries into the next
    binade, the spacing at the stored value is twice as large. In JSON, `ulp`, `below` and `above`
    are those around NUMBER, `spacing`, `binade`, `neighbours` and `midpoints` those of the stored
    value; `error` is value - NUMBER, `relative_error` error / |NUMBER|. Fractions are text, "1/3";
    what is not defined is "NaN", and what there is not is null.
    """

    number: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NUMBER")]
    """A decimal, 1/3, 2^-24, 1.5*2^-24, 0x1.8p3, bits (0x7bff, 0b0_11110_1111111111), inf, nan."""

    format: Annotated[str, tyro.conf.arg(metavar="NAMES")] = "fp16,bf16,tf32,fp32"
    """Formats, separated by commas or blanks. `jprec formats` lists them."""

    mode: Annotated[str, tyro.conf.arg(metavar="MODE")] = "nearest_even"
    """Rounding: nearest_even, nearest_away, toward_zero, up, down or to_odd."""

    overflow: Annotated[str, tyro.conf.arg(metavar="RULE")] = "format"
    """Beyond the largest value: format (infinity, or NaN, if there is one) or saturate."""

    json: bool = False
    """Print JSON for machines."""

    def run(self) -> int:
        """Prints the explanation; 0."""
        self._check()
        number, names = self.number.strip(), format_names([self.format])
        try:
            formats.read(number)  # before the formats: it comes first on the command line, too
            explained = [
                formats.explain(number, name, self.mode, overflow=self.overflow) for name in names
            ]
        except ValueError as error:
            raise Trouble(str(error)) from error
        if self.json:
            print(records.dumps([_for_machines(e) for e in explained], indent=1))
        elif len(explained) == 1:
            width = terminal_width()
            print(explained[0] if width is None else explained[0].wrapped(width))
        else:
            rule = "" if self.overflow == "format" else f", overflow {self.overflow}"
            print(f"{number}, {self.mode}{rule}\n")
            print(formats.side_by_side(explained, terminal_width()))
        return 0

    def _check(self) -> None:
        """Refuses modes, rules and lists of formats that are none."""
        if self.mode == "stochastic":
            raise Trouble(
                "--mode stochastic goes by chance and needs a key, which a command has not: "
                "jprec.rounding.round_to(x, format, 'stochastic', key=key) rounds so. "
                f"Here there are {', '.join(formats.MODES)}."
            )
        check_choice("--mode", self.mode, formats.MODES)
        check_choice("--overflow", self.overflow, formats.OVERFLOWS)
        if not format_names([self.format]):
            raise Trouble("--format names no format; `jprec formats` lists them.")


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
        "quiet": e.quiet,
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
        "relative_error": e.relative_error,
    }
