"""What a guard has seen, in words: steps taken and skipped, and which leaves were not finite."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jprec.optim.guard import LossScaleState, guard_state

#: From the usual first scale, 2**16, sixteen halvings lead to 1: more skips in a row are no
#: search for a scale.
PATIENCE = 20

Finding = Literal["unguarded", "new", "fine", "searching", "overflow", "nan", "stuck"]

_SAYS = {
    "new": "No step yet.",
    "fine": "The latest step was taken.",
    "searching": "No step has been taken yet: the scale is on its way down from its first value.",
    "overflow": "The latest step overflowed and was skipped; a dynamic scale has been halved.",
    "nan": (
        "The gradients have NaN and no infinity. A dynamic scale is lowered in case an overflow on "
        "the way back made it; if it persists, no loss scale cures it. Look for it in the data, "
        "the parameters and the forward pass: a logarithm or a division of zero, an overflow in "
        "the compute dtype."
    ),
    "stuck": (
        "Step after step is skipped, and the scale is at its floor, or static, or lowering it does "
        "not help. Look for what overflows without help of the scale: activations beyond the "
        "compute dtype's range, or a learning rate that diverges; or allow a lower scale."
    ),
}


@dataclasses.dataclass(frozen=True)
class Report:
    """The counters of a guard as Python numbers; `str` of it is for people.

    Attributes:
      scale: The loss scale of the next step.
      taken: Steps taken. skipped: steps skipped. skipped_at_start: those before the first taken.
      skipped_in_row: Skipped, the latest in a row. nan_in_row: of these, the latest with NaN only.
      steps_at_floor: Steps with the scale at its floor.
      nonfinite: Path of a leaf -> (infinities, NaNs) at the latest skipped step, where not zero.
      finding: "fine"; "new" (no step yet); "searching" (none taken yet); "overflow"; "nan" (NaN
        without infinity); "stuck" (more than 20 skips in a row); "unguarded" (no guard in the
        state, so all counts are 0).
    """

    scale: float
    taken: int
    skipped: int
    skipped_at_start: int
    skipped_in_row: int
    nan_in_row: int
    steps_at_floor: int
    nonfinite: dict[str, tuple[int, int]]
    finding: Finding

    def __str__(self) -> str:
        if self.finding == "unguarded":
            return (
                "no guard: no step is judged or skipped, and nothing was counted. "
                "jprec.optim.wrap(tx, policy, loss_scale=1.0) guards without scaling."
            )
        lines = [
            f"loss scale {self.scale:g}: {self.taken} steps taken, {self.skipped} skipped "
            f"({self.skipped_at_start} before the first taken, {self.skipped_in_row} in a row "
            f"now), {self.steps_at_floor} at the floor. {_SAYS[self.finding]}"
        ]
        if self.nonfinite:
            lines.append("Not finite in the gradients of the latest skipped step:")
            width = max(map(len, self.nonfinite))
            lines += [
                f"  {path.ljust(width)}  {infinities} infinite, {nans} NaN"
                for path, (infinities, nans) in self.nonfinite.items()
            ]
        return "\n".join(lines)


def report(opt_state: Any) -> Report:
    """What the guard in an optimiser's state has seen; waits for the state to be computed.

    Raises:
      ValueError: if there is more than one guard, or the state is that of several seeds.
      TypeError: inside `jax.jit`, where nothing is known yet.

    >>> import optax
    >>> from jprec.optim import static_loss_scale
    >>> tx = static_loss_scale(optax.sgd(0.1), 1.0)
    >>> params = {"w": jnp.ones(2), "b": jnp.ones(1)}
    >>> gradients = {"w": jnp.asarray([1.0, jnp.nan]), "b": jnp.ones(1)}
    >>> report(tx.update(gradients, tx.init(params), params)[1]).nonfinite
    {'w': (0, 1)}
    """
    state = guard_state(opt_state)
    if state is None:
        return Report(1.0, 0, 0, 0, 0, 0, 0, {}, "unguarded")
    if isinstance(state.scale, jax.core.Tracer):
        raise TypeError(
            "optim.report and optim.check read numbers, which there are none of inside jax.jit, "
            "lax.scan or jax.vmap. Call them outside, on the state that comes out."
        )
    if np.shape(state.scale):
        raise ValueError(
            f"the state has a scale of shape {np.shape(state.scale)}, one for each seed. Take one "
            "seed's state: jax.tree.map(lambda leaf: leaf[i], opt_state)."
        )
    # Flax NNX holds each array of an optimiser's state in a variable.
    values: dict[str, Any] = {
        field: np.asarray(jnp.asarray(getattr(state, field)))
        for field in LossScaleState._fields
        if field not in ("inner_state", "leaves")
    }
    state = state._replace(inner_state=None, **values)
    counts = {
        path: (int(row[0]), int(row[1]))
        for path, row in zip(sorted(state.leaves), state.nonfinite, strict=True)
        if row.any()
    }
    return Report(
        scale=float(state.scale),
        taken=int(state.taken),
        skipped=int(state.skipped),
        skipped_at_start=int(state.skipped_at_start),
        skipped_in_row=int(state.skipped_in_row),
        nan_in_row=int(state.nan_in_row),
        steps_at_floor=int(state.steps_at_floor),
        nonfinite=counts,
        finding=_finding(state),
    )


def _finding(state: LossScaleState) -> Finding:
    if state.skipped_in_row == 0:
        return "fine" if state.taken else "new"
    if state.nan_in_row > 0:
        return "nan"
    if state.skipped_in_row > PATIENCE:
        return "stuck"
    return "searching" if state.taken == 0 else "overflow"


def check(opt_state: Any, *, patience: int = PATIENCE) -> Report:
    """The report, if no more than `patience` steps in a row have been skipped.

    For the training loop, every now and then: a run that skips all its steps looks like one that
    trains, but for its loss.

    Args:
      opt_state: The optimiser's state.
      patience: A search for the scale from 2**16 takes up to sixteen skips.

    Raises:
      FloatingPointError: with the report, if more have been skipped.
      ValueError: as `report`.
    """
    found = report(opt_state)
    if found.skipped_in_row > patience:
        raise FloatingPointError(f"{found.skipped_in_row} steps in a row were skipped. {found}")
    return found
