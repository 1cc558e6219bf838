"""One verb per question: `jprec explain`, `formats`, `audit`, `study`, `probe`, `report`."""

from jprec.cli.main import main

__all__ = ["main"]
