"""A watcher around an optimiser: number ranges of its gradients, and the updates that are lost."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jprec import formats
from jprec.optim import guard, ranges
from jprec.optim.new_value import NewValue, is_new_value
from jprec.optim.ranges import LostUpdates, Ranges


class WatchState(NamedTuple):
    """The state of a watcher; what it measured stays until the next measurement.

    inner_state: the inner optimiser's. steps: [] int32, calls of update so far, skipped ones too.
    measured_at: [] int32, `steps` at the call measured last, so 0 for the first; -1 before any.
    gradients: path -> Ranges, at that call. lost: path -> LostUpdates, at that call.
    """

    inner_state: Any
    steps: jax.Array
    measured_at: jax.Array
    gradients: dict[str, Ranges]
    lost: dict[str, LostUpdates]


def watch(
    tx: optax.GradientTransformation,
    *,
    format: formats.FormatLike = "fp16",
    every: int = 10,
    scale: float | None = None,
    sample: int | None = 2**16,
) -> optax.GradientTransformationExtraArgs:
    """Passes everything through; records ranges of the gradients, and updates lost, in its state.

    It goes outermost, around `wrap`, so that it sees the raw gradients and the live loss scale:
    `watch(wrap(optax.adamw(1e-3), policy))`. Gradients are FP32 and unscaled; they are counted as
    they would lie in `format` at the loss scale. Where the backward pass itself ran in that
    format, what it flushed arrives as zero, and what overflowed as infinity. The counts of a
    skipped step show why it was skipped.

    The first call is measured, and then each `every`-th, under `lax.cond`; under `vmap` that
    becomes a select, and each step costs what a measured one does. Both branches hold the update
    of `tx`, which is therefore traced twice: updates that leave a branch cost less than updates
    that enter one. `benchmarks/watching.py` has the cost. A compiler that fused an update with the
    parameter's addition, into one rounding, no longer does; so a training run that is compiled with
    a watcher may differ in last bits from one without, though what `update` returns does not.

    Args:
      tx: The optimiser; its `update` must be given the parameters.
      format: Any format with a sign and a zero.
      every: Calls from one measurement to the next, at least 1.
      scale: None for the loss scale in the state of `tx` (1 without one), or a power of two.
      sample: Of a larger leaf so many numbers are counted, at an even stride; None for all.

    Raises:
      ValueError: A setting is out of range; `update` is not given the parameters, or gradients
        that have not their leaves; see also `number_ranges`.

    >>> tx = watch(optax.sgd(1.0), scale=2.0**10)
    >>> params = {"w": jnp.ones(2)}
    >>> _, state = tx.update({"w": jnp.float32([1e-9, 1.0])}, tx.init(params), params)
    >>> state.gradients["w"].flushed.item(), state.lost["w"].lost.item()
    (0.0, 0.5)
    """
    inner = optax.with_extra_args_support(tx)
    fmt = ranges.check_format(format)
    fixed = None if scale is None else guard.power_of_two(scale, name="scale")
    ranges.check_sample(sample)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(
            f"every={every!r}: it counts calls from one measurement to the next, so a whole number "
            "of at least 1."
        )

    def init(params: Any) -> WatchState:
        return WatchState(
            inner_state=inner.init(params),
            steps=jnp.zeros([], jnp.int32),
            measured_at=jnp.full([], -1, jnp.int32),
            gradients=ranges.by_path(lambda _: ranges.empty_ranges(), params),
            lost=ranges.by_path(lambda _: ranges.no_updates(), params),
        )

    def branches(extra: dict[str, Any]) -> tuple[Any, Any]:
        """A measured call and one that is not."""

        def measure(gradients: Any, state: WatchState, params: Any) -> Any:
            live = guard.loss_scale(state.inner_state) if fixed is None else fixed
            updates, inner_state = inner.update(gradients, state.inner_state, params, **extra)
            found = ranges.number_ranges(gradients, format=fmt, scale=live, sample=sample)
            lost = ranges.lost_updates(params, updates, sample=sample)
            return _without_marks(updates), WatchState(
                inner_state=inner_state,
                steps=optax.safe_increment(state.steps),
                measured_at=state.steps,
                gradients={path: found[path] for path in state.gradients},
                lost=lost,
            )

        def keep(gradients: Any, state: WatchState, params: Any) -> Any:
            updates, inner_state = inner.update(gradients, state.inner_state, params, **extra)
            return _without_marks(updates), state._replace(
                inner_state=inner_state, steps=optax.safe_increment(state.steps)
            )

        return measure, keep

    # The same functions at each call, so that a `cond` that is not jitted compiles once too.
    usual = branches({})

    def update(gradients: Any, state: WatchState, params: Any = None, **extra: Any) -> Any:
        if params is None:
            raise ValueError(
                "watch needs the parameters: write tx.update(gradients, state, parameters)."
            )
        _check_leaves(gradients, state.gradients)
        measure, keep = branches(extra) if extra else usual
        due = state.steps % every == 0
        updates, state = lax.cond(due, measure, keep, gradients, state, params)
        return _with_marks(updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _without_marks(updates: Any) -> Any:
    """`updates` without the marks of intact ones: a branch would turn constants into arrays."""

    def strip(update: Any) -> Any:
        if is_new_value(update) and isinstance(update.intact, np.int8) and update.intact == 1:
            return dataclasses.replace(update, intact=None)
        return update

    return jax.tree.map(strip, updates, is_leaf=is_new_value)


def _with_marks(updates: Any) -> Any:
    """`updates` with the marks that `_without_marks` took away."""

    def mark(update: Any) -> Any:
        if is_new_value(update) and update.intact is None:
            return NewValue(update.value, update.update)
        return update

    return jax.tree.map(mark, updates, is_leaf=is_new_value)


def _check_leaves(gradients: Any, watched: dict[str, Ranges]) -> None:
    """Raises ValueError unless there is a gradient for each path that is watched."""
    found = ranges.by_path(lambda _: None, gradients)
    missing = [path for path in watched if path not in found]
    if missing:
        raise ValueError(
            f"no floating-point gradient at {missing[0]!r}, one of {len(missing)} missing; there "
            "was a parameter at init. Give watch gradients of the parameters' own structure."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Watched:
    """A measurement on the host, for a logger; `str` is a table with one row a path.

    Attributes:
      steps: Calls of update so far.
      measured_at: The call that was measured, 0 for the first; -1 if none was.
      gradients: path -> Ranges, of NumPy arrays.
      lost: path -> LostUpdates, of NumPy arrays.
    """

    steps: int
    measured_at: int
    gradients: dict[str, Ranges]
    lost: dict[str, LostUpdates]

    def scalars(self) -> dict[str, dict[str, float]]:
        """path -> name -> number, the shares and the median of |update| / ulp as its log2."""
        return {
            path: {name: float(getattr(found, name)) for name in ranges.CLASSES}
            | {"lost": float(self.lost[path].lost), "log2_ratio": float(self.lost[path].median)}
            for path, found in self.gradients.items()
        }

    def __str__(self) -> str:
        if self.measured_at < 0:
            return "no step was measured yet"
        rows = [_HEADINGS] + [
            _row(path, self.gradients[path], self.lost[path]) for path in self.gradients
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"step {self.measured_at}: gradients as scaled, in percent; updates lost"]
        for path, *cells in rows:
            numbers = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
            lines.append("  ".join([f"{path:<{widths[0]}}", *numbers]).rstrip())
        return "\n".join(lines)


_SHARES = ("zero", "flushed", "subnormal", "overflow")
_HEADINGS = ("path", *_SHARES, "not finite", "exponents", "lost", "log2 |u|/ulp")


def _row(path: str, found: Ranges, lost: LostUpdates) -> tuple[str, ...]:
    shares = [float(getattr(found, name)) for name in _SHARES]
    shares += [float(found.infinite) + float(found.nan)]
    seen = np.flatnonzero(found.histogram) + ranges.FIRST_EXPONENT
    exponents = f"{seen[0]} .. {seen[-1]}" if seen.size else "-"
    median = float(lost.median)
    typical = "-" if np.isnan(median) else f"{median:.0f}"
    return (path, *map(_percent, shares), exponents, _percent(float(lost.lost)), typical)


def _percent(share: float) -> str:
    """The share in percent; "0" is none, and what is little is not written as none or all."""
    if share in (0.0, 1.0):
        return f"{100 * share:.0f}"
    return "<0.1" if share < 0.001 else ">99.9" if share > 0.999 else f"{100 * share:.1f}"


def watched(opt_state: Any) -> Watched:
    """The latest measurement of the watcher in an optimiser's state, however deep, on the host.

    Args:
      opt_state: The state of an optimiser, a `TrainState`, or the state of an `nnx.Optimizer`.

    Raises:
      ValueError: There is no watcher in it, or more than one; or the state has a batch axis.

    >>> tx = watch(optax.sgd(1.0))
    >>> state = tx.init({"w": jnp.ones(2)})
    >>> print(watched(tx.update({"w": jnp.float32([1e-9, 1.0])}, state, {"w": jnp.ones(2)})[1]))
    step 0: gradients as scaled, in percent; updates lost
    path  zero  flushed  subnormal  overflow  not finite  exponents  lost  log2 |u|/ulp
    w        0     50.0          0         0           0   -30 .. 0  50.0            -7
    """
    found = _watch_states(opt_state)
    if not found:
        raise ValueError(
            "no watcher in this state. Put one around the optimiser: "
            "jprec.optim.watch(jprec.optim.wrap(...))."
        )
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} watchers in this state, and one is read at a time. Give the part that "
            "holds one; of nested ones the outer is state._replace(inner_state=None)."
        )
    # Flax NNX holds each array in a variable, which asarray takes it out of.
    counts = {
        "gradients": {path: jnp.asarray(r.counts) for path, r in found[0].gradients.items()},
        "lost": {path: jnp.asarray(r.counts) for path, r in found[0].lost.items()},
        "steps": jnp.asarray(found[0].steps),
        "measured_at": jnp.asarray(found[0].measured_at),
    }
    counts = jax.device_get(counts)
    if counts["steps"].ndim:
        raise ValueError(
            f"the watcher's counter has shape {counts['steps'].shape}: the state of several runs. "
            "Take one of them first, with jax.tree.map(lambda leaf: leaf[0], state)."
        )
    return Watched(
        steps=int(counts["steps"]),
        measured_at=int(counts["measured_at"]),
        gradients={path: Ranges(table) for path, table in counts["gradients"].items()},
        lost={path: LostUpdates(table) for path, table in counts["lost"].items()},
    )


def _watch_states(tree: Any) -> list[WatchState]:
    """Every WatchState in `tree`, the outer before the inner."""

    def is_state(node: Any) -> bool:
        return isinstance(node, WatchState)

    found = []
    for node in jax.tree.leaves(tree, is_leaf=is_state):
        if is_state(node):
            found += [node, *_watch_states(node.inner_state)]
    return found
