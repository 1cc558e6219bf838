"""The command line: reads the words, calls the room, turns what happened into an exit status."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from jprec.cli import interruption
from jprec.cli.probe import Probe
from jprec.cli.report import Report
from jprec.cli.study import StudyVerb
from jprec.cli.trouble import Trouble

DESCRIPTION = """A laboratory for floating-point precision in JAX.

Exit status: 0 done, 1 a study whose control failed, 2 bad input, 130 interrupted."""

Verb = (
    Annotated[StudyVerb, tyro.conf.subcommand("study")]
    | Annotated[Probe, tyro.conf.subcommand("probe")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)


def main(words: Sequence[str] | None = None) -> None:
    """Runs `jprec` with `words` (the process's own by default) and exits with its status."""
    verb: Any = tyro.cli(
        Verb,  # type: ignore[arg-type]
        prog="jprec",
        description=DESCRIPTION,
        args=words,
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    interruption.listen()
    try:
        status = verb.run()
    except Trouble as trouble:
        print(f"jprec: {trouble}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("jprec: interrupted; what was finished is kept.", file=sys.stderr)
        status = 130
    except BrokenPipeError:  # the reader of our output (head, less) has left
        status = 0
    sys.exit(status)
