"""Blocks against recorded outputs of GPUs, published examples, and oracles: bit for bit."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import formats, hardware, matmul

RECORDED = pathlib.Path(__file__).parents[2].parent / "shared" / "golden" / "tensor_cores"
CORES = list(dict.fromkeys(c for name in hardware.names() for c in hardware.get(name).tensor_cores))
FP8 = ("e4m3fn", "e5m2")
FILES = [
    (device, fmt)
    for device in ("v100", "a100", "ada", "h100", "b200")
    for fmt in hardware.get(device).input_formats
]


def floats(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


def bits(x):
    assert x.dtype == jnp.float32
    return np.asarray(x).view(np.uint32)


def core_id(core):
    order = "-interleaved" if core.interleaved else ""
    return f"{core.input_format}-{core.output_format}-L{core.products}-F{core.fraction_bits}{order}"


def run(device, fmt, a, b, c, output="fp32"):
    """The results of n rows, a and b [n, K], c [n]: filled up to one shape, so compiled once."""
    shape = (1020, 2 * hardware.get(device).tensor_core(fmt, output).stride + 1)
    full_a, full_b, full_c = np.zeros(shape), np.zeros(shape), np.zeros(shape[0])
    full_a, full_b, full_c = (x.astype(np.float32) for x in (full_a, full_b, full_c))
    a, b, c = np.atleast_2d(a), np.atleast_2d(b), np.atleast_1d(c)
    full_a[: a.shape[0], : a.shape[1]] = a
    full_b[: b.shape[0], : b.shape[1]] = b
    full_c[: len(c)] = c
    got = matmul.tensor_core_dot(
        full_a, full_b, full_c, device=device, input_format=fmt, output_format=output
    )
    return got[: len(c)]


def terms_of(text, widen):
    """ "3c00*3c00 + 2x 3c00*0002": the operands [2, terms], as float32."""
    pairs = []
    for term in filter(None, text.split(" + ")):
        times, factors = term.split("x ") if "x " in term else (1, term)
        pairs += [factors.split("*")] * int(times)
    return np.float32([[widen(int(pair[side], 16)) for pair in pairs] for side in (0, 1)])


def half(code):
    return float(np.uint16(code).view(np.float16))


def upper_half(code):
    return float(floats(code << 16))


def e4m3fn(code):
    return formats.decode(code, "e4m3fn")


def e5m2(code):
    return formats.decode(code, "e5m2")


# --- recorded outputs


def instruction(device, fmt, output):
    """The device here that is the instruction by which a file was recorded; its README says so."""
    mma = fmt in FP8 and (device == "b200" or (device, output) == ("h100", "fp16"))
    return f"{device}_mma" if mma else device


@pytest.mark.parametrize(("device", "fmt"), FILES)
def test_recorded_outputs_of_the_gpu_are_reproduced_without_exception(device, fmt):
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded outputs are not beside the repository: {RECORDED}")
    recorded_as = "e4m3" if fmt == "e4m3fn" else fmt
    rows = np.load(RECORDED / f"{device}_{recorded_as}.npz")
    a, b, c = (floats(rows[name]) for name in "abc")
    outputs = [output for output in ("fp32", "fp16") if f"d_{output}" in rows]
    assert "fp32" in outputs
    for output in outputs:
        by = instruction(device, fmt, output)
        # What wgmma with FP8 returned in FP32 was recorded without an accumulator.
        start = 0 * c if (by, output) == ("h100", "fp32") and fmt in FP8 else c
        got = run(by, fmt, a, b, start, output)
        assert len(got) == 1000
        np.testing.assert_array_equal(bits(got), rows[f"d_{output}"])


@pytest.mark.parametrize("fmt", FP8)
def test_the_recorded_outputs_of_mma_sync_are_not_those_of_one_block_of_32(fmt):
    """The control: what the order of FP8 by mma.sync is, these outputs tell."""
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded outputs are not beside the repository: {RECORDED}")
    rows = np.load(RECORDED / f"b200_{fmt.removesuffix('fn')}.npz")
    for output in ("fp32", "fp16"):
        got = run("b200", fmt, *(floats(rows[name]) for name in "abc"), output)
        assert (bits(got) != rows[f"d_{output}"]).sum() > 250


# First rows of the same data, so that some of it is always tested.
# Device, format, terms, c, the results with FP32 and with FP16 output (None: not recorded).
FP16_4 = "3bd5*38ca + 3c3e*b935 + b534*36bf + 3df8*34ec"
FP16_8 = f"{FP16_4} + b9e8*bf9a + 356e*3797 + 3c05*be0b + 3f47*bc83"
FP16_16 = (
    f"{FP16_8} + 3b17*2df8 + 3ae9*b98b + bc60*ba97 + 359f*4075 + 2788*a388 + 34e3*40f2 + 3c37*30e1"
    " + 3ac8*b527"
)
BF16_8 = (
    "3f7a*3f19 + 3f87*bf26 + bea6*3ed7 + 3fbf*3e9d + bf3d*bff3 + 3ead*3ef2 + 3f80*bfc1 + 3fe8*bf90"
)
BF16_16 = (
    f"{BF16_8} + 3f62*3dbf + 3f5d*bf31 + bf8c*bf52 + 3eb3*400e + 3cf1*bc71 + 3e9c*401e + 3f86*3e1c"
    " + 3f59*bea4"
)
TF32_4 = "3f7aa000*3f194000 + 3f87c000*bf26a000 + bea68000*3ed7e000 + 3fbf0000*3e9d8000"
TF32_NEXT = "be87e000*3f852000 + 3e40c000*3f36a000 + bf244000*3f702000 + bc9f2000*bd766000"
E4M3_32 = (
    "37*31 + 38*b2 + aa*2d + 3b*29 + b3*bf + 2a*2f + 38*bc + 3e*b9 + 36*1b + 35*b3 + b8*b5 + 2b*40"
    " + 0f*87 + 29*41 + 38*21 + 35*aa + b8*b7 + 37*3f + 03*b2 + ba*31 + ae*ad + a6*9d + 3a*b8"
    " + 3d*3a + 92*3d + 26*3b + b0*9b + af*86 + b3*bc + 33*ac + 42*12 + 2d*83"
)
E5M2_32 = (
    "3b*38 + 3c*b9 + b5*36 + 3d*34 + b9*bf + 35*37 + 3c*be + 3f*bc + 3b*2d + 3a*b9 + bc*ba + 35*40"
    " + 27*a3 + 34*40 + 3c*30 + 3a*b5 + bc*bb + 3b*3f + 1e*b9 + bd*38 + b7*b6 + b3*ae + 3d*bc"
    " + 3e*3d + a9*3e + 33*3d + b8*ad + b7*a2 + b9*be + 39*b6 + 41*29 + 36*9e"
)
SAMPLES = [
    ("v100", "fp16", FP16_4, 0x3F7F418C, 0x3F9B7DEC, 0x3F9B8000),
    (
        "v100",
        "fp16",
        "b43f*3c29 + 3206*39b5 + b922*3b81 + a4f9*abb3",
        0x3E220678,
        0xBF158A76,
        0xBF158000,
    ),
    ("a100", "fp16", FP16_8, 0x3F5091BB, 0xBF794A57, 0xBF794000),
    ("a100", "bf16", BF16_8, 0x3E8E06AD, 0xBFBE56D5, None),
    ("a100", "tf32", TF32_4, 0x3EFE7B25, 0x3F36F7DE, None),
    ("a100", "tf32", TF32_NEXT, 0x3EDA7C1C, 0xBEA19C0C, None),
    ("ada", "e5m2", E5M2_32, 0x3F503BF0, 0x4073EC00, 0x4073E000),
    ("h100", "fp16", FP16_16, 0x3F676BEA, 0x3F6D0CDA, 0x3F6D0000),
    ("h200", "fp16", FP16_16, 0x3EF68323, 0x3F00E281, None),
    ("h100", "bf16", BF16_16, 0x3F342579, 0x3F3CC4DD, None),
    ("h100", "tf32", TF32_4, 0x3F795773, 0x3F9888DF, None),
    ("h100", "e4m3fn", E4M3_32, 0, 0x40727C00, None),
    ("h100_mma", "e4m3fn", E4M3_32, 0x3F213EBD, None, 0x408D8000),
    ("b200_mma", "e4m3fn", E4M3_32, 0x3F66B81C, 0x4096153C, 0x40962000),
]
WIDEN = {
    "fp16": half,
    "bf16": upper_half,
    "tf32": lambda code: float(floats(code)),
    "e4m3fn": e4m3fn,
    "e5m2": e5m2,
}


@pytest.mark.parametrize(("device", "fmt", "terms", "c", "fp32", "fp16"), SAMPLES)
def test_first_rows_of_the_recorded_outputs(device, fmt, terms, c, fp32, fp16):
    a, b = terms_of(terms, WIDEN[fmt])
    for output, expected in (("fp32", fp32), ("fp16", fp16)):
        if expected is not None:
            got = bits(run(device, fmt, a, b, floats(c), output))[0]
            assert (output, hex(got)) == (output, hex(expected))


# --- published examples

# Terms, c, and the results on V100, and on T4 and A100 (None: not asserted), which the test suites
# of Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer
# Science 7:e330, 2021, assert.
FASI = [
    ("0001*4400", 0, 0x34800000, 0x34800000),
    ("", 0x00000001, 0x00000001, 0x00000001),
    ("0400*3800", 0, 0x38000000, 0x38000000),
    ("0400*3c00", 0xB8000000, 0x38000000, 0x38000000),
    ("3bff*3bff", 0, 0x3F7FC004, 0x3F7FC004),
    ("4x 3bff*3bff", 0, 0x407FC004, 0x407FC004),
    ("4x 3c00*0001", 0x3F800000, 0x3F800000, None),
    ("4x 3800*0001", 0x3F800000, 0x3F800000, 0x3F800000),
    ("3c00*3c00 + 3x 3c00*0001", 0x33800000, 0x3F800000, None),
    ("3c00*0001 + 3c00*3c00 + 2x 3c00*0001", 0x33800000, 0x3F800000, None),
    ("2x 3c00*0001 + 3c00*3c00 + 3c00*0001", 0x33800000, 0x3F800000, None),
    ("3x 3c00*0001 + 3c00*3c00", 0x33800000, 0x3F800000, None),
    ("3c00*4000 + 3c00*0003", 0, 0x40000000, 0x40000000),
    ("3c00*c000 + 3c00*8003", 0, 0xC0000000, 0xC0000000),
    ("3c00*3c00", 0xBF7FFFFF, 0x34000000, 0x33800000),
    ("4x 3c00*0001", 0x3F7FFFFF, 0x3F800001, 0x3F800001),
    ("3c00*3c00 + 3c00*8001", 0xBF7FFFFF, 0x34000000, 0x00000000),
    ("3x 3c00*3c00 + 3c00*0002", 0x3F800003, 0x40800001, 0x40800001),
    ("2x 3c00*3c00 + 3c00*0002 + 3c00*3c00", 0x3F800003, 0x40800001, 0x40800001),
    ("3c00*3c00 + 3c00*0002 + 2x 3c00*3c00", 0x3F800003, 0x40800001, 0x40800001),
    ("3c00*0002 + 3x 3c00*3c00", 0x3F800003, 0x40800001, 0x40800001),
    ("3c00*3c00 + 3c00*3e00 + 3c00*3f00 + 3c00*3f80", 0x3FF00000, 0x41000000, 0x41000000),
    ("4x 3c00*3c00", 0x3F800003, 0x40A00000, 0x40A00000),
    ("4x 3c00*bc00", 0xBF800003, 0xC0A00000, 0xC0A00000),
]


@pytest.mark.parametrize(("terms", "c", "on_v100", "later"), FASI)
def test_what_the_suites_of_fasi_et_al_assert_of_fp16(terms, c, on_v100, later):
    a, b = terms_of(terms, half)
    for device, d in {"v100": on_v100, "t4": later, "a100": later}.items():
        if d is not None:
            assert (device, hex(bits(run(device, "fp16", a, b, floats(c)))[0])) == (device, hex(d))


@pytest.mark.parametrize(
    ("device", "terms", "c", "d"),
    [
        ("v100", "3e00*3e00 + 2x 3c00*0002", 0, 0x40100001),
        ("v100", "3c00*4080 + 2x 3c00*0002", 0, 0x40100000),
        ("v100", "2x 3c00*0002", 0x40100000, 0x40100000),
        ("a100", "3e00*3e00 + 3c00*0002 + 2x 3c00*0001", 0, 0x40100001),
        ("h100", "3e00*3e00 + 3400*000e + 3400*0002", 0, 0x40100001),
        # One bit more than FP32 holds on Ampere, two on Hopper.
        ("a100", "2x 3c00*0001", 0x3F800000, 0x3F800001),
        ("a100", "4x 3800*0001", 0x3F800000, 0x3F800000),
        ("h100", "4x 3800*0001", 0x3F800000, 0x3F800001),
    ],
)
def test_examples_of_khattak_and_mikaitis_with_fp16(device, terms, c, d):  # arXiv:2512.07004v2
    a, b = terms_of(terms, half)
    assert hex(bits(run(device, "fp16", a, b, floats(c)))[0]) == hex(d)


@pytest.mark.parametrize("fmt", FP8)
def test_examples_of_khattak_and_mikaitis_with_fp8_on_an_l40s(fmt):
    """Of the terms 13 bits below the largest are kept."""
    small = [2.0**-6, 2.0**-6]
    got = run("l40s", fmt, [1.0, *small], [1.0, 2.0**-7, 2.0**-7], 0.0)
    assert hex(bits(got)[0]) == "0x3f800800"
    assert run("l40s", fmt, small, [2.0**-8, 2.0**-8], 1.0).item() == 1.0


@pytest.mark.parametrize("device", ["h100_mma", "h200_mma", "b200_mma"])
@pytest.mark.parametrize(("fmt", "scale"), [("e5m2", 1.0), ("e4m3fn", 8.0)])
def test_fp8_by_mma_sync_sums_interleaved_pairs(device, fmt, scale):
    """The first product 1, the second and one other 2**-24: Khattak and Mikaitis, figure 5c.

    Both small ones are seen only if they are summed in one half. For e4m3fn, which does not reach
    2**-12, all products are multiplied by 2**6.
    """
    k = np.arange(2, 32)
    a = np.zeros((30, 32))
    a[:, 0] = scale
    a[:, 1] = 2.0**-12 * scale
    a[k - 2, k] = 2.0**-12 * scale
    b = np.where(np.arange(32) == 0, scale, 2.0**-12 * scale)
    got = run(device, fmt, a, np.broadcast_to(b, a.shape), np.zeros(30)) / scale**2
    np.testing.assert_array_equal(got, np.where(k // 2 % 2 == 0, 1 + 2.0**-23, 1.0))


@pytest.mark.parametrize("fmt", FP8)
def test_fp8_by_mma_sync_adds_the_accumulator_last_and_to_nearest(fmt):
    """Khattak and Mikaitis, figure 5c: every other instruction would cut off."""
    a, b = np.full((2, 2), [1.5, 2.0**-4]), [[2.0**-4, 2.0**-5], [2.0**-4, -(2.0**-5)]]
    c = np.full(2, 2.0**20)  # whose neighbours are 2**-3 away
    for device in ("h100_mma", "b200_mma"):
        got = run(device, fmt, a, b, c)
        assert (got - 2.0**20).tolist() == [0.125, 0.125]
    assert (run("b200", fmt, a, b, c) - 2.0**20).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("terms", "d"),
    [("0001*4400", 0x0004), ("3bff*3bff + 3bff*1000", 0x3BFF), ("0001*3800 + 0001*3400", 0x0001)],
)
def test_published_examples_with_fp16_output(terms, d):  # Fasi et al. 2021
    a, b = terms_of(terms, half)
    for device in ("v100", "t4", "a100"):
        assert run(device, "fp16", a, b, 0.0, "fp16").item() == half(d)


@pytest.mark.parametrize(
    ("terms", "c", "d"),
    [
        ("00002000*44800000", 0, 0x00800000),
        ("00800000*3f000000", 0, 0x00400000),
        ("4x 3f7fffff*3f7fffff", 0, 0x407FC004),  # the low 13 bits are ignored
        ("3f800000*3f800000", 0xBF7FFFFF, 0x33800000),
    ],
)
def test_published_examples_with_tf32_operands(terms, c, d):  # Fasi et al. 2021, A100 suite
    a, b = terms_of(terms, WIDEN["tf32"])
    assert hex(bits(run("a100", "tf32", a, b, floats(c)))[0]) == hex(d)


BESIDE_2_TO_THE_23 = {
    **{("v100", "fp16"): 0.0, ("t4", "fp16"): -0.5},
    **{(device, fmt): -0.5 for device in ("a100", "ada") for fmt in ("fp16", "bf16", "tf32")},
    **{(device, fmt): -0.75 for device in ("h100", "b200") for fmt in ("fp16", "bf16", "tf32")},
    **{(device, fmt): 0.0 for device in ("ada", "h100") for fmt in FP8},
    **{("b200", fmt): -0.75 for fmt in FP8},
}


@pytest.mark.parametrize(("device", "fmt"), BESIDE_2_TO_THE_23)
def test_what_survives_beside_2_to_the_23_tells_the_devices_apart(device, fmt):
    """Table 8 of MMA-Sim, arXiv:2511.10909v2; for e4m3fn, which ends at 448, divided by 2**8."""
    a, b, c = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0], 2.0**23
    scale = 1.0
    if fmt == "e4m3fn":
        a, b, c = [-(2.0**7), -(2.0**-5), -(2.0**-6), -(2.0**-7)], [2.0**8] + 3 * [2.0**-4], 2.0**15
        scale = 2.0**8
    assert run(device, fmt, a, b, c).item() * scale == BESIDE_2_TO_THE_23[device, fmt]


@pytest.mark.parametrize(
    ("device", "flips_at"), [("a100", 157), ("ada", 157), ("h100", 159), ("b200", 159)]
)
def test_terms_are_never_aligned_below_the_least_exponent(device, flips_at):
    """2**-149 - 2**-k, both as products: MMA-Sim 2.1.1 and Hawkeye agree on it."""
    k = np.arange(150, 165)
    a = np.stack([np.full(len(k), 2.0**-75), -(2.0 ** -(k - 80.0))], -1)
    b = np.broadcast_to([2.0**-74, 2.0**-80], a.shape)
    c = np.zeros(len(k))
    for fmt in ("bf16", "tf32"):
        np.testing.assert_array_equal(bits(run(device, fmt, a, b, c)), k >= flips_at)


@pytest.mark.parametrize(
    ("device", "last"),
    [("v100", 42), ("t4", 44), ("a100", 44), ("ada", 44), ("h100", 46), ("b200", 46)],
)
def test_fp16_output_sees_what_lies_above_the_least_exponent(device, last):
    """2**-25 + 2**-k rounds up to 2**-24 while 2**-k is not cut off; same sources."""
    k = np.arange(36, 49)
    a = np.stack([np.full(len(k), 2.0**-12), 2.0 ** -(k - 24.0)], -1)
    b = np.broadcast_to([2.0**-13, 2.0**-24], a.shape)
    got = run(device, "fp16", a, b, np.zeros(len(k)), "fp16")
    np.testing.assert_array_equal(got, np.where(k <= last, 2.0**-24, 0.0))


# --- special values


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        ([0.0, -0.0], [-1.0, 0.0], -0.0, 0x00000000),
        ([1.0, -1.0], [1.0, 1.0], 0.0, 0x00000000),
        ([np.inf, 1.0], [2.0, 1.0], 0.0, 0x7F800000),
        ([np.inf, 1.0], [-2.0, 1.0], 1.0, 0xFF800000),
        ([1.0, 1.0], [1.0, 1.0], -np.inf, 0xFF800000),
        ([np.inf, 1.0], [0.0, 1.0], 0.0, 0x7FFFFFFF),
        ([np.inf, np.inf], [1.0, -1.0], 0.0, 0x7FFFFFFF),
        ([np.inf, 0.0], [1.0, 0.0], -np.inf, 0x7FFFFFFF),
        ([np.nan, 0.0], [1.0, 0.0], 0.0, 0x7FFFFFFF),
        ([1.0, 0.0], [1.0, 0.0], np.nan, 0x7FFFFFFF),
        (floats([0x7F800001, 0]), [1.0, 0.0], 0.0, 0x7F800000),  # a TF32 NaN loses its payload
        ([2.0**64, -(2.0**64)], [2.0**64, 2.0**64], 1.0, 0x00000000),  # products do not overflow
        ([2.0**64, 0.0], [2.0**64, 0.0], 0.0, 0x7F800000),
        ([2.0**126, 0.0], [2.0, 0.0], np.float32(2.0**127 - 2.0**103), 0x7F7FFFFF),
    ],
)
def test_special_values_on_an_a100_with_tf32(a, b, c, expected):
    assert hex(bits(run("a100", "tf32", a, b, c))[0]) == hex(expected)


def test_an_infinity_from_overflow_stays_and_meets_its_opposite_as_nan():
    big = 2.0**64
    a = np.zeros((3, 8), np.float32)
    b = np.ones((3, 8), np.float32)
    a[:, 0], b[:, 0] = big, big  # the first block overflows
    a[1, 4], b[1, 4] = -big, 2 * big  # too late: the accumulator is infinite already
    a[2, 4] = -np.inf
    got = run("a100", "tf32", a, b, np.zeros(3))
    assert [hex(word) for word in bits(got)] == ["0x7f800000", "0x7f800000", "0x7fffffff"]


def test_fp16_output_overflows_at_65520_and_has_the_nan_with_all_ones():
    a = np.array([[255.75, 16.0], [255.75, 15.0], [np.nan, 0.0]])
    b = np.array([[256.0, 3.0], [256.0, 3.0], [1.0, 0.0]])
    got = run("a100", "fp16", a, b, np.zeros(3), "fp16")
    assert got[:2].tolist() == [np.inf, 65504.0]
    assert hex(bits(got)[2]) == "0x7fffe000"


@pytest.mark.parametrize("device", ["ada", "h100", "h100_mma", "b200", "b200_mma"])
def test_special_values_with_fp8(device):
    def first(fmt, a, b, c):
        return hex(bits(run(device, fmt, a, b, c))[0])

    tiny = formats.get("e4m3fn").min_subnormal
    assert first("e4m3fn", [tiny], [tiny], 0.0) == hex(bits(jnp.float32(tiny**2)))
    assert first("e4m3fn", [0.0, -0.0], [-1.0, 0.0], -0.0) == "0x0"
    assert first("e4m3fn", [np.nan, 1.0], [1.0, 1.0], 0.0) == "0x7fffffff"
    assert first("e4m3fn", [np.inf], [1.0], 0.0) == "0x7fffffff"  # it has no infinity
    assert first("e4m3fn", [1.0], [1.0], -np.inf) == "0xff800000"
    assert first("e5m2", [np.inf], [-1.0], 5.0) == "0xff800000"
    assert first("e5m2", [np.inf], [0.0], 5.0) == "0x7fffffff"
    assert first("e5m2", [np.inf], [1.0], -np.inf) == "0x7fffffff"


@pytest.mark.parametrize(("device", "last"), [("b200", "0xff800000"), ("b200_mma", "0x7fffe000")])
def test_infinities_from_overflow_meet_only_where_the_accumulator_is_added_last(device, last):
    """In the order of mma.sync both are FP16 sums; elsewhere the second product stays finite."""
    a, b = np.zeros((2, 64)), np.full((2, 64), 256.0)
    a[:, 0] = -256.0
    a[1, 32] = 512.0
    got = run(device, "e5m2", a, b, np.zeros(2), "fp16")
    assert [hex(word) for word in bits(got)] == ["0xff800000", last]


# --- the oracles


@pytest.mark.parametrize("core", CORES, ids=core_id)
def test_the_fast_sum_and_two_oracles_agree(core, tensor_core_rows):
    """tests/exhaustive does so with 10**6 rows."""
    a, b, c = tensor_core_rows(core, 170)
    device = next(d for d in map(hardware.get, hardware.names()) if core in d.tensor_cores)
    got = run(device, core.input_format, a, b, c, core.output_format)
    want = matmul.tensor_core_dot_int64(a, b, c, core)
    np.testing.assert_array_equal(bits(got), want.view(np.uint32))
    some = slice(None, None, 11)
    exact = matmul.tensor_core_dot_exact(a[some], b[some], c[some], core)
    np.testing.assert_array_equal(exact.view(np.uint32), want[some].view(np.uint32))


@pytest.mark.parametrize("core", CORES, ids=core_id)
def test_the_rows_of_that_comparison_reach_every_kind_of_result(core, tensor_core_rows):
    want = matmul.tensor_core_dot_int64(*tensor_core_rows(core, 170), core)
    out = np.finfo(np.float32 if core.output_format == "fp32" else np.float16)
    kinds = [np.isnan(want), np.isinf(want), np.abs(want) < out.smallest_normal]
    if formats.get(core.input_format).exponent_bits < 8 and core.output_format == "fp32":
        kinds.pop()  # such products end far above FP32's subnormals
    assert all(kind.sum() > 10 for kind in kinds)


def test_the_oracle_refuses_what_is_not_a_value_of_the_format():
    core = hardware.get("a100").tensor_core("fp16")
    x = np.float32([0.1])
    with pytest.raises(ValueError, match=r"0\.1.* is not a value of fp16; round it first"):
        matmul.tensor_core_dot_exact(x, x, np.float32(0), core)


# --- the function itself


def test_operands_outside_the_format_are_rounded_and_narrow_dtypes_raised():
    a100 = {"device": "a100", "input_format": "bf16"}
    got = matmul.tensor_core_dot([1.01], [1.0], 0.0, **a100)
    assert got.item() == float(jnp.bfloat16(1.01))
    narrow = matmul.tensor_core_dot(jnp.bfloat16([1.01]), jnp.bfloat16([1.0]), 0.0, **a100)
    assert narrow.dtype == jnp.float32
    assert narrow == got


def test_fp8_is_found_under_the_names_that_it_has_elsewhere():
    a, b = np.float32([[1.1, 0.3]]), np.float32([[2.0, 400.0]])
    for fmt, names in {"e4m3fn": ("e4m3", "fp8_e4m3"), "e5m2": ("fp8_e5m2",)}.items():
        h100 = [
            matmul.tensor_core_dot(a, b, 0.0, device="h100", input_format=name).item()
            for name in (fmt, f"float8_{fmt}", *names)
        ]
        assert len(set(h100)) == 1


def test_beyond_the_range_of_e4m3fn_operands_are_nan_as_in_a_cast():
    beyond = np.float32([[463.9], [464.1], [-1e9]])
    got = matmul.tensor_core_dot(beyond, [1.0], 0.0, device="h100", input_format="e4m3fn")
    np.testing.assert_array_equal(got, [448.0, np.nan, np.nan])


def test_leading_axes_broadcast_and_no_products_leave_c():
    a100 = {"device": "a100", "input_format": "tf32"}
    got = matmul.tensor_core_dot(np.ones((3, 1, 2)), np.ones((4, 2)), np.zeros(4), **a100)
    assert (got.shape, set(got.ravel().tolist())) == ((3, 4), {2.0})
    assert matmul.tensor_core_dot(np.ones((2, 0)), np.ones(0), 5.0, **a100).tolist() == [5.0, 5.0]


def test_jit_and_vmap_change_no_bit(tensor_core_rows):
    core = hardware.get("a100").tensor_core("tf32")
    a, b, c = tensor_core_rows(core, 5)

    def dot(a, b, c):
        return matmul.tensor_core_dot(a, b, c, device="a100", input_format="tf32")

    plain = bits(dot(a, b, c))
    np.testing.assert_array_equal(bits(jax.jit(dot)(a, b, c)), plain)
    np.testing.assert_array_equal(bits(jax.vmap(dot)(a, b, c)), plain)


def test_64_bit_mode_changes_no_bit(tensor_core_rows):
    core = hardware.get("h100_mma").tensor_core("e5m2", "fp16")
    a, b, c = tensor_core_rows(core, 170)
    plain = run("h100_mma", "e5m2", a, b, c, "fp16")
    with jax.enable_x64(True):
        got = run("h100_mma", "e5m2", a, b, c, "fp16")
    np.testing.assert_array_equal(bits(got), bits(plain))


def test_bad_calls_say_what_is_wrong():
    one = np.ones(2, np.float32)
    with pytest.raises(ValueError, match=r"no tensor core.*multiplies tf32"):
        matmul.tensor_core_dot(one, one, 0.0, device="v100", input_format="tf32")
    with pytest.raises(ValueError, match="accumulates in fp16"):
        matmul.tensor_core_dot(
            one, one, 0.0, device="a100", input_format="bf16", output_format="fp16"
        )
    with pytest.raises(ValueError, match="last axis is K"):
        matmul.tensor_core_dot(one, one[:1], 0.0, device="a100", input_format="tf32")
    with pytest.raises(TypeError, match="not int32"):
        matmul.tensor_core_dot([1, 2], one, 0.0, device="a100", input_format="tf32")
    with pytest.raises(TypeError, match="has no derivative"):
        jax.grad(lambda a: matmul.tensor_core_dot(a, one, 0.0, device="a100", input_format="tf32"))(
            one
        )
