"""The engine: runs the cells of a study in worker processes, skips those that are finished."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from queue import Queue
from typing import Any

from jprec import records
from jprec.study.manifest import (
    StudyError,
    check_environment,
    complete_manifest,
    open_manifest,
)
from jprec.study.plan import Cell, Plan
from jprec.study.rehearsal import rehearse

Watch = Callable[[dict[str, Any]], None]

#: How often a cell is tried whose worker dies under it (killed for memory, say).
TRIES = 2

_ROOM = "Finished cells are kept; make room or choose another folder with --out, and run again."


def run(plan: Plan, *, watch: Watch = lambda event: None) -> None:
    """Runs the cells that have no record yet; `watch` is told every event as it happens.

    Raises:
      StudyError: if the folder belongs to other settings or versions, cannot be written, or a cell
        failed. What was finished stays, and a second call goes on from there.
      records.FolderInUse: if another run writes there.
    """
    try:
        with records.locked(plan.out):
            open_manifest(plan)
            missing = plan.missing()
            watch({"event": "planned", "missing": len(missing), "cells": len(plan.cells())})
            if missing:
                _rehearse(plan)
                _Crew(plan, missing, watch).work()
            if not plan.pilots_only:
                complete_manifest(plan)
    except OSError as error:
        raise StudyError(
            f"cannot write to {plan.out}: {error.strerror or error}. {_ROOM}"
        ) from error


def _rehearse(plan: Plan) -> None:
    for setting in plan.settings:
        try:
            rehearse(setting)
        except ValueError as error:
            raise StudyError(str(error)) from error


class _Worker:
    """A worker process, and the cell that it is training."""

    def __init__(self, plan: Plan, slot: int, answers: "Queue[tuple[_Worker, Any]]") -> None:
        self.slot = slot
        self.ready = False
        self.cell: Cell | None = None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jprec.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # an interrupt reaches the parent alone, which ends its workers
        )
        processors = _processors()
        self.send(
            study=plan.reference,
            full=plan.full,
            seeds=plan.seeds,
            cpu=processors[slot % len(processors)] if processors else None,
        )
        self.reader = threading.Thread(target=self._read, args=(answers,), daemon=True)
        self.reader.start()

    def send(self, **order: Any) -> None:
        """Gives an order; a worker that has died meanwhile says so by the end of its output."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Ends the process at once: a cell is either recorded or not."""
        self.process.kill()
        self.process.wait()
        self.reader.join()
        with contextlib.suppress(BrokenPipeError):  # an order that it never read
            self.process.stdin.close()  # type: ignore[union-attr]

    def _read(self, answers: "Queue[tuple[_Worker, Any]]") -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                # A worker that is killed may leave half a line.
                with contextlib.suppress(json.JSONDecodeError):
                    answers.put((self, json.loads(line)))
        answers.put((self, None))


class _Crew:
    """The workers of one run, and the cells that wait for them."""

    def __init__(self, plan: Plan, missing: list[Cell], watch: Watch) -> None:
        self.plan, self.watch = plan, watch
        self.journal = records.Journal(plan.out / "journal.jsonl")
        self.waiting = deque(missing)
        self.left = len(missing)
        self.tries = dict.fromkeys(missing, 0)
        self.failed: list[str] = []
        self.answers: Queue[tuple[_Worker, Any]] = Queue()
        self.workers: list[_Worker] = []

    def work(self) -> None:
        """Trains every cell, or says which could not be."""
        wanted = self.plan.jobs or len(_processors()) or os.cpu_count() or 1
        try:
            for slot in range(min(wanted, self.left)):
                self.workers.append(_Worker(self.plan, slot, self.answers))
            while self.left:
                worker, answer = self.answers.get()
                if answer is None:
                    self._died(worker)
                else:
                    self._heard(worker, answer)
        finally:
            for worker in self.workers:
                worker.end()
        if self.failed:
            raise StudyError(
                f"cells failed: {'; '.join(self.failed)}. Others are kept, and {self.journal.path} "
                "has the details; mend the cause and run the command again."
            )

    def _heard(self, worker: _Worker, answer: dict[str, Any]) -> None:
        match answer["event"]:
            case "progress":
                self._tell("progress", worker.cell, done=answer["done"], steps=answer["steps"])
                return
            case "ready":
                worker.ready = True
                check_environment(self.plan, answer)
            case "refused":
                raise StudyError(answer["why"])
            case "unwritable":
                raise StudyError(f"{answer['why']}. {_ROOM}")
            case "finished":
                self._close(worker, "finished", seconds=answer["seconds"])
            case "failed":
                assert worker.cell is not None
                self.failed.append(f"{worker.cell.name}: {answer['why'].rstrip('.')}")
                self._close(worker, "failed", why=answer["why"], details=answer["details"])
        self._hand_over(worker)

    def _died(self, worker: _Worker) -> None:
        """A worker's output ended: its cell is tried again, by a new worker."""
        self.workers.remove(worker)
        status = worker.process.wait()
        worker.end()
        if not worker.ready:
            raise StudyError(
                f"a worker ended with exit status {status} before its first cell; what it printed "
                "stands above."
            )
        cell = worker.cell
        if cell is None:  # it had nothing left to do
            return
        if self.tries[cell] < TRIES:
            self.waiting.appendleft(cell)
            self.journal.append("died", cell=cell.name, exit=status)
            self._tell("died", cell, exit=status)
        else:
            self.failed.append(f"{cell.name}: its worker ended with exit status {status}")
            self._close(worker, "failed", why=f"exit status {status}")
        if self.waiting:
            self.workers.append(_Worker(self.plan, worker.slot, self.answers))

    def _close(self, worker: _Worker, event: str, **fields: Any) -> None:
        """Writes down how the worker's cell ended."""
        cell, worker.cell = worker.cell, None
        assert cell is not None
        self.left -= 1
        self.journal.append(event, cell=cell.name, **fields)
        self._tell(event, cell, left=self.left, **fields)

    def _hand_over(self, worker: _Worker) -> None:
        """Gives the worker the next cell, if one waits."""
        if not self.waiting:
            return
        cell = worker.cell = self.waiting.popleft()
        self.tries[cell] += 1
        self.journal.append("started", cell=cell.name)
        self._tell("started", cell)
        worker.send(setting=cell.setting, arm=cell.arm, path=str(self.plan.path(cell)))

    def _tell(self, event: str, cell: Cell | None, **fields: Any) -> None:
        self.watch({"event": event, "cell": cell.name if cell else "", **fields})


def _processors() -> list[int]:
    """The processors that this process may use, where the system tells."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
