"""One verb per question: `jprec probe`, `jprec study`, `jprec report`."""

from jprec.cli.main import main

__all__ = ["main"]
