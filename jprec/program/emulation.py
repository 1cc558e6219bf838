"""A function with its products done in another arithmetic."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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

    A policy may name another arithmetic for backward products (`Policy.backward_product`; E5M2
    where `product` is E4M3). These are the products of a cotangent with a saved weight or
    activation: the cotangent is rounded as the policy says for the backward pass, the other
    operand as in the forward pass, and the sum is that of the backward pass. Which operand is the
    cotangent follows from how values are made: see `jprec.program.gradients`. Values that a
    derivative rule of the user's, or `jax.checkpoint`, computes anew are forward values.
    Gradients that an optimiser multiplies are not on their way back: such products are done as
    forward ones.

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
        a policy or the name of one, whose `product` and `backward_product` are taken.

    Returns:
      A function with the signature of `fn`. Results have the types that `fn` gives them; a
      16-bit product is rounded once, from its FP32 sum.

    Raises:
      ValueError: Neither spec nor policy has this name, or the policy leaves products alone.
      NotImplementedError: When called, for a product that is placed by `out_sharding` on explicit
        mesh axes, for a `ragged_dot` whose groups split a batch dimension, and where passes differ
        and no forward pass shows which operand of a backward convolution is the gradient.

    >>> import jax.numpy as jnp
    >>> emulate(jnp.dot, "tf32")(jnp.float32([1.0001]), jnp.float32([1.0])).item()
    1.0
    """
    return rewrite(fn, to_rule(spec))


def to_rule(spec: str | matmul.MatmulSpec | policy.Policy) -> "Products":
    """The rule that is meant by a spec, a policy or the name of one."""
    if isinstance(spec, matmul.MatmulSpec):
        return Products(spec)
    if isinstance(spec, str):
        try:
            return Products(matmul.get(spec))
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
    forward, backward = matmul.get(spec.product), matmul.get(spec.backward_product or spec.product)
    return Products(forward, None if backward == forward else backward)


@dataclasses.dataclass(frozen=True)
class Products:
    """The rule: products of operands within FP32 are computed in `spec`.

    With another spec for `backward` products, these round gradients and sum as that one says.
    """

    spec: matmul.MatmulSpec
    backward: matmul.MatmulSpec | None = None

    @property
    def name(self) -> str:
        """What the user called, for messages."""
        if self.backward is None:
            return f"emulate(..., {str(self.spec)!r})"
        return f"emulate(..., 'product={self.spec},grad_product={self.backward}')"

    @property
    def tells_backward(self) -> bool:
        """Whether backward products are computed differently from others."""
        return self.backward is not None

    def handler(
        self, equation: Any, gradients: tuple[bool, bool] = (False, False)
    ) -> Handler | None:
        """The function that computes a product in `spec`; None for any other equation."""
        if not is_narrow_product(equation):
            return None
        return functools.partial(self._compute, self._specs(gradients))

    def _specs(self, gradients: tuple[bool, bool]) -> "_Specs":
        if self.backward is None or not any(gradients):
            return _Specs(self.spec, self.spec, self.spec)
        lhs, rhs = (self.backward if is_gradient else self.spec for is_gradient in gradients)
        return _Specs(self.backward, lhs, rhs)

    def _compute(self, specs: "_Specs", equation: Any, *inputs: jax.Array) -> list[jax.Array]:
        placement = equation.params.get("out_sharding")
        if placement is not None and AxisType.Explicit in placement.mesh.axis_types:
            raise NotImplementedError(
                f"emulate: the {equation.primitive.name} at {source_line(equation)} places its "
                f"result by out_sharding={placement}, which products in jprec.matmul do not take. "
                "Use mesh axes of type AxisType.Auto and jax.lax.with_sharding_constraint."
            )
        return [_HANDLERS[equation.primitive.name](equation, inputs, specs)]

    def may_be_inside(self, equation: Any) -> bool:
        """Whether a kernel could multiply: it takes something that products take."""
        return any(map(is_narrow, equation.invars))


class _Specs(NamedTuple):
    """What the sum of one product and the roundings of its operands follow."""

    sums: matmul.MatmulSpec
    lhs: matmul.MatmulSpec
    rhs: matmul.MatmulSpec


def _dot_general(equation: Any, inputs: Sequence[jax.Array], specs: _Specs) -> Any:
    lhs, rhs = inputs
    return matmul.dot_general(
        lhs,
        rhs,
        equation.params["dimension_numbers"],
        specs.sums,
        lhs_spec=specs.lhs,
        rhs_spec=specs.rhs,
        preferred_element_type=equation.outvars[0].aval.dtype,
    )


def _convolution(equation: Any, inputs: Sequence[jax.Array], specs: _Specs) -> Any:
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
        specs.sums,
        lhs_spec=specs.lhs,
        rhs_spec=specs.rhs,
        **{name: equation.params[name] for name in geometry},
        preferred_element_type=equation.outvars[0].aval.dtype,
    )


def _ragged_dot(equation: Any, inputs: Sequence[jax.Array], specs: _Specs) -> Any:
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
        specs.sums,
        lhs_spec=specs.lhs,
        rhs_spec=specs.rhs,
        preferred_element_type=equation.outvars[0].aval.dtype,
    )
    return product if groups else jnp.moveaxis(product, len(lhs_batch), 0)


_HANDLERS: dict[str, Callable[[Any, Sequence[jax.Array], _Specs], Any]] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "ragged_dot_general": _ragged_dot,
}
