"""Counts where a training step's numbers lie, against the windows of formats and loss scales."""

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jprec import formats, optim, policy, program, report, rounding, train, workloads
from jprec.optim import CLASSES, FIRST_EXPONENT, LAST_EXPONENT
from jprec.study import Arm, Experiment, Finding, Setting, Workload, cells, training, watch

Parts = Mapping[str, Any]

#: Kind of tensor -> its name in words, in the order of tables and figures.
KINDS = {
    "weights": "weights",
    "activations": "activations",
    "activation_gradients": "activation gradients",
    "weight_gradients": "weight gradients",
    "updates": "updates",
}
GRADIENTS = ("activation_gradients", "weight_gradients")

#: Formats whose windows are tried, without a scale.
FORMATS = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3fn")

#: Exponents of the loss scales at which FP16 is tried: those of Micikevicius et al. (2018,
#: section 3.2), 8, 128 and 32K, and those of claim B12, 32, 64 and 128.
USED, NAMED = (3, 7, 15), (5, 6, 7)
SCALES = (0, 3, 5, 6, 7, 15)

#: A mean over 2^10 times as many outputs, as in dense prediction, makes gradients so much smaller.
DENSE = 10

#: The scale under which FP32's own gradients are taken again.
SHIFT = 24

#: Bounds of the decision rules, as README.md states them.
FEW, MANY, HALF = 0.01, 0.1, 0.5

#: Percentages of SSD's activation gradients, as NVIDIA's guide prints them.
PUBLISHED = {"zero": 66.8, "become zero": 31.0, "left": 5.3}

#: Policy -> (how it is written, how it stores); the memory of a step is counted for each.
POLICIES = {
    "fp32": ("fp32", None),
    "mixed_fp16": ("mixed_fp16", None),
    "pure_bf16 + master": ("pure_bf16", "master"),
    "pure_bf16": ("pure_bf16", None),
    "pure_bf16, moments=bfloat16": ("pure_bf16,moments=bfloat16", None),
}

#: Kind of memory -> whether it is held between steps.
MEMORY = {
    "parameters": True,
    "master weights": True,
    "moments": True,
    "copy": False,
    "gradients": False,
    "activations": False,
}


