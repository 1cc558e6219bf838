"""Products as a device's tensor core does them, bit for bit, on any backend."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jprec import formats, hardware, rounding
from jprec.matmul import accumulate
from jprec.matmul.layout import Dimensions, matrices, zeros


def tensor_core_dot(
    a: jax.typing.ArrayLike,
    b: jax.typing.ArrayLike,
    c: jax.typing.ArrayLike,
    *,
    device: str | hardware.Device,
    input_format: str,
    output_format: str = "fp32",
) -> jax.Array:
    """sum(a * b, -1) + c as the tensor core of `device` returns it, bit for bit.

    K is walked in ascending order, block by block; the last block is filled up with zeros. The
    result of a block is the accumulator of the next. (FP8 by mma.sync adds in another order, see
    `hardware.TensorCore`.) What enters: for "tf32" the low 13 bits of float32 operands are ignored,
    as the instruction does; other input formats, and `c` for FP16 output, are rounded to nearest
    even where they are not values of the format already; beyond the range of "e4m3fn" that is NaN.

    The model behind it is confirmed by outputs of the hardware for normal numbers; subnormal
    numbers, infinities and NaN follow published test suites and models (see `hardware`).

    Args:
      a: [..., K], floating-point, at most 32 bits wide.
      b: [..., K], likewise; leading axes broadcast.
      c: [...], the initial accumulator.
      device: A name such as "a100", or a Device. FP8 depends on the instruction: "h100" is wgmma,
        "h100_mma" mma.sync, see `hardware.get`.
      input_format: Format of `a` and `b` in the tensor core. "e4m3" is read as "e4m3fn": no tensor
        core takes the format with infinities that formats.get("e4m3") is.
      output_format: Format of accumulator and result, "fp32" or "fp16".

    Returns:
      [...] float32, values of `output_format`. NaN is 0x7FFFFFFF (FP16: 0x7FFF, widened).

    >>> a100 = dict(device="a100", input_format="fp16")
    >>> tensor_core_dot([1.0, 1.0], [1.0, -(2.0**-24)], -1 + 2.0**-24, **a100).item()
    0.0
    """
    input_format = "e4m3fn" if input_format == "e4m3" else input_format
    core = hardware.get(device).tensor_core(input_format, output_format)
    a, b = (_entering(x, core.input_format) for x in (a, b))
    c = _narrow(c)
    if core.output_format != "fp32":
        c = rounding.round_to(c, core.output_format)
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"a and b have shapes {a.shape} and {b.shape}, but their last axis is K, of one length."
        )
    shape = jnp.broadcast_shapes(a.shape[:-1], b.shape[:-1], c.shape)
    a, b = (jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (a, b))
    return _rows(a, b, jnp.broadcast_to(c, shape), core)


def _narrow(x: jax.typing.ArrayLike) -> jax.Array:
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize > 4:
        raise TypeError(
            f"a tensor core takes floating-point numbers of at most 32 bits, not {x.dtype}; cast "
            "to float32 first."
        )
    return _without_derivative(x.astype(jnp.float32))


@jax.custom_jvp
def _without_derivative(x: jax.Array) -> jax.Array:
    """`x`; an error where a derivative is wanted, which would silently be zero."""
    return x


@_without_derivative.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    del primals, tangents
    raise TypeError(
        "tensor_core_dot has no derivative, since it works on bits; a product that can be "
        "differentiated is matmul.dot_general(..., spec) with a spec such as 'tf32@a100'."
    )


def _entering(x: jax.typing.ArrayLike, input_format: str) -> jax.Array:
    x = _narrow(x)
    if input_format != "tf32":
        return rounding.round_to(x, input_format)
    bits = lax.bitcast_convert_type(x, jnp.int32) & -(2**13)
    return lax.bitcast_convert_type(bits, jnp.float32)


@functools.partial(jax.jit, static_argnums=(3,))
def _rows(a: jax.Array, b: jax.Array, c: jax.Array, core: hardware.TensorCore) -> jax.Array:
    special = jnp.sum(accumulate.indicator(a) * accumulate.indicator(b), -1)
    special = special + accumulate.indicator(c)
    inputs = core.input_format, core.input_format
    first, second = _decoded(jnp.moveaxis(a, -1, 0), jnp.moveaxis(b, -1, 0), core, inputs)
    total = accumulate.chain(first, second, c, core, outer=False)
    return _nan_of(accumulate.with_specials(total, special), core)


def _nan_of(x: jax.Array, core: hardware.TensorCore) -> jax.Array:
    """`x` with the NaN of the output format: all bits below the sign are ones."""
    if core.output_format == "fp32":
        return x
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return lax.bitcast_convert_type(jnp.where(bits == 0x7FFF_FFFF, 0x7FFF_E000, bits), jnp.float32)


def _decoded(
    a: jax.Array, b: jax.Array, core: hardware.TensorCore, input_formats: tuple[str, str]
) -> tuple[jax.Array, jax.Array]:
    """[K, ...] float32 operands as words, K filled up to whole steps of the accumulator."""
    fill = -a.shape[0] % core.stride
    a, b = (jnp.pad(x, [(0, fill)] + [(0, 0)] * (x.ndim - 1)) for x in (a, b))
    of_a, of_b = map(formats.get, input_formats)
    first, second = accumulate.shifts(core, input_formats)
    return accumulate.decode(a, of_a, first), accumulate.decode(b, of_b, second)


@functools.partial(jax.jit, static_argnames=("dims", "core", "input_formats"))
def dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    dims: Dimensions,
    core: hardware.TensorCore,
    input_formats: tuple[str, str],
) -> jax.Array:
    """The float32 product of float32 arrays whose elements are values of `input_formats`.

    These are twice `core.input_format`, or that and one with fewer digits. Accumulators start at
    0. Contracted axes are walked in the order in which `dims` lists them, the last one fastest.
    """
    left, right, shape = matrices(lhs, rhs, dims)
    batch_axes = ((0,), (0,)), ((1,), (1,))
    special = lax.dot_general(
        accumulate.indicator(left),
        accumulate.indicator(right),
        batch_axes,
        precision=lax.Precision.HIGHEST,
    )
    # The longer of the two kept axes comes last, where the inner loop runs.
    swap = left.shape[2] > right.shape[2]
    rows, columns = (right, left) if swap else (left, right)
    a, b = _decoded(rows, columns, core, input_formats[::-1] if swap else input_formats)
    c = zeros(rows, columns)
    total = accumulate.chain(a, b, c, core, outer=True)
    total = accumulate.with_specials(total.swapaxes(1, 2) if swap else total, special)
    return _nan_of(total, core).reshape(shape)
