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
