"""Trains nets in pairs that differ in next to nothing, and measures how far they part."""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from jprec import program, report, rounding, stats, workloads
from jprec.study import Experiment, Finding, Setting, Workload, arm, converges, training

#: Steps after which two trainings are compared.
LOOKS = (
    *(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64),
    *(80, 96, 128, 160, 192, 256, 320, 384, 480, 600),
)

#: The first steps, in which rates of growth are compared.
FIRST, EARLY = 1, 32

#: The rule: growth that is called chaotic, and factors within which rates and levels are the same.
GROWTH, SAME_RATE, SAME_LEVEL = 1e3, 2.0, 3.0

#: Shares of another seed's differences: what is negligible, and what is far below them.
NEGLIGIBLE, FAR_BELOW = 0.1, 0.2

#: Growth from one look to the next that is called a leap.
LEAP = 10.0

#: What is added to a seed for another one.
OTHER = 100


# --- what is trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """What one training does otherwise than the FP32 training of the same seed.

    Attributes:
      name: As in legends and tables.
      arm: The study's arm.
      order: "drawn" reorders the examples inside each batch; "own" gathers them, too, but in the
        order that they have; None leaves the batch alone.
      rounded: Whether the initial weights are rounded to TF32, once.
      weights: Added to the seed that draws the initial weights.
      batches: Added to the seed that draws the batches.
    """

    name: str
    arm: str = "fp32"
    order: str | None = None
    rounded: bool = False
    weights: int = 0
    batches: int = 0


BASELINE = Change(name="FP32")
AGAIN = Change(name="same program again")
KEPT = Change(name="batch in its own order", order="own")
ULP = Change(name="one ulp", arm="fp32_one_ulp")
REORDERED = Change(name="batch reordered", order="drawn")
ONCE = Change(name="TF32 weights at start", rounded=True)
TF32 = Change(name="TF32", arm="tf32")
TRUNCATED = Change(name="TF32 truncated", arm="tf32_truncated")
BF16 = Change(name="BF16", arm="mixed_bf16")
BATCHES = Change(name="other batches", batches=OTHER)
SEED = Change(name="another seed", weights=OTHER, batches=OTHER)

#: What must change nothing, and what perturbs every training or its start by rounding alone.
NOTHING = (AGAIN, KEPT)
ROUNDING = (ULP, REORDERED, TF32, TRUNCATED, BF16)
SHOWN = (ULP, REORDERED, ONCE, TF32, TRUNCATED, BF16, BATCHES, SEED)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Net:
    """A net with its training and the changes that are tried on it.

    Attributes:
      setting: Workload, optimiser and steps, one step a stretch.
      changes: In the order of the tables.
      seeds: How many pairs.
      looks: Steps after which they are compared.
    """

    setting: Setting
    changes: Sequence[Change]
    seeds: int
    looks: Sequence[int]

    @functools.cached_property
    def workload(self) -> Workload:
        """What is trained."""
        return self.setting.load()

    @functools.cached_property
    def numbers(self) -> jax.Array:
        """The seeds."""
        return training.seeds_of(range(self.seeds))


MLP, CNN, SMOOTH = "MLP", "CNN", "CNN with GELU"


@functools.cache
def nets(small: bool) -> dict[str, Net]:
    """Name -> net; or a miniature: one narrow net, two seeds, four steps."""
    if small:
        setting = dataclasses.replace(converges.HOT, workload=narrow, steps=4, points=4)
        some = (*NOTHING, ULP, REORDERED, ONCE, TF32, BATCHES, SEED)
        return {MLP: Net(setting=setting, changes=some, seeds=2, looks=(0, 1, 2, 4))}
    every = (*NOTHING, *SHOWN)

    def full(setting: Setting, changes: Sequence[Change]) -> Net:
        setting = dataclasses.replace(setting, points=setting.steps)
        return Net(setting=setting, changes=changes, seeds=8, looks=LOOKS)

    return {
        MLP: full(converges.HOT, every),
        CNN: full(converges.HOT_CNN, every),
        SMOOTH: full(dataclasses.replace(converges.HOT_CNN, workload=cnn), (ULP,)),
    }


def narrow() -> Workload:
    """Digits by 64-8-10 with ReLU and without biases, batch 16, drawn with few instructions."""
    wide = workloads.digits_mlp()

    def init(key: jax.Array) -> Any:
        drawn = jax.random.normal(key, (8, 74))
        return {"first": drawn[:, :64].T / 8, "last": drawn[:, 64:] / 2}

    def apply(params: Any, images: jax.Array) -> jax.Array:
        return nnx.relu(images @ params["first"]) @ params["last"]

    def batches(key: jax.Array) -> Any:
        rows = jax.random.bits(key, (16,)) % len(wide.test[1])
        return jax.tree.map(lambda a: jnp.asarray(a)[rows], wide.test)

    return dataclasses.replace(
        wide, **_judged(apply), init=init, batches=batches, name="narrow", test=wide.test
    )


def cnn(activation: Callable[[jax.Array], jax.Array] = nnx.gelu) -> Workload:
    """The digits CNN with another activation; same initial weights, same batches."""

    def apply(params: Any, images: jax.Array) -> jax.Array:
        x = images.reshape(-1, 8, 8, 1)
        for layer in (params["first"], params["second"]):
            x = lax.conv_general_dilated(
                x, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = activation(x + layer["bias"])
            n, h, w, c = x.shape
            x = x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))
        head = params["head"]
        return x.reshape(x.shape[0], -1) @ head["kernel"] + head["bias"]

    return dataclasses.replace(workloads.digits_cnn(), **_judged(apply))


def _judged(apply: Callable[..., jax.Array]) -> dict[str, Any]:
    """The loss and the accuracy of a classifier."""

    def loss(params: Any, batch: Any) -> jax.Array:
        images, labels = batch
        logits = jax.nn.log_softmax(apply(params, images).astype(jnp.float32))
        return -jnp.take_along_axis(logits, labels[:, None], 1).mean()

    def accuracy(params: Any, batch: Any) -> jax.Array:
        images, labels = batch
        return (apply(params, images).argmax(-1) == labels).mean(dtype=jnp.float32)

    return {"loss": loss, "accuracy": accuracy}


@functools.cache
def ordered(workload: Workload, order: str | None) -> Workload:
    """The workload whose batches are gathered once more, in an order of their own or as drawn.

    The sorted order undoes the reordering, and the compiler cannot know that it does.
    """
    if order is None:
        return workload

    def batches(key: jax.Array) -> Any:
        batch = workload.batches(key)
        (size,) = {len(a) for a in jax.tree.leaves(batch)}
        places = jnp.argsort(jax.random.bits(jax.random.fold_in(key, 1), (size,)))
        places = jnp.sort(places) if order == "own" else places
        return jax.tree.map(lambda a: a[places], batch)

    return dataclasses.replace(workload, batches=batches)


# --- what is compared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """Where the trainings of all seeds are after some step.

    Attributes:
      weights: [seeds, all weights] float32.
      predictions: [seeds, held-out images].
      loss: [seeds] test loss, in full FP32, as float64.
    """

    weights: np.ndarray
    predictions: np.ndarray
    loss: np.ndarray


def trained(net: Net, change: Change) -> list[Look]:
    """The looks along one training."""
    run = training.programs(net.setting, arm(change.arm), ordered(net.workload, change.order))
    state = run.start(net.numbers + change.weights)
    if change.rounded:
        params = jax.tree.map(lambda w: rounding.round_to(w, "tf32"), state.params)
        # Two copies, since both are donated.
        state = state._replace(params=params, before=jax.tree.map(jnp.copy, params))
    seen = []
    for step in range(net.setting.steps + 1):
        if step in net.looks:
            # Copied, since the next step takes the buffers.
            leaves = [np.array(leaf) for leaf in jax.tree.leaves(state.params)]
            seen.append(
                Look(
                    weights=np.concatenate([a.reshape(net.seeds, -1) for a in leaves], 1),
                    predictions=np.array(predictor(net.workload)(state.params)),
                    loss=np.array(run.test(state.params)[0], np.float64),
                )
            )
        if step < net.setting.steps:
            state, _ = run.stretch(state, net.numbers + change.batches, step)
    return seen


@functools.cache
def predictor(workload: Workload) -> Callable[[Any], jax.Array]:
    """parameters -> the predicted label of every held-out image, mapped over seeds."""
    images, _ = workload.test
    assert workload.accuracy is not None
    accuracy = program.emulate(workload.accuracy, "fp32")

    def predictions(params: Any) -> jax.Array:
        # Of all labels, the one that is called right.
        right = lambda image, label: accuracy(params, (image[None], label[None]))  # noqa: E731
        each = jax.vmap(jax.vmap(right, (None, 0)), (0, None))
        return each(jnp.asarray(images), jnp.arange(10)).argmax(1)

    return jax.jit(jax.vmap(predictions))


@functools.cache
def baseline(net: Net) -> list[Look]:
    """The looks along FP32's own training."""
    return trained(net, BASELINE)


