"""Trains one net with 16-bit weights stored in four ways, and counts the updates that are lost.

    python experiments/update_path/run.py [--small] [--rebuild]

Writes results/results.json, the figures beside it and the tables of README.md. All of it is
emulated and runs anywhere, in about ten minutes of one core.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import stats as scipy_stats

from jprec import formats, optim, records, report, rounding, stats, workloads
from jprec.optim import LostUpdates, ranges
from jprec.report import Curve, Mark, Panel
from jprec.study import PILOT_SEEDS, Arm, Experiment, Finding, Setting, Workload, training

#: Learning rates that are judged; the last is the largest of `LADDER` at which FP32 is stable.
RATES = (2e-4, 1e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.3)

#: Learning rates among which the edge of stability is sought. As many as are judged, so that both
#: are runs of one compiled program.
LADDER = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)

#: Seeds that seek the edge; neither judged nor pilots.
EDGE_SEEDS = tuple(range(20_000, 20_008))

SEEDS = tuple(range(8))

#: Ways to store weights. "mixed" has FP32 weights, which each step casts.
STORES = ("mixed", "master", "nearest", "stochastic", "kahan")

#: Stores of which equivalence is claimed.
CLAIMED = ("master", "stochastic", "kahan")

#: Format -> its static loss scale: one that BF16 does not need, and keeps FP16 in its range.
SCALES = {"fp16": 2.0**10, "bf16": 1.0}

#: Early steps at which updates are counted.
EARLY = tuple(range(10, 101, 10))

#: The rule of prediction: more updates lost than this, and the training is damaged.
TOO_MANY = 0.5

#: Rates whose updates are drawn.
DRAWN = (0, 2, 5)

BASELINE, CHAOS = "fp32", "fp32_one_ulp"

#: The relative loss of accuracy in Micikevicius et al. (2018, section 3.1), FP16 weights updated.
PUBLISHED_LOSS = 0.8


#: Updates are clipped here, where none is, so that the product with the learning rate and the sum
#: with the weight stay two operations. XLA on a CPU contracts them to one in some programs and not
#: in others, and FP32 masters would differ by that from FP32 weights.
LARGEST = float(np.finfo(np.float32).max)


# --- what is trained


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Size:
    """How much is run.

    Attributes:
      setting: Workload, optimiser, steps and arms; updates are counted at its points.
      rates: Learning rates that are judged.
      ladder: Learning rates among which the edge is sought.
      early: Steps at which updates are counted; they are at the end, too.
    """

    setting: Setting
    rates: Sequence[float]
    ladder: Sequence[float]
    early: Sequence[int]

    @functools.cached_property
    def workload(self) -> Workload:
        """What is trained."""
        return self.setting.load()


def arms(only: Sequence[str] = ()) -> tuple[Arm, ...]:
    """FP32, FP32 with one weight moved by an ulp, and each store in each format."""
    found = [
        # A static scale of 1 makes all of FP32 one program, with the guard that the others have.
        Arm(name=BASELINE, loss_scale=1.0, role="baseline"),
        Arm(name=CHAOS, loss_scale=1.0, one_ulp=True, role="report"),
    ]
    for fmt, store in itertools.product(SCALES, STORES):
        mixed = store == "mixed"
        policy = f"{'mixed' if mixed else 'pure'}_{fmt}"
        found.append(
            Arm(
                name=f"{fmt}_{store}",
                policy=policy,
                store=None if mixed else store,
                loss_scale=SCALES[fmt],
                role="report",
            )
        )
    return tuple(arm for arm in found if not only or arm.name in only)


@functools.cache
def size(small: bool) -> Size:
    """The experiment; or a miniature: one layer, one batch, 20 steps, few stores."""
    steps, points = (20, 2) if small else (1000, 100)
    few = (BASELINE, CHAOS, "fp16_mixed", "fp16_master", "fp16_nearest")
    # The learning rate is a number in the optimiser's state: one program trains all rates.
    sgd = optax.inject_hyperparams(optax.sgd, static_args=("momentum",))
    setting = Setting(
        name="update_path",
        workload=shallow if small else workloads.digits_mlp,
        optimizer=optax.chain(sgd(learning_rate=0.0, momentum=0.9), optax.clip(LARGEST)),
        steps=steps,
        points=points,
        arms=arms(few if small else ()),
    )
    return Size(
        setting=setting,
        rates=(2e-4, 5e-2) if small else RATES,
        ladder=(0.1, 1e4) if small else LADDER,
        early=(10, 20) if small else EARLY,
    )


def shallow() -> Workload:
    """The digits by one layer, always the same batch: compiled and trained in seconds."""
    deep = workloads.digits_mlp()
    images, labels = deep.test

    def init(key: jax.Array) -> Any:
        kernel = jax.random.uniform(key, (64, 10), minval=-0.2, maxval=0.2)
        return {"kernel": kernel, "bias": jnp.zeros(10)}

    def logits(params: Any, images: jax.Array) -> jax.Array:
        return (images @ params["kernel"] + params["bias"]).astype(jnp.float32)

    def loss(params: Any, batch: Any) -> jax.Array:
        images, labels = batch
        return optax.softmax_cross_entropy_with_integer_labels(
            logits(params, images), labels
        ).mean()

    def accuracy(params: Any, batch: Any) -> jax.Array:
        images, labels = batch
        return (logits(params, images).argmax(-1) == labels).mean(dtype=jnp.float32)

    def batches(key: jax.Array) -> Any:
        del key
        return jnp.asarray(images[:32]), jnp.asarray(labels[:32])

    return dataclasses.replace(
        deep, init=init, loss=loss, accuracy=accuracy, batches=batches, name="shallow"
    )


def trained(
    size: Size, name: str, seeds: Sequence[int], rates: Sequence[float], *, counted: bool = True
) -> dict[str, Any]:
    """What an arm leaves at each rate and seed: lists [rate][seed], and the counts of updates."""
    arm = next(arm for arm in size.setting.arms if isinstance(arm, Arm) and arm.name == name)
    run = training.programs(size.setting, arm, size.workload)
    runs = training.seeds_of(np.repeat(seeds, len(rates)))
    state = run.start(runs)
    start, _ = run.test(state.params)
    if arm.policy.startswith("mixed"):
        # All 16-bit arms start with the same weights, and masters are made from rounded ones.
        rounded = as_stored(state.params, arm.policy.removeprefix("mixed_"))
        state = state._replace(params=jax.tree.map(lambda p: p.astype(jnp.float32), rounded))
    each = jnp.tile(jnp.asarray(rates, jnp.float32), len(seeds))
    state = state._replace(opt_state=optax.tree.set(state.opt_state, learning_rate=each))
    counter = {fmt: UpdateCounts() for fmt in counted_in(arm, size)} if counted else {}
    skipped = np.zeros(len(runs), int)
    for point in range(size.setting.points):
        state, trace = run.stretch(state, runs, point * run.steps_a_stretch)
        skipped += np.asarray(trace.skipped).sum(1)
        done = (point + 1) * run.steps_a_stretch
        if done in size.early or done == size.setting.steps:
            for fmt, counts in counter.items():
                looked = jax.tree.map(np.asarray, look(fmt)(state.before, state.update))
                counts.add(looked, early=done in size.early, last=done == size.setting.steps)

    def by_rate(values: Any) -> list[list[float]]:
        return np.asarray(values, np.float64).reshape(len(seeds), len(rates)).T.tolist()

    loss, accuracy = run.test(state.params)
    images = len(size.workload.test[1])
    found = {
        "start": float(np.mean(start)),
        "loss": by_rate(loss),
        "wrong": [round(sum(images * (1 - share) for share in row)) for row in by_rate(accuracy)],
        "skipped": [int(sum(row)) for row in by_rate(skipped)],
    }
    fmt = arm.policy.rpartition("_")[2]
    if fmt in SCALES:
        found["weights"] = digest(as_stored(state.params, fmt))
    full = arm.store in (None, "nearest")
    found["updates"] = {fmt: counts.record(by_rate, full=full) for fmt, counts in counter.items()}
    return found


def counted_in(arm: Arm, size: Size) -> list[str]:
    """The formats in whose ulps the updates of an arm are counted: its own; for FP32 each one."""
    arms = [arm] if arm.name != BASELINE else [a for a in size.setting.arms if isinstance(a, Arm)]
    return [fmt for fmt in SCALES if any(a.policy == f"pure_{fmt}" for a in arms)]


def as_stored(params: Any, fmt: str) -> Any:
    """The parameters rounded to a 16-bit format; what lies in it stays as it is."""
    dtype = {"fp16": jnp.float16, "bf16": jnp.bfloat16}[fmt]
    return jax.tree.map(lambda p: rounding.round_to(p, fmt).astype(dtype), params)


def digest(params: Any) -> str:
    """SHA-256 of the parameters of all runs."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()


