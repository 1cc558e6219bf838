"""What goes into a product and what comes out: dtypes checked, raised, rounded, stored."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jprec import formats, rounding
from jprec.matmul.arithmetic import Arithmetic


def is_narrow(dtype: Any) -> bool:
    """Whether float32 holds every value of `dtype`: a floating-point dtype of at most 32 bits."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and np.dtype(dtype).itemsize <= 4


def leaves_to_lax(how: Arithmetic, *dtypes: Any) -> bool:
    """Whether lax itself does the product, at its highest precision.

    So under "fp32", for dtypes other than the narrow ones (float64, integers, complex numbers) and
    for FP32 throughout; derivatives are lax's as well.

    Raises:
      TypeError: another spec, and a dtype whose values float32 does not hold.
    """
    narrow = all(map(is_narrow, dtypes))
    others = [spec for spec in how.specs if not spec.is_plain_fp32]
    if not others:
        return not narrow or all(np.dtype(dtype) == np.float32 for dtype in dtypes)
    if not narrow:
        raise TypeError(
            f"spec {others[0]} computes in FP32 or narrower, but operands and result are "
            f"{', '.join(str(np.dtype(dtype)) for dtype in dtypes)}. Cast to float32 or narrower "
            "first, or take 'fp32', which leaves float64, integer and complex products to lax."
        )
    return False


def store(total: jax.Array, dtype: Any) -> jax.Array:
    """The float32 `total` in `dtype`, rounded once, to nearest even.

    The rounding is done in float32, on bits: XLA may leave out that of a cast.
    """
    if np.dtype(dtype) == np.float32:
        return total
    return rounding.round_to(total, formats.get(dtype)).astype(dtype)