def compared(net: Net, change: Change) -> dict[str, Any]:
    """How far a change parts from FP32; each measure is [looks][seeds].

    "distance": of weights, |w - w'| / |w|. "churn": predictions that differ, counted. "loss":
    difference of the test loss, changed minus FP32.
    """
    pairs = list(zip(baseline(net), trained(net, change), strict=True))
    return {
        "distance": [_short(distances(a.weights, b.weights)) for a, b in pairs],
        "churn": [(a.predictions != b.predictions).sum(1).tolist() for a, b in pairs],
        "loss": [_short(b.loss - a.loss) for a, b in pairs],
    }


def distances(weights: np.ndarray, others: np.ndarray) -> np.ndarray:
    """|w - w'| / |w| of each row, in float64."""
    w, v = np.float64(weights), np.float64(others)
    return np.linalg.norm(w - v, axis=1) / np.linalg.norm(w, axis=1)


def _short(values: np.ndarray) -> list[float]:
    """Four significant digits of each; only zero is 0."""
    return [float(f"{v:.3e}") for v in values]


def described(net: Net) -> dict[str, Any]:
    """What a net was, and where FP32's training ends."""
    _, labels = net.workload.test
    last = baseline(net)[-1]
    return {
        "title": net.setting.title,
        "looks": list(net.looks),
        "seeds": list(range(net.seeds)),
        "margin": net.setting.margin,
        "held_out": len(labels),
        "weights": last.weights.shape[1],
        "test_loss": last.loss.tolist(),
        "wrong": (last.predictions != labels).sum(1).tolist(),
    }