# --- the updates of a step


class Look(NamedTuple):
    """The updates of one step of each run, all parameters together.

    counts: [n, 132] int32, as in `LostUpdates`.
    ratio: [n, 2, 2] int32, nonzero updates: whether |weight| / |update| is 2**p or more, by
      whether the update is lost; p digits has the format.
    lost_size: [n] float32, the sum of |update| over those that are lost. size: over all.
    """

    counts: Any
    ratio: Any
    lost_size: Any
    size: Any


@functools.cache
def look(fmt: str) -> Callable[[Any, Any], Look]:
    """(parameters before a step, the update wanted) -> Look, if `fmt` stores to nearest."""
    digits = formats.get(fmt).precision

    def of_leaf(parameter: jax.Array, update: jax.Array) -> Look:
        (lost,) = optim.lost_updates({"": parameter}, {"": update}).values()
        wide = parameter.astype(jnp.float32)
        moved = optim.apply_updates(parameter, update).astype(jnp.float32) != wide
        far = jnp.abs(wide) >= jnp.abs(update) * 2.0**digits
        nonzero = update != 0
        table = [
            [jnp.count_nonzero(nonzero & (far == high) & (moved == kept)) for kept in (False, True)]
            for high in (False, True)
        ]
        magnitude = jnp.abs(update)
        lost_size = jnp.where(moved, 0.0, magnitude).sum()
        return Look(lost.counts, jnp.asarray(table), lost_size, magnitude.sum())

    def of_run(before: Any, update: Any) -> Look:
        leaves = zip(jax.tree.leaves(as_stored(before, fmt)), jax.tree.leaves(update), strict=True)
        return jax.tree.map(lambda *parts: sum(parts), *(of_leaf(p, u) for p, u in leaves))

    return jax.jit(jax.vmap(of_run))


