"""Blocks against recorded outputs of GPUs, published examples, and the oracle: bit for bit."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import hardware, matmul

RECORDED = pathlib.Path(__file__).parents[2].parent / "shared" / "golden" / "tensor_cores"
CORES = list(dict.fromkeys(c for name in hardware.names() for c in hardware.get(name).tensor_cores))
FILES = [
    (name, fmt) for name in hardware.names() if name != "h200"  # same processor as h100
    for fmt in hardware.get(name).input_formats
]  # fmt: skip


def floats(bits):
    return np.asarray(bits, np.uint32).view(np.float32)


def bits(x):
    assert x.dtype == jnp.float32
    return np.asarray(x).view(np.uint32)


def core_id(core):
    return f"{core.input_format}-{core.output_format}-L{core.products}-F{core.fraction_bits}"


def run(device, fmt, a, b, c, output="fp32"):
    """The results of n rows, a and b [n, K], c [n]: filled up to one shape, so compiled once."""
    shape = (1020, 2 * hardware.get(device).tensor_core(fmt, output).products + 1)
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


# --- recorded outputs


@pytest.mark.parametrize(("device", "fmt"), FILES)
def test_recorded_outputs_of_the_gpu_are_reproduced_without_exception(device, fmt):
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded outputs are not beside the repository: {RECORDED}")
    rows = np.load(RECORDED / f"{device}_{fmt}.npz")
    a, b, c = (floats(rows[name]) for name in "abc")
    outputs = [output for output in ("fp32", "fp16") if f"d_{output}" in rows]
    assert "fp32" in outputs
    for output in outputs:
        got = run(device, fmt, a, b, c, output)
        assert len(got) == 1000
        np.testing.assert_array_equal(bits(got), rows[f"d_{output}"])


# First rows of the same data, so that some of it is always tested.
FIRST_FP16 = (
    "3bd5*38ca + 3c3e*b935 + b534*36bf + 3df8*34ec + b9e8*bf9a + 356e*3797 + 3c05*be0b + 3f47*bc83"
)
SAMPLES = [
    ("v100", "fp16", "3bd5*38ca + 3c3e*b935 + b534*36bf + 3df8*34ec", 0x3F7F418C, 0x3F9B7DEC),
    ("v100", "fp16", "b43f*3c29 + 3206*39b5 + b922*3b81 + a4f9*abb3", 0x3E220678, 0xBF158A76),
    ("a100", "fp16", FIRST_FP16, 0x3F5091BB, 0xBF794A57),
    (
        "h100",
        "fp16",
        FIRST_FP16 + " + 3b17*2df8 + 3ae9*b98b + bc60*ba97 + 359f*4075 + 2788*a388 + 34e3*40f2"
        " + 3c37*30e1 + 3ac8*b527",
        0x3F676BEA,
        0x3F6D0CDA,
    ),
    (
        "a100",
        "bf16",
        "3f7a*3f19 + 3f87*bf26 + bea6*3ed7 + 3fbf*3e9d + bf3d*bff3 + 3ead*3ef2 + 3f80*bfc1"
        " + 3fe8*bf90",
        0x3E8E06AD,
        0xBFBE56D5,
    ),
    (
        "a100",
        "tf32",
        "3f7aa000*3f194000 + 3f87c000*bf26a000 + bea68000*3ed7e000 + 3fbf0000*3e9d8000",
        0x3EFE7B25,
        0x3F36F7DE,
    ),
    (
        "a100",
        "tf32",
        "be87e000*3f852000 + 3e40c000*3f36a000 + bf244000*3f702000 + bc9f2000*bd766000",
        0x3EDA7C1C,
        0xBEA19C0C,
    ),
    (
        "h100",
        "tf32",
        "3f7aa000*3f194000 + 3f87c000*bf26a000 + bea68000*3ed7e000 + 3fbf0000*3e9d8000",
        0x3F795773,
        0x3F9888DF,
    ),
]
WIDEN = {"fp16": half, "bf16": upper_half, "tf32": lambda code: float(floats(code))}


@pytest.mark.parametrize(("device", "fmt", "terms", "c", "expected"), SAMPLES)
def test_first_rows_of_the_recorded_outputs(device, fmt, terms, c, expected):
    a, b = terms_of(terms, WIDEN[fmt])
    assert hex(bits(run(device, fmt, a, b, floats(c)))[0]) == hex(expected)


# --- published examples

# Terms, c, and the result on each device. The first group is asserted by the test suites of Fasi,
# Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science
# 7:e330, 2021; the second is printed in Khattak and Mikaitis, arXiv:2512.07004v2.
FP16_EXAMPLES = [
    ("0001*4400", 0, {"v100": 0x34800000, "a100": 0x34800000}),
    ("", 0x00000001, {"v100": 0x00000001, "a100": 0x00000001}),
    ("0400*3800", 0, {"v100": 0x38000000, "a100": 0x38000000}),
    ("0400*3c00", 0xB8000000, {"v100": 0x38000000, "a100": 0x38000000}),
    ("3bff*3bff", 0, {"v100": 0x3F7FC004, "a100": 0x3F7FC004}),
    ("4x 3bff*3bff", 0, {"v100": 0x407FC004, "a100": 0x407FC004}),
    ("4x 3c00*0001", 0x3F800000, {"v100": 0x3F800000}),
    ("4x 3800*0001", 0x3F800000, {"v100": 0x3F800000, "a100": 0x3F800000}),
    ("3c00*3c00 + 3x 3c00*0001", 0x33800000, {"v100": 0x3F800000}),
    ("3x 3c00*0001 + 3c00*3c00", 0x33800000, {"v100": 0x3F800000}),
    ("3c00*4000 + 3c00*0003", 0, {"v100": 0x40000000, "a100": 0x40000000}),
    ("3c00*c000 + 3c00*8003", 0, {"v100": 0xC0000000, "a100": 0xC0000000}),
    ("3c00*3c00", 0xBF7FFFFF, {"v100": 0x34000000, "a100": 0x33800000}),
    ("4x 3c00*0001", 0x3F7FFFFF, {"v100": 0x3F800001, "a100": 0x3F800001}),
    ("3c00*3c00 + 3c00*8001", 0xBF7FFFFF, {"v100": 0x34000000, "a100": 0x00000000}),
    ("3x 3c00*3c00 + 3c00*0002", 0x3F800003, {"v100": 0x40800001, "a100": 0x40800001}),
    ("3c00*0002 + 3x 3c00*3c00", 0x3F800003, {"v100": 0x40800001, "a100": 0x40800001}),
    (
        "3c00*3c00 + 3c00*3e00 + 3c00*3f00 + 3c00*3f80",
        0x3FF00000,
        {"v100": 0x41000000, "a100": 0x41000000},
    ),
    ("4x 3c00*3c00", 0x3F800003, {"v100": 0x40A00000, "a100": 0x40A00000}),
    ("4x 3c00*bc00", 0xBF800003, {"v100": 0xC0A00000, "a100": 0xC0A00000}),
    ("3e00*3e00 + 2x 3c00*0002", 0, {"v100": 0x40100001}),
    ("3c00*4080 + 2x 3c00*0002", 0, {"v100": 0x40100000}),
    ("2x 3c00*0002", 0x40100000, {"v100": 0x40100000}),
    ("3e00*3e00 + 3c00*0002 + 2x 3c00*0001", 0, {"a100": 0x40100001}),
    ("3e00*3e00 + 3400*000e + 3400*0002", 0, {"h100": 0x40100001}),
    ("2x 3c00*0001", 0x3F800000, {"a100": 0x3F800001}),
]


@pytest.mark.parametrize(("terms", "c", "expected"), FP16_EXAMPLES)
def test_published_examples_with_fp16_operands(terms, c, expected):
    a, b = terms_of(terms, half)
    for device, d in expected.items():
        assert (device, hex(bits(run(device, "fp16", a, b, floats(c)))[0])) == (device, hex(d))


@pytest.mark.parametrize(
    ("terms", "d"),
    [("0001*4400", 0x0004), ("3bff*3bff + 3bff*1000", 0x3BFF), ("0001*3800 + 0001*3400", 0x0001)],
)
def test_published_examples_with_fp16_output(terms, d):  # Fasi et al. 2021
    a, b = terms_of(terms, half)
    for device in ("v100", "a100"):
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


@pytest.mark.parametrize(
    ("device", "expected"),
    [("v100", 0.0), ("a100", -0.5), ("ada", -0.5), ("h100", -0.75), ("b200", -0.75)],
)
def test_what_survives_beside_2_to_the_23_tells_the_devices_apart(device, expected):
    """Table 8 of MMA-Sim, arXiv:2511.10909v2."""
    a, b = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1.0, 1.0, 1.0]
    for fmt in hardware.get(device).input_formats:
        assert run(device, fmt, a, b, 2.0**23).item() == expected


@pytest.mark.parametrize(("device", "flips_at"), [("a100", 157), ("ada", 157), ("h100", 159)])
def test_terms_are_never_aligned_below_the_least_exponent(device, flips_at):
    """2**-149 - 2**-k, both as products: MMA-Sim 2.1.1 and Hawkeye agree on it."""
    k = np.arange(150, 165)
    a = np.stack([np.full(len(k), 2.0**-75), -(2.0 ** -(k - 80.0))], -1)
    b = np.broadcast_to([2.0**-74, 2.0**-80], a.shape)
    c = np.zeros(len(k))
    for fmt in ("bf16", "tf32"):
        np.testing.assert_array_equal(bits(run(device, fmt, a, b, c)), k >= flips_at)


@pytest.mark.parametrize(("device", "last"), [("v100", 42), ("a100", 44), ("h100", 46)])
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


# --- the oracle


@pytest.mark.parametrize("core", CORES, ids=core_id)
def test_the_fast_sum_agrees_with_the_oracle(core, rows):
    a, b, c = rows(core, 170)
    device = next(d for d in map(hardware.get, hardware.names()) if core in d.tensor_cores)
    got = run(device, core.input_format, a, b, c, core.output_format)
    want = matmul.tensor_core_dot_exact(a, b, c, core)
    np.testing.assert_array_equal(bits(got), want.view(np.uint32))


@pytest.mark.parametrize("core", CORES, ids=core_id)
def test_the_rows_of_that_comparison_reach_every_kind_of_result(core, rows):
    want = matmul.tensor_core_dot_exact(*rows(core, 40), core)
    out = np.finfo(np.float32 if core.output_format == "fp32" else np.float16)
    kinds = [np.isnan(want), np.isinf(want), np.abs(want) < out.smallest_normal]
    if (core.input_format, core.output_format) == ("fp16", "fp32"):
        kinds.pop()  # FP16 products end far above FP32's subnormals
    assert all(kind.sum() > 3 for kind in kinds)


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


def test_leading_axes_broadcast_and_no_products_leave_c():
    a100 = {"device": "a100", "input_format": "tf32"}
    got = matmul.tensor_core_dot(np.ones((3, 1, 2)), np.ones((4, 2)), np.zeros(4), **a100)
    assert (got.shape, set(got.ravel().tolist())) == ((3, 4), {2.0})
    assert matmul.tensor_core_dot(np.ones((2, 0)), np.ones(0), 5.0, **a100).tolist() == [5.0, 5.0]


def test_jit_and_vmap_change_no_bit(rows):
    core = hardware.get("a100").tensor_core("tf32")
    a, b, c = rows(core, 5)

    def dot(a, b, c):
        return matmul.tensor_core_dot(a, b, c, device="a100", input_format="tf32")

    plain = bits(dot(a, b, c))
    np.testing.assert_array_equal(bits(jax.jit(dot)(a, b, c)), plain)
    np.testing.assert_array_equal(bits(jax.vmap(dot)(a, b, c)), plain)


def test_64_bit_mode_changes_no_bit(rows):
    core = hardware.get("h100").tensor_core("fp16", "fp16")
    a, b, c = rows(core, 170)
    plain = run("h100", "fp16", a, b, c, "fp16")
    with jax.enable_x64(True):
        got = run("h100", "fp16", a, b, c, "fp16")
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