def parts(small: bool) -> dict[str, Callable[[], Any]]:
    """Name -> what computes it: one net under one change each."""
    todo: dict[str, Callable[[], Any]] = {}
    for name, net in nets(small).items():
        todo[name] = functools.partial(described, net)
        for change in net.changes:
            todo[part(name, change)] = functools.partial(compared, net, change)
    return todo


def part(net: str, change: Change) -> str:
    """The name of a part."""
    return f"{net}: {change.name}"


# --- what the record says


def names(parts: Mapping[str, Any]) -> list[str]:
    """The nets on which all changes were tried."""
    return [name for name in (MLP, CNN) if name in parts]


def tried(parts: Mapping[str, Any], net: str, changes: Sequence[Change]) -> list[Change]:
    """Those of the changes that were tried on the net; a miniature leaves some out."""
    return [change for change in changes if part(net, change) in parts]


def measured(parts: Mapping[str, Any], net: str, change: Change, measure: str) -> np.ndarray:
    """[looks, seeds]; "churn" as a share, "loss" as a magnitude."""
    values = np.float64(parts[part(net, change)][measure])
    if measure == "churn":
        return values / parts[net]["held_out"]
    return np.abs(values)


def controls_hold(parts: Mapping[str, Any]) -> bool:
    """Whether nothing changed where nothing may change, and another seed is another net."""
    nothing = all(
        not measured(parts, net, change, measure).any()
        for net in names(parts)
        for change in NOTHING
        for measure in ("distance", "churn", "loss")
    )
    return nothing and all(
        (measured(parts, net, SEED, "distance") > 0.5).all() for net in names(parts)
    )


