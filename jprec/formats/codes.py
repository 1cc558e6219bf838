"""Numbers to codes and back. A code is the integer whose bits are sign, exponent and mantissa.

Both ways take single numbers and NumPy arrays. Encoding goes number by number through the oracle,
some ten microseconds each; arrays in JAX are rounded by `jprec.rounding`.
"""

import math
from fractions import Fraction
from typing import overload

import numpy as np

from jprec.formats.description import FloatFormat, FormatLike, get
from jprec.formats.oracle import Number, round_exact

#: Formats up to this width can be listed: 2**20 float64 values take 8 MB.
_LISTABLE_BITS = 20


@overload
def encode(  # type: ignore[overload-overlap]  # an array is not meant by SupportsFloat
    value: np.ndarray, fmt: FormatLike, mode: str = ..., *, overflow: str = ...
) -> np.ndarray: ...


@overload
def encode(value: Number, fmt: FormatLike, mode: str = ..., *, overflow: str = ...) -> int: ...


def encode(
    value: Number | np.ndarray,
    fmt: FormatLike,
    mode: str = "nearest_even",
    *,
    overflow: str = "format",
) -> int | np.ndarray:
    """The code of `value` in `fmt`, rounded by `round_exact` first.

    NaN gets the quiet NaN without payload. Where `fmt` has no NaN, NaN is a ValueError.

    Args:
      value: A number as `round_exact` takes it, or a NumPy array of them: [...].
      fmt: A format or its name.
      mode: One of `MODES`.
      overflow: One of `OVERFLOWS`.

    Returns:
      An int; for an array [...] of the unsigned dtype that is wide enough.

    >>> f"{encode(1.5, 'fp16'):016b}"
    '0011111000000000'
    >>> encode(np.array([1.5, -2.0]), "e4m3fn")
    array([ 60, 192], dtype=uint8)
    """
    fmt = get(fmt)
    if isinstance(value, np.ndarray) and value.ndim:
        dtype = np.min_scalar_type(2**fmt.bits - 1)
        found = [encode(x, fmt, mode, overflow=overflow) for x in value.ravel()]
        return np.array(found, dtype).reshape(value.shape)
    return _encode(value, fmt, mode, overflow)  # type: ignore[arg-type]  # arrays of no axes too


def _encode(value: Number, fmt: FloatFormat, mode: str, overflow: str) -> int:
    rounded = round_exact(value, fmt, mode, overflow=overflow)
    if math.isnan(rounded):
        return _nan_code(fmt, value)
    sign = int(math.copysign(1, rounded) < 0) << (fmt.bits - 1) if fmt.signed else 0
    if math.isinf(rounded):
        return sign | fmt.infinity_code
    exponent = max(math.frexp(rounded)[1] - 1, fmt.min_exponent) if rounded else fmt.min_exponent
    significand = int(abs(Fraction(rounded)) / Fraction(2) ** (exponent - fmt.mantissa_bits))
    # The significand's implicit bit adds one to the exponent field; subnormals do not have it. A
    # format without zero starts its field one lower.
    field = exponent - fmt.min_exponent - (0 if fmt.has_zero else 1)
    return sign | (field << fmt.mantissa_bits) + significand


def _nan_code(fmt: FloatFormat, value: Number) -> int:
    if not fmt.has_nan:
        raise ValueError(
            f"{value!r} has no code in {fmt.name}, which has no NaN; encode a number, or use a "
            "format that has one."
        )
    return fmt.nan_code


@overload
def decode(code: np.ndarray, fmt: FormatLike) -> np.ndarray: ...


@overload
def decode(code: int, fmt: FormatLike) -> float: ...


def decode(code: int | np.ndarray, fmt: FormatLike) -> float | np.ndarray:
    """The value of `code` in `fmt`, as float64, which holds it exactly.

    Args:
      code: An integer, or a NumPy array of integers [...].
      fmt: A format or its name.

    Returns:
      A float; for an array [...] float64.

    >>> decode(0b0_11110_0101000000, "fp16")
    43008.0
    """
    fmt = get(fmt)
    codes = np.asarray(code)
    if codes.dtype.kind not in "iu" and not (codes.size == 0 or isinstance(code, int)):
        raise TypeError(
            f"code={code!r} is no integer; a code is one, such as 0x7bff. jprec.formats.encode "
            "gives the code of a number."
        )
    if codes.size and (codes.min() < 0 or int(codes.max()) >= 2**fmt.bits):
        wrong = codes.min() if codes.min() < 0 else codes.max()
        raise ValueError(
            f"code={wrong}, but {fmt.name} has {fmt.bits} bits: codes 0 to {2**fmt.bits - 1}."
        )
    values = _decode(codes.astype(np.uint64), fmt)
    return values if codes.ndim else float(values)


def _decode(codes: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    """The values of `codes`: [...] uint64 -> [...] float64."""
    width = fmt.exponent_bits + fmt.mantissa_bits
    magnitude = codes & np.uint64(2**width - 1)
    field = (magnitude >> np.uint64(fmt.mantissa_bits)).astype(np.int64)
    first_normal = 1 if fmt.has_zero else 0
    exponent = np.maximum(field, first_normal) - first_normal + fmt.min_exponent
    implicit_bit = np.where(field >= first_normal, 2**fmt.mantissa_bits, 0).astype(np.uint64)
    significand = (magnitude & np.uint64(2**fmt.mantissa_bits - 1)) + implicit_bit
    # Exact: at most 53 bits, times a power of two that leaves them within float64. Only fp64's
    # infinities and NaNs overflow here; they are put in below.
    with np.errstate(over="ignore"):
        values = np.ldexp(
            significand.astype(np.float64), (exponent - fmt.mantissa_bits).astype(np.int32)
        )
    values = np.where(magnitude > np.uint64(fmt.max_code), np.nan, values)
    if fmt.has_infinity:
        values = np.where(magnitude == np.uint64(fmt.infinity_code), np.inf, values)
    if fmt.signed:
        values = np.where(codes >> np.uint64(width) == 1, -values, values)
        if fmt.has_nan and not fmt.has_negative_zero:
            values = np.where(codes == np.uint64(fmt.nan_code), np.nan, values)
    return values


def values(fmt: FormatLike) -> np.ndarray:
    """The finite values of `fmt`: [n] float64, ascending, each once (-0 is not listed beside 0).

    >>> values("e2m1fn")[-4:]
    array([2., 3., 4., 6.])
    """
    fmt = get(fmt)
    if fmt.bits > _LISTABLE_BITS:
        raise ValueError(
            f"{fmt.name} has 2**{fmt.bits} codes, but only formats of up to {_LISTABLE_BITS} bits "
            "are listed; decode the codes that you need."
        )
    every = _decode(np.arange(2**fmt.bits, dtype=np.uint64), fmt)
    return np.unique(every[np.isfinite(every)] + 0.0)  # -0.0 + 0.0 is 0.0
