"""The speed of `round_to` and `round_blocks`, as a share of the speed of a jitted `x + 1`.

    python benchmarks/rounding.py [--numbers 10000000] [--rounds 11] [--peers] [--markdown]

`x + 1` reads and writes the same memory and hardly computes: it is the ceiling of any jitted
operation that returns a new array. All candidates take turns in every round, each round beginning
with another one, so that a busy moment and the state of the memory hit each of them. A share is
the median time of `x + 1` divided by the candidate's. `temporaries` is what the compiled program
allocates beside input and output, in units of the array. With --peers also gfloat and pychop,
which are slow: they take part in three rounds.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jprec import formats, rounding

FORMATS = ("fp16", "bf16", "tf32", "e4m3fn", "e2m1fn")
BLOCKS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp4", "mxfp4:ceil", "nvfp4")
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "e4m3fn": "float8_e4m3fn"}
DTYPES |= {"e2m1fn": "float4_e2m1fn"}
CEILING = "x + 1"


class Candidate(NamedTuple):
    """Something that is timed: `run` of the array, in all rounds or in some."""

    run: Callable[[Any], Any]
    jitted: bool = True
    rounds: int | None = None


def ours() -> dict[str, Candidate]:
    """jprec in every format and mode, blocks included, and what JAX has."""
    key = jax.random.key(0)
    found = {CEILING: Candidate(jax.jit(lambda x: x + 1))}
    for name in FORMATS:
        for mode in rounding.MODES:
            drawn = key if mode == "stochastic" else None
            rounder = functools.partial(rounding.round_to, fmt=name, mode=mode, key=drawn)
            found[f"{name} {mode}"] = Candidate(jax.jit(rounder))
    for name in BLOCKS:
        for mode, drawn in (("nearest_even", None), ("stochastic", key)):
            rounder = functools.partial(rounding.round_blocks, fmt=name, mode=mode, key=drawn)
            found[f"{name} {mode}"] = Candidate(jax.jit(rounder))
    for name in FORMATS:
        fmt = formats.get(name)
        if fmt.specials == "ieee":
            widths = (fmt.exponent_bits, fmt.mantissa_bits)
            reduced = jax.jit(lambda x, widths=widths: lax.reduce_precision(x, *widths))
            found[f"{name} lax.reduce_precision (flushes subnormals)"] = Candidate(reduced)
        if name in DTYPES:
            there = jax.jit(lambda x, d=DTYPES[name]: x.astype(d).astype(jnp.float32))
            found[f"{name} jnp astype and back"] = Candidate(there)
    found["random bits alone, jax.random.bits"] = Candidate(
        jax.jit(lambda x: jax.random.bits(key, x.shape, jnp.uint32))
    )
    return found


def of_numpy() -> dict[str, Candidate]:
    """ml_dtypes and NumPy, on one processor."""

    def back_and_forth(dtype: str) -> Callable[[Any], Any]:
        return lambda x: np.asarray(x).astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float32)

    return {
        f"{name} ml_dtypes astype and back": Candidate(back_and_forth(dtype), jitted=False)
        for name, dtype in DTYPES.items()
    }


def peers() -> dict[str, Candidate]:
    """gfloat under jax.jit, and pychop with its JAX backend."""
    import gfloat
    import gfloat.formats as infos
    import pychop

    pychop.backend("jax")
    known = {
        "fp16": infos.format_info_binary16,
        "bf16": infos.format_info_bfloat16,
        "e4m3fn": infos.format_info_ocp_e4m3,
        "e2m1fn": infos.format_info_ocp_e2m1,
    }
    found = {}
    for name, info in known.items():
        saturates = not formats.get(name).has_nan  # gfloat raises otherwise
        rounder = jax.jit(
            lambda x, info=info, saturates=saturates: gfloat.round_ndarray(
                info, x, gfloat.RoundMode.TiesToEven, saturates
            )
        )
        found[f"{name} gfloat, jax.jit"] = Candidate(rounder, rounds=3)
    for name in ("fp16", "bf16", "tf32"):
        fmt = formats.get(name)
        chop = pychop.Chop(exp_bits=fmt.exponent_bits, sig_bits=fmt.mantissa_bits, rmode=1)
        found[f"{name} pychop, jax"] = Candidate(chop, jitted=False, rounds=3)
    return found


class Timing(NamedTuple):
    """Median seconds for all the numbers, and temporaries in units of the array, if known."""

    seconds: float
    temporaries: float | None


def measure(candidates: dict[str, Candidate], numbers: int, rounds: int) -> dict[str, Timing]:
    """Times all candidates in turns."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((numbers // 1024, 1024), np.float32))
    temporaries = {}
    for name, candidate in candidates.items():
        jax.block_until_ready(candidate.run(x))
        if candidate.jitted:
            used = candidate.run.lower(x).compile().memory_analysis()
            temporaries[name] = used.temp_size_in_bytes / x.nbytes
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds):
        first = (number * 7) % len(names)
        for name in names[first:] + names[:first]:
            candidate = candidates[name]
            if candidate.rounds is not None and number >= candidate.rounds:
                continue
            start = time.perf_counter()
            jax.block_until_ready(candidate.run(x))
            seconds[name].append(time.perf_counter() - start)
    return {
        name: Timing(float(np.median(times)), temporaries.get(name))
        for name, times in seconds.items()
    }


def main() -> None:
    """Prints one line for each candidate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=10**7, help="how many FP32 numbers")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each, median taken")
    parser.add_argument("--peers", action="store_true", help="gfloat and pychop, too")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    candidates = ours() | of_numpy() | (peers() if options.peers else {})
    found = measure(candidates, options.numbers, options.rounds)
    print(
        f"{options.numbers} FP32 numbers on {jax.devices()[0].device_kind}, jax {jax.__version__}, "
        f"median of {options.rounds} rounds\n"
    )
    row = (
        "| {:48} | {:>9} | {:>8} | {:>14} | {:>11} |"
        if options.markdown
        else ("{:48} {:>9} {:>8} {:>14} {:>11}")
    )
    print(row.format("", "ms", "M/s", "share of x + 1", "temporaries"))
    if options.markdown:
        print("|---|---:|---:|---:|---:|")
    for name, (seconds, temporaries) in found.items():
        share = found[CEILING].seconds / seconds
        room = "" if temporaries is None else f"{temporaries:.2f}"
        rate = options.numbers / seconds / 1e6
        print(row.format(name, f"{1e3 * seconds:.1f}", f"{rate:.0f}", f"{share:.2f}", room))


if __name__ == "__main__":
    main()
