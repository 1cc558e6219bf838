"""The dtypes that arrays come in, as integers: where the fields lie and what the patterns mean."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jprec import formats


@dataclasses.dataclass(frozen=True)
class Storage:
    """An IEEE dtype in which values of narrower formats are held, seen as signed integers.

    A pattern is the integer with the bits of a magnitude. Patterns are not negative, and they order
    as the magnitudes do; infinity is the pattern after the largest number, NaNs follow it.

    Attributes:
      format: The format of the dtype.
      integer: The signed integer dtype of the same width.
    """

    format: formats.FloatFormat
    integer: type[np.signedinteger]

    @property
    def dtype(self) -> np.dtype:
        """The floating-point dtype."""
        return np.dtype(f"float{self.format.bits}")

    @property
    def sign(self) -> int:
        """The pattern with only the sign bit set."""
        return -(2 ** (self.format.bits - 1))

    @property
    def implicit_bit(self) -> int:
        """The weight of the significand's implicit bit; also one step of the exponent field."""
        return 2**self.format.mantissa_bits

    @property
    def infinity(self) -> int:
        """The pattern of infinity."""
        return (2**self.format.exponent_bits - 1) * self.implicit_bit

    @property
    def nan(self) -> int:
        """The pattern of the quiet NaN without payload."""
        return self.infinity + self.implicit_bit // 2

    @property
    def one(self) -> int:
        """The pattern of 1."""
        return self.format.bias * self.implicit_bit

    def pattern(self, magnitude: float) -> int:
        """The pattern of a magnitude that this dtype holds exactly."""
        return int(np.asarray(magnitude, self.dtype).view(self.integer))

    def to_integer(self, x: jax.Array) -> jax.Array:
        """The bits of `x`: [...] of this dtype -> [...] signed integer."""
        return lax.bitcast_convert_type(x, self.integer)

    def from_integer(self, bits: jax.Array) -> jax.Array:
        """The numbers with these bits: [...] signed integer -> [...] of this dtype."""
        return lax.bitcast_convert_type(bits, self.dtype)


_FP32, _FP64 = Storage(formats.get("fp32"), np.int32), Storage(formats.get("fp64"), np.int64)

#: dtype -> the storage that it is rounded in. The 16-bit dtypes are raised to float32, exactly.
_STORAGES = {
    np.dtype("float64"): _FP64,
    np.dtype("float32"): _FP32,
    np.dtype("bfloat16"): _FP32,
    np.dtype("float16"): _FP32,
}


def as_floats(x: jax.typing.ArrayLike) -> tuple[jax.Array, Storage]:
    """`x` as an array of its own dtype without weak type, and the storage that it is rounded in."""
    dtype = getattr(x, "dtype", None)
    storage = _STORAGES.get(dtype) if dtype is not None else None
    if storage is None:
        raise TypeError(_not_an_array_of_floats(x, dtype))
    if storage is _FP64 and not jax.config.read("jax_enable_x64"):
        raise TypeError(
            "x is float64, but JAX would make it float32 and so round it twice. Set "
            "jax_enable_x64, or pass x.astype(np.float32) if the first rounding is meant."
        )
    if isinstance(x, jax.Array) and not x.weak_type:
        return x, storage
    return jnp.asarray(x, dtype=dtype), storage


def _not_an_array_of_floats(x: object, dtype: np.dtype | None) -> str:
    what = f"x is {type(x).__name__}" if dtype is None else f"x is an array of {dtype}"
    taken = "an array of float32, bfloat16 or float16 (float64 under jax_enable_x64)"
    if dtype is not None and jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4:
        way = "Convert it first, with x.astype(jnp.float32), which is exact."
    else:
        way = "Convert it first, with jnp.asarray(x, jnp.float32), which rounds to FP32."
    return f"{what}, but it is {taken}. {way} jprec.formats.round_exact rounds Python numbers."


def check_key(mode: str, key: jax.Array | None) -> None:
    """Raises ValueError unless there is a key if, and only if, the mode draws from it."""
    if (key is not None) != (mode == "stochastic"):
        needs = "uses no key; leave it out." if key is not None else "needs a key=jax.random.key()."
        raise ValueError(f"mode={mode!r} {needs}")
    dtype = getattr(key, "dtype", None)
    if key is not None and (
        dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == np.uint32)
    ):
        raise TypeError(f"key={key!r} is no PRNG key; pass jax.random.key(seed).")


@functools.cache
def check_fits(fmt: formats.FloatFormat, dtype: np.dtype) -> None:
    """Raises TypeError unless arrays of the dtype can be rounded to `fmt`."""
    held = formats.get(dtype)
    if (
        fmt.precision > held.precision
        or fmt.max > held.max
        or fmt.min_subnormal < held.min_subnormal
    ):
        raise TypeError(
            f"{dtype} does not hold every value of {fmt.name}; convert x to a wider dtype first, "
            "which is exact, and keep the result in that."
        )
    storage = _STORAGES[dtype].format
    if fmt.min_exponent < storage.min_exponent - 1:
        raise TypeError(
            f"{fmt.name} has more than one binade of normal values among the subnormals of "
            f"{storage.name}, where numbers have fewer bits; rounding there is not offered. "
            f"jprec.formats.round_exact rounds to it, and so do arrays of a wider dtype."
        )
