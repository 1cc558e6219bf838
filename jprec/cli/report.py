"""`jprec report`: the page of a study, made again from its records."""

import dataclasses
from pathlib import Path

import tyro

from jprec.cli.trouble import Trouble


@dataclasses.dataclass(frozen=True)
class Report:
    """Writes the report of a study again from its records, without JAX."""

    folder: tyro.conf.Positional[Path]
    """The folder of the records, for instance runs/converges."""

    def run(self) -> int:
        """Writes the page and prints where it is; 1 if a control failed, else 0."""
        from jprec import report

        if not (self.folder / "study.json").is_file():
            raise Trouble(
                f"{self.folder} holds no study (no study.json). Give the folder that "
                "`jprec study run` wrote, for instance runs/converges."
            )
        try:
            rows = report.verdicts(report.read_study(self.folder))
            page = report.write_report(self.folder)
        except (ValueError, KeyError) as error:
            raise Trouble(f"{self.folder} cannot be read: {error}") from error
        except OSError as error:
            raise Trouble(f"cannot write to {self.folder}: {error.strerror}") from error
        print(page)
        return 1 if report.failed_controls(rows) else 0
