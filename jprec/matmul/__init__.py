"""How products are summed: operand rounding, and the tensor cores of devices, emulated."""

from jprec.matmul.bounds import Bound, error_bound, probabilistic_bound
from jprec.matmul.chain_oracle import chain_exact
from jprec.matmul.comparison import QUANTILES, Comparison, compare
from jprec.matmul.convolution import conv_general_dilated
from jprec.matmul.device import tensor_core_dot
from jprec.matmul.oracle import tensor_core_dot_exact
from jprec.matmul.oracle_int64 import tensor_core_dot_int64
from jprec.matmul.products import DimensionNumbers, dot_general, matmul
from jprec.matmul.spec import MatmulSpec, get, names

__all__ = [
    "QUANTILES",
    "Bound",
    "Comparison",
    "DimensionNumbers",
    "MatmulSpec",
    "chain_exact",
    "compare",
    "conv_general_dilated",
    "dot_general",
    "error_bound",
    "get",
    "matmul",
    "names",
    "probabilistic_bound",
    "tensor_core_dot",
    "tensor_core_dot_exact",
    "tensor_core_dot_int64",
]
