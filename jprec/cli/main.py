"""The command line: reads the words, calls the room, turns what happened into an exit status."""

import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Union

import tyro

import jprec
from jprec.cli import interruption
from jprec.cli.audit import AuditVerb
from jprec.cli.explain import Explain
from jprec.cli.formats import Formats
from jprec.cli.hardware import Hardware
from jprec.cli.matmul import Matmul
from jprec.cli.probe import Probe
from jprec.cli.report import Report
from jprec.cli.study import StudyVerb
from jprec.cli.trouble import Trouble
from jprec.cli.words import joined_formats, meant

DESCRIPTION = """A laboratory for floating-point precision in JAX. For instance:
  jprec explain 43008.111
  jprec formats
  jprec matmul --spec fp32,tf32,tf32@a100
  jprec audit model.py:step_and_arguments --device a100
  jprec study --list
  jprec probe

More about a verb: `jprec VERB --help`. The version: `jprec --version`.

Exit status: 0 done, 1 something to mend (audit) or a failed control (study), 2 bad input,
130 interrupted."""

#: Verb -> what reads its words, in the order of the help.
VERBS = {
    "explain": Explain,
    "formats": Formats,
    "hardware": Hardware,
    "matmul": Matmul,
    "audit": AuditVerb,
    "study": StudyVerb,
    "probe": Probe,
    "report": Report,
}


def main(words: Sequence[str] | None = None) -> None:
    """Runs `jprec` with `words` (the process's own by default) and exits with its status."""
    words = sys.argv[1:] if words is None else list(words)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without "₂" shows "?"
        sys.stdout.reconfigure(errors="replace")
    if words == ["--version"]:
        print(f"jprec {jprec.__version__}")
        sys.exit(0)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words[:1] == ["explain"]:
        words = joined_formats(words)
    try:
        _check_verb(words)
        status = _run(words)
    except Trouble as trouble:
        print(f"jprec: {trouble}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("jprec: interrupted; what was finished is kept.", file=sys.stderr)
        status = 130
    except BrokenPipeError:  # the reader of our output (head, less) has left
        status = 0
    sys.exit(status)


def _check_verb(words: Sequence[str]) -> None:
    """Names the verb that a misspelt one resembles."""
    if words and not words[0].startswith("-") and words[0] not in VERBS:
        hint = meant(words[0], VERBS)
        raise Trouble(f"no verb {words[0]!r}; {hint}There are {', '.join(VERBS)}.")


def _first_line(verb: type, *, brief: bool) -> str | None:
    return (verb.__doc__ or "").partition("\n")[0] if brief else None


def _run(words: Sequence[str]) -> int:
    """Reads the words, runs the verb, and gives its exit status."""
    # The help of all verbs has their first lines, the help of one its whole text.
    brief = not words or words[0] not in VERBS
    verbs = (
        Annotated[verb, tyro.conf.subcommand(name, description=_first_line(verb, brief=brief))]
        for name, verb in VERBS.items()
    )
    verb: Any = tyro.cli(
        Union[tuple(verbs)],  # type: ignore[arg-type]  # noqa: UP007
        prog="jprec",
        description=DESCRIPTION,
        args=words,
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    interruption.listen()
    status: int = verb.run()
    return status
