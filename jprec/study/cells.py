"""One cell of a study: one arm in one setting, all its seeds together, from start to record."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jprec.study.arms import Arm
from jprec.study.design import PILOT_SEEDS, Setting
from jprec.study.training import Programs, State, Trace, programs, seeds_of
from jprec.study.watch import UpdateCounter, capture, histogram

#: The arm name of a pilot cell: the baseline on seeds that are never judged.
PILOT = "pilot"


def cell_names(setting: Setting) -> tuple[str, ...]:
    """The cells of a setting, pilot first where the margin is still to be found."""
    arms = tuple(a.name for a in setting.arms if isinstance(a, Arm))
    return arms if setting.margin is not None else (PILOT, *arms)


def run_cell(
    setting: Setting, name: str, *, progress: Callable[[int, int], None] = lambda done, of: None
) -> dict[str, Any]:
    """Trains the cell `name` and gives its record (see docs/records.md).

    The same call gives the same record, bit for bit, on the same machine and versions. `progress`
    is called after every stretch with the steps done and the steps in all.
    """
    workload = setting.load()
    if name == PILOT:
        arm, seeds = setting.baseline, PILOT_SEEDS
    else:
        arm = next(a for a in setting.arms if isinstance(a, Arm) and a.name == name)
        seeds = tuple(range(setting.seeds))
    watched = arm.role == "baseline" and name != PILOT
    return _train(setting, arm, programs(setting, arm, workload), seeds, watched, progress) | {
        "schema": 1,
        "setting": setting.name,
        "arm": name,
        "config": arm.describe() | {"steps": setting.steps},
        "emulated": True,
        "backend": jax.default_backend(),
        "guess": workload.guess,
    }


def _train(
    setting: Setting,
    arm: Arm,
    run: Programs,
    seeds: Sequence[int],
    watched: bool,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    keys = seeds_of(seeds)
    state = run.start(keys)
    initial, _ = run.test(state.params)
    look = capture(arm, setting.load()) if watched else None
    snapshots = {0, setting.points // 2, setting.points - 1} if watched else set()

    curve = _Curve()
    curve.add(0, initial, None)
    updates = UpdateCounter()
    histograms: list[dict[str, Any]] = []
    traces: list[Trace] = []
    accuracy: jax.Array | None = None
    for point in range(setting.points):
        state, trace = run.stretch(state, keys, point * run.steps_a_stretch)
        done = (point + 1) * run.steps_a_stretch
        loss, accuracy = run.test(state.params)
        curve.add(done, loss, trace.loss)
        traces.append(jax.tree.map(np.asarray, trace))
        updates.add(state.before, state.update)
        if look is not None and point in snapshots:
            tensors = look(state.before, run.batch(keys, done - 1)) | {"updates": state.update}
            histograms += [histogram(tensor, tree, done) for tensor, tree in tensors.items()]
        progress(done, setting.steps)
    return {
        "seeds": list(seeds),
        "initial_test_loss": floats(initial),
        "test_loss": curve.test_loss[-1],
        "test_accuracy": None if accuracy is None else floats(accuracy),
        "weights_sha256": digests(state, len(seeds)),
        "curve": dataclasses.asdict(curve),
        "loss_scale": _scale_record(traces),
        "histograms": histograms or None,
        "updates": updates.record(),
    }


@dataclasses.dataclass
class _Curve:
    """Losses on the way, a list of seeds at every point."""

    step: list[int] = dataclasses.field(default_factory=list)
    test_loss: list[list[float]] = dataclasses.field(default_factory=list)
    train_loss: list[list[float] | None] = dataclasses.field(default_factory=list)

    def add(self, step: int, test_loss: jax.Array, train_loss: jax.Array | None) -> None:
        self.step.append(step)
        self.test_loss.append(floats(test_loss))
        mean = None if train_loss is None else np.asarray(train_loss, np.float64).mean(1)
        self.train_loss.append(None if mean is None else floats(mean))


def floats(values: Any) -> list[float]:
    """An array [n] as Python floats, exactly."""
    return np.asarray(values).astype(np.float64).tolist()


def digests(state: State, seeds: int) -> list[str]:
    """SHA-256 of each seed's final parameters: dtype, shape and bytes of every leaf."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]
    found = []
    for seed in range(seeds):
        sha = hashlib.sha256()
        for leaf in leaves:
            sha.update(f"{leaf.dtype}{leaf.shape[1:]}".encode())
            sha.update(np.ascontiguousarray(leaf[seed]).tobytes())
        found.append(sha.hexdigest())
    return found


def _scale_record(traces: Sequence[Trace]) -> dict[str, Any] | None:
    """log2 of the loss scale and the skips, step by step; None where the scale is always 1."""
    scale = np.concatenate([t.scale for t in traces], axis=1)
    skipped = np.concatenate([t.skipped for t in traces], axis=1)
    if not skipped.any() and (scale == 1).all():
        return None
    return {
        "log2": np.log2(scale).astype(int).tolist(),
        "skipped": skipped.astype(int).tolist(),
    }
