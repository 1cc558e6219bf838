"""The experiment in miniature, and its page in step with its record."""

import pytest

from jprec import records


@pytest.fixture
def run(experiment):
    return experiment("tf32_vs_fp32")


def test_the_miniature_runs_and_says_where(run, tmp_path, capsys):
    assert run.main(["--small", "--out", str(tmp_path)]) == 0
    result = records.read_json(tmp_path / "results.json")
    assert result["where"] == "emulated, speeds predicted"
    errors = {row["spec"]: row["rms"] for row in result["by_shape"]}
    assert errors["fp32"] * 50 < errors["tf32"] < errors["tf32:toward_zero"]
    assert (tmp_path / "errors.svg").is_file()
    assert "not comparable" in capsys.readouterr().out


def test_the_largest_of_many_normal_errors_is_known(run):
    middle, low, high = run.expected_largest(1.0, 10_240**2)
    assert 5.5 < low < middle < high < 6.3  # of 1e8 standard normal magnitudes
    assert run.expected_largest(2.0, 10_240**2)[0] == pytest.approx(2 * middle)


def test_the_page_shows_its_record_and_the_rule_decides_as_it_says(run):
    result = records.read_json(run.HERE / "results" / "results.json")
    page = (run.HERE / "README.md").read_text(encoding="utf-8")
    assert run.renewed(page, result) == page
    example, published = result["pytorch_example"], result["published"]["tf32_largest"]
    low, high = example["tf32"]["interval_90"]
    assert low < published < high
    assert published < example["tf32:toward_zero"]["interval_90"][0]
    assert example["fp32+fp32"]["sample_largest"] > example["fp32+fp32"]["interval_90"][1]
