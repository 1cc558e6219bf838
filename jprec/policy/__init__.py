"""Which tensor and which operation use which format? Policies, written, read and looked up."""

from jprec.policy.paths import leaf_path
from jprec.policy.policy import Policy, Rule, parse
from jprec.policy.recipes import get, names
from jprec.policy.review import Remark, review
from jprec.policy.spelling import close_to

__all__ = [
    "Policy",
    "Remark",
    "Rule",
    "close_to",
    "get",
    "leaf_path",
    "names",
    "parse",
    "review",
]