class UpdateCounts:
    """Sums of looks: of the early steps, and of the last."""

    def __init__(self) -> None:
        """Nothing counted yet."""
        self.early: Look | None = None
        self.last: Look | None = None

    def add(self, looked: Look, *, early: bool, last: bool) -> None:
        """Counts one step."""
        if early:
            self.early = looked if self.early is None else Look(*map(np.add, self.early, looked))
        if last:
            self.last = looked

    def record(self, by_rate: Callable[[Any], list[list[float]]], *, full: bool) -> dict[str, Any]:
        """Shares and medians [rate][seed]; if `full`, histograms and ratios of the early steps."""
        assert self.early is not None
        assert self.last is not None
        counts = LostUpdates(self.early.counts)
        with np.errstate(invalid="ignore"):  # a run that moves no more, or is not finite
            lost_size = self.early.lost_size / self.early.size
        found = {
            "early_lost": by_rate(np.round(counts.lost, 5)),
            "early_median": by_rate(counts.median),
            "early_lost_size": by_rate(np.round(lost_size, 5)),
            "last_lost": by_rate(np.round(LostUpdates(self.last.counts).lost, 5)),
        }
        if not full:
            return found
        rates = len(found["early_lost"])
        pooled = counts.histogram.reshape(-1, rates, counts.histogram.shape[-1]).sum(0)
        ratio = self.early.ratio.reshape(-1, rates, 2, 2).sum((0, 1))
        return found | {"histogram": [trimmed(row) for row in pooled], "ratio": ratio.tolist()}


def trimmed(histogram: np.ndarray) -> dict[str, Any]:
    """The bins from the first to the last that is not empty, and log2 of the first."""
    filled = np.flatnonzero(histogram)
    if not filled.size:
        return {"first": 0, "counts": []}
    inside = histogram[filled[0] : filled[-1] + 1]
    return {"first": int(filled[0]) + ranges.FIRST_RATIO, "counts": inside.tolist()}


def least_ratio_lost(weight: float, fmt: str) -> float:
    """|weight| / |update| above which an update away from zero is lost, a tie aside.

    Half an ulp is 2**(e - p), for a weight m 2**e, m in [1, 2), and p digits: the ratio is 2**p m.
    Below the normal range the ulp stays as it is, and the ratio falls with the weight. Toward zero
    it is the same, except from a power of two, below which the spacing is half as wide and the
    ratio twice as large.

    >>> [least_ratio_lost(w, "fp16") for w in (1.0, 1.5, 2.0**-15)], least_ratio_lost(1.5, "bf16")
    ([2048.0, 3072.0, 1024.0], 384.0)
    """
    held = formats.get(fmt)
    exponent = max(math.frexp(abs(weight))[1] - 1, held.min_exponent)
    return abs(weight) / 2.0 ** (exponent - held.precision)


def parts(small: bool) -> Mapping[str, Callable[[], Any]]:
    """The edge, the pilots, and the judged arms."""
    chosen = size(small)

    def edge() -> Any:
        found = trained(chosen, BASELINE, EDGE_SEEDS, chosen.ladder, counted=False)
        return {"rates": list(chosen.ladder), "loss": found["loss"]}

    def pilots() -> Any:
        # As many seeds at a time as are judged: runs of the same compiled program.
        groups = np.asarray(PILOT_SEEDS).reshape(-1, len(SEEDS)).tolist()
        found = [
            trained(chosen, BASELINE, seeds, chosen.rates, counted=False)["loss"]
            for seeds in groups
        ]
        losses = np.concatenate(found, axis=1)
        for row in losses:
            stats.margin_from_pilot(row)  # an error now, and not after all has run
        return {"loss": losses.tolist()}

    def setting() -> Any:
        return {
            "rates": list(chosen.rates),
            "steps": chosen.setting.steps,
            "early": list(chosen.early),
            "images": len(chosen.workload.test[1]),
            "guess": chosen.workload.guess,
        }

    judged = {
        arm.name: functools.partial(trained, chosen, arm.name, SEEDS, chosen.rates)
        for arm in chosen.setting.arms
        if isinstance(arm, Arm)
    }
    return {"setting": setting, "edge": edge, "pilot": pilots, **judged}


# --- what is made of it


