"""What tests of several rooms use."""

import functools

import numpy as np
import pytest

from jprec import formats


@pytest.fixture(scope="session")
def assert_same_bits():
    """A function that asserts that two arrays agree in dtype, shape and bytes."""

    def check(got, want):
        got, want = np.asarray(got), np.asarray(want)
        assert (got.dtype, got.shape) == (want.dtype, want.shape), (got.dtype, want.dtype)
        unsigned = f"u{got.itemsize}"
        np.testing.assert_array_equal(
            np.ascontiguousarray(got).view(unsigned), np.ascontiguousarray(want).view(unsigned)
        )

    return check


#: FP32 bit patterns at which implementations were seen to fail.
SPECIAL_BITS = np.array(
    [
        *(0x00000000, 0x00000001, 0x00400000, 0x007FFFFF, 0x00800000, 0x7F000000, 0x7F7FFFFF),
        *(0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x387FFFFF, 0x32FFFFFF, 0x35840001),
    ],
    np.uint32,
)


@functools.cache
def _points(name: formats.FormatLike, limit: int) -> np.ndarray:
    values = formats.values(name)
    values = values[values >= 0]
    if len(values) > limit:  # all exponents, but not all mantissas
        values = np.unique(np.concatenate([values[:: len(values) // limit], values[-64:]]))
        values = np.unique(np.concatenate([values, np.nextafter(values, 0)]))
    following = np.append(values[1:], values[-1] + values[-1] - values[-2])
    with np.errstate(over="ignore"):
        middles = ((values + following) / 2).astype(np.float32)
        spots = np.concatenate([values.astype(np.float32), middles, following.astype(np.float32)])
        bits = spots.view(np.int32)
    every = np.concatenate([bits - 1, bits, bits + 1])
    every = np.unique(every[every >= 0]).astype(np.uint32)
    every = np.unique(np.concatenate([every, SPECIAL_BITS]))
    return np.concatenate([every, every | np.uint32(2**31)]).view(np.float32)


@pytest.fixture(scope="session")
def points():
    """points(name, limit): values, midpoints and the FP32 numbers beside both, and specials."""
    return _points


# --- operands of a tensor core at which an emulation can go wrong


def _any_code(rng, shape, fmt):
    """Every code of the format is as likely as any other, but infinities and NaN are thinned out.

    Otherwise nearly every long sum would be NaN.
    """
    words = rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32)
    if fmt.bits == 8:
        x = np.float32([formats.decode(code, fmt) for code in range(256)])[words >> 24]
    elif fmt.name == "fp16":
        with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
            x = words.astype(np.uint16).view(np.float16).astype(np.float32)
    else:
        x = (words >> (23 - fmt.mantissa_bits) << (23 - fmt.mantissa_bits)).view(np.float32)
    rarely = rng.random(shape) < 1 / shape[-1]
    return np.where(np.isfinite(x) | rarely, x, np.float32(fmt.min_subnormal))


def _between(rng, shape, fmt, low, high):
    """Numbers of both signs with exponents from `low` to `high`, subnormal where that is small."""
    exponent = rng.integers(low, high + 1, shape)
    significand = 1 + rng.integers(0, 2**fmt.mantissa_bits, shape) * fmt.epsilon
    spacing = 2.0 ** (np.maximum(exponent, fmt.min_exponent) - fmt.mantissa_bits)
    x = np.trunc(np.ldexp(significand, exponent) / spacing) * spacing
    return np.where(x > fmt.max, fmt.max, x) * rng.choice([-1.0, 1.0], shape)


def _sprinkled(rng, x, fmt):
    """`x` with, in each row, about one zero, infinity or NaN, as far as the format has them."""
    pool = np.array([0.0, -0.0, np.nan] + [np.inf, -np.inf] * (2 * fmt.has_infinity))
    return np.where(rng.random(x.shape) < 1 / x.shape[-1], rng.choice(pool, x.shape), x)


def _tensor_core_rows(core, n, *, length=None, seed=0):
    fmt, out = formats.get(core.input_format), formats.get(core.output_format)
    rng = np.random.default_rng([seed, core.products, core.fraction_bits, out.bits, fmt.bits])
    shape = (n, length or 2 * core.stride + 1)
    # Products of two such numbers lie around the ends of the accumulator's range, where the
    # format reaches them.
    least = max((out.min_exponent - out.mantissa_bits) // 2, fmt.min_exponent - fmt.mantissa_bits)
    most = min(out.max_exponent // 2, fmt.max_exponent)
    spans = {
        "near each other": ((-3, 3), (-4, 6)),
        "underflow": ((least - 5, least + 5), (out.min_exponent - 26, out.min_exponent + 3)),
        "overflow": ((most - 2, most + 1), (out.max_exponent - 2, out.max_exponent)),
    }
    sets = [(*(_any_code(rng, shape, fmt) for _ in "ab"), _any_code(rng, (n, 1), out))]
    sets += [
        (*(_between(rng, shape, fmt, *of_ab) for _ in "ab"), _between(rng, (n, 1), out, *of_c))
        for of_ab, of_c in spans.values()
    ]
    sets += [
        tuple(_sprinkled(rng, x, f) for x, f in zip(sets[i], (fmt, fmt, out), strict=True))
        for i in (1, 3)
    ]
    with np.errstate(invalid="ignore"):
        a, b, c = (np.concatenate(part).astype(np.float32) for part in zip(*sets, strict=True))
    # In every second row two products cancel, in every third the first half and the second: what
    # is left is small.
    half = shape[1] // 2
    a[::2, 1], b[::2, 1] = -a[::2, 0], b[::2, 0]
    a[::3, half : 2 * half], b[::3, half : 2 * half] = -a[::3, :half], b[::3, :half]
    return a, b, c[:, 0]


@pytest.fixture(scope="session")
def tensor_core_rows():
    """tensor_core_rows(core, n): 6 n rows a, b [length], c; a length has a short last block."""
    return _tensor_core_rows
