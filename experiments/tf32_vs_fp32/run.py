"""TF32 against full FP32: errors by shape, PyTorch's published example, and speed.

    python experiments/tf32_vs_fp32/run.py [--small]

On an NVIDIA GPU also this machine's own products; elsewhere errors are emulated and speeds are
predicted, and the record says so. Under two minutes on two cores.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from jprec import hardware, matmul, report
from jprec.study import Experiment, Finding

#: Whose tensor cores are emulated.
DEVICE = "a100"

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


def parts(small: bool) -> dict[str, Callable[[], Any]]:
    """What is computed, part by part."""
    shapes = ((32, 32, 32), (4, 64, 4)) if small else SHAPES
    return {
        "by_shape": lambda: by_shape(shapes, DEVICE),
        "by_length": lambda: by_length(LENGTHS[:2] if small else LENGTHS, DEVICE),
        "pytorch_example": lambda: pytorch_example(64 if small else 768, 256 if small else 10240),
        "published": lambda: PUBLISHED,
        "predicted_speed": lambda: predicted_speed(DEVICE),
    }


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


def figures(result: dict[str, Any]) -> dict[str, Figure]:
    """Errors against the length of the sums."""
    curves = [
        report.Curve(name=name, x=[k for k, _ in points], y=[error for _, error in points])
        for name, points in result["by_length"].items()
    ]
    return {
        "errors.svg": report.plot(
            [
                report.Panel(
                    title="Error of TF32 and FP32 products against the length of the sums",
                    x="products in a sum, K",
                    y="rms error / |A||B|",
                    x_scale="log2",
                    y_scale="log2",
                    curves=curves,
                )
            ],
            height=380,
        )
    }


def findings(result: dict[str, Any]) -> list[Finding]:
    """By the rule of the page: a rounding whose interval leaves out what was published is out."""
    example, published = result["pytorch_example"], result["published"]["tf32_largest"]
    (low, high), (cut_low, cut_high) = (
        example[name]["interval_90"] for name in ("tf32", "tf32:toward_zero")
    )
    is_rounded = low <= published <= high and not cut_low <= published <= cut_high
    errors = {row["spec"]: row["rms"] for row in result["by_shape"][:5]}
    milliseconds = {row["format"]: row["milliseconds"] for row in result["predicted_speed"]}
    return [
        Finding(
            claim="A13",
            verdict="confirmed" if is_rounded else "undecided",
            sentence="That operands are rounded, not truncated: the largest error that PyTorch "
            f"publishes for an A100, {published}, lies within what rounding to nearest predicts "
            f"({low:.3g} to {high:.3g}), and outside of what truncation does ({cut_low:.3g} to "
            f"{cut_high:.3g}). Emulated. Of the accumulator see `accumulators`.",
        ),
        Finding(
            claim="A9",
            verdict="corrected",
            sentence="TF32 has 11 bits of precision, about 3.3 decimal digits, not 7: products of "
            f"256 x 256 matrices err {errors['tf32'] / errors['fp32']:.0f} times as much as in "
            "FP32 (rms, emulated).",
        ),
        Finding(
            claim="A1",
            verdict="needs a GPU",
            sentence="By its peak rates an A100 takes "
            f"{milliseconds['fp32'] / milliseconds['tf32']:.1f} times as long for a product of "
            "matrices of 8192 x 8192 in FP32 as in TF32: predicted, not measured.",
        ),
    ]


EXPERIMENT = Experiment(
    file=__file__,
    question="How wrong is a product in TF32, and can it be predicted?",
    parts=parts,
    tables=tables,
    figures=figures,
    findings=findings,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
