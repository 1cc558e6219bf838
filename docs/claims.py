"""The claims of docs/claims.md: what is said, and what calculation and experiments say of it.

A claim that a calculation decides has its evidence here; of all others the findings of the
experiments' records are shown. A new experiment that names a claim appears by itself.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

from jprec import formats, records

EXPERIMENTS = Path(__file__).parents[1] / "experiments"

#: Number -> the claim in our words. A and B are two essays by practitioners, on why TF32 and AMP
#: training converge and on formats and mixed precision; M is Micikevicius et al., Mixed Precision
#: Training, 2017 (arXiv:1710.03740v3), by section.
CLAIMS = {
    "A1": "TF32 and AMP speed training up much and keep its accuracy.",
    "A2": "TF32 and FP32 training differ in the data type alone.",
    "A3": "IEEE 754 has four kinds of numbers: single, double, extended single, extended double.",
    "A4": "FP32: 1 sign bit, 8 exponent bits, 23 fraction bits.",
    "A5": "The exponent runs from −127 to 128; the bias of n exponent bits is 2^(n−1) − 1.",
    "A7": "11.25 = 1.01101₂ × 2³ is 0 10000010 01101000000000000000000.",
    "A8": "Subnormal numbers avoid sudden underflow.",
    "A9": "FP32 reaches from 1.4e-45 to 3.4e38 with 7 digits; TF32 has the same range and 7 "
    "digits; "
    "FP16 reaches from 5.96e+8 to 65504 with 4 digits.",
    "A10": "TF32 cuts precision and keeps the range, and for training the range matters more.",
    "A11": "Many gradients of the SSD network become zero in FP16, and training does not converge.",
    "A12": "A list of PyTorch's operations that TF32 concerns.",
    "A13": "Inputs are rounded to TF32, products are summed in FP32; precision is lost in the "
    "rounding "
    "before the product alone.",
    "B1": "FP16: 1, 5 and 10 bits; exponents −14 to 15 give the intervals [2^k, 2^(k+1)).",
    "B2": "The fraction divides each interval into 2^10 parts.",
    "B3": "Small numbers are represented finely, large ones coarsely.",
    "B4": "43008.111 becomes 43008 in FP16; the next number is 43040; up to 43024 gives 43008.",
    "B5": "1.111328125 is exact in FP16: 0 01111 0001110010.",
    "B6": "The fraction of FP32 divides each interval into 2^24 parts.",
    "B7": "BF16 has FP32's range and the lowest precision of the three.",
    "B8": "Range: FP32 and BF16 largest. Precision: FP32 > FP16 > BF16. FP16 and BF16 take half of "
    "FP32's memory.",
    "B9": "FP16 overflows when the loss is propagated back; BF16's error in the update is large.",
    "B10": "Most chips run FP16 faster than FP32.",
    "B11": "With a small gradient weight + update is lost in FP16; FP32 master weights keep it.",
    "B12": "Small losses make gradients underflow; multiply by 32, 64, 128, and divide before the "
    "update.",
    "B13": "Multiply in FP16, add in FP32.",
    "B14": "FP16 serves speed and memory; FP32 removes rounding errors.",
    "B15": "FP16 parameters and gradients save on the dynamic part of training memory.",
    "M3.1": "FP32 master weights: updates below 2^-24 become zero, and those 2048 times smaller "
    "than the "
    "weight are lost.",
    "M3.2": "Loss scaling: a scale of 8 to 32768; S times the largest gradient stays below "
    "65504; a large "
    "scale has no other downside than overflow.",
    "M3.3": "FP16 products are summed in FP32.",
    "M5": "A scale could be found dynamically.",
    "SD2021": "One bit changed in one initial weight gives run-to-run variability as large as "
    "other "
    "sources of noise do.",
}


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One verdict on one claim, with its sentence and where it comes from, as Markdown."""

    verdict: str
    sentence: str
    source: str


_PAGE = "[calculation](ieee754.md)"


def _bits(value: float, fmt: str) -> str:
    return formats.explain(value, fmt).bits


