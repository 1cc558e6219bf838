"""Trains one net under loss scales from 2^-20 to 2^24, and predicts where FP16 leaves FP32."""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jprec import formats, optim, program, records, report, stats, train, workloads
from jprec.optim import CLASSES, FIRST_EXPONENT, DynamicScale
from jprec.study import Arm, Experiment, Finding, Setting, Workload, cells, design, training

FP16, BF16, FP32 = "mixed_fp16", "mixed_bf16", "fp32"

#: Exponents of the static scales: every octave where trials had shown the walls, else about four
#: octaves apart.
STATIC = {
    FP32: (0, -20, 24),
    FP16: (-20, -16, -12, -10, -8, -7, -6, -5, -4, -3, -2, 0, 3, 5, 7, 11, 15, 17, 18, 19, 20, 24),
    BF16: (-20, 0, 24),
}

#: Exponents from which the dynamic scale starts, and the clean steps after which it doubles.
STARTS, GROWTH = (16, 24), 100

#: Scales so small and so large that training must fail.
TOO_SMALL, TOO_LARGE = -20, 24

#: The scale that stands for a mean over 2^10 times as many outputs, and exponents of the factors
#: that claim B12 names.
DENSE, FACTORS = -10, (5, 6, 7)

#: Exponents of the factors that Micikevicius et al. (2018, section 3.2) used: 8 to 32K.
USED = (3, 15)

#: The shares of flushed gradients between which the left wall is predicted to lie.
FEW, HALF = 0.01, 0.5


# --- what is trained


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Size:
    """How much is run.

    Attributes:
      setting: Workload, optimiser, steps; between its points training is looked at.
      seeds: How many are judged, from 0.
      static: Policy -> exponents of its static scales.
      starts: Exponents from which the dynamic scale starts.
      looks: Steps before which gradients are compared with those of FP32; a last one after all.
    """

    setting: Setting
    seeds: int
    static: Mapping[str, Sequence[int]]
    starts: Sequence[int]
    looks: Sequence[int]

    @functools.cached_property
    def workload(self) -> Workload:
        """What is trained."""
        return self.setting.load()

    @functools.cached_property
    def numbers(self) -> jax.Array:
        """The judged seeds."""
        return training.seeds_of(range(self.seeds))


@functools.cache
def size(small: bool) -> Size:
    """The experiment; or a miniature: a shallow net, two seeds, four steps."""
    steps, points = (4, 2) if small else (500, 50)
    setting = Setting(
        name="bathtub",
        workload=shallow if small else workloads.digits_autoencoder,
        optimizer=optax.adam(optax.cosine_decay_schedule(3e-3, steps)),
        steps=steps,
        points=points,
        arms=(FP32, FP16),
    )
    if small:
        static = {FP32: (0,), FP16: (TOO_SMALL, 0, TOO_LARGE)}
        return Size(setting=setting, seeds=2, static=static, starts=(24,), looks=(0, 4))
    looks = (0, 100, 200, 300, 400, 500)
    return Size(setting=setting, seeds=8, static=STATIC, starts=STARTS, looks=looks)


def shallow() -> Workload:
    """Digits through 64-8-64 without biases, batch 32, drawn with few instructions."""
    deep = workloads.digits_autoencoder()

    def init(key: jax.Array) -> Any:
        drawn = jax.random.normal(key, (2, 64, 8)) / 8
        return {"down": drawn[0], "up": drawn[1].T}

    def loss(params: Any, images: jax.Array) -> jax.Array:
        x = jnp.tanh(images @ params["down"]) @ params["up"]
        return jnp.mean((x.astype(jnp.float32) - images.astype(jnp.float32)) ** 2)

    def batches(key: jax.Array) -> jax.Array:
        return jnp.asarray(deep.test)[jax.random.bits(key, (32,)) % len(deep.test)]

    return dataclasses.replace(deep, init=init, loss=loss, batches=batches, name="shallow")


@functools.cache
def programs(of: Size, policy: str, *, dynamic: bool = False) -> training.Programs:
    """The programs of one policy: its scale is data, and all scales share them."""
    scale = DynamicScale(growth_interval=GROWTH) if dynamic else 1.0
    arm = Arm(name=policy, policy=policy, loss_scale=scale)
    return training.programs(of.setting, arm, of.workload)


def scaled(state: training.State, exponent: int) -> training.State:
    """The state with 2^exponent for its loss scale."""
    guard = state.opt_state
    scale = jnp.full_like(guard.scale, 2.0**exponent)
    return state._replace(opt_state=guard._replace(scale=scale))


# --- what is looked at on the way


