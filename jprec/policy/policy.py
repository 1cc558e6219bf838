"""Which tensor and which operation of a training step use which format."""

import dataclasses
import re
from typing import Any

from jprec.policy.spelling import (
    DTYPE_ROLES,
    PRODUCT_ROLES,
    ROLES,
    RULE_ROLES,
    SHORT,
    close_to,
    dtype_name,
)

#: Separates the rules of a policy in its string; a pattern may not contain it.
_BETWEEN_RULES = ";"
_ARROW = "->"


#: Roles that stay unwritten while they are what they are by default.
_QUIET = {"moments": "float32", "statistics": "float32", "loss": "float32"}


def _check_product(product: Any, *, role: str) -> str:
    """`product`, if `jprec.matmul` knows it."""
    if not isinstance(product, str) or product != product.strip() or not product:
        raise ValueError(
            f"Policy: {role}={product!r} is not the name of a product specification. "
            'Give a name such as "tf32" (see jprec.matmul.get), or None to leave the '
            "products of the program as they are."
        )
    # Imported here so that policies can be read and listed without importing JAX.
    from jprec import matmul

    matmul.get(product)
    return product


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is different below some paths: roles that are None stay as the policy has them.

    Attributes:
      pattern: Regular expression, searched (not matched) in the path, whose parts are joined
        by "/": "norm" finds "block_0/norm/scale".
      params: Dtype in which the parameters are stored.
      compute: Dtype in which they enter the computation.
      output: Dtype in which the layer's result comes out.
    """

    pattern: str
    params: str | None = None
    compute: str | None = None
    output: str | None = None

    def __post_init__(self) -> None:
        where = f"Rule({self.pattern!r})"
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{where}: not a regular expression: {error}.") from error
        if not self.pattern or self.pattern != self.pattern.strip():
            raise ValueError(
                f"{where}: a pattern is not empty and has no space at its ends. "
                r'Use ".*" for every path and "\s" for a space.'
            )
        if _BETWEEN_RULES in self.pattern or _ARROW in self.pattern:
            raise ValueError(
                f"{where}: {_BETWEEN_RULES!r} and {_ARROW!r} separate the parts of a policy's "
                r'string. Write "\x3b" for the semicolon and "-\x3e" for the arrow.'
            )
        for role in RULE_ROLES:
            value = getattr(self, role)
            if value is not None:
                object.__setattr__(self, role, dtype_name(value, role=f"{where}: {role}"))
        if not self.changes:
            raise ValueError(f"{where} changes nothing. Give params, compute or output.")

    @property
    def changes(self) -> dict[str, str]:
        """The roles this rule sets."""
        roles = {role: getattr(self, role) for role in RULE_ROLES}
        return {role: value for role, value in roles.items() if value is not None}

    def finds(self, path: str) -> bool:
        """Whether the pattern is found in `path`, whose parts are joined by "/".

        The path of a layer ends with "/", so that "^head/" finds the layer and its parameters
        alike; it is also searched without that "/", so that "head$" finds the layer.
        """
        return any(re.search(self.pattern, p) for p in (path, path.rstrip("/")))

    def __str__(self) -> str:
        roles = ",".join(f"{role}={value}" for role, value in self.changes.items())
        return f"{self.pattern}{_ARROW}{roles}"


@dataclasses.dataclass(frozen=True)
class Policy:
    """The formats of one training step.

    Dtypes are given by any usual spelling or as objects, and kept as "float32", "bfloat16" or
    "float16". Two policies are equal if they do the same; the name does not count.

    Attributes:
      params: Dtype in which parameters are stored (and updated, see `jprec.optim.wrap`).
      compute: Dtype to which parameters and inputs are cast for the forward and backward pass.
      output: Dtype in which a model hands out its result; the loss itself is always float32.
      product: Name of the arithmetic in which matrix products are emulated (`jprec.matmul.get`);
        None leaves the program's products as they are.
      grad_product: The same for the products of the backward pass: it rounds the gradient that
        comes back and sums, while the other operand is rounded as `product` says. None for
        `product` itself, but E5M2, whose range gradients need, where `product` multiplies in
        E4M3 (Micikevicius et al., FP8 Formats for Deep Learning, 2022, section 3).
      moments: Dtype in which an optimiser keeps its moments; its arithmetic is float32.
      statistics: Dtype in which norms take means and variances. 16 bits are for studies: a
        float16 variance overflows from |x| = 256 on.
      loss: Dtype that the loss function may hand out; 16 bits are for studies, since such a loss
        loses its digits, and in float16 a scale from 2**16 on is infinite.
      name: What the policy is called in tables.
      rules: Exceptions by path; the first whose pattern is found in the path holds.

    >>> policy = Policy(compute="bf16", rules=(Rule("norm", compute="float32"),))
    >>> print(policy)
    params=float32,compute=bfloat16,output=float32;norm->compute=float32
    >>> policy.for_path("block/norm/scale").compute
    'float32'
    """

    params: str = "float32"
    compute: str = "float32"
    output: str = "float32"
    product: str | None = None
    name: str | None = dataclasses.field(default=None, compare=False)
    rules: tuple[Rule, ...] = ()
    _: dataclasses.KW_ONLY
    grad_product: str | None = None
    moments: str = "float32"
    statistics: str = "float32"
    loss: str = "float32"

    def __post_init__(self) -> None:
        for role in DTYPE_ROLES:
            object.__setattr__(self, role, dtype_name(getattr(self, role), role=role))
        for role in PRODUCT_ROLES:
            if getattr(self, role) is not None:
                _check_product(getattr(self, role), role=role)
        if self.grad_product is not None and self.product is None:
            raise ValueError(
                f"grad_product={self.grad_product!r} without product: the backward products are "
                'those of the forward ones. Name product too; "fp32" changes nothing forward.'
            )
        object.__setattr__(self, "rules", tuple(self.rules))
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise ValueError(
                    f"rules={self.rules!r}: {rule!r} is not a Rule. "
                    'Write Rule("norm", compute="float32").'
                )

    def rule_for(self, path: str) -> Rule | None:
        """The first rule that finds `path`, or None."""
        return next((rule for rule in self.rules if rule.finds(path)), None)

    def for_path(self, path: str) -> "Policy":
        """The policy that holds at `path`: the same without rules."""
        if not self.rules:
            return self
        rule = self.rule_for(path)
        changes: dict[str, Any] = dict(rule.changes) if rule else {}
        return dataclasses.replace(self, rules=(), **changes)

    @property
    def backward_product(self) -> str | None:
        """The arithmetic of the backward products: `grad_product`, or what stands for it."""
        if self.grad_product is not None or self.product is None:
            return self.grad_product
        from jprec import matmul

        spec = matmul.get(self.product)
        if spec.operand_format != "e4m3fn" or spec.products != 1:
            return self.product
        try:
            return str(dataclasses.replace(spec, operand_format="e5m2"))
        except ValueError:  # a device whose sums are not known for E5M2
            return self.product

    @property
    def needs_loss_scale(self) -> bool:
        """Whether gradients pass through a format of a narrower range than float32's."""
        if self.uses("float16", roles=("params", "compute", "loss")):
            return True
        if self.backward_product is None:
            return False
        from jprec import formats, matmul

        operand = formats.get(matmul.get(self.backward_product).operand_format)
        return operand.min_exponent > formats.get("fp32").min_exponent

    def uses(self, dtype: str, *, roles: tuple[str, ...] = ("params", "compute")) -> bool:
        """Whether the policy or one of its rules gives `dtype` to one of `roles`."""
        dtype = dtype_name(dtype, role="dtype")
        parts = (self, *self.rules)
        return any(getattr(part, role, None) == dtype for part in parts for role in roles)

    def __str__(self) -> str:
        roles = [f"{role}={getattr(self, role)}" for role in RULE_ROLES]
        for role in (*PRODUCT_ROLES, *_QUIET):
            if getattr(self, role) != _QUIET.get(role):
                roles.append(f"{role}={getattr(self, role)}")
        return _BETWEEN_RULES.join([",".join(roles), *map(str, self.rules)])


