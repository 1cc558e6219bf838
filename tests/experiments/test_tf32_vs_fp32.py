"""The experiment in miniature, and its page in step with its record."""

import pytest

from jprec import records


@pytest.fixture
def run(experiment):
    return experiment("tf32_vs_fp32")


def test_the_miniature_runs_and_says_where(run, tmp_path):
    assert run.EXPERIMENT.main(["--small", "--out", str(tmp_path)]) == 0
    record = records.read_json(tmp_path / "results.json")
    assert record["where"] == "emulated on a CPU"
    errors = {row["spec"]: row["rms"] for row in record["parts"]["by_shape"]}
    assert errors["fp32"] * 50 < errors["tf32"] < errors["tf32:toward_zero"]


def test_the_largest_of_many_normal_errors_is_known(run):
    middle, low, high = run.expected_largest(1.0, 10_240**2)
    assert 5.5 < low < middle < high < 6.3  # of 1e8 standard normal magnitudes
    assert run.expected_largest(2.0, 10_240**2)[0] == pytest.approx(2 * middle)


def test_the_rule_decides_as_it_says(run):
    record = records.read_json(run.EXPERIMENT.folder / "results" / "results.json")
    example = record["parts"]["pytorch_example"]
    published = record["parts"]["published"]["tf32_largest"]
    low, high = example["tf32"]["interval_90"]
    assert low < published < high
    assert published < example["tf32:toward_zero"]["interval_90"][0]
    assert example["fp32+fp32"]["sample_largest"] > example["fp32+fp32"]["interval_90"][1]
    (finding,) = (f for f in record["findings"] if f["claim"] == "A13")
    assert finding["verdict"] == "confirmed"
