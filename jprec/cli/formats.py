"""`jprec formats`: which formats are there, and what can they hold?"""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from jprec import formats, records
from jprec.cli.trouble import Trouble
from jprec.cli.words import format_names, terminal_width

#: Endings of files that a picture can be written to.
PICTURES = (".svg", ".png", ".pdf")


@dataclasses.dataclass(frozen=True)
class Formats:
    """Lists the formats with their range and precision, or shows one with its binades.

    For instance:
      jprec formats
      jprec formats tf32
      jprec formats fp16 bf16 e5m3
      jprec formats --plot formats.svg
      jprec formats e4m3fn --plot e4m3fn.png

    Besides the names in the table there are the IEEE-like eXmY with X exponent and Y fraction bits,
    such as e5m3, and those of IEEE P3109, such as binary8p4se: K = 8 bits, precision P = 4, signed
    or unsigned (s, u), extended with infinities or finite (e, f); one NaN and no -0.
    """

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[NAME ...]")
    ] = ()
    """Formats: none for all, one for its details, several for a table; blanks or commas between."""

    every: bool = False
    """Print every binade of a format, however many it has; in JSON, of several formats."""

    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw bits, ranges, density and number lines into a .svg, .png or .pdf file instead."""

    json: bool = False
    """Print JSON for machines. The binades are listed for one format, or with --every."""

    def run(self) -> int:
        """Prints the table or the details, or draws; 0."""
        names = format_names(self.names)
        if self.names and not names:
            raise Trouble("no format is named; `jprec formats` lists them.")
        try:
            chosen = [formats.get(name) for name in names or formats.names()]
        except ValueError as error:
            raise Trouble(str(error)) from error
        if self.plot is not None:
            _draw(chosen, self.plot)
            print(self.plot, file=sys.stderr if self.json else sys.stdout)
        if self.json:
            binades = self.every or len(chosen) == 1
            facts = [formats.facts(fmt, with_binades=binades) for fmt in chosen]
            print(records.dumps(facts, indent=1))
        elif self.plot is None and len(chosen) == 1:
            print(formats.details(chosen[0], every_binade=self.every))
        elif self.plot is None:
            print(formats.overview(chosen, terminal_width()))
        return 0


def _draw(chosen: list[formats.FloatFormat], path: Path) -> None:
    """Writes the picture of the formats to `path`."""
    if path.suffix.lower() not in PICTURES:
        raise Trouble(f"--plot {path}: a picture's name ends in {', '.join(PICTURES)}.")
    try:
        from jprec import report
    except ModuleNotFoundError as error:
        raise Trouble(f"--plot needs {error.name}: pip install 'jprec[lab]'.") from error
    try:
        report.write_formats_picture(path, chosen)
    except OSError as error:
        raise Trouble(f"cannot write {path}: {error.strerror or error}.") from error
