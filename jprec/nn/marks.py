"""The mark that a model with a policy bears."""

from typing import Any

from jprec import policy as policies

#: Class attribute of the classes made by `apply`: the policy of a model, or of one layer.
POLICY = "_jprec_policy"


def policy_of(model: Any) -> policies.Policy | None:
    """The policy that `apply` gave to `model`; None if it has none."""
    return getattr(type(model), POLICY, None)


def check_has_no_policy(model: Any, part: Any, where: str, *, is_marked: bool = False) -> None:
    """An error if `part`, which is at `where` in `model`, has a policy."""
    policy = policy_of(part)
    if policy is None and not is_marked:
        return
    raise ValueError(
        f"{type(model).__name__}: {f'its part {where!r}' if where else 'it'} already has a policy"
        f"{'' if policy is None else f' ({policy})'}. One model has one policy: apply the new one "
        "to the original model."
    )
