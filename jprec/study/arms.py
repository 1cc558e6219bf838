"""Arms: the precisions that a study compares, each with what it is expected to show."""

import dataclasses
import difflib
from typing import Any, Literal

from jprec import policy as policies
from jprec.optim import DynamicScale

Role = Literal["baseline", "claim", "control", "report", "twin"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train.

    Attributes:
      name: Spelling in tables and folders.
      what: One sentence for the reader.
      policy: A policy's name or string (`jprec.policy`). Products that it says nothing about run in
        full FP32.
      loss_scale: As `jprec.optim.wrap` takes it: None (the policy's default), "none", a power of
        two, or a `DynamicScale`.
      store: How 16-bit parameters are updated, as `jprec.optim.wrap` takes it.
      one_ulp: Whether one weight starts one unit in the last place higher.
      role: "baseline"; "claim" (expected to be equivalent, counted in the correction for several
        claims); "control" (must come out different and worse, or the study shows nothing); "twin"
        (must be identical to the arm `twin_of`, bit for bit); "report" (no expectation).
      twin_of: The arm that a twin repeats.
    """

    name: str
    what: str = ""
    policy: str = "fp32"
    loss_scale: str | float | DynamicScale | None = None
    store: str | None = None
    one_ulp: bool = False
    role: Role = "claim"
    twin_of: str | None = None

    def __post_init__(self) -> None:
        policies.get(self.policy)
        if (self.role == "twin") != (self.twin_of is not None):
            raise ValueError(
                f"arm {self.name!r}: role={self.role!r} and twin_of={self.twin_of!r}, but a twin "
                "names the arm that it repeats, and no other role does."
            )

    @property
    def expected(self) -> str | None:
        """The verdict that the arm's role expects: equivalent, different, identical or None."""
        return {"claim": "equivalent", "control": "different", "twin": "identical"}.get(self.role)

    def describe(self) -> dict[str, Any]:
        """The arm as a record, ready for JSON."""
        fields = dataclasses.asdict(self)
        fields["policy"] = str(policies.get(self.policy))
        return {**fields, "expected": self.expected}


def underscaled(scale: float, *, role: Role = "control") -> Arm:
    """The arm that loses its gradients: FP16 with a static scale far too small."""
    return Arm(
        name="mixed_fp16_underscaled",
        what=f"as mixed_fp16, with a static loss scale of {_power(scale)}: gradients fall below "
        "FP16's range",
        policy="mixed_fp16",
        loss_scale=scale,
        role=role,
    )


def underscaled_twin(scale: float) -> Arm:
    """The same scale in FP32, where a power of two changes no bit."""
    return Arm(
        name="fp32_underscaled",
        what=f"FP32 with the same loss scale of {_power(scale)}: must be the baseline bit for bit",
        loss_scale=scale,
        role="twin",
        twin_of="fp32",
    )


def _power(scale: float) -> str:
    return f"2^{scale.hex().split('p')[1].lstrip('+')}"


#: Arms by name; a setting may name them as strings.
ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        # A static scale of 1 makes the baseline the same program as a twin with another scale.
        Arm(name="fp32", what="every product in full FP32", loss_scale=1.0, role="baseline"),
        Arm(
            name="fp32_one_ulp",
            what="FP32, with one weight moved by one ulp: how chaotic training is by itself",
            loss_scale=1.0,
            one_ulp=True,
        ),
        Arm(
            name="tf32",
            what="operands of every product rounded to TF32, nearest with ties away; FP32 sums",
            policy="tf32",
        ),
        Arm(
            name="tf32_truncated",
            what="operands of every product truncated to TF32; FP32 sums",
            policy="product=tf32:toward_zero",
        ),
        Arm(
            name="tf32@a100",
            what="as tf32, summed as an A100 does: four products at a time, truncated",
            policy="product=tf32@a100",
        ),
        Arm(
            name="mixed_bf16",
            what="BF16 operands, activations and their gradients; FP32 sums, weights and loss",
            policy="mixed_bf16",
        ),
        Arm(
            name="mixed_fp16",
            what="FP16 operands, activations and their gradients; FP32 sums, weights and loss; "
            "dynamic loss scale from 2^24, growing every 100 steps",
            policy="mixed_fp16",
            loss_scale=DynamicScale(initial=2.0**24, growth_interval=100),
        ),
        Arm(
            name="mantissa2_truncated",
            what="operands of every product truncated to two mantissa bits; FP32 sums",
            policy="product=e8m2:toward_zero",
            role="report",
        ),
        Arm(
            name="pure_bf16",
            what="weights stored in BF16 as well, rounded to nearest after an FP32 update",
            policy="pure_bf16",
            role="control",
        ),
        Arm(
            name="pure_fp16",
            what="weights stored in FP16 as well, rounded to nearest after an FP32 update",
            policy="pure_fp16",
            role="report",
        ),
        Arm(
            name="bf16_stochastic",
            what="as pure_bf16, but the update is rounded stochastically",
            policy="pure_bf16",
            store="stochastic",
        ),
        Arm(
            name="bf16_kahan",
            what="as pure_bf16, with a BF16 compensation term for what rounding took away",
            policy="pure_bf16",
            store="kahan",
        ),
    )
}


def arm(name_or_arm: str | Arm) -> Arm:
    """The arm of that name, or an arm for that policy.

    Raises:
      ValueError: if the string is neither the name of an arm nor a policy.

    >>> arm("mixed_bf16").role, arm("compute=bfloat16,product=tf32").name
    ('claim', 'compute=bfloat16,product=tf32')
    """
    if isinstance(name_or_arm, Arm):
        return name_or_arm
    if name_or_arm in ARMS:
        return ARMS[name_or_arm]
    try:
        policies.get(name_or_arm)
    except ValueError as error:
        close = difflib.get_close_matches(name_or_arm, ARMS, n=3)
        hint = f" Close: {', '.join(close)}." if close else ""
        raise ValueError(
            f"unknown arm {name_or_arm!r}.{hint} Arms: {', '.join(ARMS)}; or a policy such as "
            f"'compute=bfloat16,product=tf32' ({error})"
        ) from error
    return Arm(name=name_or_arm, what="the policy as written", policy=name_or_arm)
