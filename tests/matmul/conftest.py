"""Operands of a tensor core at which an emulation can go wrong."""

import numpy as np
import pytest

from jprec import formats


def _any_bits(rng, shape, fmt):
    """Every code of the format is as likely as any other: infinities and NaN too."""
    words = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32)
    if fmt.name == "fp16":
        with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
            return words.astype(np.uint16).view(np.float16).astype(np.float32)
    return (words >> (23 - fmt.mantissa_bits) << (23 - fmt.mantissa_bits)).view(np.float32)


def _between(rng, shape, fmt, low, high):
    """Numbers of both signs with exponents from `low` to `high`, subnormal where that is small."""
    exponent = rng.integers(low, high + 1, shape)
    significand = 1 + rng.integers(0, 2**fmt.mantissa_bits, shape) * fmt.epsilon
    spacing = 2.0 ** (np.maximum(exponent, fmt.min_exponent) - fmt.mantissa_bits)
    x = np.trunc(np.ldexp(significand, exponent) / spacing) * spacing
    return np.where(x > fmt.max, fmt.max, x) * rng.choice([-1.0, 1.0], shape)


def _sprinkled(rng, x, share):
    pool = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    return np.where(rng.random(x.shape) < share, rng.choice(pool, x.shape), x)


@pytest.fixture(scope="session")
def rows():
    """rows(core, n): 6 n triples a [2 L + 1, a short last block], b, c for a TensorCore."""

    def rows(core, n):
        fmt, out = formats.get(core.input_format), formats.get(core.output_format)
        rng = np.random.default_rng([core.products, core.fraction_bits, out.bits, fmt.bits])
        shape = (n, 2 * core.products + 1)
        # Products of two such numbers lie around the ends of the accumulator's range, where the
        # format reaches them.
        least = max((out.min_exponent - out.mantissa_bits) // 2, fmt.min_exponent - 6)
        most = min(out.max_exponent // 2, fmt.max_exponent)
        spans = {
            "near each other": ((-3, 3), (-4, 6)),
            "underflow": ((least - 5, least + 5), (out.min_exponent - 26, out.min_exponent + 3)),
            "overflow": ((most - 2, most + 1), (out.max_exponent - 2, out.max_exponent)),
        }
        sets = [(*(_any_bits(rng, shape, fmt) for _ in "ab"), _any_bits(rng, n, out))]
        sets += [
            (*(_between(rng, shape, fmt, *of_products) for _ in "ab"), _between(rng, n, out, *of_c))
            for of_products, of_c in spans.values()
        ]
        sets += [tuple(_sprinkled(rng, x, 0.04) for x in sets[i]) for i in (1, 3)]
        with np.errstate(invalid="ignore"):
            a, b, c = (np.concatenate(part).astype(np.float32) for part in zip(*sets, strict=True))
        # In every second row products cancel in pairs, and what is left is small.
        a[::2, 1], b[::2, 1] = -a[::2, 0], b[::2, 0]
        return a, b, c

    return rows
