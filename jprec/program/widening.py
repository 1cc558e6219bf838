"""One equation of a program, computed in FP64."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jprec.program import versions
from jprec.program.description import PRODUCTS
from jprec.program.explicit_rounding import COMBINING, DTYPE_PARAMETERS
from jprec.program.sources import source_line

#: Operations on bits, and random draws: there is no FP64 version of what they do, so their
#: results are taken as they are.
_AS_THEY_ARE = frozenset(
    {
        "bitcast_convert_type",
        "nextafter",
        "rng_uniform",
        "rng_bit_generator",
        "random_bits",
        "random_gamma_grad",
        "random_gamma",
    }
)

#: Operations that only change precision, which is not changed here.
_CASTS = frozenset({"convert_element_type", "reduce_precision", "copy", "copy_p"})


def is_float(value: Any) -> bool:
    """Whether a value, or what an abstract value stands for, is a real or complex float."""
    return bool(jnp.issubdtype(getattr(value, "dtype", np.dtype(bool)), jnp.inexact))


def widened(value: Any) -> Any:
    """A float as FP64, a complex number as complex128; exact. Needs 64-bit mode."""
    return lax.convert_element_type(value, wide_dtype(value.dtype))


def wide_dtype(dtype: Any) -> Any:
    """float64 for floats, complex128 for complex numbers, any other dtype as it is."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else dtype


def starts_anew(equation: Any) -> bool:
    """Whether FP64 can only continue from the results as they are."""
    return equation.primitive.name in _AS_THEY_ARE or versions.is_opaque(equation)


def compute(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """The equation's outputs with FP64 operands; casts do nothing, presets are not asked for.

    Outputs that are no floats are of no use to the caller: what decides is the original.
    """
    name = equation.primitive.name
    if name in _CASTS:
        (value, *_) = inputs
        wide = wide_dtype(equation.outvars[0].aval.dtype)
        if jnp.issubdtype(value.dtype, jnp.complexfloating) and wide == np.float64:
            value = jnp.real(value)
        return [lax.convert_element_type(value, wide)]
    if name in COMBINING:
        return list(COMBINING[name](equation, *inputs))
    if versions.has_body(equation):
        raise NotImplementedError(
            f"shadow: {name} at {source_line(equation) or 'an unknown line'} runs a program of a "
            "kind that has no FP64 version here. Leave it out, or write it with jax.jit, scan, "
            "while_loop or cond."
        )
    changed: dict[str, Any] = {
        key: wide_dtype(equation.params[key])
        for key in DTYPE_PARAMETERS
        if equation.params.get(key) is not None
    }
    if name in PRODUCTS:
        # A preset casts FP64 operands down.
        changed["precision"] = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
    return versions.bind(equation, inputs, **changed)


@jax.jit
def relative_error(got: jax.Array, want: jax.Array) -> jax.Array:
    """[] float64: the largest difference, over the largest finite magnitude in `want`.

    Infinite where one is not finite and the other differs; 0 where both are the same.
    """
    got, want = jnp.ravel(got), jnp.ravel(want)
    equal = (got == want) | (jnp.isnan(got) & jnp.isnan(want))
    difference = jnp.where(equal, 0.0, jnp.abs(got - want))
    difference = jnp.where(jnp.isnan(difference), jnp.inf, difference)
    scale = jnp.max(jnp.where(jnp.isfinite(want), jnp.abs(want), 0.0), initial=0.0)
    largest = jnp.max(difference, initial=0.0)
    return jnp.where(largest == 0.0, 0.0, largest / scale)
