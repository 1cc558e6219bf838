"""The time that `round_to` takes, as a ratio to a jitted `x + 1` in the same run.

    python benchmarks/rounding.py [--numbers 10000000] [--repeats 15]

`x + 1` reads and writes the same memory and hardly computes: it is the floor for any operation
that returns a new array. All candidates take turns, so that a busy moment hits each of them.
"""

import argparse
import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jprec import rounding

FORMATS = ("fp16", "bf16", "tf32", "e4m3fn")
MODES = ("nearest_even", "nearest_away", "stochastic")


def candidates() -> dict[str, Callable[[jax.Array], jax.Array]]:
    """Name -> jitted function of one array; the floor comes first."""
    found: dict[str, Callable[[jax.Array], jax.Array]] = {"x + 1": jax.jit(lambda x: x + 1)}
    key = jax.random.key(0)
    found["random bits"] = jax.jit(lambda x: jax.random.bits(key, x.shape, jnp.uint32))
    for name in FORMATS:
        for mode in MODES:
            drawn = key if mode == "stochastic" else None
            found[f"{name} {mode}"] = jax.jit(
                functools.partial(rounding.round_to, fmt=name, mode=mode, key=drawn)
            )
    return found


def medians(numbers: int, repeats: int) -> dict[str, float]:
    """Name -> median seconds for one call on `numbers` FP32 normals."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal(numbers, np.float32))
    functions = candidates()
    for function in functions.values():
        function(x).block_until_ready()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function(x).block_until_ready()
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(times)) for name, times in seconds.items()}


def main() -> None:
    """Prints one line for each candidate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=10**7, help="how many FP32 numbers")
    parser.add_argument("--repeats", type=int, default=15, help="calls of each, median taken")
    options = parser.parse_args()
    times = medians(options.numbers, options.repeats)
    print(
        f"{options.numbers} FP32 numbers on {jax.devices()[0].device_kind}, jax {jax.__version__}"
    )
    for name, seconds in times.items():
        rate = options.numbers / seconds / 1e6
        print(
            f"{name:22} {1e3 * seconds:9.2f} ms {rate:8.0f} M/s {seconds / times['x + 1']:7.2f} x"
        )


if __name__ == "__main__":
    main()
