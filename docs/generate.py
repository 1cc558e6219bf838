"""Writes the generated parts of docs/*.md and the pictures again: `python docs/generate.py`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`, and `BLOCKS`
says which function makes it; `PICTURES` does the same for docs/pictures. A new part is a new row.
tests/test_docs.py runs the functions and compares.
"""

import contextlib
import importlib.util
import io
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from jprec import formats, report
from jprec.cli import main as jprec
from jprec.report import canvas

DOCS = Path(__file__).parent


def _beside(name: str) -> Any:
    """The module in docs/NAME.py; this file itself may have been loaded by its path."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tf32_operations = _beside("tf32_operations")
optimisers = _beside("optimisers")
claims = _beside("claims")

#: The formats that the page on IEEE 754 compares.
COMPARED = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3fn", "e2m1fn")


def output(command: str) -> str:
    """What `command`, which starts with "jprec", prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        jprec(shlex.split(command)[1:])
    return "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())


def console(command: str) -> Callable[[], str]:
    """A block that shows a command and what it prints."""
    return lambda: f"```console\n$ {command}\n{output(command)}\n```"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _compared() -> list[formats.FloatFormat]:
    return [formats.get(name) for name in COMPARED]


def _short(value: Fraction | float, digits: int = 5) -> str:
    return formats.short(float(value), digits)


def _log2(value: float) -> int:
    return math.frexp(value)[1] - 1


def _whole(number: int) -> str:
    return str(number).replace("-", "−")


def layouts() -> str:
    """Widths, bias and exponents of the formats."""
    rows = [
        [
            fmt.name,
            str(fmt.bits),
            f"{int(fmt.signed)} + {fmt.exponent_bits} + {fmt.mantissa_bits}",
            str(fmt.bias),
            f"{_whole(fmt.min_exponent)} … {fmt.max_exponent}",
        ]
        for fmt in _compared()
    ]
    return table(["format", "bits", "sign + exponent + fraction", "bias", "exponents"], rows)


def spacings() -> str:
    """The distance between neighbours at a few places."""
    places = (Fraction(1, 1000), Fraction(1), Fraction(1000), Fraction(43008))
    rows = []
    for name in ("fp32", "tf32", "bf16", "fp16"):
        cells = [formats.explain(place, name) for place in places]
        rows.append(
            [
                name,
                *(f"{formats.power(_log2(e.spacing))} = {_short(e.spacing, 3)}" for e in cells),
            ]
        )
    return table(["spacing at", *(formats.decimal(place) for place in places)], rows)


def thresholds() -> str:
    """Where numbers overflow and where they become zero."""
    rows = []
    for fmt in _compared():
        largest = formats.explain(fmt.max, fmt)
        end = largest.midpoints[1]
        assert end is not None
        stays = end.goes_to == fmt.max
        far = formats.round_exact(4 * Fraction(fmt.max), fmt)
        beyond = f"{'beyond' if stays else 'from'} {_short(end.at, 9)}: {_short(far)}"
        half = _log2(fmt.min_subnormal) - 1
        rows.append(
            [
                fmt.name,
                _short(fmt.max, 9),
                beyond,
                f"{formats.power(half + 1)} = {_short(fmt.min_subnormal, 3)}",
                f"{formats.power(half)} = {_short(fmt.min_subnormal / 2, 3)}",
            ]
        )
    head = ["format", "largest", "overflow", "smallest subnormal", "zero at or below"]
    return table(head, rows)


def digits() -> str:
    """The three counts of decimal digits."""
    rows = [
        [
            fmt.name,
            str(fmt.precision),
            f"{fmt.precision * math.log10(2):.2f}",
            str(fmt.decimal_digits),
            str(math.ceil(1 + fmt.precision * math.log10(2))),
        ]
        for fmt in (formats.get(name) for name in ("fp64", "fp32", "tf32", "fp16", "bf16"))
    ]
    head = ["format", "p", "p log₁₀2", "survive: ⌊(p − 1) log₁₀2⌋", "tell apart: ⌈1 + p log₁₀2⌉"]
    return table(head, rows)


