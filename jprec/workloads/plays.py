"""Three plays as a text to learn, character by character."""

import functools
import importlib.resources

import numpy as np

#: The last tenth of the text is held out.
HELD_OUT = 0.1


@functools.cache
def load() -> tuple[np.ndarray, np.ndarray, int]:
    """(training text [n] int32, held-out text [m] int32, number of different characters).

    Characters are numbered in the order of their code points.

    >>> train, test, characters = load()
    >>> len(train) + len(test), characters
    (404880, 73)
    """
    file = importlib.resources.files("jprec.workloads") / "data" / "plays.txt"
    text = np.array([ord(c) for c in file.read_text(encoding="utf-8")])
    alphabet, codes = np.unique(text, return_inverse=True)
    cut = int(len(codes) * (1 - HELD_OUT))
    codes = codes.astype(np.int32)
    return codes[:cut], codes[cut:], len(alphabet)


def guess() -> float:
    """The held-out loss, in nats a character, of guessing by the training text's frequencies."""
    train, test, characters = load()
    frequencies = (np.bincount(train, minlength=characters) + 1) / (len(train) + characters)
    return float(-np.log(frequencies)[test].mean())
