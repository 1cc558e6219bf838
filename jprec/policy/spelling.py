"""How dtypes and roles are spelt, and what an error says about a spelling it does not know."""

import difflib
from collections.abc import Iterable
from typing import Any

#: The dtypes a training policy may name: canonical spelling -> what else is read as it.
DTYPES = {
    "float32": ("f32", "fp32", "full", "single"),
    "bfloat16": ("bf16",),
    "float16": ("f16", "fp16"),
}

#: The roles that a policy gives a dtype, with the everyday ones first.
DTYPE_ROLES = ("params", "compute", "output", "moments", "statistics", "loss")

#: The roles that a policy gives the arithmetic of a product.
PRODUCT_ROLES = ("product", "grad_product")

ROLES = (*DTYPE_ROLES, *PRODUCT_ROLES)

#: The roles that a rule can set for some paths.
RULE_ROLES = ("params", "compute", "output")

#: Short form -> role, as jmp writes it ("p=f32,c=bf16,o=f32").
SHORT = {"p": "params", "c": "compute", "o": "output", "m": "product"}

_CANONICAL = {spelling: name for name, others in DTYPES.items() for spelling in (name, *others)}


def close_to(word: str, allowed: Iterable[str]) -> str:
    """The part of an error message that lists what is allowed and what is close to `word`."""
    allowed = list(allowed)
    near = difflib.get_close_matches(word, allowed, n=3, cutoff=0.6)
    return f"Allowed: {', '.join(allowed)}." + (f" Close: {', '.join(near)}." if near else "")


def dtype_name(value: Any, *, role: str) -> str:
    """The canonical name of a dtype given by name or by object; `role` is for the error.

    >>> dtype_name("bf16", role="compute")
    'bfloat16'
    """
    word = value if isinstance(value, str) else getattr(value, "name", None)
    word = getattr(value, "__name__", repr(value)) if word is None else word
    word = word.strip()
    if word.lower() in _CANONICAL:
        return _CANONICAL[word.lower()]
    if word.lower() == "half":
        raise ValueError(
            f"{role}={word!r}: which 16-bit format that is would depend on the machine. "
            "Say float16 or bfloat16."
        )
    if word.lower() in ("float64", "f64", "fp64", "double"):
        raise ValueError(
            f"{role}={word!r}: a training policy casts between float32, bfloat16 and float16. "
            "Leave float64 arrays out of it: they are never touched."
        )
    raise ValueError(f"{role}={word!r} is not a dtype of a policy. {close_to(word, DTYPES)}")