class Outcome:
    """What the record says by the rules of README.md."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self.parts = parts
        self.rates: list[float] = parts["setting"]["rates"]
        self.places = range(len(self.rates))
        self.formats = [fmt for fmt in SCALES if f"{fmt}_nearest" in parts]
        self.margins = [
            stats.margin_from_pilot(records.as_floats(row)) for row in parts["pilot"]["loss"]
        ]

    def losses(self, name: str, at: int) -> list[float]:
        """Final test losses of an arm at a rate, seed by seed."""
        return records.as_floats(self.parts[name]["loss"][at])

    def error_rate(self, name: str, at: int) -> float:
        """The share of test images that an arm takes for another digit, over all seeds."""
        images = self.parts["setting"]["images"] * len(self.parts[name]["loss"][at])
        return float(self.parts[name]["wrong"][at] / images)

    def stores(self, fmt: str) -> list[str]:
        """The stores that were tried in a format."""
        return [store for store in STORES if f"{fmt}_{store}" in self.parts]

    @functools.cached_property
    def verdicts(self) -> dict[tuple[str, int], stats.Judgement]:
        """(arm, rate) -> the verdict against FP32; claims are those at rates that decide."""
        arms = [(f"{fmt}_{store}", store) for fmt in self.formats for store in self.stores(fmt)]
        compared = [(name, at, store in CLAIMED) for name, store in arms for at in self.places]
        claims = [self._compared(*one) for one in compared]
        names = [(name, at) for name, at, _ in compared]
        return dict(zip(names, stats.judge_all(claims), strict=True)) | self.chaos

    @functools.cached_property
    def chaos(self) -> dict[tuple[str, int], stats.Judgement]:
        """(arm, rate) -> the verdict on FP32 with one weight moved by an ulp."""
        compared = [self._compared(CHAOS, at, False) for at in self.places]
        found = zip(self.places, stats.judge_all(compared), strict=True)
        return {(CHAOS, at): judgement for at, judgement in found}

    @property
    def deciding(self) -> list[int]:
        """The rates at which an ulp makes no difference, so that a difference has another cause."""
        return [at for at in self.places if self.is_equivalent(self.chaos[CHAOS, at])]

    def _compared(self, name: str, at: int, claimed: bool) -> stats.Comparison:
        arm, base = self.losses(name, at), self.losses(BASELINE, at)
        guess = self.parts["setting"]["guess"]
        claim = claimed and at in self.deciding
        return stats.Comparison(
            name=f"{name}/{self.rates[at]}",
            differences=tuple(stats.paired_differences(arm, base)),
            margin=self.margins[at],
            expected="equivalent" if claim else None,
            claim=claim,
            diverged=stats.count_diverged(arm, guess),
            baseline_diverged=stats.count_diverged(base, guess),
        )

    @staticmethod
    def is_equivalent(judgement: stats.Judgement) -> bool:
        """Whether it ended where FP32 ended."""
        return judgement.verdict.verdict in ("identical", "equivalent")

    @staticmethod
    def is_worse(judgement: stats.Judgement) -> bool:
        """Whether it ended at a larger loss."""
        return str(judgement.verdict) == "different (worse)"

    def in_margins(self, name: str, at: int) -> float:
        """The mean difference from FP32 over δ; NaN if a loss is not finite."""
        return self.verdicts[name, at].verdict.mean / self.margins[at]

    def progress_lost(self, name: str, at: int) -> float:
        """The share of the loss that FP32 takes away, on average, and that an arm does not."""
        arm, base = (float(np.mean(self.losses(one, at))) for one in (name, BASELINE))
        return (arm - base) / (self.parts[BASELINE]["start"] - base)

    def worse(self, name: str) -> list[int]:
        """The rates at which an arm is worse than FP32."""
        return [at for at in self.places if self.is_worse(self.verdicts[name, at])]

    def ends_there(self, name: str) -> int:
        """At how many of the rates that decide an arm ended where FP32 ended."""
        return sum(self.is_equivalent(self.verdicts[name, at]) for at in self.deciding)

    def measure(self, name: str, measure: str, at: int, fmt: str = "") -> float:
        """The mean over seeds of a measure of an arm's updates, in the ulps of its format."""
        fmt = fmt or name.partition("_")[0]
        return float(np.mean(records.as_floats(self.parts[name]["updates"][fmt][measure][at])))

    def is_master_mixed(self, fmt: str) -> bool:
        """Whether 16-bit weights with masters are, bit for bit, FP32 weights cast at each step."""
        master, mixed = (self.parts[f"{fmt}_{store}"] for store in ("master", "mixed"))
        return bool(master["weights"] == mixed["weights"])

    @property
    def controls(self) -> dict[str, bool]:
        """What must be so, or nothing is shown -> whether it is."""
        found = {}
        if "bf16" in self.formats:
            name = "`bf16_nearest` is worse than FP32 at the lowest rate"
            found[name] = 0 in self.worse("bf16_nearest")
        for fmt in self.formats:
            if {"master", "mixed"} <= set(self.stores(fmt)):
                found[f"`{fmt}_master` ends with the weights of `{fmt}_mixed`, bit for bit"] = (
                    self.is_master_mixed(fmt)
                )
        return found

    @property
    def predicted(self) -> list[tuple[str, int, bool]]:
        """(format, rate, whether too many updates are lost early) for all nearest arms."""
        return [
            (fmt, at, self.measure(f"{fmt}_nearest", "early_lost", at) > TOO_MANY)
            for fmt in self.formats
            for at in self.places
        ]


