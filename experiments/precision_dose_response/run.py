"""Trains three nets with operands of 1 to 10 mantissa bits in four roundings, and asks what harms.

python experiments/precision_dose_response/run.py [--small | --rebuild]
"""

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

from jprec import program, records, report, stats, train, workloads
from jprec.report import Curve, Mark, Panel
from jprec.rounding import round_to_mantissa
from jprec.study import (
    PILOT_SEEDS,
    Experiment,
    Finding,
    Setting,
    Workload,
    converges,
    key_for,
    training,
)
from jprec.workloads import models

Tree = Any
Parts = Mapping[str, Any]

EVEN, AWAY, ZERO, RANDOM = MODES = ("nearest_even", "nearest_away", "toward_zero", "stochastic")

LABELS = {
    EVEN: "to nearest, ties to even",
    AWAY: "to nearest, ties away",
    ZERO: "toward zero",
    RANDOM: "stochastic",
}

#: Mantissa bits that FP32, TF32 (and FP16) and BF16 store.
FP32, TF32, BF16 = 23, 10, 7

#: The control: so few bits, cut off, must do harm.
FEWEST = 1

#: The policy of all arms before their operands are rounded.
POLICY = "product=fp32"


# --- what is trained


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A net, and what is tried on it.

    Attributes:
      title: For figures and tables.
      setting: Workload, optimiser, steps, margin.
      seeds: How many are judged, from 0.
      bits: Rounding mode -> numbers of mantissa bits.
      one_pass: Rounding mode -> numbers of bits that are also tried in one pass only.
      layers: The names of its layers, as a path into the parameters, from first to last.
      network: What builds the net, for its outputs.
    """

    title: str
    setting: Setting
    seeds: int
    bits: Mapping[str, Sequence[int]]
    one_pass: Mapping[str, Sequence[int]]
    layers: Sequence[str]
    network: Callable[[nnx.Rngs], nnx.Module]

    @functools.cached_property
    def workload(self) -> Workload:
        """What is trained."""
        return self.setting.load()

    @functools.cached_property
    def numbers(self) -> jax.Array:
        """The judged seeds."""
        return training.seeds_of(range(self.seeds))

    @property
    def steps(self) -> int:
        """Training steps."""
        return self.setting.steps


_MLP_LAYERS = ("layers/0", "layers/1", "layers/2")
_HE = nnx.initializers.he_normal()
_LECUN = nnx.initializers.lecun_normal()


@functools.cache
def sizes(small: bool) -> dict[str, Model]:
    """Name -> model. The miniature: one net, two seeds, a few steps, few bits."""
    all_bits = (*range(1, 11), FP32)
    mlp = Model(
        title="MLP",
        setting=converges.HOT,
        seeds=16,
        bits=dict.fromkeys(MODES, all_bits),
        one_pass=dict.fromkeys((EVEN, ZERO, RANDOM), (1, 2, 3)),
        layers=_MLP_LAYERS,
        network=lambda rngs: models.MLP(
            (64, 128, 128, 10), activation=nnx.relu, kernel_init=_HE, rngs=rngs
        ),
    )
    if small:
        return {"mlp": _miniature(mlp)}
    cnn_bits = (1, 2, 3, 4, BF16, TF32)
    deep_bits = (1, 4, 5, 6, BF16, TF32)
    return {
        "mlp": mlp,
        "cnn": Model(
            title="CNN",
            setting=converges.HOT_CNN,
            seeds=16,
            bits=dict.fromkeys(MODES, cnn_bits) | {EVEN: (*cnn_bits, FP32)},
            one_pass={ZERO: (2,)},
            layers=("first", "second", "head"),
            network=lambda rngs: models.CNN(rngs=rngs),
        ),
        "autoencoder": Model(
            title="autoencoder",
            setting=converges.AUTOENCODER,
            seeds=8,
            bits=dict.fromkeys((ZERO, RANDOM), deep_bits)
            | {EVEN: (*deep_bits, FP32), AWAY: (BF16, TF32)},
            one_pass={ZERO: (4,)},
            layers=("layers/0", "layers/1", "layers/2", "layers/3"),
            network=lambda rngs: models.MLP(
                (64, 64, 16, 64, 64), activation=nnx.tanh, kernel_init=_LECUN, rngs=rngs
            ),
        ),
    }


def _miniature(mlp: Model) -> Model:
    """A net of two layers, two seeds, a few steps and few bits; it takes few instructions."""

    def network(rngs: nnx.Rngs) -> nnx.Module:
        return models.MLP((64, 8, 10), activation=nnx.relu, kernel_init=_HE, rngs=rngs)

    def init(key: jax.Array) -> Tree:
        first, last = (jax.random.uniform(k, (64, 8)) for k in jax.random.split(key))
        kernels = (first - 0.5) / 2, last[:10].T - 0.5
        return {"layers": {i: {"kernel": k, "bias": k[0] * 0} for i, k in enumerate(kernels)}}

    whole = workloads.digits_mlp()
    images, labels = (jnp.asarray(x) for x in whole.test)
    apply = workloads.functions(network)[1]

    def batches(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = jax.random.bits(key, (32,)) % len(images)
        return images[rows], labels[rows]

    workload = dataclasses.replace(
        whole,
        init=init,
        batches=batches,
        loss=lambda params, batch: _cross_entropy(apply(params, batch[0]), batch[1]),
        accuracy=None,
        name="miniature",
    )
    return dataclasses.replace(
        mlp,
        setting=dataclasses.replace(
            mlp.setting, workload=workload, steps=4, optimizer=optax.sgd(0.1)
        ),
        seeds=2,
        bits={EVEN: (BF16, TF32, FP32), ZERO: (FEWEST, TF32)},
        one_pass={ZERO: (FEWEST,)},
        layers=_MLP_LAYERS[:2],
        network=network,
    )


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean loss of a classifier, in the dtype of the logits."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


# --- the arithmetic


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dose:
    """The rule that rounds the operands of every product; sums stay as they are, in FP32.

    Attributes:
      mode: How; None: not at all.
      bits: [2] int32, mantissa bits in the forward and in the backward pass; they may be traced.
      key: For stochastic rounding; each operand of each product has a key of its own.
    """

    mode: str | None
    bits: jax.Array
    key: jax.Array | None = None
    _count: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    #: What `program.rewrite` asks of a rule.
    name = "dose"
    tells_backward = True

    def handler(
        self, equation: Any, gradients: tuple[bool, bool] = (False, False)
    ) -> Callable[..., list[Any]] | None:
        """The function that computes a product; None for any other equation."""
        name = equation.primitive.name
        if name not in ("dot_general", "conv_general_dilated"):
            return None
        bits = self.bits[int(any(gradients))]

        def compute(equation: Any, *operands: jax.Array) -> list[jax.Array]:
            rounded = [self._round(x, bits) for x in operands]
            if name == "conv_general_dilated":
                return [_convolution(*rounded, **equation.params)]
            return [equation.primitive.bind(*rounded, **equation.params)]

        return compute

    def may_be_inside(self, equation: Any) -> bool:
        """Whether an operation could hide a product: none does in these nets."""
        return False

    def _round(self, x: jax.Array, bits: jax.Array) -> jax.Array:
        if self.mode is None:
            return x
        key = None if self.key is None else jax.random.fold_in(self.key, next(self._count))
        return round_to_mantissa(x, bits, self.mode, key=key)


def _convolution(lhs: jax.Array, rhs: jax.Array, **params: Any) -> jax.Array:
    """The convolution that lax would do, with the axes in the order that XLA on a CPU is fast in.

    Inside loops XLA takes the order as it is, and in other orders is four times slower.
    """
    given = params["dimension_numbers"]
    last, spatial = lhs.ndim - 1, range(1, lhs.ndim - 1)
    images = lhs.transpose(given.lhs_spec[0], *given.lhs_spec[2:], given.lhs_spec[1])
    kernel = rhs.transpose(*given.rhs_spec[2:], given.rhs_spec[1], given.rhs_spec[0])
    params["dimension_numbers"] = lax.ConvDimensionNumbers(
        (0, last, *spatial), (last, last - 1, *range(last - 1)), (0, last, *spatial)
    )
    # Else XLA would put the axes back in the order that they came in.
    images, kernel = lax.optimization_barrier((images, kernel))
    out = lax.conv_general_dilated_p.bind(images, kernel, **params)
    return out.transpose(np.argsort((given.out_spec[0], *given.out_spec[2:], given.out_spec[1])))


def dose(model: Model, mode: str | None, bits: jax.Array, seed: jax.Array, step: Any) -> Dose:
    """The rule for one step of one seed."""
    key = None
    if mode == RANDOM:
        key = jax.random.fold_in(key_for(seed, model.workload.name, "rounding"), step)
    return Dose(mode=mode, bits=bits, key=key)


@functools.cache
def trainer(model: Model, mode: str | None, steps: int) -> Callable[..., Tree]:
    """(initial parameters, seeds, bits [2], factors of the gradient) -> parameters after `steps`.

    The numbers of bits are data: one program for all.
    """
    workload, optimizer = model.workload, model.setting.optimizer
    value_and_grad = train.value_and_grad(workload.loss, POLICY, exact=True)

    def run(params: Tree, seed: jax.Array, bits: jax.Array, factors: Tree) -> Tree:
        batches = key_for(seed, workload.name, "batches")

        def step(state: tuple[Tree, Tree], t: jax.Array) -> tuple[tuple[Tree, Tree], None]:
            params, of_optimizer = state
            rounded = program.rewrite(value_and_grad, dose(model, mode, bits, seed, t))
            _, gradients = rounded(params, workload.batches(jax.random.fold_in(batches, t)))
            gradients = jax.tree.map(jnp.multiply, gradients, factors)
            updates, of_optimizer = optimizer.update(gradients, of_optimizer, params)
            return (optax.apply_updates(params, updates), of_optimizer), None

        return lax.scan(step, (params, optimizer.init(params)), jnp.arange(steps))[0][0]

    # One seed after the other: matrix products of one seed run faster than those of all at once.
    return jax.jit(
        lambda params, seeds, bits, factors: lax.map(
            lambda of_seed: run(*of_seed, bits, factors), (params, seeds)
        )
    )


@functools.cache
def own_tester(model: Model, mode: str) -> Callable[..., jax.Array]:
    """(parameters, seeds, bits [2]) -> test losses in the arithmetic that the arm trained in."""
    test = jax.tree.map(jnp.asarray, model.workload.test)
    loss = program.emulate(model.workload.loss, "fp32")

    def of_seed(params: Tree, seed: jax.Array, bits: jax.Array) -> jax.Array:
        return program.rewrite(loss, dose(model, mode, bits, seed, model.steps))(params, test)

    return jax.jit(
        lambda params, seeds, bits: lax.map(lambda one: of_seed(*one, bits), (params, seeds))
    )


# --- what is predicted


def shrink(bits: int) -> float:
    """The mean share of a number that truncation to so many mantissa bits takes away.

    For significands m distributed as 1 / (m ln 2) on [1, 2), which is where products and powers
    tend (Benford's law): the mean of (m - trunc m) / m is 1 - (H(2^(N+1)) - H(2^N)) / ln 2 with the
    harmonic numbers H, and 2^-N / (4 ln 2) for large N.

    >>> round(shrink(1), 4), round(1024 * shrink(10) * 4 * math.log(2), 2)
    (0.1584, 1.0)
    """
    count = 2**bits
    return 1 - sum(1 / (count + j) for j in range(1, count + 1)) / math.log(2)


def of_product(bits: int) -> float:
    """The factor by which truncating both operands shrinks a product on average."""
    return (1 - shrink(bits)) ** 2


def kernels_times(params: Tree, factor: float) -> Tree:
    """The parameters of several seeds with all kernels multiplied; biases stay."""
    return jax.tree.map(lambda x: x * jnp.float32(factor) if x.ndim > 2 else x, params)


def gradient_factors(model: Model, params: Tree, bits: int) -> Tree:
    """Leaf -> by what truncation in the backward pass shrinks its gradient on average.

    On its way back a cotangent goes through one product for each layer behind; a kernel's gradient
    is one product more.
    """
    depth = {name: after for after, name in enumerate(reversed(model.layers))}

    def factor(path: Any, leaf: jax.Array) -> jax.Array:
        layer, _, _ = jax.tree_util.keystr(path, simple=True, separator="/").rpartition("/")
        is_kernel = leaf.ndim > 2  # the first axis is that of seeds
        return jnp.float32(of_product(bits) ** (depth[layer] + is_kernel))

    return jax.tree_util.tree_map_with_path(factor, params)


# --- the parts


def _floats(values: Any) -> list[float]:
    """FP32 numbers, with as many digits as tell them apart."""
    return [float(f"{x:.9g}") for x in np.asarray(values, np.float64).ravel()]


def _test(model: Model, params: Tree) -> list[float]:
    """Test losses in full FP32."""
    return _floats(training.tester(model.workload)(params)[0])


def _ended(model: Model, params: Tree) -> dict[str, Any]:
    """How trained nets do in full FP32: test losses; means of accuracy and of the training loss."""
    loss, accuracy = training.tester(model.workload)(params)
    share = None if accuracy is None else round(float(np.mean(np.asarray(accuracy))), 5)
    learnt = np.mean(np.asarray(_training_loss(model)(params), np.float64))
    return {"loss": _floats(loss), "accuracy": share, "training": float(f"{learnt:.5g}")}


@functools.cache
def _training_loss(model: Model) -> Callable[[Tree], jax.Array]:
    """Parameters -> losses on all images that are trained on, in full FP32."""
    known, _ = workloads.digits.load()
    batch = known if isinstance(model.workload.test, tuple) else known[0]
    loss = program.emulate(model.workload.loss, "fp32")
    return jax.jit(jax.vmap(lambda params: loss(params, jax.tree.map(jnp.asarray, batch))))


def _start(model: Model) -> tuple[Tree, Tree]:
    """Initial parameters, and the factors that leave gradients alone."""
    params = training.initial(model.workload)(model.numbers)
    return params, jax.tree.map(lambda _: jnp.float32(1), params)


def baseline(model: Model) -> dict[str, Any]:
    """Full FP32, and what the closed form of truncation makes of it."""
    start, ones = _start(model)
    full = trainer(model, None, model.steps)
    none = jnp.int32([FP32, FP32])
    params = full(start, model.numbers, none, ones)
    once = [n for n in model.bits[ZERO] if n != FP32]
    apart = model.one_pass[ZERO]
    shrunk = {n: gradient_factors(model, start, n) for n in apart}
    return {
        "title": model.title,
        "setting": model.setting.name,
        "what": model.setting.title,
        "steps": model.steps,
        "margin": model.setting.margin,
        "margin_source": model.setting.margin_source,
        "guess": model.workload.guess,
        "layers": len(model.layers),
        **_ended(model, params),
        "kernels enlarged": {
            str(n): _test(model, kernels_times(params, 1 / of_product(n))) for n in once
        },
        "gradients shrunk": {
            str(n): _test(model, full(start, model.numbers, none, factors))
            for n, factors in shrunk.items()
        },
        "outputs": _outputs(model, params),
    }


def trained(model: Model, mode: str) -> dict[str, Any]:
    """All arms of one rounding mode: "N" for both passes, "N forward" and "N backward" for one."""
    start, ones = _start(model)
    arms = {str(n): (n, n) for n in model.bits[mode]}
    for n in model.one_pass.get(mode, ()):
        arms |= {f"{n} forward": (n, FP32), f"{n} backward": (FP32, n)}
    found: dict[str, Any] = {}
    for name, bits in arms.items():
        params = trainer(model, mode, model.steps)(start, model.numbers, jnp.int32(bits), ones)
        found[name] = {
            **_ended(model, params),
            "own": _floats(own_tester(model, mode)(params, model.numbers, jnp.int32(bits))),
        }
        if mode == ZERO and bits[0] != FP32:
            found[name]["repaired"] = _test(model, kernels_times(params, of_product(bits[0])))
    return found


def applied(model: Model) -> Callable[[Tree, Any], jax.Array]:
    """(parameters, images) -> outputs."""
    return workloads.functions(model.network)[1]


def in_fp64(function: Callable[..., Tree], *args: Tree) -> Tree:
    """What the function returns when everything in it is FP64."""

    def widened(x: Any) -> np.ndarray:
        x = np.asarray(x)
        return x.astype(np.float64) if x.dtype == np.float32 else x

    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(function)(*jax.tree.map(widened, args)))


#: Seeds whose nets' outputs are looked at.
LOOKED_AT = 4


def _outputs(model: Model, params: Tree) -> dict[str, Any]:
    """Mode -> bits -> how wrong the outputs of the FP32-trained net are: [along, across].

    Against FP64, on the test images: the error's part along the outputs, as a share of them, and
    the size of the rest; the mean over a few seeds.
    """
    apply = applied(model)
    images = jax.tree.leaves(model.workload.test)[0]
    nets = [jax.tree.map(lambda x, i=i: x[i], params) for i in range(min(LOOKED_AT, model.seeds))]
    exact = [in_fp64(apply, net, images) for net in nets]
    found: dict[str, Any] = {}
    for mode, every in model.bits.items():

        @jax.jit
        def rounded(net: Tree, bits: jax.Array, seed: int, mode: str = mode) -> jax.Array:
            rule = dose(model, mode, bits, seed, model.steps)
            return program.rewrite(program.emulate(apply, "fp32"), rule)(net, images)

        found[mode] = {}
        for n in every:
            outputs = [rounded(net, jnp.int32([n, n]), seed) for seed, net in enumerate(nets)]
            parts = [split(np.asarray(o), e) for o, e in zip(outputs, exact, strict=True)]
            found[mode][str(n)] = [float(f"{x:.4g}") for x in np.mean(parts, 0)]
    return found


def split(values: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """The error of `values` along `exact`, and the size of the rest, as shares of `exact`.

    >>> split(np.array([1.5, 0.5]), np.array([1.0, 0.0]))
    (0.5, 0.5)
    """
    error = values.astype(np.float64) - exact
    size = np.vdot(exact, exact)
    along = np.vdot(error, exact) / size
    return float(along), float(np.linalg.norm(error - along * exact) / math.sqrt(size))


#: Bits, step and numbers of batches of the look at gradients.
AVERAGED_BITS, AVERAGED_STEP, AVERAGED = 3, 30, (1, 4, 16, 64, 256)


def averaged(model: Model, batches: int) -> dict[str, Any]:
    """How the error of the gradient falls when it is averaged over batches, weights standing still.

    Mode -> for each number of batches, the error of their mean gradient, root mean square over
    groups, over the size of the mean gradient of all batches. Against FP64.
    """
    workload, seed = model.workload, PILOT_SEEDS[0]
    seeds = training.seeds_of(PILOT_SEEDS[: model.seeds])
    steps = min(AVERAGED_STEP, model.steps)
    start = training.initial(workload)(seeds)
    ones = jax.tree.map(lambda _: jnp.float32(1), start)
    ended = trainer(model, None, steps)(start, seeds, jnp.int32([FP32, FP32]), ones)
    params = jax.tree.map(lambda x: x[0], ended)
    drawn = jax.vmap(workload.batches)(
        jax.random.split(key_for(seed, workload.name, "averaged"), batches)
    )
    value_and_grad = train.value_and_grad(workload.loss, POLICY, exact=True)

    def flat(gradients: Tree) -> np.ndarray:
        leaves = [np.asarray(g, np.float64) for g in jax.tree.leaves(gradients)]
        return np.concatenate([g.reshape(batches, -1) for g in leaves], axis=1)

    apply = applied(model)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        """The workload's, which takes logits to FP32; here they may be FP64."""
        return _cross_entropy(apply(params, batch[0]), batch[1])

    exact = flat(in_fp64(jax.vmap(jax.grad(loss), in_axes=(None, 0)), params, drawn))
    size = np.linalg.norm(exact.mean(0))
    counts = [n for n in AVERAGED if n <= batches]
    found: dict[str, Any] = {"bits": AVERAGED_BITS, "step": steps, "batches": counts}
    for mode in model.bits:

        @jax.jit
        def rounded(batch: Tree, number: jax.Array, mode: str = mode) -> Tree:
            rule = dose(model, mode, jnp.int32([AVERAGED_BITS] * 2), seed, model.steps + number)
            return program.rewrite(value_and_grad, rule)(params, batch)[1]

        error = flat(lax.map(lambda one: rounded(*one), (drawn, jnp.arange(batches)))) - exact
        sizes = [
            np.linalg.norm(error.reshape(-1, n, error.shape[1]).mean(1), axis=1) for n in counts
        ]
        found[mode] = [float(f"{math.sqrt(np.mean(s**2)) / size:.4g}") for s in sizes]
    return found


def parts(small: bool) -> dict[str, Callable[[], Any]]:
    """Name -> what computes it: one rounding mode of one model each."""
    every = sizes(small)
    todo: dict[str, Callable[[], Any]] = {}
    for name, model in every.items():
        todo[f"{name} fp32"] = functools.partial(baseline, model)
        for mode in model.bits:
            todo[f"{name} {mode}"] = functools.partial(trained, model, mode)
    todo["averaged"] = functools.partial(averaged, every["mlp"], 4 if small else max(AVERAGED))
    return todo


# --- what the record says


def names(of: Parts) -> list[str]:
    """The models of the record."""
    return [part.removesuffix(" fp32") for part in of if part.endswith(" fp32")]


def modes(of: Parts, model: str) -> list[str]:
    """The rounding modes of a model."""
    return [mode for mode in MODES if f"{model} {mode}" in of]


def bits(of: Parts, model: str, mode: str) -> list[int]:
    """The numbers of bits that were tried in both passes, from few to many."""
    return sorted(int(name) for name in of[f"{model} {mode}"] if name.isdigit())


def differences(of: Parts, model: str, losses: Sequence[Any]) -> np.ndarray:
    """Paired differences from FP32, in units of δ."""
    full = of[f"{model} fp32"]
    pairs = records.as_floats(losses), records.as_floats(full["loss"])
    return stats.paired_differences(*pairs) / full["margin"]


def mean(of: Parts, model: str, losses: Sequence[Any]) -> float:
    """The mean paired difference from FP32, in units of δ."""
    return float(differences(of, model, losses).mean())


#: (model, rounding mode, bits).
Arm = tuple[str, str, int]


def judged(of: Parts) -> dict[Arm, stats.Judgement]:
    """Arm -> judgement, for all arms that round both passes; corrected for their number by Holm."""
    arms = [
        (model, mode, n)
        for model in names(of)
        for mode in modes(of, model)
        for n in bits(of, model, mode)
    ]
    return dict(zip(arms, stats.judge_all([_comparison(of, arm) for arm in arms]), strict=True))


def is_control(arm: Arm) -> bool:
    """Whether the study shows nothing unless this arm is the same as FP32, or different."""
    _, mode, n = arm
    return n == FP32 or (mode == ZERO and n == FEWEST)


def _comparison(of: Parts, arm: Arm) -> stats.Comparison:
    model, mode, n = arm
    full, losses = of[f"{model} fp32"], of[f"{model} {mode}"][str(n)]["loss"]
    fails = is_control(arm) and n != FP32
    return stats.Comparison(
        name=f"{model}/{mode}/{n}",
        differences=tuple(differences(of, model, losses)),
        margin=1.0,
        expected="different" if fails else "equivalent",
        claim=not is_control(arm),
        diverged=stats.count_diverged(records.as_floats(losses), full["guess"]),
        baseline_diverged=stats.count_diverged(records.as_floats(full["loss"]), full["guess"]),
    )


def controls_hold(found: Mapping[Arm, stats.Judgement]) -> bool:
    """Whether 23 bits are the same as FP32, and one bit, cut off, is worse, wherever tried."""
    return all(judgement.met for arm, judgement in found.items() if is_control(arm))


def fewest(found: Mapping[Arm, stats.Judgement], model: str, mode: str) -> int | None:
    """The fewest bits tried from which on all are equivalent, after the correction; None: none."""
    last = None
    for n in sorted((n for m, r, n in found if (m, r) == (model, mode)), reverse=True):
        if not found[model, mode, n].met or (is_control((model, mode, n)) and n != FP32):
            break
        last = n
    return last if last != FP32 else None


def is_worse(judgement: stats.Judgement) -> bool:
    """Whether the verdict is different, on the bad side."""
    return (judgement.verdict.verdict, judgement.verdict.direction) == ("different", "worse")


def findings(of: Parts) -> list[Finding]:
    """What the record says of the essays' claims, by the rule on the page."""
    found = judged(of)
    holds = controls_hold(found)
    made = [_a2(found), _a10(found, of), _b8(of), _b13(found)]
    if not holds:
        said = "The controls did not come out as they must, so nothing is concluded."
        made = [Finding(claim=f.claim, verdict="undecided", sentence=said) for f in made]
    a13 = Finding(
        claim="A13",
        verdict="needs a GPU",
        sentence="Emulated here is what the claim says: operands rounded, products and sums in "
        "FP32. Whether a tensor core loses no more than that cannot be seen in an emulation.",
    )
    return [*made[:2], a13, *made[2:]]


def _at(found: Mapping[Arm, stats.Judgement], n: int, *of_modes: str) -> list[stats.Judgement]:
    return [j for (_, mode, m), j in found.items() if m == n and mode in (of_modes or MODES)]


def _range(of: Sequence[stats.Judgement]) -> str:
    """The smallest and the largest mean difference, and the largest adjusted p value."""
    means = [j.verdict.mean for j in of]
    p = max(j.p_holm for j in of if j.p_holm is not None)
    return f"mean differences from {min(means):+.2f} to {max(means):+.2f} δ, p ≤ {p:.1e}"


def _a2(found: Mapping[Arm, stats.Judgement]) -> Finding:
    every = _at(found, TF32)
    same = [j for j in every if j.met]
    verdict: Any = "confirmed" if len(same) == len(every) else "undecided"
    if any(map(is_worse, _at(found, TF32, AWAY))):
        verdict = "refuted in miniature"
    return Finding(
        claim="A2",
        verdict=verdict,
        sentence=f"With operands of 10 mantissa bits, no loss scale and no other mechanism, "
        f"{len(same)} of {len(every)} arms ({len({model for model, _, _ in found})} nets in "
        f"{len({mode for _, mode, _ in found})} roundings) end where FP32 ends ({_range(every)}); "
        "emulated.",
    )


def _a10(found: Mapping[Arm, stats.Judgement], of: Parts) -> Finding:
    least = {model: fewest(found, model, EVEN) for model in names(of)}
    enough = [n for n in least.values() if n is not None]
    verdict: Any = "refuted in miniature"
    if len(enough) == len(least):
        verdict = "confirmed" if all(n < TF32 for n in enough) else "corrected"

    def said(least: Mapping[str, int | None]) -> str:
        return ", ".join(f"{of[f'{m} fp32']['title']} {n or 'none'}" for m, n in least.items())

    cut = {model: fewest(found, model, ZERO) for model in names(of)}
    return Finding(
        claim="A10",
        verdict=verdict,
        sentence="With FP32's range kept, the fewest bits that are equivalent are, rounded to "
        f"nearest even: {said(least)}; truncated: {said(cut)}. TF32 keeps 10. What range does is "
        "another experiment's question; emulated.",
    )


def _b8(of: Parts) -> Finding:
    ratios = {}
    for model in names(of):
        across = {n: e[1] for n, e in of[f"{model} fp32"]["outputs"][EVEN].items()}
        if str(BF16) in across:
            ratios[of[f"{model} fp32"]["title"]] = across[str(BF16)] / across[str(TF32)]
    said = ", ".join(f"{title} {ratio:.1f}" for title, ratio in ratios.items())
    fits = bool(ratios) and all(4 <= ratio <= 16 for ratio in ratios.values())
    return Finding(
        claim="B8",
        verdict="confirmed" if fits else "undecided",
        sentence="Outputs computed with BF16's 7 mantissa bits are more wrong than with FP16's 10, "
        f"across themselves, by these factors, where 2^3 = 8 is expected: {said}. FP16's range is "
        "not part of this; emulated.",
    )


def _b13(found: Mapping[Arm, stats.Judgement]) -> Finding:
    every = _at(found, TF32, EVEN)
    verdict: Any = "confirmed" if all(j.met for j in every) else "undecided"
    if any(map(is_worse, every)):
        verdict = "refuted in miniature"
    return Finding(
        claim="B13",
        verdict=verdict,
        sentence="Operands rounded to nearest even at FP16's 10 mantissa bits (FP32's range kept) "
        f"and sums in FP32 end where FP32 ends ({_range(every)}); emulated.",
    )


# --- tables


def tables(of: Parts) -> dict[str, str]:
    """The generated parts of README.md."""
    found = judged(of)
    return {
        "findings": report.markdown_table(
            ["claim", "verdict", "evidence"],
            [(f.claim, f.verdict, f.sentence) for f in findings(of)],
        ),
        "fewest": _fewest_table(of, found),
        "verdicts": _verdict_tables(of, found),
        "truncation": _truncation_table(of),
        "passes": _passes_table(of),
        "ended": _ended_table(of),
        "outputs": _outputs_table(of),
    }


def _fewest_table(of: Parts, found: Mapping[Arm, stats.Judgement]) -> str:
    rows = []
    for mode in MODES:
        row = [LABELS[mode]]
        for model in names(of):
            tried = (
                [n for n in bits(of, model, mode) if n != FP32] if mode in modes(of, model) else []
            )
            least = fewest(found, model, mode) if tried else None
            more = f" (of {', '.join(map(str, tried))})" if len(tried) < 9 else ""
            row.append("not tried" if not tried else f"{least or 'none'}{more}")
        rows.append(row)
    titles = [of[f"{model} fp32"]["title"] for model in names(of)]
    family = sum(j.p_holm is not None for j in found.values())
    sentence = (
        f"Controls: {'as they must be' if controls_hold(found) else '**failed**'}. "
        f"Holm's family: {family} arms."
    )
    return f"{report.markdown_table(['operands rounded', *titles], rows)}\n\n{sentence}"


_SIGNS = {"identical": "≡", "equivalent": "=", "different": "≠", "undecided": "?"}


def _verdict_tables(of: Parts, found: Mapping[Arm, stats.Judgement]) -> str:
    made = []
    for model in names(of):
        full = of[f"{model} fp32"]
        every = sorted({n for m, _, n in found if m == model})
        rows = [
            [
                str(n),
                *(
                    _cell(found[model, mode, n]) if (model, mode, n) in found else ""
                    for mode in modes(of, model)
                ),
            ]
            for n in every
        ]
        head = ["bits:", *(f"{LABELS[mode]}:" for mode in modes(of, model))]
        losses = records.as_floats(full["loss"])
        made.append(
            f"*{full['title']}* ({full['what']}; {full['steps']} steps). FP32 ends at "
            f"{np.mean(losses):.5f}; δ = {full['margin']:.3g}, {full['margin_source']}; "
            f"{len(losses)} pairs.\n\n{report.markdown_table(head, rows)}"
        )
    return "\n\n".join(made)


def _cell(judgement: stats.Judgement) -> str:
    """Mean and half the 90 % interval in units of δ, and the verdict's sign."""
    verdict = judgement.verdict
    sign = _SIGNS[verdict.verdict]
    if verdict.verdict == "equivalent" and not judgement.met:
        sign = "(=)"
    if verdict.verdict == "different" and verdict.direction == "better":
        sign = "≠ better"
    if not math.isfinite(verdict.mean):
        return f"{verdict.diverged} of {verdict.n} diverged {sign}"
    return f"{_with_interval(verdict)} {sign}"


def _number(x: float) -> str:
    return f"{x:+.2f}" if abs(x) < 100 else f"{x:+.0f}"


def _with_interval(verdict: stats.Verdict) -> str:
    """The mean difference and half the width of its 90 % interval."""
    return f"{_number(verdict.mean)} ± {_number((verdict.high - verdict.low) / 2).lstrip('+')}"


def _truncation_table(of: Parts) -> str:
    rows = []
    for model in names(of):
        full = of[f"{model} fp32"]
        nearest = of.get(f"{model} {EVEN}", {})
        for n in bits(of, model, ZERO):
            if n == FP32:
                continue
            arm = of[f"{model} {ZERO}"][str(n)]
            cut, repaired = mean(of, model, arm["loss"]), mean(of, model, arm["repaired"])
            rows.append(
                (
                    full["title"],
                    str(n),
                    f"{of_product(n):.4f}",
                    _number(cut),
                    _number(mean(of, model, full["kernels enlarged"][str(n)])),
                    _number(repaired),
                    _number(mean(of, model, arm["own"])),
                    _number(mean(of, model, nearest[str(n)]["loss"])) if str(n) in nearest else "",
                )
            )
    head = ["net", "bits:", "(1 − s)²:", "truncated:", "FP32 weights, kernels / (1 − s)²:"]
    head += ["truncated, kernels × (1 − s)²:", "truncated, tested truncated:", "to nearest even:"]
    return report.markdown_table(head, rows)


def _passes_table(of: Parts) -> str:
    rows = []
    for model in names(of):
        full = of[f"{model} fp32"]
        for mode in modes(of, model):
            arms = of[f"{model} {mode}"]
            for n in bits(of, model, mode):
                if f"{n} forward" not in arms:
                    continue
                ways = [arms[str(n)], arms[f"{n} forward"], arms[f"{n} backward"]]
                shrunk = full["gradients shrunk"].get(str(n)) if mode == ZERO else None
                rows.append(
                    (
                        full["title"],
                        LABELS[mode],
                        str(n),
                        *(_interval(of, model, arm["loss"]) for arm in ways),
                        "" if shrunk is None else _interval(of, model, shrunk),
                    )
                )
    head = ["net", "operands rounded", "bits:", "both passes:", "forward only:", "backward only:"]
    return report.markdown_table([*head, "FP32, gradients × (1 − s)²ᵏ:"], rows)


def _ended_table(of: Parts) -> str:
    rows = []
    for model in names(of):
        full = of[f"{model} fp32"]
        rows.append((full["title"], "FP32", "", "", "", *_learnt(full)))
        for mode in modes(of, model):
            for n in bits(of, model, mode)[:2]:
                arm = of[f"{model} {mode}"][str(n)]
                own = _number(mean(of, model, arm["own"]))
                rows.append(
                    (
                        full["title"],
                        LABELS[mode],
                        str(n),
                        _interval(of, model, arm["loss"]),
                        own,
                        *_learnt(arm),
                    )
                )
    head = ["net", "operands rounded", "bits:", "tested in FP32, difference / δ:"]
    head += ["tested as trained:", "training loss in FP32:", "test accuracy in FP32:"]
    return report.markdown_table(head, rows)


def _learnt(arm: Mapping[str, Any]) -> tuple[str, str]:
    accuracy = arm["accuracy"]
    return f"{arm['training']:.5f}", "" if accuracy is None else f"{accuracy:.2%}"


def _interval(of: Parts, model: str, losses: Sequence[Any]) -> str:
    return _with_interval(stats.judge(differences(of, model, losses), 1.0))


def _outputs_table(of: Parts) -> str:
    rows = []
    for model in names(of):
        full = of[f"{model} fp32"]
        for n in bits(of, model, ZERO):
            if n == FP32:
                continue
            cells = [full["outputs"].get(mode, {}).get(str(n)) for mode in (ZERO, EVEN, RANDOM)]
            rows.append(
                (
                    full["title"],
                    str(n),
                    f"{along_predicted(n, full['layers']):+.1e}",
                    *("" if c is None else f"{c[0]:+.1e}, {c[1]:.1e}" for c in cells),
                )
            )
    head = ["net", "bits:", "along, predicted for truncation:"]
    head += [f"{LABELS[mode]}: along, across:" for mode in (ZERO, EVEN, RANDOM)]
    return report.markdown_table(head, rows)


def along_predicted(n: int, layers: int) -> float:
    """By what share truncation makes the outputs of so many layers smaller, biases left aside."""
    return of_product(n) ** layers - 1


# --- figures


def figures(of: Parts) -> dict[str, Any]:
    """Differences against bits; what truncation does; errors along and across, and averaged."""
    every = names(of)
    return {
        "dose.svg": report.plot(
            [_margin_panel(of, model) for model in every]
            + [_size_panel(of, model) for model in every],
            title="Difference of the test loss from FP32 in units of δ: mean and 90 % interval",
            columns=len(every),
            height=270,
        ),
        "truncation.svg": report.plot(
            [_repair_panel(of, model) for model in every],
            title="Truncated nets, and what one factor for all kernels does and undoes",
            columns=len(every),
            height=270,
        ),
        "errors.svg": report.plot(
            [_outputs_panel(of, 0), _outputs_panel(of, 1), _averaged_panel(of)],
            title="Errors of truncation line up; of the others, only stochastic ones average out",
            columns=3,
            height=270,
        ),
    }


#: Where 23 bits stand on an axis that ends at 10.
_LAST = 12
_TICKS = {n: str(n) for n in range(1, 11)} | {_LAST: "23"}
_FORMATS = (Mark(x=BF16, label="BF16"), Mark(x=TF32, label="TF32"))


def _arms(of: Parts, model: str, mode: str) -> tuple[list[int], list[stats.Verdict]]:
    """Places on the axis of bits, and what was found there."""
    every = bits(of, model, mode)
    verdicts = [
        stats.judge(differences(of, model, of[f"{model} {mode}"][str(n)]["loss"]), 1.0)
        for n in every
    ]
    return [_LAST if n == FP32 else n for n in every], verdicts


def _margin_panel(of: Parts, model: str) -> Panel:
    curves = []
    for mode in modes(of, model):
        places, found = _arms(of, model, mode)
        curves.append(
            Curve(
                name=LABELS[mode],
                x=places,
                y=[v.mean for v in found],
                low=[v.low for v in found],
                high=[v.high for v in found],
            )
        )
    return Panel(
        title=of[f"{model} fp32"]["title"],
        x="mantissa bits",
        y="difference / δ",
        curves=curves,
        marks=[Mark(y=(-1.0, 1.0), label="± δ"), *_FORMATS],
        ticks=_TICKS,
        limits=(-4.0, 6.0),
    )


def _size_panel(of: Parts, model: str) -> Panel:
    curves = []
    for mode in modes(of, model):
        places, found = _arms(of, model, mode)
        curves.append(_above_zero(LABELS[mode], places, found))
    return Panel(
        title="While the interval lies above zero",
        x="mantissa bits",
        y="difference / δ",
        curves=curves,
        y_scale="log10",
        marks=[Mark(y=1.0, label="δ"), Mark(x=BF16), Mark(x=TF32)],
        ticks={n: text for n, text in _TICKS.items() if n != _LAST},
    )


def _above_zero(name: str, places: Sequence[int], found: Sequence[stats.Verdict]) -> Curve:
    """From the fewest bits on, the means as long as their intervals lie above zero."""
    pairs = itertools.takewhile(lambda pair: pair[1].low > 0, zip(places, found, strict=True))
    shown = [(n, verdict.mean) for n, verdict in pairs]
    return Curve(name=name, x=[n for n, _ in shown], y=[y for _, y in shown])


def _repair_panel(of: Parts, model: str) -> Panel:
    full, cut = of[f"{model} fp32"], of[f"{model} {ZERO}"]
    every = [n for n in bits(of, model, ZERO) if n != FP32]
    ways = {
        "truncated": lambda n: cut[str(n)]["loss"],
        "predicted: FP32 weights, kernels / (1 − s)²": lambda n: full["kernels enlarged"][str(n)],
        "truncated, kernels × (1 − s)²": lambda n: cut[str(n)]["repaired"],
        "to nearest even": lambda n: of.get(f"{model} {EVEN}", {}).get(str(n), {}).get("loss"),
    }
    curves = []
    for name, losses in ways.items():
        tried = [n for n in every if losses(n) is not None]
        found = [stats.judge(differences(of, model, losses(n)), 1.0) for n in tried]
        curves.append(_above_zero(name, tried, found))
    return Panel(
        title=full["title"],
        x="mantissa bits",
        y="difference / δ",
        curves=curves,
        y_scale="log10",
        marks=[Mark(y=1.0, label="δ")],
        ticks={n: str(n) for n in every},
    )


def _outputs_panel(of: Parts, which: int) -> Panel:
    model = names(of)[-1]
    full = of[f"{model} fp32"]
    curves = []
    for mode in modes(of, model):
        errors = full["outputs"][mode]
        shown = sorted(int(n) for n in errors if int(n) != FP32)
        curves.append(
            Curve(name=LABELS[mode], x=shown, y=[abs(errors[str(n)][which]) for n in shown])
        )
    if which == 0:
        every = [n for n in bits(of, model, ZERO) if n != FP32]
        curves.append(
            Curve(
                name="truncation, predicted",
                x=every,
                y=[-along_predicted(n, full["layers"]) for n in every],
                kind="plain",
            )
        )
    return Panel(
        title=f"Outputs of the {full['title']}, {('along', 'across')[which]}",
        x="mantissa bits",
        y="error / outputs",
        curves=curves,
        y_scale="log10",
        ticks={n: str(n) for n in range(1, 11)},
    )


def _averaged_panel(of: Parts) -> Panel:
    found = of["averaged"]
    return Panel(
        title=f"Mean gradient of the MLP, {found['bits']} bits",
        x="batches averaged",
        y="error / gradient",
        curves=[
            Curve(name=LABELS[mode], x=found["batches"], y=found[mode])
            for mode in MODES
            if mode in found
        ],
        x_scale="log2",
        y_scale="log10",
        ticks={n: str(n) for n in found["batches"]},
    )


EXPERIMENT = Experiment(
    file=__file__,
    question="With how few mantissa bits, and rounded how, does training end where FP32 ends?",
    parts=parts,
    tables=tables,
    figures=figures,
    findings=findings,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
