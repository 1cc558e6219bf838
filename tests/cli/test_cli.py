import contextlib
import json
import os
import signal

import pytest

from jprec.cli import interruption, main
from jprec.cli.progress import show


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(words)
    printed = capsys.readouterr()
    return end.value.code, printed.out, printed.err


def test_probe_prints_versions_and_answers(capsys):
    status, printed, _ = run(capsys, "probe")
    assert status == 0
    assert "jaxlib" in printed
    assert "Is the emulated TF32 product of 1.0001 and 1 exactly 1?\n  yes" in printed


def test_probe_speaks_to_machines(capsys):
    status, printed, _ = run(capsys, "probe", "--json")
    found = json.loads(printed)
    assert status == 0
    assert {p["name"] for p in found["probes"]} >= {"fma_contraction", "fp32_subnormals"}


def test_a_verb_without_words_says_what_to_do(capsys):
    status, _, said = run(capsys, "study")
    assert status == 2
    assert said == "jprec: nothing to do: jprec study --list, or jprec study run NAME.\n"


def test_progress_away_from_a_terminal_is_one_plain_line_an_event(capsys):
    import sys

    watch = show(sys.stderr)
    watch({"event": "planned", "cells": 3, "missing": 1})
    watch({"event": "started", "cell": "hot/tf32"})
    watch({"event": "progress", "cell": "hot/tf32", "done": 1, "steps": 2})
    watch({"event": "finished", "cell": "hot/tf32", "seconds": 1.25, "left": 0})
    watch({"event": "died", "cell": "hot/fp32", "exit": -9})
    assert capsys.readouterr().err.splitlines() == [
        "2 of 3 cells are finished",
        "3/3 hot/tf32 in 1.2 s",
        "hot/fp32 failed: its worker ended with exit status -9",
    ]


def test_an_interrupt_that_a_callback_swallowed_stops_the_next_event():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        interruption.listen()
        seen = []
        watch = interruption.heeding(seen.append)
        watch({"event": "planned"})
        with contextlib.suppress(KeyboardInterrupt):  # as a callback inside a library does
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            watch({"event": "started"})
        assert seen == [{"event": "planned"}]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
