"""What a GPU really does with TF32, BF16, FP16 and FP8, beside the emulation of its tensor cores.

    python experiments/device_check/run.py [--out FOLDER] [--seconds 480] [--rows 100000]

Needs no network, and at most --seconds. Writes findings.json and vectors.json into the folder,
prints the findings, and exits with 1 if emulation and hardware disagree on one block, or one could
not be compared. Without an NVIDIA GPU the parts that need one are reported as not available, and
the rest is done.
"""

import argparse
import functools
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jprec import doctor, hardware, matmul, records

#: Word in the name of a GPU -> the device whose tensor cores it has.
DEVICES = {
    "V100": "v100",
    "T4": "t4",
    "A100": "a100",
    "A30": "a100",
    "L40": "ada",
    "L40S": "ada",
    "L4": "ada",
    "GeForce RTX 40[5-9]0": "ada",
    "H100": "h100",
    "H200": "h200",
    "B200": "b200",
}

#: Operand format -> dtype and algorithm of the real product.
FORMATS = {
    "tf32": (jnp.float32, "TF32_TF32_F32"),
    "bf16": (jnp.bfloat16, "BF16_BF16_F32"),
    "fp16": (jnp.float16, "F16_F16_F32"),
    # E5M2 by E5M2 is no product of cuBLASLt; XLA would widen it, and that is not what is emulated.
    "e4m3fn": (jnp.float8_e4m3fn, "ANY_F8_ANY_F8_F32"),
}

#: Lengths of the sums beyond one block.
CHAINS = (64, 256, 4096)

#: Rows of each comparison that are written down, those that differ first.
KEPT = 50


def on_gpu() -> bool:
    """Whether there is an NVIDIA GPU."""
    return jax.default_backend() in ("gpu", "cuda")


def device_name() -> str | None:
    """The known device that this machine's GPU is, or None."""
    kind = jax.devices()[0].device_kind
    return next((name for word, name in DEVICES.items() if re.search(rf"\b{word}\b", kind)), None)


# --- Which rounding? One product in a matrix, so that tensor cores are used. ---------------------

#: 0x3f7fffff squared: what it is without TF32, with truncated operands, with rounded ones.
SQUARES = {0x3F7FFFFE: "no TF32", 0x3F7FC004: "TF32, truncated", 0x3F800000: "TF32, to nearest"}

#: (1 + 2**-11) * 1: a tie.
TIES = {0x3F801000: "no TF32", 0x3F800000: "even or truncated", 0x3F802000: "away from zero"}


def rounding_of(product: Callable[[jax.Array, jax.Array], jax.Array], size: int) -> dict[str, Any]:
    """How a product of FP32 matrices rounds its operands, from two bit patterns."""
    found: dict[str, Any] = {}
    for name, bits, other, table in (
        ("square", 0x3F7FFFFF, 0x3F7FFFFF, SQUARES),
        ("tie", 0x3F801000, 0x3F800000, TIES),
    ):
        a, b = np.zeros((2, size, size), np.uint32)
        a[:, 0], b[0, :] = bits, other
        got = np.asarray(jax.jit(product)(a.view(np.float32), b.view(np.float32)))
        words = sorted({int(word) for word in got.view(np.uint32).ravel()})
        found[name] = {
            "bits": [f"{word:08x}" for word in words],
            "means": [table.get(word, "something else") for word in words],
        }
    return found


def roundings(until: float) -> dict[str, Any]:
    """How products and convolutions round FP32 operands under every request, at three sizes."""
    requests: dict[str, Any] = {"default": None, "HIGH": lax.Precision.HIGH}
    requests["HIGHEST"] = lax.Precision.HIGHEST
    for name in ("F32_F32_F32", "TF32_TF32_F32", "TF32_TF32_F32_X3", "BF16_BF16_F32"):
        requests[name] = lax.DotAlgorithmPreset[name]
    found: dict[str, Any] = {}
    for name, precision in requests.items():
        for size in (16, 256, 1024):
            if time.monotonic() > until:
                return found | {"left out": f"from {name} {size} on, no time"}
            dot = functools.partial(jnp.matmul, precision=precision)
            found[f"dot {name} {size}"] = attempt(lambda d=dot, s=size: rounding_of(d, s))
        convolve = functools.partial(as_convolution, precision=precision)
        found[f"convolution {name} 256"] = attempt(lambda c=convolve: rounding_of(c, 256))
    return found


def as_convolution(a: jax.Array, b: jax.Array, *, precision: Any) -> jax.Array:
    """a @ b as a convolution with a 1 x 1 kernel."""
    layout = ("NHWC", "HWIO", "NHWC")
    out = lax.conv_general_dilated(
        a[None, None], b[None, None], (1, 1), "VALID", dimension_numbers=layout, precision=precision
    )
    return out[0, 0]