def _said(is_right: bool, sentence: str, *, otherwise: str = "corrected") -> Evidence:
    return Evidence("confirmed" if is_right else otherwise, sentence, _PAGE)


def _a4() -> Evidence:
    fp32 = formats.get("fp32")
    return _said(
        (fp32.exponent_bits, fp32.mantissa_bits) == (8, 23),
        f"1, {fp32.exponent_bits} and {fp32.mantissa_bits} bits.",
    )


def _a5() -> Evidence:
    fp32 = formats.get("fp32")
    return _said(
        (fp32.min_exponent, fp32.max_exponent) == (-127, 128),
        f"Of normal numbers from {fp32.min_exponent} to {fp32.max_exponent}; the fields of all "
        "zeros "
        f"and all ones are subnormal numbers and infinity or NaN. The bias is {fp32.bias}, as "
        "said.",
    )


def _a7() -> Evidence:
    return _said(
        _bits(11.25, "fp32") == "0 10000010 01101000000000000000000", f"{_bits(11.25, 'fp32')}."
    )


def _a8() -> Evidence:
    fp16 = formats.get("fp16")
    # The difference of neighbours just above the smallest normal number is representable.
    above = fp16.min_normal + fp16.min_subnormal
    exact = formats.round_exact(above - fp16.min_normal, "fp16")
    return _said(
        exact == above - fp16.min_normal != 0,
        f"Neighbours at FP16's smallest normal number differ by {float(exact):.3g}, a subnormal "
        "number; "
        "without them the difference would be zero.",
    )


def _a9() -> Evidence:
    tf32, fp16, fp32 = (formats.get(name) for name in ("tf32", "fp16", "fp32"))
    digits = {f.name: f.precision * math.log10(2) for f in (tf32, fp16, fp32)}
    return _said(
        digits["tf32"] > 6.5,
        f"TF32: {digits['tf32']:.1f} digits, as FP16, and not {digits['fp32']:.1f}; its largest "
        "number is "
        f"{float(tf32.max):.5g}, its smallest {float(tf32.min_subnormal):.3g} (FP32: "
        f"{float(fp32.min_subnormal):.2g}). FP16's smallest number is "
        f"{float(fp16.min_subnormal):.3g}: "
        "5.96e+8 has lost its sign.",
    )


def _b1() -> Evidence:
    fp16 = formats.get("fp16")
    return _said(
        (fp16.exponent_bits, fp16.mantissa_bits, fp16.min_exponent, fp16.max_exponent)
        == (5, 10, -14, 15),
        f"{fp16.exponent_bits} and {fp16.mantissa_bits} bits, exponents {fp16.min_exponent} to "
        f"{fp16.max_exponent}.",
    )


def _b2() -> Evidence:
    values = formats.values("fp16")
    inside = int(((values >= 1) & (values < 2)).sum())
    return _said(inside == 2**10, f"{inside} numbers from 1 to below 2.")


def _b3() -> Evidence:
    small, large = (float(formats.explain(x, "fp16").spacing) for x in (1.0, 43008.0))
    return _said(
        small < large,
        f"Neighbours differ by {small:.3g} at 1 and by {large:.3g} at 43008. Relative to the "
        "number "
        "the spacing stays within a factor of 2; only subnormal numbers are coarser.",
    )


def _b4() -> Evidence:
    got = [float(formats.round_exact(x, "fp16")) for x in (43008.111, 43024, 43024.001)]
    return _said(
        got == [43008.0, 43008.0, 43040.0],
        "43008.111 gives 43008, the tie 43024 goes to the even significand, 43008, and what is "
        "above "
        "to 43040. The tie of the next interval, 43056, goes up to 43072.",
    )


def _b5() -> Evidence:
    return _said(
        _bits(1.111328125, "fp16") == "0 01111 0001110010", f"{_bits(1.111328125, 'fp16')}, exact."
    )