@functools.cache
def look(of: Size, policy: str) -> Callable[..., dict[str, Any]]:
    """(parameters, batch, scale) -> the gradients of one step, mapped over seeds.

    "activations": of the outputs of layers, from the last to the first. "weights": of parameters.
    Both are lists of arrays. Those of FP32 are not scaled.
    """
    arm = training.full_precision_unless_named(Arm(name=policy, policy=policy))

    def gradients(params: Any, batch: Any, scale: jax.Array) -> dict[str, Any]:
        scale = 1.0 if policy == FP32 else scale
        step = train.value_and_grad(of.workload.loss, arm, scale=scale, exact=True)
        (_, of_weights), operands = program.watch_products(step)(params, batch)
        return {
            "activations": operands["activation_gradients"],
            "weights": jax.tree.leaves(of_weights),
        }

    return jax.jit(jax.vmap(gradients, in_axes=(0, 0, None)))


def compared(of: Size, policy: str, exponent: int, params: Any, step: int) -> dict[str, Any]:
    """How many gradients of one step vanish or are not finite, of those that FP32 has.

    Kind -> counts over all seeds: "nonzero" in FP32; of these "flushed", if FP16 rounded FP32's
    own at this scale, and "vanished", which are zero; "not_finite" of all.
    """
    batch = programs(of, FP32).batch(of.numbers, step)
    scale = jnp.float32(2.0**exponent)
    true, low = (look(of, p)(params, batch, scale) for p in (FP32, policy))
    found: dict[str, Any] = {"step": step}
    in_fp16 = ranges(true, scale)
    for kind, arrays in true.items():
        pairs = [(np.asarray(t), np.asarray(x)) for t, x in zip(arrays, low[kind], strict=True)]
        found[kind] = {
            "nonzero": sum(int(np.count_nonzero(t)) for t, _ in pairs),
            "flushed": in_fp16[kind]["flushed"],
            "vanished": sum(int(np.count_nonzero((t != 0) & (x == 0))) for t, x in pairs),
            "not_finite": sum(int(np.count_nonzero(~np.isfinite(x))) for _, x in pairs),
        }
    return found


def ranges(found: Mapping[str, Sequence[jax.Array]], scale: Any = 1.0) -> dict[str, Any]:
    """Kind of gradient -> {class of FP16's range: how many, "exponents": {exponent: how many}}."""

    def counted(counts: jax.Array) -> dict[str, Any]:
        numbers = np.asarray(counts).tolist()
        histogram = enumerate(numbers[len(CLASSES) :], FIRST_EXPONENT)
        exponents = {str(exponent): n for exponent, n in histogram if n}
        return dict(zip(CLASSES, numbers, strict=False)) | {"exponents": exponents}

    return {
        kind: counted(counts) for kind, counts in _counts(dict(found), jnp.float32(scale)).items()
    }


@jax.jit
def _counts(found: Mapping[str, list[jax.Array]], scale: jax.Array) -> dict[str, jax.Array]:
    """Kind of gradient -> the counts of `optim.Ranges`, over all arrays and seeds."""

    def total(arrays: list[jax.Array]) -> jax.Array:
        leaves = optim.number_ranges(arrays, format="fp16", scale=scale).values()
        return sum(leaf.counts for leaf in leaves)  # type: ignore[return-value]

    return {kind: total(arrays) for kind, arrays in found.items()}


def largest(found: Mapping[str, Sequence[jax.Array]]) -> dict[str, list[float]]:
    """Kind of gradient -> the largest magnitude, seed by seed."""
    of_output, *of_hidden = found["activations"]
    kinds = {
        "the output": [of_output],
        "outputs of hidden layers": of_hidden,
        "kernels": [a for a in found["weights"] if a[0].ndim == 2],
        "biases": [a for a in found["weights"] if a[0].ndim == 1],
    }
    return {
        kind: np.max([np.abs(a).reshape(len(a), -1).max(1) for a in arrays], 0).tolist()
        for kind, arrays in kinds.items()
        if arrays
    }


# --- the parts


def pilot(of: Size) -> dict[str, Any]:
    """The margin, from FP32 on seeds that are not judged; a few at a time, as the others run."""
    losses: list[float] = []
    seeds = design.PILOT_SEEDS
    for first in range(0, len(seeds), of.seeds):
        numbers = training.seeds_of(seeds[first : first + of.seeds])
        run = programs(of, FP32)
        state = run.start(numbers)
        for step in range(0, of.setting.steps, run.steps_a_stretch):
            state, _ = run.stretch(state, numbers, step)
        losses += cells.floats(run.test(state.params)[0])
    return {
        "seeds": list(seeds),
        "test_loss": losses,
        "margin": stats.margin_from_pilot(losses),
        "guess": of.workload.guess,
    }


def static(of: Size, policy: str, exponent: int) -> dict[str, Any]:
    """One policy at one static scale."""
    run = programs(of, policy)
    state = scaled(run.start(of.numbers), exponent)
    looks, skipped = [], np.zeros(of.seeds, int)
    for step in range(0, of.setting.steps, run.steps_a_stretch):
        if step in of.looks:
            looks.append(compared(of, policy, exponent, state.params, step))
        state, trace = run.stretch(state, of.numbers, step)
        skipped += np.asarray(trace.skipped).sum(1)
    looks.append(compared(of, policy, exponent, state.params, of.setting.steps))
    return {
        "policy": policy,
        "exponent": exponent,
        "steps": of.setting.steps,
        "test_loss": cells.floats(run.test(state.params)[0]),
        "skipped": skipped.tolist(),
        "looks": looks,
        "weights": [digest[:16] for digest in cells.digests(state, of.seeds)],
    }


