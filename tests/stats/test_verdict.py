import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from jprec.stats import Verdict, judge, paired_differences

# By hand: mean 0.5, deviations -.5 .5 .5 -.5, sd = sqrt(1 / 3), error = sd / 2 = 0.288675,
# t(0.95, 3) = 2.353363, so the interval is 0.5 ± 0.679357.
FOUR = (0.0, 1.0, 1.0, 0.0)


def test_interval_agrees_with_the_hand_worked_one():
    verdict = judge(FOUR, margin=1.0)
    assert verdict.mean == 0.5
    assert verdict.sd == pytest.approx(math.sqrt(1 / 3))
    assert verdict.low == pytest.approx(0.5 - 0.679357, abs=1e-6)
    assert verdict.high == pytest.approx(0.5 + 0.679357, abs=1e-6)


@pytest.mark.parametrize(
    ("margin", "words"),
    [(1.2, "equivalent"), (1.1, "undecided"), (0.6, "undecided")],
)
def test_the_margin_decides_between_equivalent_and_undecided(margin, words):
    assert str(judge(FOUR, margin=margin)) == words


def test_a_positive_difference_beyond_the_margin_is_worse_and_a_negative_one_better():
    shifted = np.asarray(FOUR) + 2.0
    assert str(judge(shifted, margin=1.0)) == "different (worse)"
    assert str(judge(-shifted, margin=1.0)) == "different (better)"


def test_interval_and_p_values_agree_with_scipy():
    d = np.random.default_rng(0).normal(0.2, 0.3, size=13)
    verdict = judge(d, margin=0.25)
    interval = scipy_stats.ttest_1samp(d, 0.0).confidence_interval(0.9)
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high))
    above_lower = scipy_stats.ttest_1samp(d, -0.25, alternative="greater").pvalue
    below_upper = scipy_stats.ttest_1samp(d, 0.25, alternative="less").pvalue
    assert verdict.p_equivalence == pytest.approx(max(above_lower, below_upper), rel=1e-9)
    assert verdict.p_difference == pytest.approx(1 - below_upper)


def test_tiny_p_values_keep_their_digits():
    d = np.random.default_rng(1).normal(0.0, 1e-3, size=16)
    verdict = judge(d, margin=1.0)
    expected = scipy_stats.ttest_1samp(d, 1.0, alternative="less").pvalue
    assert 0.0 < verdict.p_equivalence < 1e-30
    assert verdict.p_equivalence == pytest.approx(expected, rel=1e-2)


def test_the_words_agree_with_the_p_values():
    rng = np.random.default_rng(2)
    for _ in range(300):
        verdict = judge(rng.normal(rng.normal(), 1.0, size=8), margin=1.0)
        assert (verdict.verdict == "equivalent") == (verdict.p_equivalence < 0.05)
        assert (verdict.verdict == "different") == (verdict.p_difference < 0.05)


def test_two_one_sided_tests_hold_their_level_at_the_margin():
    rng = np.random.default_rng(3)
    runs = 3000
    found = sum(
        judge(rng.normal(1.0, 0.4, size=8), margin=1.0).verdict == "equivalent" for _ in range(runs)
    )
    # True rate 5 %; four standard deviations of the count are 1.6 %.
    assert abs(found / runs - 0.05) < 0.016


def test_p_value_of_a_difference_is_uniform_at_the_margin():
    rng = np.random.default_rng(4)
    p = [judge(rng.normal(1.0, 0.4, size=8), margin=1.0).p_difference for _ in range(1000)]
    assert scipy_stats.kstest(p, "uniform").pvalue > 1e-3


def test_a_baseline_with_other_seeds_seldom_passes_as_equivalent():
    # Unpaired runs differ by sqrt(2) sd; against a margin of half an sd that must not look paired.
    rng = np.random.default_rng(5)
    runs = 1000
    passed = sum(
        judge(rng.normal(size=16) - rng.normal(size=16), margin=0.5).verdict == "equivalent"
        for _ in range(runs)
    )
    assert passed / runs < 0.05


def test_all_zero_differences_are_identical():
    verdict = judge([0.0] * 8, margin=0.1)
    assert (verdict.verdict, verdict.p_equivalence, verdict.sd) == ("identical", 0.0, 0.0)
    assert str(judge([0.0, -0.0], margin=0.1)) == "identical"
    assert str(judge([0.0] * 7 + [1e-12], margin=0.1)) == "equivalent"


@pytest.mark.parametrize(
    ("difference", "words"),
    [(0.05, "equivalent"), (0.2, "different (worse)"), (-0.2, "different (better)")],
)
def test_equal_differences_have_an_interval_of_one_point(difference, words):
    verdict = judge([difference] * 8, margin=0.1)
    assert str(verdict) == words
    assert verdict.low == pytest.approx(verdict.high)


