"""Sums of products in every accumulator: error against length, bias of truncation, bounds.

    python experiments/accumulators/run.py [--small] [--rebuild]

Writes results/results.json, the figures beside it and the tables of README.md. All of it is
emulated and runs anywhere, in a few minutes of one core.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jprec import formats, hardware, matmul, records, report, rounding
from jprec.report import Curve, Mark, Panel
from jprec.study import Experiment, Finding

#: Draws of the run; the rules of README.md were tried with those of seed 1007 before.
SEED = 7
SUMS = 256
LENGTHS = tuple(2**i for i in range(4, 15))
#: Where single numbers are compared.
MIDDLE = 4096
#: Slopes are fitted from here on: shorter sums of few digits are partly exact.
ASYMPTOTIC = 256
#: Sums are filled up with zeros to one of these lengths, so that many share a compiled program.
FILLED = (256, 1024, 16384)
#: More ones than FP16 and BF16 can count, and a value of FP16.
ONES = 60_000
#: Length of the sums that truncation is hardest on.
HARD = 1024

#: Name -> FP32 draws of that shape.
DATA: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "signed": lambda rng, shape: rng.standard_normal(shape, np.float32),
    "positive": lambda rng, shape: np.abs(rng.standard_normal(shape, np.float32)),
    "uniform": lambda rng, shape: rng.random(shape, np.float32),
}

#: Operand format -> the accumulators beside each device's own, as a spec goes on.
OTHERS = {
    "fp32": ("+fp32", "", "+fp32+kahan"),
    "tf32": ("+fp32",),
    "fp16": (
        *("+fp16", "+fp16+chunk64", "+fp16+chunk128", "+fp16+kahan"),
        *("+fp32", "", "@h100+chunk128"),
    ),
    "bf16": ("+bf16", "+bf16+chunk64", "+bf16+chunk128", "+bf16+kahan", "+fp32"),
    "e4m3fn": ("+fp32", "@ada+chunk128", "@h100+chunk128"),
}

#: What a miniature tries.
FEW = {
    "tf32": ("tf32+fp32", "tf32@a100"),
    "fp16": ("fp16+fp16", "fp16+fp32", "fp16@v100", "fp16@v100+fp16"),
    "e4m3fn": ("e4m3fn+fp32", "e4m3fn@h100", "e4m3fn@h100+chunk128"),
}

#: Of devices that add alike, the first of these gives the name.
KNOWN_AS = ("v100", "a100", "h100", "ada", "b200", "h100_mma")

#: Specs that add ones, and where each must stop.
STOPS = {
    "fp16+fp16": 2**11,
    "bf16+bf16": 2**8,
    "fp16@v100+fp16": 4 * 2**11,
    "fp16@a100+fp16": 8 * 2**11,
    "fp16@h100+fp16": 16 * 2**11,
    "e4m3fn@ada": 2**14,
    "e4m3fn@h100": 2**14,
    "fp16+fp16+chunk128": ONES,
    "bf16+bf16+chunk128": ONES,
    "fp16+fp16+kahan": ONES,
    "e4m3fn@h100+chunk128": ONES,
    "fp16@v100": ONES,
}

_U = formats.get("fp32").unit_roundoff


# What is computed.


def cores(operand_format: str) -> dict[str, list[str]]:
    """Specs of the different tensor cores for a format -> the devices that add so.

    FP8 with FP16 output is left out.
    """
    found: dict[hardware.TensorCore, list[str]] = {}
    for name in dict.fromkeys((*KNOWN_AS, *hardware.names())):
        for core in hardware.get(name).tensor_cores:
            fp8 = operand_format == "e4m3fn"
            if core.input_format == operand_format and not (fp8 and core.output_format == "fp16"):
                found.setdefault(core, []).append(name)
    return {
        f"{operand_format}@{names[0]}{'' if core.output_format == 'fp32' else '+fp16'}": names
        for core, names in found.items()
    }


def specs(operand_format: str) -> tuple[str, ...]:
    """All accumulators that add products of operands of a format."""
    others = (operand_format + rest for rest in OTHERS[operand_format])
    return (*others, *cores(operand_format))


@functools.cache
def _compiled(spec: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    dims = ((1,), (1,)), ((0,), (0,))
    return jax.jit(lambda a, b: matmul.dot_general(a, b, dims, spec))


def summed(spec: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums of a[i, k] * b[i, k] over k, in float64.

    Zeros at the end change neither a chain, nor a block, nor a chunk; they would change what Kahan
    carries along, and XLA's order.
    """
    how, terms = matmul.get(spec), a.shape[1]
    if (how.accumulator or how.device) and not how.compensated:
        longer = next((n for n in FILLED if n >= terms), terms)
        a, b = (np.pad(x, ((0, 0), (0, longer - terms))) for x in (a, b))
    return np.asarray(_compiled(spec)(a, b)).astype(np.float64)


