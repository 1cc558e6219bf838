"""The time of emulated products, as ratios to the native FP32 product in the same run.

    python benchmarks/matmul.py [--rounds 9] [--peers] [--markdown]

All candidates of one shape take turns, each round beginning with another one, so that a busy moment
hits each of them. `temporaries` is what the compiled program allocates beside operands and result,
in units of the result. With --peers also mmasim and mmaemu, on the first shape, once; `same bits`
is the share of results in which they agree with jprec.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jprec import matmul, rounding

#: Name -> shapes of the two operands.
SHAPES = {
    "256": ((256, 256), (256, 256)),
    "1024": ((1024, 1024), (1024, 1024)),
    "16 of 64x128x128": ((16, 64, 128), (16, 128, 128)),
}
SPECS = ("fp32", "tf32", "tf32:toward_zero", "bf16", "fp16", "tf32x3", "bf16x6")
DEVICE_SPECS = ("tf32@a100", "fp16@h100", "bf16@h100", "e4m3fn@h100", "e4m3fn@b200_mma")
CHAINS = ("fp16+fp16", "bf16+fp32+kahan", "fp32+fp32")


class Timing(NamedTuple):
    """Median seconds, temporaries in units of the result, and agreement with jprec, if known."""

    seconds: float
    temporaries: float | None = None
    agrees: float | None = None


def measure(a: jax.Array, b: jax.Array, rounds: int) -> dict[str, Timing]:
    """The native product and all of ours."""
    names = (*SPECS, *DEVICE_SPECS, *CHAINS)
    functions: dict[str, Any] = {"native FP32": jax.jit(jnp.matmul)}
    functions |= {s: jax.jit(functools.partial(matmul.matmul, spec=s)) for s in names}
    temporaries = {}
    for name, function in functions.items():
        result = jax.block_until_ready(function(a, b))
        used = function.lower(a, b).compile().memory_analysis()
        temporaries[name] = used.temp_size_in_bytes / result.nbytes
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    for number in range(rounds):
        first = number * 5 % len(order)
        for name in order[first:] + order[:first]:
            start = time.perf_counter()
            functions[name](a, b).block_until_ready()
            seconds[name].append(time.perf_counter() - start)
    return {n: Timing(float(np.median(times)), temporaries[n]) for n, times in seconds.items()}


def peers(a: jax.Array, b: jax.Array) -> dict[str, Timing]:
    """mmasim and mmaemu, once each, and whether their bits are jprec's."""
    import mmaemu
    import torch
    from mmasim import nv_ptx

    cores = {
        "tf32@a100": (nv_ptx.MMA("Ampere", "m16n8k8.f32.tf32.tf32.f32"), torch.float32),
        "fp16@h100": (nv_ptx.MMA("Hopper", "m16n8k16.f32.f16.f16.f32"), torch.float16),
        "bf16@h100": (nv_ptx.MMA("Hopper", "m16n8k16.f32.bf16.bf16.f32"), torch.bfloat16),
        "e4m3fn@h100": (nv_ptx.WGMMA("Hopper", "m64n8k32.f32.e4m3.e4m3"), torch.float8_e4m3fn),
    }
    found = {}
    for name, (core, dtype) in cores.items():
        spec = matmul.get(name)
        left, right = (
            np.asarray(rounding.round_to(x, spec.operand_format, spec.rounding)) for x in (a, b)
        )
        wide = [torch.from_numpy(np.array(x)).to(dtype) for x in (left, right)]
        zero = torch.zeros(left.shape[0], right.shape[1])
        want = np.asarray(matmul.matmul(left, right, name))
        runs: dict[str, Callable[[], torch.Tensor]] = {
            "mmasim": lambda core=core, wide=wide, zero=zero: core.arithmetic_op(*wide, zero)
        }
        if dtype == torch.float8_e4m3fn:
            runs["mmaemu"] = lambda wide=wide: mmaemu.accumulate(
                wide[0],
                wide[1].T.contiguous(),
                use_fast_accum=True,
                profile="hopper",
                splitk=1,
                backend="reference",
            )
        for peer, run in runs.items():
            start = time.perf_counter()
            got = run().numpy()
            agrees = float(np.mean(got.view(np.uint32) == want.view(np.uint32)))
            found[f"{peer} {name}"] = Timing(time.perf_counter() - start, agrees=agrees)
    return found


def main() -> None:
    """Prints one line for each shape and product."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each, median taken")
    parser.add_argument("--peers", action="store_true", help="mmasim and mmaemu, too")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, median of {options.rounds}\n")
    head = ("shape", "product", "ms", "/ native", "G mul-add/s", "temporaries", "same bits")
    row = "{:18} {:22} {:>10} {:>9} {:>12} {:>12} {:>10}"
    if options.markdown:
        row = "| " + row.replace("} {", "} | {") + " |"
    print(row.format(*head))
    if options.markdown:
        print("|---|---|---:|---:|---:|---:|---:|")
    rng = np.random.default_rng(0)
    for shape, (of_a, of_b) in SHAPES.items():
        a, b = (jnp.asarray(rng.standard_normal(s, np.float32)) for s in (of_a, of_b))
        found = measure(a, b, options.rounds)
        if options.peers and shape == next(iter(SHAPES)):
            found |= peers(a, b)
        for name, (seconds, temporaries, agrees) in found.items():
            print(
                row.format(
                    shape,
                    name,
                    f"{seconds * 1e3:.2f}",
                    f"{seconds / found['native FP32'].seconds:.2f}",
                    f"{a.size * of_b[-1] / seconds / 1e9:.2f}",
                    "" if temporaries is None else f"{temporaries:.1f}",
                    "" if agrees is None else f"{agrees:.2%}",
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