# --- what is trained


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A workload, how it is trained, and what its products are called.

    Attributes:
      make: The workload.
      optimizer: What updates it; `trained`: the same in words.
      steps: Training steps.
      activations: Names of the operands of its forward products, in the order of the program.
      gradients: Names of the gradients that enter its backward products.
    """

    make: Callable[[], Workload]
    optimizer: optax.GradientTransformation
    trained: str
    steps: int
    activations: Sequence[str]
    gradients: Sequence[str]


#: The models by the name of their workload.
MODELS = {
    "digits-autoencoder": Model(
        make=workloads.digits_autoencoder,
        optimizer=optax.adam(3e-3),
        trained="Adam, learning rate 0.003",
        steps=500,
        activations=("layers/0", "layers/1", "layers/2", "layers/3"),
        gradients=("layers/3", "layers/2", "layers/1", "layers/0"),
    ),
    "digits-cnn": Model(
        make=workloads.digits_cnn,
        optimizer=optax.sgd(0.05, momentum=0.9),
        trained="SGD with momentum 0.9, learning rate 0.05",
        steps=300,
        activations=("first", "second", "head"),
        gradients=("head", "second", "first"),
    ),
    "plays-transformer": Model(
        make=workloads.plays_transformer,
        optimizer=optax.adam(2e-3),
        trained="Adam, learning rate 0.002",
        steps=300,
        activations=(
            "query_key_value",
            "query",
            "key",
            "value",
            "attention weights",
            "mix",
            "up",
            "down",
            "head",
        ),
        gradients=(
            "head",
            "down",
            "up",
            "mix",
            "attention",
            "attention logits",
            "query_key_value",
        ),
    ),
}


def shallow() -> Workload:
    """Digits to ten classes through 16 units with ReLU, drawn with few instructions."""
    deep = workloads.digits_mlp()
    images, labels = map(jnp.asarray, deep.test)

    def init(key: jax.Array) -> Any:
        drawn = jax.random.normal(key, (64 + 10, 16)) / 8
        return {"down": {"kernel": drawn[:64]}, "up": {"kernel": drawn[64:].T}}

    def loss(params: Any, batch: Any) -> jax.Array:
        x = jax.nn.relu(batch[0] @ params["down"]["kernel"]) @ params["up"]["kernel"]
        x = x.astype(jnp.float32)
        return (jax.nn.logsumexp(x, -1) - (x * batch[1]).sum(-1)).mean()

    def batches(key: jax.Array) -> Any:
        rows = jax.random.bits(key, (32,)) % len(images)
        return images[rows], jax.nn.one_hot(labels[rows], 10)

    test = (images, jax.nn.one_hot(labels, 10))
    return dataclasses.replace(
        deep, init=init, loss=loss, batches=batches, test=test, accuracy=None, name="shallow"
    )


#: What a miniature trains.
SMALL = {
    "shallow": Model(
        make=functools.cache(shallow),
        optimizer=optax.sgd(0.05),
        trained="SGD, learning rate 0.05",
        steps=3,
        activations=("down", "up"),
        gradients=("up", "down"),
    )
}


@functools.cache
def looked_at(name: str) -> Callable[..., dict[str, Any]]:
    """(parameters, batch, scale) -> gradients and activations of one FP32 step, over seeds.

    Kind -> {layer: [seeds, n] float32}. Activation gradients come multiplied by the scale.
    """
    model = (MODELS | SMALL)[name]
    workload = model.make()
    fp32 = training.full_precision_unless_named(Arm(name="fp32"))

    def tensors(params: Any, batch: Any, scale: jax.Array) -> dict[str, Any]:
        step = train.value_and_grad(workload.loss, fp32, scale=scale, exact=True)
        (_, gradients), operands = program.watch_products(step)(params, batch)
        named = {"activations": model.activations, "activation_gradients": model.gradients}
        found = {
            kind: {layer: x.reshape(-1) for layer, x in zip(of, operands[kind], strict=True)}
            for kind, of in named.items()
        }
        return {**found, "weight_gradients": by_layer(gradients)}

    return jax.jit(jax.vmap(tensors, in_axes=(0, 0, None)))


def by_layer(tree: Any) -> dict[str, jax.Array]:
    """Layer -> all its numbers, [n].

    >>> {k: x.shape for k, x in by_layer({"up": {"bias": jnp.ones(2), "kernel": jnp.ones((3, 2))},
    ...                                   "token": jnp.ones(5)}).items()}
    {'token': (5,), 'up': (8,)}
    """
    found: dict[str, list[jax.Array]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        *above, last = policy.leaf_path(path).split("/")
        found.setdefault("/".join(above) or last, []).append(leaf.reshape(-1))
    return {layer: jnp.concatenate(leaves) for layer, leaves in found.items()}


_layers = jax.jit(jax.vmap(by_layer))


# --- what is counted


#: Numbers are counted in blocks of so many rows of so many numbers: all share one program a format.
_ROWS_A_BLOCK, _NUMBERS_A_ROW = 64, 4096


def counted(arrays: Sequence[np.ndarray], *, fmt: str, exponent: int = 0) -> np.ndarray:
    """[arrays, 284] int64: the counts of `optim.Ranges` of each array, times 2^exponent.

    >>> counted([np.float32([0, 1e-8, 1]), np.zeros(5000, "f")], fmt="fp16")[:, :4].tolist()
    [[1, 1, 0, 1], [5000, 0, 0, 0]]
    """
    rows = [-(-x.size // _NUMBERS_A_ROW) for x in arrays]
    filled = np.zeros((-(-sum(rows) // _ROWS_A_BLOCK) * _ROWS_A_BLOCK, _NUMBERS_A_ROW), np.float32)
    starts = [0, *itertools.accumulate(rows)]
    for x, start in zip(arrays, starts, strict=False):
        filled.reshape(-1)[start * _NUMBERS_A_ROW :][: x.size] = x
    blocks = filled.reshape(-1, _ROWS_A_BLOCK, _NUMBERS_A_ROW)
    scale = jnp.float32(2.0**exponent)
    of_rows = np.concatenate([np.asarray(_of_rows(block, scale, fmt=fmt)) for block in blocks])
    counts = np.stack([of_rows[i:j].sum(0) for i, j in itertools.pairwise(starts)])
    padding = np.multiply(rows, _NUMBERS_A_ROW) - [x.size for x in arrays]
    counts[:, CLASSES.index("zero")] -= padding
    return counts


@functools.partial(jax.jit, static_argnames="fmt")
def _of_rows(block: jax.Array, scale: jax.Array, *, fmt: str) -> jax.Array:
    """[rows, n] -> [rows, 284] int32."""
    ranges = lambda row: optim.number_ranges([row], format=fmt, scale=scale)["0"]  # noqa: E731
    return jax.vmap(lambda row: ranges(row).counts)(block)


def tried(kind: str) -> Iterator[tuple[str, int]]:
    """(format, exponent of the scale) of all that is counted for a kind of tensor."""
    yield from ((fmt, 0) for fmt in FORMATS)
    if kind in GRADIENTS:
        yield from (("fp16", e) for e in SCALES if e)


def key_of(fmt: str, exponent: int = 0) -> str:
    """What a record calls a format at a scale: "fp16" or "fp16 2^3"."""
    return f"{fmt} 2^{exponent}" if exponent else fmt


def records_of(
    found: Mapping[str, Mapping[str, Any]], step: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records of a step, kind -> {layer: [seeds, n]}: of all tensors, and of FP16 by seed.

    Each tensor has a histogram and, by format and scale, its classes over all seeds. For gradients
    the classes over all layers are kept seed by seed too.
    """
    tensors, seeds = [], []
    for kind, of_kind in found.items():
        by_seed = [np.asarray(x) for x in of_kind.values()]
        rows = [row for x in by_seed for row in x]
        for_all = {
            key_of(fmt, e): counted(rows, fmt=fmt, exponent=e).reshape(len(by_seed), -1, COUNTS)
            for fmt, e in tried(kind)
        }
        for i, (layer, x) in enumerate(zip(of_kind, by_seed, strict=True)):
            of_layer = {key: of[i] for key, of in for_all.items()}
            tensors.append(_record(kind, layer, step, x.size, of_layer))
        if kind in GRADIENTS:
            in_fp16 = {
                key: [words(row) for row in of.sum(0)[:, : len(CLASSES)]]
                for key, of in for_all.items()
                if key.startswith("fp16")
            }
            seeds.append({"kind": kind, "step": step, "in": in_fp16})
    return tensors, seeds


#: How many counts `optim.Ranges` has.
COUNTS = len(CLASSES) + LAST_EXPONENT - FIRST_EXPONENT + 1


def _record(
    kind: str, layer: str, step: int, numbers: int, counts: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """One tensor's record, from its counts [seeds, 284] by format and scale."""
    histogram = counts["fp32"][:, len(CLASSES) :].sum(0)
    (seen,) = np.nonzero(histogram)
    low, high = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 0)
    return {
        "kind": kind,
        "layer": layer,
        "step": step,
        "numbers": numbers,
        "first_exponent": low + FIRST_EXPONENT,
        "histogram": words(histogram[low:high]),
        "in": {key: words(of[:, : len(CLASSES)].sum(0)) for key, of in counts.items()},
    }


def words(numbers: Iterable[Any]) -> str:
    """The numbers as one text: a list would take a line for each in the record.

    >>> words([3, 0, 1]), numbers_of("3 0 1")
    ('3 0 1', [3, 0, 1])
    """
    return " ".join(str(int(n)) for n in numbers)


def numbers_of(text: str) -> list[int]:
    """The numbers of a text that `words` wrote."""
    return [int(word) for word in text.split()]


