"""Updates that know the value they lead to, and how they are applied."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jprec import rounding

#: The storage dtypes that need care: their arithmetic is done in float32.
LOW = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class NewValue:
    """The update of a 16-bit parameter, with the value that the parameter takes.

    A difference cannot carry the new value of a 16-bit parameter exactly: f32(new) - f32(old)
    loses `new` where it is much smaller than `old`. So the value itself travels. `optax` adds
    updates to parameters; this class answers that addition with the value, whoever does it.

    A transformation that comes afterwards and scales or clips all leaves would damage the value.
    One that multiplies by 0 or 1, as `optax.MultiSteps` does, is understood: times 0 the parameter
    stays as it is. Any other factor is an error when it is applied, or NaN if it is a whole number.

    Attributes:
      value: [...] bfloat16 or float16, the new parameter.
      update: [...] float32, what was wanted; the parameter moved by less or more than this.
      intact: [] int8, a 1 that shares the fate of the other leaves.
    """

    value: Any
    update: Any
    intact: Any = dataclasses.field(default_factory=lambda: np.int8(1))

    #: NumPy arrays leave the addition to this class.
    __array_ufunc__: ClassVar[None] = None

    def __radd__(self, parameter: Any) -> Any:
        """The value; the parameter where the update was multiplied by 0.

        Raises:
          ValueError: if the update was multiplied by something else than an integer.
        """
        if isinstance(self.intact, np.int8) and self.intact == 1:
            return self.value
        intact = jnp.asarray(self.intact)
        if not jnp.issubdtype(intact.dtype, jnp.integer):
            raise ValueError(
                "an update that knows its value was changed by a transformation behind "
                "jprec.optim's storage wrappers (scaled or clipped), which damages the value. Put "
                "that transformation into the optimiser that is wrapped: "
                "jprec.optim.wrap(optax.chain(...), policy)."
            )
        # Times another whole number, nobody knows what was meant, and NaN says so.
        damaged = jnp.where(intact == 0, parameter, jnp.nan)
        return jnp.where(intact == 1, self.value, damaged.astype(self.value.dtype))

    __add__ = __radd__


def is_new_value(node: Any) -> bool:
    """Whether `node` is a NewValue, for `is_leaf` of tree functions."""
    return isinstance(node, NewValue)


def check_is_difference(updates: Any, name: str) -> None:
    """An error if updates that know their value reach a transformation that changes updates."""
    if any(map(is_new_value, jax.tree.leaves(updates, is_leaf=is_new_value))):
        raise ValueError(
            f"{name} stands behind jprec.optim's storage wrappers, whose updates know the value "
            "that they lead to and cannot be changed. Put it into the optimiser that is wrapped: "
            "jprec.optim.wrap(optax.chain(...), policy)."
        )


def is_low(leaf: Any) -> bool:
    """Whether `leaf` is an array of a 16-bit storage dtype."""
    return getattr(leaf, "dtype", None) in LOW


def widen(leaf: Any) -> Any:
    """`leaf` in float32 if it is stored in 16 bits (exact); any other leaf as it is."""
    return leaf.astype(jnp.float32) if is_low(leaf) else leaf


def store(
    value: jax.Array,
    dtype: Any,
    mode: str = "nearest_even",
    *,
    key: jax.Array | None = None,
) -> jax.Array:
    """`value` rounded once to `dtype`, by integer operations that no compiler removes.

    Args:
      value: [...] float32.
      dtype: bfloat16 or float16.
      mode: A mode of `jprec.rounding.round_to`.
      key: For the stochastic mode.

    Returns:
      [...] of `dtype`. Beyond its range: infinity, as IEEE 754 has it.
    """
    dtype = jnp.dtype(dtype)
    return rounding.round_to(value, dtype.name, mode, key=key).astype(dtype)


def apply_updates(params: Any, updates: Any) -> Any:
    """The parameters after `updates`, of the same dtypes.

    Where an update knows its value (`NewValue`), that value, bit for bit. A 16-bit parameter
    with a plain update is added to in float32 and rounded once. All others are p + u.

    >>> params = {"w": jnp.ones(2, jnp.bfloat16)}
    >>> apply_updates(params, {"w": jnp.full(2, 0.004, jnp.float32)})["w"].tolist()
    [1.0078125, 1.0078125]
    """

    def apply(parameter: Any, update: Any) -> Any:
        if parameter is None:
            return None
        if isinstance(update, NewValue):
            if jnp.dtype(update.value.dtype) != jnp.dtype(parameter.dtype):
                raise ValueError(
                    f"a NewValue of {update.value.dtype} for a parameter of {parameter.dtype}. "
                    "Pass the parameters that the optimiser's update was given."
                )
            return parameter + update
        if getattr(update, "dtype", None) == jax.dtypes.float0:
            return parameter
        if is_low(parameter):
            wanted = widen(parameter) + jnp.asarray(update, jnp.float32)
            return store(wanted, parameter.dtype)
        parameter = jnp.asarray(parameter)
        return jnp.asarray(parameter + update, parameter.dtype)

    return jax.tree.map(apply, params, updates, is_leaf=lambda leaf: leaf is None)