def mistakes() -> str:
    """Common mistakes, what is right, why, and the command that shows it."""
    fp32, tf32, bf16, fp16 = (formats.get(name) for name in ("fp32", "tf32", "bf16", "fp16"))
    smallest = {f.name: _log2(f.min_subnormal) for f in (fp32, tf32, bf16, fp16)}
    power = formats.power
    worst = abs(formats.explain("1.00048828125", fp16).relative_error)

    def reach(f: formats.FloatFormat) -> str:
        return f"{_whole(f.min_exponent)} − {f.mantissa_bits} = {_whole(smallest[f.name])}"

    rows = [
        [
            "TF32 has about 7 decimal digits, like FP32.",
            f"{tf32.decimal_digits} survive, as in FP16. FP32 has {fp32.decimal_digits}.",
            f"p = {tf32.precision}: ⌊{tf32.mantissa_bits} × 0.30103⌋ = {tf32.decimal_digits}; even "
            f"p log₁₀2 is {tf32.precision * math.log10(2):.2f}. 7 is FP32's p log₁₀2 = "
            f"{fp32.precision * math.log10(2):.2f}.",
            "`jprec formats tf32`",
        ],
        [
            "FP16 goes down to 5.96e+8.",
            f"To {_short(fp16.min_subnormal, 3)} (subnormal); normal down to "
            f"{_short(fp16.min_normal, 3)}.",
            f"The smallest exponent minus the fraction bits: {reach(fp16)}, and "
            f"{power(smallest['fp16'])} = {_short(fp16.min_subnormal, 3)}.",
            "`jprec formats fp16`",
        ],
        [
            f"FP32's smallest number is {_short(fp32.min_normal, 3)}.",
            f"That is its smallest normal number; the smallest is {_short(fp32.min_subnormal, 3)}.",
            f"{reach(fp32)}.",
            "`jprec explain 2^-149 --format fp32`",
        ],
        [
            "TF32 has exactly FP32's range.",
            f"The exponents are the same, the ends are not: {_short(tf32.min_subnormal, 3)} to "
            f"{_short(tf32.max)}.",
            f"{reach(tf32)}; (2 − 2⁻¹⁰) × 2¹²⁷. FP32's largest value rounds to "
            f"{_short(formats.explain(fp32.max, tf32).value)} in TF32, to "
            f"{_short(formats.explain(fp32.max, bf16).value)} in BF16.",
            "`jprec explain 0x1.fffffep127`",
        ],
        [
            "FP32's exponents run from −127 to 128.",
            f"From {_whole(fp32.min_exponent)} to {fp32.max_exponent}; FP16's from "
            f"{_whole(fp16.min_exponent)} to {fp16.max_exponent}.",
            f"Fields 0 and {2**fp32.exponent_bits - 1} are reserved: 1 − {fp32.bias} = "
            f"{_whole(fp32.min_exponent)} and {2**fp32.exponent_bits - 2} − {fp32.bias} = "
            f"{fp32.max_exponent}.",
            "`jprec formats fp32`",
        ],
        [
            "FP32's fraction splits each binade into 2²⁴ parts.",
            f"Into {power(fp32.mantissa_bits)}; FP16 and TF32 into {2**fp16.mantissa_bits}, BF16 "
            f"into {2**bf16.mantissa_bits}.",
            f"{fp32.mantissa_bits} bits are stored. p = {fp32.precision} counts the implicit 1, "
            f"and all integers up to {power(fp32.precision)} are exact.",
            "`jprec explain 16777217 --format fp32`",
        ],
        [
            "What is below 2⁻²⁴ becomes zero in FP16.",
            f"What is at or below {power(smallest['fp16'] - 1)} does; above it, "
            f"{power(smallest['fp16'])} is nearer.",
            f"Half of the smallest subnormal is a tie, and 0 is even: "
            f"{power(smallest['fp16'] - 1)} → {_short(formats.explain('2^-25', fp16).value)}, "
            f"1.001 × {power(smallest['fp16'] - 1)} → "
            f"{_short(formats.explain('1.001*2^-25', fp16).value, 3)}.",
            "`jprec explain 1.001*2^-25 --format fp16`",
        ],
        [
            f"FP16 overflows above {_short(fp16.max)}.",
            "From 65520 on.",
            f"65504 + 32/2 is the tie to the next step, 65536: 65519.999 → "
            f"{_short(formats.explain('65519.999', fp16).value)}, 65520 → "
            f"{_short(formats.explain('65520', fp16).value)}.",
            "`jprec explain 65520 --format fp16`",
        ],
        [
            "A half is rounded up.",
            "A tie goes to the even neighbour.",
            "In FP16 43024 lies between 43008 = 1344 × 32 and 43040 = 1345 × 32 and goes to "
            f"{_short(formats.explain(43024, fp16).value)}; 43056 goes to "
            f"{_short(formats.explain(43056, fp16).value)} = 1346 × 32.",
            "`jprec explain 43056 --format fp16`",
        ],
        [
            "The machine epsilon is the largest rounding error.",
            "Relative to a normal number, the error is at most u/(1 + u), less than u = ε/2 = 2⁻ᵖ.",
            "Neighbours just above 1 are ε = 2¹⁻ᵖ apart, and the nearest is at most half as far; "
            f"the tie 1 + u is the worst. FP16: ε = {_short(fp16.epsilon, 3)}, u = "
            f"{_short(fp16.unit_roundoff, 3)}, u/(1 + u) = {_short(worst, 6)}.",
            "`jprec explain 1.00048828125 --format fp16`",
        ],
        [
            "Small numbers are stored more accurately than large ones.",
            "Their absolute error is smaller; relative to the number it is below u for every "
            "normal number.",
            "Each binade is twice as wide as the one below, and its values are twice as far apart. "
            "Only subnormals lose relative accuracy.",
            "`jprec formats fp16`",
        ],
        [
            "E4M3 ends at 240.",
            f"OCP's e4m3fn, the FP8 of training, ends at {_short(formats.get('e4m3fn').max)}. The "
            f"IEEE-like e4m3 ends at {_short(formats.get('e4m3').max)}.",
            "OFP8 gives up infinity and all NaNs but one, so that exponent field 15 holds numbers: "
            "(1 + 6/8) × 2⁸.",
            "`jprec explain 448 --format e4m3,e4m3fn`",
        ],
        [
            "TF32 tensors take less memory.",
            "They are stored as FP32, in 32 bits.",
            f"TF32 is the precision in which tensor cores multiply FP32 inputs: {tf32.bits} of the "
            "32 bits carry information.",
            "`jprec formats tf32`",
        ],
    ]
    return table(["said", "right", "why", "see"], rows)


