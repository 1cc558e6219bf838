"""Sums in a chosen format in rational arithmetic: the oracle of `chains`."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from jprec import formats


def chain_exact(
    a: np.ndarray,
    b: np.ndarray,
    *,
    accumulator: formats.FormatLike,
    compensated: bool = False,
    chunk: int | None = None,
) -> float:
    """sum(a * b) in ascending order, each step rounded once to `accumulator`, to nearest even.

    A product enters exactly, as in a fused multiply-add. A sum that overflows is infinite at the
    end. With `chunk`, partial sums of so many products each start from 0, and are added one after
    the other in FP32.

    Args:
      a: [K], finite.
      b: [K], finite.
      accumulator: Format of the sum.
      compensated: Whether Kahan's compensation is carried, in the same format.
      chunk: Products in a partial sum.

    >>> chain_exact(np.ones(3000), np.ones(3000), accumulator="fp16")
    2048.0
    """

    def rounded(x: Fraction, fmt: formats.FormatLike = accumulator) -> Fraction:
        value = formats.round_exact(x, fmt)
        if not math.isfinite(value):
            raise _Overflow(value)
        return Fraction(value)

    try:
        return _chain(a, b, rounded, compensated, chunk)
    except _Overflow as overflow:
        return float(overflow.args[0])


class _Overflow(Exception):
    """A sum is beyond the format: what it became."""


def _chain(
    a: np.ndarray,
    b: np.ndarray,
    rounded: Callable[..., Fraction],
    compensated: bool,
    chunk: int | None,
) -> float:
    products = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    size = chunk or max(len(products), 1)
    overall = Fraction(0)
    for start in range(0, len(products), size):
        total = lost = Fraction(0)
        for product in products[start : start + size]:
            if compensated:
                term = rounded(product - lost)
                new = rounded(total + term)
                lost = rounded(rounded(new - total) - term)
                total = new
            else:
                total = rounded(total + product)
        overall = rounded(overall + total, "fp32") if chunk else total
    return float(overall)
