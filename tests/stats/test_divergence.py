import math

import pytest
from scipy import stats as scipy_stats

from jprec.stats import count_diverged, fisher_exact


def test_fisher_agrees_with_scipy_for_every_pair_of_counts():
    for n in (1, 2, 8, 13):
        for first in range(n + 1):
            for second in range(n + 1):
                table = [[first, n - first], [second, n - second]]
                expected = scipy_stats.fisher_exact(table).pvalue
                assert fisher_exact(first, second, of=n) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("first", "second", "of"), [(3, 0, 2), (-1, 0, 2), (0, 0, 0)])
def test_impossible_counts_are_an_error(first, second, of):
    with pytest.raises(ValueError, match="each count lies between"):
        fisher_exact(first, second, of=of)


def test_a_loss_equal_to_guessing_has_not_diverged():
    guess = math.log(10)
    assert count_diverged([guess, math.nextafter(guess, 9)], guess=guess) == 1
    assert count_diverged([math.nan, math.inf, -math.inf], guess=guess) == 3


def test_a_guess_is_finite():
    with pytest.raises(ValueError, match="guess=nan"):
        count_diverged([1.0], guess=math.nan)
