"""Cost of a mixed-precision training step beside other people's, and memory beside the plan.

    python benchmarks/training.py [--rounds 41] [--models mlp cnn transformer] [--markdown]

All steps train the same model with the same optimiser (adamw) on donated buffers, and all casts
are to the same dtype. "by hand" is the step that an engineer writes who knows what to do. The FP16
steps scale the loss dynamically and skip a step that overflows; the BF16 ones neither scale nor
guard, but for mpx, which always does. In every round each step is taken many times in a row, and
each round begins with another one, so that a busy moment hits each of them. A ratio is the median
over rounds of the ratio within a round; the range beside it holds half of them. The process keeps
to one processor, and on a CPU its processor time is what counts, so that other processes hardly
matter. On a CPU, 16-bit products are no faster than FP32 ones: the question is what a package adds.

The second table counts bytes: of all live arrays that a training state holds after three steps,
and of the temporaries of the compiled step.
"""

import argparse
import gc
import itertools
import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.dynamic_scale import DynamicScale

import jprec

DTYPES = {"fp16": jnp.float16, "bf16": jnp.bfloat16}
#: Of every dynamic scale here; mpx can hold no larger one.
INITIAL, INTERVAL, FLOOR, CEILING = 2.0**15, 2000, 1.0, 2.0**24
#: Steps taken in a row last about this long.
STRETCH_SECONDS = 0.04
#: Seconds of this process where the work is its own, else of the wall.
seconds = time.process_time if jax.default_backend() == "cpu" else time.perf_counter


def optimiser() -> optax.GradientTransformation:
    """The same for all."""
    return optax.adamw(1e-3)


# --- models: pure functions that compute in the dtype of what they are given


class Model(NamedTuple):
    """Parameters, one batch, and the loss: (params, inputs, labels) -> [] float32."""

    params: Any
    batch: tuple[jax.Array, jax.Array]
    loss: Callable[..., jax.Array]


