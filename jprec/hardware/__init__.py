"""Which machine: peak rates and tensor-core arithmetic, each fact with its source."""

from jprec.hardware.catalogue import get, names
from jprec.hardware.description import Device, Rate, Status, TensorCore

__all__ = ["Device", "Rate", "Status", "TensorCore", "get", "names"]
