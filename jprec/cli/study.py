"""`jprec study`: train the same model in several precisions and judge whether it matters."""

import dataclasses
import shlex
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jprec import records
from jprec.cli.interruption import heeding
from jprec.cli.progress import show
from jprec.cli.trouble import Trouble

if TYPE_CHECKING:
    from jprec.study import Plan, Study

Reference = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STUDY")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N")]


@dataclasses.dataclass(frozen=True)
class Run:
    """Runs a study: trains what is not trained yet, judges, and writes the report.

    Finished cells are skipped, so an interrupted run goes on where it was. Exit status: 0; 1 if a
    control did not come out different on the bad side, or a twin not identical; 2 for bad input or
    a folder that cannot be written; 130 if interrupted.
    """

    study: Reference
    """A study's name, or one of your own: package.module:NAME or file.py:NAME."""

    out: Folder = None
    """Where records and report go. Default: runs/NAME."""

    full: bool = False
    """All models and more seeds."""

    seeds: Number = None
    """Seeds in each setting, instead of what the study says."""

    jobs: Number = None
    """Worker processes. Default: one for each processor."""

    json: bool = False
    """Print the verdicts as JSON for machines."""

    def run(self) -> int:
        """Runs, judges and reports; 1 if the study shows nothing."""
        from jprec import report

        plan = _plan(self)
        _run(plan)
        rows = _guarded(lambda: report.verdicts(report.read_study(plan.out)))
        page = _guarded(lambda: report.write_report(plan.out))
        if self.json:
            print(records.dumps([dataclasses.asdict(row) for row in rows], indent=1))
        else:
            print(report.verdict_table(rows))
        failed = report.failed_controls(rows)
        print(page, file=sys.stderr if self.json else sys.stdout)
        return 1 if failed else 0


@dataclasses.dataclass(frozen=True)
class Pilot:
    """Finds the margins of a study: trains each baseline on 32 pilot seeds, which are not judged.

    Prints, and writes to margins.json in the folder, half the standard deviation of the test loss.
    """

    study: Reference
    """A study's name, or one of your own: package.module:NAME or file.py:NAME."""

    out: Folder = None
    """Where the records go. Default: runs/NAME_pilot."""

    full: bool = False
    """All models."""

    jobs: Number = None
    """Worker processes. Default: one for each processor."""

    def run(self) -> int:
        """Runs the pilots and prints the margins; 0."""
        from jprec.study import run_pilots

        plan = _plan(self, folder="{}_pilot")
        margins = _guarded(lambda: run_pilots(plan, watch=heeding(show(sys.stderr))))
        for name, found in margins.items():
            print(f"{name:>20}  margin {found['margin']:.6f}  ({found['margin_source']})")
        print(plan.out / "margins.json")
        return 0


@dataclasses.dataclass(frozen=True)
class StudyVerb:
    """Trains the same model in several precisions, seed by seed, and judges whether it matters.

    `jprec study --list` lists the studies, `jprec study run NAME` runs one, and
    `jprec study run my.module:STUDY` one of your own.
    """

    do: (
        Annotated[Run, tyro.conf.subcommand("run")]
        | Annotated[Pilot, tyro.conf.subcommand("pilot")]
        | None
    ) = None

    list: bool = False
    """List the studies, with the question that each one asks."""

    arms: bool = False
    """List the ready arms, which a setting may name."""

    def run(self) -> int:
        """Lists or runs."""
        if self.list or self.arms:
            from jprec import study

            if self.list:
                _print_table(study.names())
            if self.arms:
                _print_table({arm.name: arm.what for arm in study.ARMS.values()})
            return 0
        if self.do is None:
            raise Trouble("nothing to do: jprec study --list, or jprec study run NAME.")
        return self.do.run()


def _print_table(rows: dict[str, str]) -> None:
    """Names and what they are, the latter wrapped."""
    width = max(map(len, rows))
    for name, text in rows.items():
        print(textwrap.fill(f"{name:<{width}}  {text}", 96, subsequent_indent=" " * (width + 2)))


def _find(reference: str) -> "Study":
    from jprec import study

    try:
        return study.find(reference)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise Trouble(str(error)) from error


def _plan(asked: Run | Pilot, *, folder: str = "{}") -> "Plan":
    """What the command asks for, checked."""
    from jprec.study import Plan

    found = _find(asked.study)
    seeds = asked.seeds if isinstance(asked, Run) else None
    if seeds is not None and seeds < 2:
        raise Trouble(f"--seeds {seeds}: differences need at least 2; 8 or more decide anything.")
    if asked.jobs is not None and asked.jobs < 1:
        raise Trouble(f"--jobs {asked.jobs}: at least 1 process is needed.")
    return Plan(
        reference=asked.study,
        study=found,
        out=asked.out or Path("runs") / folder.format(found.name),
        full=asked.full,
        seeds=seeds,
        jobs=asked.jobs,
        command=shlex.join(["jprec", *sys.argv[1:]]),
    )


def _run(plan: "Plan") -> None:
    from jprec import study

    _guarded(lambda: study.run(plan, watch=heeding(show(sys.stderr))))


def _guarded(act):  # type: ignore[no-untyped-def]
    """What `act` returns; what the user can mend becomes `Trouble`."""
    from jprec.study import StudyError

    try:
        return act()
    except (StudyError, records.FolderInUse, ValueError) as error:
        raise Trouble(str(error)) from error
    except OSError as error:
        raise Trouble(f"cannot write: {error}") from error
