import json
import math
import os
import subprocess
import sys

import pytest

from jprec import records


def test_non_finite_numbers_survive_strict_json(tmp_path):
    values = [1.5, math.nan, math.inf, -math.inf, -0.0]
    records.write_json(tmp_path / "a.json", {"x": values})
    json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    got = records.as_floats(records.read_json(tmp_path / "a.json")["x"])
    assert math.isnan(got[1])
    assert got[0] == 1.5
    assert got[2:4] == [math.inf, -math.inf]
    assert math.copysign(1, got[4]) == -1


def test_floats_come_back_bit_for_bit(tmp_path):
    values = [0.1, 1e-320, 2.0**-149, 1 / 3]
    records.write_json(tmp_path / "a.json", values)
    assert records.read_json(tmp_path / "a.json") == values


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    records.write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        records.write_json(tmp_path / "a.json", {"x": object()})
    assert records.read_json(tmp_path / "a.json") == {"x": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_broken_record_is_named(tmp_path):
    (tmp_path / "a.json").write_text('{"x": 1')
    with pytest.raises(ValueError, match=r"a\.json is not a JSON record"):
        records.read_json(tmp_path / "a.json")


def test_a_torn_last_line_is_skipped_and_the_next_event_is_not_lost(tmp_path):
    journal = records.Journal(tmp_path / "j.jsonl")
    journal.append("started", cell="hot/tf32")
    with open(journal.path, "a") as file:
        file.write('{"time": "2026-01-01", "ev')
    assert [e["event"] for e in records.read_journal(journal.path)] == ["started"]
    journal.append("finished", cell="hot/tf32", seconds=1.5)
    assert [e["event"] for e in records.read_journal(journal.path)] == ["started", "finished"]


def test_a_missing_journal_is_empty(tmp_path):
    assert records.read_journal(tmp_path / "none.jsonl") == []


def test_a_second_process_cannot_take_a_locked_folder(tmp_path):
    program = (
        "import sys; from jprec import records\n"
        "try:\n"
        "    with records.locked(sys.argv[1]): print('free')\n"
        "except records.FolderInUse as error: print('in use' if 'in use' in str(error) else error)"
    )
    run = [sys.executable, "-c", program, str(tmp_path)]
    with records.locked(tmp_path):
        assert subprocess.run(run, capture_output=True, text=True).stdout == "in use\n"
    assert subprocess.run(run, capture_output=True, text=True).stdout == "free\n"


def test_records_do_not_import_jax():
    program = "import sys, jprec.records; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