def exponent(steps: Sequence[int], distance: np.ndarray) -> float:
    """p of the growth distance ~ step^p over the first steps, of the median seed.

    Independent kicks add up to p = 1/2, the same kick at every step to p = 1.
    """
    steps = list(steps)
    last = max(s for s in steps if s <= EARLY)
    first, then = (np.median(distance[steps.index(s)]) for s in (FIRST, last))
    if not first > 0:
        return math.nan
    return float(np.log(then / first) / np.log(last / FIRST))


def rate(parts: Mapping[str, Any], net: str, change: Change) -> float:
    """`exponent` of a change."""
    return exponent(parts[net]["looks"], measured(parts, net, change, "distance"))


def growth(parts: Mapping[str, Any], net: str, change: Change = ULP) -> float:
    """By what factor the distance at the start grows over the training, for the median seed."""
    distance = measured(parts, net, change, "distance")
    return float(np.median(distance[-1] / distance[0]))


def level(parts: Mapping[str, Any], net: str, change: Change) -> float:
    """The distance of the median seed after the training."""
    return float(np.median(measured(parts, net, change, "distance")[-1]))


def spread(values: Sequence[float]) -> float:
    """The largest over the smallest, infinite if one of them is not positive."""
    return max(values) / min(values) if min(values) > 0 else math.inf


def is_chaotic(parts: Mapping[str, Any], net: str) -> bool:
    """The rule: one ulp grows by more than 10^3, and all perturbations at one rate."""
    rates = [rate(parts, net, change) for change in tried(parts, net, ROUNDING)]
    return growth(parts, net) > GROWTH and spread(rates) <= SAME_RATE


def is_one_level(parts: Mapping[str, Any], net: str) -> bool:
    """Whether all perturbations end at the same distance."""
    return (
        spread([level(parts, net, change) for change in tried(parts, net, ROUNDING)]) <= SAME_LEVEL
    )


def is_below_seed(parts: Mapping[str, Any], net: str) -> bool:
    """Whether all perturbations of all seeds end nearer than any other seed does."""
    ends = [measured(parts, net, change, "distance")[-1] for change in tried(parts, net, ROUNDING)]
    return max(map(np.max, ends)) < np.min(measured(parts, net, SEED, "distance")[-1])


def ends(parts: Mapping[str, Any], net: str, change: Change, measure: str) -> np.ndarray:
    """[seeds] churn or |loss difference| after the training."""
    return measured(parts, net, change, measure)[-1]


def excess(parts: Mapping[str, Any], net: str, change: Change, measure: str) -> stats.Verdict:
    """The measure of a change minus that of the reordered batch, seed by seed."""
    margin = NEGLIGIBLE * ends(parts, net, SEED, measure).mean()
    changed, reordered = (ends(parts, net, of, measure).tolist() for of in (change, REORDERED))
    return stats.judge(stats.paired_differences(changed, reordered), margin)


def against_seed(parts: Mapping[str, Any], net: str, change: Change, measure: str) -> stats.Verdict:
    """The measure of a change, judged by a fifth of another seed's."""
    margin = FAR_BELOW * ends(parts, net, SEED, measure).mean()
    return stats.judge(ends(parts, net, change, measure), margin)


def noise(parts: Mapping[str, Any], net: str, change: Change) -> str:
    """Whether the change is "inside" the noise of a reordered batch, "above" it or "undecided"."""
    found = [excess(parts, net, change, measure) for measure in ("churn", "loss")]
    if any(v.low > 0 for v in found):
        return "above"
    return "inside" if all(v.high < v.margin for v in found) else "undecided"


