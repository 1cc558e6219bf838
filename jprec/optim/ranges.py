"""Where numbers lie in a format's range, and which updates rounding loses: counts, by bits.

Everything is decided on integers: XLA on a CPU flushes FP32 subnormals in arithmetic and in
comparisons, and a product with the scale would flush, overflow and round besides. One pass over an
array finds the row of a table to which each number belongs and adds one there; in trials on a CPU
that scatter took a fortieth of the time of a sort, and less than one reduction for each count.
"""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats, policy, rounding
from jprec.optim.guard import power_of_two
from jprec.optim.new_value import NewValue, apply_updates

#: Exponents of the first and the last bin of `Ranges.histogram`: all of FP32's, subnormals too.
FIRST_EXPONENT, LAST_EXPONENT = -149, 127

#: Exponents of the first and the last bin of `LostUpdates.histogram`.
FIRST_RATIO, LAST_RATIO = -64, 63

_EXPONENTS = LAST_EXPONENT - FIRST_EXPONENT + 1
_RATIOS = LAST_RATIO - FIRST_RATIO + 1

#: Classes of `Ranges.counts`, in their order. The first four and `overflow` are of finite numbers.
CLASSES = ("zero", "flushed", "subnormal", "normal", "overflow", "infinite", "nan")

#: Classes of `LostUpdates.counts`, in their order.
UPDATE_CLASSES = ("zero", "nonfinite", "lost", "moved")

#: Counts are int32.
_MOST = 2**31 - 1


def _share(count: Any, size: Any) -> Any:
    """count / size as float32, 0 where nothing was counted; 1 only where all were."""
    return count.astype("float32") / size.clip(1).astype("float32")


class Ranges(NamedTuple):
    """Where the numbers of one array lie in the range of a format, after scaling.

    counts: [..., 284] int32; the `CLASSES`, then the histogram. One array, because each costs a
      jitted step some microseconds. Counts of several arrays or steps may be added.

    The shares below are [...] float32 of all numbers, 0 for an empty array. A scaled number is
    `flushed` if it is not zero and rounds to zero, `subnormal` if it rounds to a subnormal number,
    and in `overflow` if it is finite and rounds to more than the largest one. `infinite` and
    `nan` were so before.
    """

    counts: Any

    @property
    def size(self) -> Any:
        """[...] int32: how many numbers were counted; a complex one is two."""
        return self.counts[..., : len(CLASSES)].sum(-1)

    @property
    def histogram(self) -> Any:
        """[..., 277] int32: finite nonzero numbers with exponent -149, ..., 127, before scaling.

        The exponent is floor(log2|x|). The end bins hold float64 numbers beyond them too.
        """
        return self.counts[..., len(CLASSES) :]

    @property
    def zero(self) -> Any:
        """[...] float32: the share of zeros."""
        return self._share_of("zero")

    @property
    def flushed(self) -> Any:
        """[...] float32: the share that the format flushes to zero."""
        return self._share_of("flushed")

    @property
    def subnormal(self) -> Any:
        """[...] float32: the share that becomes subnormal."""
        return self._share_of("subnormal")

    @property
    def normal(self) -> Any:
        """[...] float32: the share that keeps all the format's digits."""
        return self._share_of("normal")

    @property
    def overflow(self) -> Any:
        """[...] float32: the share that exceeds the largest value."""
        return self._share_of("overflow")

    @property
    def infinite(self) -> Any:
        """[...] float32: the share that is infinite."""
        return self._share_of("infinite")

    @property
    def nan(self) -> Any:
        """[...] float32: the share that is NaN."""
        return self._share_of("nan")

    def _share_of(self, name: str) -> Any:
        return _share(self.counts[..., CLASSES.index(name)], self.size)


