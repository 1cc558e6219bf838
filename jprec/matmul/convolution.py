"""Convolutions under a spec: rounded operands, FP32 sums, forward and backward."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jax_core

from jprec.matmul import native, operands, sums
from jprec.matmul.arithmetic import Arithmetic
from jprec.matmul.layout import alike
from jprec.matmul.spec import MatmulSpec

#: What may stand beside the convolution in lax's transpose of one.
_MOVES = {"conv_general_dilated", "rev", "reshape", "transpose", "squeeze"}

_Pairs: TypeAlias = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class _Geometry:
    """Everything about a convolution except its operands, hashable."""

    window_strides: tuple[int, ...]
    padding: _Pairs
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dimension_numbers: lax.ConvDimensionNumbers
    feature_group_count: int
    batch_group_count: int

    @classmethod
    def of(cls, params: dict[str, Any]) -> "_Geometry":
        """The geometry in the parameters of a conv_general_dilated equation."""
        return cls(**{field.name: params[field.name] for field in dataclasses.fields(cls)})

    def convolve(self, lhs: jax.Array, rhs: jax.Array, **how: Any) -> jax.Array:
        """lax's own convolution."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return lax.conv_general_dilated(lhs, rhs, **fields, **how)


def conv_general_dilated(
    lhs: jax.typing.ArrayLike,
    rhs: jax.typing.ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    spec: str | MatmulSpec,
    *,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    lhs_spec: str | MatmulSpec | None = None,
    rhs_spec: str | MatmulSpec | None = None,
    grad_spec: str | MatmulSpec | None = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """The convolution that lax.conv_general_dilated takes, in the arithmetic of `spec`.

    What `dot_general` says about dtypes, derivatives and sums holds here too. A device sees a
    matrix product: for each output the window is walked row by row, the input channels fastest.
    The convolutions of the backward pass are the two that lax derives, walked in the same way.

    Args:
      lhs: The input, axes as `dimension_numbers` says.
      rhs: The kernel.
      window_strides: One a spatial axis.
      padding: "SAME", "SAME_LOWER", "VALID", or a pair (low, high) a spatial axis.
      spec: A MatmulSpec or its spelling.
      lhs_dilation: As in lax; 1 by default.
      rhs_dilation: As in lax; 1 by default.
      dimension_numbers: As in lax; NCHW and OIHW by default.
      feature_group_count: As in lax.
      batch_group_count: As in lax.
      lhs_spec: As in `dot_general`.
      rhs_spec: As in `dot_general`.
      grad_spec: As in `dot_general`.
      preferred_element_type: The result's dtype, if not the default one.
    """
    how = Arithmetic.of(spec, lhs_spec=lhs_spec, rhs_spec=rhs_spec, grad_spec=grad_spec)
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    axes = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    ones = (1,) * (lhs.ndim - 2)
    geometry = _Geometry(
        window_strides=tuple(window_strides),
        padding=_pairs(
            lhs, rhs, axes, window_strides, padding, lhs_dilation or ones, rhs_dilation or ones
        ),
        lhs_dilation=tuple(lhs_dilation or ones),
        rhs_dilation=tuple(rhs_dilation or ones),
        dimension_numbers=axes,
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
    )
    exact = functools.partial(
        geometry.convolve,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=preferred_element_type,
    )
    dtype = jax.eval_shape(exact, lhs, rhs).dtype
    if operands.leaves_to_lax(how, lhs.dtype, rhs.dtype, dtype):
        return exact(lhs, rhs)
    return _convolve(*alike(lhs, rhs), geometry, how, dtype)


def _pairs(
    lhs: jax.Array,
    rhs: jax.Array,
    axes: lax.ConvDimensionNumbers,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
) -> _Pairs:
    if (
        isinstance(padding, str)
        and padding.upper() != "VALID"
        and any(d != 1 for d in lhs_dilation)
    ):
        raise ValueError(
            f"padding={padding!r} with lhs_dilation={tuple(lhs_dilation)}: lax has no such rule; "
            "give a pair (low, high) for each spatial axis."
        )
    if not isinstance(padding, str):
        return tuple((int(low), int(high)) for low, high in padding)
    window = [
        (rhs.shape[axis] - 1) * step + 1
        for axis, step in zip(axes.rhs_spec[2:], rhs_dilation, strict=True)
    ]
    spatial = [lhs.shape[axis] for axis in axes.lhs_spec[2:]]
    return tuple(lax.padtype_to_pads(spatial, window, strides, padding))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _convolve(
    lhs: jax.Array, rhs: jax.Array, geometry: _Geometry, how: Arithmetic, dtype: Any
) -> jax.Array:
    if how.sums.is_native:
        total = native.convolve(lhs, rhs, geometry.convolve, how)
    else:
        total = sums.product(
            lhs,
            rhs,
            how,
            plain=functools.partial(geometry.convolve, precision=lax.Precision.HIGHEST),
            walked=lambda a, b, summed: _walked(a, b, geometry, summed),
        )
    return operands.store(total, dtype)


def _forward(
    lhs: jax.Array, rhs: jax.Array, geometry: _Geometry, how: Arithmetic, dtype: Any
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(lhs, rhs, geometry, how, dtype), (lhs, rhs)


def _backward(
    geometry: _Geometry,
    how: Arithmetic,
    dtype: Any,
    saved: tuple[jax.Array, jax.Array],
    cotangent: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    del dtype
    lhs, rhs = saved
    of_lhs = _transposed(geometry.convolve, lhs, rhs, cotangent, how, how.rhs)
    of_rhs = _transposed(
        lambda own, other: geometry.convolve(other, own), rhs, lhs, cotangent, how, how.lhs
    )
    return of_lhs, of_rhs


_convolve.defvjp(_forward, _backward)


def _transposed(
    convolve: Any,
    own: jax.Array,
    other: jax.Array,
    cotangent: jax.Array,
    how: Arithmetic,
    of_other: MatmulSpec,
) -> jax.Array:
    """The cotangent of `own`: lax's transposed convolution, as `how` does backward products.

    lax says which convolution that is: its transpose is traced and evaluated, the one convolution
    in it being replaced. What else is in it (reversals, reshapes) moves numbers and rounds nothing.

    Raises:
      NotImplementedError: the transpose does not consist of that, and so would not be emulated.
    """

    def transpose(other: jax.Array, cotangent: jax.Array) -> Any:
        linear = functools.partial(lambda other, own: convolve(own, other), other)
        return jax.linear_transpose(linear, own_shape)(cotangent)[0]

    own_shape = jax.ShapeDtypeStruct(own.shape, jnp.float32)
    shapes = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (other, cotangent)]
    jaxpr = jax.make_jaxpr(transpose)(*shapes).jaxpr
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    # Where nothing is multiplied, since one of the arrays is empty, the transpose is zeros.
    moves = _MOVES if cotangent.size else _MOVES | {"broadcast_in_dim"}
    expected = names.count("conv_general_dilated") == 1 or not cotangent.size
    if not (expected and moves.issuperset(names)):
        raise NotImplementedError(f"lax transposes this convolution to {', '.join(names)}.")
    values = dict(zip(jaxpr.invars, (other, cotangent), strict=True))
    # How each value is rounded: the cotangent comes first in one of both transposes, last in the
    # other.
    roundings = dict(zip(jaxpr.invars, (of_other, how.gradient), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jax_core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = map(read, eqn.invars)
        if eqn.primitive.name == "conv_general_dilated":
            first, second = (roundings[atom] for atom in eqn.invars)
            backward = how.backward(lhs=first, rhs=second)
            out = _convolve(*inputs, _Geometry.of(eqn.params), backward, own.dtype)
        else:
            out = eqn.primitive.bind(*inputs, **eqn.params)
        (variable,) = eqn.outvars
        moved = eqn.invars[0]
        if not isinstance(moved, jax_core.Literal):
            roundings[variable] = roundings[moved]
        values[variable] = out
    return read(jaxpr.outvars[0])


def _walked(
    lhs: jax.Array, rhs: jax.Array, geometry: _Geometry, summed: Callable[..., jax.Array]
) -> jax.Array:
    """The convolution as a product of windows [groups, images, outputs, window, channels]."""
    spatial = lhs.ndim - 2
    lhs_spec, rhs_spec, out_spec = geometry.dimension_numbers
    by_channel, by_image = geometry.feature_group_count, geometry.batch_group_count
    groups = by_channel * by_image

    windows = _windows(
        lhs.transpose(lhs_spec), [rhs.shape[axis] for axis in rhs_spec[2:]], geometry
    )
    images, channels = windows.shape[:2]
    # Axes: image group, image, channel group, channel, (output, window) a spatial axis.
    windows = windows.reshape(
        by_image, images // by_image, by_channel, channels // by_channel, *windows.shape[2:]
    )
    outputs = windows.shape[4::2]
    windows = windows.transpose(
        (0, 2, 1, *range(4, 4 + 2 * spatial, 2), *range(5, 5 + 2 * spatial, 2), 3)
    )
    windows = windows.reshape(groups, images // by_image, *windows.shape[3:])

    kernel = rhs.transpose(rhs_spec)  # output feature, channel, window
    features = kernel.shape[0] // groups
    kernel = kernel.reshape(groups, features, *kernel.shape[1:])
    last = windows.ndim - 1
    in_windows = (*range(last - spatial, last), last)
    in_kernel = (*range(3, 3 + spatial), 2)
    product = summed(windows, kernel, ((in_windows, in_kernel), ((0,), (0,))))

    # Axes: group, image, outputs, feature; wanted: image, group and feature, outputs.
    product = product.transpose((1, 0, product.ndim - 1, *range(2, 2 + spatial)))
    product = product.reshape(images // by_image, groups * features, *outputs)
    return product.transpose(np.argsort(out_spec))


def _windows(lhs: jax.Array, kernel_shape: Sequence[int], geometry: _Geometry) -> jax.Array:
    """What each output sees: [image, channel, (output, window) a spatial axis].

    By indexing, since a convolution with unit vectors would spread NaN and flush subnormals.
    """
    around = zip(geometry.padding, geometry.lhs_dilation, strict=True)
    edges = [(low, high, dilation - 1) for (low, high), dilation in around]
    windows = lax.pad(lhs, np.float32(0), [(0, 0, 0), (0, 0, 0), *edges])
    for number, size in enumerate(kernel_shape):
        axis = 2 + 2 * number
        stride, dilation = geometry.window_strides[number], geometry.rhs_dilation[number]
        outputs = (windows.shape[axis] - (size - 1) * dilation - 1) // stride + 1
        index = stride * np.arange(outputs)[:, None] + dilation * np.arange(size)
        windows = jnp.take(windows, index, axis=axis)
    return windows