def is_far_below(parts: Mapping[str, Any], net: str, change: Change) -> bool:
    """Whether churn and |loss difference| stay below a fifth of another seed's, at 95 %."""
    found = [against_seed(parts, net, change, measure) for measure in ("churn", "loss")]
    return all(v.high < v.margin for v in found)


def loss_verdict(parts: Mapping[str, Any], net: str, change: Change) -> stats.Verdict:
    """The verdict on the test loss, by the margin of the study `converges`."""
    return stats.judge(parts[part(net, change)]["loss"][-1], parts[net]["margin"])


def leaps(distance: np.ndarray) -> np.ndarray:
    """[seeds] the largest growth from one look to the next, after the first step.

    >>> leaps(np.array([[1.0, 1.0], [1.0, 9.0], [50.0, 10.0], [100.0, 20.0]])).tolist()
    [50.0, 2.0]
    """
    return (distance[2:] / distance[1:-1]).max(0)


def leaped(parts: Mapping[str, Any], net: str, change: Change) -> np.ndarray:
    """[seeds] whether the distance leaps at some time."""
    return leaps(measured(parts, net, change, "distance")) > LEAP


# --- tables


def tables(parts: Mapping[str, Any]) -> dict[str, str]:
    """The generated parts of README.md."""
    made = {
        "answers": _answers(parts),
        "distances": _distances(parts),
        "noise": _noise(parts),
        "leaps": _leaps(parts),
    }
    rows = [(f.claim, f.verdict, f.sentence) for f in findings(parts)]
    return made | {"findings": report.markdown_table(["claim", "verdict", "evidence"], rows)}


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def _over(parts: Mapping[str, Any], net: str, *changes: Change) -> str:
    """The ratio of two levels."""
    if len(tried(parts, net, changes)) < len(changes):
        return "–"
    first, second = (level(parts, net, change) for change in changes)
    return f"{first / second:.2g}"


def _answers(parts: Mapping[str, Any]) -> str:
    rows = []
    for net in names(parts):
        rates = [rate(parts, net, change) for change in tried(parts, net, ROUNDING)]
        levels = [level(parts, net, change) for change in tried(parts, net, ROUNDING)]
        rows += [
            (net, "one ulp grows by more than 10³", f"{growth(parts, net):.3g}",
             _yes(growth(parts, net) > GROWTH)),
            ("", "all perturbations grow at one rate (factor 2)",
             f"p from {min(rates):.2f} to {max(rates):.2f}", _yes(spread(rates) <= SAME_RATE)),
            ("", "both: chaotic", "", _yes(is_chaotic(parts, net))),
            ("", "for comparison: TF32 weights at start grow by",
             f"{growth(parts, net, ONCE):.3g}", ""),
            ("", "all end at one level (factor 3)", f"{min(levels):.1e} to {max(levels):.1e}",
             _yes(is_one_level(parts, net))),
            ("", "for comparison: TF32 over one ulp; 2^13 if distances went with the spacing",
             _over(parts, net, TF32, ULP), ""),
            ("", "for comparison: BF16 over TF32; 2^3 if distances went with the spacing",
             _over(parts, net, BF16, TF32), ""),
            ("", "all end nearer than another seed", f"seed {level(parts, net, SEED):.2f}",
             _yes(is_below_seed(parts, net))),
            ("", "TF32 inside the noise of a reordered batch", "", noise(parts, net, TF32)),
            ("", "TF32 far below another seed", "", _yes(is_far_below(parts, net, TF32))),
        ]  # fmt: skip
    head = ["net", "is it so that", "measured:", "answer"]
    control = "held" if controls_hold(parts) else "**did not hold**"
    return f"The controls {control}.\n\n{report.markdown_table(head, rows)}"


