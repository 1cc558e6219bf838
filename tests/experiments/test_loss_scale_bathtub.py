"""The experiment in miniature, its closed forms, and its page in step with its record."""

import copy
import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats as scipy_stats

from jprec import optim, records, report


@pytest.fixture
def run(experiment):
    return experiment("loss_scale_bathtub")


@pytest.fixture
def record(run):
    return records.read_json(run.EXPERIMENT.folder / "results" / "results.json")


def test_the_miniature_runs_and_both_walls_stand(run, tmp_path, capsys):
    assert run.EXPERIMENT.main(["--small", "--out", str(tmp_path)]) == 0
    parts = records.read_json(tmp_path / "results.json")["parts"]
    small, one, large = (parts[run.name(run.FP16, e)] for e in (run.TOO_SMALL, 0, run.TOO_LARGE))
    assert run.share(small, "weights", "vanished", look=-1) == 1.0
    assert run.skipped(small) == run.skipped(one) == 0.0
    assert run.skipped(large) == 1.0
    assert large["looks"][0]["weights"]["not_finite"] > 0
    # Neither of the two moves: they end with the weights that they were given.
    assert small["weights"] == large["weights"] != one["weights"]
    assert np.max(np.subtract(one["test_loss"], parts[run.name(run.FP32, 0)]["test_loss"])) < 1e-3
    path = parts[run.name("dynamic", 24)]["path"]
    assert [of_seed[0] for of_seed in path] == [[0, 24]] * 2
    assert all(exponent < 24 for of_seed in path for _, exponent in of_seed[1:])
    assert {file.name for file in tmp_path.iterdir()} >= {"bathtub.svg", "walls.svg"}
    assert "A miniature" in capsys.readouterr().out


def test_the_share_flushed_is_that_of_the_numbers_themselves(run):
    rng = np.random.default_rng(0)
    x = np.float32(rng.standard_normal(4096) * 2.0 ** rng.integers(-40, 0, 4096))
    exponents = np.floor(np.log2(np.abs(x))).astype(int)
    places, numbers = np.unique(exponents, return_counts=True)
    histogram = {str(e): int(n) for e, n in zip(places, numbers, strict=True)}
    counted = jax.jit(lambda scale: optim.number_ranges([x], scale=scale)["0"].flushed)
    for scale in (-9, 0, 7, 30):
        with np.errstate(under="ignore", over="ignore"):
            in_fp16 = np.float16(np.ldexp(x.astype(np.float64), scale))
        assert run.flushed_share(histogram, scale) == np.mean(in_fp16 == 0)
        flushed = counted(np.float32(2.0**scale)).item()
        assert run.flushed_share(histogram, scale) == pytest.approx(flushed)
        squares = np.float64(x) ** 2
        lost = squares[in_fp16 == 0].sum() / squares.sum()
        assert run.flushed_squares(histogram, scale) == pytest.approx(lost, rel=0.2, abs=1e-12)
    least = run.scale_for(histogram, 0.01)
    assert run.flushed_share(histogram, least) <= 0.01 < run.flushed_share(histogram, least - 1)


@pytest.mark.parametrize("largest", [65504.0, 65519.99, 65520.0, 1.0, 0.0266, 2.0**-30, 1e5])
def test_the_scale_below_overflow_is_the_largest_that_keeps_a_number_finite(run, largest):
    exponent = run.scale_below_overflow(largest)
    with np.errstate(over="ignore"):
        assert np.isfinite(np.float16(np.ldexp(largest, exponent)))
        assert np.isinf(np.float16(np.ldexp(largest, exponent + 1)))


def test_the_plateau_is_the_widest_run_of_neighbours(run):
    assert run.plateau({0: False, 1: False}) is None
    assert run.plateau({0: True}) == (0, 0)
    # Three neighbours that span two octaves lose to two that span eight.
    assert run.plateau({0: True, 1: True, 2: True, 3: False, 4: True, 12: True}) == (4, 12)


def test_a_path_is_kept_as_its_changes(run):
    assert run.changes([3, 3, 3]) == [[0, 3]]
    path = run.changes([24, 23, 23, 24])
    assert path == [[0, 24], [1, 23], [3, 24]]
    assert run._after(path, 2) == [23, 24]


def test_page_and_findings_are_those_of_the_record(run, record):
    page = (run.EXPERIMENT.folder / "README.md").read_text(encoding="utf-8")
    assert report.renewed(page, run.tables(record["parts"])) == page
    assert record["findings"] == [dataclasses.asdict(f) for f in run.findings(record["parts"])]
    assert not record["small"]


def test_the_plateau_follows_from_the_losses_by_hand(run, record):
    parts = record["parts"]
    margin = np.std(parts["pilot"]["test_loss"], ddof=1) / 2
    baseline = np.float64(parts["fp32 2^0"]["test_loss"])

    def inside(exponent):
        difference = np.float64(parts[f"mixed_fp16 2^{exponent}"]["test_loss"]) - baseline
        n = len(difference)
        half = scipy_stats.t.ppf(0.95, n - 1) * difference.std(ddof=1) / n**0.5
        return abs(difference.mean()) + half < margin

    low, high = run.measured(parts).plateau
    tried = run.exponents(parts, run.FP16)
    assert all(inside(e) for e in tried if low <= e <= high)
    assert not inside(max(e for e in tried if e < low))
    assert not inside(min(e for e in tried if e > high))


def test_where_a_control_does_not_fail_nothing_is_found(run, record):
    parts = copy.deepcopy(record["parts"])
    assert run.controls_hold(parts)
    parts["mixed_fp16 2^-20"]["test_loss"] = parts["fp32 2^0"]["test_loss"]
    assert {f.verdict for f in run.findings(parts)} == {"undecided"}
    parts = copy.deepcopy(record["parts"])
    parts["fp32 2^24"]["weights"][0] = "another"
    assert {f.verdict for f in run.findings(parts)} == {"undecided"}


def test_a_prediction_that_fails_is_said_to_fail(run, record):
    parts = copy.deepcopy(record["parts"])
    first = run.name(run.FP16, run.exponents(parts, run.FP16)[0])
    parts[first]["skipped"][0] = 1
    assert not run.checks(parts)["clean"]
    verdicts = [f.verdict for f in run.findings(parts) if f.claim == "M3.2"]
    assert verdicts[0] == "refuted in miniature"
