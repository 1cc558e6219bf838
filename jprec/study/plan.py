"""What is to run, and where it is written."""

import dataclasses
from pathlib import Path

from jprec.study.cells import PILOT, cell_names
from jprec.study.design import Setting, Study


@dataclasses.dataclass(frozen=True)
class Cell:
    """One arm of one setting.

    `cost` is roughly how long it takes; only the order matters.
    """

    setting: str
    arm: str
    cost: float = 0.0

    @property
    def name(self) -> str:
        """Spelling in messages and folders."""
        return f"{self.setting}/{self.arm}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A study and how it is to be run.

    Attributes:
      reference: How a worker finds the study again: a name, or module:NAME.
      study: The study.
      out: The folder of its records.
      full: Whether all models and more seeds run.
      seeds: Seeds in each setting; None: as the study says.
      command: The command that reproduces the run, for the record.
      jobs: Worker processes; None: one for each processor.
      pilots_only: Whether only the pilots run, of every setting.
    """

    reference: str
    study: Study
    out: Path
    full: bool = False
    seeds: int | None = None
    command: str = ""
    jobs: int | None = None
    pilots_only: bool = False

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings that run."""
        return self.study.select(full=self.full, seeds=self.seeds)

    def path(self, cell: Cell) -> Path:
        """The record of a cell; it exists if, and only if, the cell is finished."""
        return self.out / "cells" / cell.setting / cell.arm / "result.json"

    def cells(self) -> list[Cell]:
        """Every cell, the costliest first, so that no worker is left with a long one at the end."""
        found = [
            Cell(setting.name, arm, _cost(setting, arm))
            for setting in self.settings
            for arm in ((PILOT,) if self.pilots_only else cell_names(setting))
        ]
        return sorted(found, key=lambda cell: -cell.cost)

    def missing(self) -> list[Cell]:
        """The cells without a record."""
        return [cell for cell in self.cells() if not self.path(cell).exists()]


def _cost(setting: Setting, arm: str) -> float:
    """Steps times seeds, times 15 for a device's emulation.

    Pilots come before everything: a margin is fixed before the arms that it judges are run.
    """
    if arm == PILOT:
        return float("inf")
    return setting.steps * setting.seeds * (15.0 if "@" in arm else 1.0)
