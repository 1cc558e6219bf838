"""Interrupts that are not lost: Python drops an exception that a signal raises inside a callback.

That happens while JAX traces. The wish to stop is therefore also noted, and looked up at the next
event of a study.
"""

import signal
from collections.abc import Callable
from typing import Any

_noted: list[int] = []


def listen() -> None:
    """From now on an interrupt or a request to end raises KeyboardInterrupt, and is noted."""
    _noted.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _note)


def _note(number: int, frame: object) -> None:
    _noted.append(number)
    raise KeyboardInterrupt


def heeding(watch: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """`watch`, which first raises KeyboardInterrupt if one was noted and has been lost."""

    def heeded(event: dict[str, Any]) -> None:
        if _noted:
            raise KeyboardInterrupt
        watch(event)

    return heeded