def gradients(of: Size) -> dict[str, Any]:
    """The gradients along FP32's own training, from which the walls are predicted."""
    run = programs(of, FP32)
    state = run.start(of.numbers)
    steps, tops, histograms = [], [], {}
    for step in range(0, of.setting.steps + 1, run.steps_a_stretch):
        found = look(of, FP32)(state.params, run.batch(of.numbers, step), jnp.float32(1.0))
        steps.append(step)
        tops.append(largest(found))
        if step in (0, of.setting.steps):
            histograms[str(step)] = {k: r["exponents"] for k, r in ranges(found).items()}
        if step < of.setting.steps:
            state, _ = run.stretch(state, of.numbers, step)
    return {
        "steps": steps,
        "largest_of_all": [
            [max(of_kinds) for of_kinds in zip(*at.values(), strict=True)] for at in tops
        ],
        "largest": {str(steps[0]): tops[0], str(steps[-1]): tops[-1]},
        "histograms": histograms,
    }


def dynamic(of: Size, exponent: int) -> dict[str, Any]:
    """FP16 with the dynamic scale from 2^exponent: losses, and the path of the scale."""
    run = programs(of, FP16, dynamic=True)
    # The state of a dynamic scale is that of a static one.
    state = scaled(programs(of, FP16).start(of.numbers), exponent)
    scale, skipped = [], []
    for step in range(0, of.setting.steps, run.steps_a_stretch):
        state, trace = run.stretch(state, of.numbers, step)
        scale.append(np.log2(trace.scale).astype(int))
        skipped.append(np.asarray(trace.skipped))
    return {
        "start": exponent,
        "steps": of.setting.steps,
        "test_loss": cells.floats(run.test(state.params)[0]),
        "skipped": np.concatenate(skipped, 1).sum(1).tolist(),
        "skipped_at_start": np.asarray(state.opt_state.skipped_at_start).tolist(),
        "path": [changes(of_seed) for of_seed in np.concatenate(scale, 1).tolist()],
    }


def changes(values: Sequence[int]) -> list[list[int]]:
    """[step, value] where a value differs from the one before.

    >>> changes([5, 5, 4, 4, 5])
    [[0, 5], [2, 4], [4, 5]]
    """
    return [[i, v] for i, v in enumerate(values) if i == 0 or v != values[i - 1]]


def parts(small: bool) -> dict[str, Callable[[], Any]]:
    """Name -> what computes it: one policy at one scale each."""
    of = size(small)
    todo: dict[str, Callable[[], Any]] = {"pilot": functools.partial(pilot, of)}
    todo["gradients"] = functools.partial(gradients, of)
    for policy, exponents in of.static.items():
        for e in exponents:
            todo[name(policy, e)] = functools.partial(static, of, policy, e)
    for e in of.starts:
        todo[name("dynamic", e)] = functools.partial(dynamic, of, e)
    return todo


def name(policy: str, exponent: int) -> str:
    """The name of a part."""
    return f"{policy} 2^{exponent}"


# --- what is predicted


def flushed_share(of: Mapping[str, float], exponent: int) -> float:
    """The share of the nonzero numbers that FP16 flushes at a scale of 2^exponent.

    Rounding to nearest even flushes what is not above 2^-25. Powers of two are counted with the
    numbers above them, and so not as flushed.

    >>> flushed_share({"-30": 1, "-25": 2, "-3": 1}, 0), flushed_share({"-30": 1}, 5)
    (0.25, 0.0)
    """
    fp16 = formats.get("fp16")
    limit = int(math.log2(fp16.min_subnormal)) - 1 - exponent
    return sum(n for e, n in of.items() if int(e) < limit) / sum(of.values())


def flushed_squares(of: Mapping[str, int], exponent: int) -> float:
    """The share of the sum of squares that `flushed_share` takes away.

    Within each octave squares are taken to be spread alike, so that only octaves weigh.

    >>> flushed_squares({"-30": 1, "-29": 1}, 4)
    0.2
    """
    return flushed_share({e: n * 4.0 ** int(e) for e, n in of.items()}, exponent)


def scale_for(of: Mapping[str, int], share: float) -> int:
    """The exponent of the smallest scale at which FP16 flushes no more than `share`.

    >>> scale_for({"-30": 1, "-26": 99}, 0.01), scale_for({"-30": 1, "-26": 99}, 0.001)
    (1, 5)
    """
    return next(e for e in range(-126, 127) if flushed_share(of, e) <= share)