def percent(share: float) -> str:
    """The share in percent."""
    return f"{100 * share:.3g} %"


def cell(outcome: Outcome, name: str, at: int) -> str:
    """The mean difference over δ and the verdict, in words of a table."""
    verdict = outcome.verdicts[name, at].verdict
    if verdict.verdict == "identical":
        return "identical"
    text = f"{outcome.in_margins(name, at):+.2f} {verdict}"
    return f"{text}, {verdict.diverged} diverged" if verdict.diverged else text


def tables(parts: Mapping[str, Any]) -> dict[str, str]:
    """The tables of README.md."""
    outcome = Outcome(parts)
    rows = {f"`{claim.claim}`": (claim.verdict, claim.sentence) for claim in findings(parts)}
    made = {
        "findings": report.markdown_table(
            ["claim", "verdict", "evidence"], [[name, *row] for name, row in rows.items()]
        ),
        "controls": report.markdown_table(
            ["control", "holds"],
            [[name, "yes" if held else "**no**"] for name, held in outcome.controls.items()],
        ),
        "edge": edge_table(parts["edge"], parts["setting"]["guess"]),
        "rates": rates_table(outcome),
        "stores": stores_table(outcome),
        "measures": measures_table(outcome),
        "prediction": prediction_table(outcome),
        "correlation": measures_table_of_all(outcome),
        "ratio": ratio_table(outcome),
    }
    for fmt in SCALES:
        stores = outcome.stores(fmt)
        lines = [
            [f"{rate:g}", *(cell(outcome, f"{fmt}_{store}", at) for store in stores)]
            for at, rate in enumerate(outcome.rates)
        ]
        made[fmt] = report.markdown_table(["learning rate:", *stores], lines)
    return made


def is_stable(losses: Sequence[float], guess: float) -> bool:
    """Whether every run ended below half of what guessing gives."""
    return all(loss < guess / 2 for loss in losses)


def edge_table(edge: Mapping[str, Any], guess: float) -> str:
    """Losses of FP32 along the ladder of rates."""
    rows = []
    for rate, row in zip(edge["rates"], edge["loss"], strict=True):
        losses = records.as_floats(row)
        stable = "stable" if is_stable(losses, guess) else "not stable"
        rows.append([f"{rate:g}", f"{min(losses):.3f}", f"{max(losses):.3f}", stable])
    return report.markdown_table(["learning rate:", "smallest loss:", "largest loss:", ""], rows)


def rates_table(outcome: Outcome) -> str:
    """What FP32 does at each rate, and what an ulp does to it."""
    rows = []
    for at, rate in enumerate(outcome.rates):
        rows.append(
            [
                f"{rate:g}",
                f"{np.mean(outcome.losses(BASELINE, at)):.4f}",
                percent(outcome.error_rate(BASELINE, at)),
                f"{outcome.margins[at]:.2g}",
                cell(outcome, CHAOS, at),
                "yes" if at in outcome.deciding else "no",
            ]
        )
    head = ["learning rate:", "FP32 loss:", "FP32 errors:", "δ:", "one ulp", "decides"]
    return report.markdown_table(head, rows)


def stores_table(outcome: Outcome) -> str:
    """How often each store ended where FP32 ended, at the rates that decide."""
    rows = []
    for fmt, store in itertools.product(outcome.formats, STORES):
        name = f"{fmt}_{store}"
        if name not in outcome.parts:
            continue
        found = [outcome.verdicts[name, at] for at in outcome.deciding]
        largest = max(abs(outcome.in_margins(name, at)) for at in outcome.deciding)
        rows.append(
            [
                f"`{name}`",
                str(sum(map(outcome.is_equivalent, found))),
                str(sum(map(outcome.is_worse, found))),
                str(sum(j.verdict.verdict == "undecided" for j in found)),
                str(sum(bool(j.met) for j in found)) if store in CLAIMED else "–",
                f"{largest:.3g} δ",
            ]
        )
    head = ["store", "equivalent:", "worse:", "undecided:", "claims that Holm leaves:"]
    return report.markdown_table([*head, "largest difference:"], rows)


def measures_table(outcome: Outcome) -> str:
    """What was measured early where updates are rounded to nearest, and how it ended."""
    rows = []
    for fmt, at, _ in outcome.predicted:
        name = f"{fmt}_nearest"
        rows.append(
            [
                fmt,
                f"{outcome.rates[at]:g}",
                percent(outcome.measure(name, "early_lost", at)),
                percent(outcome.measure(BASELINE, "early_lost", at, fmt)),
                f"{outcome.measure(name, 'early_median', at):.1f}",
                percent(outcome.measure(name, "early_lost_size", at)),
                percent(outcome.measure(name, "last_lost", at)),
                cell(outcome, name, at) + ("" if at in outcome.deciding else " (chaos)"),
                percent(outcome.progress_lost(name, at)),
            ]
        )
    head = ["format", "learning rate:", "lost early:", "in FP32:", "median:", "of their size:"]
    head += ["lost at the end:", "difference in δ", "progress lost:"]
    return report.markdown_table(head, rows)