class LostUpdates(NamedTuple):
    """How large the updates of one parameter are against its spacing, and how many are lost.

    counts: [..., 132] int32; the `UPDATE_CLASSES`, then the histogram.

    An update is `nonfinite` where it or the parameter is; else it is `zero`, `lost` if it is
    not zero and leaves the stored parameter as it was, or `moved`.
    """

    counts: Any

    @property
    def size(self) -> Any:
        """[...] int32: how many updates were counted; a complex one is two."""
        return self.counts[..., : len(UPDATE_CLASSES)].sum(-1)

    @property
    def histogram(self) -> Any:
        """[..., 128] int32: finite nonzero updates with floor(log2(|update| / ulp)) -64, ..., 63.

        The ulp is that of the parameter in its own dtype. The end bins hold what lies beyond
        them: updates of float32 parameters that are zero end up in the last.
        """
        return self.counts[..., len(UPDATE_CLASSES) :]

    @property
    def zero(self) -> Any:
        """[...] float32: the share of all updates that is zero."""
        return _share(self._count("zero"), self.size)

    @property
    def nonfinite(self) -> Any:
        """[...] float32: the share of all updates that is not finite, or whose parameter is not."""
        return _share(self._count("nonfinite"), self.size)

    @property
    def lost(self) -> Any:
        """[...] float32: the share of the finite nonzero updates that changes nothing."""
        lost = self._count("lost")
        return _share(lost, lost + self._count("moved"))

    @property
    def median(self) -> Any:
        """[...] float32: the median of floor(log2(|update| / ulp)); NaN if no update is nonzero.

        The lower of the two in the middle. What is below half an ulp, -2 or less, is lost, unless
        it leads from a power of two toward zero, where the spacing is half as wide.
        """
        below = self.histogram.cumsum(-1)
        total = below[..., -1:]
        median = (below < total - total // 2).sum(-1) + FIRST_RATIO
        return jnp.where(total[..., 0] > 0, median, jnp.nan).astype(jnp.float32)

    def _count(self, name: str) -> Any:
        return self.counts[..., UPDATE_CLASSES.index(name)]


def empty_ranges() -> Ranges:
    """Ranges of no numbers."""
    return Ranges(jnp.zeros(len(CLASSES) + _EXPONENTS, jnp.int32))


def no_updates() -> LostUpdates:
    """The count of no updates."""
    return LostUpdates(jnp.zeros(len(UPDATE_CLASSES) + _RATIOS, jnp.int32))


def is_float(leaf: Any) -> bool:
    """Whether `leaf` holds floating-point numbers, real or complex."""
    return jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.inexact)


def by_path(function: Callable[..., Any], tree: Any, *trees: Any) -> dict[str, Any]:
    """path -> `function` of a floating-point leaf of `tree` and of what the others have there."""
    found: dict[str, Any] = {}

    def visit(key_path: Any, leaf: Any, *others: Any) -> None:
        if not is_float(leaf):
            return
        path = policy.leaf_path(key_path)
        if path in found:
            raise ValueError(
                f"two leaves have the path {path!r}, and a path names one. Rename a key that "
                'contains "/", or that is spelt like an index.'
            )
        found[path] = function(leaf, *others)

    jax.tree_util.tree_map_with_path(visit, tree, *trees)
    return found


def check_sample(sample: int | None) -> None:
    """Raises ValueError unless `sample` is None or counts numbers."""
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int)):
        raise ValueError(f"sample={sample!r}: it counts numbers, or is None for all of them.")
    if sample is not None and sample < 1:
        raise ValueError(f"sample={sample}: at least 1, or None for all numbers.")


