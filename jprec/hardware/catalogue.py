"""The machines that jprec knows, each fact with its source."""

import difflib

from jprec.hardware.description import Bandwidth, Device, Rate, TensorCore

#: Sources by the letters by which they are cited.
SOURCES = {
    "KM": 'Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv:2512.07004v2',
    "MS": '"MMA-Sim", arXiv:2511.10909v2, and its code, release 2.1.1',
    "GPU": "outputs of the device in north-numerical-computing/MATLAB-tensor-core at b12b5a7, "
    "model_validation; tests/matmul compares bit for bit",
}
_KM_MS_GPU = "KM table II, MS tables 4-5; reproduces the recorded outputs (GPU) bit for bit"
_KM_MS_K4 = "KM table II, MS tables 4-5; the recorded outputs (GPU) sum only 4 products, and agree"
_KM_MS = "KM table II, MS tables 4-5; no recorded outputs"
_T4 = (
    "MS tables 4-5; the examples of Fasi et al., PeerJ Computer Science 7:e330, 2021, agree. The "
    "instruction m8n8k4 adds as on V100 (MS, code)"
)
# Of FP8 by mma.sync, MS has one block of 32 on Hopper, which the recorded outputs contradict. The
# least exponent is assumed to be that of FP16 operands, whose hardware does it.
_KM_FIGURE_GPU = "KM figure 5c; reproduces the recorded outputs (GPU) bit for bit"
_KM_FIGURE = (
    "KM figure 5c; no recorded outputs, but those of B200 in FP32 and of H100 in FP16 agree"
)
_WGMMA_FP8 = (
    "KM table II, MS tables 4-5; reproduces the recorded outputs (GPU), which start from 0, bit "
    "for bit"
)
_TCGEN05 = "MS tables 4-5 for tcgen05; recorded outputs (GPU), which are of mma.sync, agree"
_TCGEN05_FP8 = "MS tables 4-5; deepseek-ai/DeepGEMM issue 176 also counts 25 bits; no outputs"

_V100_SHEET = "NVIDIA V100 data sheet, SXM2"
_T4_SHEET = "NVIDIA T4 data sheet"
_A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet, SXM, dense"
_A100_MEMORY = "NVIDIA A100 Tensor Core GPU data sheet, SXM with 80 GB (40 GB: 1.555)"
_L40S_SHEET = "NVIDIA L40S data sheet, dense"
_H100_SHEET = "NVIDIA H100 white paper, SXM5, dense, as tabulated by G. Lockwood, H100, 2024"
_H200_NOTE = "same processor as H100 SXM5, other memory; G. Lockwood, H100, 2024"
_B200_NOTE = "HGX B200 at 1000 W, dense, as tabulated by G. Lockwood, B200, 2025"

# Output format -> the least exponent of alignment, read off the code of MS. It shows only where all
# terms are tiny, for FP8 with FP32 output never.
_VOLTA = {"fp32": -131, "fp16": -19}
_TURING_TO_ADA = {"fp32": -132, "fp16": -20}
_HOPPER_ON = {"fp32": -133, "fp16": -21}


def _cores(
    input_formats: str,
    products: int,
    fraction_bits: int,
    least: dict[str, int],
    *,
    fp32_sums: str = "fp32",
    interleaved: bool = False,
    **sources: str,
) -> tuple[TensorCore, ...]:
    """The blocks of some input formats that differ in nothing else.

    Args:
      input_formats: Their names, with spaces between.
      products: As in TensorCore, like `fraction_bits` and `interleaved`.
      fraction_bits: Likewise.
      least: Output format -> least exponent of alignment.
      fp32_sums: Format to which sums are rounded for FP32 output.
      interleaved: As in TensorCore.
      **sources: Output format -> where this is known from, for each output that there is.
    """
    return tuple(
        TensorCore(
            input_format=input_format,
            output_format=output_format,
            products=products,
            fraction_bits=fraction_bits,
            min_exponent=least[output_format],
            sum_format=fp32_sums if output_format == "fp32" else output_format,
            interleaved=interleaved,
            status="measured",
            source=source,
        )
        for input_format in input_formats.split()
        for output_format, source in sources.items()
    )


