"""What several verbs read or ask in the same way: names of formats, choices, the terminal."""

import difflib
import re
import shutil
import sys
from collections.abc import Iterable, Sequence

from jprec.cli.trouble import Trouble


def format_names(words: Iterable[str]) -> list[str]:
    """The names in `words`, which commas and blanks separate.

    >>> format_names(["fp16,", "bf16,tf32", "fp32 e4m3fn"])
    ['fp16', 'bf16', 'tf32', 'fp32', 'e4m3fn']
    """
    return [name for word in words for name in re.split(r"[,\s]+", word) if name]


def joined_formats(words: Sequence[str]) -> list[str]:
    """The words of a command line with the names after `--format` in one word.

    A name starts with a letter, which of all numbers only inf and nan do.

    >>> joined_formats(["1", "--format", "fp16", "bf16,", "tf32", "--json"])
    ['1', '--format', 'fp16,bf16,,tf32', '--json']
    """
    found: list[str] = []
    inside = False
    for word in words:
        more = word[:1].isalpha() and word.lower() not in ("inf", "infinity", "nan")
        if inside and more and found[-1] != "--format":
            found[-1] += f",{word}"
            continue
        inside = word.startswith("--format") or (inside and found[-1] == "--format")
        found.append(word)
    return found


def meant(word: str, choices: Iterable[str]) -> str:
    """ "did you mean …? " for the choices that `word` resembles or begins; else nothing."""
    choices = list(choices)
    word = word.lower().replace("-", "_")
    close = [choice for choice in choices if word and choice.startswith(word)]
    close = close or difflib.get_close_matches(word, choices, n=1)
    return f"did you mean {' or '.join(close)}? " if close else ""


def check_choice(option: str, word: str, choices: Sequence[str]) -> None:
    """Refuses a word that is none of the choices."""
    if word not in choices:
        hint = meant(word, choices)
        raise Trouble(f"no {option} {word!r}; {hint}There are {', '.join(choices)}.")


def terminal_width() -> int | None:
    """The columns of the terminal; None where the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
