"""Which machine: peak rates and tensor-core arithmetic, each fact with its source."""

from jprec.hardware.catalogue import SOURCES, get, names
from jprec.hardware.description import FP8_NAMES, Bandwidth, Device, Rate, Status, TensorCore

__all__ = [
    "FP8_NAMES",
    "SOURCES",
    "Bandwidth",
    "Device",
    "Rate",
    "Status",
    "TensorCore",
    "get",
    "names",
]
