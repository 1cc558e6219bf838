import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from jprec.stats import Comparison, holm, judge, judge_all


def comparison(name="a", differences=(0.0, 1.0, 1.0, 0.0), margin=1.2, **fields):
    return Comparison(name=name, differences=differences, margin=margin, **fields)


def test_holm_agrees_with_the_hand_worked_table():
    # Sorted 0.01 0.02 0.03 0.04; times 4 3 2 1: 0.04 0.06 0.06 0.04; running maximum.
    assert holm([0.04, 0.02, 0.01, 0.03]) == pytest.approx((0.06, 0.06, 0.04, 0.06))
    assert holm([]) == ()
    assert holm([0.9, 0.8]) == (1.0, 1.0)


def test_holm_rejects_more_than_bonferroni_and_never_fewer():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.uniform(size=6) ** 3
        adjusted = np.asarray(holm(p.tolist()))
        assert (adjusted <= np.minimum(1.0, 6 * p)).all()
        assert (adjusted >= p).all()
        # Step-down false-discovery adjustment is the weaker demand.
        assert (adjusted >= scipy_stats.false_discovery_control(p) - 1e-12).all()


def test_holm_holds_the_family_level():
    rng = np.random.default_rng(1)
    wrong = sum(min(holm(rng.uniform(size=5).tolist())) < 0.05 for _ in range(4000))
    assert wrong / 4000 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize("p", [math.nan, -0.1, 1.1])
def test_what_is_no_p_value_is_an_error(p):
    with pytest.raises(ValueError, match="does not lie in"):
        holm([0.5, p])


def test_the_correction_decides_whether_a_claim_is_met_but_not_its_word():
    alone = comparison(expected="equivalent", claim=True)
    (single,) = judge_all([alone])
    assert (single.verdict.verdict, single.met) == ("equivalent", True)
    assert single.p_holm == single.verdict.p_equivalence
    family = [alone, *[comparison(str(i), expected="equivalent", claim=True) for i in range(4)]]
    first = judge_all(family)[0]
    assert first.verdict.verdict == "equivalent"
    assert first.p_holm == pytest.approx(5 * single.p_holm)
    assert first.p_holm > 0.05
    assert first.met is False


def test_only_claims_enter_the_family():
    claim = comparison(expected="equivalent", claim=True)
    control = comparison("control", (5.0, 5.1, 5.2, 5.0), expected="different")
    report = comparison("report")
    judged = judge_all([claim, control, report])
    assert judged[0].p_holm == judged[0].verdict.p_equivalence
    assert [j.p_holm for j in judged[1:]] == [None, None]
    assert [j.met for j in judged] == [True, True, None]


def test_unfinished_claims_count_in_the_family():
    claim = comparison(expected="equivalent", claim=True)
    (judged,) = judge_all([claim], unfinished=3)
    assert judged.p_holm == pytest.approx(4 * judged.verdict.p_equivalence)


def test_a_control_that_is_better_or_undecided_has_not_failed_as_it_must():
    better = comparison("better", (-5.0, -5.1, -5.2, -5.0), expected="different")
    undecided = comparison("undecided", margin=0.6, expected="different")
    assert [j.met for j in judge_all([better, undecided])] == [False, False]


def test_identical_counts_as_equivalent_but_equivalent_not_as_identical():
    zeros = (0.0,) * 8
    same = comparison("same", zeros, expected="equivalent", claim=True)
    twin = comparison("twin", zeros, expected="identical")
    near = comparison("near", (*zeros[1:], 1e-9), expected="identical")
    assert [j.met for j in judge_all([same, twin, near])] == [True, True, False]


def test_a_claim_of_difference_uses_the_test_for_a_difference():
    worse = comparison("worse", (5.0, 5.1, 5.2, 5.0), expected="different", claim=True)
    (judged,) = judge_all([worse])
    assert judged.p_holm == judge(worse.differences, worse.margin).p_difference
    assert judged.met is True


def test_an_unknown_expectation_names_those_allowed():
    with pytest.raises(ValueError, match="equivalent"):
        comparison(expected="same")
