"""The journal: one event a line, appended while a study runs."""

import datetime
import json
import os
from pathlib import Path
from typing import Any

from jprec.records.files import dumps


class Journal:
    """Appends events to a file of JSON lines; each line is on the disk before `append` returns.

    Times and durations live here and not in the results, which are therefore the same bytes
    whenever the same cell is run again.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Opens nothing yet; the file is made by the first event."""
        self.path = Path(path)

    def append(self, event: str, **fields: Any) -> None:
        """Adds one line: the time (UTC, ISO 8601), the event's name and its fields."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = dumps({"time": now, "event": event, **fields}) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A line torn by a kill ends without a newline: start a new one, so that only it is lost.
        if self.path.exists() and self.path.stat().st_size and not _ends_with_newline(self.path):
            line = "\n" + line
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_journal(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The events of a journal in the order written; torn lines (of killed runs) are skipped."""
    path = Path(path)
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events
