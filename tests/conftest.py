"""What tests of several rooms use."""

import numpy as np
import pytest


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
