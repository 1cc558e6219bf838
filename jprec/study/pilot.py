"""Pilots: how far apart FP32 ends from seed to seed, which fixes the margin beforehand."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jprec import records, stats
from jprec.study.cells import PILOT
from jprec.study.design import PILOT_SEEDS, Setting
from jprec.study.engine import run
from jprec.study.plan import Cell, Plan


def run_pilots(
    plan: Plan, *, watch: Callable[[dict[str, Any]], None] = lambda event: None
) -> dict[str, dict[str, Any]]:
    """Setting -> margin and where it comes from, from pilot seeds alone; also in margins.json."""
    plan = dataclasses.replace(plan, pilots_only=True)
    run(plan, watch=watch)
    margins = {s.name: _margin(plan, s) for s in plan.settings}
    records.write_json(plan.out / "margins.json", margins)
    return margins


def _margin(plan: Plan, setting: Setting) -> dict[str, Any]:
    record = records.read_json(plan.path(Cell(setting.name, PILOT, 0)))
    losses = records.as_floats(record["test_loss"])
    margin = stats.margin_from_pilot(losses)
    first, last = PILOT_SEEDS[0], PILOT_SEEDS[-1]
    return {
        "margin": margin,
        "margin_source": f"half the standard deviation ({2 * margin:.3g}) of the baseline's test "
        f"loss over {len(losses)} pilot seeds ({first} to {last})",
        "mean": sum(losses) / len(losses),
    }
