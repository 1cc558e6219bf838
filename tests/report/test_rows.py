import math

import numpy as np
import pytest

from jprec import report, stats


def rows_of(folder):
    rows = report.verdicts(report.read_study(folder))
    return {(row.setting, row.arm): row for row in rows}


def edit(setting, arm, **fields):
    """A change of one cell's result; a function is given the old value."""

    def change(of_setting, of_arm, result):
        if (of_setting, of_arm) == (setting, arm):
            for name, value in fields.items():
                result[name] = value(result[name]) if callable(value) else value

    return change


def test_the_made_up_study_comes_out_as_it_was_made(study_folder):
    rows = rows_of(study_folder)
    assert all(row.met is not False for row in rows.values())
    assert rows["hot", "tf32"].words == "equivalent"
    assert rows["hot", "fp32_underscaled"].words == "identical"
    assert rows["cold", "pure_bf16"].words == "different (worse)"
    assert rows["hot", "mantissa2_truncated"].met is None
    assert report.failed_controls(list(rows.values())) == ()


def test_numbers_are_those_of_the_paired_differences(study_folder):
    study = report.read_study(study_folder)
    arm, baseline = study.cell("hot", "tf32"), study.cell("hot", "fp32")
    difference = np.subtract(arm.test_loss, baseline.test_loss)
    expected = stats.judge(difference, margin=0.0028)
    row = rows_of(study_folder)["hot", "tf32"]
    assert (row.difference, row.low, row.high) == (expected.mean, expected.low, expected.high)
    assert (row.n, row.margin, row.against) == (8, 0.0028, "fp32")
    assert row.ran == "emulated on cpu"


def test_the_claims_of_all_settings_are_one_family(study_folder):
    rows = rows_of(study_folder).values()
    claims = [row for row in rows if row.role == "claim"]
    adjusted = stats.holm([row.p_equivalence for row in claims])
    assert [row.p_holm for row in claims] == list(adjusted)
    assert {row.p_holm for row in rows if row.role != "claim"} == {None}


def test_unfinished_claims_make_the_others_no_easier(study_folder, make_study):
    complete = rows_of(study_folder)["hot", "mixed_bf16"]
    partial = rows_of(make_study(skip=["hot/tf32", "cold/tf32"]))["hot", "mixed_bf16"]
    assert partial.p_equivalence == complete.p_equivalence
    assert partial.p_holm >= complete.p_holm


def test_an_unfinished_arm_or_baseline_gives_no_verdict(make_study):
    rows = rows_of(make_study(skip=["hot/tf32", "cold/fp32"]))
    assert rows["hot", "tf32"].words == "no result"
    assert rows["cold", "tf32"].words == "no baseline yet"
    assert rows["hot", "fp32"].words == "baseline"
    failed = report.failed_controls(list(rows.values()))
    assert [(row.setting, row.arm) for row in failed] == [("cold", "pure_bf16")]


def test_a_control_that_is_undecided_or_better_has_failed(make_study):
    change = edit("cold", "pure_bf16", test_loss=lambda losses: [x - 9 for x in losses])
    rows = rows_of(make_study(change=change))
    assert rows["cold", "pure_bf16"].words == "different (better)"
    assert report.failed_controls(list(rows.values())) == (rows["cold", "pure_bf16"],)


def test_a_twin_with_other_weights_is_not_identical(make_study):
    change = edit("hot", "fp32_underscaled", weights_sha256=lambda old: ["0" * 64, *old[1:]])
    row = rows_of(make_study(change=change))["hot", "fp32_underscaled"]
    assert (row.verdict, row.same_weights, row.met) == ("equivalent", False, False)
    assert report.failed_controls([row]) == (row,)


def test_twins_that_break_down_alike_are_identical(make_study):
    def change(setting, arm, result):
        if setting == "hot" and arm in ("fp32", "fp32_underscaled"):
            result["test_loss"][0] = math.nan

    row = rows_of(make_study(change=change))["hot", "fp32_underscaled"]
    assert (row.verdict, row.met) == ("identical", True)


def test_a_diverged_run_stays_in_the_table(make_study):
    change = edit("hot", "mixed_fp16", test_loss=lambda losses: [math.nan, 99.0, *losses[2:]])
    row = rows_of(make_study(change=change))["hot", "mixed_fp16"]
    assert (row.n, row.diverged, row.baseline_diverged) == (8, 2, 0)
    assert row.words == "undecided"
    assert math.isnan(row.difference)
    assert row.p_divergence == stats.fisher_exact(2, 0, of=8)


def test_a_shorter_arm_is_paired_by_seed(make_study, study_folder):
    def change(setting, arm, result):
        if (setting, arm) == ("hot", "tf32@a100"):
            for name in ("seeds", "test_loss", "weights_sha256"):
                result[name] = result[name][:2:-1]

    study = report.read_study(study_folder)
    arm, baseline = study.cell("hot", "tf32@a100"), study.cell("hot", "fp32")
    expected = np.mean(np.subtract(arm.test_loss, baseline.test_loss)[3:])
    row = rows_of(make_study(change=change))["hot", "tf32@a100"]
    assert row.n == 5
    assert row.difference == pytest.approx(expected)


def test_a_seed_that_the_baseline_lacks_is_an_error(make_study):
    change = edit("hot", "tf32", seeds=lambda seeds: [7, *seeds[1:]])
    with pytest.raises(ValueError, match=r"hot/tf32 has seeds \[7\] that fp32 lacks"):
        rows_of(make_study(change=change))
