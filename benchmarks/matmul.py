"""The time of emulated products, as ratios to the native FP32 product in the same run.

    python benchmarks/matmul.py [--repeats 15]

All candidates of one shape take turns, so that a busy moment hits each of them. For a device the
throughput is given too, in 1e9 multiply-adds a second. To measure one core, bind the process to it.
"""

import argparse
import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jprec import matmul

#: Name -> shapes of the two operands.
SHAPES = {
    "256": ((256, 256), (256, 256)),
    "1024": ((1024, 1024), (1024, 1024)),
    "16 of 64x128x128": ((16, 64, 128), (16, 128, 128)),
}
SPECS = ("fp32", "tf32", "tf32:toward_zero", "bf16", "fp16")
DEVICE_SPECS = ("tf32@a100", "fp16@a100", "e4m3fn@h100", "e4m3fn@h100_mma", "e4m3fn@b200")
#: A device is not timed where one call would take seconds.
DEVICE_LIMIT = 2**28


def candidates(multiply_adds: int) -> dict[str, Callable[..., jax.Array]]:
    """Name -> jitted product; native FP32 comes first."""
    specs = (*SPECS, *(DEVICE_SPECS if multiply_adds <= DEVICE_LIMIT else DEVICE_SPECS[:1]))
    emulated = {s: jax.jit(functools.partial(matmul.matmul, spec=s)) for s in specs}
    return {"native": jax.jit(jnp.matmul), **emulated}


def medians(functions: dict[str, Callable[..., jax.Array]], a, b, repeats: int) -> dict[str, float]:
    """Name -> median seconds of one product of `a` and `b`."""
    for function in functions.values():
        function(a, b).block_until_ready()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function(a, b).block_until_ready()
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(times)) for name, times in seconds.items()}


def main() -> None:
    """Prints one line for each shape and product."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15, help="calls of each, median taken")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, backend {jax.default_backend()}, {options.repeats} repeats")
    print(f"{'shape':<18}{'product':<18}{'median ms':>11}{'ratio':>8}{'G mul-add/s':>13}")
    rng = np.random.default_rng(0)
    for shape, (of_a, of_b) in SHAPES.items():
        a, b = (jnp.asarray(rng.standard_normal(s, np.float32)) for s in (of_a, of_b))
        multiply_adds = a.size * of_b[-1]
        times = medians(candidates(multiply_adds), a, b, options.repeats)
        for name, seconds in times.items():
            ratio, rate = seconds / times["native"], multiply_adds / seconds / 1e9
            print(f"{shape:<18}{name:<18}{seconds * 1e3:>11.3f}{ratio:>8.2f}{rate:>13.2f}")


if __name__ == "__main__":
    main()
