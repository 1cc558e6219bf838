"""Versions, devices and flags: what a result may depend on."""

import importlib.metadata
import os
import platform
import sys
from typing import Any

import jax

#: Environment variables that change arithmetic or compilation.
VARIABLES = ("XLA_FLAGS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "NVIDIA_TF32_OVERRIDE")

PACKAGES = ("jprec", "jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes")


def environment() -> dict[str, Any]:
    """Versions, backend, devices, processor and flags of this process, ready for JSON."""
    devices = jax.devices()
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "backend": jax.default_backend(),
        "devices": sorted({d.device_kind for d in devices}),
        "device_count": len(devices),
        "machine": platform.machine(),
        "processor": _processor(),
        "system": platform.system(),
        "x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "default_matmul_precision": str(
            jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        ),
        "flags": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        module = sys.modules.get(package)
        return str(getattr(module, "__version__", "not installed"))


def _processor() -> str:
    """The processor's model: two models may compile the same program to other instructions."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
