"""A policy in a Flax model: given without editing it, verified, and described."""

from jprec.nn.apply import apply, policy_of
from jprec.nn.describe import Description, Row, describe
from jprec.nn.scopes import scope_path, scoped, unscoped
from jprec.nn.variables import (
    check_given_once,
    dtype_of_variable,
    is_module,
    is_object,
    is_variable,
    put_together,
    renew,
    renew_all,
    split,
    states_in,
    take_apart,
    unless_skipped,
)

__all__ = [
    "Description",
    "Row",
    "apply",
    "check_given_once",
    "describe",
    "dtype_of_variable",
    "is_module",
    "is_object",
    "is_variable",
    "policy_of",
    "put_together",
    "renew",
    "renew_all",
    "scope_path",
    "scoped",
    "split",
    "states_in",
    "take_apart",
    "unless_skipped",
    "unscoped",
]
