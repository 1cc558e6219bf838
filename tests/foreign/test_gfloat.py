"""gfloat, which knows IEEE P3109 and five of the modes: the same values, the same roundings."""

import warnings

import gfloat
import gfloat.formats as peers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import formats, rounding

with warnings.catch_warnings():  # gfloat's own deprecations are not ours
    warnings.simplefilter("ignore")
    OCP = {
        "fp16": peers.format_info_binary16,
        "bf16": peers.format_info_bfloat16,
        "e4m3fn": peers.format_info_ocp_e4m3,
        "e5m2": peers.format_info_ocp_e5m2,
        "e2m3fn": peers.format_info_ocp_e2m3,
        "e3m2fn": peers.format_info_ocp_e3m2,
        "e2m1fn": peers.format_info_ocp_e2m1,
        "e8m0fnu": peers.format_info_ocp_e8m0,
    }

MODES = {
    "nearest_even": gfloat.RoundMode.TiesToEven,
    "nearest_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}

SIGNS = {"s": gfloat.Signedness.Signed, "u": gfloat.Signedness.Unsigned}
DOMAINS = {"e": gfloat.Domain.Extended, "f": gfloat.Domain.Finite}
P3109 = [
    (bits, precision, sign, domain)
    for bits in range(3, 11)
    for sign in "su"
    for precision in range(1, bits + (sign == "u"))
    for domain in "ef"
]


def p3109(bits, precision, sign, domain):
    """jprec's name, and gfloat's description."""
    info = peers.format_info_p3109(bits, precision, SIGNS[sign], DOMAINS[domain])
    return f"binary{bits}p{precision}{sign}{domain}", info


def all_codes(name):
    fmt = formats.get(name)
    codes = np.arange(2**fmt.bits)
    return fmt, codes, np.array([formats.decode(int(code), fmt) for code in codes])


def test_four_bit_formats_are_those_of_the_working_groups_value_tables():
    """IEEE P3109's public value tables; the code that is NaN is left out there."""
    nan, inf = float("nan"), float("inf")
    tables = {
        "binary4p2se": [0, 0.25, 0.5, 0.75, 1, 1.5, 2, inf],
        "binary4p1sf": [0, 0.125, 0.25, 0.5, 1, 2, 4, 8],
        "binary4p3ue": [n / 8 for n in (0, 1, 2, 3, 4, 5, 6, 7)]
        + [1, 1.25, 1.5, 1.75, 2, 2.5, inf, nan],
        "binary4p4uf": [n / 8 for n in range(15)] + [nan],
    }
    for name, table in tables.items():
        want = table if len(table) == 16 else [*table, nan, *(-v for v in table[1:])]
        np.testing.assert_array_equal(all_codes(name)[2], want, err_msg=name)
    assert formats.get("binary10p1ue").min_normal == 2.0**-511


def test_every_code_of_every_p3109_format_up_to_10_bits_decodes_as_in_gfloat():
    assert len(P3109) == 192
    for fields in P3109:
        name, info = p3109(*fields)
        fmt, codes, got = all_codes(name)
        np.testing.assert_array_equal(got, gfloat.decode_ndarray(info, codes), err_msg=name)
        assert not np.signbit(got[got == 0]).any()
        again = [formats.encode(value, fmt) for value in got]
        np.testing.assert_array_equal(again, codes, err_msg=name)


@pytest.mark.parametrize("name", OCP)
def test_every_code_decodes_as_in_gfloat(name):
    _, codes, got = all_codes(name)
    want = gfloat.decode_ndarray(OCP[name], codes)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))


ROUNDED = {name: info for name, info in OCP.items() if name != "e8m0fnu"} | dict(
    p3109(*fields)
    for fields in [
        *((8, 4, "s", "e"), (8, 3, "s", "f"), (8, 1, "s", "e"), (6, 3, "s", "e"), (5, 2, "s", "f")),
        *((8, 4, "u", "e"), (8, 1, "u", "f"), (6, 6, "u", "e")),
    ]
)


@pytest.mark.parametrize("name", ROUNDED)
def test_five_modes_round_as_in_gfloat(name, points):
    info, fmt = ROUNDED[name], formats.get(name)
    x = points(name, 3000)
    x = x[~np.isnan(x)]
    if not fmt.signed:  # gfloat 0.5.2 rounds negative numbers to negative ones, which do not exist
        x = x[x >= 0]
    overflow = "format" if fmt.has_nan else "saturate"  # else gfloat raises
    every = jax.jit(
        lambda x: jnp.stack([rounding.round_to(x, name, m, overflow=overflow) for m in MODES])
    )
    for (mode, peer), got in zip(MODES.items(), np.asarray(every(x)), strict=True):
        with np.errstate(all="ignore"):
            want = gfloat.round_ndarray(info, x.astype(np.float64), peer, overflow == "saturate")
        np.testing.assert_array_equal(got.astype(np.float64), want, err_msg=mode)
        np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))


BLOCKS = {
    "mxfp8_e4m3": peers.format_info_mxfp8_e4m3,
    "mxfp8_e5m2": peers.format_info_mxfp8_e5m2,
    "mxfp6_e2m3": peers.format_info_mxfp6_e2m3,
    "mxfp6_e3m2": peers.format_info_mxfp6_e3m2,
    "mxfp4": peers.format_info_mxfp4_e2m1,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_mx_blocks_are_those_of_gfloat(name):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((20, 32)) * 2.0 ** rng.integers(-30, 30, (20, 1))
    x = x.astype(np.float32)
    got = np.asarray(rounding.round_blocks(x, name))
    for row, found in zip(x.astype(np.float64), got, strict=True):
        want = gfloat.quantize_block(BLOCKS[name], row, gfloat.compute_scale_amax)
        np.testing.assert_array_equal(found.astype(np.float64), want)
