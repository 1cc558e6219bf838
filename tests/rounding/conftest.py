"""A second, fast reference to compare with."""

import numpy as np
import pytest

from jprec import formats


def _table_round(x: np.ndarray, name: str, mode: str) -> np.ndarray:
    """Rounds by looking float32 numbers up in the sorted values of the format, in float64."""
    x = np.where(np.isnan(x), np.nan, x).astype(np.float64)  # signalling NaNs warn
    fmt, magnitude = formats.get(name), np.abs(x)
    grid = formats.values(name)
    grid = grid[grid >= 0]
    # One more, so that what lies beyond the largest value has two neighbours as well.
    beyond = fmt.max + 2.0 ** (fmt.max_exponent - fmt.mantissa_bits)
    grid = np.append(grid, beyond)
    low = np.clip(np.searchsorted(grid, magnitude, side="right") - 1, 0, len(grid) - 2)
    below, above = grid[low], grid[low + 1]
    middle = (below + above) / 2
    # Codes count up from that of zero, so the last bit of the code is that of the index. The
    # significand of e8m0fnu, which has no zero, is always 1.
    odd = (low % 2 == 1) if fmt.has_zero else np.ones_like(low, bool)
    inexact, negative = magnitude > below, np.signbit(x)
    upper = {
        "nearest_even": (magnitude > middle) | ((magnitude == middle) & odd),
        "nearest_away": magnitude >= middle,
        "toward_zero": np.zeros_like(odd),
        "up": inexact & ~negative,
        "down": inexact & negative,
        "to_odd": inexact & ~odd,
    }[mode]
    result = np.where(upper, above, below)
    inward = {"toward_zero": True, "to_odd": True, "up": negative, "down": ~negative}
    over = np.inf if fmt.has_infinity else np.nan if fmt.has_nan else fmt.max
    stops = inward.get(mode, False) & (magnitude < np.inf)
    result = np.where(result > fmt.max, np.where(stops, fmt.max, over), result)
    result = np.where((magnitude > grid[-1]) & ~stops, over, result)
    if not fmt.has_negative_zero:
        negative = negative & (result != 0)
    result = np.where(negative, -result, result)
    if not fmt.has_zero:
        result = np.where(x <= 0, np.nan, result)
    elif not fmt.signed:
        result = np.where(result == 0, 0.0, np.where(negative, np.nan, result))
    return np.where(np.isnan(x), np.nan, result)


@pytest.fixture(scope="session")
def table_round():
    """table_round(x, name, mode): a reference that shares no code with the kernel."""
    return _table_round
