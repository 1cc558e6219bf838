"""Counting: exponents of a training step's tensors, and updates against the weights' ulp."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jprec import formats, program, train
from jprec.study.arms import Arm
from jprec.study.training import full_precision_unless_named
from jprec.workloads import Workload

Tree = Any

#: Loss scales at which the share that FP16 flushes is counted (Micikevicius et al. 2018, 3.2:
#: 8 was enough for SSD, 8 to 32768 were used).
SCALES = (1, 8, 128, 2**15)

STORED = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def capture(arm: Arm, workload: Workload) -> Callable[[Tree, Tree], dict[str, Tree]]:
    """(parameters, batches) -> the tensors of one training step, mapped over seeds.

    Weights are the parameters, activations what enters the products of the forward pass,
    activation gradients what enters those of the backward pass, all without a loss scale.
    """
    policy = full_precision_unless_named(arm)
    step = program.watch_products(
        train.value_and_grad(workload.loss, policy, scale=1.0, exact=True)
    )

    def tensors(params: Tree, batch: Tree) -> dict[str, Tree]:
        (_, gradients), operands = step(params, batch)
        return {"weights": params, **operands, "weight_gradients": gradients}

    return jax.jit(jax.vmap(tensors))


def histogram(name: str, tree: Tree, step: int) -> dict[str, Any]:
    """Exponents of all values of `tree`, in whole binades, with the zeros counted apart.

    Exponents are floor(log2|x|), of FP32 subnormals too.
    """
    counts: dict[int, int] = {}
    zeros = nonfinite = total = 0
    flushed = dict.fromkeys(map(str, SCALES), 0)
    for x in _arrays(tree):
        magnitude = np.abs(x[np.isfinite(x)])
        positive = magnitude[magnitude > 0]
        total += x.size
        nonfinite += x.size - magnitude.size
        zeros += magnitude.size - positive.size
        exponents, numbers = np.unique(np.frexp(positive)[1] - 1, return_counts=True)
        for e, n in zip(exponents.tolist(), numbers.tolist(), strict=True):
            counts[e] = counts.get(e, 0) + n
        for scale in SCALES:
            # The largest value that FP16 rounds to zero is 2^-25, half its smallest subnormal.
            flushed[str(scale)] += int(np.count_nonzero(positive <= 2.0**-25 / scale))
    exponents_seen = sorted(counts)
    return {
        "step": step,
        "tensor": name,
        "exponents": exponents_seen,
        "counts": [counts[e] for e in exponents_seen],
        "zeros": zeros,
        "nonfinite": nonfinite,
        "total": total,
        "flushed": flushed,
    }


class UpdateCounter:
    """Counts |update| / ulp(weight) in powers of two, and the updates that rounding loses.

    ulp = 2^(max(exponent, min exponent) - p + 1) of the format in which the arm stores the weight;
    an update u is lost when it is not zero and w + u, taken in FP32 and rounded to nearest in that
    format, is w again.
    """

    def __init__(self) -> None:
        """Nothing counted yet."""
        self.counts: dict[int, int] = {}
        self.zeros = self.lost = self.nonfinite = self.total = 0
        self.format = "fp32"

    def add(self, before: Tree, update: Tree) -> None:
        """Counts one step: parameters [..] as stored before it, the FP32 updates wanted."""
        leaves = zip(jax.tree.leaves(before), jax.tree.leaves(update), strict=True)
        for weight, wanted in leaves:
            fmt = formats.get(str(weight.dtype))
            w = np.asarray(weight).astype(np.float32)
            u = np.asarray(wanted)
            ok = np.isfinite(w) & np.isfinite(u)
            self.total += u.size
            self.nonfinite += int(np.count_nonzero(~ok))
            w, u = w[ok], u[ok]
            with np.errstate(over="ignore"):
                moved = (w + u).astype(STORED[str(weight.dtype)]).astype(np.float32)
            moves = u != 0
            self.zeros += int(np.count_nonzero(~moves))
            self.lost += int(np.count_nonzero(moves & (moved == w)))
            exponent = np.frexp(w.astype(np.float64))[1] - 1
            exponent = np.where(w == 0, fmt.min_exponent, exponent)
            ulp = np.exp2(np.maximum(exponent, fmt.min_exponent) - fmt.precision + 1.0)
            ratio = np.abs(u[moves].astype(np.float64)) / ulp[moves]
            bins, numbers = np.unique(np.frexp(ratio)[1] - 1, return_counts=True)
            for b, n in zip(bins.tolist(), numbers.tolist(), strict=True):
                self.counts[b] = self.counts.get(b, 0) + n
            if fmt.name != "fp32":
                self.format = fmt.name

    def record(self) -> dict[str, Any]:
        """What was counted, ready for JSON."""
        bins = sorted(self.counts)
        return {
            "format": self.format,
            "log2_ratio": bins,
            "counts": [self.counts[b] for b in bins],
            "zeros": self.zeros,
            "nonfinite": self.nonfinite,
            "lost": self.lost,
            "total": self.total,
        }


def _arrays(tree: Tree) -> Iterable[np.ndarray]:
    for leaf in jax.tree.leaves(tree):
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            yield np.asarray(leaf).astype(np.float32).ravel()