def vmapped() -> dict[str, Any]:
    """Whether a matrix-vector product keeps its bits when vmap makes a matrix product of it."""
    rng = np.random.default_rng(1)
    a = jnp.asarray(rng.standard_normal((512, 512), np.float32))
    x = jnp.asarray(rng.standard_normal((64, 512), np.float32))
    alone = jnp.stack([jax.jit(jnp.matmul)(a, row) for row in x])
    together = jax.jit(jax.vmap(jnp.matmul, (None, 0)))(a, x)
    difference = float(jnp.max(jnp.abs(alone - together)) / jnp.max(jnp.abs(alone)))
    return {"same bits": bool(jnp.array_equal(alone, together)), "largest difference": difference}


# --- Emulated against real ------------------------------------------------------------------------


def operands(name: str, rows: int, terms: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices [n, K] and [K, n] with about `rows` products, values of the format."""
    from jprec import rounding

    n = int(np.ceil(np.sqrt(rows)))
    rng = np.random.default_rng(len(kind) + terms)
    a, b = rng.standard_normal((n, terms)), rng.standard_normal((terms, n))
    if kind == "wide":
        a, b = (x * 2.0 ** rng.integers(-6, 7, x.shape) for x in (a, b))
    if kind == "positive":
        a, b = np.abs(a), np.abs(b)
    mode = "toward_zero" if name == "tf32" else "nearest_even"
    left, right = (
        np.asarray(rounding.round_to(jnp.asarray(x, jnp.float32), name, mode)) for x in (a, b)
    )
    return left, right


def real_product(name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """This machine's own product of FP32 matrices that hold values of the format."""
    dtype, algorithm = FORMATS[name]

    @jax.jit
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot_general(
            a.astype(dtype),
            b.astype(dtype),
            (((1,), (0,)), ((), ())),
            precision=lax.DotAlgorithmPreset[algorithm],
            preferred_element_type=jnp.float32,
        )

    return lambda a, b: np.asarray(product(a, b))


def compared(
    name: str, device: str, rows: int, terms: int, vectors: list[dict[str, Any]]
) -> dict[str, Any]:
    """How many results of sums of `terms` products have the emulation's bits."""
    product = real_product(name)
    emulated = jax.jit(functools.partial(matmul.matmul, spec=f"{name}@{device}"))
    found: dict[str, Any] = {"terms": terms, "rows": 0, "differ": 0}
    for kind in ("near", "wide", "positive"):
        a, b = operands(name, rows // 3, terms, kind)
        got, want = product(a, b), np.asarray(emulated(a, b))
        same = got.view(np.uint32) == want.view(np.uint32)
        found["rows"] += same.size
        found["differ"] += int(np.count_nonzero(~same))
        order = np.argsort(same, axis=None, kind="stable")[:KEPT]
        for i, j in zip(*np.unravel_index(order, same.shape), strict=True):
            if terms <= 64:
                vectors.append(
                    {
                        "format": name,
                        "kind": kind,
                        "a": hexadecimal(a[i]),
                        "b": hexadecimal(b[:, j]),
                        "real": hexadecimal(got[i, j]),
                        "emulated": hexadecimal(want[i, j]),
                    }
                )
    return found


def hexadecimal(x: np.ndarray) -> str:
    """FP32 numbers as words."""
    return " ".join(f"{word:08x}" for word in np.atleast_1d(x).view(np.uint32))


def against_hardware(
    device: str, rows: int, until: float, vectors: list[dict[str, Any]]
) -> dict[str, Any]:
    """One block, and chains, of every format that the device has."""
    found: dict[str, Any] = {}
    for name in FORMATS:
        if name not in hardware.get(device).input_formats:
            found[name] = f"{device} has no such format here"
            continue
        block = hardware.get(device).tensor_core(name).products
        for terms in (block, *CHAINS):
            count = rows if terms == block else min(rows, 3000)
            what = f"{name} {'one block' if terms == block else f'chain of {terms}'}"
            if time.monotonic() > until:
                found[what] = "left out: no time"
                continue
            found[what] = attempt(
                lambda n=name, c=count, t=terms: compared(n, device, c, t, vectors)
            )
    return found


# --- Speed ----------------------------------------------------------------------------------------


def throughput(sizes: tuple[int, ...], until: float) -> dict[str, Any]:
    """TFLOP/s of square products in each arithmetic, the best of five."""
    found: dict[str, Any] = {}
    kinds = {"fp32": (jnp.float32, lax.Precision.HIGHEST)}
    for name in ("tf32", "bf16", "fp16"):
        kinds[name] = (FORMATS[name][0], lax.DotAlgorithmPreset[FORMATS[name][1]])
    for size in sizes:
        for name, (dtype, precision) in kinds.items():
            if time.monotonic() > until:
                return found | {"left out": f"from {size} on, no time"}
            found[f"{name} {size}"] = attempt(
                lambda s=size, d=dtype, p=precision: teraflops(s, d, p)
            )
    return found | {"torch": attempt(functools.partial(of_torch, sizes, until))}


def teraflops(size: int, dtype: Any, precision: Any) -> float:
    """1e12 operations a second of one size x size product."""
    a = jnp.ones((size, size), dtype)
    product = jax.jit(
        functools.partial(jnp.matmul, precision=precision, preferred_element_type=jnp.float32)
    )
    return 2e-12 * size**3 / best(lambda: product(a, a).block_until_ready())


def best(call: Callable[[], Any]) -> float:
    """The least seconds of five calls, after one that is not counted."""
    call()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def of_torch(sizes: tuple[int, ...], until: float) -> dict[str, float] | str:
    """The same by PyTorch, where it is installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    found: dict[str, float] = {}
    for size in sizes:
        for name, dtype in (("fp32", None), ("tf32", None), ("bf16", torch.bfloat16)):
            if time.monotonic() > until:
                return found
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            a = torch.ones((size, size), dtype=dtype or torch.float32, device="cuda")

            def call(a: Any = a) -> None:
                a @ a
                torch.cuda.synchronize()

            found[f"{name} {size}"] = 2e-12 * size**3 / best(call)
    return found


# --- All of it ------------------------------------------------------------------------------------


def attempt(part: Callable[[], Any]) -> Any:
    """What the part finds; what stops it is a finding, too, and does not stop the others."""
    try:
        return part()
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return f"failed: {type(error).__name__}: {lines[0][:300]}"


def check(*, rows: int, seconds: float, sizes: tuple[int, ...]) -> tuple[dict, list[dict]]:
    """The findings, and vectors of emulated and real results."""
    start = time.monotonic()
    until = start + seconds
    vectors: list[dict[str, Any]] = []
    probes = {probe.name: probe.answer for probe in doctor.probe_backend()}
    findings: dict[str, Any] = {"environment": doctor.environment(), "probes": probes}
    device = device_name()
    absent = "not available: there is no NVIDIA GPU here"
    if not on_gpu():
        findings |= dict.fromkeys(("roundings", "vmap", "emulation", "throughput"), absent)
    else:
        findings["device"] = device or "unknown"
        findings["roundings"] = roundings(start + 0.3 * seconds)
        findings["vmap"] = attempt(vmapped)
        findings["emulation"] = (
            against_hardware(device, rows, start + 0.6 * seconds, vectors)
            if device
            else "not available: jprec knows no tensor core of this GPU"
        )
        findings["throughput"] = throughput(sizes, until)
    findings["seconds"] = round(time.monotonic() - start, 1)
    findings["where"] = "on hardware" if on_gpu() else "no hardware checked"
    return findings, vectors


def disagreements(findings: dict[str, Any]) -> list[str]:
    """The blocks on which emulation and hardware differ, or that could not be compared."""
    emulation = findings["emulation"]
    if isinstance(emulation, str):
        return []
    wrong = []
    for what, found in emulation.items():
        if not what.endswith("one block"):
            continue
        if not isinstance(found, dict):
            wrong.append(f"{what} was not compared: {found}")
        elif found["differ"]:
            wrong.append(
                f"{what}: emulation and hardware differ in {found['differ']} of {found['rows']}"
            )
    return wrong


def main(words: list[str] | None = None) -> int:
    """Runs the checks, writes two files; 1 if a block differs, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seconds", type=float, default=480.0, help="stop after so many")
    parser.add_argument("--rows", type=int, default=100_000, help="dot products of each format")
    parser.add_argument("--largest", type=int, default=16384, help="largest product for speed")
    options = parser.parse_args(words)
    sizes = tuple(size for size in (1024, 2048, 4096, 8192, 16384) if size <= options.largest)
    findings, vectors = check(rows=options.rows, seconds=options.seconds, sizes=sizes)
    options.out.mkdir(parents=True, exist_ok=True)
    records.write_json(options.out / "findings.json", findings)
    records.write_json(options.out / "vectors.json", {"vectors": vectors})
    print(records.dumps(findings, indent=1))
    wrong = disagreements(findings)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
