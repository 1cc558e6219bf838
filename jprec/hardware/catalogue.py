"""The machines that jprec knows, each fact with its source."""

import difflib

from jprec.hardware.description import Device, Rate, TensorCore

# Sources, as they are cited below.
# KM: Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv:2512.07004v2, table II.
# MS: "MMA-Sim", arXiv:2511.10909v2, tables 4 and 5, and its code, release 2.1.1.
# GPU: outputs of that device in north-numerical-computing/MATLAB-tensor-core at b12b5a7, folder
#   model_validation; tests/matmul compares with them bit for bit.
_KM_MS_GPU = "KM table II, MS tables 4-5; reproduces the recorded outputs (GPU) bit for bit"
_KM_MS = "KM table II, MS tables 4-5; the recorded outputs (GPU) sum only 4 products, and agree"

_A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet, SXM, dense"
_H100_SHEET = "NVIDIA H100 white paper, SXM5, dense, as tabulated by G. Lockwood, H100, 2024"
_H200_NOTE = "same processor as H100 SXM5, other memory; G. Lockwood, H100, 2024"


def _cores(
    fraction_bits: int,
    products: dict[str, int],
    *,
    unproven: tuple[str, ...] = (),
) -> tuple[TensorCore, ...]:
    """The blocks of one architecture, whose formats differ in the number of products only.

    The least exponent of alignment is read off the code of MS: -108 - `fraction_bits` for FP32
    output, 4 - `fraction_bits` for FP16 output. It shows only where all terms are tiny.
    """
    cores = []
    for input_format, count in products.items():
        outputs = {"fp32": -108 - fraction_bits}
        if input_format == "fp16":
            outputs["fp16"] = 4 - fraction_bits
        for output_format, min_exponent in outputs.items():
            cores.append(
                TensorCore(
                    input_format=input_format,
                    output_format=output_format,
                    products=count,
                    fraction_bits=fraction_bits,
                    min_exponent=min_exponent,
                    status="measured",
                    source=_KM_MS if input_format in unproven else _KM_MS_GPU,
                )
            )
    return tuple(cores)


def _rates(source: str, **teraflops: float) -> tuple[Rate, ...]:
    return tuple(
        Rate(format=fmt, teraflops=value, status="documented", source=source)
        for fmt, value in teraflops.items()
    )


_DEVICES = {
    device.name: device
    for device in (
        Device(
            name="v100",
            title="NVIDIA V100",
            architecture="Volta",
            rates=(),
            tensor_cores=_cores(23, {"fp16": 4}),
        ),
        Device(
            name="a100",
            title="NVIDIA A100 SXM",
            architecture="Ampere",
            rates=_rates(_A100_SHEET, fp32=19.5, tf32=156.0, fp16=312.0, bf16=312.0),
            tensor_cores=_cores(24, {"fp16": 8, "bf16": 8, "tf32": 4}),
        ),
        Device(
            name="ada",
            title="NVIDIA RTX 1000 Ada, L40S",
            architecture="Ada",
            rates=(),
            tensor_cores=_cores(24, {"fp16": 8, "bf16": 8, "tf32": 4}),
        ),
        Device(
            name="h100",
            title="NVIDIA H100 SXM",
            architecture="Hopper",
            rates=_rates(_H100_SHEET, fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4),
            tensor_cores=_cores(25, {"fp16": 16, "bf16": 16, "tf32": 8}, unproven=("tf32",)),
        ),
        Device(
            name="h200",
            title="NVIDIA H200 SXM",
            architecture="Hopper",
            rates=_rates(_H200_NOTE, fp32=66.9, tf32=494.7, fp16=989.4, bf16=989.4),
            tensor_cores=_cores(25, {"fp16": 16, "bf16": 16, "tf32": 8}, unproven=("tf32",)),
        ),
        Device(
            name="b200",
            title="NVIDIA B200",
            architecture="Blackwell",
            rates=(),
            tensor_cores=_cores(25, {"fp16": 16, "bf16": 16, "tf32": 8}, unproven=("tf32",)),
        ),
    )
}


def names() -> tuple[str, ...]:
    """The names of the known devices, oldest first."""
    return tuple(_DEVICES)


def get(device: str | Device) -> Device:
    """The device of that name; a Device is returned as it is.

    >>> get("a100").rate("tf32").teraflops
    156.0
    """
    if isinstance(device, Device):
        return device
    if device in _DEVICES:
        return _DEVICES[device]
    close = difflib.get_close_matches(device.lower(), _DEVICES, n=2)
    raise ValueError(
        f"unknown device {device!r}; "
        + (f"did you mean {' or '.join(close)}? " if close else "")
        + f"Known: {', '.join(_DEVICES)}."
    )
