"""How long products take at best: the roofline of the device's peak rate and bandwidth."""

import dataclasses
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import jax.numpy as jnp

from jprec.doctor.request import Target

if TYPE_CHECKING:
    from jprec.doctor.audit import Operation

#: Arithmetics that run another format's instructions, and how often.
_SPLIT = re.compile(r"(tf32|bf16|fp16)x(\d)")
_RATED_AS = {"fp16_acc16": "fp16", "fp8": "e4m3fn", "fp8_e4m3": "e4m3fn", "fp8_e5m2": "e5m2"}

#: A complex product is four real ones.
_COMPLEX = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """Lower bounds of the time that all products take together, in seconds.

    Each product takes the longer of two times: its operations at the peak rate of its arithmetic,
    and its operands and result, each moved once, at the peak bandwidth. Nothing is fused, and what
    is no product takes no time. An undetermined product counts as its slowest possibility.

    Attributes:
      now: As the program stands; None where no product has a rate.
      fp32: Every product of FP32 operands in FP32.
      tf32: In TF32.
      bf16: In BF16, with operands and result stored in BF16.
      counted: How many products have a rate with a source, and are counted in `now`.
      uncounted: How many have none.
      sources: Who says how fast the device is.
    """

    now: float | None
    fp32: float | None
    tf32: float | None
    bf16: float | None
    counted: int
    uncounted: int
    sources: tuple[str, ...]


def seconds(
    operation: "Operation", target: Target, runs_as: str, *, itemsize: int | None = None
) -> float | None:
    """The roofline time of one operation in an arithmetic; None without rate or bandwidth.

    Args:
      operation: The operation; all its trips count.
      target: The device.
      runs_as: The arithmetic.
      itemsize: Bytes of each element of operands and result, where not those of their dtypes.
    """
    device = target.device
    rate = _rate(target, runs_as)
    if device is None or device.bandwidth is None or rate is None:
        return None
    is_complex = any("complex" in dtype for dtype in operation.operand_dtypes)
    arithmetic = operation.flops * (_COMPLEX if is_complex else 1) / rate
    moved = operation.bytes if itemsize is None else operation.elements * itemsize
    return max(arithmetic, moved / (device.bandwidth.terabytes * 1e12))


def _rate(target: Target, runs_as: str) -> float | None:
    """Operations per second; None where no figure with a source is known."""
    split = _SPLIT.fullmatch(runs_as)
    base, passes = (split[1], int(split[2])) if split else (_RATED_AS.get(runs_as, runs_as), 1)
    rates = target.device.rates if target.device else ()
    found = next((rate.teraflops for rate in rates if rate.format == base), None)
    return None if found is None else found * 1e12 / passes


def slowest(operation: "Operation") -> str:
    """The arithmetic to count an operation as: its own, or the slowest that remains possible."""
    return operation.may_be[-1] if operation.may_be else operation.runs_as


def roofline(operations: Iterable["Operation"], target: Target) -> Roofline:
    """The times of all operations, now and with their FP32 products in other formats."""
    operations = tuple(operations)
    device = target.device
    now = [seconds(operation, target, slowest(operation)) for operation in operations]
    sources = [] if device is None else [rate.source for rate in device.rates]
    if device is not None and device.bandwidth is not None:
        sources.append(device.bandwidth.source)
    return Roofline(
        now=_sum(now),
        fp32=_switched(operations, now, target, "fp32"),
        tf32=_switched(operations, now, target, "tf32"),
        bf16=_switched(operations, now, target, "bf16"),
        counted=sum(time is not None for time in now),
        uncounted=sum(time is None for time in now),
        sources=tuple(dict.fromkeys(sources)),
    )


def _switched(
    operations: tuple["Operation", ...], now: list[float | None], target: Target, to: str
) -> float | None:
    """The total with every product of FP32 operands run as `to`; None where that has no rate."""
    if _rate(target, to) is None:
        return None

    def size(operation: "Operation") -> int | None:
        if to != "bf16":
            return None
        return 4 if "complex64" in operation.operand_dtypes else 2  # both parts of a number

    return _sum(
        seconds(operation, target, to, itemsize=size(operation))
        if operation.is_single and time is not None
        else time
        for operation, time in zip(operations, now, strict=True)
    )


def _sum(times: Iterable[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return math.fsum(known) if known else None


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return int(jnp.dtype(dtype).itemsize)