def _distances(parts: Mapping[str, Any]) -> str:
    rows = []
    for net in names(parts):
        looks = parts[net]["looks"]
        for change in tried(parts, net, SHOWN):
            distance = measured(parts, net, change, "distance")
            starts, first = (np.median(distance[looks.index(s)]) for s in (0, FIRST))
            low, high = distance[-1].min(), distance[-1].max()
            p = rate(parts, net, change)
            rows.append(
                (
                    net,
                    change.name,
                    f"{starts:.1e}" if starts else "0",
                    f"{first:.1e}",
                    f"{p:.2f}",
                    f"{level(parts, net, change):.1e} ({low:.1e} … {high:.1e})",
                    f"{ends(parts, net, change, 'churn').mean():.2%}",
                    f"{ends(parts, net, change, 'loss').mean():.1e}",
                    str(loss_verdict(parts, net, change)),
                )
            )
    head = ["net", "change", "distance at the start:", "after one step:", "p:"]
    head += ["at the end, median (range):", "churn:", "loss difference:", "test loss"]
    lines = []
    for net in names(parts):
        of = parts[net]
        wrong = sum(of["wrong"]) / len(of["wrong"]) / of["held_out"]
        lines.append(
            f"{net}: {of['weights']} weights, {len(of['seeds'])} seeds, FP32's test loss "
            f"{np.mean(of['test_loss']):.4f}, {wrong:.2%} wrong, δ = {of['margin']:.3g}."
        )
    return f"{' '.join(lines)}\n\n{report.markdown_table(head, rows)}"


def _noise(parts: Mapping[str, Any]) -> str:
    def interval(v: stats.Verdict, scale: float, unit: str) -> str:
        return f"{v.mean * scale:+.2f} ({v.low * scale:+.2f} … {v.high * scale:+.2f}){unit}"

    rows = []
    for net in names(parts):
        of_seed = [ends(parts, net, SEED, measure).mean() for measure in ("churn", "loss")]
        for change in tried(parts, net, (ULP, ONCE, TF32, TRUNCATED, BF16, BATCHES)):
            shares = [
                f"{ends(parts, net, change, m).mean() / s:.2g}"
                for m, s in zip(("churn", "loss"), of_seed, strict=True)
            ]
            rows.append(
                (
                    net,
                    change.name,
                    interval(excess(parts, net, change, "churn"), 1e2, " %"),
                    interval(excess(parts, net, change, "loss"), 1e4, ""),
                    noise(parts, net, change),
                    *shares,
                    _yes(is_far_below(parts, net, change)),
                )
            )
    head = ["net", "change", "churn, minus reordered's (90 %):"]
    head += ["10⁴ loss difference, minus reordered's (90 %):", "the noise"]
    head += ["churn / seed's:", "loss difference / seed's:", "far below a seed"]
    return report.markdown_table(head, rows)


def _leaps(parts: Mapping[str, Any]) -> str:
    rows = []
    for net, change in _looked_at(parts):
        distance = measured(parts, net, change, "distance")
        has = leaped(parts, net, change)
        last = [
            f"{np.median(distance[-1][which]):.1e}" if which.any() else "–" for which in (~has, has)
        ]
        largest = leaps(distance)
        rows.append(
            (
                net,
                change.name,
                f"{has.sum()} of {len(has)}",
                f"{np.median(largest):.3g} ({largest.min():.3g} … {largest.max():.3g})",
                *last,
            )
        )
    head = ["net", "change", "seeds that leap:", "largest growth between looks:"]
    head += ["distance at the end without a leap:", "with one:"]
    table = report.markdown_table(head, rows)
    if SMOOTH not in parts:
        return table
    relu, gelu = (int(leaped(parts, net, ULP).sum()) for net in (CNN, SMOOTH))
    n = len(parts[CNN]["seeds"])
    p = stats.fisher_exact(relu, gelu, of=n)
    return f"{table}\n\nReLU against GELU, Fisher's exact test: p = {p:.2g}."


