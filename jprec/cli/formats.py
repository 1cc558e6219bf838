"""`jprec formats`: which formats are there, and what can they hold?"""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from jprec import formats, records
from jprec.cli.trouble import Trouble

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
    """

    names: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[NAME ...]")
    ] = ()
    """Formats: none for all, one for its details, several for a table of these."""

    every: bool = False
    """Print every binade of a format, however many it has."""

    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw ranges, density and number lines into a .svg, .png or .pdf file, instead of a table."""

    json: bool = False
    """Print JSON for machines."""

    def run(self) -> int:
        """Prints the table or the details, or draws; 0."""
        try:
            chosen = [formats.get(name) for name in self.names or formats.names()]
        except ValueError as error:
            raise Trouble(str(error)) from error
        if self.plot is not None:
            _draw(chosen, self.plot)
            print(self.plot, file=sys.stderr if self.json else sys.stdout)
        if self.json:
            print(records.dumps([formats.facts(fmt) for fmt in chosen], indent=1))
        elif self.plot is None and len(chosen) == 1:
            print(formats.details(chosen[0], every_binade=self.every))
        elif self.plot is None:
            print(formats.overview(chosen))
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
