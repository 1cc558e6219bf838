"""The products that a walk through a program finds, against those in the lowered program.

A walk can miss a product: inside an operation that shows no program, or in code that JAX runs
only when it lowers an operation. The lowered program (StableHLO) has them all, but no phases,
no trips and no lines. So the walk's products are counted against it.
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jprec.program import versions
from jprec.program.description import PRODUCTS
from jprec.program.tracing import Trace, trace
from jprec.program.visiting import visit


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProductCheck:
    """What a walk through a program and its lowering have in common; `str` of it says it in words.

    Attributes:
      found: Products that the walk finds, as often as the lowered program should hold them.
      lowered: Products in the lowered program.
      hidden: Products of the lowered program that the walk does not find, e.g.
        "dot (4, 8) x (8, 2)". Each stands once for each time it is missing.
      unused: Products of the walk that the lowered program does not have: nothing depends on
        them, or they are for another platform.
      opaque: Operations that show no program, with their lines. Hidden products may be theirs;
        products in kernels and callbacks are in neither count.
    """

    found: int
    lowered: int
    hidden: tuple[str, ...]
    unused: tuple[str, ...]
    opaque: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether the walk finds each product that the lowered program has."""
        return not self.hidden

    def __str__(self) -> str:
        lines = [f"{self.found} products found, {self.lowered} in the lowered program"]
        for title in ("hidden", "unused", "opaque"):
            if part := getattr(self, title):
                lines.append(f"{title}: {'; '.join(part)}")
        return "\n".join(lines)


def check_products(
    fn: Callable, *args: Any, platform: str | None = None, **kwargs: Any
) -> ProductCheck:
    """What `products(fn, *args, **kwargs)` finds, counted against the lowered program.

    Both count a loop's body once, each branch of a conditional, and a compiled function as often
    as it is called. Products are told apart by kind and shapes. Nothing is computed and nothing
    compiled; the arguments may be `jax.ShapeDtypeStruct`.

    Args:
      fn: Any function that JAX can trace.
      args: Its arguments.
      platform: "cpu", "cuda", "rocm" or "tpu"; this machine's own where it is None. No such device
        is needed.
      kwargs: Its keyword arguments.

    >>> import jax, jax.numpy as jnp
    >>> print(check_products(jax.value_and_grad(lambda w: jnp.sum(w @ w)), jnp.ones((2, 2))))
    3 products found, 3 in the lowered program
    """
    traced = trace(fn, args, kwargs)
    found: collections.Counter[_Signature] = collections.Counter()
    ragged, opaque = 0, []
    for place in visit(traced.program):
        name = place.equation.primitive.name
        if name == "ragged_dot_general":
            ragged += place.copies
        elif name in PRODUCTS:
            found[_signature(place.equation)] += place.copies
        elif versions.is_opaque(place.equation):
            opaque.append(f"{name} at {place.source or 'an unknown line'}")
    lowered = _lowered(traced, platform)
    hidden = list((lowered - found).elements())
    # A ragged product is lowered to a product of other shapes, or to one of its own kind.
    unfound = [signature for signature in hidden if signature[0] == "convolution"]
    dots = [signature for signature in hidden if signature[0] != "convolution"]
    dots.sort(key=lambda signature: signature[0] != "ragged_dot")
    return ProductCheck(
        found=found.total() + ragged,
        lowered=lowered.total(),
        hidden=tuple(map(_words, [*unfound, *dots[ragged:]])),
        unused=tuple(map(_words, (found - lowered).elements())),
        opaque=tuple(opaque),
    )


#: Kind, the shapes of both operands, and that of the result.
_Signature = tuple[str, tuple[tuple[int, ...], ...]]

_KINDS = {"dot_general": "dot", "conv_general_dilated": "convolution"}


def _signature(equation: Any) -> _Signature:
    variables = (*equation.invars[:2], equation.outvars[0])
    return _KINDS[equation.primitive.name], tuple(tuple(v.aval.shape) for v in variables)


def _words(signature: _Signature) -> str:
    kind, (left, right, _) = signature
    return f"{kind} {left} x {right}"


# ---- The lowered program


def _lowered(traced: Trace, platform: str | None) -> collections.Counter[_Signature]:
    """How often each product stands in the lowered program, calls written out."""

    def run(*values: Any) -> list[Any]:
        return versions.evaluate(traced.program, values)

    platforms = None if platform is None else (platform,)
    staged = jax.jit(run).trace(*traced.values)
    functions = _functions(staged.lower(lowering_platforms=platforms).as_text())
    totals: dict[str, collections.Counter[_Signature]] = {}

    def total(name: str) -> collections.Counter[_Signature]:
        if name not in totals:
            own = collections.Counter(_products(functions[name]))
            for line in functions[name]:
                for called in _CALL.findall(line):
                    own += total(called)
            totals[name] = own
        return totals[name]

    return total("main")


_NAME = r'@("[^"]*"|[\w.$-]+)'
_FUNCTION = re.compile(rf"\s*func\.func (?:\w+ )?{_NAME}")
_CALL = re.compile(rf"(?:(?<!custom_)call |decomposition = ){_NAME}")
_PRODUCT = re.compile(r"(?:stablehlo|chlo)\.(dot_general|dot|ragged_dot|convolution)\b")
_SHAPE = re.compile(r"tensor<((?:\d+x)*)")


def _functions(text: str) -> dict[str, list[str]]:
    """Name -> lines of each function in a StableHLO module."""
    functions: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if start := _FUNCTION.match(line):
            lines = functions.setdefault(start[1], [])
        lines.append(line)
    return functions


def _products(lines: list[str]) -> Iterator[_Signature]:
    for line in lines:
        if match := _PRODUCT.search(line):
            kind = match[1].removesuffix("_general")
            operands, _, result = line.rpartition(" : (")[2].rpartition(" -> ")
            shapes = [
                *map(_sizes, _SHAPE.findall(operands)[:2]),
                *map(_sizes, _SHAPE.findall(result)),
            ]
            yield kind, tuple(shapes)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")[:-1]))
