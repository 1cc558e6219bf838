"""What do these numbers allow us to say?

Verdicts about paired training runs, by rules that are fixed before the runs are made: intervals and
two one-sided tests for equivalence, Fisher's exact test for divergences, Holm's correction over the
claims of a study, and the planning of margins and numbers of seeds. No JAX: the statistics cannot
depend on what they judge.
"""

from jprec.stats.claims import Comparison, Judgement, holm, judge_all
from jprec.stats.divergence import count_diverged, fisher_exact
from jprec.stats.planning import MIN_PILOT_SEEDS, MIN_SEEDS, margin_from_pilot, seeds_needed
from jprec.stats.verdict import Verdict, judge, paired_differences

__all__ = [
    "MIN_PILOT_SEEDS",
    "MIN_SEEDS",
    "Comparison",
    "Judgement",
    "Verdict",
    "count_diverged",
    "fisher_exact",
    "holm",
    "judge",
    "judge_all",
    "margin_from_pilot",
    "paired_differences",
    "seeds_needed",
]