def _looked_at(parts: Mapping[str, Any]) -> list[tuple[str, Change]]:
    pairs = [(net, change) for net in names(parts) for change in (ULP, REORDERED)]
    return [*pairs, (SMOOTH, ULP)] if SMOOTH in parts else pairs


# --- figures


def figures(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Distances of weights; churn and loss; and one ulp seed by seed."""
    made = {
        "distance.svg": report.plot(
            [_distance_panel(parts, net) for net in names(parts)],
            columns=len(names(parts)),
            height=420,
            title="How far trainings part from FP32's",
        ),
        "predictions.svg": report.plot(
            [
                _mean_panel(parts, net, measure)
                for measure in ("churn", "loss")
                for net in names(parts)
            ],
            columns=len(names(parts)),
            title="What becomes of the predictions",
        ),
    }
    nets = [*names(parts), *([SMOOTH] if SMOOTH in parts else [])]
    return made | {
        "leaps.svg": report.plot(
            [_seeds_panel(parts, net) for net in nets],
            columns=len(nets),
            title="One ulp, seed by seed",
        )
    }


def _axis(parts: Mapping[str, Any], net: str) -> dict[str, Any]:
    last = parts[net]["looks"][-1]
    ticks = {s: f"{s}" for s in (1, 4, 16, 64, 256, 600) if s <= last}
    return {"x": "step", "x_scale": "log10", "ticks": ticks}


def _distance_panel(parts: Mapping[str, Any], net: str) -> report.Panel:
    curves = []
    for change in tried(parts, net, SHOWN):
        distance = measured(parts, net, change, "distance")
        # Bands of all changes would hide each other.
        band = change in (REORDERED, TF32)
        curves.append(
            report.Curve(
                name=change.name,
                x=parts[net]["looks"],
                y=np.median(distance, 1).tolist(),
                low=distance.min(1).tolist() if band else None,
                high=distance.max(1).tolist() if band else None,
            )
        )
    return report.Panel(
        title=f"{net}: weights, median seed (bands: range)",
        y="relative distance",
        y_scale="log10",
        curves=curves,
        **_axis(parts, net),
    )


def _mean_panel(parts: Mapping[str, Any], net: str, measure: str) -> report.Panel:
    title = {"churn": "predictions that differ", "loss": "|test loss difference|"}[measure]
    return report.Panel(
        title=f"{net}: {title}, mean of seeds",
        y={"churn": "share", "loss": "|Δ loss|"}[measure],
        y_scale="log10",
        curves=[
            report.Curve(
                name=change.name,
                x=parts[net]["looks"],
                y=measured(parts, net, change, measure).mean(1).tolist(),
            )
            for change in tried(parts, net, SHOWN)
        ],
        **_axis(parts, net),
    )


def _seeds_panel(parts: Mapping[str, Any], net: str) -> report.Panel:
    distance = measured(parts, net, ULP, "distance")
    return report.Panel(
        title=net,
        y="relative distance",
        y_scale="log10",
        limits=(1e-10, 1e-1),
        curves=[
            report.Curve(name="a seed", x=parts[net]["looks"], y=of_seed.tolist(), kind="plain")
            for of_seed in distance.T
        ],
        **_axis(parts, net),
    )


# --- findings


def findings(parts: Mapping[str, Any]) -> list[Finding]:
    """The verdicts by the rule of README.md."""
    if not controls_hold(parts):
        sentence = "A control did not hold, so nothing is concluded."
        return [
            Finding(claim=claim, verdict="undecided", sentence=sentence)
            for claim in ("A1", "A2", "B14", "SD2021")
        ]
    return [_a1(parts), _a2(parts), _b14(parts), _sd2021(parts)]


def _percents(parts: Mapping[str, Any], change: Change, measure: str) -> str:
    """The measure as a percentage of another seed's, net by net."""
    return " and ".join(
        f"{ends(parts, net, change, measure).mean() / ends(parts, net, SEED, measure).mean():.1%}"
        f" ({net})"
        for net in names(parts)
    )


def _losses(parts: Mapping[str, Any], change: Change) -> str:
    """The verdicts on the test loss, net by net."""
    return " and ".join(f"{loss_verdict(parts, n, change)} ({n})" for n in names(parts))


def _is_same(found: stats.Verdict) -> bool:
    return found.verdict in ("equivalent", "identical")


def _a1(parts: Mapping[str, Any]) -> Finding:
    losses = [loss_verdict(parts, net, TF32) for net in names(parts)]
    if any(v.verdict == "different" for v in losses):
        verdict = "refuted in miniature"
    elif all(map(_is_same, losses)) and all(is_far_below(parts, n, TF32) for n in names(parts)):
        verdict = "confirmed"
    else:
        verdict = "undecided"
    return Finding(
        claim="A1",
        verdict=verdict,
        sentence=f"Emulated: the test loss of TF32 is {_losses(parts, TF32)}; predictions that "
        f"change are {_percents(parts, TF32, 'churn')} of those that another seed changes, the "
        f"test loss differs by {_percents(parts, TF32, 'loss')} of what another seed's does.",
    )


def _a2(parts: Mapping[str, Any]) -> Finding:
    losses = [loss_verdict(parts, net, TF32) for net in names(parts)]
    found = [noise(parts, net, TF32) for net in names(parts)]
    if any(v.verdict == "different" for v in losses):
        verdict = "refuted in miniature"
    elif "undecided" in found or not all(map(_is_same, losses)):
        verdict = "undecided"
    else:
        verdict = "confirmed" if set(found) == {"inside"} else "corrected"
    said = "; ".join(
        f"{net}: {where} it, weights {level(parts, net, TF32):.1e} apart and not "
        f"{level(parts, net, REORDERED):.1e}, while TF32 weights at start alone give "
        f"{level(parts, net, ONCE):.1e}"
        for net, where in zip(names(parts), found, strict=True)
    )
    return Finding(
        claim="A2",
        verdict=verdict,
        sentence=f"Emulated: its test loss is {_losses(parts, TF32)}. Against the noise that a "
        f"reordered batch makes in FP32, {said}.",
    )


def _b14(parts: Mapping[str, Any]) -> Finding:
    moved = [level(parts, net, REORDERED) for net in names(parts)]
    verdict = "corrected" if all(d > 0 for d in moved) else "confirmed"
    said = " and ".join(f"{d:.1e} ({net})" for net, d in zip(names(parts), moved, strict=True))
    return Finding(
        claim="B14",
        verdict=verdict,
        sentence="Emulated: FP32 does not remove rounding errors, it makes them small. Summing the "
        f"same batches in another order moves the weights by {said} of their length; the test loss "
        f"stays {_losses(parts, REORDERED)}.",
    )


def _sd2021(parts: Mapping[str, Any]) -> Finding:
    shares = []
    for net in names(parts):
        for measure in ("churn", "loss"):
            seed = ends(parts, net, SEED, measure).mean()
            found = stats.judge(ends(parts, net, ULP, measure), seed / 2)
            shares.append((found.low > found.margin, found.high < found.margin))
    if all(similar for similar, _ in shares):
        verdict = "confirmed"
    elif all(smaller for _, smaller in shares):
        verdict = "refuted in miniature"
    else:
        verdict = "undecided"
    grown = " and ".join(f"{growth(parts, net):.2g} ({net})" for net in names(parts))
    return Finding(
        claim="SD2021",
        verdict=verdict,
        sentence=f"Emulated, {parts[MLP]['looks'][-1]} steps: one bit of one initial weight "
        f"changes {_percents(parts, ULP, 'churn')} of the predictions that another seed changes, "
        f"and the test loss by {_percents(parts, ULP, 'loss')} of what another seed does; the "
        f"distance of the median seed grows by a factor of {grown}.",
    )


EXPERIMENT = Experiment(
    file=__file__,
    question="How fast do trainings part that differ by rounding alone, and how far?",
    parts=parts,
    tables=tables,
    figures=figures,
    findings=findings,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
