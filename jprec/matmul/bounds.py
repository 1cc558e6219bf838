"""How wrong a product can be: bounds on |computed - exact|, in units of |A| |B|, by arithmetic.

All of them suppose normal operands (of split operands normal parts), neither overflow nor
underflow, and results in FP32: one that is stored in 16 bits is rounded once more.
"""

import dataclasses
import math

from jprec import formats
from jprec.matmul.spec import MatmulSpec, get

_FP32 = formats.get("fp32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """|computed - exact| <= coefficient * (|A| |B|), element by element.

    Attributes:
      coefficient: The factor.
      operands: Its part that comes from rounding or splitting the operands.
      sums: Its part that comes from adding up.
      rule: The formula of the sums, in words, with its source.
      first_order: Whether terms of the square of a unit roundoff are left out.
    """

    coefficient: float
    operands: float
    sums: float
    rule: str
    first_order: bool


def error_bound(spec: str | MatmulSpec, terms: int) -> Bound:
    """What the error of sums of `terms` products in the arithmetic of `spec` does not exceed.

    Operands rounded to precision p have a relative error of u = 2**-p to nearest, 2 u in the other
    modes, so their products one of 2 u + u**2. The sums: n u for rounding to nearest in any order
    (Jeannerod and Rump, "Improved error bounds for inner products in floating-point arithmetic",
    2013); for a tensor core ceil(K / L) ((L + 1) 2**-F + 2**-m), each of the L products and the
    accumulator being cut off at F fraction bits of the largest, and the sum at m bits (half of that
    where it is rounded to nearest): to first order. Where the accumulator is added last,
    each such addition errs by another u.

    Args:
      spec: A MatmulSpec or its spelling, not "@native".
      terms: K, the products in each sum.

    Raises:
      ValueError: for a native product, whose sums are not known.

    >>> bound = error_bound("tf32", 1024)
    >>> round(bound.operands * 2**10, 3), round(bound.sums * 2**14, 2)
    (1.0, 1.0)
    """
    spec = get(spec)
    _check_terms(terms)
    if spec.is_native:
        raise ValueError(f"spec {spec}: how this machine sums is not known, and so no bound.")
    operands = _of_operands(spec)
    sums, rule, first_order = _of_sums(spec, terms)
    outside = (len(spec.pairs) - 1) * _FP32.unit_roundoff  # the parts are added in FP32
    # The parts that are summed are together a little larger than the operands.
    added = ((1 + sums) * (1 + outside) - 1) * _spread(spec)
    return Bound(
        coefficient=operands + added,
        operands=operands,
        sums=added,
        rule=rule,
        first_order=first_order or outside > 0,
    )


def _spread(spec: MatmulSpec) -> float:
    """The sum of |A_i| |B_j| over the parts that are multiplied, in units of |A| |B|, at most."""
    if not spec.rounds_operands:
        return 1.0
    u = _operand_roundoff(spec)
    return float(sum((1 + u) * u**i for i in range(spec.terms)) ** 2)


def _operand_roundoff(spec: MatmulSpec) -> float:
    u = formats.get(spec.operand_format).unit_roundoff
    return u if spec.rounding.startswith("nearest") else 2 * u


def probabilistic_bound(spec: str | MatmulSpec, terms: int, *, likelihood: float = 0.99) -> float:
    """What the error does not exceed, in units of |A| |B|, with this likelihood for each sum.

    The model of Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019,
    theorem 2.4: rounding errors are independent with mean zero, which rounding to nearest comes
    near and truncation does not. The sums then err by about sqrt(n) u times a factor of a few.

    Args:
      spec: One whose sums round to nearest: no device, no compensation, no chunks.
      terms: K, the products in each sum.
      likelihood: In (0, 1).

    Raises:
      ValueError: for sums that the model does not describe.

    >>> probabilistic_bound("fp32", 10_000) < error_bound("fp32", 10_000).sums / 10
    True
    """
    spec = get(spec)
    _check_terms(terms)
    if not 0 < likelihood < 1:
        raise ValueError(f"likelihood={likelihood}, but it lies between 0 and 1.")
    if spec.device is not None or spec.compensated or spec.chunk is not None:
        raise ValueError(
            f"spec {spec}: the model is one of sums that round to nearest, one addition after the "
            "other; error_bound holds for this one."
        )
    u = formats.get(spec.accumulator or "fp32").unit_roundoff
    # 1 - 2 n exp(-lambda**2 (1 - u)**2 / 2) = likelihood
    factor = math.sqrt(2 * math.log(2 * max(terms, 1) / (1 - likelihood))) / (1 - u)
    grown = (factor * math.sqrt(terms) * u + terms * u**2) / (1 - u)
    return (1 + _of_operands(spec)) * math.exp(grown) - 1


def _check_terms(terms: int) -> None:
    if not isinstance(terms, int) or terms < 0:
        raise ValueError(
            f"terms={terms!r}, but a sum has an integer number of products, 0 or more."
        )


def _of_operands(spec: MatmulSpec) -> float:
    """The relative error of a product of two operands, as they enter the sums."""
    if not spec.rounds_operands:
        return 0.0
    u = _operand_roundoff(spec)
    left_over = 2 * u**spec.terms + u ** (2 * spec.terms)
    kept = set(spec.pairs)
    dropped = sum(
        u ** (i + j) * (1 + u) ** 2
        for i in range(spec.terms)
        for j in range(spec.terms)
        if (i, j) not in kept
    )
    return left_over + dropped


def _of_sums(spec: MatmulSpec, terms: int) -> tuple[float, str, bool]:
    """The error of one sum in units of the sum of magnitudes, the rule, whether to first order."""
    if spec.chunk is not None and spec.chunk < terms:
        inner, rule, _ = _of_one_sum(spec, spec.chunk)
        chunks = math.ceil(terms / spec.chunk)
        outer = chunks * _FP32.unit_roundoff
        return inner + outer, f"{rule}, in chunks, and {chunks} u among them", True
    return _of_one_sum(spec, terms)


def _of_one_sum(spec: MatmulSpec, terms: int) -> tuple[float, str, bool]:
    core = spec.tensor_core
    if core is not None:
        steps = math.ceil(terms / core.stride)
        blocks = steps * core.stride // core.products
        aligned = (core.products + 1) * 2.0**-core.fraction_bits
        bits = formats.get(core.sum_format).mantissa_bits
        last = 2.0 ** -(bits if core.final_rounding == "toward_zero" else bits + 1)
        rule = f"{blocks} ((L + 1) 2**-F + 2**-m), L = {core.products}, F = {core.fraction_bits}"
        late = formats.get(core.output_format).unit_roundoff if core.interleaved else 0.0
        rule += ", and u for each accumulator that is added last" if core.interleaved else ""
        return blocks * (aligned + last) + steps * late, rule, True
    u = formats.get(spec.accumulator or "fp32").unit_roundoff
    if spec.compensated:
        # Higham, "Accuracy and Stability of Numerical Algorithms", 2002, (4.8), has 2 u for the sum
        # of given numbers; one u more is for the product, which is rounded into the term, and a
        # term of the order of n u**2 for what is left out there.
        return 3 * u + 2 * terms * u**2, "3 u + 2 n u**2 (Kahan)", True
    return terms * u, f"n u, n = {terms}", False