def scale_below_overflow(largest: float) -> int:
    """The exponent of the largest scale at which a number of this magnitude stays finite in FP16.

    >>> scale_below_overflow(65504.0), scale_below_overflow(65520.0), scale_below_overflow(0.1)
    (0, -1, 19)
    """
    fp16 = formats.get("fp16")
    overflow = fp16.max + 2.0 ** (fp16.max_exponent - fp16.precision)  # half an ulp more
    return math.ceil(math.log2(overflow / largest)) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the gradients of FP32's training say beforehand of FP16, as exponents of scales.

    Attributes:
      lost: At this scale and below, half of the activation gradients or more are flushed at the
        end of training: different and worse.
      kept: From this scale on no more than 1 % of them are: equivalent, up to `clean`.
      clean: Up to this scale no step of any seed overflows.
      stuck: From this scale on the first step of every seed overflows, and so no step is taken.
    """

    lost: int
    kept: int
    clean: int
    stuck: int


def predicted(parts: Mapping[str, Any]) -> Predicted:
    """The prediction from the record of the part "gradients"."""
    of_activations = _at_the_end(parts)
    largest = parts["gradients"]["largest_of_all"]
    return Predicted(
        # The scale above is the first at which less than half is flushed.
        lost=max(e for e in range(-126, 127) if flushed_share(of_activations, e) >= HALF),
        kept=scale_for(of_activations, FEW),
        clean=scale_below_overflow(max(map(max, largest))),
        stuck=scale_below_overflow(min(largest[0])) + 1,
    )


def _at_the_end(parts: Mapping[str, Any]) -> Mapping[str, int]:
    """The histogram of the activation gradients after FP32's training."""
    found = parts["gradients"]
    return found["histograms"][str(found["steps"][-1])]["activations"]


# --- what the record says


def verdict(parts: Mapping[str, Any], part: str) -> stats.Verdict:
    """The part's test losses against those of FP32 at scale 1, seed by seed."""
    losses, baseline = (records.as_floats(parts[n]["test_loss"]) for n in (part, name(FP32, 0)))
    guess = parts["pilot"]["guess"]
    return stats.judge(
        stats.paired_differences(losses, baseline),
        parts["pilot"]["margin"],
        diverged=stats.count_diverged(losses, guess),
        baseline_diverged=stats.count_diverged(baseline, guess),
    )


def is_same(found: stats.Verdict) -> bool:
    """Whether the verdict is equivalent or identical."""
    return found.verdict in ("equivalent", "identical")


def is_worse(found: stats.Verdict) -> bool:
    """Whether the verdict is different, on the bad side."""
    return found.verdict == "different" and found.direction == "worse"


def exponents(parts: Mapping[str, Any], policy: str) -> list[int]:
    """The exponents of the policy's static scales, from small to large."""
    return sorted(p["exponent"] for p in parts.values() if p.get("policy") == policy)


def verdicts(parts: Mapping[str, Any], policy: str) -> dict[int, stats.Verdict]:
    """Exponent -> verdict, from the smallest scale to the largest."""
    return {e: verdict(parts, name(policy, e)) for e in exponents(parts, policy)}


def plateau(same: Mapping[int, bool]) -> tuple[int, int] | None:
    """First and last exponent of the widest run of neighbours that are all the same as FP32.

    >>> plateau({-4: False, -2: True, 0: True, 4: False, 6: True})
    (-2, 0)
    """
    runs: list[list[int]] = [[]]
    for exponent, is_in in sorted(same.items()):
        if is_in:
            runs[-1].append(exponent)
        else:
            runs.append([])
    widest = max((run for run in runs if run), key=lambda run: run[-1] - run[0], default=None)
    return (widest[0], widest[-1]) if widest else None


def controls_hold(parts: Mapping[str, Any]) -> bool:
    """Whether FP16 fails at both ends, and FP32 is the same bit for bit wherever it was tried."""
    fails = all(is_worse(verdict(parts, name(FP16, e))) for e in (TOO_SMALL, TOO_LARGE))
    return fails and same_weights(parts, FP32) == 1.0


def same_weights(parts: Mapping[str, Any], policy: str) -> float:
    """The share of runs at another scale that end with the very weights that scale 1 gives."""
    at_one = parts[name(policy, 0)]["weights"]
    others = [parts[name(policy, e)]["weights"] for e in exponents(parts, policy) if e]
    pairs = [a == b for other in others for a, b in zip(at_one, other, strict=True)]
    return sum(pairs) / len(pairs) if pairs else 1.0


def share(part: Mapping[str, Any], kind: str, what: str, *, look: int) -> float:
    """The share of the gradients that are not zero in FP32 of which this holds at that look."""
    found = part["looks"][look][kind]
    return found[what] / max(found["nonzero"], 1)


