"""One mixed-precision step: value and gradient in a policy's formats."""

from jprec.train.cast import cast
from jprec.train.value_and_grad import value_and_grad

__all__ = ["cast", "value_and_grad"]