def _bandwidth(terabytes: float, source: str) -> Bandwidth:
    return Bandwidth(terabytes=terabytes, status="documented", source=source)


def _rates(source: str, **teraflops: float) -> tuple[Rate, ...]:
    return tuple(
        Rate(format=fmt, teraflops=value, status="documented", source=source)
        for fmt, value in teraflops.items()
    )


_AMPERE_CORES = (
    *_cores("fp16", 8, 24, _TURING_TO_ADA, fp32=_KM_MS_GPU, fp16=_KM_MS_GPU),
    *_cores("bf16", 8, 24, _TURING_TO_ADA, fp32=_KM_MS_GPU),
    *_cores("tf32", 4, 24, _TURING_TO_ADA, fp32=_KM_MS_GPU),
)
_HOPPER_CORES = (
    *_cores("fp16", 16, 25, _HOPPER_ON, fp32=_KM_MS_GPU, fp16=_KM_MS_GPU),
    *_cores("bf16", 16, 25, _HOPPER_ON, fp32=_KM_MS_GPU),
    *_cores("tf32", 8, 25, _HOPPER_ON, fp32=_KM_MS_K4),
)
#: wgmma with FP8 operands. Of FP32 sums 13 bits of mantissa are kept; "about 14 bits" in the report
#: on DeepSeek-V3, arXiv:2412.19437, section 3.5.2, is these and the leading one.
_WGMMA_FP8_CORES = _cores(
    "e4m3fn e5m2", 32, 13, _HOPPER_ON, fp32_sums="e8m13", fp32=_WGMMA_FP8, fp16=_KM_MS
)

