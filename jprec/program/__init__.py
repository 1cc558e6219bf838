"""A JAX program as data: described, counted, watched, shadowed, rewritten in other arithmetic."""

from jprec.program.counting import ProductCheck, check_products
from jprec.program.description import Product, products
from jprec.program.emulation import emulate
from jprec.program.explicit_rounding import round_explicitly
from jprec.program.operations import Operation, operations
from jprec.program.rewriting import Rule, rewrite
from jprec.program.shadowing import OperationError, Shadow, shadow
from jprec.program.sources import is_users, names
from jprec.program.watching import watch_products

__all__ = [
    "Operation",
    "OperationError",
    "Product",
    "ProductCheck",
    "Rule",
    "Shadow",
    "check_products",
    "emulate",
    "is_users",
    "names",
    "operations",
    "products",
    "rewrite",
    "round_explicitly",
    "shadow",
    "watch_products",
]
