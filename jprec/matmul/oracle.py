"""A tensor core's sum in Python integers: slow, short, and what the fast one is compared with."""

import math

import numpy as np

from jprec import formats, hardware

_NAN = {"fp32": 0x7FFF_FFFF, "fp16": 0x7FFF_E000}  # as float32 words
_Term = tuple[int, int]  # significand with its sign, exponent of the significand's unit


def tensor_core_dot_exact(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    core: hardware.TensorCore,
    *,
    input_formats: tuple[str, str] | None = None,
) -> np.ndarray:
    """sum(a * b, -1) + c as `core` returns it, one number at a time, in unbounded integers.

    Args:
      a: [..., K] float32, values of `core.input_format`; for "tf32" any, low 13 bits ignored.
      b: [..., K] float32, likewise.
      c: [...] float32, values of `core.output_format`; the same leading axes.
      core: The block, e.g. `hardware.get("a100").tensor_core("tf32")`.
      input_formats: Those of `a` and of `b`, where one of them is not `core.input_format`.

    Returns:
      [...] float32, values of `core.output_format`.

    >>> tf32 = hardware.get("a100").tensor_core("tf32")
    >>> one = np.ones(1, np.float32)
    >>> tensor_core_dot_exact(one, one, np.float32(-1 + 2.0**-24), tf32).item() == 2.0**-24
    True
    """
    a, b, c = (np.asarray(x, np.float32) for x in (a, b, c))
    inputs = input_formats or (core.input_format, core.input_format)
    out = np.empty(c.shape, np.float32)
    for index in np.ndindex(c.shape):
        total = np.float32(c[index])
        for start in range(0, a.shape[-1], core.stride):
            end = start + core.stride
            total = _step(a[index][start:end], b[index][start:end], total, core, inputs)
        out[index] = total
    return out


def _step(
    a: np.ndarray,
    b: np.ndarray,
    c: np.float32,
    core: hardware.TensorCore,
    inputs: tuple[str, str],
) -> np.float32:
    """The accumulator `c` after the next `core.stride` products, or fewer at the end."""
    if not core.interleaved:
        return _block(a, b, c, core, inputs)
    odd_pair = np.arange(len(a)) // 2 % 2 == 1
    total = np.float32(0)
    for half in (~odd_pair, odd_pair):
        total = _block(a[half], b[half], total, core, inputs)
    return _sum_of_two(total, c, core)


def _sum_of_two(x: np.float32, y: np.float32, core: hardware.TensorCore) -> np.float32:
    """x + y as one IEEE addition of the output format returns it; zero is +0."""
    fmt = formats.get(core.output_format)
    one = np.ones(2, np.float32)
    not_finite = _not_finite(np.array([x, y]), one, np.float32(0), core)
    if not_finite is not None:
        return not_finite
    (m, e), (n, f) = _take_apart(x, fmt), _take_apart(y, fmt)
    unit = min(e, f)
    return _rounded((m << (e - unit)) + (n << (f - unit)), unit, fmt, "nearest_even")


def _block(
    a: np.ndarray,
    b: np.ndarray,
    c: np.float32,
    core: hardware.TensorCore,
    inputs: tuple[str, str],
) -> np.float32:
    of_a, of_b = map(formats.get, inputs)
    output_format = formats.get(core.output_format)
    if core.input_format == "tf32":
        a, b = ((x.view(np.uint32) & 0xFFFF_E000).view(np.float32) for x in (a, b))
    not_finite = _not_finite(a, b, c, core)
    if not_finite is not None:
        return not_finite

    # Each term with the exponent that it is aligned by; a product's is not normalised.
    terms: list[tuple[_Term, int]] = []
    for x, y in zip(a, b, strict=True):
        (m, e), (n, f) = _take_apart(x, of_a), _take_apart(y, of_b)
        terms.append(((m * n, e + f), e + f + of_a.mantissa_bits + of_b.mantissa_bits))
    m, e = _take_apart(c, output_format)
    terms.append(((m, e), e + output_format.mantissa_bits))

    top = max([core.min_exponent, *(exponent for (m, _), exponent in terms if m != 0)])
    unit = top - core.fraction_bits
    total = sum(_cut_off(m, e - unit) for (m, e), _ in terms)
    return _rounded(total, unit, formats.get(core.sum_format), core.final_rounding)


def _not_finite(
    a: np.ndarray, b: np.ndarray, c: np.float32, core: hardware.TensorCore
) -> np.float32 | None:
    """The result if an operand is not finite, else None."""
    signs = set()
    invalid = bool(np.isnan(a).any() or np.isnan(b).any() or np.isnan(c))
    for x, y in zip(a, b, strict=True):
        if np.isinf(x) or np.isinf(y):
            invalid = invalid or x == 0 or y == 0
            signs.add(bool(np.signbit(x) != np.signbit(y)))
    if np.isinf(c):
        signs.add(bool(np.signbit(c)))
    if invalid or len(signs) == 2:
        return np.float32(np.uint32(_NAN[core.output_format]).view(np.float32))
    if signs:
        return np.float32(-math.inf if signs.pop() else math.inf)
    return None


def _take_apart(x: np.float32, fmt: formats.FloatFormat) -> _Term:
    """m, e with x = m * 2**e, where 2**e is x's unit in the last place of `fmt`."""
    value = float(x)
    exponent = max(math.frexp(value)[1] - 1, fmt.min_exponent) - fmt.mantissa_bits
    m = math.ldexp(value, -exponent)
    if not m.is_integer():
        raise ValueError(f"{value!r} is not a value of {fmt.name}; round it first.")
    return int(m), exponent


def _cut_off(m: int, shift: int) -> int:
    """m * 2**shift, truncated towards zero."""
    magnitude = abs(m) << shift if shift >= 0 else abs(m) >> -shift
    return -magnitude if m < 0 else magnitude


def _rounded(total: int, unit: int, fmt: formats.FloatFormat, mode: str) -> np.float32:
    """total * 2**unit as a value of `fmt`; beyond its largest exponent infinity, zero always +0."""
    exponent = max(abs(total).bit_length() - 1 + unit, fmt.min_exponent)
    drop = exponent - fmt.mantissa_bits - unit
    if drop <= 0:
        kept = abs(total) << -drop
    elif mode == "toward_zero":
        kept = abs(total) >> drop
    else:
        half = (1 << drop) // 2
        kept, rest = divmod(abs(total), 1 << drop)
        kept += rest > half or (rest == half and kept % 2 == 1)
    value = math.ldexp(kept, exponent - fmt.mantissa_bits) if exponent < 1000 else math.inf
    value = math.inf if value >= 2.0 ** (fmt.max_exponent + 1) else value
    return np.float32(-value if total < 0 and value != 0 else value)