def _roles(text: str, *, whole: str) -> dict[str, str | None]:
    """The roles named in "role=value,role=value"; each at most once."""
    found: dict[str, str | None] = {}
    for part in text.split(","):
        word, equals, value = (piece.strip() for piece in part.partition("="))
        role = SHORT.get(word, word)
        if not equals or not value:
            raise ValueError(
                f"policy {whole!r}: {part.strip()!r} is not role=value. "
                'Write for example "params=float32,compute=bfloat16,output=float32".'
            )
        if role not in ROLES:
            raise ValueError(f"policy {whole!r}: no role {word!r}. {close_to(word, ROLES)}")
        if role in found:
            raise ValueError(f"policy {whole!r}: {role} is given twice. Give it once.")
        found[role] = None if role in PRODUCT_ROLES and value == "none" else value
    return found


def parse(text: str) -> Policy:
    """The policy written as `text`; roles not named are as `Policy` has them by default.

    Reads what `str` of a policy writes, and jmp's "p=f32,c=bf16,o=f32". Rules follow after
    semicolons as "pattern->role=value".

    >>> parse("p=f32,c=bf16,o=f32") == parse("params=float32, compute=bfloat16")
    True
    """
    return read(text, base=Policy())


def read(text: str, *, base: Policy) -> Policy:
    """As `parse`; roles not named are as in `base`."""
    head, *tails = text.split(_BETWEEN_RULES)
    rules = []
    for tail in tails:
        pattern, arrow, roles = tail.rpartition(_ARROW)
        if not arrow:
            raise ValueError(
                f"policy {text!r}: the rule {tail.strip()!r} has no {_ARROW!r}. "
                f'Write for example "norm{_ARROW}compute=float32".'
            )
        ruled = _roles(roles, whole=text)
        for role in ruled:
            if role not in RULE_ROLES:
                raise ValueError(
                    f"policy {text!r}: a rule cannot set {role}, which holds for the whole "
                    f"program. Rules set {', '.join(RULE_ROLES)}."
                )
        rules.append(Rule(pattern.strip(), **ruled))
    changes: dict[str, Any] = {"rules": tuple(rules), "name": None}
    if head.strip() or not tails:
        changes |= _roles(head, whole=text)
    return dataclasses.replace(base, **changes)
