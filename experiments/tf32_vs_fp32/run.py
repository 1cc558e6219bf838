"""TF32 against full FP32: errors by shape, PyTorch's published example, and speed.

    python experiments/tf32_vs_fp32/run.py [--device a100] [--small]

Writes results/results.json, results/errors.svg and the tables of README.md. On an NVIDIA GPU also
this machine's own products; elsewhere errors are emulated and speeds are predicted, and the record
says so. Under two minutes on two cores; --small is a miniature of it.
"""

import argparse
import dataclasses
import functools
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy import stats

from jprec import doctor, hardware, matmul, records, report

HERE = Path(__file__).parent

#: M, K, N.
SHAPES = ((256, 256, 256), (1024, 1024, 1024), (64, 4096, 64), (2048, 64, 2048), (1, 4096, 1024))

#: PyTorch's notes on CUDA semantics (docs/source/notes/cuda.rst): 10240 x 10240 x 10240, standard
#: normal numbers, on an A100.
PUBLISHED = {"size": 10240, "mean": 80.7277, "tf32_largest": 0.1747, "fp32_largest": 0.0031}

#: Arithmetic of the published example -> the key of what is published. "fp32" adds in XLA's order
#: on this machine, "fp32+fp32" one product after the other, as a thread of a GPU does.
EXAMPLE = {
    "tf32": "tf32_largest",
    "tf32:toward_zero": None,
    "fp32": "fp32_largest",
    "fp32+fp32": "fp32_largest",
}

LENGTHS = (16, 64, 256, 1024, 4096, 16384)


def specs(device: str) -> list[str]:
    """Arithmetics that are compared."""
    own = ["fp32@native", "tf32@native"] if jax.default_backend() in ("gpu", "cuda") else []
    return ["fp32", "tf32", "tf32:nearest_even", "tf32:toward_zero", f"tf32@{device}", *own]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Standard normal numbers in FP32."""
    return rng.standard_normal(shape).astype(np.float32)


def by_shape(shapes: Sequence[tuple[int, int, int]], device: str) -> list[dict[str, Any]]:
    """Errors of each arithmetic for each shape."""
    found = []
    for m, k, n in shapes:
        rng = np.random.default_rng([m, k, n])
        a, b = normal(rng, m, k), normal(rng, k, n)
        for one in matmul.compare(a, b, specs(device)):
            row = {"shape": [m, k, n], **dataclasses.asdict(one)}
            row["teraflops"] = 2e-12 * m * k * n / one.seconds
            found.append(row)
    return found


def by_length(lengths: Sequence[int], device: str) -> dict[str, list[tuple[int, float]]]:
    """Root-mean-square error over |A||B| against the length of the sums."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for k in lengths:
        rng = np.random.default_rng(k)
        for one in matmul.compare(normal(rng, 32, k), normal(rng, k, 32), specs(device), repeats=1):
            curves.setdefault(one.spec, []).append((k, one.rms))
    return curves


def expected_largest(deviation: float, count: int) -> tuple[float, float, float]:
    """Median and 90 % interval of the largest of `count` independent normal magnitudes."""
    quantiles = (0.5, 0.05, 0.95)
    # P(largest <= x) = (1 - 2 sf(x))**count
    tails = [-math.expm1(math.log(q) / count) / 2 for q in quantiles]
    middle, low, high = (float(deviation * stats.norm.isf(tail)) for tail in tails)
    return middle, low, high


def pytorch_example(rows: int, size: int) -> dict[str, Any]:
    """The largest errors at size**3, extrapolated from rows x rows results with sums of `size`.

    Errors of sums of so many products are close to normal, so the largest of size**2 of them
    follows from their deviation. The largest error of the sample alone is smaller.
    """
    rng = np.random.default_rng(0)
    a, b = normal(rng, rows, size), normal(rng, size, rows)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    found: dict[str, Any] = {
        "size": size,
        "sampled_rows": rows,
        "mean": float(np.mean(np.abs(exact))),
        "mean_predicted": math.sqrt(2 * size / math.pi),
    }
    for name in EXAMPLE:
        # One fused multiply-add after the other is slow; fewer rows tell the deviation as well.
        kept = rows // 3 if name == "fp32+fp32" else rows
        product = jax.jit(functools.partial(matmul.matmul, spec=name))
        error = np.asarray(product(a[:kept], b[:, :kept])).astype(np.float64)
        error -= exact[:kept, :kept]
        middle, low, high = expected_largest(float(np.std(error)), size**2)
        found[name] = {
            "deviation": float(np.std(error)),
            "kurtosis": float(stats.kurtosis(error, axis=None)),
            "sample_largest": float(np.max(np.abs(error))),
            "expected_largest": middle,
            "interval_90": [low, high],
        }
    return found