def contradictions(outcome: Outcome) -> list[str]:
    """The pairs of format and rate that contradict the rule of prediction, at rates that decide."""
    found = []
    for fmt, at, many in outcome.predicted:
        judgement = outcome.verdicts[f"{fmt}_nearest", at]
        wrong = outcome.is_equivalent(judgement) if many else outcome.is_worse(judgement)
        if wrong and at in outcome.deciding:
            found.append(f"{fmt} at {outcome.rates[at]:g}")
    return found


def prediction_table(outcome: Outcome) -> str:
    """Prediction against verdict, over both formats and all rates; of these, rates that decide."""
    rows = []
    for many in (True, False):
        row = [f"more than {percent(TOO_MANY)} lost" if many else "fewer"]
        here = [(f"{fmt}_nearest", at) for fmt, at, said in outcome.predicted if said == many]
        for word in ("different (worse)", "undecided", "equivalent", "different (better)"):
            found = [at for name, at in here if str(outcome.verdicts[name, at].verdict) == word]
            row.append(f"{len(found)} ({sum(at in outcome.deciding for at in found)})")
        rows.append(row)
    against = contradictions(outcome)
    table = report.markdown_table(["early", "worse:", "undecided:", "equivalent:", "better:"], rows)
    return f"{table}\n\nContradicted by {len(against)}: {', '.join(against) or 'none'}."


#: What is measured early -> the arm that it is measured in, the name in the record, its format.
MEASURES: Mapping[str, tuple[str, str, Callable[[float], str]]] = {
    "share of updates lost": ("nearest", "early_lost", percent),
    "the same, counted in FP32 training": (BASELINE, "early_lost", percent),
    "median of log2 of update over ulp": ("nearest", "early_median", "{:.1f}".format),
    "share of their size lost": ("nearest", "early_lost_size", percent),
}


def rank_correlation(measured: Sequence[float], damage: Sequence[float]) -> float:
    """Spearman's, of the pairs that are finite; NaN for fewer than three."""
    pairs = np.asarray([measured, damage], np.float64).T
    pairs = pairs[np.isfinite(pairs).all(1)]
    return float(scipy_stats.spearmanr(*pairs.T).statistic) if len(pairs) > 2 else math.nan


def measures_table_of_all(outcome: Outcome) -> str:
    """How well each measure orders the damage, and the ranges that it takes with and without."""
    rows = []
    for words, (where, name, written) in MEASURES.items():

        def measured(fmt: str, at: int, where: str = where, name: str = name) -> float:
            arm = where if where == BASELINE else f"{fmt}_{where}"
            return outcome.measure(arm, name, at, fmt)

        pairs = [(fmt, at) for fmt in outcome.formats for at in outcome.places]
        few = [(fmt, at) for fmt, at in pairs if at in outcome.deciding]
        row = [words]
        for among, damage in (
            (pairs, outcome.in_margins),
            (few, outcome.in_margins),
            (few, outcome.progress_lost),
        ):
            found = [damage(f"{fmt}_nearest", at) for fmt, at in among]
            row.append(f"{rank_correlation([measured(*one) for one in among], found):+.2f}")
        for one, is_so in itertools.product(
            outcome.formats, (outcome.is_worse, outcome.is_equivalent)
        ):
            judged = [
                at for at in outcome.deciding if is_so(outcome.verdicts[f"{one}_nearest", at])
            ]
            found = [measured(one, at) for at in judged]
            row.append(f"{written(min(found))} … {written(max(found))}" if found else "–")
        rows.append(row)
    head = ["measured at the early steps", "ρ:", "ρ, rates that decide:", "ρ, progress lost:"]
    head += [
        f"{fmt.upper()} {where}:" for fmt in outcome.formats for where in ("worse", "equivalent")
    ]
    return report.markdown_table(head, rows)


def ratios(outcome: Outcome, fmt: str) -> np.ndarray:
    """[near or far, lost or moved]: shares of the nonzero early updates, all rates together."""
    counts = np.asarray(outcome.parts[f"{fmt}_nearest"]["updates"][fmt]["ratio"], np.float64)
    return counts / counts.sum()


def ratio_table(outcome: Outcome) -> str:
    """Whether |weight| / |update| tells which updates are lost."""
    rows = []
    for fmt in outcome.formats:
        share = ratios(outcome, fmt)
        threshold = 2 ** formats.get(fmt).precision
        for far, said in enumerate((f"below {threshold}", f"{threshold} or more")):
            rows.append([fmt, said, *(percent(share[far, kept]) for kept in (0, 1))])
    return report.markdown_table(["format", "ratio", "lost:", "moved:"], rows)