def _sampled(leaf: Any, sample: int | None) -> jax.Array:
    """`leaf`, or at most `sample` of its numbers, [n], at an even stride."""
    leaf = jnp.asarray(leaf)
    if sample is None or leaf.size <= sample:
        return leaf
    stride = -(-leaf.size // sample)
    # A stride with a common factor would see only some rows or columns.
    while math.gcd(stride, leaf.size) > 1:
        stride += 1
    return lax.slice(leaf.reshape(-1), (0,), (leaf.size,), (stride,))


def _parts(leaf: jax.Array) -> list[jax.Array]:
    """The arrays of real numbers that `leaf` consists of, in float32 or float64, exactly."""
    parts = [leaf]
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        parts = [jnp.real(leaf), jnp.imag(leaf)]
    if len(parts) * leaf.size > _MOST:
        raise ValueError(
            f"a leaf of shape {leaf.shape} has more than 2**31 - 1 numbers, which its int32 "
            "counts cannot hold. Count a sample, with sample=2**20 for instance."
        )
    # Narrow dtypes are widened before anything is counted: their own sums stop at a few hundred.
    return [part.astype(jnp.float32) if part.dtype.itemsize < 4 else part for part in parts]


def _magnitude(x: jax.Array) -> jax.Array:
    """The bits of |x|, [...] int32 or int64: they order as the magnitudes do, NaNs last."""
    integer = jnp.int64 if x.dtype == jnp.float64 else jnp.int32
    return lax.bitcast_convert_type(x, integer) & jnp.iinfo(integer).max


def _table(index: jax.Array, size: int) -> jax.Array:
    """[size] int32: how often each number from 0 to size - 1 is in `index`."""
    return jnp.zeros(size, jnp.int32).at[index].add(1, mode="promise_in_bounds")


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A bound of magnitudes: from `value` on, or only above it if `strict`."""

    value: Fraction
    strict: bool

    def first(self, held: formats.FloatFormat, shift: jax.Array, integer: Any) -> jax.Array:
        """[] of dtype `integer`: the first bits in `held` whose number, times 2**shift, is inside.

        The bits of infinity if no finite number is.
        """
        exponent = self.value.numerator.bit_length() - self.value.denominator.bit_length()
        exponent -= Fraction(2) ** exponent > self.value
        exact = self.value / Fraction(2) ** (exponent - held.mantissa_bits)
        digits = exact.numerator // exact.denominator
        # The scale moves the exponent of the bound, which is one number; the array stays as it is.
        wanted = exponent - shift
        lowest = held.min_exponent - held.precision
        moved = jnp.clip(wanted, lowest, held.max_exponent).astype(integer)
        dropped = jnp.maximum(held.min_exponent - moved, 0)
        significand = jnp.asarray(digits, integer)
        kept = significand >> dropped
        above = self.strict | (digits != exact) | ((kept << dropped) != significand)
        field = jnp.maximum(moved, held.min_exponent) - held.min_exponent
        # The implicit bit of `kept` adds one to the exponent field, as it does in the format.
        bits = (field << held.mantissa_bits) + kept + above
        return jnp.where(wanted > held.max_exponent, held.infinity_code, bits).astype(integer)


def _bounds(fmt: formats.FloatFormat) -> tuple[_Bound, _Bound, _Bound]:
    """Where numbers that round, to nearest even, to nonzero, to normal, and to too much begin."""
    half_step = Fraction(fmt.min_subnormal) / 2
    nonzero = _Bound(half_step, strict=True)
    normal = nonzero
    if fmt.has_subnormals:
        normal = _Bound(Fraction(fmt.min_normal) - half_step, strict=False)
    ulp = Fraction(2) ** (fmt.max_exponent - fmt.mantissa_bits)
    # A tie goes to the even code: that of 0 is even, that of the largest subnormal number is odd.
    return nonzero, normal, _Bound(Fraction(fmt.max) + ulp / 2, strict=fmt.max_code % 2 == 0)


def check_format(fmt: formats.FormatLike) -> formats.FloatFormat:
    """The format, if it has a sign and a zero; gradients have both."""
    fmt = formats.get(fmt)
    if not fmt.signed or not fmt.has_zero:
        raise ValueError(
            f"format={fmt.name!r} has no {'zero' if fmt.signed else 'sign'}; gradients need one. "
            'Give a format such as "fp16" or "e5m2".'
        )
    return fmt


def number_ranges(
    tree: Any,
    *,
    format: formats.FormatLike = "fp16",
    scale: Any = 1.0,
    sample: int | None = None,
) -> dict[str, Ranges]:
    """Where the numbers of each leaf would lie in the range of `format`, times `scale`.

    Rounding is to nearest, ties to even: in FP16 65519.99 is in range and 65520 is not, and 2**-25
    is flushed. The counts are exact for FP32 subnormals and for every scale: the scale moves the
    bounds of the classes, and no number is multiplied.

    Args:
      tree: Arrays of float16, bfloat16, float32 or narrower, float64 or complex. The real and the
        imaginary parts of a complex leaf are counted as two numbers. Leaves that are not
        floating-point (integers, keys, float0, None) have no row; empty ones have one of zeros.
      format: Any format with a sign and a zero.
      scale: A power of two; may be traced, such as `loss_scale(state)`. Of an array that is no
        power of two, the one below is taken.
      sample: None to count all numbers. Else, of a leaf of more than so many, no more are counted,
        at an even stride that meets all rows and columns; `size` says how many.

    Returns:
      `policy.leaf_path` -> Ranges, in the order of the tree.

    Raises:
      ValueError: The scale is a number and no power of two from 2**-126 to 2**126; the format has
        no sign or no zero; two leaves have the same path; 2**31 numbers or more of one leaf are
        to be counted.

    >>> found = number_ranges({"w": jnp.float32([0.0, 1e-8, 1e-5, 1.0])}, scale=2.0**16)["w"]
    >>> [float(share) for share in (found.zero, found.flushed, found.subnormal, found.overflow)]
    [0.25, 0.0, 0.0, 0.25]
    """
    check_sample(sample)
    bounds = _bounds(check_format(format))
    shift = _shift(scale)

    def measure(leaf: Any) -> Ranges:
        return Ranges(sum(_count(part, bounds, shift) for part in _parts(_sampled(leaf, sample))))

    return by_path(measure, tree)


def _shift(scale: Any) -> jax.Array:
    """[] int32: the exponent of the scale; far outside every format for 0, infinity and NaN."""
    if not isinstance(scale, jax.Array):
        scale = power_of_two(getattr(scale, "item", lambda: scale)(), name="scale")
    return rounding.exponent(jnp.asarray(scale, jnp.float32))


def _count(x: jax.Array, bounds: tuple[_Bound, _Bound, _Bound], shift: jax.Array) -> jax.Array:
    """[284] int32: the counts of `Ranges` for an array of float32 or float64."""
    held = formats.get(x.dtype)
    bits = _magnitude(x)
    inside = [bits >= bound.first(held, shift, bits.dtype) for bound in bounds]
    row = sum(condition.astype(jnp.int32) for condition in inside)
    column = jnp.clip(rounding.exponent(x), FIRST_EXPONENT, LAST_EXPONENT) - FIRST_EXPONENT
    # Rows of finite nonzero numbers, a column for each exponent; then zero, infinite, nan.
    zero, infinite, nan = range(4 * _EXPONENTS, 4 * _EXPONENTS + 3)
    index = jnp.where(bits == 0, zero, row * _EXPONENTS + column)
    index = jnp.where(bits == held.infinity_code, infinite, index)
    index = jnp.where(bits > held.infinity_code, nan, index)
    table = _table(index, 4 * _EXPONENTS + 3)
    rows = table[: 4 * _EXPONENTS].reshape(4, _EXPONENTS)
    finite = rows.sum(1, dtype=jnp.int32)
    return jnp.concatenate(
        [table[zero : zero + 1], finite, table[infinite:], rows.sum(0, dtype=jnp.int32)]
    )


def lost_updates(params: Any, updates: Any, *, sample: int | None = None) -> dict[str, LostUpdates]:
    """How many of the wanted `updates` leave the stored parameter as it was, for each parameter.

    An update is lost if `apply_updates` gives the value that was there. What the wrapper keeps
    elsewhere is not seen: with `kahan` and `master_weights` a lost update acts later. An FP32
    subnormal update is lost where the backend flushes subnormals (XLA on a CPU does).

    Args:
      params: As stored, before the update; float16, bfloat16, float32, float64 or complex. Other
        leaves have no row.
      updates: What `tx.update` returned: arrays, or a `NewValue` for a 16-bit parameter.
      sample: As for `number_ranges`.

    Returns:
      `policy.leaf_path` -> LostUpdates, in the order of the tree.

    Raises:
      ValueError: Two leaves have the same path; 2**31 numbers or more of one are to be counted.

    >>> params = {"w": jnp.ones(4, jnp.bfloat16)}  # the ulp of 1 is 2**-7
    >>> found = lost_updates(params, {"w": jnp.float32([0.0, 2.0**-10, 2.0**-9, 2.0**-6])})["w"]
    >>> round(float(found.lost), 3), float(found.median)
    (0.667, -2.0)
    """
    check_sample(sample)

    def measure(parameter: Any, update: Any) -> LostUpdates:
        def pick(leaf: Any) -> jax.Array:
            return _sampled(jnp.broadcast_to(leaf, jnp.shape(parameter)), sample)

        if isinstance(update, NewValue):
            update = dataclasses.replace(
                update, value=pick(update.value), update=pick(update.update)
            )
        else:
            update = pick(update)
        return _count_lost(_sampled(parameter, sample), update)

    return by_path(measure, params, updates)


def _count_lost(parameter: jax.Array, update: Any) -> LostUpdates:
    stored = apply_updates(parameter, update)
    wanted = update.update if isinstance(update, NewValue) else update
    if jnp.issubdtype(parameter.dtype, jnp.complexfloating):
        wanted = wanted.astype(jnp.promote_types(wanted.dtype, jnp.complex64))
    fmt = formats.get(jnp.finfo(parameter.dtype).dtype)  # a complex number's is that of its parts
    parts = zip(_parts(parameter), _parts(wanted), _parts(stored), strict=True)
    return LostUpdates(sum(_count_part(*part, fmt) for part in parts))


def _count_part(
    parameter: jax.Array, wanted: jax.Array, stored: jax.Array, fmt: formats.FloatFormat
) -> jax.Array:
    """[132] int32: the counts of `LostUpdates` for arrays of float32 or float64."""
    before, after = _magnitude(parameter), _magnitude(stored)
    # By bits, as a comparison flushes subnormals too; but -0 that became 0 did not move.
    same_sign = jnp.signbit(parameter) == jnp.signbit(stored)
    lost = (before == after) & (same_sign | (before == 0))
    exponent, own = rounding.exponent(wanted), rounding.exponent(parameter)
    # An ulp is a power of two, so that the quotient's exponent is a difference.
    ulp = jnp.maximum(own, fmt.min_exponent) - fmt.mantissa_bits
    column = jnp.clip(exponent - ulp, FIRST_RATIO, LAST_RATIO) - FIRST_RATIO
    zero, nonfinite = 2 * _RATIOS, 2 * _RATIOS + 1
    index = jnp.where(lost, column, _RATIOS + column)
    index = jnp.where(exponent == rounding.EXPONENT_OF_ZERO, zero, index)
    unusable = jnp.maximum(exponent, own) == rounding.EXPONENT_OF_NONFINITE
    table = _table(jnp.where(unusable, nonfinite, index), 2 * _RATIOS + 2)
    rows = table[: 2 * _RATIOS].reshape(2, _RATIOS)
    return jnp.concatenate(
        [table[zero:], rows.sum(1, dtype=jnp.int32), rows.sum(0, dtype=jnp.int32)]
    )
