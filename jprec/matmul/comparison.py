"""Errors and cost of one product in several arithmetics, side by side."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from jprec import formats
from jprec.matmul.bounds import error_bound
from jprec.matmul.products import matmul
from jprec.matmul.spec import MatmulSpec, get

#: Shares of the results for which the error in ulps is given.
QUANTILES = (0.5, 0.99, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a product in the arithmetic of `spec` makes of two matrices.

    Errors are against float64, whose own is smaller by 2**-29; they are in units of |A| |B| where
    nothing else is said.

    Attributes:
      spec: The arithmetic.
      where: "emulated on cpu", "native on gpu", ...
      largest: The largest error.
      rms: The root of the mean square of the errors.
      bias: The mean error in the direction of the exact result, over the mean magnitude of those:
        negative where results are too small.
      over_mean: The largest error over the mean magnitude of the results.
      bound: What the largest error cannot exceed: `error_bound`, and what numbers below the
        formats' normal range lose; None where none is known, or something overflowed.
      ulps: Errors in units of FP32's last place of the exact result, at `QUANTILES`.
      correctly_rounded: Share of the results that are the FP32 number next to the exact one.
      seconds: Median time of one call here.
      cost: That time over the one of this machine's own FP32 product: what emulating costs here,
        not what the arithmetic costs on a device that has it.
      products: How many products of matrices it takes.
    """

    spec: str
    where: str
    largest: float
    rms: float
    bias: float
    over_mean: float
    bound: float | None
    ulps: tuple[float, ...]
    correctly_rounded: float
    seconds: float
    cost: float
    products: int


def compare(
    a: np.typing.ArrayLike,
    b: np.typing.ArrayLike,
    specs: str | MatmulSpec | Sequence[str | MatmulSpec],
    *,
    repeats: int = 3,
) -> list[Comparison]:
    """Errors and cost of a @ b, one Comparison for each spec.

    Args:
      a: [M, K], finite, taken as float32.
      b: [K, N], likewise.
      specs: MatmulSpecs or their spellings, one or several.
      repeats: Timed calls of each, of which the median counts.

    >>> rng = np.random.default_rng(0)
    >>> a, b = np.float32(rng.standard_normal((2, 64, 64)))
    >>> fp32, tf32 = compare(a, b, ["fp32", "tf32"])
    >>> tf32.largest > 100 * fp32.largest
    True
    """
    if isinstance(specs, (str, MatmulSpec)):
        specs = [specs]
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"compare of shapes {a.shape} and {b.shape}: two matrices are needed, and the columns "
            "of the first are the rows of the second."
        )
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact, size = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    native = jax.jit(functools.partial(jax.numpy.matmul, precision=jax.lax.Precision.HIGHEST))
    _, own = _timed(native, a, b, repeats)
    found = []
    for spec in map(get, specs):
        product = jax.jit(functools.partial(matmul, spec=spec))
        got, seconds = _timed(product, a, b, repeats)
        one = _judged(spec, got, exact, size, a.shape[1], seconds, own)
        if not np.isfinite(got).all():
            one = dataclasses.replace(one, bound=None)
        if one.bound is not None:
            one = dataclasses.replace(one, bound=one.bound + _underflow(spec, a, b, size))
        found.append(one)
    return found


def _underflow(spec: MatmulSpec, a: np.ndarray, b: np.ndarray, size: np.ndarray) -> float:
    """What underflow of operands and sums adds to the error at most, in units of |A| |B|."""
    lost = 0.0
    if spec.rounds_operands:
        spacing = formats.get(spec.operand_format).min_subnormal
        spacing *= 2.0 ** (-spec.split_scale * (spec.terms - 1))
        rows = np.abs(a).astype(np.float64).sum(1)[:, None]
        columns = np.abs(b).astype(np.float64).sum(0)[None, :]
        lost = spacing * (rows + columns + spacing * a.shape[1])
    if spec.accumulator is not None:
        lost = lost + 4 * a.shape[1] * formats.get(spec.accumulator).min_subnormal
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(size > 0, lost / size, 0.0), initial=0.0))


def _timed(
    product: Callable[[jax.Array, jax.Array], jax.Array],
    a: np.ndarray,
    b: np.ndarray,
    repeats: int,
) -> tuple[np.ndarray, float]:
    """The product, and the median seconds of a call after the first."""
    left, right = jax.device_put(a), jax.device_put(b)
    out = product(left, right).block_until_ready()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        product(left, right).block_until_ready()
        times.append(time.perf_counter() - start)
    return np.asarray(out), float(np.median(times))


def _judged(
    spec: MatmulSpec,
    got: np.ndarray,
    exact: np.ndarray,
    size: np.ndarray,
    terms: int,
    seconds: float,
    own: float,
) -> Comparison:
    error = np.float64(got) - exact
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(error == 0, 0.0, error / size)
    nearest = exact.astype(np.float32)
    ulps = np.abs(error) / np.float64(np.spacing(np.abs(nearest)))
    mean = float(np.mean(np.abs(exact))) if exact.size else 0.0
    backend = jax.default_backend()
    return Comparison(
        spec=spec.name,
        where=f"native on {backend}" if spec.is_native else f"emulated on {backend}",
        largest=float(np.max(np.abs(relative), initial=0.0)),
        rms=float(np.sqrt(np.mean(relative**2))) if error.size else 0.0,
        bias=float(np.mean(error * np.sign(exact)) / mean) if mean else 0.0,
        over_mean=float(np.max(np.abs(error), initial=0.0) / mean) if mean else 0.0,
        bound=None if spec.is_native else error_bound(spec, terms).coefficient,
        ulps=tuple(np.quantile(ulps, QUANTILES).tolist()) if error.size else (0.0,) * 3,
        correctly_rounded=float(np.mean(got == nearest)) if error.size else 1.0,
        seconds=seconds,
        cost=seconds / own,
        products=len(spec.pairs),
    )
