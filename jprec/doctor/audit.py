"""`jprec.audit`: every product of a program, and how a device will run it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from jprec import hardware, program
from jprec.doctor.audit_text import table
from jprec.doctor.dataflow import array_arguments, flow
from jprec.doctor.evidence import gather
from jprec.doctor.execution import Execution, execution
from jprec.doctor.findings import Finding, findings
from jprec.doctor.request import Target, target
from jprec.doctor.roofline import Roofline, itemsize, roofline, seconds, slowest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """One product or convolution, and how the device runs it.

    Attributes:
      kind: "dot_general", "conv_general_dilated" or "ragged_dot_general".
      scope: The names around it, e.g. "transpose(jvp(Net))/block_0"; "" without any.
      source: "file:line" of the user's code; None where none is on record.
      phase: "forward", "recomputed", "backward" or "optimiser", see `jprec.program.operations`.
      operand_dtypes: Dtypes of both operands.
      operand_shapes: Their shapes.
      result_dtype: Dtype of the result.
      result_shape: Its shape.
      precision: What the program asks for; None where it asks for nothing.
      flops: Floating-point operations of all its runs, a product and a sum counted as two. Inside
        a `while` loop, where `trips` is None, those of one run.
      trips: How often it runs, the lengths of loops multiplied; None inside a `while` loop.
      runs_as: The arithmetic, e.g. "tf32", "fp32", "bf16x3"; "rejected" where the compiler refuses
        it; "undetermined" where what is known does not settle it.
      reason: Why, in a phrase.
      rule: The rule that decided.
      evidence: Who says so.
      status: How this is known: "measured", "documented" or "assumed".
      may_be: Where undetermined, the arithmetics that remain possible, fastest first.
      ignores: Whether the program asks for something that has no effect.
      seconds: The roofline time of all its runs; None where no rate with a source is known.
    """

    kind: str
    scope: str
    source: str | None
    phase: str
    operand_dtypes: tuple[str, str]
    operand_shapes: tuple[tuple[int, ...], tuple[int, ...]]
    result_dtype: str
    result_shape: tuple[int, ...]
    precision: str | None
    flops: int
    trips: int | None
    runs_as: str
    reason: str
    rule: str
    evidence: str
    status: hardware.Status
    may_be: tuple[str, ...]
    ignores: bool
    seconds: float | None = None

    @property
    def is_single(self) -> bool:
        """Whether the wider operand is FP32, or complex with FP32 parts."""
        widths = {"float64": 2, "complex128": 2, "float32": 1, "complex64": 1}
        return max(widths.get(dtype, 0) for dtype in self.operand_dtypes) == 1

    @property
    def elements(self) -> int:
        """Elements of operands and result, all runs together."""
        sizes = map(math.prod, (*self.operand_shapes, self.result_shape))
        return sum(sizes) * (self.trips or 1)

    @property
    def bytes(self) -> int:
        """Bytes of operands and result, all runs together."""
        shapes = (*self.operand_shapes, self.result_shape)
        dtypes = (*self.operand_dtypes, self.result_dtype)
        sizes = (math.prod(s) * itemsize(d) for s, d in zip(shapes, dtypes, strict=True))
        return sum(sizes) * (self.trips or 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """What runs in one arithmetic.

    Attributes:
      runs_as: The arithmetic.
      count: Places in the program.
      flops: Operations of all their runs.
      share: Of all operations.
      seconds: Roofline time; None where no rate with a source is known.
    """

    runs_as: str
    count: int
    flops: int
    share: float
    seconds: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """Every product of a program, how the device runs it, and what to mend.

    Attributes:
      name: Name of the function.
      target: The device.
      operations: The products, in the order of the program.
      findings: What to mend.
      totals: By arithmetic, most operations first.
      roofline: What they take at peak rates.
      opaque: Operations that do not show what they hold, as "primitive at file:line": products in
        them are not listed.
      default_precision: `jax.default_matmul_precision` as it was when the function was traced.
    """

    name: str
    target: Target
    operations: tuple[Operation, ...]
    findings: tuple[Finding, ...]
    totals: tuple[Total, ...]
    roofline: Roofline
    opaque: tuple[str, ...]
    default_precision: str | None

    @property
    def flops(self) -> int:
        """Operations of all products; of those in `while` loops, one run."""
        return sum(operation.flops for operation in self.operations)

    def __str__(self) -> str:
        return table(self)


def audit(fn: Callable, *args: Any, device: str | hardware.Device = "a100", **kwargs: Any) -> Audit:
    """Every product of `fn(*args, **kwargs)`, and how `device` will run it.

    Nothing is computed and no GPU is needed. The arguments may be `jax.ShapeDtypeStruct`; what is
    no array is not traced.

    Args:
      fn: A function that JAX can trace, for instance a whole training step.
      *args: Its arguments.
      device: A name of `jprec.hardware`, or "tpu" or "cpu".
      **kwargs: Keyword arguments of `fn`.

    >>> import jax, jax.numpy as jnp
    >>> import jprec
    >>> found = jprec.audit(lambda w, x: x @ w, jnp.ones((64, 8)), jnp.ones((16, 64)))
    >>> [(operation.runs_as, operation.flops) for operation in found.operations]
    [('tf32', 16384)]
    """
    on = target(device)
    products = program.products(fn, *args, **kwargs)
    hidden = [o for o in program.operations(fn, *args, **kwargs) if o.opaque]
    operations = tuple(_operation(product, execution(product, on), on) for product in products)
    walked = flow(fn, *args, **kwargs)
    evidence = gather(operations, on, walked, array_arguments((args, kwargs)))
    operations = evidence.operations
    return Audit(
        name=getattr(fn, "__qualname__", type(fn).__qualname__),
        target=on,
        operations=operations,
        findings=findings(evidence),
        totals=_totals(operations),
        roofline=roofline(operations, on),
        opaque=tuple(
            dict.fromkeys(f"{o.primitive} at {o.source or 'an unknown line'}" for o in hidden)
        ),
        default_precision=_default_precision(),
    )


def _operation(product: program.Product, how: Execution, on: Target) -> Operation:
    operation = Operation(
        kind=product.kind,
        scope=product.scope,
        source=product.source,
        phase=product.phase,
        operand_dtypes=product.operand_dtypes,
        operand_shapes=product.operand_shapes,
        result_dtype=product.result_dtype,
        result_shape=product.result_shape,
        precision=product.precision,
        flops=product.flops * (1 if product.trips is None else product.trips),
        trips=product.trips,
        runs_as=how.runs_as,
        reason=how.reason,
        rule=how.rule,
        evidence=how.source,
        status=how.status,
        may_be=how.may_be,
        ignores=how.ignores,
    )
    return dataclasses.replace(operation, seconds=seconds(operation, on, slowest(operation)))


def _totals(operations: tuple[Operation, ...]) -> tuple[Total, ...]:
    every = sum(operation.flops for operation in operations)
    totals = []
    for runs_as in dict.fromkeys(operation.runs_as for operation in operations):
        those = [operation for operation in operations if operation.runs_as == runs_as]
        flops = sum(operation.flops for operation in those)
        times = [operation.seconds for operation in those]
        totals.append(
            Total(
                runs_as=runs_as,
                count=len(those),
                flops=flops,
                share=flops / every if every else 0.0,
                seconds=None if None in times else math.fsum(t for t in times if t is not None),
            )
        )
    return tuple(sorted(totals, key=lambda total: -total.flops))


def _default_precision() -> str | None:
    """The precision for products that ask for none, as JAX sees it now."""
    value = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return None if value is None else str(value)
