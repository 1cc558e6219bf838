"""What a running study shows: bars in a terminal, one line a finished cell elsewhere."""

from collections.abc import Callable
from typing import Any, TextIO

Watch = Callable[[dict[str, Any]], None]


def show(stream: TextIO) -> Watch:
    """A function that is told each event of a study and shows it on `stream`."""
    from rich.console import Console

    console = Console(file=stream)
    return _Bars(console) if console.is_terminal else _Lines(stream)


class _Lines:
    """One plain line an event, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.cells = self.done = 0

    def __call__(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "planned":
                self.cells, self.done = event["cells"], event["cells"] - event["missing"]
                self._say(f"{self.done} of {self.cells} cells are finished")
            case "finished":
                self.done += 1
                self._say(f"{self.done}/{self.cells} {event['cell']} in {event['seconds']:.1f} s")
            case "failed" | "died":
                why = event.get("why") or f"its worker ended with exit status {event['exit']}"
                self._say(f"{event['cell']} failed: {why}")

    def _say(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


class _Bars:
    """A bar for the study and one for each cell that is being trained."""

    def __init__(self, console: Any) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self.tasks: dict[str, Any] = {}
        self.study: Any = None

    def __call__(self, event: dict[str, Any]) -> None:
        cell = event.get("cell", "")
        match event["event"]:
            case "planned":
                done = event["cells"] - event["missing"]
                self.console.print(f"{done} of {event['cells']} cells are finished")
                if event["missing"]:
                    self.bars.start()
                    self.study = self.bars.add_task("cells", total=event["cells"], completed=done)
            case "started":
                self.tasks[cell] = self.bars.add_task(f"  {cell}", total=None)
            case "progress":
                self.bars.update(self.tasks[cell], completed=event["done"], total=event["steps"])
            case "finished" | "failed" | "died":
                self.bars.remove_task(self.tasks.pop(cell))
                if event["event"] == "finished":
                    self.bars.advance(self.study)
                    if event["left"] == 0:
                        self.bars.stop()
                else:
                    self.console.print(f"{cell} failed")
