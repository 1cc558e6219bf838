import math

import numpy as np
import pytest
from scipy import special

from jprec.stats import judge, margin_from_pilot, seeds_needed
from jprec.stats.planning import SEEDS_FACTOR


def test_margin_is_half_the_sample_standard_deviation():
    losses = np.random.default_rng(0).normal(0.06, 0.0056, size=32)
    assert margin_from_pilot(losses.tolist()) == pytest.approx(0.5 * np.std(losses, ddof=1))


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([1.0, 2.0] * 14 + [1.0], "at least 30"),
        ([1.0] * 30, "no margin"),
        ([1.0, math.nan] * 15, "15 of 30"),
        ([[1.0, 2.0]] * 30, "shape"),
    ],
)
def test_a_pilot_that_gives_no_margin_is_an_error(losses, message):
    with pytest.raises(ValueError, match=message):
        margin_from_pilot(losses)


def test_the_factor_is_the_square_of_two_normal_quantiles():
    assert abs(SEEDS_FACTOR - (2 * special.ndtri(0.95)) ** 2) < 0.05


def test_seeds_needed_reach_nine_studies_in_ten():
    sd, margin = 1.0, 0.8
    n = seeds_needed(sd, margin)
    assert n == 17
    rng = np.random.default_rng(1)
    found = sum(
        judge(rng.normal(0.0, sd, size=n), margin=margin).verdict == "equivalent"
        for _ in range(1000)
    )
    assert found / 1000 > 0.86  # the formula is for known sd; the t test loses a little


def test_never_fewer_than_eight_seeds():
    assert seeds_needed(0.1, 1.0) == 8


@pytest.mark.parametrize(("sd", "margin"), [(math.nan, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_planning_refuses_numbers_without_meaning(sd, margin):
    with pytest.raises(ValueError, match="finite"):
        seeds_needed(sd, margin)