def findings(parts: Mapping[str, Any]) -> list[Finding]:
    """The claims, by the rules of README.md."""
    outcome = Outcome(parts)
    found = []
    if {"master", "mixed"} <= set(outcome.stores("fp16")):
        found += [master_weights(outcome), backup(outcome)]
    if outcome.formats == list(SCALES):
        found.append(everywhere(outcome))
    if all(outcome.controls.values()):
        return found
    return [dataclasses.replace(one, verdict="undecided") for one in found]


def span(rates: Sequence[float]) -> str:
    """The learning rates in words."""
    if not rates:
        return "no learning rate"
    if len(rates) == 1:
        return f"the learning rate {rates[0]:g}"
    return f"learning rates from {rates[0]:g} to {rates[-1]:g}"


def backup(outcome: Outcome) -> Finding:
    """B11: FP32 master weights; with a small gradient FP16 loses weight + update."""
    name = "fp16_nearest"
    lost = outcome.measure(name, "early_lost", 0)
    kept = outcome.ends_there("fp16_master")
    hot = max(outcome.deciding, default=0)
    damaged = 0 in outcome.worse(name) and lost > TOO_MANY
    cured = kept == len(outcome.deciding)
    return Finding(
        claim="B11",
        verdict="confirmed"
        if damaged and cured
        else "corrected"
        if damaged or cured
        else "refuted in miniature",
        sentence=f"At {span(outcome.rates[:1])} FP16 weights rounded to nearest lose "
        f"{percent(lost)} of the updates early and end {outcome.in_margins(name, 0):+.1f} δ from "
        f"FP32; at {span([outcome.rates[hot]])} they lose "
        f"{percent(outcome.measure(name, 'early_lost', hot))} and end "
        f"{outcome.in_margins(name, hot):+.1f} δ from it. FP32 masters end where "
        f"FP32 ends at {kept} of {len(outcome.deciding)} rates that decide (emulated).",
    )


def relative_increase(outcome: Outcome, name: str, at: int) -> float:
    """How many more images an arm takes for another digit than FP32 does, relative to FP32."""
    wrong, base = (outcome.parts[arm]["wrong"][at] for arm in (name, BASELINE))
    return float(wrong / base - 1) if base else math.nan


def master_weights(outcome: Outcome) -> Finding:
    """M3.1: what FP16 weights cost, what masters give back, and the ratio of 2048."""
    name = "fp16_nearest"
    rises = {at: relative_increase(outcome, name, at) for at in outcome.deciding} or {0: 0.0}
    most = max(rises, key=lambda at: rises[at])
    worse = outcome.worse(name)
    share = ratios(outcome, "fp16")
    exact = share[0, 0] == 0 and share[1, 1] == 0
    if not worse:
        verdict = "refuted in miniature"
    elif rises[most] >= PUBLISHED_LOSS and exact and outcome.is_master_mixed("fp16"):
        verdict = "confirmed"
    else:
        verdict = "corrected"
    same = "bit for bit" if outcome.is_master_mixed("fp16") else "not"
    return Finding(
        claim="M3.1",
        verdict=verdict,  # type: ignore[arg-type]
        sentence=f"FP16 weights with FP32 masters train {same} as FP32 weights that are cast. "
        f"Updated without, FP16 weights are worse at {span([outcome.rates[at] for at in worse])} "
        f"({len(worse)} of {len(outcome.rates)} rates); errors rise by at most "
        f"{percent(rises[most])} of FP32's, at {span([outcome.rates[most]])} "
        f"({percent(PUBLISHED_LOSS)} published, for a speech model). The ratio 2048 is "
        f"{'' if exact else 'not '}the threshold: "
        f"{percent(share[1, 1] / share[1].sum())} of the updates at larger ratios move the weight "
        f"(it is 2048 times the weight's significand, up to 4096), and "
        f"{percent(share[0, 0] / share[0].sum())} of those at smaller ones are lost (emulated).",
    )


def everywhere(outcome: Outcome) -> Finding:
    """B9: FP16 everywhere overflows in the backward pass; BF16's error in the update is large."""
    names = [f"fp16_{store}" for store in outcome.stores("fp16")]
    steps = outcome.parts["setting"]["steps"] * len(SEEDS) * len(outcome.deciding) * len(names)
    skipped = sum(outcome.parts[name]["skipped"][at] for name in names for at in outcome.deciding)
    either = sorted({*outcome.worse("fp16_nearest"), *outcome.worse("bf16_nearest")})
    pairs = [
        (outcome.in_margins("bf16_nearest", at), outcome.in_margins("fp16_nearest", at))
        for at in either
    ]
    larger = bool(pairs) and all(bf16 > fp16 for bf16, fp16 in pairs)
    held = (skipped > 0) + larger
    most = max(pairs, default=(0.0, 0.0))
    return Finding(
        claim="B9",
        verdict=("refuted in miniature", "corrected", "confirmed")[held],  # type: ignore[arg-type]
        sentence=f"Gradients overflowed in {skipped} of {steps} steps with FP16 at a loss scale of "
        f"2^{round(math.log2(SCALES['fp16']))}, which brings overflow nearer. BF16 weights rounded "
        f"to nearest end {'farther' if larger else 'not always farther'} from FP32 than FP16 ones "
        f"at all {len(either)} rates at which either is worse, by up to {most[0]:.0f} δ against "
        f"{most[1]:.0f} δ there (emulated).",
    )


