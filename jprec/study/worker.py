"""A worker: a process that trains cells one after another, as its parent names them.

Started as `python -m jprec.study.worker`. It reads one JSON object a line from standard input:
first the study, then cells; it answers with one JSON object a line. When its input ends, because
the parent has finished or died, it ends at once.
"""

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from queue import Queue
from typing import Any, TextIO


def main() -> None:
    """Serves one parent until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # prints of a reader's module stay apart
    orders: Queue[dict[str, Any]] = Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    order = orders.get()
    _pin(order["cpu"])

    # Imported after the process has been pinned: XLA counts processors when it starts.
    from jprec import doctor
    from jprec.study.catalogue import find

    try:
        settings = {
            s.name: s for s in find(order["study"]).select(full=order["full"], seeds=order["seeds"])
        }
        probes = [vars(p) for p in doctor.probe_backend()]
    except Exception as error:
        _answer(answers, event="refused", why=str(error) or repr(error))
        return
    _answer(answers, event="ready", environment=doctor.environment(), probes=probes)
    values = {probe["name"]: probe["value"] for probe in probes}
    while True:
        order = orders.get()
        _serve(order, settings[order["setting"]], values, Path(order["path"]), answers)


def _serve(
    order: dict[str, Any], setting: Any, probes: dict[str, Any], path: Path, answers: TextIO
) -> None:
    """Trains one cell and writes its record; every failure becomes an answer."""
    from jprec import records
    from jprec.study.cells import run_cell

    cell = {"setting": order["setting"], "arm": order["arm"]}
    start = time.monotonic()

    def progress(done: int, steps: int) -> None:
        _answer(answers, event="progress", **cell, done=done, steps=steps)

    try:
        record = run_cell(setting, order["arm"], progress=progress)
    except Exception as error:
        details = traceback.format_exc()
        why = f"{type(error).__name__}: {error}"
        _answer(answers, event="failed", **cell, why=why, details=details)
        return
    try:
        records.write_json(path, record | {"probes": probes})
    except OSError as error:
        _answer(answers, event="unwritable", **cell, why=f"cannot write {path}: {error.strerror}")
    else:
        seconds = round(time.monotonic() - start, 2)
        _answer(answers, event="finished", **cell, seconds=seconds)


def _listen(orders: "Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)  # the parent is gone or done; no cell half-trained is worth keeping


def _answer(answers: TextIO, **fields: Any) -> None:
    from jprec import records

    answers.write(records.dumps(fields) + "\n")
    answers.flush()


def _pin(cpu: int | None) -> None:
    """Keeps this process on one processor: two such run twice as many small cells as one wide one.

    A cell's bits do not depend on how many workers there are, because each has one processor.
    """
    if cpu is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})


if __name__ == "__main__":
    main()