def atlas(name: str, *, seeds: int) -> dict[str, Any]:
    """Trains a model in FP32, and counts at the first step, after a tenth, and at the last."""
    model = (MODELS | SMALL)[name]
    steps = model.steps
    looks = [0, max(1, steps // 10), steps - 1]
    setting = Setting(
        name=name,
        workload=model.make(),
        optimizer=model.optimizer,
        steps=steps,
        points=steps,  # a step at a time, so that every step can be looked at
        arms=("fp32", "fp32_one_ulp"),
    )
    arm = setting.baseline
    programs = training.programs(setting, arm, setting.load())
    numbers = training.seeds_of(range(seeds))
    state = programs.start(numbers)
    first_loss = cells.floats(programs.test(state.params)[0])
    tensors, seeded, hidden, updates = [], [], [], []
    for step in range(steps):
        found = {}
        if step in looks:
            batch = programs.batch(numbers, step)
            found, shifted = (
                looked_at(name)(state.params, batch, jnp.float32(2.0**e)) for e in (0, SHIFT)
            )
            found = {"weights": _layers(state.params), **found}
            hidden.append({"step": step, **zeros_of_fp32(found, shifted)})
        state, _ = programs.stretch(state, numbers, step)
        if step in looks:
            found["updates"] = _layers(state.update)
            updates.append({"step": step, **lost_updates(state.before, state.update)})
            of_step, by_seed = records_of(found, step)
            tensors += of_step
            seeded += by_seed
    return {
        "trained": model.trained,
        "steps": steps,
        "seeds": seeds,
        "looks": looks,
        "guess": setting.load().guess,
        "test_loss": {"first": first_loss, "last": cells.floats(programs.test(state.params)[0])},
        "tensors": tensors,
        "by_seed": seeded,
        "zeros_of_fp32": hidden,
        "lost_updates": updates,
    }


def zeros_of_fp32(found: Mapping[str, Any], shifted: Mapping[str, Any]) -> dict[str, int]:
    """How many activation gradients are zero, and how many are not when the loss is scaled."""
    pairs = [
        (np.asarray(found["activation_gradients"][layer]), np.asarray(x))
        for layer, x in shifted["activation_gradients"].items()
    ]
    return {
        "zeros": sum(int(np.count_nonzero(x == 0)) for x, _ in pairs),
        "appear": sum(int(np.count_nonzero((x == 0) & (y != 0))) for x, y in pairs),
        "moved": sum(int(np.count_nonzero(np.ldexp(x, SHIFT) != y)) for x, y in pairs),
    }


def lost_updates(before: Any, update: Any) -> dict[str, Any]:
    """Format -> how many of the updates are not zero, and how many weights stored in it lose."""
    found: dict[str, Any] = {}
    for fmt, dtype in (("fp16", jnp.float16), ("bf16", jnp.bfloat16)):
        low = jax.tree.map(lambda w, f=fmt, d=dtype: rounding.round_to(w, f).astype(d), before)
        counter = watch.UpdateCounter()
        counter.add(low, update)
        nonzero = counter.total - counter.zeros - counter.nonfinite
        found[fmt] = {"nonzero": nonzero, "lost": counter.lost}
    return found


# --- memory


def memory(names: Iterable[str]) -> dict[str, Any]:
    """Model -> {"parameters": how many, "bytes": {policy: {kind: bytes}}} of one training step."""
    found = {}
    for name in names:
        workload = (MODELS | SMALL)[name].make()
        params = jax.eval_shape(workload.init, jax.random.key(0))
        found[name] = {
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
            "bytes": {p: bytes_of(workload, p) for p in POLICIES},
        }
    return found


def bytes_of(workload: Workload, name: str) -> dict[str, int]:
    """Kind of memory -> bytes that a step of Adam holds, from shapes and dtypes alone."""
    written, store = POLICIES[name]
    of = policy.get(written)
    params = train.cast(jax.eval_shape(workload.init, jax.random.key(0)), of, "params")
    is_norm = any("norm" in path for path in by_path(params))
    # As in the study: norms compute in FP32, and their parameters are not narrowed for them.
    in_layers = policy.get(f"{of};norm->compute=float32") if is_norm and name != "fp32" else of
    low = train.cast(params, in_layers, "compute")
    batch = train.cast(jax.eval_shape(workload.batches, jax.random.key(0)), of, "compute")
    # What SGD's state has too is no moment: master weights.
    adam, bare = (
        size(numbers(jax.eval_shape(optim.wrap(tx, moments, store=store).init, params)))
        for tx, moments in (
            (optax.adam(1e-3), of),
            (optax.sgd(1e-3), dataclasses.replace(of, moments="float32")),
        )
    )
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(low), strict=True)
    return {
        "parameters": size(params),
        "master weights": bare,
        "moments": adam - bare,
        "copy": size([narrow for stored, narrow in pairs if narrow.dtype != stored.dtype]),
        # The gradient of a cast parameter has its dtype.
        "gradients": size(low),
        "activations": size(kept(workload.loss, low, batch)),
    }


def by_path(tree: Any) -> list[str]:
    """The paths of all leaves."""
    return [policy.leaf_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def numbers(state: Any) -> list[Any]:
    """The arrays of numbers in an optimiser's state: no scalars, counters and keys."""
    leaves = jax.tree.leaves(state)
    return [x for x in leaves if x.ndim and jnp.issubdtype(x.dtype, jnp.floating)]


def size(tree: Any) -> int:
    """Bytes of all arrays of `tree`."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def kept(loss: Callable[..., jax.Array], params: Any, batch: Any) -> list[Any]:
    """What the forward pass keeps for the backward pass, each array once, without parameters.

    >>> square = lambda w, x: jnp.sum((x @ w) ** 2)
    >>> w, x = jnp.ones((3, 2)), jnp.ones((4, 3))
    >>> sorted(a.shape for a in kept(square, w, x))
    [(4, 2), (4, 3)]
    """
    residuals = lambda p, b: jax.tree.leaves(jax.vjp(lambda q: loss(q, b), p)[1])  # noqa: E731
    traced = jax.make_jaxpr(residuals)(params, batch).jaxpr
    own = traced.invars[: len(jax.tree.leaves(params))]
    once = {id(var): var for var in traced.outvars if var not in own}
    return [var.aval for var in once.values()]


# --- the parts


def parts(small: bool) -> dict[str, Callable[[], Any]]:
    """Name -> what computes it: a model each, and the memory of all."""
    tried = SMALL if small else MODELS
    seeds = 2 if small else 4
    todo: dict[str, Callable[[], Any]] = {
        name: functools.partial(atlas, name, seeds=seeds) for name in tried
    }
    todo["memory"] = functools.partial(memory, tuple(tried))
    return todo


# --- what the record says


@dataclasses.dataclass(frozen=True)
class Classes:
    """How many numbers are in each class of a format."""

    zero: int
    flushed: int
    subnormal: int
    normal: int
    overflow: int
    infinite: int
    nan: int

    @property
    def total(self) -> int:
        """All numbers."""
        return sum(dataclasses.astuple(self))

    @property
    def nonzero(self) -> int:
        """All but the zeros that were there before."""
        return self.total - self.zero

    @property
    def flushed_share(self) -> float:
        """The share of the nonzero numbers that become zero."""
        return self.flushed / max(self.nonzero, 1)


def added(texts: Iterable[str]) -> list[int]:
    """The sums, class by class."""
    rows = [numbers_of(text) for text in texts]
    return [sum(column) for column in zip(*rows, strict=True)]


def models(parts: Parts) -> list[str]:
    """The models in the record."""
    return [name for name in (*MODELS, *SMALL) if name in parts]


def tensors(
    parts: Parts, name: str, kind: str, *, step: int | None = None, layer: str | None = None
) -> list[Mapping[str, Any]]:
    """The tensors of a model and a kind; of one step, or of one layer."""
    return [
        t
        for t in parts[name]["tensors"]
        if t["kind"] == kind and step in (None, t["step"]) and layer in (None, t["layer"])
    ]


def classes(
    parts: Parts,
    name: str,
    kind: str,
    *,
    fmt: str = "fp16",
    exponent: int = 0,
    step: int | None = None,
    layer: str | None = None,
) -> Classes:
    """All seeds, and all steps and layers unless one is named, in a format at a scale."""
    found = tensors(parts, name, kind, step=step, layer=layer)
    return Classes(*added(t["in"][key_of(fmt, exponent)] for t in found))


def of_seeds(parts: Parts, name: str, kind: str, *, exponent: int) -> list[Classes]:
    """Seed by seed, all layers and steps, in FP16 at a scale."""
    key = key_of("fp16", exponent)
    found = [t["in"][key] for t in parts[name]["by_seed"] if t["kind"] == kind]
    return [Classes(*added(texts)) for texts in zip(*found, strict=True)]


def histogram(found: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Exponent -> how many numbers of these tensors have it."""
    total: dict[int, int] = {}
    for t in found:
        for e, n in enumerate(numbers_of(t["histogram"]), t["first_exponent"]):
            total[e] = total.get(e, 0) + n
    return dict(sorted(total.items()))


def below(of: Mapping[int, int], exponent: int) -> float:
    """The share of the nonzero numbers whose exponent is smaller.

    >>> below({-25: 1, -24: 3}, -24)
    0.25
    """
    return sum(n for e, n in of.items() if e < exponent) / max(sum(of.values()), 1)


def flushed_at(of: Mapping[int, int], exponent: int) -> float:
    """The share of the nonzero numbers that FP16 flushes at a scale of 2^exponent.

    From the histogram: 2^-25 itself, which is flushed too, is counted with the numbers above it.

    >>> flushed_at({-30: 1, -26: 2, -3: 1}, 0), flushed_at({-30: 1, -3: 1}, 5)
    (0.75, 0.0)
    """
    return below(of, window("fp16")[0] - 1 - exponent)


def median(of: Mapping[int, int]) -> int | None:
    """The median exponent, the lower of two; None of no numbers.

    >>> median({-3: 1, 0: 1, 5: 1}), median({})
    (0, None)
    """
    total = itertools.accumulate(of.values())
    half = (sum(of.values()) + 1) // 2
    return next((e for e, n in zip(of, total, strict=True) if n >= half > 0), None)


def window(fmt: str) -> tuple[int, int, int]:
    """The exponents of the smallest subnormal, the smallest normal and the largest number.

    >>> window("fp16")
    (-24, -14, 15)
    """
    of = formats.get(fmt)
    return of.min_exponent - of.mantissa_bits, of.min_exponent, of.max_exponent


def adding_up(counts: Sequence[int], *, digits: int = 2) -> list[str]:
    """Percentages of the sum that add up to 100 as they are printed.

    Each is rounded down, and what is missing goes to those that lost most (largest remainders).

    >>> adding_up([1, 1, 1]), adding_up([668, 310, 53], digits=1)
    (['33.34', '33.33', '33.33'], ['64.8', '30.1', '5.1'])
    """
    unit = 10**digits
    total = max(sum(counts), 1)
    floors = [n * 100 * unit // total for n in counts]
    rest = [n * 100 * unit % total for n in counts]
    missing = 100 * unit - sum(floors) if sum(counts) else 0
    for i in sorted(range(len(counts)), key=lambda i: -rest[i])[:missing]:
        floors[i] += 1
    return [f"{n // unit}.{n % unit:0{digits}d}" for n in floors]


def controls(parts: Parts) -> dict[str, bool]:
    """The controls of README.md, by what they say."""
    every = [t for name in models(parts) for t in parts[name]["tensors"]]
    add_up = all(sum(numbers_of(text)) == t["numbers"] for t in every for text in t["in"].values())
    in_fp32 = [Classes(*numbers_of(t["in"]["fp32"])) for t in every]
    static = {
        p: [
            sum(of["bytes"][p][k] for k, s in MEMORY.items() if s) / of["parameters"] for of in all_
        ]
        for all_ in [parts["memory"].values()]
        for p in POLICIES
    }
    hidden = [look for name in models(parts) for look in parts[name]["zeros_of_fp32"]]
    return {
        "classes add up to the number of numbers": add_up,
        "FP32 loses nothing": all(c.zero + c.normal == c.total for c in in_fp32),
        "zeros are the model's own": not any(look["appear"] for look in hidden),
        "E4M3 without a scale flushes most activation gradients": all(
            _last(parts, name, "e4m3fn").flushed_share > HALF for name in models(parts)
        ),
        "12 bytes a parameter in FP32, 6 in 16 bits": set(static["fp32"]) == {12.0}
        and set(static["pure_bf16, moments=bfloat16"]) == {6.0},
    }


def _last(parts: Parts, name: str, fmt: str) -> Classes:
    """The activation gradients of the last step."""
    step = parts[name]["looks"][-1]
    return classes(parts, name, "activation_gradients", fmt=fmt, step=step)


# --- tables


def tables(parts: Parts) -> dict[str, str]:
    """The generated parts of README.md."""
    return {
        "findings": report.markdown_table(
            ["claim", "verdict", "evidence"],
            [(f.claim, f.verdict, f.sentence) for f in findings(parts)],
        ),
        "published": _published_table(),
        "shares": _shares_table(parts),
        "windows": _windows_table(),
        "scales": _scales_table(parts),
        "dense": _dense_table(parts),
        "updates": _updates_table(parts),
        "memory": _memory_table(parts),
        "layers": _layers_table(parts),
        "controls": _controls_table(parts),
    }


def _percent(share: float) -> str:
    if 0 < share < 0.0001:
        return "< 0.01 %"
    return f"{share:.2%}".replace("%", " %") if share < 0.1 else f"{share:.1%}".replace("%", " %")


def _span(shares: Sequence[float]) -> str:
    low, high = _percent(min(shares)), _percent(max(shares))
    return low if low == high else f"{low.removesuffix(' %')} … {high}"


def _published_table() -> str:
    zero, flushed, left = PUBLISHED.values()
    rows = [
        ("as printed", zero, flushed, left),
        ("if the first two are right", zero, flushed, 100 - zero - flushed),
        ("if the first and the last are", zero, 100 - zero - left, left),
        ("if the last two are", 100 - flushed - left, flushed, left),
    ]
    head = ["SSD, activation gradients", "zero:", "become zero in FP16:", "left nonzero:", "sum:"]
    return report.markdown_table(
        head, [(what, *(f"{x:.1f}" for x in (*of, sum(of)))) for what, *of in rows]
    )


def _windows_table() -> str:
    rows = []
    for fmt in FORMATS:
        low, normal, high = window(fmt)
        of = formats.get(fmt)
        bits = str(of.mantissa_bits)
        rows.append((fmt.upper(), bits, f"{low}", f"{normal}", f"{high}", f"{high - low + 1}"))
    head = ["format", "fraction bits:", "smallest subnormal 2^:", "smallest normal 2^:"]
    return report.markdown_table([*head, "largest exponent:", "exponents:"], rows)


def _shares_table(parts: Parts) -> str:
    rows = []
    for name in models(parts):
        for kind, what in KINDS.items():
            of = classes(parts, name, kind)
            beyond = of.overflow + of.infinite + of.nan
            printed = adding_up([of.zero, of.flushed, of.subnormal, of.normal, beyond])
            others = (
                max(classes(parts, name, kind, fmt=fmt).flushed for fmt in together)
                for together in (("e5m2",), ("e4m3fn",), ("bf16", "tf32"))
            )
            lost = [f"{100 * flushed / max(of.total, 1):.2f}" for flushed in others]
            rows.append((f"`{name}`", what, f"{of.total}", *printed, *lost))
    head = ["model", "numbers that are", "how many:", "zero:", "flushed in FP16:", "subnormal:"]
    head += ["normal:", "beyond:", "flushed in E5M2:", "in E4M3:", "in BF16, TF32:"]
    return report.markdown_table(head, rows)


def _scales_table(parts: Parts) -> str:
    rows = []
    for name, kind in itertools.product(models(parts), GRADIENTS):
        without = classes(parts, name, kind)
        for e in SCALES:
            of = classes(parts, name, kind, exponent=e)
            shares = [c.flushed_share for c in of_seeds(parts, name, kind, exponent=e)]
            back = (without.flushed - of.flushed) / max(without.flushed, 1)
            rows.append(
                (
                    f"`{name}`",
                    KINDS[kind],
                    f"{2**e}",
                    f"{_percent(of.flushed_share)} ({_span(shares)})",
                    _percent(back) if e and without.flushed else "–",
                    _percent(of.subnormal / max(of.nonzero, 1)),
                    f"{of.overflow}",
                )
            )
    head = ["model", "numbers that are", "scale:", "flushed (seeds):", "brought back:"]
    return report.markdown_table([*head, "subnormal:", "beyond, how many:"], rows)


def _dense_table(parts: Parts) -> str:
    rows = []
    for name in models(parts):
        of = histogram(tensors(parts, name, "activation_gradients"))
        for more in (0, DENSE):
            shares = (_percent(flushed_at(of, e - more)) for e in (0, *USED))
            rows.append((f"`{name}`", f"{2**more}", *shares))
    head = ["model", "times as many outputs:", "flushed without a scale:"]
    return report.markdown_table([*head, *(f"× {2**e}:" for e in USED)], rows)


def _updates_table(parts: Parts) -> str:
    rows = []
    for name in models(parts):
        for look in parts[name]["lost_updates"]:
            of = classes(parts, name, "updates", step=look["step"])
            lost = [_percent(look[fmt]["lost"] / max(look[fmt]["nonzero"], 1)) for fmt in LOW]
            rows.append((f"`{name}`", f"{look['step']}", _percent(of.flushed_share), *lost))
    head = ["model", "step:", "updates that FP16 flushes:", "lost by FP16 weights:"]
    return report.markdown_table([*head, "lost by BF16 weights:"], rows)


#: Formats of 16 bits in which weights may be stored.
LOW = ("fp16", "bf16")


@dataclasses.dataclass(frozen=True)
class Held:
    """Bytes that a policy holds: static, dynamic, and both against FP32."""

    static: int
    dynamic: int
    ratio: float


def held(parts: Parts, name: str, of_policy: str) -> Held:
    """The two parts of memory of a model under a policy."""
    of, fp32 = (parts["memory"][name]["bytes"][p] for p in (of_policy, "fp32"))
    static = sum(of[kind] for kind, is_static in MEMORY.items() if is_static)
    dynamic = sum(of.values()) - static
    return Held(static, dynamic, (static + dynamic) / sum(fp32.values()))


def _memory_table(parts: Parts) -> str:
    rows = []
    for name, found in parts["memory"].items():
        for p, of in found["bytes"].items():
            in_all = held(parts, name, p)
            numbers = [*(of[kind] for kind in MEMORY), in_all.static, in_all.dynamic]
            each = (f"{n / found['parameters']:.1f}" if n else "–" for n in numbers)
            rows.append((f"`{name}`", f"`{p}`", *each, f"{100 * in_all.ratio:.0f} %"))
    head = ["model", "policy", *(f"{kind}:" for kind in MEMORY)]
    listed = ", ".join(f"{found['parameters']} `{n}`" for n, found in parts["memory"].items())
    table = report.markdown_table([*head, "static:", "dynamic:", "of FP32:"], rows)
    return f"Parameters: {listed}.\n\n{table}"


def _layers_table(parts: Parts) -> str:
    rows = []
    for name in models(parts):
        looks = parts[name]["looks"]
        for kind in KINDS:
            for t in tensors(parts, name, kind, step=looks[-1]):
                medians = (
                    median(histogram(tensors(parts, name, kind, step=s, layer=t["layer"])))
                    for s in looks
                )
                of = classes(parts, name, kind, step=looks[-1], layer=t["layer"])
                shares = (f"{100 * n / max(of.total, 1):.2f}" for n in (of.zero, of.flushed))
                shown = " → ".join("–" if m is None else f"{m}" for m in medians)
                rows.append((f"`{name}`", KINDS[kind], t["layer"], shown, *shares))
    head = ["model", "numbers that are", "layer", "median exponent:", "zero:", "flushed in FP16:"]
    return report.markdown_table(head, rows)


def _controls_table(parts: Parts) -> str:
    said = {True: "yes", False: "**no**"}
    rows = [(what, said[holds]) for what, holds in controls(parts).items()]
    lines = []
    for name in models(parts):
        of = parts[name]
        loss = [_losses(of["test_loss"][when]) for when in ("first", "last")]
        moved = sum(look["moved"] for look in of["zeros_of_fp32"])
        lines.append(
            f"`{name}` ({of['trained']}; {of['steps']} steps, {of['seeds']} seeds): test loss "
            f"{loss[0]} before training, {loss[1]} after it, {of['guess']:.3g} by guessing. E4M3 "
            f"flushes {_percent(_last(parts, name, 'e4m3fn').flushed_share)} of the nonzero "
            f"activation gradients of the last step. With the loss scaled by 2^{SHIFT}, {moved} "
            f"activation gradients are not 2^{SHIFT} times what they were."
        )
    return "\n\n".join([report.markdown_table(["control", "holds"], rows), *lines])


def _losses(of: Sequence[float]) -> str:
    return f"{sum(of) / len(of):.3g}"


# --- figures


#: Beyond these exponents nothing is drawn; zeros stand at ZERO.
LOWEST, ZERO = -46, -54

#: The least share that is drawn; below it stand the windows.
_FLOOR = 2e-5
_WINDOWS = {"fp16": ("FP16", 4e-6), "e5m2": ("E5M2", 1.6e-6), "e4m3fn": ("E4M3", 6e-7)}


def figures(parts: Parts) -> dict[str, Any]:
    """File -> figure; the first stands for the experiment."""
    return {
        "atlas.svg": report.plot(
            [_atlas_panel(parts, name, kind) for kind in KINDS for name in models(parts)],
            columns=len(models(parts)),
            height=205,
            title="Exponents in training, and the windows of formats",
        ),
        "shares.svg": report.plot(
            [_shares_panel(parts, name, kind) for name in models(parts) for kind in GRADIENTS],
            columns=2,
            height=230,
            title="What FP16 does to gradients, against the loss scale",
        ),
    }


def _atlas_panel(parts: Parts, name: str, kind: str) -> report.Panel:
    curves = []
    for when, step in zip(
        ("first step", "after a tenth", "last step"), parts[name]["looks"], strict=True
    ):
        found = tensors(parts, name, kind, step=step)
        of = classes(parts, name, kind, step=step)
        zeros = {"x": [ZERO], "y": [of.zero / of.total]}
        shares = {e: n / of.total for e, n in histogram(found).items() if n / of.total >= _FLOOR}
        curves.append(report.Curve(name=when, **zeros, kind="points"))
        curves.append(
            report.Curve(
                name=when,
                x=[e for e in shares if e >= LOWEST],
                y=[s for e, s in shares.items() if e >= LOWEST],
                kind="plain",
            )
        )
    for fmt, (label, height) in _WINDOWS.items():
        low, _, high = window(fmt)
        curves.append(report.Curve(name=label, x=[low, high + 1], y=[height] * 2, kind="plain"))
    return report.Panel(
        title=f"{KINDS[kind]}, {name.split('-')[-1]}",
        x="exponent" if kind == "updates" else "",
        y="share of all" if name == models(parts)[0] else "",
        y_scale="log10",
        curves=curves,
        marks=[report.Mark(x=(window("fp16")[0], window("fp16")[2] + 1))],
        ticks={ZERO: "zero", **{e: f"{e}" for e in (-24, 0)}},
        limits=(3e-7, 1.5),
    )


def _shares_panel(parts: Parts, name: str, kind: str) -> report.Panel:
    of = histogram(tensors(parts, name, kind))
    total = max(sum(of.values()), 1)
    smallest, normal, largest = window("fp16")
    at = list(range(-16, 25))
    regions = {
        "flushed": (-math.inf, smallest - 1),
        "subnormal": (smallest - 1, normal),
        "beyond the largest": (largest + 1, math.inf),
    }
    curves = [
        report.Curve(
            name=label,
            x=at,
            y=[sum(n for e, n in of.items() if low <= e + s < high) / total for s in at],
            kind="plain",
        )
        for label, (low, high) in regions.items()
    ]
    return report.Panel(
        title=f"{KINDS[kind]}, {name.split('-')[-1]}",
        x="loss scale",
        y="share of the nonzero",
        curves=curves,
        marks=[
            report.Mark(x=e, label=label)
            for e, label in zip(USED, ("8", "128", "32K"), strict=True)
        ],
        ticks={e: f"2^{e}" if e else "1" for e in range(-16, 25, 8)},
        limits=(-0.02, 1.02),
    )


# --- findings


def findings(parts: Parts) -> list[Finding]:
    """By the rules of README.md; nothing is found where a control does not hold."""
    found = [
        _range(parts),
        _many_zeros(parts),
        *_overflow_and_updates(parts),
        _factors(parts, "B12", NAMED),
        _weight_gradients(parts),
        _zeros(parts),
        _unused(parts),
        _factors(parts, "M3.2", USED),
        *_memory(parts),
    ]
    if all(controls(parts).values()):
        return found
    return [
        Finding(claim=f.claim, verdict="undecided", sentence=f"A control failed. {f.sentence}")
        for f in found
    ]


def _each(parts: Parts, say: Callable[[str], str]) -> str:
    return ", ".join(f"{say(name)} ({name.split('-')[-1]})" for name in models(parts))


def _range(parts: Parts) -> Finding:
    """A10: the range of the gradients matters more than the digits."""
    lost = {
        fmt: sum(
            classes(parts, n, kind, fmt=fmt).flushed for n in models(parts) for kind in GRADIENTS
        )
        for fmt in ("tf32", "bf16")
    }
    fp16 = {n: classes(parts, n, "activation_gradients").flushed_share for n in models(parts)}
    outcome: Any = "undecided"
    if not any(fp16.values()):
        outcome = "refuted in miniature"
    elif max(fp16.values()) > FEW and not any(lost.values()):
        outcome = "confirmed"
    return Finding(
        claim="A10",
        verdict=outcome,
        sentence="Of the nonzero activation gradients FP16 flushes "
        f"{_each(parts, lambda n: _percent(fp16[n]))} without a scale; of all gradients TF32, "
        f"with as many digits, flushes {lost['tf32']}, and BF16, with fewer, {lost['bf16']}. That "
        "the range decides which numbers survive is shown; whether training needs them is not "
        "tried here. Counted on FP32 training on a CPU.",
    )


def _many_zeros(parts: Parts) -> Finding:
    """A11: in FP16 many gradients become zero."""
    kind = "activation_gradients"
    shares = {
        (n, s): classes(parts, n, kind, step=s).flushed_share
        for n in models(parts)
        for s in parts[n]["looks"]
    }
    most = max(shares.values())
    outcome: Any = "corrected"
    if most >= MANY:
        outcome = "confirmed"
    elif most <= FEW:
        outcome = "refuted in miniature"

    def first_to_last(name: str) -> str:
        looks = parts[name]["looks"]
        return f"{_percent(shares[name, looks[0]])} → {_percent(shares[name, looks[-1]])}"

    layer, worst = _worst_layer(parts)
    return Finding(
        claim="A11",
        verdict=outcome,
        sentence="Without a scale FP16 flushes, of the nonzero activation gradients from the first "
        f"to the last step, {_each(parts, first_to_last)}; of one layer at most {_percent(worst)} "
        f"({layer}). Whether training then fails is not tried here. Counted on FP32 training on a "
        "CPU.",
    )


def _worst_layer(parts: Parts) -> tuple[str, float]:
    """The layer and step at which FP16 flushes most of the nonzero activation gradients."""
    of = {
        f"`{t['layer']}`, {name.split('-')[-1]}, step {t['step']}": Classes(
            *numbers_of(t["in"]["fp16"])
        ).flushed_share
        for name in models(parts)
        for t in tensors(parts, name, "activation_gradients")
    }
    return max(of.items(), key=lambda item: item[1])


def _overflow_and_updates(parts: Parts) -> list[Finding]:
    """B9: FP16 overflows when the loss is propagated back; BF16's error in the update is large."""
    of = [classes(parts, n, kind) for n in models(parts) for kind in GRADIENTS]
    beyond, flushed = sum(c.overflow + c.infinite for c in of), sum(c.flushed for c in of)
    outcome: Any = "undecided"
    if beyond > flushed:
        outcome = "confirmed"
    elif not beyond and flushed:
        outcome = "corrected"
    last = {n: parts[n]["lost_updates"][-1] for n in models(parts)}
    lost = {
        fmt: {n: look[fmt]["lost"] / max(look[fmt]["nonzero"], 1) for n, look in last.items()}
        for fmt in LOW
    }
    large = any(lost["bf16"][n] > max(HALF, lost["fp16"][n]) for n in last)
    return [
        Finding(
            claim="B9",
            verdict=outcome,
            sentence=f"Of {sum(c.nonzero for c in of)} nonzero gradients, {beyond} exceed FP16's "
            f"largest value and {flushed} become zero without a scale: FP16 underflows. "
            "Overflow comes with a loss scale that is too large. Counted on FP32 training on a "
            "CPU.",
        ),
        Finding(
            claim="B9",
            verdict="confirmed" if large else "refuted in miniature",
            sentence="At the last step weights in BF16, rounded to nearest, lose "
            f"{_each(parts, lambda n: _percent(lost['bf16'][n]))} of the nonzero updates; weights "
            f"in FP16 lose {_each(parts, lambda n: _percent(lost['fp16'][n]))}. Emulated.",
        ),
    ]


def _factors(parts: Parts, claim: str, exponents: Sequence[int]) -> Finding:
    """B12 and M3.2: factors that bring gradients back into FP16's range."""
    kind = "activation_gradients"
    needy = [n for n in models(parts) if classes(parts, n, kind).flushed_share > FEW]
    found = {e: {n: classes(parts, n, kind, exponent=e) for n in needy} for e in exponents}

    def works(e: int) -> bool:
        beyond = sum(
            classes(parts, n, k, exponent=e).overflow for n in models(parts) for k in GRADIENTS
        )
        return not beyond and all(c.flushed_share <= FEW for c in found[e].values())

    good = [e for e in exponents if works(e)]
    outcome: Any = "undecided"
    if needy:
        outcome = "refuted in miniature" if not good else "corrected"
        outcome = "confirmed" if len(good) == len(exponents) else outcome
    listed = "; ".join(
        f"× {2**e}: {_span([classes(parts, n, kind, exponent=e).flushed_share for n in of_all])}"
        for of_all in [models(parts)]
        for e in exponents
    )
    beyond = sum(
        classes(parts, n, k, exponent=max(exponents)).overflow
        for n in models(parts)
        for k in GRADIENTS
    )
    without = _each(parts, lambda n: _percent(classes(parts, n, kind).flushed_share))
    return Finding(
        claim=claim,
        verdict=outcome,
        sentence=f"Without a scale FP16 flushes {without} of the nonzero activation gradients: "
        f"{len(needy)} of {len(models(parts))} models lose more than {_percent(FEW)}, and the rule "
        f"asks of these alone. Flushed in any model with the loss {listed}; with the largest "
        f"factor {beyond} gradients exceed FP16's largest value. Counted on FP32 training on a "
        "CPU.",
    )


def _weight_gradients(parts: Parts) -> Finding:
    """M3.1: about 5 % of weight gradients have exponents below -24."""
    smallest = window("fp16")[0]
    share = {
        n: below(histogram(tensors(parts, n, "weight_gradients")), smallest) for n in models(parts)
    }
    outcome: Any = "corrected"
    if all(0.025 <= s <= 0.1 for s in share.values()):
        outcome = "confirmed"
    elif all(s < 0.001 for s in share.values()):
        outcome = "refuted in miniature"
    flushed = {n: classes(parts, n, "weight_gradients").flushed_share for n in models(parts)}
    updates = {n: classes(parts, n, "updates").flushed_share for n in models(parts)}
    return Finding(
        claim="M3.1",
        verdict=outcome,
        sentence=f"Below 2^{smallest} lie {_each(parts, lambda n: _percent(share[n]))} of the "
        f"nonzero weight gradients; {_each(parts, lambda n: _percent(flushed[n]))} become zero in "
        f"FP16, which rounds what is above 2^{smallest - 1} up to 2^{smallest}; of the updates "
        f"that the optimisers make of them {_each(parts, lambda n: _percent(updates[n]))}. "
        "Counted on FP32 training on a CPU.",
    )


def _zeros(parts: Parts) -> Finding:
    """M3.2: two thirds of the activation gradients are zero."""
    of = {n: classes(parts, n, "activation_gradients") for n in models(parts)}
    share = {n: c.zero / c.total for n, c in of.items()}
    many = [s >= HALF for s in share.values()]
    by_layer = [
        f"`{layer}` {_percent(found.zero / found.total)}"
        for n in models(parts)
        for layer in dict.fromkeys(t["layer"] for t in tensors(parts, n, "activation_gradients"))
        for found in [classes(parts, n, "activation_gradients", layer=layer)]
        if found.zero > FEW * found.total
    ]
    outcome: Any = "corrected" if any(many) else "refuted in miniature"
    return Finding(
        claim="M3.2",
        verdict="confirmed" if all(many) else outcome,
        sentence=f"Zero are {_each(parts, lambda n: _percent(share[n]))} of the activation "
        f"gradients (SSD: {PUBLISHED['zero']} %), already in FP32 and at any scale; by layer, "
        f"where more than {_percent(FEW)} are: {', '.join(by_layer) or 'none'}. Counted on FP32 "
        "training on a CPU.",
    )


def _unused(parts: Parts) -> Finding:
    """M3.2: much of FP16's range is unused."""
    smallest, _, largest = window("fp16")
    top = {n: max(histogram(tensors(parts, n, "activation_gradients"))) for n in models(parts)}
    unused = {n: largest - e for n, e in top.items()}
    half = (largest - smallest + 1) / 2
    return Finding(
        claim="M3.2",
        verdict="confirmed" if min(unused.values()) >= half else "corrected",
        sentence=f"Of FP16's {largest - smallest + 1} exponents, "
        f"{_each(parts, lambda n: str(unused[n]))} lie above the largest activation gradient. "
        "Counted on FP32 training on a CPU.",
    )


def _memory(parts: Parts) -> list[Finding]:
    """B8: range and digits; memory is half. B15: what is saved, and where."""
    low, high = zip(*(window(f)[::2] for f in ("fp16", "bf16", "fp32")), strict=True)
    bits = [formats.get(f).precision for f in ("fp16", "bf16", "fp32")]
    ordered = low[0] > low[1] and high[0] < high[1] == high[2] and bits[1] < bits[0] < bits[2]
    names = list(parts["memory"])
    ratios = {p: [held(parts, n, p).ratio for n in names] for p in list(POLICIES)[1:]}
    main = [*ratios["mixed_fp16"], *ratios["pure_bf16 + master"]]
    outcome: Any = "corrected"
    if all(0.45 <= r <= 0.55 for r in main):
        outcome = "confirmed"
    elif all(r >= 1 for r in main):
        outcome = "refuted in miniature"
    static = {p: [held(parts, n, p).static for n in names] for p in POLICIES}
    per = [parts["memory"][n]["parameters"] for n in names]
    listed = ", ".join(f"`{p}` {_span(ratios[p])}" for p in ratios)
    of_activations = (
        [found["bytes"][p]["activations"] for p in ("mixed_fp16", "fp32")]
        for found in parts["memory"].values()
    )
    narrow = [mixed / fp32 for mixed, fp32 in of_activations]
    fixed = ", ".join(f"{_bytes(static[p], per)} in `{p}`" for p in ratios)
    return [
        Finding(
            claim="B8",
            verdict="confirmed" if ordered else "refuted in miniature",
            sentence=f"FP32 and BF16 reach to 2^{high[1]} and FP16 to 2^{high[0]}; the smallest "
            f"numbers are 2^{low[2]}, 2^{low[1]} and 2^{low[0]}; digits in bits, the implicit one "
            f"included, {bits[2]}, {bits[1]} and {bits[0]}. By definition of the formats.",
        ),
        Finding(
            claim="B8",
            verdict=outcome,
            sentence="A number takes half, training does not. Of all bytes that FP32 holds with "
            f"Adam, these take: {listed}. Static, in bytes a parameter: "
            f"{_bytes(static['fp32'], per)} in `fp32`, {fixed}. Activations take "
            f"{_span(narrow)} of FP32's, since losses, norms and softmax keep theirs in FP32. "
            "Counted from shapes and dtypes.",
        ),
        _where_saved(parts),
    ]


def _bytes(of: Sequence[int], per: Sequence[int]) -> str:
    each = sorted(n / p for n, p in zip(of, per, strict=True))
    # Zero has no sign here: what is saved may be less than nothing by a rounding.
    low, high = (f"{round(x, 1) + 0.0:.1f}" for x in (each[0], each[-1]))
    return low if low == high else f"{low} … {high}"


def _where_saved(parts: Parts) -> Finding:
    """B15: parameters and gradients in FP16 save on the dynamic part."""
    saved: dict[str, list[int]] = {"parameters and gradients": [], "activations": []}
    static = []
    for found in parts["memory"].values():
        before, after = found["bytes"]["fp32"], found["bytes"]["mixed_fp16"]
        less = {kind: before[kind] - after[kind] for kind in MEMORY}
        saved["parameters and gradients"].append(less["copy"] + less["gradients"])
        saved["activations"].append(less["activations"])
        static.append(sum(less[kind] for kind, is_static in MEMORY.items() if is_static))
    of_numbers, of_activations = saved.values()
    pairs = list(zip(of_numbers, of_activations, strict=True))
    outcome: Any = "corrected"
    if all(a + b <= 0 for a, b in pairs):
        outcome = "refuted in miniature"
    elif all(a >= b for a, b in pairs):
        outcome = "confirmed"
    per = [found["parameters"] for found in parts["memory"].values()]
    shares = [
        b / max(sum(found["bytes"]["fp32"].values()), 1)
        for (_, b), found in zip(pairs, parts["memory"].values(), strict=True)
    ]
    return Finding(
        claim="B15",
        verdict=outcome,
        sentence=f"From `fp32` to `mixed_fp16`, in bytes a parameter, the static part saves "
        f"{_bytes(static, per)}; gradients and parameters together save {_bytes(of_numbers, per)}, "
        "since the 16-bit copy of the parameters takes what gradients save; activations save "
        f"{_bytes(of_activations, per)} at these batches, {_span(shares)} of all bytes. Counted "
        "from shapes and dtypes.",
    )


EXPERIMENT = Experiment(
    file=__file__,
    question="Where do the exponents of training's numbers lie, which does a format lose, and "
    "which does a loss scale bring back?",
    parts=parts,
    tables=tables,
    figures=figures,
    findings=findings,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
