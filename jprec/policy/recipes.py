"""Policies that people use, by name."""

import dataclasses
import re
from typing import Any

from jprec.policy.policy import Policy, parse, read
from jprec.policy.spelling import close_to

#: Name -> the policy as a string. In mixed_* the stored float32 parameters are the master
#: weights. In pure_* storage is low and the update's arithmetic is float32, rounded once on
#: store; float16 recipes get a dynamic loss scale from `jprec.optim.wrap`.
RECIPES = {
    "fp32": "params=float32,compute=float32,output=float32,product=fp32",
    "tf32": "params=float32,compute=float32,output=float32,product=tf32",
    "mixed_bf16": "params=float32,compute=bfloat16,output=float32",
    "mixed_fp16": "params=float32,compute=float16,output=float32",
    "pure_bf16": "params=bfloat16,compute=bfloat16,output=float32",
    "pure_fp16": "params=float16,compute=float16,output=float32",
}


def names() -> tuple[str, ...]:
    """The names of the recipes."""
    return tuple(RECIPES)


def get(policy: Any) -> Policy:
    """The policy called `policy`, written as `policy`, or `policy` itself.

    | name | what | source |
    |---|---|---|
    | fp32 | every product in full float32, whatever the machine's default | IEEE 754-2019 |
    | tf32 | operands of products rounded to TF32, sums in float32 | NVIDIA, A100 white paper, 2020 |
    | mixed_bf16 | bfloat16 computation, float32 weights, no loss scale | Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019, arXiv:1905.12322 |
    | mixed_fp16 | float16 computation, float32 weights, loss scale | Micikevicius et al., Mixed Precision Training, 2018, arXiv:1710.03740 |
    | pure_bf16 | bfloat16 weights too: small updates are lost | Zamirai et al., Revisiting BFloat16 Training, 2020, arXiv:2010.06192 |
    | pure_fp16 | float16 weights too, loss scale | Micikevicius et al., 2018, section 3.1 (what master weights cure) |

    A recipe may be followed by roles that are different, and by rules.

    >>> get("mixed_bf16").compute
    'bfloat16'
    >>> print(get("mixed_fp16,moments=bfloat16;^head/->compute=float32"))
    params=float32,compute=float16,output=float32,moments=bfloat16;^head/->compute=float32
    """  # noqa: E501
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        # A jmp.Policy, or anything else that has its three fields.
        fields = ("param_dtype", "compute_dtype", "output_dtype")
        if all(hasattr(policy, field) for field in fields):
            return Policy(*(getattr(policy, field) for field in fields))
        raise TypeError(
            f"a policy is no {type(policy).__name__}. Give a Policy, the name of a recipe "
            f"({', '.join(RECIPES)}) or a string such as "
            '"params=float32,compute=bfloat16,output=float32".'
        )
    if policy in RECIPES:
        return dataclasses.replace(parse(RECIPES[policy]), name=policy)
    name, separator, rest = re.match(r"\s*(\w*)\s*([,;]?)(.*)", policy, re.S).groups()  # type: ignore[union-attr]  # matches anything
    if name in RECIPES and separator:
        return read(rest if separator == "," else f";{rest}", base=parse(RECIPES[name]))
    if "=" in policy:
        return parse(policy)
    raise ValueError(f"no policy {policy!r}. {close_to(policy, RECIPES)} Or write its roles out.")
