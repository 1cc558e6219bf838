"""The engine as a user meets it: killed, interrupted, misspelt, out of room."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jprec import records, study

TINY = f"{Path(__file__).with_name('tiny.py')}:STUDY"


def command(*words):
    return [sys.executable, "-m", "jprec.cli", *map(str, words)]


def jprec(*words, **options):
    done = subprocess.run(command(*words), capture_output=True, text=True, **options)
    return done.returncode, done.stdout, done.stderr


def results(folder):
    return {p.parent.name: p.read_bytes() for p in sorted(folder.rglob("result.json"))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a whole run, its exit status and what it printed."""
    out = tmp_path_factory.mktemp("tiny") / "out"
    return out, *jprec("study", "run", TINY, "--out", out, "--jobs", 2)


def test_a_run_trains_every_cell_judges_and_ends_with_the_report(finished):
    out, status, printed, log = finished
    assert set(results(out)) == {"fp32", "tf32", "mixed_fp16", "pure_bf16", "fp32_scaled"}
    assert printed.splitlines()[-1] == str(out / "report.html")
    assert (out / "report.html").is_file()
    assert "5/5" in log
    assert status in (0, 1)  # eight steps decide nothing about the control


def test_a_second_run_trains_nothing(finished, tmp_path):
    out, status, printed, _ = finished
    before = {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}
    again = jprec("study", "run", TINY, "--out", out)
    assert again[:2] == (status, printed)
    assert "5 of 5 cells are finished" in again[2]
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}


def test_killed_and_started_again_the_records_are_those_of_an_undisturbed_run(finished, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(
        command("study", "run", TINY, "--out", out, "--jobs", 1),
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 300
    while not results(out) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = results(out)
    assert 0 < len(kept) < 5
    with open(out / "journal.jsonl", "a") as journal:
        journal.write('{"time": "torn')
    assert jprec("study", "run", TINY, "--out", out, "--jobs", 2)[0] == finished[1]
    assert results(out) == results(finished[0])
    for name, before in kept.items():
        assert results(out)[name] == before
    ends = [e for e in records.read_journal(out / "journal.jsonl") if e["event"] == "finished"]
    assert len(ends) == 5


def test_an_interrupt_ends_with_130_and_leaves_no_worker(tmp_path):
    process = subprocess.Popen(
        command("study", "run", TINY, "--out", tmp_path / "out", "--jobs", 1),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "out" / "study.json").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "what was finished is kept" in said
    assert not results(tmp_path / "out")


def test_a_folder_of_another_design_is_refused(finished):
    status, _, said = jprec("study", "run", TINY, "--out", finished[0], "--seeds", 3)
    assert status == 2
    assert "another design (differs: line)" in said
    assert len(said.splitlines()) == 1


def test_records_of_another_environment_are_not_mixed(finished, tmp_path):
    out = tmp_path / "out"
    plan = study.Plan(reference=TINY, study=study.find(TINY), out=out)
    manifest = records.read_json(finished[0] / "study.json")
    manifest["environment"]["jax"] = "0.0.1"
    records.write_json(out / "study.json", manifest)
    with pytest.raises(study.StudyError, match=r"made elsewhere \(jax: 0\.0\.1 -> "):
        study.run(plan)


def test_an_edited_study_does_not_mix_its_records_with_the_old_ones(finished, tmp_path):
    edited = tmp_path / "tiny.py"
    edited.write_text(Path(TINY.split(":")[0]).read_text().replace("sgd(0.05)", "sgd(0.06)"))
    status, _, said = jprec("study", "run", f"{edited}:STUDY", "--out", finished[0])
    assert status == 2
    assert "another design (differs: line)" in said


def test_a_record_of_garbage_is_one_clear_line(finished, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(finished[0], out)
    (out / "cells" / "line" / "tf32" / "result.json").write_text('{"a')
    status, _, said = jprec("study", "run", TINY, "--out", out)
    assert status == 2
    assert "result.json is not a JSON record" in said
    assert "Traceback" not in said


def test_an_error_of_the_study_s_own_is_not_taken_for_a_full_disk(tmp_path):
    broken = tmp_path / "broken.py"
    source = Path(TINY.split(":")[0]).read_text()
    broken.write_text(source.replace("key, (8, 4))", 'key, (8, 4))\n    open("/no/such/file")', 1))
    plan = study.Plan(reference=f"{broken}:STUDY", study=study.find(TINY), out=tmp_path / "out")
    with pytest.raises(study.StudyError, match="No such file"):
        study.run(plan)


def test_what_does_not_fit_is_found_before_anything_is_trained(tmp_path):
    half = tmp_path / "half.py"
    source = Path(TINY.split(":")[0]).read_text()
    half.write_text(source.replace(".astype(jnp.float32)", ""))
    status, _, said = jprec("study", "run", f"{half}:STUDY", "--out", tmp_path / "out")
    assert status == 2
    assert "in the arm mixed_fp16 does not work: TypeError: loss_fn returned float16" in said
    assert not list((tmp_path / "out").rglob("result.json"))


def test_a_folder_in_use_is_refused(finished):
    with records.locked(finished[0]):
        status, _, said = jprec("study", "run", TINY, "--out", finished[0])
    assert status == 2
    assert "in use by another run" in said


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    status, _, said = jprec("study", "run", TINY, "--out", tmp_path / "file" / "out")
    assert status == 2
    assert "cannot write" in said
    assert len(said.splitlines()) == 1


def test_a_full_disk_is_one_clear_line_and_loses_nothing(finished, tmp_path, monkeypatch):
    out = tmp_path / "out"
    plan = study.Plan(reference=TINY, study=study.find(TINY), out=out)
    records.write_json(out / "cells" / "line" / "fp32" / "result.json", {"kept": True})

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        study.StudyError, match=r"No space left on device\. Finished cells are kept"
    ):
        study.run(plan)
    assert records.read_json(out / "cells" / "line" / "fp32" / "result.json") == {"kept": True}
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("study", "run", "convergs"), "Close: converges"),
        (("study", "run", "converges", "--ful"), "--full"),
        (("study", "run", "converges", "--seeds", "1"), "at least 2"),
        (("study", "run", "converges", "--seeds", "many"), "many"),
        (("study",), "jprec study --list"),
        (("stdy",), "study"),
        (("report", "/nowhere"), "no study.json"),
    ],
)
def test_bad_words_get_an_answer_and_exit_status_2(words, message):
    status, printed, said = jprec(*words)
    assert status == 2
    assert message in printed + said
    assert "Traceback" not in said


def test_help_and_list_explain_themselves():
    for words in (("--help",), ("study", "--help"), ("study", "run", "--help")):
        status, printed, _ = jprec(*words)
        assert status == 0
        assert "study" in printed
    assert "converges" in jprec("study", "--list")[1]


def test_verdicts_can_be_read_by_machines(finished):
    status, printed, _ = jprec("study", "run", TINY, "--out", finished[0], "--json")
    assert status == finished[1]
    assert {row["arm"] for row in json.loads(printed)} >= {"tf32", "pure_bf16"}
