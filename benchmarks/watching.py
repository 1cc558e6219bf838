"""Cost of `jprec.optim.watch`: steps of a watched optimiser against those of the plain one.

    python benchmarks/watching.py

Watched every tenth step, as is the default, a sample of large leaves and all numbers; and every
step. A stretch of a multiple of ten steps is timed, so that measured and unmeasured steps are in
it as they are in training: once as a Python loop over a jitted, donated step, once as one
`lax.scan`. Stretches are taken in turn; a ratio is the median over rounds of the ratio within a
round, and half of them lie in the range beside it. The process keeps to one processor, and on a
CPU its processor time is what counts, so that other processes hardly matter.
"""

import os
import statistics
import time

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import optax

import jprec
from jprec import optim, workloads

ROUNDS = 31
POLICY = "mixed_fp16"
#: Seconds of this process where the work is its own, else of the wall.
seconds = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
#: Heading -> the watcher.
WATCHERS = {
    "every=10": optim.watch,
    "every=10, all numbers": lambda tx: optim.watch(tx, sample=None),
    "every=1": lambda tx: optim.watch(tx, every=1),
}


def mlp():
    """784-896-256-10 with ReLU, 935 thousand parameters, batch 128, random data."""
    sizes = (784, 896, 256, 10)

    def init(key):
        keys = jax.random.split(key, len(sizes))
        return {
            f"layer_{i}": {
                "kernel": jax.random.normal(k, (m, n)) * (2.0 / m) ** 0.5,
                "bias": jnp.zeros(n),
            }
            for i, (k, m, n) in enumerate(zip(keys, sizes[:-1], sizes[1:], strict=False))
        }

    def loss(params, batch):
        x, labels = batch
        for i in range(len(sizes) - 1):
            layer = params[f"layer_{i}"]
            x = x @ layer["kernel"] + layer["bias"]
            x = jax.nn.relu(x) if i < len(sizes) - 2 else x
        logits = x.astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def batches(key):
        return jax.random.normal(key, (128, sizes[0])), jax.random.randint(key, (128,), 0, 10)

    return workloads.Workload(init, loss, batches, batches(jax.random.key(1)), name="mlp")


#: Title -> the problem, and how many steps one stretch has.
PROBLEMS = {
    "MLP, 935k parameters": (mlp, 10),
    "CNN of the digits": (workloads.digits_cnn, 50),
    "transformer of the plays": (workloads.plays_transformer, 10),
}


def start_and_step(workload, tx):
    """The state at the start, and a training step in mixed FP16 arithmetic."""
    params = workload.init(jax.random.key(0))
    batch = jax.jit(workload.batches)(jax.random.key(2))

    def step(params, opt_state):
        scale = optim.loss_scale(opt_state)
        gradient_of = jprec.value_and_grad(workload.loss, POLICY, scale=scale)
        _, gradients = gradient_of(params, batch)
        updates, opt_state = tx.update(gradients, opt_state, params)
        return optim.apply_updates(params, updates), opt_state

    return (params, tx.init(params)), step


def clock(workload, tx, steps, *, scan):
    """A function that trains `steps` steps and gives the seconds they took."""
    state, step = start_and_step(workload, tx)
    if scan:

        def scanned(*state):
            return jax.lax.scan(lambda carry, _: (step(*carry), None), state, length=steps)[0]

        run = jax.jit(scanned, donate_argnums=(0, 1))
    else:
        jitted = jax.jit(step, donate_argnums=(0, 1))

        def run(*state):
            for _ in range(steps):
                state = jitted(*state)
            return state

    def stretch():
        nonlocal state
        begin = seconds()
        state = jax.block_until_ready(run(*state))
        return (seconds() - begin) / steps

    stretch()  # compiles
    return stretch


def main():
    """Prints the table."""
    print(f"backend {jax.default_backend()}, {POLICY}, Adam; a step, and watched ones against it")
    print(f"{'':32}{'plain':>9}" + "".join(f"{heading:>23}" for heading in WATCHERS))
    for title, (make, steps) in PROBLEMS.items():
        workload, plain = make(), optim.wrap(optax.adam(1e-4), POLICY)
        choices = {"plain": plain} | {name: build(plain) for name, build in WATCHERS.items()}
        for scan in (False, True):
            clocks = {name: clock(workload, tx, steps, scan=scan) for name, tx in choices.items()}
            found = [{name: stretch() for name, stretch in clocks.items()} for _ in range(ROUNDS)]
            middle = statistics.median(times["plain"] for times in found)
            cells = [f"{title + (', scan' if scan else ', loop'):32}{1e3 * middle:6.2f} ms"]
            for name in WATCHERS:
                ratios = [times[name] / times["plain"] for times in found]
                low, ratio, high = statistics.quantiles(ratios, n=4)
                cells.append(f"{ratio:8.3f} ({low:.3f}-{high:.3f})")
            print("".join(cells), flush=True)


if __name__ == "__main__":
    main()