def predicted_speed(device: str, size: int = 8192) -> list[dict[str, Any]]:
    """Least time of a square product of FP32 matrices: arithmetic or memory at its peak rate."""
    chip = hardware.get(device)
    assert chip.bandwidth is not None
    memory = 1e3 * 3 * 4 * size**2 / (1e12 * chip.bandwidth.terabytes)
    found = []
    for name in ("fp32", "tf32"):
        rate = chip.rate(name)
        arithmetic = 1e3 * 2 * size**3 / (1e12 * rate.teraflops)
        found.append(
            {
                "format": name,
                "size": size,
                "peak_teraflops": rate.teraflops,
                "milliseconds": max(arithmetic, memory),
                "limited_by": "arithmetic" if arithmetic > memory else "memory",
                "status": rate.status,
                "source": rate.source,
            }
        )
    return found


def run(device: str, *, small: bool) -> dict[str, Any]:
    """The whole experiment as a record."""
    start = time.monotonic()
    shapes = ((32, 32, 32), (4, 64, 4)) if small else SHAPES
    result = {
        "environment": doctor.environment(),
        "device": device,
        "by_shape": by_shape(shapes, device),
        "by_length": by_length(LENGTHS[:2] if small else LENGTHS, device),
        "pytorch_example": pytorch_example(64 if small else 768, 256 if small else 10240),
        "published": PUBLISHED,
        "predicted_speed": predicted_speed(device),
        "where": "emulated, speeds predicted"
        if jax.default_backend() == "cpu"
        else f"emulated, and native on {jax.devices()[0].device_kind}",
    }
    return result | {"seconds": round(time.monotonic() - start, 1)}


def tables(result: dict[str, Any]) -> dict[str, str]:
    """The tables of the README, from the record."""
    head = "| shape | arithmetic | largest | rms | bias | largest / mean |\n"
    head += "|---|---|---:|---:|---:|---:|"
    rows = [
        f"| {'×'.join(map(str, row['shape']))} | `{row['spec']}` ({row['where']}) | "
        f"{row['largest']:.1e} | {row['rms']:.1e} | {row['bias']:+.1e} | {row['over_mean']:.1e} |"
        for row in result["by_shape"]
    ]
    example = result["pytorch_example"]
    published = result["published"]
    lines = [
        f"Mean magnitude {example['mean']:.2f} (predicted √(2K/π) = "
        f"{example['mean_predicted']:.2f}; published {published['mean']}).",
        "",
        "| arithmetic | sd of the errors | excess kurtosis | largest in the sample | largest of "
        "10240² if normal (90 %) | published |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, key in EXAMPLE.items():
        one = example[name]
        low, high = one["interval_90"]
        said = published[key] if key else "–"
        lines.append(
            f"| `{name}` | {one['deviation']:.3g} | {one['kurtosis']:.2f} | "
            f"{one['sample_largest']:.3g} | {one['expected_largest']:.3g} "
            f"({low:.3g} … {high:.3g}) | {said} |"
        )
    speed = [
        f"| {row['format']} | {row['peak_teraflops']:g} | {row['milliseconds']:.2f} | "
        f"{row['limited_by']} | {row['status']}: {row['source']} |"
        for row in result["predicted_speed"]
    ]
    return {
        "errors": "\n".join([head, *rows]),
        "example": "\n".join(lines),
        "speed": "\n".join(
            [
                "| operands | peak TFLOP/s | ms at 8192³, at best | limited by | known how |",
                "|---|---:|---:|---|---|",
                *speed,
            ]
        ),
    }


def renewed(page: str, result: dict[str, Any]) -> str:
    """The README with its generated tables made again."""
    made = tables(result)
    pattern = re.compile(r"(?s)(<!-- generated: (\w+) -->\n).*?(<!-- end: \2 -->)")
    return pattern.sub(lambda part: f"{part[1]}{made[part[2]]}\n{part[3]}", page)


def main(words: list[str] | None = None) -> int:
    """Runs, writes the record, the figure and the tables; 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="a100", help="whose tensor cores are emulated")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--small", action="store_true", help="a miniature; README stays as it is")
    options = parser.parse_args(words)
    result = run(options.device, small=options.small)
    options.out.mkdir(parents=True, exist_ok=True)
    records.write_json(options.out / "results.json", result)
    report.write_lines_picture(
        options.out / "errors.svg",
        result["by_length"],
        title=f"Error of TF32 and FP32 products against the length of the sums ({result['where']})",
        x="products in a sum, K",
        y="rms error / |A||B|",
    )
    if not options.small:
        readme = HERE / "README.md"
        readme.write_text(renewed(readme.read_text(encoding="utf-8"), result), encoding="utf-8")
    print(tables(result)["errors"])
    if options.small:
        print("A miniature: its sums are shorter than the published example's, and not comparable.")
    else:
        print(tables(result)["example"])
    print(options.out / "results.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
