"""`jprec matmul`: how wrong is a product in TF32, BF16, ..., and what does it cost?"""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jprec import records
from jprec.cli.formats import PICTURES
from jprec.cli.trouble import Trouble

if TYPE_CHECKING:
    import numpy as np

    from jprec.matmul import Comparison

#: The lengths of sums that --plot shows.
LENGTHS = (16, 64, 256, 1024, 4096, 16384)


@dataclasses.dataclass(frozen=True)
class Matmul:
    """Compares one product of two random matrices in several arithmetics, with float64.

    Errors are in units of |A||B|, element by element, and cannot exceed the bound. Bias and the
    largest error once more are in units of the mean magnitude of the results; a negative bias means
    results that are too small. FP32 ulps are units in the last place of the exact result. The time
    is that of emulating here, over that of this machine's own FP32 product.

    A spec is FORMAT, then as wanted x3, x6 or x9, :rounding, @device, +ACCUMULATOR, +kahan, and
    +chunkN. All is emulated, except what ends in @native, which needs an NVIDIA GPU.
    """

    spec: Annotated[str, tyro.conf.arg(metavar="SPEC,...")] = "fp32,tf32,tf32x3,bf16,bf16x3,fp16"
    """Arithmetics, separated by commas, for instance tf32@a100,fp32,bf16x3."""

    size: Annotated[str, tyro.conf.arg(metavar="N or MxKxN")] = "256"
    """Size of the matrices: one number, or M x K x N."""

    data: Literal["normal", "uniform", "positive"] = "normal"
    """Standard normal; uniform in (-1, 1); uniform in (0, 1)."""

    seed: int = 0
    """Seed of the matrices."""

    plot: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw the errors against the length of the sums into a .svg, .png or .pdf file."""

    json: bool = False
    """Print JSON for machines."""

    def run(self) -> int:
        """Prints the table, or draws; 0."""
        from jprec import matmul

        shape = _shape(self.size)
        if self.plot is not None:
            check_picture(self.plot)
        if self.seed < 0:
            raise Trouble(f"--seed {self.seed}: it is 0 or more.")
        words = list(dict.fromkeys(word.strip() for word in self.spec.split(",") if word.strip()))
        try:
            specs = [matmul.get(word) for word in words]
            a, b = _matrices(*shape, self.data, self.seed)
            found = matmul.compare(a, b, specs, repeats=5)
        except ValueError as error:
            raise Trouble(str(error)) from error
        except MemoryError as error:
            raise Trouble(f"--size {self.size}: matrices of that size do not fit.") from error
        # Under the names that were asked for.
        found = [
            dataclasses.replace(one, spec=word) for one, word in zip(found, words, strict=True)
        ]
        if self.json:
            asked: dict[str, Any] = {"shape": list(shape), "data": self.data, "seed": self.seed}
            asked["ulps_at"] = list(matmul.QUANTILES)
            print(records.dumps([{**asked, **dataclasses.asdict(one)} for one in found], indent=1))
        else:
            print(_table(found, shape, self.data, self.seed))
        if self.plot is not None:
            _draw(words, self.data, self.seed, self.plot)
            print(self.plot, file=sys.stderr if self.json else sys.stdout)
        return 0


def check_picture(path: Path) -> None:
    """Raises Trouble where no picture can be written to a file of that name."""
    if path.suffix.lower() not in PICTURES:
        raise Trouble(f"--plot {path}: a picture's name ends in {', '.join(PICTURES)}.")
    try:
        from jprec import report  # noqa: F401
    except ModuleNotFoundError as error:
        raise Trouble(f"--plot needs {error.name}: pip install 'jprec[lab]'.") from error


def _shape(size: str) -> tuple[int, int, int]:
    """M, K, N."""
    try:
        numbers = [int(word) for word in size.lower().split("x")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 3) or min(numbers) < 1:
        raise Trouble(f"--size {size}: one number, or three as in 128x4096x64, each at least 1.")
    m, k, n = numbers * 3 if len(numbers) == 1 else numbers
    return m, k, n


def _matrices(m: int, k: int, n: int, data: str, seed: int) -> tuple["np.ndarray", "np.ndarray"]:
    import numpy as np

    rng = np.random.default_rng(seed)
    draw: Any = {
        "normal": rng.standard_normal,
        "uniform": lambda shape: rng.uniform(-1, 1, shape),
        "positive": lambda shape: rng.uniform(0, 1, shape),
    }[data]
    return draw((m, k)).astype(np.float32), draw((k, n)).astype(np.float32)


_HEADS = (
    "  error / |A||B|                 / mean |AB|          FP32 ulps                 "
    "      nearest   emulation",
    "   largest       rms     bound      bias    largest   median     99 %  largest"
    "     FP32  time / own",
)


def _table(found: list["Comparison"], shape: tuple[int, int, int], data: str, seed: int) -> str:
    m, k, n = shape
    width = max(len("product"), *(len(one.spec) for one in found))
    lines = [
        f"[{m}, {k}] @ [{k}, {n}], {data} numbers, seed {seed}; against float64; "
        f"{', '.join(dict.fromkeys(one.where for one in found))}",
        "",
        " " * width + _HEADS[0],
        "product".ljust(width) + _HEADS[1],
        "-" * (width + 101),
    ]
    for one in found:
        bound = "-" if one.bound is None else f"{one.bound:.1e}"
        median, most, largest = (_count(ulp) for ulp in one.ulps)
        lines.append(
            f"{one.spec:{width}} {one.largest:9.1e} {one.rms:9.1e} {bound:>9} {one.bias:9.1e} "
            f"{one.over_mean:10.1e} {median:>8} {most:>8} {largest:>8} "
            f"{one.correctly_rounded:8.0%} {one.cost:11.3g}"
        )
    return "\n".join(lines)


def _count(ulps: float) -> str:
    return f"{ulps:.2f}" if ulps < 100 else f"{ulps:.3g}"


def _draw(specs: list[str], data: str, seed: int, path: Path) -> None:
    """Writes the picture of errors against the length of the sums."""
    from jprec import matmul, report

    curves: dict[str, list[tuple[int, float]]] = {spec: [] for spec in specs}
    for length in LENGTHS:
        a, b = _matrices(32, length, 32, data, seed)
        for spec, one in zip(specs, matmul.compare(a, b, specs, repeats=1), strict=True):
            curves[spec].append((length, one.rms))
    title = f"Root-mean-square error over |A||B| against the length of the sums, {data} numbers"
    try:
        report.write_lines_picture(
            path, curves, title=title, x="products in a sum, K", y="rms error / |A||B|"
        )
    except OSError as error:
        raise Trouble(f"cannot write {path}: {error.strerror or error}.") from error
