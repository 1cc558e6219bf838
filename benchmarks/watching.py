"""Cost of `jprec.optim.watch`: steps of a watched optimiser against those of the plain one.

    python benchmarks/watching.py

A stretch of a multiple of ten steps is timed, so that measured and unmeasured steps are in it as
they are in training: once as one `lax.scan`, once as a Python loop over a jitted, donated step.
Every figure is a median over stretches taken in turn in this one process, and a ratio.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import optax

import jprec
from jprec import optim, workloads
from jprec.optim.watch import watch

ROUNDS = 11
POLICY = "mixed_fp16"


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


PROBLEMS = {
    "MLP, 935k parameters": (mlp, 50),
    "CNN of the digits": (workloads.digits_cnn, 200),
    "transformer of the plays": (workloads.plays_transformer, 50),
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

    return (params, jax.jit(tx.init)(params)), step


def clock(workload, tx, steps, *, scan):
    """A function that trains `steps` steps and gives the seconds they took."""
    state, step = start_and_step(workload, tx)
    if scan:
        body = lambda carry, _: (step(*carry), None)
        run = jax.jit(
            lambda *state: jax.lax.scan(body, state, length=steps)[0], donate_argnums=(0, 1)
        )
    else:
        jitted = jax.jit(step, donate_argnums=(0, 1))

        def run(*state):
            for _ in range(steps):
                state = jitted(*state)
            return state

    def stretch():
        nonlocal state
        begin = time.perf_counter()
        state = jax.block_until_ready(run(*state))
        return time.perf_counter() - begin

    stretch()  # compiles
    return stretch


def rounds(clocks):
    """The seconds of each, taken in turn so that a drift of the machine meets all alike."""
    seconds = {name: [] for name in clocks}
    for _ in range(ROUNDS):
        for name, stretch in clocks.items():
            seconds[name].append(stretch())
    return seconds


def main():
    """Prints the table."""
    print(f"backend {jax.default_backend()}, {POLICY}, Adam; watched: every=10")
    print(f"{'':32}{'plain':>9}{'watched':>10}{'ratio':>7}{'middle half':>14}{'every step':>12}")
    for title, (make, steps) in PROBLEMS.items():
        workload = make()
        plain = optim.wrap(optax.adam(1e-4), POLICY)
        for scan in (True, False):
            choices = {"plain": plain, "watched": watch(plain), "always": watch(plain, every=1)}
            found = rounds(
                {name: clock(workload, tx, steps, scan=scan) for name, tx in choices.items()}
            )
            ratios = [w / p for w, p in zip(found["watched"], found["plain"], strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            middle = {name: statistics.median(s) * 1e3 / steps for name, s in found.items()}
            print(
                f"{title + (', scan' if scan else ', loop'):32}"
                f"{middle['plain']:6.2f} ms{middle['watched']:7.2f} ms"
                f"{statistics.median(ratios):7.3f}   {low:.3f}-{high:.3f}"
                f"{middle['always'] / middle['plain']:12.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
