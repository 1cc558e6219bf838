"""The experiment in miniature, its page in step with its record, its own formulas."""

import copy
import dataclasses
import math

import numpy as np
import pytest

from jprec import hardware, matmul, records, report
from jprec.report import canvas


@pytest.fixture
def run(experiment):
    return experiment("accumulators")


@pytest.fixture
def record(run):
    return records.read_json(run.EXPERIMENT.folder / "results" / "results.json")


def test_the_miniature_runs_and_a_truncated_sum_is_biased(run, tmp_path, capsys):
    assert run.EXPERIMENT.main(["--small", "--out", str(tmp_path)]) == 0
    assert "A miniature" in capsys.readouterr().out
    parts = records.read_json(tmp_path / "results.json")["parts"]
    read = run.Reading(parts)
    (core,), (nearest,) = (
        read.at_middle(f"tf32{rest}", "positive", "bias") for rest in ("@a100", "+fp32")
    )
    assert core < -20 * abs(nearest)
    assert run.own_bounds_hold(read)[1]
    assert run.fp16_breaks_the_bound_of_fp32(read)[1]
    assert (tmp_path / "errors.svg").is_file()


def test_the_page_and_its_findings_follow_from_the_record(run, record):
    page = (run.EXPERIMENT.folder / "README.md").read_text(encoding="utf-8")
    assert report.renewed(page, run.tables(record["parts"])) == page
    found = [dataclasses.asdict(one) for one in run.findings(record["parts"])]
    assert found == record["findings"]
    assert {one["claim"] for one in found} == {"A13", "B13", "M3.3"}


def test_without_its_control_the_experiment_shows_nothing(run, record):
    parts = copy.deepcopy(record["parts"])
    parts["fp16"]["arms"]["fp16+fp16"]["signed"]["largest"] = [0.0] * len(run.LENGTHS)
    assert {one.verdict for one in run.findings(parts)} == {"undecided"}


def test_without_a_bias_nothing_is_corrected(run, record):
    parts = copy.deepcopy(record["parts"])
    parts["tf32"]["arms"]["tf32@h100"]["uniform"]["bias"] = [-1e-9] * len(run.LENGTHS)
    verdicts = {one.claim: one.verdict for one in run.findings(parts)}
    assert verdicts["A13"] == "undecided"
    assert verdicts["M3.3"] == "confirmed"


def test_no_text_of_the_figures_is_cut_off_or_covered(run, record):
    with report.drawing():
        for figure in run.figures(record["parts"]).values():
            assert canvas.text_faults(figure) == []


def test_every_device_is_there_and_those_that_add_alike_once(run):
    for fmt in ("fp16", "bf16", "tf32", "e4m3fn"):
        groups = run.cores(fmt)
        fp32 = [name for spec, names in groups.items() if "+" not in spec for name in names]
        want = [name for name in hardware.names() if fmt in hardware.get(name).input_formats]
        assert sorted(fp32) == sorted(want)
        for spec in groups:
            core = matmul.get(spec).tensor_core
            assert sum(matmul.get(other).tensor_core == core for other in groups) == 1


def test_zeros_at_the_end_change_no_sum(run):
    """Against sums in rational arithmetic, which are not filled up."""
    a, b = run.rounded(run.drawn("signed", 3, 70), "fp16")
    got = run.summed("fp16+fp16+chunk64", a, b)
    pairs = list(zip(a, b, strict=True))
    assert got.tolist() == [
        matmul.chain_exact(x, y, accumulator="fp16", chunk=64) for x, y in pairs
    ]
    a, b = run.rounded(run.drawn("signed", 3, 70), "e4m3fn")
    core = hardware.get("h100_mma").tensor_core("e4m3fn")
    want = matmul.tensor_core_dot_exact(a, b, np.zeros(3, np.float32), core)
    np.testing.assert_array_equal(run.summed("e4m3fn@h100_mma", a, b), want)


def test_what_is_foretold_is_what_can_be_counted(run):
    core = hardware.get("h100").tensor_core("e4m3fn")  # 13 bits: ones stop counting at 2**14
    ones = np.ones(64)
    assert run.foretold_bias(core, ones, 2**14) == 0
    assert run.foretold_bias(core, ones, 2**15) == pytest.approx(-0.5, abs=1e-3)
    assert math.isnan(run.foretold_bias(core, ones, 16))
    # Equal products: each block is as its mean, but where its sum enters the next binade.
    x = np.full((1, 4096), 1.125, np.float32)
    got = matmul.tensor_core_dot_exact(x, x, np.zeros(1, np.float32), core).item()
    want = got / (4096 * 1.125**2) - 1
    assert want < -0.05
    assert run.foretold_bias(core, np.full(64, 1.125**2), 4096) == pytest.approx(want, rel=0.02)


@pytest.mark.parametrize("spec", ["fp16@v100", "tf32@a100", "bf16@h100", "e4m3fn@h100"])
def test_the_hardest_data_lose_all_but_the_first_product_within_the_bound(run, spec):
    core = matmul.get(spec).tensor_core
    a, b = run.hardest(core, 128)
    for x in (a, b):
        np.testing.assert_array_equal(run.rounded(x, core.input_format), x)
    got = matmul.tensor_core_dot_exact(a, b, np.zeros(1, np.float32), core)
    assert got.tolist() == [2.0**16]
    (exact,), (size,) = run.added(a, b)
    assert exact == size
    error = (exact - 2.0**16) / size
    assert 4 * run.block_bound(core, 128) < error <= matmul.error_bound(spec, 128).sums


def test_slopes_and_the_place_where_one_curve_outgrows_another(run):
    assert run.slope([256, 512, 1024], [-1.0, -2.0, -4.0]) == 1.0
    assert run.slope([16, 256, 512, 1024], [9.0, 1.0, 1.0, 1.0]) == 0.0
    assert math.isnan(run.slope([256, 512, 1024], [1.0, 0.0, 4.0]))
    assert run.outgrows([16, 32, 64], [1.0, 3.0, 4.0], [2.0, 2.0, 2.0]) == 32
    assert run.outgrows([16, 32], [3.0, 1.0], [2.0, 2.0]) is None
    assert run.outgrows([16, 32], [3.0, 3.0], [2.0, 2.0]) == 16