def _b6() -> Evidence:
    parts = round(1 / float(formats.explain(1.0, "fp32").spacing))
    return _said(
        parts == 2**24,
        f"Into 2^{parts.bit_length() - 1} parts; whole numbers are exact up to 2^24, which may "
        "be where "
        "the number comes from.",
    )


def _b7() -> Evidence:
    bf16, fp16, fp32 = (formats.get(name) for name in ("bf16", "fp16", "fp32"))
    return _said(
        bf16.max_exponent == fp32.max_exponent and bf16.precision < fp16.precision < fp32.precision,
        f"Exponents to {bf16.max_exponent}, as FP32's; {bf16.precision}, {fp16.precision} and "
        f"{fp32.precision} bits of precision.",
    )


#: Number -> what a calculation says.
CALCULATED: dict[str, Callable[[], Evidence]] = {
    "A3": lambda: Evidence(
        "corrected",
        "That was the edition of 1985. The edition of 2019 has binary16, 32, 64, 128 and wider, "
        "and three "
        "decimal formats; extended formats are recommendations.",
        "IEEE 754-2019, sections 3.2 to 3.7",
    ),
    "A4": _a4,
    "A5": _a5,
    "A7": _a7,
    "A8": _a8,
    "A9": _a9,
    "A12": lambda: Evidence(
        "corrected",
        "Since PyTorch 1.12 products of matrices run in FP32 by default, and of the list "
        "convolutions "
        "and cuDNN's GRU and LSTM alone in TF32; in JAX all that multiplies does. Each operation "
        "is "
        "taken apart on the page; defaults by documentation, products by traced programs.",
        "[tf32_operations.md](tf32_operations.md)",
    ),
    "B1": _b1,
    "B2": _b2,
    "B3": _b3,
    "B4": _b4,
    "B5": _b5,
    "B6": _b6,
    "B7": _b7,
    "B10": lambda: Evidence(
        "needs a GPU",
        "Peak rates, with sources, are in the table of devices.",
        "[products.md](products.md)",
    ),
}

HEAD = ("claim", "what is said", "verdict", "evidence")


def experiments() -> dict[str, dict]:
    """Name -> record of every experiment that has run in full."""
    found = {}
    for file in sorted(EXPERIMENTS.glob("*/results/results.json")):
        record = records.read_json(file)
        if "findings" in record and not record["small"]:
            found[record["experiment"]] = record
    return found


def evidence() -> dict[str, list[Evidence]]:
    """Number of each claim -> all that is known of it."""
    found: dict[str, list[Evidence]] = {claim: [] for claim in CLAIMS}
    for claim, calculate in CALCULATED.items():
        found[claim].append(calculate())
    for name, record in experiments().items():
        link = f"[{name}](../experiments/{name}/README.md)"
        for one in record["findings"]:
            found.setdefault(one["claim"], []).append(
                Evidence(one["verdict"], one["sentence"], link)
            )
    return found


def rows() -> list[list[str]]:
    """The table of all claims; a claim has a line for each piece of evidence."""
    lines = []
    for claim, pieces in evidence().items():
        said = CLAIMS.get(claim, "")
        for piece in pieces or [Evidence("not tried yet", "", "")]:
            sentence = piece.sentence.replace("|", "\\|")
            lines.append([claim, said, piece.verdict, f"{sentence} {piece.source}".strip()])
            claim, said = "", ""
    return lines


def index() -> list[list[str]]:
    """One row an experiment: picture, question, verdicts."""
    found = []
    for name, record in experiments().items():
        pictures = sorted((EXPERIMENTS / name / "results").glob("*.svg"))
        picture = (
            f'<img src="../experiments/{name}/results/{pictures[0].name}" width="420">'
            if pictures
            else ""
        )
        verdicts = "<br>".join(f"{f['claim']}: {f['verdict']}" for f in record["findings"])
        found.append(
            [
                f"[{name}](../experiments/{name}/README.md)<br>{record['question']}<br>"
                f"*{record['where']}, {record['seconds']:.0f} s*",
                picture,
                verdicts,
            ]
        )
    return found
