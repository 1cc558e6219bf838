"""jprec: a laboratory for floating-point precision in JAX.

Names are loaded when they are first used (PEP 562), so that `import jprec.report` does not
import JAX.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_ROOMS = (
    "cli",
    "doctor",
    "formats",
    "hardware",
    "matmul",
    "nn",
    "optim",
    "policy",
    "program",
    "records",
    "report",
    "rounding",
    "stats",
    "study",
    "train",
    "workloads",
)

#: Public name -> the room that holds it.
_NAMES = {
    "Policy": "policy",
    "audit": "doctor",
    "emulate": "program",
    "value_and_grad": "train",
    "Workload": "workloads",
    "Setting": "study",
    "Arm": "study",
    "Study": "study",
}

__all__ = ["__version__", *_NAMES, *_ROOMS]


def __getattr__(name: str) -> Any:
    """The room or public name `name`, imported now."""
    if name in _ROOMS:
        return importlib.import_module(f"jprec.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"jprec.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'jprec' has no attribute {name!r}; it has {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted(__all__)