def test_equal_differences_on_the_margin_are_undecided():
    assert str(judge([0.5] * 8, margin=0.5)) == "undecided"


def test_one_pair_decides_nothing_unless_it_is_identical():
    verdict = judge([0.01], margin=1.0)
    assert (verdict.verdict, verdict.low, verdict.high) == ("undecided", -math.inf, math.inf)
    assert math.isnan(verdict.sd)
    assert str(judge([0.0], margin=1.0)) == "identical"


def test_more_divergences_than_the_baseline_forbid_equivalence():
    within = [0.01, -0.01] * 8
    assert str(judge(within, margin=1.0, diverged=1)) == "undecided"
    assert str(judge(within, margin=1.0, diverged=1, baseline_diverged=1)) == "equivalent"
    assert str(judge([0.0] * 16, margin=1.0, diverged=1)) == "undecided"


def test_a_pair_without_a_finite_difference_leaves_no_interval():
    verdict = judge([0.01] * 7 + [math.nan], margin=1.0)
    assert verdict.verdict == "undecided"
    assert verdict.n == 8
    assert all(math.isnan(x) for x in (verdict.mean, verdict.sd, verdict.low, verdict.high))
    assert verdict.p_equivalence == 1.0


def test_diverged_pairs_count_as_beyond_the_margin():
    # 8 of 8 pairs beyond the margin: sign test p = 2**-8; one is an infinite difference.
    verdict = judge([2.0] * 7 + [math.inf], margin=1.0)
    assert str(verdict) == "different (worse)"
    assert verdict.p_difference == 2.0**-8
    assert verdict.diverged == 1
    # 6 of 8: (28 + 8 + 1) / 256 = 0.145, and two divergences more are no evidence either.
    mixed = judge([0.0] * 2 + [2.0] * 4 + [math.inf] * 2, margin=1.0)
    assert str(mixed) == "undecided"
    assert mixed.p_difference == pytest.approx(37 / 256)


def test_unequal_numbers_of_divergences_are_a_difference():
    # 6 of 16 against 0 of 16: p = 2 C(16, 6) / C(32, 6) = 0.0177.
    worse = judge([0.0] * 10 + [math.inf] * 6, margin=1.0)
    assert str(worse) == "different (worse)"
    assert worse.p_divergence == pytest.approx(2 * math.comb(16, 6) / math.comb(32, 6))
    assert str(judge([0.0] * 10 + [-math.inf] * 6, margin=1.0)) == "different (better)"
    # The same counts of finite losses above what guessing gives, whose interval decides nothing.
    finite = [0.0] * 10 + [1e30] * 6
    assert str(judge(finite, margin=1.0, diverged=6)) == "different (worse)"


def test_contradicting_directions_are_undecided():
    verdict = judge([-2.0, -2.1] * 8, margin=1.0, diverged=8)
    assert verdict.p_difference < 0.05
    assert verdict.p_divergence < 0.05
    assert str(verdict) == "undecided"


def test_both_runs_of_a_pair_diverging_speak_for_neither_side():
    verdict = judge([math.nan] * 8, margin=1.0, diverged=8, baseline_diverged=8)
    assert str(verdict) == "undecided"
    assert (verdict.p_difference, verdict.p_divergence) == (1.0, 1.0)


def test_huge_losses_make_no_warning_and_no_claim():
    assert str(judge([0.0, 1e200, 1.0], margin=1.0)) == "undecided"


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_a_margin_that_is_none_is_an_error(margin):
    with pytest.raises(ValueError, match="margin_from_pilot"):
        judge(FOUR, margin=margin)


@pytest.mark.parametrize("differences", [[], [[1.0, 2.0]], 1.0])
def test_differences_are_one_number_each_pair(differences):
    with pytest.raises(ValueError, match="one number for each pair"):
        judge(differences, margin=1.0)


def test_alpha_outside_its_range_is_an_error():
    with pytest.raises(ValueError, match=r"alpha=0\.5"):
        judge(FOUR, margin=1.0, alpha=0.5)


def test_verdicts_are_frozen_and_compare_by_value():
    verdict = judge(FOUR, margin=1.0)
    assert verdict == judge(FOUR, margin=1.0)
    assert isinstance(hash(verdict), int)
    with pytest.raises(AttributeError):
        verdict.verdict = "identical"
    assert isinstance(verdict, Verdict)


def test_paired_differences_refuse_unequal_lengths():
    with pytest.raises(ValueError, match="one loss each per shared seed"):
        paired_differences([1.0], [1.0, 2.0])
