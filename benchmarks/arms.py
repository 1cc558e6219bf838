"""Cost of a study's training step: arms against FP32, sixteen seeds against one.

    python benchmarks/arms.py

Every figure is the median over several stretches of steps, taken in turn in this one process, and
is reported as a ratio; the machine's own speed cancels. The process keeps to one processor, as a
study's workers do.
"""

import os
import statistics
import time

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax

from jprec.study import ARMS, Setting, find
from jprec.study.training import programs, seeds_of

ROUNDS = 9
ARM_NAMES = ("tf32", "tf32_truncated", "mixed_bf16", "mixed_fp16", "pure_bf16", "tf32@a100")


def clock(setting: Setting, arm: str, seeds: int):
    """A function that trains one stretch and gives the seconds it took."""
    run = programs(setting, ARMS[arm], setting.load())
    numbers = seeds_of(range(seeds))
    state = run.start(numbers)

    def stretch() -> float:
        nonlocal state
        start = time.perf_counter()
        state, trace = run.stretch(state, numbers, 0)
        jax.block_until_ready(trace)
        return time.perf_counter() - start

    stretch()  # compiles
    return stretch


def medians(clocks: dict[str, object]) -> dict[str, float]:
    """The median seconds of each, taken in turn so that a drift of the machine meets all alike."""
    seconds = {name: [] for name in clocks}
    for _ in range(ROUNDS):
        for name, stretch in clocks.items():
            seconds[name].append(stretch())
    return {name: statistics.median(found) for name, found in seconds.items()}


def main() -> None:
    """Prints both tables."""
    setting = find("converges").settings[0]
    steps = setting.steps // setting.points
    print(f"backend {jax.default_backend()}, one processor, {setting.title}")
    fp32 = {"fp32": clock(setting, "fp32", 16)}
    found = medians(fp32 | {name: clock(setting, name, 16) for name in ARM_NAMES})
    print(f"\n16 seeds, {1e3 * found['fp32'] / steps:.2f} ms a step in fp32")
    for name in ARM_NAMES:
        print(f"{name:>16}  {found[name] / found['fp32']:6.2f} x fp32")
    found = medians({f"{n}": clock(setting, "fp32", n) for n in (1, 4, 16)})
    print("\nseeds under vmap, fp32")
    for name in ("4", "16"):
        print(f"{name:>16}  {found[name] / found['1']:6.2f} x one seed")


if __name__ == "__main__":
    main()
