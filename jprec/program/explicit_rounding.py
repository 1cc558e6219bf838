"""A function whose 16-bit values are rounded where it says so, once, on every backend."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jprec import rounding
from jprec.program import versions
from jprec.program.description import is_narrow_product
from jprec.program.rewriting import Handler, interpret, rewrite
from jprec.program.sources import source_line

#: 16-bit dtype -> the format that its values are rounded to.
_FORMATS = {np.dtype(jnp.bfloat16): "bf16", np.dtype(jnp.float16): "fp16"}

#: Operations whose result has no digit that their operands had not. They stay in 16 bits.
_DATA_MOVEMENT = """
broadcast_in_dim reshape transpose squeeze expand_dims slice dynamic_slice dynamic_update_slice
concatenate pad gather scatter select_n rev split unstack tile roll copy copy_p device_put
sharding_constraint layout_constraint reshard optimization_barrier stop_gradient name zeros_like
empty empty2 pvary pbroadcast preduced reduced_vary_cast all_gather all_gather_invariant
all_gather_reduced all_to_all ragged_all_to_all ppermute
"""
_SELECTION = """
sort top_k approx_top_k max min clamp reduce_max reduce_min cummax cummin reduce_window_max
reduce_window_min scatter-max scatter_max scatter-min scatter_min pmax pmin
"""
_SIGNS_AND_INTEGERS = "neg abs sign _copysign floor ceil round real conj"
_BITS = "bitcast_convert_type nextafter random_bits rng_uniform"
_EXACT = frozenset(" ".join((_DATA_MOVEMENT, _SELECTION, _SIGNS_AND_INTEGERS, _BITS)).split())

#: Parameters that name the dtype of a result.
DTYPE_PARAMETERS = ("new_dtype", "dtype", "out_dtype", "preferred_element_type")


def round_explicitly(fn: Callable) -> Callable:
    """The same function with every bfloat16 and float16 value rounded explicitly, exactly once.

    An operation with a 16-bit result is computed in FP32 from its operands, and its result is
    rounded by `jprec.rounding.round_to`. That is what the program says, operation by operation.
    Compilers do less and more: XLA on a CPU skips the rounding of a product whose result is used
    in FP32, XLA on a GPU removes pairs of casts, and both sum as they like. Here products,
    reductions and scatters are summed in FP32 and rounded once. FP16 keeps its subnormals; the
    subnormals of bfloat16 are those of FP32, which arithmetic may flush.

    Comparisons, data movement and operations on bits stay as they are, and so do kernels and
    callbacks, which a warning names. Gradients are those of `fn`, rounded explicitly in the same
    way: `grad(round_explicitly(f))` equals `round_explicitly(grad(f))` bit for bit. It may be
    combined with `emulate`. Forward-mode differentiation of the result is refused.

    >>> import jax.numpy as jnp
    >>> x = jnp.bfloat16(1.0078125)
    >>> jax.jit(round_explicitly(lambda x: (x * x).astype(jnp.float32)))(x).item()
    1.015625
    """
    return rewrite(fn, ExplicitRounding())


@dataclasses.dataclass(frozen=True)
class ExplicitRounding:
    """The rule: what makes a 16-bit value is computed in FP32 and rounded once."""

    name: str = "round_explicitly"

    @property
    def tells_backward(self) -> bool:
        """Whether backward products are computed differently: no."""
        return False

    def handler(
        self, equation: Any, gradients: tuple[bool, bool] = (False, False)
    ) -> Handler | None:
        """The function that rounds the equation's 16-bit results; None where it has none."""
        name = equation.primitive.name
        if is_narrow_product(equation) and _holds_16_bits((*equation.invars, *equation.outvars)):
            return _rounded(_product)
        if not self.may_be_inside(equation) or name in _EXACT or versions.is_opaque(equation):
            return None
        if name in _SPECIAL:
            return _rounded(_SPECIAL[name])
        return None if versions.has_body(equation) else _rounded(_in_float32)

    def may_be_inside(self, equation: Any) -> bool:
        """Whether the equation gives 16-bit results."""
        return _holds_16_bits(equation.outvars)


@dataclasses.dataclass(frozen=True)
class _Raised:
    """The rule inside a reduction's own function: FP32 throughout, nothing rounded."""

    name: str = "round_explicitly"
    tells_backward: bool = False

    def handler(
        self, equation: Any, gradients: tuple[bool, bool] = (False, False)
    ) -> Handler | None:
        return self._compute

    def _compute(self, equation: Any, *inputs: Any) -> list[Any]:
        body = versions.transparent_body(equation)
        if body is None:
            return _in_float32(equation, *map(_raise, inputs))
        program, consts = versions.parts(body)
        return interpret(program, [*consts, *inputs], self)

    def may_be_inside(self, equation: Any) -> bool:
        return False


def _dtype(variable: Any) -> Any:
    return getattr(variable.aval, "dtype", None)


def _holds_16_bits(variables: Sequence[Any]) -> bool:
    return any(_dtype(variable) in _FORMATS for variable in variables)