_FP8 = ("e4m3fn", "e5m2")
_HOPPER = {"fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4}
_HOPPER |= dict.fromkeys(_FP8, 1978.9)
_BLACKWELL = {"fp32": 80.0, "tf32": 1100.0, "fp16": 2250.0, "bf16": 2250.0}
_BLACKWELL |= dict.fromkeys(_FP8, 4500.0)

_DEVICES = {
    device.name: device
    for device in (
        Device(
            name="v100",
            title="NVIDIA V100",
            architecture="Volta",
            rates=_rates(_V100_SHEET, fp32=15.7, fp16=125.0),
            bandwidth=_bandwidth(0.9, _V100_SHEET),
            tensor_cores=_cores("fp16", 4, 23, _VOLTA, fp32=_KM_MS_GPU, fp16=_KM_MS_GPU),
        ),
        Device(
            name="t4",
            title="NVIDIA T4",
            architecture="Turing",
            rates=_rates(_T4_SHEET, fp32=8.1, fp16=65.0),
            bandwidth=_bandwidth(0.32, _T4_SHEET),
            tensor_cores=_cores("fp16", 8, 24, _TURING_TO_ADA, fp32=_T4, fp16=_T4),
        ),
        Device(
            name="a100",
            title="NVIDIA A100 SXM",
            architecture="Ampere",
            rates=_rates(_A100_SHEET, fp32=19.5, tf32=156.0, fp16=312.0, bf16=312.0),
            bandwidth=_bandwidth(2.039, _A100_MEMORY),
            tensor_cores=_AMPERE_CORES,
        ),
        Device(
            name="ada",
            title="NVIDIA RTX 1000 Ada, L40S",
            architecture="Ada",
            rates=_rates(
                _L40S_SHEET,
                fp32=91.6,
                tf32=183.0,
                fp16=362.05,
                bf16=362.05,
                e4m3fn=733.0,
                e5m2=733.0,
            ),
            bandwidth=_bandwidth(0.864, _L40S_SHEET),
            tensor_cores=(
                *_AMPERE_CORES,
                *_cores(
                    "e4m3fn e5m2",
                    16,
                    13,
                    _TURING_TO_ADA,
                    fp32_sums="e8m13",
                    fp32=_KM_MS_GPU,
                    fp16=_KM_MS_GPU,
                ),
            ),
        ),
        Device(
            name="h100",
            title="NVIDIA H100 SXM, FP8 by wgmma",
            architecture="Hopper",
            rates=_rates(_H100_SHEET, **_HOPPER),
            bandwidth=_bandwidth(3.35, _H100_SHEET),
            tensor_cores=(*_HOPPER_CORES, *_WGMMA_FP8_CORES),
        ),
        Device(
            name="h100_mma",
            title="NVIDIA H100 SXM, FP8 by mma.sync",
            architecture="Hopper",
            rates=(),
            bandwidth=_bandwidth(3.35, _H100_SHEET),
            tensor_cores=(
                *_HOPPER_CORES,
                *_cores(
                    "e4m3fn e5m2",
                    16,
                    25,
                    _HOPPER_ON,
                    interleaved=True,
                    fp32=_KM_FIGURE,
                    fp16=_KM_FIGURE_GPU,
                ),
            ),
        ),
        Device(
            name="h200",
            title="NVIDIA H200 SXM, FP8 by wgmma",
            architecture="Hopper",
            rates=_rates(_H200_NOTE, **_HOPPER),
            bandwidth=_bandwidth(4.8, _H200_NOTE),
            tensor_cores=(*_HOPPER_CORES, *_WGMMA_FP8_CORES),
        ),
        Device(
            name="b200",
            title="NVIDIA B200, by tcgen05",
            architecture="Blackwell",
            rates=_rates(_B200_NOTE, **_BLACKWELL),
            bandwidth=_bandwidth(8.0, _B200_NOTE),
            tensor_cores=(
                *_cores("fp16", 16, 25, _HOPPER_ON, fp32=_TCGEN05, fp16=_TCGEN05),
                *_cores("bf16", 16, 25, _HOPPER_ON, fp32=_TCGEN05),
                *_cores("tf32", 8, 25, _HOPPER_ON, fp32=_KM_MS_K4),
                *_cores("e4m3fn e5m2", 32, 25, _HOPPER_ON, fp32=_TCGEN05_FP8, fp16=_TCGEN05_FP8),
            ),
        ),
        Device(
            name="b200_mma",
            title="NVIDIA B200, by mma.sync",
            architecture="Blackwell",
            rates=(),
            bandwidth=_bandwidth(8.0, _B200_NOTE),
            tensor_cores=(
                *_HOPPER_CORES,
                *_cores(
                    "e4m3fn e5m2",
                    16,
                    25,
                    _HOPPER_ON,
                    interleaved=True,
                    fp32=_KM_FIGURE_GPU,
                    fp16=_KM_FIGURE_GPU,
                ),
            ),
        ),
    )
}

#: Other names of devices: the same processor, or one that adds in the same way.
_SYNONYMS = {"l40s": "ada", "h200_mma": "h100_mma"}


def names() -> tuple[str, ...]:
    """The names of the known devices, oldest first."""
    return tuple(_DEVICES)


def get(device: str | Device) -> Device:
    """The device of that name; a Device is returned as it is.

    FP8 products of one GPU depend on the instruction. "h100" and "h200" stand for wgmma, which
    cuBLAS uses, "b200" for tcgen05; "h100_mma" ("h200_mma" is the same) and "b200_mma" for
    mma.sync, which is done there by FP16 hardware. "l40s" is "ada".

    >>> get("a100").rate("tf32").teraflops
    156.0
    >>> [get(name).tensor_core("fp8_e4m3").fraction_bits for name in ("l40s", "h100", "h100_mma")]
    [13, 13, 25]
    """
    if isinstance(device, Device):
        return device
    name = _SYNONYMS.get(device.lower(), device.lower())
    if name in _DEVICES:
        return _DEVICES[name]
    close = difflib.get_close_matches(device.lower(), [*_DEVICES, *_SYNONYMS], n=2)
    raise ValueError(
        f"unknown device {device!r}; "
        + (f"did you mean {' or '.join(close)}? " if close else "")
        + f"Known: {', '.join(_DEVICES)}."
    )
