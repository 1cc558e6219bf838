"""Workload x arms x seeds, run in pairs, written down, and resumed where it was stopped."""

from jprec.study.arms import ARMS, Arm, arm, underscaled, underscaled_twin
from jprec.study.catalogue import find, load_module, names
from jprec.study.cells import cell_names, run_cell
from jprec.study.design import PILOT_SEEDS, Setting, Study
from jprec.study.engine import run
from jprec.study.experiment import Experiment, Finding, Verdict
from jprec.study.keys import key_for
from jprec.study.manifest import StudyError
from jprec.study.pilot import run_pilots
from jprec.study.plan import Plan
from jprec.workloads import Workload

__all__ = [
    "ARMS",
    "PILOT_SEEDS",
    "Arm",
    "Experiment",
    "Finding",
    "Plan",
    "Setting",
    "Study",
    "StudyError",
    "Verdict",
    "Workload",
    "arm",
    "cell_names",
    "find",
    "key_for",
    "load_module",
    "names",
    "run",
    "run_cell",
    "run_pilots",
    "underscaled",
    "underscaled_twin",
]
