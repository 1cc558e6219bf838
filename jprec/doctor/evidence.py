"""What the checks of an audit look at: how each product runs, beside what the walk knows of it."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax

from jprec.doctor.dataflow import Flow, ProductSite
from jprec.doctor.request import Target

if TYPE_CHECKING:
    from jprec.doctor.audit import Operation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the checks look at.

    Attributes:
      target: The device.
      operations: The products and how they run.
      sites: For each operation, the same product as the walk found it; None where it did not.
      numbers: For each operation, the number of that product in the walk.
      flow: What the walk found.
      arguments: Dtypes of the function's array arguments as they were passed.
      setting: What `jax.default_matmul_precision` is now.
    """

    target: Target
    operations: tuple["Operation", ...]
    sites: tuple[ProductSite | None, ...]
    numbers: tuple[int | None, ...]
    flow: Flow
    arguments: tuple[str, ...]
    setting: Any

    def pairs(self, *phases: str) -> Iterator[tuple["Operation", ProductSite | None]]:
        """Operations of some passes with their sites."""
        for operation, site in zip(self.operations, self.sites, strict=True):
            if not phases or operation.phase in phases:
                yield operation, site

    def of(self, numbers: Iterable[int]) -> Iterator[tuple["Operation", int]]:
        """The operations that are these products of the walk."""
        wanted = set(numbers)
        for operation, number in zip(self.operations, self.numbers, strict=True):
            if number is not None and number in wanted:
                yield operation, number


def gather(
    operations: Sequence["Operation"], target: Target, flow: Flow, arguments: Sequence[Any]
) -> Evidence:
    """The evidence, each operation matched with the product that the walk found."""
    sites: list[ProductSite | None] = []
    numbers: list[int | None] = []
    start = 0
    for operation in operations:  # both lists follow the program's order
        number = next(
            (n for n in range(start, len(flow.products)) if _same(operation, flow, n)), None
        )
        numbers.append(number)
        sites.append(None if number is None else flow.products[number])
        start = start if number is None else number + 1
    located = (  # a function under jit, such as jnp.cov, does not know who called it
        operation if operation.source or site is None else _located(operation, site)
        for operation, site in zip(operations, sites, strict=True)
    )
    return Evidence(
        target=target,
        operations=tuple(located),
        sites=tuple(sites),
        numbers=tuple(numbers),
        flow=flow,
        arguments=tuple(str(argument.dtype) for argument in arguments),
        setting=jax.default_matmul_precision,
    )


def _located(operation: "Operation", site: ProductSite) -> "Operation":
    return dataclasses.replace(operation, source=site.source)


def _same(operation: "Operation", flow: Flow, number: int) -> bool:
    site = flow.products[number]
    return (
        site.kind == operation.kind
        and site.operand_shapes == operation.operand_shapes
        and site.operand_dtypes == operation.operand_dtypes
        and site.result_shape == operation.result_shape
    )
