"""A tensor core's sums in NumPy's 64-bit integers: many rows at once, so that 10**6 are checked."""

import numpy as np

from jprec import formats, hardware

_NAN = {"fp32": 0x7FFF_FFFF, "fp16": 0x7FFF_E000}  # as float32 words
_Apart = tuple[np.ndarray, np.ndarray]  # int64: significands with sign, exponents of their units


def tensor_core_dot_int64(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, core: hardware.TensorCore
) -> np.ndarray:
    """sum(a * b, -1) + c as `core` returns it: what `tensor_core_dot_exact` says, but for rows.

    It shares no code with `tensor_core_dot` and none with the other oracle. Numbers are taken apart
    in float64, which holds each of them; every term and sum of a block fits into 63 bits.

    Args:
      a: [n, K] float32, values of `core.input_format`; for "tf32" any, low 13 bits ignored.
      b: [n, K] float32, likewise.
      c: [n] float32, values of `core.output_format`.
      core: The block, e.g. `hardware.get("h100").tensor_core("e4m3fn")`.

    Returns:
      [n] float32, values of `core.output_format`.

    >>> fp8 = hardware.get("h100").tensor_core("e4m3fn")
    >>> a = np.float32([[1.0, 2.0**-7, 2.0**-7]])
    >>> tensor_core_dot_int64(a, a, np.zeros(1, np.float32), fp8).tolist()  # 2**-14 is cut off
    [1.0]
    """
    a, b, total = (np.asarray(x, np.float32) for x in (a, b, c))
    if core.input_format == "tf32":
        a, b = ((x.view(np.uint32) >> 13 << 13).view(np.float32) for x in (a, b))
    with np.errstate(all="ignore"):
        for start in range(0, a.shape[1], core.stride):
            columns = np.arange(start, min(start + core.stride, a.shape[1]))
            if not core.interleaved:
                total = _block(a[:, columns], b[:, columns], total, core)
                continue
            partial = np.zeros_like(total)
            for half in (columns[columns % 4 < 2], columns[columns % 4 >= 2]):
                partial = _block(a[:, half], b[:, half], partial, core)
            # The late addition is the processor's own. NumPy adds float16 in float32 and rounds
            # twice, which is harmless: 24 >= 2 * 11 + 2.
            dtype = np.float32 if core.output_format == "fp32" else np.float16
            total = (partial.astype(dtype) + total.astype(dtype)).astype(np.float32)
    nan = np.uint32(_NAN[core.output_format])
    return np.where(np.isnan(total), nan, total.view(np.uint32)).view(np.float32)


def _block(a: np.ndarray, b: np.ndarray, c: np.ndarray, core: hardware.TensorCore) -> np.ndarray:
    input_format, output_format = formats.get(core.input_format), formats.get(core.output_format)
    # In IEEE arithmetic, one operand that is not finite decides, if there is one.
    finite = np.isfinite(a) & np.isfinite(b)
    decides = np.where(finite, 0, a * b).sum(1) + np.where(np.isfinite(c), 0, c)
    spoilt = ~np.isfinite(decides)

    (m, e), (n, f) = _apart(np.where(finite, a, 0), input_format), _apart(b, input_format)
    k, g = _apart(np.where(np.isfinite(c), c, 0), output_format)
    product, unit_of_product = m * n, e + f
    # Products are aligned by the sum of both exponents; zeros have no say.
    of_product = np.where(product == 0, -999, unit_of_product + 2 * input_format.mantissa_bits)
    of_c = np.where(k == 0, -999, g + output_format.mantissa_bits)
    top = np.maximum(of_product.max(1, initial=core.min_exponent), of_c)
    unit = top - core.fraction_bits
    total = _truncated(product, unit_of_product - unit[:, None]).sum(1) + _truncated(k, g - unit)
    total = _rounded(total, unit, formats.get(core.sum_format), core.final_rounding)
    return np.where(spoilt, decides, total).astype(np.float32)


def _apart(x: np.ndarray, fmt: formats.FloatFormat) -> _Apart:
    """m, e with x = m * 2**e, where 2**e is x's unit in the last place of `fmt`."""
    wide = np.where(np.isfinite(x), x, 0).astype(np.float64)
    exponent = np.maximum(np.frexp(wide)[1] - 1, fmt.min_exponent).astype(np.int64)
    exponent -= fmt.mantissa_bits
    return np.ldexp(wide, -exponent).astype(np.int64), exponent


def _truncated(m: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """m * 2**shift towards zero; shifts that would leave 63 bits meet only m = 0."""
    size = np.abs(m)
    moved = np.where(shift >= 0, size << np.clip(shift, 0, 32), size >> np.clip(-shift, 0, 63))
    return np.sign(m) * moved


def _rounded(
    total: np.ndarray, unit: np.ndarray, fmt: formats.FloatFormat, mode: str
) -> np.ndarray:
    """float64 [n], total * 2**unit rounded to `fmt`; zero is +0."""
    size = np.abs(total)
    length = np.frexp(size.astype(np.float64))[1]
    exponent = np.maximum(length - 1 + unit, fmt.min_exponent)
    drop = exponent - fmt.mantissa_bits - unit
    cut = np.clip(drop, 0, 62)
    kept = size << np.clip(-drop, 0, 62)
    if mode == "nearest_even":
        rest, half = size & ((1 << cut) - 1), (1 << cut) // 2
        up = (rest > half) | ((rest == half) & (size >> cut & 1 == 1))
        kept = np.where(drop > 0, (size >> cut) + up, kept)
    else:
        kept = np.where(drop > 0, size >> cut, kept)
    value = np.ldexp(kept.astype(np.float64), exponent - fmt.mantissa_bits)
    value = np.where(value >= 2.0 ** (fmt.max_exponent + 1), np.inf, value)
    return np.where((total < 0) & (value != 0), -value, value)