def weights(rng: np.random.Generator, *shape: int) -> jax.Array:
    """[*shape] float32, normal, of variance one over the fan-in."""
    return jnp.asarray(rng.standard_normal(shape) / math.sqrt(math.prod(shape[:-1])), jnp.float32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """[] float32, whatever the logits are."""
    logits = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def mlp(rng: np.random.Generator) -> Model:
    """Three layers, 256 wide, for 128 rows of 64 features."""
    widths = (64, 256, 256, 10)
    params = [
        {"w": weights(rng, *pair), "b": jnp.zeros(pair[1])} for pair in itertools.pairwise(widths)
    ]

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return cross_entropy(x @ params[-1]["w"] + params[-1]["b"], labels)

    return Model(params, (weights(rng, 1, 128, 64)[0] * 8, jnp.arange(128) % 10), loss)


def cnn(rng: np.random.Generator) -> Model:
    """Two convolutions and two dense layers, for 32 images of 8 by 8."""
    params = {
        "first": weights(rng, 3, 3, 1, 16),
        "second": weights(rng, 3, 3, 16, 32),
        "dense": weights(rng, 4 * 4 * 32, 64),
        "head": weights(rng, 64, 10),
    }

    def convolve(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
        x = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(x)

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        x = convolve(convolve(x, params["first"], 1), params["second"], 2)
        x = jax.nn.relu(x.reshape(len(x), -1) @ params["dense"])
        return cross_entropy(x @ params["head"], labels)

    images = jnp.asarray(rng.standard_normal((32, 8, 8, 1)), jnp.float32)
    return Model(params, (images, jnp.arange(32) % 10), loss)


def transformer(rng: np.random.Generator) -> Model:
    """Two blocks, 64 wide, four heads, for 8 sequences of 32 tokens; norms, softmax in FP32."""
    width, heads, length, tokens = 64, 4, 32, 96
    params = {
        "embed": weights(rng, tokens, width) * math.sqrt(tokens / width),
        "position": weights(rng, length, width),
        "blocks": [
            {
                "norms": jnp.ones((2, width)),
                "qkv": weights(rng, width, 3 * width),
                "out": weights(rng, width, width),
                "up": weights(rng, width, 4 * width),
                "down": weights(rng, 4 * width, width),
            }
            for _ in range(2)
        ],
    }
    causal = np.tril(np.ones((length, length), bool))

    def norm(x: jax.Array, gain: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        wide *= jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
        return wide.astype(x.dtype) * gain

    def attend(x: jax.Array, block: Any) -> jax.Array:
        q, k, v = jnp.split((x @ block["qkv"]).reshape(*x.shape[:2], heads, -1), 3, -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / math.sqrt(q.shape[-1])
        shares = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ block["out"]

    def loss(params: Any, text: jax.Array, following: jax.Array) -> jax.Array:
        x = params["embed"][text] + params["position"]
        for block in params["blocks"]:
            x = x + attend(norm(x, block["norms"][0]), block)
            x = x + jax.nn.gelu(norm(x, block["norms"][1]) @ block["up"]) @ block["down"]
        return cross_entropy(x @ params["embed"].T, following)

    text = jnp.asarray(rng.integers(0, tokens, (8, length + 1)))
    return Model(params, (text[:, :-1], text[:, 1:]), loss)


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


# --- training steps


class Program(NamedTuple):
    """A first state, and step: (state, *batch) -> (state, loss); state begins with the params."""

    state: Any
    step: Callable[..., tuple[Any, jax.Array]]


def cast(tree: Any, dtype: Any) -> Any:
    """`tree` with its float32 leaves in `dtype`."""
    return jax.tree.map(lambda x: x.astype(dtype) if x.dtype == jnp.float32 else x, tree)


def select(keep: jax.Array, new: Any, old: Any) -> Any:
    """`new` where `keep`, else `old`."""
    return jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)


def fp32(model: Model) -> Program:
    """No mixed precision at all."""
    tx = optimiser()

    def step(state: Any, *batch: Any) -> Any:
        params, opt_state = state
        loss, grads = jax.value_and_grad(model.loss)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return Program((model.params, tx.init(model.params)), step)


def jprec_step(model: Model, kind: str) -> Program:
    """As the README has it."""
    policy = f"mixed_{kind}"
    scale = jprec.optim.DynamicScale(initial=INITIAL) if kind == "fp16" else None
    tx = jprec.optim.wrap(optimiser(), policy, loss_scale=scale)

    def step(state: Any, *batch: Any) -> Any:
        params, opt_state = state
        scale = jprec.optim.loss_scale(opt_state)
        loss, grads = jprec.value_and_grad(model.loss, policy, scale=scale)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (jprec.optim.apply_updates(params, updates), opt_state), loss

    return Program((model.params, tx.init(model.params)), step)


def by_hand(model: Model, kind: str) -> Program:
    """The same casts, and for FP16 the same scale and guard, without a package."""
    tx = optimiser()
    if kind == "bf16":

        def plain_step(state: Any, *batch: Any) -> Any:
            params, opt_state = state
            low, low_batch = cast((params, batch), jnp.bfloat16)
            loss, grads = jax.value_and_grad(model.loss)(low, *low_batch)
            updates, opt_state = tx.update(cast_up(grads), opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), loss

        return Program((model.params, tx.init(model.params)), plain_step)

    def step(state: Any, *batch: Any) -> Any:
        params, opt_state, scale, clean, skipped = state
        low, low_batch = cast((params, batch), jnp.float16)
        loss, pull = jax.vjp(lambda p: model.loss(p, *low_batch), low)
        grads = jax.tree.map(lambda g: g * (1 / scale), cast_up(pull(scale)[0]))
        finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
        updates, moved = tx.update(grads, opt_state, params)
        params = select(finite, optax.apply_updates(params, updates), params)
        opt_state = select(finite, moved, opt_state)
        grow = clean + 1 >= INTERVAL
        scale = jnp.where(finite, jnp.where(grow, scale * 2, scale), scale / 2)
        clean = jnp.where(finite & ~grow, clean + 1, 0)
        scale, skipped = jnp.clip(scale, FLOOR, CEILING), skipped + ~finite
        return (params, opt_state, scale, clean, skipped), loss

    counters = (jnp.float32(INITIAL), jnp.int32(0), jnp.int32(0))
    return Program((model.params, tx.init(model.params), *counters), step)


def cast_up(tree: Any) -> Any:
    """`tree` in float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def flax_step(model: Model, kind: str) -> Program:
    """flax.training.dynamic_scale.DynamicScale, with parameters and moments selected."""
    tx = optimiser()

    def low_loss(params: Any, *batch: Any) -> jax.Array:
        return model.loss(*cast((params, *batch), DTYPES[kind]))

    def step(state: Any, *batch: Any) -> Any:
        params, opt_state, scaling = state
        scaling, finite, loss, grads = scaling.value_and_grad(low_loss)(params, *batch)
        updates, moved = tx.update(grads, opt_state, params)
        params = select(finite, optax.apply_updates(params, updates), params)
        return (params, select(finite, moved, opt_state), scaling), loss

    # Strong types: with its own defaults the second step traces again.
    scaling = DynamicScale(scale=jnp.float32(INITIAL), fin_steps=jnp.int32(0))
    return Program((model.params, tx.init(model.params), scaling), step)


def jmp_step(model: Model, kind: str) -> Program:
    """jmp's policy and loss scale, as its README has it but with the moments selected too."""
    import jmp

    tx = optimiser()
    half = DTYPES[kind]
    policy = jmp.Policy(param_dtype=jnp.float32, compute_dtype=half, output_dtype=jnp.float32)
    scaling = jmp.DynamicLossScale(jnp.float32(INITIAL)) if kind == "fp16" else jmp.NoOpLossScale()

    def scaled_loss(params: Any, scaling: Any, *batch: Any) -> Any:
        loss = model.loss(*policy.cast_to_compute((params, *batch)))
        return scaling.scale(loss), loss

    def step(state: Any, *batch: Any) -> Any:
        params, opt_state, scaling = state
        grads, loss = jax.grad(scaled_loss, has_aux=True)(params, scaling, *batch)
        grads = scaling.unscale(policy.cast_to_param(grads))
        updates, moved = tx.update(grads, opt_state, params)
        following = (optax.apply_updates(params, updates), moved)
        if kind == "fp16":
            finite = jmp.all_finite(grads)
            scaling = scaling.adjust(finite)
            following = jmp.select_tree(finite, following, (params, opt_state))
        return (*following, scaling), loss

    return Program((model.params, tx.init(model.params), scaling), step)


def mpx_step(model: Model, kind: str) -> Program:
    """mpx, which scales and guards in BF16 too."""
    import mpx

    tx = optimiser()
    scaling = mpx.DynamicLossScaling(jnp.float32(INITIAL), jnp.float32(FLOOR), period=INTERVAL)

    def step(state: Any, *batch: Any) -> Any:
        mpx.set_half_precision_datatype(DTYPES[kind])  # global; read while it is traced
        params, opt_state, scaling = state
        value_and_grad = mpx.filter_value_and_grad(model.loss, scaling)
        loss, scaling, finite, grads = value_and_grad(params, *batch)
        params, opt_state = mpx.optimizer_update(params, tx, opt_state, grads, finite)
        return (params, opt_state, scaling), loss

    return Program((model.params, tx.init(model.params), scaling), step)


#: Name -> its program for a model and a kind, and the kinds it has.
STEPS: dict[str, tuple[Callable[[Model, str], Program], tuple[str, ...]]] = {
    "by hand": (by_hand, ("fp16", "bf16")),
    "jprec": (jprec_step, ("fp16", "bf16")),
    "flax DynamicScale": (flax_step, ("fp16",)),
    "jmp": (jmp_step, ("fp16", "bf16")),
    "mpx": (mpx_step, ("fp16", "bf16")),
}


# --- time


class Clock:
    """A compiled step with its state, and the seconds that it took."""

    def __init__(self, program: Program, batch: tuple[jax.Array, jax.Array]):
        self.state = jax.tree.map(jnp.array, program.state)  # its own, since it is donated
        self.batch = batch
        self.step = jax.jit(program.step, donate_argnums=0)
        self.state, self.loss = self.step(self.state, *batch)
        self.run(2)
        self.seconds: list[float] = []

    def run(self, steps: int) -> float:
        """Seconds a step, over `steps` of them in a row."""
        start = seconds()
        for _ in range(steps):
            self.state, self.loss = self.step(self.state, *self.batch)
        jax.block_until_ready((self.state, self.loss))
        return (seconds() - start) / steps


def clocks_of(model: Model) -> tuple[dict[tuple[str, str], Clock], list[str]]:
    """(name, kind) -> its clock, for all that is installed; the names of what is not."""
    found, missing = {("fp32", "fp32"): Clock(fp32(model), model.batch)}, []
    for name, (build, kinds) in STEPS.items():
        try:
            for kind in kinds:
                found[name, kind] = Clock(build(model, kind), model.batch)
        except ModuleNotFoundError as error:
            missing.append(error.name)
    return found, missing


def measure(model: Model, rounds: int) -> tuple[dict[tuple[str, str], Clock], list[str]]:
    """As clocks_of, after `rounds` rounds, and after a look at whether they trained alike."""
    clocks, missing = clocks_of(model)
    order = list(clocks)
    steps = max(1, round(STRETCH_SECONDS / clocks[order[0]].run(3)))
    for number in range(rounds):
        first = number * 3 % len(order)
        for name in order[first:] + order[:first]:
            clocks[name].seconds.append(clocks[name].run(steps))
    for kind in DTYPES:
        ours, theirs = (float(clocks[name, kind].loss) for name in ("jprec", "by hand"))
        if not math.isclose(ours, theirs, rel_tol=0.1, abs_tol=0.01):
            raise AssertionError(f"{kind}: by hand the loss ends at {theirs}, by jprec at {ours}")
    return clocks, missing


def ratio(clock: Clock, base: Clock) -> str:
    """The median of the ratios of the rounds, and the quartiles."""
    low, middle, high = np.quantile(np.divide(clock.seconds, base.seconds), (0.25, 0.5, 0.75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


# --- memory

LOW_MOMENTS = "params=bfloat16,compute=bfloat16,moments=bfloat16"
#: Policy and store -> the plan: bytes of each parameter as stored, its copy or rest, two moments.
PLANS = {
    ("fp32", None): (4, 0, 8),
    ("mixed_fp16", None): (4, 0, 8),
    ("pure_bf16", "nearest"): (2, 0, 8),
    ("pure_bf16", "master"): (2, 4, 8),
    ("pure_bf16", "kahan"): (2, 2, 8),
    ("pure_bf16", "stochastic"): (2, 0, 8),
    (LOW_MOMENTS, "master"): (2, 4, 4),
    (LOW_MOMENTS, "stochastic"): (2, 0, 4),
}


class Memory(NamedTuple):
    """Bytes: live after three steps, and of the compiled step's temporaries."""

    live: int
    temporaries: int


def live_bytes() -> int:
    """Of all arrays that anything holds."""
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def memory(model: Model, policy: str, store: str | None) -> Memory:
    """What a training state holds after three steps with donated buffers."""
    key = jax.random.key(0) if store == "stochastic" else None
    tx = jprec.optim.wrap(optimiser(), policy, store=store, key=key)

    def step(params: Any, opt_state: Any, *batch: Any) -> Any:
        scale = jprec.optim.loss_scale(opt_state)
        _, grads = jprec.value_and_grad(model.loss, policy, scale=scale)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return jprec.optim.apply_updates(params, updates), opt_state

    before = live_bytes()
    params = jax.tree.map(jnp.array, jprec.train.cast(model.params, policy))
    opt_state = tx.init(params)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, opt_state, *model.batch).compile()
    for _ in range(3):
        params, opt_state = compiled(params, opt_state, *model.batch)
    jax.block_until_ready(params)
    return Memory(live_bytes() - before, compiled.memory_analysis().temp_size_in_bytes)


# --- tables


def table(head: tuple[str, ...], rows: list[tuple[str, ...]], *, markdown: bool) -> None:
    """Prints `rows` under `head`."""
    lines = [head, *(["---"] * len(head) for _ in range(markdown)), *rows]
    if markdown:
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


def print_times(name: str, rounds: int, *, markdown: bool) -> None:
    """The time of every step for one model."""
    model = MODELS[name](np.random.default_rng(0))
    clocks, missing = measure(model, rounds)
    rows = []
    for (step, kind), clock in clocks.items():
        hand = "" if step == "fp32" else ratio(clock, clocks["by hand", kind])
        milliseconds = f"{1e3 * np.median(clock.seconds):.3f}"
        rows.append((kind, step, milliseconds, hand, ratio(clock, clocks["fp32", "fp32"])))
    rows += [("", step, "not installed", "", "") for step in missing]
    print(f"\n{name}, {sum(x.size for x in jax.tree.leaves(model.params))} parameters\n")
    table(("dtype", "step", "ms", "/ by hand", "/ fp32"), rows, markdown=markdown)


def print_memory(name: str, *, markdown: bool) -> None:
    """Bytes a parameter for every policy and store."""
    model = MODELS[name](np.random.default_rng(0))
    count = sum(x.size for x in jax.tree.leaves(model.params))
    memory(model, "fp32", None)  # arrays that the first run makes once for all
    rows = []
    for (policy, store), plan in PLANS.items():
        found = memory(model, policy, store)
        parts = " + ".join(str(part) for part in plan if part)
        planned = f"{parts} = {sum(plan)}"
        rest = found.live - sum(plan) * count
        temporaries = f"{found.temporaries / count:.2f}"
        live = f"{found.live / count:.3f}"
        rows.append((policy, store or "", planned, live, str(rest), temporaries))
    print(f"\n{name}, {count} parameters, adamw: bytes a parameter\n")
    head = ("policy", "store", "plan", "live", "live - plan, bytes", "temporaries of the step")
    table(head, rows, markdown=markdown)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41, help="turns of each, median taken")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    device = jax.devices()[0].device_kind
    print(f"jax {jax.__version__} on {device}, one processor, median of {options.rounds}")
    for name in options.models:
        print_times(name, options.rounds, markdown=options.markdown)
    print_memory(options.models[0], markdown=options.markdown)


if __name__ == "__main__":
    main()