def figures(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Damage against the learning rate and against early measures; the updates themselves."""
    outcome = Outcome(parts)
    return {
        "damage.svg": report.plot(
            [damage_panel(outcome, fmt) for fmt in outcome.formats], columns=2, height=340
        ),
        "prediction.svg": report.plot(prediction_panels(outcome), columns=2, height=340),
        "updates.svg": report.plot(
            [updates_panel(outcome, fmt) for fmt in outcome.formats], columns=2
        ),
    }


def damage_panel(outcome: Outcome, fmt: str) -> Panel:
    """The difference from FP32 over δ against the learning rate."""
    names = {"one ulp of one FP32 weight": CHAOS}
    names |= {store: f"{fmt}_{store}" for store in outcome.stores(fmt) if store != "mixed"}
    order = [*STORES[2:3], STORES[1], *STORES[3:], "one ulp of one FP32 weight"]
    curves = [
        Curve(
            name=name,
            x=outcome.rates,
            y=[abs(outcome.in_margins(names[name], at)) for at in outcome.places],
        )
        for name in order
        if name in names
    ]
    return Panel(
        title=f"{fmt.upper()} weights",
        x="learning rate",
        y="size of the difference from FP32, in δ",
        x_scale="log10",
        y_scale="log10",
        curves=curves,
        marks=[Mark(label="δ", y=1.0), *chaotic(outcome)],
        limits=(1e-7, 1e3),
    )


def chaotic(outcome: Outcome) -> list[Mark]:
    """A window over the rates above all that decide."""
    last = max(outcome.deciding, default=-1)
    if last + 1 >= len(outcome.rates):
        return []
    low, high = outcome.rates[max(last, 0)], outcome.rates[last + 1]
    return [Mark(label="chaos", x=(math.sqrt(low * high), 1.5 * outcome.rates[-1]))]


def prediction_panels(outcome: Outcome) -> list[Panel]:
    """The difference from FP32 over δ against what was measured early; a point each rate."""
    measures = {
        "early_lost": ("updates lost at steps 10 to 100, in %", lambda x: 100 * x, 100 * TOO_MANY),
        # The middle of the bin.
        "early_median": (
            "median of log2 |update| / ulp, steps 10 to 100",
            lambda x: x + 0.5,
            -1.0,
        ),
    }
    groups = {f"{fmt.upper()} nearest": [f"{fmt}_nearest"] for fmt in outcome.formats}
    groups |= {
        store: [f"{fmt}_{store}" for fmt in outcome.formats if store in outcome.stores(fmt)]
        for store in CLAIMED
    }
    points = {
        name: [(arm, at) for arm in arms for at in outcome.deciding]
        for name, arms in groups.items()
        if arms
    }
    found = []
    for measure, (words, place, rule) in measures.items():
        curves = [
            Curve(
                name=name,
                kind="points",
                x=[place(outcome.measure(arm, measure, at)) for arm, at in here],
                y=[abs(outcome.in_margins(arm, at)) for arm, at in here],
            )
            for name, here in points.items()
        ]
        found.append(
            Panel(
                title="Share of lost updates" if measure == "early_lost" else "Median update",
                x=words,
                y="size of the difference from FP32, in δ",
                y_scale="log10",
                curves=curves,
                marks=[Mark(label="δ", y=1.0), Mark(label="half", x=rule)],
            )
        )
    return found


def updates_panel(outcome: Outcome, fmt: str) -> Panel:
    """Where the updates of the early steps lie against half an ulp of their weights."""
    histograms = outcome.parts[f"{fmt}_nearest"]["updates"][fmt]["histogram"]
    curves = []
    for at in DRAWN:
        if at not in outcome.places:
            continue
        first, counts = histograms[at]["first"], np.asarray(histograms[at]["counts"], np.float64)
        share = 100 * counts / counts.sum()
        shown = [i for i in range(len(share)) if share[i] > 0.01]
        curves.append(
            Curve(
                name=f"learning rate {outcome.rates[at]:g}",
                kind="steps",
                x=[first + i + 0.5 for i in shown],  # the middle of the bin
                y=[share[i] for i in shown],
            )
        )
    return Panel(
        title=f"{fmt.upper()} weights, rounded to nearest",
        x="log2 |update| / ulp of the weight, steps 10 to 100",
        y="% of the updates",
        curves=curves,
        marks=[Mark(label="half an ulp", x=-1.0)],
    )


EXPERIMENT = Experiment(
    file=__file__,
    question="How must 16-bit weights be stored so that training ends where FP32 ends, and which "
    "measure taken early tells?",
    parts=parts,
    tables=tables,
    figures=figures,
    findings=findings,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
