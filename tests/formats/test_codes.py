import math
import struct

import ml_dtypes
import numpy as np
import pytest

from jprec import formats

SMALL = (
    *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
)
# The first codes, those around the first normal number, the last, and every 97th: both signs.
SAMPLE_16 = sorted(
    {*range(0, 2**16, 97), *range(64), *range(0x3F0, 0x410), *range(0x7BF0, 0x7C10)}
    | {*range(0x7F70, 0x7F90), *range(0x8000, 0x8010), *range(0xFFF0, 0x10000)}
)


def same_number(got: float, want: float) -> bool:
    """Equal, with the sign of zero; all NaNs are one."""
    if math.isnan(want):
        return math.isnan(got)
    return got == want and math.copysign(1, got) == math.copysign(1, want)


@pytest.mark.parametrize("dtype", SMALL)
def test_every_small_code_decodes_as_in_ml_dtypes_and_comes_back(dtype):
    fmt = formats.get(dtype)
    wanted = np.arange(2**fmt.bits, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(float)
    for code, want in enumerate(wanted):
        value = formats.decode(code, fmt)
        assert same_number(value, want), (code, value, want)
        if not math.isnan(value):
            assert formats.encode(value, fmt) == code


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sampled_16_bit_codes_decode_as_in_numpy_and_come_back(dtype):
    codes = np.array(SAMPLE_16, np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wanted = codes.view(np.dtype(dtype)).astype(float)
    for code, want in zip(SAMPLE_16, wanted, strict=True):
        value = formats.decode(code, dtype)
        assert same_number(value, want), (code, value, want)
        if not math.isnan(value):
            assert formats.encode(value, dtype) == code


@pytest.mark.parametrize(("fmt", "pack"), [("fp32", ">f"), ("fp64", ">d")])
def test_wide_codes_are_those_of_ieee(fmt, pack):
    numbers = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, formats.get(fmt).max, 2.0**-140]
    numbers += [formats.get(fmt).min_subnormal, formats.get(fmt).min_normal, math.pi]
    for number in numbers:
        bits = struct.pack(pack, number)
        (stored,) = struct.unpack(pack, bits)
        code = int.from_bytes(bits, "big")
        assert formats.encode(number, fmt) == code
        assert same_number(formats.decode(code, fmt), stored)


def test_tf32_codes_are_the_top_of_fp32_codes():
    for number in (1.0, -3.25, 2.0**-136, 2.0**-127, 1e38):
        stored = formats.round_exact(number, "tf32")
        assert formats.encode(stored, "tf32") == formats.encode(stored, "fp32") >> 13


@pytest.mark.parametrize("name", ["e2m1fn", "e2m3fn", "e4m3fn", "e5m2fnuz", "e8m0fnu", "fp16"])
def test_values_are_all_decoded_numbers_once_and_ascending(name):
    values = formats.values(name)
    assert values.dtype == np.float64
    assert np.all(np.diff(values) > 0)
    codes = range(2 ** formats.get(name).bits)
    decoded = {formats.decode(code, name) for code in codes[:: 1 + len(codes) // 4096]}
    assert {d for d in decoded if math.isfinite(d)} <= set(values.tolist())
    assert values[-1] == formats.get(name).max


def test_values_of_the_smallest_format_are_the_known_ones():
    positive = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert formats.values("e2m1fn").tolist() == [-v for v in positive[::-1]] + [0.0, *positive]
    assert not np.signbit(formats.values("e2m1fn")[7])


def test_values_of_a_wide_format_are_refused():
    with pytest.raises(ValueError, match=r"fp32 has 2\*\*32 codes"):
        formats.values("fp32")


def test_encode_rounds_by_the_oracle():
    assert formats.decode(formats.encode(0.1, "bf16"), "bf16") == 0.10009765625
    assert formats.encode(70000, "fp16") == 0x7C00
    assert formats.encode(70000, "fp16", overflow="saturate") == 0x7BFF
    assert formats.encode(70000, "fp16", "toward_zero") == 0x7BFF
    assert formats.encode(-1e9, "e4m3fn") == 0x7F  # NaN: e4m3fn has no infinity
    assert formats.encode(math.nan, "fp16") == 0x7E00


def test_arrays_are_encoded_and_decoded_number_by_number():
    values = np.array([[1.5, -2.0], [math.inf, 1e-9]])
    codes = formats.encode(values, "fp16")
    assert (codes.dtype, codes.tolist()) == (np.uint16, [[0x3E00, 0xC000], [0x7C00, 0]])
    np.testing.assert_array_equal(formats.decode(codes, "fp16"), np.float64(np.float16(values)))
    assert formats.encode(values, "fp64").dtype == np.uint64
    assert formats.decode(np.zeros((0, 2), int), "fp16").shape == (0, 2)
    assert formats.decode(2**64 - 2**52, "fp64") == -math.inf


@pytest.mark.parametrize("code", [1.5, "0x7bff", np.array([1.0])])
def test_a_code_is_an_integer(code):
    with pytest.raises(TypeError, match="is no integer"):
        formats.decode(code, "fp16")


def test_what_has_no_code_is_refused():
    with pytest.raises(ValueError, match="e2m1fn, which has no NaN"):
        formats.encode(math.nan, "e2m1fn")
    with pytest.raises(ValueError, match="codes 0 to 255"):
        formats.decode(256, "e4m3fn")
    with pytest.raises(ValueError, match="codes 0 to 65535"):
        formats.decode(-1, "fp16")