def _rounded(compute: Handler) -> Handler:
    """`compute` in FP32, with the 16-bit results of the equation rounded once."""

    def handler(equation: Any, *inputs: Any) -> list[Any]:
        results = compute(equation, *map(_raise, inputs))
        if any(r.dtype in _FORMATS for r in results):
            raise NotImplementedError(
                f"round_explicitly: {equation.primitive.name} at {source_line(equation)} makes "
                f"{', '.join(str(r.dtype) for r in results)} even from FP32 operands, so its "
                "rounding cannot be made explicit. Compute it in float32 and cast the result."
            )
        return [_round(result, v) for result, v in zip(results, equation.outvars, strict=True)]

    return handler


def _round(result: jax.Array, variable: Any) -> jax.Array:
    dtype = _dtype(variable)
    if dtype not in _FORMATS:
        return result
    # The conversion is exact: the rounded value is one of the format.
    return lax.convert_element_type(rounding.round_to(result, _FORMATS[dtype]), dtype)


def _raise(value: Any) -> Any:
    """The value in FP32 if it has 16 bits."""
    if getattr(value, "dtype", None) not in _FORMATS:
        return value
    if isinstance(value, jax.Array):
        return lax.convert_element_type(value, jnp.float32)
    return np.asarray(value, np.float32)  # a literal of the program


def _in_float32(equation: Any, *inputs: Any) -> list[Any]:
    changed: dict[str, Any] = {
        name: np.dtype(np.float32)
        for name in DTYPE_PARAMETERS
        if equation.params.get(name) is not None and equation.params[name] in _FORMATS
    }
    return versions.bind(equation, inputs, **changed)


def _product(equation: Any, *inputs: Any) -> list[Any]:
    left, right, *sizes = inputs
    return versions.bind(
        equation,
        [left.astype(jnp.float32), right.astype(jnp.float32), *sizes],
        precision=(lax.Precision.HIGHEST, lax.Precision.HIGHEST),
        preferred_element_type=np.dtype(np.float32),
    )


def _conversion(equation: Any, value: Any) -> list[Any]:
    value = jnp.asarray(value)
    if jnp.issubdtype(value.dtype, jnp.integer):
        return [_rounded_to_odd(value)]
    if value.dtype.itemsize < 4:
        return [lax.convert_element_type(value, jnp.float32)]
    return [value]


def _rounded_to_odd(value: jax.Array) -> jax.Array:
    """Integers in FP32, with a last bit of 1 where digits are lost.

    A second rounding, to at most 22 bits, then sees which side the integer was on: together they
    round once.
    """
    bits = 8 * value.dtype.itemsize
    unsigned = jnp.dtype(f"uint{bits}")
    magnitude = lax.convert_element_type(value, unsigned)
    magnitude = jnp.where(value < 0, jnp.zeros_like(magnitude) - magnitude, magnitude)
    excess = jnp.maximum(bits - 24 - lax.clz(magnitude).astype(jnp.int32), 0)
    shift = excess.astype(unsigned)
    kept = magnitude >> shift
    lost = (kept << shift) != magnitude
    scale = lax.bitcast_convert_type((excess + 127) << 23, jnp.float32)  # 2**excess
    result = (kept | lost.astype(unsigned)).astype(jnp.float32) * scale
    return jnp.where(value < 0, -result, result)


def _reduction(equation: Any, *inputs: Any) -> list[Any]:
    params = equation.params
    half = len(inputs) // 2
    results = lax.reduce(
        tuple(inputs[:half]), tuple(inputs[half:]), _combine(params), params["dimensions"]
    )
    return list(results)


def _window_reduction(equation: Any, *inputs: Any) -> list[Any]:
    params = equation.params
    half = len(inputs) // 2
    results = lax.reduce_window(
        tuple(inputs[:half]),
        tuple(inputs[half:]),
        _combine(params),
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params["base_dilation"],
        params["window_dilation"],
    )
    return list(results)


def _combine(params: Any) -> Callable:
    program, consts = versions.parts(params["jaxpr"])

    def combine(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, ...]:
        values = [*consts, *params.get("consts", ()), *left, *right]
        return tuple(interpret(program, values, _Raised()))

    return combine


def _scatter(scatter: Callable) -> Handler:
    def handler(equation: Any, operand: Any, indices: Any, updates: Any) -> list[Any]:
        params = equation.params
        result = scatter(
            operand,
            indices,
            updates,
            params["dimension_numbers"],
            indices_are_sorted=params["indices_are_sorted"],
            unique_indices=params["unique_indices"],
            mode=params["mode"],
        )
        return [result]

    return handler


#: Operations whose parameters hold a program for one dtype: written anew for that of the operands.
COMBINING: dict[str, Handler] = {
    "reduce": _reduction,
    "reduce_window": _window_reduction,
    "scatter": _scatter(lax.scatter),
    "scatter-min": _scatter(lax.scatter_min),
    "scatter_min": _scatter(lax.scatter_min),
    "scatter-max": _scatter(lax.scatter_max),
    "scatter_max": _scatter(lax.scatter_max),
    "scatter-add": _scatter(lax.scatter_add),
    "scatter_add": _scatter(lax.scatter_add),
    "scatter-sub": _scatter(lax.scatter_sub),
    "scatter_sub": _scatter(lax.scatter_sub),
    "scatter-mul": _scatter(lax.scatter_mul),
    "scatter_mul": _scatter(lax.scatter_mul),
}

#: Operations that need more than other operands and another dtype.
_SPECIAL: dict[str, Handler] = {"convert_element_type": _conversion, **COMBINING}