def drawn(data: str, sums: int, terms: int, *, seed: int = SEED) -> np.ndarray:
    """[2, sums, terms] FP32 operands, the same for all formats."""
    rng = np.random.default_rng([seed, list(DATA).index(data), terms])
    return DATA[data](rng, (2, sums, terms))


def rounded(x: np.ndarray, operand_format: str) -> np.ndarray:
    """`x` rounded as operands of the format are, in FP32 storage."""
    if operand_format == "fp32":
        return x
    mode = matmul.get(operand_format).rounding
    return np.asarray(rounding.round_to(x, operand_format, mode))


def added(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums of products and the sums of their magnitudes, in float64."""
    products = a.astype(np.float64) * b
    return products.sum(-1), np.abs(products).sum(-1)


def judged(got: np.ndarray, exact: np.ndarray, size: np.ndarray) -> dict[str, float]:
    """What the errors of some sums come to, in units of |A||B| where nothing else is said.

    rms, largest; bias: their mean, with bias_error, its standard error. inward: the mean error
    in the direction of the exact result, over the mean magnitude of these; with inward_error.
    over_rms: the largest error over the rms of the exact results.
    """
    error = got - exact
    relative = error / size
    inward = error * np.sign(exact) / np.mean(np.abs(exact))
    root = math.sqrt(error.size)
    return {
        "rms": float(np.sqrt(np.mean(relative**2))),
        "largest": float(np.max(np.abs(relative))),
        "bias": float(np.mean(relative)),
        "bias_error": float(np.std(relative, ddof=1)) / root,
        "inward": float(np.mean(inward)),
        "inward_error": float(np.std(inward, ddof=1)) / root,
        "over_rms": float(np.max(np.abs(error)) / np.sqrt(np.mean(exact**2))),
    }


def likely(spec: str, terms: int) -> float | None:
    """`probabilistic_bound` of the sums; for a device in FP32 that of FP32; None if there is none.

    The operands are not rounded, and so are said to be FP32.
    """
    how = matmul.get(spec)
    if how.compensated or how.chunk is not None:
        return None
    return matmul.probabilistic_bound(f"fp32+{how.accumulator or 'fp32'}", terms)


def block_bound(core: hardware.TensorCore, terms: int) -> float:
    """ceil(K / L) u: blocks that are each rounded once, to nearest FP32.

    Blanchard, Higham, Lopez, Mary, Pranesh, "Mixed Precision Block Fused Multiply-Add: Error
    Analysis and Application to GPU Tensor Cores", 2020, to first order.
    """
    return math.ceil(terms / core.products) * _U


def foretold_bias(core: hardware.TensorCore, products: np.ndarray, terms: int) -> float:
    """The mean error over |A||B| of sums of positive products, from a block's numbers alone.

    The running sum is taken to be at its mean, and to have the largest exponent of its block. Then
    a block loses what its products have below F bits of that, and its sum below m: averaged over
    blocks of the given products.

    Args:
      core: One that adds blocks in turn and rounds toward zero.
      products: [n], a sample.
      terms: K. The mean is that of whole blocks; NaN if there is none.
    """
    if terms < core.products:
        return math.nan
    blocks = products[: products.size // core.products * core.products].reshape(-1, core.products)
    whole, first = blocks.sum(1), float(blocks.max(1).mean())
    bits = formats.get(core.sum_format).mantissa_bits
    lost: dict[int, float] = {}
    total = 0.0
    for _ in range(terms // core.products):
        exponent = math.floor(math.log2(max(total, first)))
        if exponent not in lost:
            cut, last = 2.0 ** (exponent - core.fraction_bits), 2.0 ** (exponent - bits)
            kept = np.floor(np.floor(blocks / cut).sum(1) * cut / last) * last
            lost[exponent] = float(np.mean(whole - kept))
        total += whole.mean() - lost[exponent]
    return float(total / (terms // core.products * whole.mean()) - 1)


def hardest(core: hardware.TensorCore, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """[1, terms] operands of which a core that cuts off loses all but the first product.

    That is 2**16, and the others are just below whole units of the alignment. So many of a block
    are just below 2 units, the others below 1, that what is left of them the final rounding takes.
    """
    bits = formats.get(core.sum_format).mantissa_bits
    twice = 2 ** (core.fraction_bits - bits) - 1
    last = 2.0 ** (16 - core.fraction_bits)
    mantissa = formats.get(core.input_format).mantissa_bits
    below_one = 1 - 2.0 ** -(mantissa + 1)
    a = np.full((1, terms), 2.0 ** (int(math.log2(last)) // 2), np.float32)
    b = np.float32(last / a * below_one)
    b[:, np.arange(terms) % core.products < twice] *= 2
    a[:, 0] = b[:, 0] = 2.0**8
    return a, b


def compared(
    operand_format: str, names: Sequence[str], lengths: Sequence[int], sums: int
) -> dict[str, Any]:
    """The part of one operand format: every accumulator, data and length.

    `operands`: rms error that rounding the operands to the format makes, with exact sums.
    `foretold`: `foretold_bias`, where a core truncates.
    """
    found: dict[str, Any] = {
        "lengths": list(lengths),
        "operands": {data: [] for data in DATA},
        "arms": {name: {data: {} for data in DATA} for name in names},
        "foretold": {},
    }
    for terms in lengths:
        operands, exact = {}, {}
        for data in DATA:
            x = drawn(data, sums, terms)
            operands[data] = rounded(x, operand_format)
            exact[data] = added(*operands[data])
            true, size = added(*x)
            error = (exact[data][0] - true) / size
            found["operands"][data].append(_short(np.sqrt(np.mean(error**2))))
        a, b = np.concatenate(list(operands.values()), axis=1)
        for name in names:
            parted = summed(name, a, b).reshape(len(DATA), sums)
            for data, got in zip(DATA, parted, strict=True):
                numbers = judged(got, *exact[data])
                if operand_format == "fp16":
                    stored = rounded(np.float32(got), "fp16")
                    numbers["stored"] = judged(stored, *exact[data])["rms"]
                if (limit := likely(name, terms)) is not None:
                    share = np.mean(np.abs(got - exact[data][0]) > limit * exact[data][1])
                    numbers["beyond"] = float(share)
                for key, value in numbers.items():
                    found["arms"][name][data].setdefault(key, []).append(_short(value))
    for name in filter(truncates, names):
        core = matmul.get(name).tensor_core
        assert core is not None
        found["foretold"][name] = {}
        for data in ("positive", "uniform"):
            x = rounded(drawn(data, 2**10, 2**7, seed=SEED + 1), operand_format)
            products = (x[0].astype(np.float64) * x[1]).ravel()
            found["foretold"][name][data] = [
                _short(foretold_bias(core, products, terms)) for terms in lengths
            ]
    return found


def truncates(spec: str) -> bool:
    """Whether the spec is a tensor core whose every block truncates, sum and products."""
    how = matmul.get(spec)
    core = how.tensor_core
    return (
        core is not None
        and core.final_rounding == "toward_zero"
        and not core.interleaved
        and how.chunk is None
    )


def cuts_deep(spec: str) -> bool:
    """Whether it also cuts off much: not where the few digits of FP8 products meet 25 bits."""
    core = matmul.get(spec).tensor_core
    return (
        truncates(spec)
        and core is not None
        and (core.input_format != "e4m3fn" or core.fraction_bits < 25)
    )


def added_ones(names: Sequence[str], count: int, rows: int) -> dict[str, Any]:
    """The sums of so many ones."""
    ones = np.ones((rows, count), np.float32)
    return {"count": count, "sums": {name: float(summed(name, ones, ones)[0]) for name in names}}


def hardest_errors(names: Sequence[str], rows: int) -> dict[str, float]:
    """Errors over |A||B| of the sums that truncation is hardest on."""
    found = {}
    for name in names:
        core = matmul.get(name).tensor_core
        assert core is not None
        # As many rows as other sums have, whose compiled program is used.
        a, b = (np.repeat(x, rows, 0) for x in hardest(core, HARD))
        exact, size = added(a, b)
        found[name] = _short(abs(summed(name, a, b)[0] - exact[0]) / size[0])
    return found


def _short(value: float) -> float:
    """Four digits: more would only make the record longer."""
    return float(f"{value:.4g}")


def parts(small: bool) -> dict[str, Callable[[], Any]]:
    """The parts of the record: one for each operand format, and two of single sums."""
    lengths, sums, ones = ((512, 1024), 24, 1000) if small else (LENGTHS, SUMS, ONES)
    names = FEW if small else {operand_format: specs(operand_format) for operand_format in OTHERS}
    known = [name for group in names.values() for name in group]
    made: dict[str, Callable[[], Any]] = {
        key: functools.partial(compared, key, group, lengths, sums) for key, group in names.items()
    }
    made["ones"] = functools.partial(
        added_ones,
        [name for name in STOPS if name in known],
        ones,
        len(DATA) * sums if small else 1,
    )
    made["hardest"] = functools.partial(
        hardest_errors, [name for name in known if truncates(name)], len(DATA) * sums
    )
    return made


# What is read from the record.


@dataclasses.dataclass(frozen=True)
class Reading:
    """The record, with names for what is looked up again and again.

    Attributes:
      parts: Of the record.
    """

    parts: Mapping[str, Any]

    @property
    def groups(self) -> dict[str, Any]:
        """Operand format -> its part."""
        return {key: part for key, part in self.parts.items() if "arms" in part}

    @property
    def names(self) -> list[str]:
        """All accumulators."""
        return [name for part in self.groups.values() for name in part["arms"]]

    @property
    def cutting(self) -> list[str]:
        """Those that `cuts_deep`."""
        return list(filter(cuts_deep, self.names))

    @property
    def lengths(self) -> list[int]:
        """All K."""
        return next(iter(self.groups.values()))["lengths"]

    @property
    def middle(self) -> int:
        """The K at which single numbers are compared."""
        return MIDDLE if MIDDLE in self.lengths else self.lengths[-1]

    def part(self, spec: str) -> Any:
        """The part in which an accumulator is."""
        return self.parts[matmul.get(spec).operand_format]

    def column(self, spec: str, data: str, key: str) -> list[float]:
        """One number of an accumulator, by length."""
        return records.as_floats(self.part(spec)["arms"][spec][data][key])

    def at_middle(self, spec: str, data: str, *keys: str) -> list[float]:
        """Numbers of an accumulator at the middle length."""
        index = self.lengths.index(self.middle)
        return [self.column(spec, data, key)[index] for key in keys]

    def over(self, spec: str, data: str, bound: Callable[[int], float]) -> list[float]:
        """The largest error over a bound, by length."""
        errors = self.column(spec, data, "largest")
        return [error / bound(k) for error, k in zip(errors, self.lengths, strict=True)]

    def over_own(self, spec: str) -> tuple[float, str, int]:
        """The largest error over the accumulator's own bound; with which data, at which K."""
        found = []
        for data in DATA:
            ratios = self.over(spec, data, lambda k: matmul.error_bound(spec, k).sums)
            found += [(ratio, data, k) for ratio, k in zip(ratios, self.lengths, strict=True)]
        return max(found)

    def over_blocks(self, spec: str) -> list[float]:
        """The largest error on positive data over `block_bound`, by length."""
        core = matmul.get(spec).tensor_core
        assert core is not None
        return self.over(spec, "positive", functools.partial(block_bound, core))

    def slopes(self, specs: Sequence[str], data: Sequence[str], key: str) -> list[float]:
        """The slope of a number of every accumulator on all the data."""
        return [slope(self.lengths, self.column(spec, one, key)) for spec in specs for one in data]

    def promotion(self) -> list[tuple[str, str, float, float]]:
        """FP8's largest error over the results, without and with promotion every 128 products.

        Results of one sign are |A||B|; others may be near 0, so that their rms is the measure.
        """
        found = []
        for name in self.groups["e4m3fn"]["arms"]:
            if (promoted := f"{name}+chunk128") in self.names:
                for data in DATA:
                    key = "largest" if data in ONE_SIGN else "over_rms"
                    errors = [self.at_middle(n, data, key)[0] for n in (name, promoted)]
                    found.append((name, data, *errors))
        return found

    def storing(self) -> dict[tuple[str, str], float]:
        """(FP16 sums, data) -> their rms error over that of FP32 sums, both stored in FP16."""
        found = {}
        for low, high in IN_FP32.items():
            for data in DATA:
                errors = [self.at_middle(name, data, "stored")[0] for name in (low, high)]
                found[low, data] = errors[0] / errors[1]
        return found


#: Data whose sums grow as K.
ONE_SIGN = ("positive", "uniform")

#: FP16 sums -> FP32 sums of the same products in the same order.
IN_FP32 = {"fp16+fp16": "fp16+fp32", "fp16@v100+fp16": "fp16@v100"}


def slope(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Of log2 |value| against log2 K from ASYMPTOTIC on; NaN where that says nothing.

    >>> slope([256, 512, 1024], [1.0, 2.0, 4.0])
    1.0
    """
    kept = [(k, abs(v)) for k, v in zip(lengths, values, strict=True) if k >= ASYMPTOTIC]
    if len(kept) < 3 or not all(v > 0 for _, v in kept):
        return math.nan
    x, y = np.log2(kept).T
    return round(float(np.polyfit(x, y, 1)[0]), 6)


def outgrows(lengths: Sequence[int], large: Sequence[float], small: Sequence[float]) -> int | None:
    """The length from which on the first numbers exceed the second, or None.

    >>> outgrows([16, 32, 64], [1.0, 3.0, 4.0], [2.0, 2.0, 2.0])
    32
    """
    below = [i for i, (x, y) in enumerate(zip(large, small, strict=True)) if x <= y]
    first = below[-1] + 1 if below else 0
    return lengths[first] if first < len(lengths) else None


# The rules of README.md: each returns what was found, and whether the rule is met.


def own_bounds_hold(read: Reading) -> tuple[str, bool]:
    """Each accumulator keeps `error_bound`."""
    worst = {name: read.over_own(name) for name in read.names}
    for name, error in read.parts["hardest"].items():
        ratio = error / matmul.error_bound(name, HARD).sums
        worst[name] = max(worst[name], (ratio, "hardest", HARD))
    name = max(worst, key=lambda name: worst[name][0])
    ratio, data, terms = worst[name]
    return f"largest error / bound {ratio:.2f} (`{name}`, {data}, K = {terms})", ratio <= 1


def fp16_breaks_the_bound_of_fp32(read: Reading) -> tuple[str, bool]:
    """Control: K u of FP32 does not hold for FP16 sums, at the middle K, on any data."""
    largest = {data: read.at_middle("fp16+fp16", data, "largest")[0] for data in DATA}
    ratio, data = min((error / (read.middle * _U), data) for data, error in largest.items())
    return f"exceeded {ratio:.1f} times or more (least on {data} data)", ratio > 1


def truncation_is_biased_and_nearest_is_not(read: Reading) -> tuple[str, bool]:
    """Control: at the middle K, on data of one sign."""
    least, furthest, met = math.inf, 0.0, bool(read.cutting)
    for name in read.cutting:
        nearest = f"{matmul.get(name).operand_format}+fp32"
        for data in ONE_SIGN:
            bias, error = read.at_middle(name, data, "bias", "bias_error")
            own, own_error = read.at_middle(nearest, data, "bias", "bias_error")
            least = min(least, -bias / max(abs(own), own_error))
            furthest = max(furthest, abs(own) / own_error)
            met &= -bias > 5 * error and -bias > 10 * abs(own) and abs(own) < 4 * own_error
    found = f"{least:.0f} times the bias of FP32 sums to nearest (or its standard error) or more"
    return f"{found}; that is at most {furthest:.1f} standard errors from 0", met


def slopes_are_as_derived(read: Reading) -> tuple[str, bool]:
    """0 and 1/2 for the rms of FP32 sums to nearest, 1 for the bias of truncation; to 0.15."""
    nearest = [name for name in ("fp32+fp32", "tf32+fp32", "fp16+fp32") if name in read.names]
    cut = [name for name in read.cutting if name.startswith(("tf32", "fp16"))]
    found = {
        0.0: read.slopes(nearest, ["signed"], "rms"),
        0.5: read.slopes(nearest, ONE_SIGN, "rms"),
        1.0: read.slopes(cut, ONE_SIGN, "bias"),
    }
    met = all(abs(one - wanted) <= 0.15 for wanted, slopes in found.items() for one in slopes)
    texts = [f"for {wanted:g}: {min(one):.2f} … {max(one):.2f}" for wanted, one in found.items()]
    return "; ".join(texts), met


def the_bias_is_foretold(read: Reading) -> tuple[str, bool]:
    """To 5 %, at the middle K, on data of one sign."""
    index, ratios = read.lengths.index(read.middle), []
    for name in read.cutting:
        for data in ONE_SIGN:
            foretold = read.part(name)["foretold"][name][data][index]
            ratios.append((read.at_middle(name, data, "bias")[0] / foretold, name, data))
    ratio, name, data = max(ratios, key=lambda found: abs(found[0] - 1))
    return f"furthest off: {ratio:.3f} times (`{name}`, {data})", abs(ratio - 1) <= 0.05


def the_bound_of_rounded_blocks_breaks(read: Reading) -> tuple[str, bool]:
    """On positive data of the longest sums, for every core that cuts deep."""
    ratios = {name: read.over_blocks(name)[-1] for name in read.cutting}
    kept = [f"`{name}` keeps it ({ratio:.2f})" for name, ratio in ratios.items() if ratio <= 1]
    found = f"{len(ratios) - len(kept)} of {len(ratios)} exceed it at K = {read.lengths[-1]}"
    return "; ".join([found, *kept]), not kept


def the_probabilistic_bound_holds_in_fp32_and_breaks_if_truncated(
    read: Reading,
) -> tuple[str, bool]:
    """FP32 sums to nearest in 99 % and more, truncated positive ones of the longest in under 50."""
    chains = [name for name in read.names if name.endswith("+fp32")]
    kept = max(max(read.column(name, data, "beyond")) for name in chains for data in DATA)
    cut = min(read.column(name, "positive", "beyond")[-1] for name in read.cutting)
    found = f"beyond it: of the sums to nearest at most {kept:.1%}, at any K; of the truncated at "
    return f"{found}least {cut:.0%}, at K = {read.lengths[-1]}", kept <= 0.01 and cut > 0.5


def ones_stop_where_they_must(read: Reading) -> tuple[str, bool]:
    """Exactly."""
    count, sums = (read.parts["ones"][key] for key in ("count", "sums"))
    right = sum(value == min(STOPS[name], count) for name, value in sums.items())
    return f"{right} of {len(sums)} sums do", right == len(sums)


def promotion_helps_fp8(read: Reading) -> tuple[str, bool]:
    """20 times, on all data."""
    ratios: dict[str, float] = {}
    for _, data, plain, promoted in read.promotion():
        ratios[data] = min(ratios.get(data, math.inf), plain / promoted)
    texts = [f"{data} {ratio:.0f} times" for data, ratio in ratios.items()]
    return ", ".join(texts) + ", or more", min(ratios.values()) >= 20


def fp32_sums_are_better_even_if_stored_in_fp16(read: Reading) -> tuple[str, bool]:
    """10 times, at the middle K, on all data."""
    ratio, (name, data) = min((ratio, key) for key, ratio in read.storing().items())
    return f"{ratio:.0f} times or more (least: `{name}`, {data})", ratio >= 10


RULES = (
    own_bounds_hold,
    fp16_breaks_the_bound_of_fp32,
    truncation_is_biased_and_nearest_is_not,
    slopes_are_as_derived,
    the_bias_is_foretold,
    the_bound_of_rounded_blocks_breaks,
    the_probabilistic_bound_holds_in_fp32_and_breaks_if_truncated,
    ones_stop_where_they_must,
    promotion_helps_fp8,
    fp32_sums_are_better_even_if_stored_in_fp16,
)


def findings(parts: Mapping[str, Any]) -> list[Finding]:
    """What this says of the claims, by the rules of README.md."""
    read = Reading(parts)
    met = {rule: rule(read)[1] for rule in RULES}
    shows = met[own_bounds_hold] and met[fp16_breaks_the_bound_of_fp32]
    biased = met[truncation_is_biased_and_nearest_is_not] and met[the_bias_is_foretold]
    better = met[fp32_sums_are_better_even_if_stored_in_fp16]
    storing = sorted(read.storing().values())
    stored = (
        f"at K = {read.middle} FP32 sums that are then stored in FP16 have {storing[0]:.0f} to "
        f"{storing[-1]:.0f} times smaller rms errors than sums held in FP16, one product after the "
        "other and in V100's blocks, on signed, positive and uniform data"
    )
    low, high = (read.at_middle(f"fp16{sums}", "positive", "rms")[0] for sums in ("+fp16", "+fp32"))
    ones = read.parts["ones"]
    return [
        Finding(
            claim="A13",
            verdict="corrected" if shows and biased else "undecided",
            sentence=_of_tf32(read),
        ),
        Finding(
            claim="B13",
            verdict="confirmed"
            if shows and better and met[ones_stop_where_they_must]
            else "undecided",
            sentence=f"Emulated: {stored}; unstored and positive, {high:.1e} against {low:.1e}; "
            f"and {ones['count']} ones come to {ones['sums']['fp16+fp16']:.0f} in FP16.",
        ),
        Finding(
            claim="M3.3",
            verdict="confirmed" if shows and better else "undecided",
            sentence=f"Emulated: {stored}.",
        ),
    ]


def _of_tf32(read: Reading) -> str:
    """The evidence on A13: the sums of a tensor core that takes TF32 are not those of FP32."""
    name, data = "tf32@a100", "positive"
    (bias,), (nearest,) = (read.at_middle(n, data, "bias") for n in (name, "tf32+fp32"))
    operands = read.part(name)["operands"][data]
    from_on = outgrows(read.lengths, read.column(name, data, "rms"), operands)
    exceeds = f"exceed that from K = {from_on} on" if from_on else "do not exceed that here"
    return (
        f"Emulated: where operands are TF32 already, positive, K = {read.middle}, an A100's tensor "
        f"core returns sums that are wrong by {bias:+.1e} of their size on average, FP32 sums to "
        f"nearest by {nearest:+.1e}; rounding the operands costs "
        f"{operands[read.lengths.index(read.middle)]:.1e} rms, and the errors of the core's sums "
        f"{exceeds}."
    )


# What a reader sees.


def _number(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _mean(value: float, error: float) -> str:
    """A signed mean with its standard error."""
    return f"{value:+.2e} ± {error:.0e}"


def _rules_table(read: Reading) -> str:
    rows = []
    for number, rule in enumerate(RULES, start=1):
        found, met = rule(read)
        said = rule.__name__.replace("_", " ")
        rows.append([str(number), said, found, "met" if met else "**not met**"])
    return report.markdown_table(["rule:", "says", "found", ""], rows)


def _errors_table(read: Reading) -> str:
    rows = []
    for name in read.names:
        cells = [f"`{name}`"]
        for key in ("rms", "largest"):
            cells += [_number(read.at_middle(name, data, key)[0]) for data in DATA]
        slopes = read.slopes([name], list(DATA), "rms")
        rows.append([*cells, *(f"{value:.2f}" if value == value else "–" for value in slopes)])
    heads = [f"{key}, {data}:" for key in ("rms", "largest", "slope") for data in DATA]
    return report.markdown_table(["accumulator", *heads], rows)


def _bias_table(read: Reading) -> str:
    rows, index = [], read.lengths.index(read.middle)
    for key, part in read.groups.items():
        for name in part["arms"]:
            how = matmul.get(name)
            if how.chunk or how.compensated or not (how.device or how.accumulator):
                continue
            block = ["–"] * 4
            if (core := how.tensor_core) is not None:
                bits = formats.get(core.sum_format).mantissa_bits
                same = ", ".join(cores(key)[name][1:])
                block = [same or "–", str(core.products), str(core.fraction_bits), str(bits)]
            cells = [f"`{name}`", *block]
            for data in ONE_SIGN:
                foretold = part["foretold"].get(name)
                cells.append(_mean(*read.at_middle(name, data, "bias", "bias_error")))
                cells.append(f"{foretold[data][index]:+.2e}" if foretold else "–")
            inward = read.at_middle(name, "signed", "inward", "inward_error")
            rows.append([*cells, _mean(*inward)])
    head = ["accumulator", "adds alike", "L:", "F:", "m:"]
    head += [*(text for data in ONE_SIGN for text in (f"{data}:", "foretold:")), "signed, inward:"]
    return report.markdown_table(head, rows)


def _operands_table(read: Reading) -> str:
    rows, index = [], read.lengths.index(read.middle)
    for name in read.names:
        part = read.part(name)
        if not (name in read.cutting or (name.endswith("+fp32") and name != "fp32+fp32")):
            continue
        cells = [f"`{name}`"]
        for data in ("signed", "positive"):
            operands, sums = part["operands"][data], read.column(name, data, "rms")
            from_on = outgrows(read.lengths, sums, operands)
            cells += [_number(operands[index]), _number(sums[index])]
            cells.append(f"K = {from_on}" if from_on else f"beyond {read.lengths[-1]}")
        rows.append(cells)
    heads = [
        f"{data}: {what}:"
        for data in ("signed", "positive")
        for what in ("rounding operands", "sums", "sums err more from")
    ]
    return report.markdown_table(["accumulator", *heads], rows)


def _bounds_table(read: Reading) -> str:
    rows = []
    for name in read.names:
        ratio, data, terms = read.over_own(name)
        fp32 = max(max(read.over(name, one, lambda k: k * _U)) for one in DATA)
        blocks = "–"
        if truncates(name):
            over = read.over_blocks(name)
            first = outgrows(read.lengths, over, [1.0] * len(over))
            blocks = f"{over[-1]:.3g}" + (f" (> 1 from {first})" if first else "")
        beyond = ["–"] * len(DATA)
        if likely(name, read.lengths[0]) is not None:
            beyond = [f"{read.column(name, one, 'beyond')[-1]:.0%}" for one in DATA]
        own = f"{ratio:.2f} ({data}, {terms})"
        rows.append([f"`{name}`", own, f"{fp32:.2g}", blocks, *beyond])
    head = ["accumulator", "largest error / own bound:", "/ K u of FP32:", "/ ⌈K/L⌉ u, positive:"]
    return report.markdown_table([*head, *(f"beyond, {one}:" for one in DATA)], rows)


def _hardest_table(read: Reading) -> str:
    rows = []
    for name, error in read.parts["hardest"].items():
        core = matmul.get(name).tensor_core
        assert core is not None
        bounds = (matmul.error_bound(name, HARD).sums, HARD * _U, block_bound(core, HARD))
        rows.append([f"`{name}`", _number(error), *(f"{error / bound:.3g}" for bound in bounds)])
    head = ["accumulator", "error:", "/ own bound:", "/ K u of FP32:", "/ ⌈K/L⌉ u:"]
    return report.markdown_table(head, rows)


def _ones_table(read: Reading) -> str:
    count, sums = (read.parts["ones"][key] for key in ("count", "sums"))
    rows = [[f"`{name}`", f"{sums[name]:.0f}", str(min(STOPS[name], count))] for name in sums]
    return report.markdown_table(["accumulator", f"sum of {count} ones:", "must be:"], rows)


def _promotion_table(read: Reading) -> str:
    rows = []
    for name, data, plain, promoted in read.promotion():
        over = "result" if data in ONE_SIGN else "rms of the results"
        errors = f"{plain:.2%}", f"{promoted:.3%}", f"{plain / promoted:.0f}"
        rows.append([f"`{name}`", data, f"largest error / {over}", *errors])
    head = ["accumulator", "data", "measured as", "without:", "every 128:", "ratio:"]
    return report.markdown_table(head, rows)


def tables(parts: Mapping[str, Any]) -> dict[str, str]:
    """The tables of README.md."""
    read = Reading(parts)
    found = [[one.claim, one.verdict, one.sentence] for one in findings(parts)]
    return {
        "rules": _rules_table(read),
        "findings": report.markdown_table(["claim", "verdict", "evidence"], found),
        "errors": _errors_table(read),
        "bias": _bias_table(read),
        "operands": _operands_table(read),
        "bounds": _bounds_table(read),
        "hardest": _hardest_table(read),
        "ones": _ones_table(read),
        "promotion": _promotion_table(read),
    }


#: Figure -> whose curves it shows, where they were run.
DRAWN = {
    "errors": (
        *("bf16+bf16", "fp16+fp16", "bf16+bf16+chunk128", "fp16+fp16+chunk128"),
        *("bf16+bf16+kahan", "fp16+fp16+kahan", "fp16+fp32", "fp16"),
    ),
    "devices": (
        *("e4m3fn@h100", "fp16@v100", "tf32@a100", "fp16@h100", "fp16+fp32"),
        *("e4m3fn@h100+chunk128", "fp16@v100+fp16", "fp16@h100+fp16", "fp16@h100+chunk128"),
    ),
    "bias": (
        *("fp16@v100", "tf32@a100", "fp16@a100", "bf16@a100"),
        *("tf32@h100", "fp16@h100", "bf16@h100"),
    ),
    "bounds": (
        *("fp16@v100", "tf32@a100", "fp16@a100", "bf16@a100"),
        *("tf32@h100", "fp16@h100", "bf16@h100", "fp16+fp16", "fp16+fp32"),
    ),
}

_SIGNED = "signed: standard normal operands"
_POSITIVE = "positive: their magnitudes"


def figures(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The figures, from the record."""
    read = Reading(parts)
    pairs = {
        "Error of sums of K products, by accumulator (emulated)": (
            "errors",
            (_SIGNED, "rms error / |A||B|", _rms_curves(read, "errors", "fp16", "signed")),
            (_POSITIVE, "rms error / |A||B|", _rms_curves(read, "errors", "fp16", "positive")),
        ),
        "Error of sums of K products in tensor cores (emulated)": (
            "devices",
            (_SIGNED, "rms error / |A||B|", _rms_curves(read, "devices", "tf32", "signed")),
            (_POSITIVE, "rms error / |A||B|", _rms_curves(read, "devices", "tf32", "positive")),
        ),
        "Truncated sums are too small (points: emulated; lines: foretold from L, F and m)": (
            "bias",
            (_SIGNED, "−mean error inward / mean |result|", _bias_curves(read, "signed", "inward")),
            (_POSITIVE, "−mean error / |A||B|", _bias_curves(read, "positive", "bias")),
        ),
        "Largest error on positive data, over bounds (emulated)": (
            "bounds",
            ("the accumulator's own bound", "largest error / bound", _own_curves(read)),
            ("blocks rounded once: ⌈K/L⌉ u", "largest error / bound", _block_curves(read)),
        ),
    }
    found = {}
    for title, (name, *pair) in pairs.items():
        panels = [
            Panel(
                title=over,
                x="products in a sum, K",
                y=y,
                curves=curves,
                x_scale="log2",
                y_scale="log2",
                marks=[Mark(y=1.0)] if name == "bounds" else [],
            )
            for over, y, curves in pair
        ]
        found[f"{name}.svg"] = report.plot(panels, title=title, columns=2, height=360)
    return found


def _shown(read: Reading, figure: str) -> list[str]:
    return [name for name in DRAWN[figure] if name in read.names]


def _rms_curves(read: Reading, figure: str, operands: str, data: str) -> list[Curve]:
    """rms errors, and behind them what rounding the operands alone would cost."""
    rounding_alone = Curve(
        name=f"{operands} operands alone",
        x=read.lengths,
        y=read.parts[operands]["operands"][data],
        kind="plain",
    )
    curves = [
        Curve(name=name, x=read.lengths, y=read.column(name, data, "rms"))
        for name in _shown(read, figure)
    ]
    return [*curves, rounding_alone]


def _bias_curves(read: Reading, data: str, key: str) -> list[Curve]:
    """Biases, of which those within two standard errors of 0 are left out."""
    curves = []
    for name in _shown(read, "bias"):
        foretold = read.part(name)["foretold"][name].get(data)
        if foretold:
            line = [-value for value in records.as_floats(foretold)]
            curves.append(Curve(name=name, x=read.lengths, y=line, kind="plain"))
        numbers = zip(
            read.column(name, data, key), read.column(name, data, f"{key}_error"), strict=True
        )
        known = [-value if abs(value) > 2 * error else math.nan for value, error in numbers]
        kind: Any = "points" if foretold else "line"
        curves.append(Curve(name=name, x=read.lengths, y=known, kind=kind))
    return curves


def _own_curves(read: Reading) -> list[Curve]:
    return [
        Curve(
            name=name,
            x=read.lengths,
            y=read.over(name, "positive", lambda k, name=name: matmul.error_bound(name, k).sums),
        )
        for name in _shown(read, "bounds")
    ]


def _block_curves(read: Reading) -> list[Curve]:
    return [
        Curve(name=name, x=read.lengths, y=read.over_blocks(name))
        for name in _shown(read, "bounds")
        if truncates(name)
    ]


EXPERIMENT = Experiment(
    file=__file__,
    question="How does the error of a sum of products grow with its length in each accumulator, "
    "and which bound does it keep?",
    parts=parts,
    tables=tables,
    figures=figures,
    findings=findings,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
