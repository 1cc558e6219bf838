"""Every experiment's page, figures and findings are those that its record makes."""

import dataclasses
import importlib.util
import json
import re
from pathlib import Path

import pytest

from jprec import records, report

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
NAMES = sorted(
    path.parent.name
    for path in EXPERIMENTS.glob("*/run.py")
    if "EXPERIMENT = " in path.read_text(encoding="utf-8")
)


@pytest.fixture(scope="module", params=NAMES)
def experiment(request):
    path = EXPERIMENTS / request.param / "run.py"
    spec = importlib.util.spec_from_file_location(f"every_{request.param}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EXPERIMENT


@pytest.fixture(scope="module")
def record(experiment):
    return records.read_json(experiment.folder / "results" / "results.json")


def test_the_committed_record_is_of_a_full_run_and_small(experiment, record):
    assert record["experiment"] == experiment.name
    assert record["small"] is False
    assert (experiment.folder / "results" / "results.json").stat().st_size < 400_000


def test_the_page_shows_its_record(experiment, record):
    page = (experiment.folder / "README.md").read_text(encoding="utf-8")
    made = experiment.tables(record["parts"])
    assert report.renewed(page, made) == page
    assert set(report.generated_parts(page)) == set(made)


def test_the_page_has_the_sections_of_an_experiment_and_shows_every_figure(experiment, record):
    page = (experiment.folder / "README.md").read_text(encoding="utf-8")
    for word in ("Question", "Arms", "Decision rule", "What this does not show", "reproduce"):
        assert word in page, word
    with report.drawing():
        names = set(experiment.figures(record["parts"]))
    assert set(re.findall(r"\]\(results/([\w.]+\.svg)\)", page)) == names


def test_figures_are_drawn_from_the_record(experiment, record, tmp_path):
    with report.drawing():
        for name, figure in experiment.figures(record["parts"]).items():
            report.write_figure(tmp_path / name, figure)
            committed = experiment.folder / "results" / name
            # The order of Matplotlib's ids is that of the machine; the size tells enough.
            drawn = len((tmp_path / name).read_bytes())
            assert abs(drawn - len(committed.read_bytes())) <= 0.02 * drawn, name


def test_findings_follow_from_the_record(experiment, record):
    found = [dataclasses.asdict(f) for f in experiment.findings(record["parts"])]
    assert json.loads(records.dumps(found)) == record["findings"]
    assert found