def modes() -> str:
    """A number between two values, a tie, and their negatives, in every mode."""
    numbers = ("1.3", "1.25", "1.75", "-1.25", "-1.3")
    rows = [
        [f"`{mode}`", *(_short(formats.round_exact(n, "e2m1fn", mode)) for n in numbers)]
        for mode in formats.MODES
    ]
    return "In E2M1, whose values here are 1, 1.5 and 2 and their negatives:\n\n" + table(
        ["mode", *numbers], rows
    )


def overflow() -> str:
    """What becomes of numbers beyond the largest value, by format and mode."""
    more = ["binary8p4se", "binary8p4sf", "binary8p4ue", "binary8p4uf"]
    alike = _grouped(
        [*formats.names(), *more],
        lambda name: tuple(_beyond(name, mode) for mode in formats.MODES),
    )
    rows = []
    for names in alike.values():
        first = ", ".join(names)
        for cells, choices in _grouped(formats.MODES, lambda m, n=names[0]: _beyond(n, m)).items():
            stochastic = ["stochastic"] if "nearest_even" in choices else []
            rows.append([first, ", ".join([*choices, *stochastic]), *cells])
            first = ""
    head = ["formats", "modes", "too large", "too small", "∞", "−∞"]
    return table(head, rows)


def _grouped(
    names: Sequence[str], outcome: Callable[[str], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[str]]:
    """Outcome -> the names that have it."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in names:
        groups.setdefault(outcome(name), []).append(name)
    return groups


def _beyond(name: str, mode: str) -> tuple[str, ...]:
    """What becomes of twice the largest value, its negative, and the infinities."""
    fmt = formats.get(name)
    words = {fmt.max: "largest", -fmt.max: "−largest", math.inf: "∞", -math.inf: "−∞"}
    far = 2 * Fraction(fmt.max)
    return tuple(
        words.get(formats.round_exact(number, fmt, mode), "NaN")
        for number in (far, -far, math.inf, -math.inf)
    )


def blocks() -> str:
    """The block formats that have a name."""
    rows = []
    for name in formats.block_names():
        fmt = formats.get_block(name)
        bits = f"{fmt.bits_per_value:g}"
        rows.append(
            [f"`{name}`", str(fmt.size), fmt.element.name, fmt.scale.name, fmt.scale_rule, bits]
        )
    return table(["name", "size", "elements", "scales", "rule", "bits a number"], rows)


def tf32_table(*, listed: bool) -> Callable[[], str]:
    """A block with operations of PyTorch: those on the list, or others."""
    return lambda: table(tf32_operations.HEAD, tf32_operations.rows(listed=listed))


def tf32_shifts() -> str:
    """How far affine_grid moves pixels in TF32."""
    rows = [
        [str(width), *(f"{tf32_operations.shift(width, degrees):.2f}" for degrees in (0, 30))]
        for width in (256, 1024, 1920, 4096)
    ]
    return table(["pixels a side", "identity", "turned by 30°"], rows)


def tf32_distances() -> str:
    """What is left of squared distances in TF32."""
    rows = [
        [str(offset), f"{100 * tf32_operations.distance_error(offset):.0f} %"]
        for offset in (0, 1, 3, 10)
    ]
    return table(["added to each coordinate", "largest error of a squared distance"], rows)


#: Name of a generated part -> the function that makes it.
BLOCKS: dict[str, Callable[[], str]] = {
    "explain 11.25": console("jprec explain 11.25 --format fp32"),
    "layouts": layouts,
    "spacings": spacings,
    "explain 1.5*2^-24": console("jprec explain 1.5*2^-24 --format fp16"),
    "explain 43008.111": console("jprec explain 43008.111 --format fp16"),
    "explain 43024": console("jprec explain 43024 --format fp16"),
    "thresholds": thresholds,
    "explain 0.1": console("jprec explain 0.1 --format fp16,bf16,tf32,fp32,e4m3fn"),
    "digits": digits,
    "formats": console("jprec formats"),
    "mistakes": mistakes,
    "modes": modes,
    "overflow": overflow,
    "blocks": blocks,
    "hardware": console("jprec hardware"),
    "experiments": lambda: table(["experiment", "first picture", "verdicts"], claims.index()),
    "claims": lambda: table(claims.HEAD, claims.rows()),
    "optimisers": lambda: table(optimisers.HEAD, optimisers.rows()),
    "optimisers, counts": lambda: table(optimisers.COUNT_HEAD, optimisers.counts()),
    "tf32 operations": tf32_table(listed=True),
    "tf32 operations, others": tf32_table(listed=False),
    "tf32 shifts": tf32_shifts,
    "tf32 distances": tf32_distances,
}

#: File in docs/pictures -> the function that draws it, called within `canvas.drawing`.
PICTURES: dict[str, Callable[[], Figure]] = {
    "layouts.svg": lambda: report.stack([report.layouts(_compared())]),
    "number_lines.svg": lambda: report.stack(
        [
            report.number_lines([formats.get("e2m1fn")]),
            report.number_lines([formats.get("e4m3fn")], end=2.0**-4),
            report.number_lines([formats.get("e5m2"), formats.get("e4m3fn")], end=8.0),
        ]
    ),
    "windows.svg": lambda: report.stack([report.windows(_compared())]),
    "density.svg": lambda: report.stack([report.density(_compared())]),
}


def renewed(page: str) -> str:
    """The page with its generated parts made again.

    Raises:
      KeyError: for a part that `BLOCKS` does not know.
    """
    return report.renewed(page, {name: BLOCKS[name]() for name in report.generated_parts(page)})


def main() -> None:
    """Writes pages and pictures, and says which pages have changed."""
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        new = renewed(page)
        if new != page:
            path.write_text(new, encoding="utf-8")
            print(f"{path.name} has changed", file=sys.stderr)
    (DOCS / "pictures").mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        with canvas.drawing():
            figure = draw()
        report.write_figure(DOCS / "pictures" / name, figure)


if __name__ == "__main__":
    main()