def skipped(part: Mapping[str, Any]) -> float:
    """The share of all steps that were skipped."""
    return sum(part["skipped"]) / (part["steps"] * len(part["skipped"]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What FP16 did, as exponents of scales that were tried; None where none did so.

    Attributes:
      lost: Up to this scale, all are different and worse.
      plateau: The first and the last scale of the widest run that is the same as FP32.
      clean: Up to this scale, no step was skipped.
      stuck: From this scale on, every step of every seed was skipped.
    """

    lost: int | None
    plateau: tuple[int, int] | None
    clean: int | None
    stuck: int | None


def measured(parts: Mapping[str, Any]) -> Measured:
    """The walls in the record."""
    found = verdicts(parts, FP16)
    skips = {e: skipped(parts[name(FP16, e)]) for e in found}
    return Measured(
        lost=_last(found, lambda e: is_worse(found[e])),
        plateau=plateau({e: is_same(v) for e, v in found.items()}),
        clean=_last(found, lambda e: skips[e] == 0),
        stuck=_last(reversed(found), lambda e: skips[e] == 1),
    )


def _last(exponents: Iterable[int], holds: Callable[[int], bool]) -> int | None:
    """The last of the exponents before the first for which `holds` fails."""
    last = None
    for exponent in exponents:
        if not holds(exponent):
            break
        last = exponent
    return last


def checks(parts: Mapping[str, Any]) -> dict[str, bool]:
    """Field of `Predicted` -> whether every scale that was tried is as it says."""
    wanted, found = predicted(parts), verdicts(parts, FP16)
    skips = {e: skipped(parts[name(FP16, e)]) for e in found}
    return {
        "lost": all(is_worse(v) for e, v in found.items() if e <= wanted.lost),
        "kept": all(is_same(v) for e, v in found.items() if wanted.kept <= e <= wanted.clean),
        "clean": all(skips[e] == 0 for e in found if e <= wanted.clean),
        "stuck": all(skips[e] == 1 for e in found if e >= wanted.stuck),
    }


# --- tables


def tables(parts: Mapping[str, Any]) -> dict[str, str]:
    """The generated parts of README.md."""
    return {
        "walls": _walls_table(parts),
        "left": _left_table(parts),
        "scales": _scales_table(parts),
        "gradients": _gradients_table(parts),
        "dynamic": _dynamic_table(parts),
        "findings": _findings_table(parts),
    }


def _power(exponent: int | None) -> str:
    return "none" if exponent is None else f"2^{exponent}"


def _percent(value: float) -> str:
    if value in (0, 1):
        return f"{value:.0%}"
    return "<0.01%" if value < 1e-4 else f"{value:.2%}" if value < 0.01 else f"{value:.1%}"


def _signed(value: float) -> str:
    """A number of δ: two decimals, none where it is large; zero has no sign."""
    text = f"{value:+.0f}" if abs(value) >= 100 else f"{value:+.2f}"
    return text[1:] if float(text) == 0 else text


def _in_margins(found: stats.Verdict) -> str:
    """Mean and 90 % interval of the difference, in units of δ."""
    if not math.isfinite(found.mean):
        return "not finite"
    mean, low, high = (_signed(x / found.margin) for x in (found.mean, found.low, found.high))
    return f"{mean} ({low} … {high})"


def _walls_table(parts: Mapping[str, Any]) -> str:
    wanted, got, holds = predicted(parts), measured(parts), checks(parts)
    low, high = got.plateau or (None, None)
    said = {True: "yes", False: "**no**"}
    predicted_width = max(wanted.clean - wanted.kept, 0)
    width = "none" if low is None or high is None else f"{high - low} octaves"
    rows = [
        ("worse than FP32 up to", _power(wanted.lost), _power(got.lost), said[holds["lost"]]),
        ("equivalent from", _power(wanted.kept), _power(low), said[holds["kept"]]),
        ("no step skipped up to", _power(wanted.clean), _power(got.clean), said[holds["clean"]]),
        ("equivalent up to", _power(wanted.clean), _power(high), said[holds["kept"]]),
        ("every step skipped from", _power(wanted.stuck), _power(got.stuck), said[holds["stuck"]]),
        ("width of the plateau", f"{predicted_width} octaves or more", width, ""),
    ]
    head = [
        "FP16 is",
        "predicted from FP32's gradients:",
        "measured:",
        "holds at every scale tried",
    ]
    return report.markdown_table(head, rows)


def _left_table(parts: Mapping[str, Any]) -> str:
    wanted, found = predicted(parts), verdicts(parts, FP16)
    of_activations = _at_the_end(parts)
    rows = [
        (
            _power(e),
            _percent(flushed_share(of_activations, e)),
            _percent(flushed_squares(of_activations, e)),
            _percent(share(parts[name(FP16, e)], "activations", "flushed", look=-1)),
            _percent(share(parts[name(FP16, e)], "activations", "vanished", look=-1)),
            _in_margins(v),
            str(v),
        )
        for e, v in found.items()
        if DENSE <= e <= wanted.kept
    ]
    head = ["scale:", "flushed of FP32's gradients, by number:", "by sum of squares:"]
    head += ["flushed at FP16's weights, by number:", "vanished there:"]
    return report.markdown_table([*head, "difference / δ (90 %):", "verdict"], rows)


def _scales_table(parts: Mapping[str, Any]) -> str:
    rows = []
    for policy in (FP16, BF16, FP32):
        for e, found in verdicts(parts, policy).items():
            part = parts[name(policy, e)]
            losses = records.as_floats(part["test_loss"])
            rows.append(
                (
                    f"`{policy}`",
                    _power(e),
                    f"{sum(losses) / len(losses):.5f}",
                    _in_margins(found),
                    str(found),
                    f"{found.diverged} of {found.n}",
                    _percent(skipped(part)),
                    _percent(share(part, "activations", "vanished", look=0)),
                    _percent(share(part, "activations", "vanished", look=-1)),
                    _percent(share(part, "weights", "vanished", look=-1)),
                    _percent(share(part, "weights", "not_finite", look=0)),
                )
            )
    head = ["arm", "scale:", "test loss:", "difference / δ (90 %):", "verdict", "diverged:"]
    head += ["steps skipped:", "vanished, activations, first step:", "after the last:"]
    head += ["weights, after the last:", "∞ and NaN, weights, first step:"]
    margin, n = parts["pilot"]["margin"], len(parts[name(FP32, 0)]["test_loss"])
    twins = ", ".join(f"`{p}` in {same_weights(parts, p):.0%}" for p in _smallest(parts))
    return (
        f"δ = {margin:.3g}, half the standard deviation of FP32 over "
        f"{len(parts['pilot']['seeds'])} pilot seeds; {n} pairs. Runs at another scale that end "
        f"with the very weights of scale 1: {twins}.\n\n{report.markdown_table(head, rows)}"
    )


def _gradients_table(parts: Mapping[str, Any]) -> str:
    found = parts["gradients"]
    first, last = (str(found["steps"][i]) for i in (0, -1))
    rows = []
    for kind in found["largest"][first]:
        largest = [max(found["largest"][step][kind]) for step in (first, last)]
        rows.append(
            (
                kind,
                *(f"{x:.2e}" for x in largest),
                *(_power(scale_below_overflow(x)) for x in largest),
            )
        )
    lines = []
    for step in (first, last):
        flushed = {k: flushed_share(h, 0) for k, h in found["histograms"][step].items()}
        lines.append(
            f"At step {step} FP16 without a scale would flush {_percent(flushed['activations'])} "
            f"of the activation gradients and {_percent(flushed['weights'])} of the weight "
            "gradients."
        )
    head = ["gradients of", f"largest, step {first}:", f"step {last}:"]
    head += [f"largest scale without overflow, step {first}:", f"step {last}:"]
    return f"{report.markdown_table(head, rows)}\n\n{' '.join(lines)}"


def _dynamic_table(parts: Mapping[str, Any]) -> str:
    rows = []
    for part in _dynamic(parts):
        found = verdict(parts, name("dynamic", part["start"]))
        late = [e for path in part["path"] for e in _after(path, part["steps"] // 2)]
        rows.append(
            (
                _power(part["start"]),
                _in_margins(found),
                str(found),
                _span(part["skipped_at_start"]),
                _span(part["skipped"]),
                f"{_power(min(late))} … {_power(max(late))}",
            )
        )
    head = ["from:", "difference / δ (90 %):", "verdict", "skipped before the first step:"]
    head += ["skipped in all:", "scales in the second half:"]
    return report.markdown_table(head, rows)


def _dynamic(parts: Mapping[str, Any]) -> list[Any]:
    return [p for p in parts.values() if "start" in p]


def _after(path: Sequence[Sequence[int]], step: int) -> list[int]:
    """The values that a path of changes takes from `step` on."""
    before = [value for at, value in path if at <= step]
    return [before[-1], *(value for at, value in path if at > step)]


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} … {high}"


def _findings_table(parts: Mapping[str, Any]) -> str:
    rows = [(f.claim, f.verdict, f.sentence) for f in findings(parts)]
    return report.markdown_table(["claim", "verdict", "evidence"], rows)


# --- figures


def figures(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The bathtub with the dynamic scale's path below it; and what its walls are made of."""
    return {
        "bathtub.svg": report.plot(
            [_loss_panel(parts), _path_panel(parts)],
            title="Between its walls, FP16 ends where FP32 ends",
        ),
        "walls.svg": report.plot(
            [_share_panel(parts, 0), _share_panel(parts, -1)],
            title="Left, gradients vanish; right, steps are skipped",
        ),
    }


def _axis(parts: Mapping[str, Any]) -> dict[str, Any]:
    """What the panels share: the axis of scales, the plateau, the predicted walls."""
    of = exponents(parts, FP16)
    got = measured(parts).plateau
    window = [report.Mark(x=got, label="equivalent to FP32")] if got else []
    # Windows of no width, so that all panels reach equally far.
    ends = [report.Mark(x=(e, e)) for e in (of[0], of[-1] + 4)]
    ticks = {e: f"2^{e}" if e else "1" for e in range(of[0], of[-1] + 5, 4)}
    return {"x": "loss scale", "marks": [*window, *ends], "ticks": ticks}


def _loss_panel(parts: Mapping[str, Any]) -> report.Panel:
    curves = []
    for policy, label in ((FP16, "FP16"), (BF16, "BF16"), (FP32, "FP32")):
        at = exponents(parts, policy)
        losses = [records.as_floats(parts[name(policy, e)]["test_loss"]) for e in at]
        curves.append(
            report.Curve(
                name=label,
                x=at,
                y=[sum(of_seeds) / len(of_seeds) for of_seeds in losses],
                low=[min(of_seeds) for of_seeds in losses],
                high=[max(of_seeds) for of_seeds in losses],
            )
        )
    for part in _dynamic(parts):
        losses = records.as_floats(part["test_loss"])
        last = [path[-1][1] for path in part["path"]]
        curves.append(
            report.Curve(
                name=_dynamic_label(part),
                x=[sum(last) / len(last)],
                y=[sum(losses) / len(losses)],
                kind="points",
            )
        )
    return report.Panel(
        title="Test loss after training: mean, lowest and highest seed",
        y="test loss",
        y_scale="log10",
        curves=curves,
        **_axis(parts),
    )


def _path_panel(parts: Mapping[str, Any]) -> report.Panel:
    curves = []
    for part in _dynamic(parts):
        steps, at = [], []
        for step, exponent in part["path"][0]:
            steps += [step, step] if at else [step]
            at += [at[-1], exponent] if at else [exponent]
        curves.append(
            report.Curve(
                name=_dynamic_label(part),
                x=[*at, at[-1]],
                y=[*steps, part["steps"]],
                kind="plain",
            )
        )
    steps, largest = (parts["gradients"][key] for key in ("steps", "largest_of_all"))
    wall = report.Curve(
        name="S max|g| = 65504 in FP32",
        x=[math.log2(65504 / of_seeds[0]) for of_seeds in largest],
        y=steps,
        kind="plain",
    )
    return report.Panel(
        title="Path of the dynamic scale, first seed: the wall moves as gradients become smaller",
        y="step",
        curves=[*curves, wall],
        **_axis(parts),
    )


def _dynamic_label(part: Mapping[str, Any]) -> str:
    return f"dynamic from {_power(part['start'])}"


def _share_panel(parts: Mapping[str, Any], look: int) -> report.Panel:
    at = exponents(parts, FP16)
    of = [parts[name(FP16, e)] for e in at]
    step = of[0]["looks"][look]["step"]
    every = list(range(at[0], at[-1] + 1))
    histogram = parts["gradients"]["histograms"][str(step)]["activations"]
    curves = {
        "vanish: activations": [share(p, "activations", "vanished", look=look) for p in of],
        "vanish: weights": [share(p, "weights", "vanished", look=look) for p in of],
        "not finite: weights": [share(p, "weights", "not_finite", look=look) for p in of],
        "steps skipped": [skipped(p) for p in of],
    }
    predictions = {
        "predicted from FP32": [flushed_share(histogram, e) for e in every],
        "predicted, of squares": [flushed_squares(histogram, e) for e in every],
    }
    lines = [report.Curve(name=label, x=at, y=y) for label, y in curves.items()]
    lines += [report.Curve(name=n, x=every, y=y, kind="plain") for n, y in predictions.items()]
    return report.Panel(
        title=f"{'First step' if look == 0 else f'Step {step}'}: shares of FP16's gradients, and "
        "of steps in all",
        y="share",
        curves=lines,
        **_axis(parts),
    )


# --- findings


def findings(parts: Mapping[str, Any]) -> list[Finding]:
    """By the rules of README.md; nothing is found where a control does not fail."""
    found = [_zeros(parts), _factors(parts), *_scales(parts), _automatic(parts)]
    if controls_hold(parts):
        return found
    return [
        Finding(claim=f.claim, verdict="undecided", sentence=f"A control failed. {f.sentence}")
        for f in found
    ]


def _zeros(parts: Mapping[str, Any]) -> Finding:
    """A11: many gradients become zero in FP16, and training does not converge."""
    found = verdicts(parts, FP16)
    zeros = {e: share(parts[name(FP16, e)], "activations", "vanished", look=-1) for e in found}
    half = [e for e in found if zeros[e] >= HALF]
    lost = [e for e in half if is_worse(found[e])]
    others = {p: verdict(parts, name(p, e)) for p, e in _smallest(parts).items()}
    listed = " and ".join(f"{p} is {v}" for p, v in others.items())
    harmless = max((zeros[e] for e in found if is_same(found[e])), default=0.0)
    return Finding(
        claim="A11",
        verdict=_by(bool(lost) and all(map(is_same, others.values()))),
        sentence=f"At {len(half)} scales half or more of the activation gradients that FP32 has "
        f"vanish in FP16; at {len(lost)} of these, up to {_power(max(lost, default=None))}, "
        f"training ends worse. At the smallest scale {listed}. Zeros alone decide nothing: scales "
        f"at which up to {_percent(harmless)} vanish are equivalent. Emulated.",
    )


def _smallest(parts: Mapping[str, Any]) -> dict[str, int]:
    """Policy -> the exponent of its smallest scale."""
    return {p: exponents(parts, p)[0] for p in (FP32, BF16) if exponents(parts, p)}


def _by(holds: bool) -> Any:
    """The verdict on a claim that either holds or does not."""
    return "confirmed" if holds else "refuted in miniature"


def _factors(parts: Mapping[str, Any]) -> Finding:
    """B12: multiply by 32, 64, 128."""
    tried = [DENSE, *(DENSE + f for f in FACTORS)]
    of = {e: verdict(parts, name(FP16, e)) for e in tried if name(FP16, e) in parts}
    rescued = [is_same(v) for e, v in of.items() if e != DENSE]
    outcome: Any = "undecided"
    if DENSE in of and is_worse(of[DENSE]):
        outcome = "corrected" if any(rescued) and not all(rescued) else _by(any(rescued))
    listed = "; ".join(f"× {2 ** (e - DENSE)}: {v}, {_in_margins(v)} δ" for e, v in of.items())
    return Finding(
        claim="B12",
        verdict=outcome,
        sentence="With gradients as small as those of a mean over "
        f"{2**-DENSE} times as many outputs, FP16 against FP32 is, by factor, {listed}. Dividing "
        "before the update is exact: FP32 gives the same weights bit for bit in "
        f"{same_weights(parts, FP32):.0%} of the runs at other scales. It is small gradients that "
        "underflow, whatever the loss. Emulated.",
    )


def _scales(parts: Mapping[str, Any]) -> list[Finding]:
    """M3.2: how a scale is chosen; the factors that were used; that larger is no worse."""
    wanted, got, holds = predicted(parts), measured(parts), checks(parts)
    found = verdicts(parts, FP16)
    used = [is_same(v) for e, v in found.items() if USED[0] <= e <= USED[1]]
    low, high = got.plateau or (0, 0)
    inside = [v for e, v in found.items() if low <= e <= wanted.clean]
    most = max((max(abs(v.low), abs(v.high)) / v.margin for v in inside), default=0.0)
    between = "; ".join(
        f"{_power(e)} is {v}: {_overflows(parts, e)}"
        for e, v in found.items()
        if wanted.clean < e < wanted.stuck
    )
    top = max(map(max, parts["gradients"]["largest_of_all"]))
    return [
        Finding(
            claim="M3.2",
            verdict=_by(holds["clean"] and holds["stuck"]),
            sentence="The scale times the largest gradient is to stay below 65504: the largest of "
            f"FP32's training, {top:.3g}, allows {_power(wanted.clean)}, and no step was skipped "
            f"up to {_power(got.clean)}; every step was from {_power(got.stuck)} on (predicted "
            f"{_power(wanted.stuck)}). Between: {between or 'none tried'}. Emulated.",
        ),
        Finding(
            claim="M3.2",
            verdict=_by(bool(used) and all(used)),
            sentence=f"Factors from 8 to 32K: {sum(used)} of {len(used)} scales tried are "
            f"equivalent to FP32, on a plateau of {high - low} octaves, {_power(low)} to "
            f"{_power(high)}. Emulated.",
        ),
        Finding(
            claim="M3.2",
            verdict=_by(bool(inside) and all(map(is_same, inside))),
            sentence=f"A large scale has no downside before it overflows: the {len(inside)} "
            f"scales tried from {_power(low)} to {_power(wanted.clean)} are equivalent to FP32, "
            f"with intervals inside ±{most:.2f} δ. Emulated.",
        ),
    ]


def _overflows(parts: Mapping[str, Any], exponent: int) -> str:
    """How many seeds skip steps at this scale, and how many by the gradients of FP32."""
    part, first = parts[name(FP16, exponent)], parts["gradients"]["largest_of_all"][0]
    wanted = sum(scale_below_overflow(largest) < exponent for largest in first)
    some, all_steps = (sum(n >= least for n in part["skipped"]) for least in (1, part["steps"]))
    return (
        f"the first step should overflow in {wanted} of {len(first)} seeds, {some} skip steps, and "
        f"{all_steps} skip all"
    )


def _automatic(parts: Mapping[str, Any]) -> Finding:
    """M5: the scale can be found automatically."""
    of = [(p, verdict(parts, name("dynamic", p["start"]))) for p in _dynamic(parts)]
    outcome: Any = "undecided"
    if all(is_same(v) for _, v in of) or any(is_worse(v) for _, v in of):
        outcome = _by(not any(is_worse(v) for _, v in of))
    listed = "; ".join(
        f"from {_power(p['start'])} it is {v}, {_in_margins(v)} δ, with "
        f"{_span(p['skipped_at_start'])} steps skipped before the first taken and "
        f"{_span(p['skipped'])} of {p['steps']} in all"
        for p, v in of
    )
    return Finding(
        claim="M5",
        verdict=outcome,
        sentence=f"A dynamic scale against FP32: {listed}. The largest scale without overflow at "
        f"the largest gradients is predicted to be {_power(predicted(parts).clean)}. Emulated.",
    )


EXPERIMENT = Experiment(
    file=__file__,
    question="Between which loss scales does FP16 training end where FP32 training ends?",
    parts=parts,
    tables=tables,
    figures=figures,
    findings=findings,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
