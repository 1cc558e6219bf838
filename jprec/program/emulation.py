"""A function with its products done in another arithmetic."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from jprec import matmul, policy
from jprec.program.description import is_narrow, is_narrow_product
from jprec.program.rewriting import Handler, rewrite
from jprec.program.sources import source_line


def emulate(fn: Callable, spec: str | matmul.MatmulSpec | policy.Policy) -> Callable:
    """The same function with its products, forward and backward, done in that arithmetic.

    Every `dot_general`, `conv_general_dilated` and `ragged_dot` of floating-point operands is
    computed by `jprec.matmul`, whatever its `precision` says: also inside `jit`, loops,
    conditionals, `checkpoint`, `shard_map` and functions with derivatives of their own. Nothing
    else changes, nor do products of FP64, complex or integer operands.

    `grad(emulate(f, spec))` equals `emulate(grad(f), spec)` bit for bit, and traced values that
    `f` closes over are differentiated, too. Forward-mode differentiation (`jax.jvp`,
    `jax.jacfwd`) of the result is refused with a TypeError; apply it inside instead:
    `emulate(lambda x, t: jax.jvp(f, (x,), (t,)), spec)`.

    Kernels and callbacks do not show their products. They are left as they are, and a warning
    names them. LU, QR, Cholesky, triangular solves and FFT are not products and are left as well.

    Outside `jax.jit` the result runs equation by equation and is traced anew in each call.

    Args:
      fn: Any function that JAX can trace.
      spec: What `jprec.matmul.get` takes ("fp32" stands for full precision on every backend), or
        a policy or the name of one, whose `product` is taken.

    Returns:
      A function with the signature of `fn`. Results have the types that `fn` gives them; a
      16-bit product is rounded once, from its FP32 sum.

    Raises:
      ValueError: Neither spec nor policy has this name, or the policy leaves products alone.
      NotImplementedError: When called, for a product that is placed by `out_sharding` on explicit
        mesh axes, and for a `ragged_dot` whose groups split a batch dimension.

    >>> import jax.numpy as jnp
    >>> emulate(jnp.dot, "tf32")(jnp.float32([1.0001]), jnp.float32([1.0])).item()
    1.0
    """
    return rewrite(fn, Products(to_spec(spec)))


def to_spec(spec: str | matmul.MatmulSpec | policy.Policy) -> matmul.MatmulSpec:
    """The product spec that is meant by a spec, a policy or the name of one."""
    if isinstance(spec, matmul.MatmulSpec):
        return spec
    if isinstance(spec, str):
        try:
            return matmul.get(spec)
        except ValueError as error:
            not_a_spec = error
        try:
            spec = policy.get(spec)
        except ValueError:
            raise not_a_spec from None
    if not isinstance(spec, policy.Policy):
        raise TypeError(f"emulate: {spec!r} is neither a product spec nor a policy.")
    if spec.product is None:
        raise ValueError(
            f"emulate: the policy {spec} leaves products as they are (product=None), so there is "
            "nothing to emulate. Name a spec, e.g. 'tf32', or give the policy a product."
        )
    return matmul.get(spec.product)


@dataclasses.dataclass(frozen=True)
class Products:
    """The rule: products of operands within FP32 are computed in `spec`."""

    spec: matmul.MatmulSpec

    @property
    def name(self) -> str:
        """What the user called, for messages."""
        return f"emulate(..., {str(self.spec)!r})"

    def handler(self, equation: Any) -> Handler | None:
        """The function that computes a product in `spec`; None for any other equation."""
        return self._compute if is_narrow_product(equation) else None

    def _compute(self, equation: Any, *inputs: jax.Array) -> list[jax.Array]:
        placement = equation.params.get("out_sharding")
        if placement is not None and AxisType.Explicit in placement.mesh.axis_types:
            raise NotImplementedError(
                f"emulate: the {equation.primitive.name} at {source_line(equation)} places its "
                f"result by out_sharding={placement}, which products in jprec.matmul do not take. "
                "Use mesh axes of type AxisType.Auto and jax.lax.with_sharding_constraint."
            )
        return [_HANDLERS[equation.primitive.name](equation, inputs, self.spec)]

    def may_be_inside(self, equation: Any) -> bool:
        """Whether a kernel could multiply: it takes something that products take."""
        return any(map(is_narrow, equation.invars))


def _dot_general(equation: Any, inputs: Sequence[jax.Array], spec: matmul.MatmulSpec) -> Any:
    lhs, rhs = inputs
    return matmul.dot_general(
        lhs,
        rhs,
        equation.params["dimension_numbers"],
        spec,
        preferred_element_type=equation.outvars[0].aval.dtype,
    )


def _convolution(equation: Any, inputs: Sequence[jax.Array], spec: matmul.MatmulSpec) -> Any:
    lhs, rhs = inputs
    geometry = (
        "lhs_dilation",
        "rhs_dilation",
        "dimension_numbers",
        "feature_group_count",
        "batch_group_count",
    )
    return matmul.conv_general_dilated(
        lhs,
        rhs,
        equation.params["window_strides"],
        equation.params["padding"],
        spec,
        **{name: equation.params[name] for name in geometry},
        preferred_element_type=equation.outvars[0].aval.dtype,
    )


def _ragged_dot(equation: Any, inputs: Sequence[jax.Array], spec: matmul.MatmulSpec) -> Any:
    """One product in which each group of rows meets zeros in place of the other groups' rows."""
    lhs, rhs, group_sizes = inputs
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (lhs_sums, rhs_sums), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    groups = tuple(numbers.rhs_group_dimensions)
    if group_sizes.ndim != 1 or ragged in lhs_batch:
        raise NotImplementedError(
            f"emulate: ragged_dot_general with group sizes of shape {group_sizes.shape} and "
            f"{numbers} has no emulation. Groups may split one free or one summed dimension of "
            "the left operand; write other products with dot_general and a mask."
        )
    ends = jnp.cumsum(group_sizes)
    row = jnp.arange(lhs.shape[ragged])
    inside = (row >= (ends - group_sizes)[:, None]) & (row < ends[:, None])
    inside = jnp.expand_dims(inside, [1 + d for d in range(lhs.ndim) if d != ragged])
    spread = jnp.where(inside, lhs, jnp.zeros_like(lhs))  # [groups, *lhs.shape]

    lhs_sums, lhs_batch = [tuple(d + 1 for d in dims) for dims in (lhs_sums, lhs_batch)]
    if groups:
        lhs_sums, rhs_sums = (0, *lhs_sums), (*groups, *rhs_sums)
    product = matmul.dot_general(
        spread,
        rhs,
        ((lhs_sums, rhs_sums), (lhs_batch, rhs_batch)),
        spec,
        preferred_element_type=equation.outvars[0].aval.dtype,
    )
    return product if groups else jnp.moveaxis(product, len(lhs_batch), 0)


_HANDLERS: dict[str, Callable[[Any, Sequence[jax.Array], matmul.MatmulSpec], Any]] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "ragged_dot_general": _ragged_dot,
}
