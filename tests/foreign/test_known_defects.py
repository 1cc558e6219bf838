"""Mistakes that published implementations make, or made: each a number, and what is right.

`jprec` and the oracle must both give what is right, for the number and its negative. Measured in
the versions named or taken from the issue named.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from jprec import formats, rounding

INF, NAN = math.inf, math.nan


class Defect(NamedTuple):
    """A conversion of `value` that came out wrong somewhere."""

    value: float
    fmt: str
    right: float
    mode: str = "nearest_even"
    overflow: str = "format"


DEFECTS = {
    # pychop 0.6.2, Chop: the binade above the largest is not seen to overflow.
    "one_binade_over_the_maximum_became_0": Defect(70000.0, "fp16", INF),
    "one_binade_over_the_maximum_became_0_again": Defect(69421.0, "fp16", INF),
    "the_first_number_that_overflows_became_65536": Defect(65520.0, "fp16", INF),
    "e4m3_279_became_0": Defect(279.0, "e4m3", INF),
    "the_largest_fp32_became_0_in_bf16": Defect(3.4028235e38, "bf16", INF),
    "the_largest_fp32_became_0_in_tf32": Defect(3.4028235e38, "tf32", INF),
    "just_above_a_midpoint_of_subnormals_went_down": Defect(
        float(np.array(0x35840001, np.uint32).view(np.float32)), "fp16", 1.0132789611816406e-06
    ),
    "toward_zero_lost_a_whole_ulp": Defect(32767.998, "fp16", 32752.0, "toward_zero"),
    "up_did_not_reach_the_smallest": Defect(1e-30, "fp16", 2.0**-24, "up"),
    "toward_zero_overflowed": Defect(1e9, "fp16", 65504.0, "toward_zero"),
    "a_tie_went_the_wrong_way_for_negatives": Defect(-6.106496e-05, "fp16", -6.103515625e-05),
    "to_odd_changed_an_exact_value": Defect(0.00048828125, "fp16", 0.00048828125, "to_odd"),
    "faultchop_e4m3_to_0": Defect(0.0010375977, "e4m3fn", 0.001953125),
    # qtorch 0.3.0 and its relatives (issues 23, 48): ties away, FP8 maxima, signs.
    "a_tie_of_fp16_went_away": Defect(1.00048828125, "fp16", 1.0),
    "a_tie_of_e4m3_went_away": Defect(8.5, "e4m3fn", 8.0),
    "eight_and_twenty_three_bits_turned_the_sign": Defect(3.0, "fp32", 3.0),
    "infinity_became_131008": Defect(INF, "fp16", INF),
    # apytypes 0.5.1, cast: what rounds up from the subnormals to the smallest normal value.
    "up_to_the_smallest_normal_became_0": Defect(
        float(np.array(0x387FFFFF, np.uint32).view(np.float32)), "fp16", 2.0**-14
    ),
    "up_to_the_smallest_normal_of_e4m3_became_0": Defect(0.0146484375, "e4m3fn", 0.015625),
    # microxcaling (7bc4195): its exponent comes from a logarithm.
    "just_below_half_the_smallest_became_the_smallest": Defect(
        float(np.array(0x32FFFFFF, np.uint32).view(np.float32)), "fp16", 0.0
    ),
    "the_largest_fp32_became_nan": Defect(3.4028235e38, "e4m3fn", NAN),
    "floor_lost_half_a_unit": Defect(7.9999995, "e2m3fn", 7.5, "toward_zero"),
    # CPFloat (3583976): OCP's E4M3 ends at 448, not at 480.
    "e4m3fn_overflowed_to_480": Defect(470.0, "e4m3fn", NAN),
    "e4m3fn_saturated_to_480": Defect(470.0, "e4m3fn", 448.0, overflow="saturate"),
    # custom-float-quant 0.3.0: formats without infinity were given one.
    "e2m1_4_became_infinity": Defect(4.0, "e2m1fn", 4.0),
    "e2m1_6_became_infinity": Defect(6.0, "e2m1fn", 6.0),
    "e4m3fn_256_became_infinity": Defect(256.0, "e4m3fn", 256.0),
    "e2m3_4_became_infinity": Defect(4.0, "e2m3fn", 4.0),
    # Issues: bitstring 342, xla 17324, sglang 40581, universal 1302, triton 11897.
    "e4m3_232_became_224": Defect(232.0368, "e4m3", 240.0),
    "f16_to_e4m3fn_went_away": Defect(-0.0586, "e4m3fn", -0.05859375),
    "e4m3fn_saturated_from_256": Defect(300.0, "e4m3fn", 288.0),
    "e4m3fn_500_is_nan_or_448_by_choice": Defect(500.0, "e4m3fn", NAN),
    "e4m3fn_500_is_448_by_choice": Defect(500.0, "e4m3fn", 448.0, overflow="saturate"),
    "fp8_126_became_64": Defect(126.24, "e4m3fn", 128.0),
    # Issues: ml_dtypes 221 was no defect; onnx 7784 and vllm 43557 about scales in E8M0.
    "a_tie_of_e3m2_is_to_even": Defect(4.5, "e3m2fn", 4.0),
    "e8m0_rounded_up_wrongly": Defect(1.125, "e8m0fnu", 2.0, "up"),
    "e8m0_ties_go_up": Defect(1.5, "e8m0fnu", 2.0),
    # mlx 4353, aiter 974: -0.625 / 0.5 in E2M1.
    "a_quotient_of_e2m1_went_toward_zero": Defect(-1.25, "e2m1fn", -1.0),
    # PyTorch 179111: E4M3's smallest value is 2**-9, not 2**-6.
    "the_smallest_e4m3fn_is_subnormal": Defect(2.0**-9, "e4m3fn", 2.0**-9),
    # CUTLASS 1289, 2254, triton 4574: TF32 to nearest, ties away or even, and truncated differ.
    "tf32_to_nearest_was_truncated": Defect(1.0 + 2.0**-11 + 2.0**-20, "tf32", 1.0 + 2.0**-10),
    "tf32_ties_away": Defect(1.0 + 2.0**-11, "tf32", 1.0 + 2.0**-10, "nearest_away"),
    "tf32_ties_even": Defect(1.0 + 2.0**-11, "tf32", 1.0),
    "tf32_toward_zero": Defect(1.0 + 2.0**-10 - 2.0**-23, "tf32", 1.0, "toward_zero"),
    "a_carry_goes_into_the_exponent": Defect(1.9999, "bf16", 2.0),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_mistake_is_not_made(name):
    value, fmt, right, mode, overflow = DEFECTS[name]
    signs = (1,) if mode in ("up", "down") or fmt == "e8m0fnu" else (1, -1)
    for sign in signs:
        x = np.float32(sign * value)
        got = rounding.round_to(x, fmt, mode, overflow=overflow)
        np.testing.assert_array_equal(np.asarray(got), np.float32(sign * right))
        exact = formats.round_exact(float(x), fmt, mode, overflow=overflow)
        np.testing.assert_array_equal(exact, float(np.float32(sign * right)))


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "e4m3fn", "e5m2", "e5m2fnuz", "e2m1fn"])
def test_no_nan_turned_into_a_number(name):
    """CPFloat made infinity or -0 of some, qtorch 131008, ml_dtypes -0 where there is no NaN."""
    bits = np.array([0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0xFF800001], np.uint32)
    for mode in formats.MODES:
        assert jnp.isnan(rounding.round_to(bits.view(np.float32), name, mode)).all()
    assert jnp.isnan(rounding.round_to(bits.view(np.float32), name, overflow="saturate")).all()


def test_the_sign_of_zero_is_not_lost(assert_same_bits):
    """pychop, qtorch, mptorch, microxcaling: -0, and what underflows to it, became +0."""
    x = np.float32([-0.0, -1e-30, -(2.0**-26)])
    for mode in ("nearest_even", "nearest_away", "toward_zero", "up"):
        assert_same_bits(rounding.round_to(x, "fp16", mode), np.float32([-0.0, -0.0, -0.0]))


def test_reduce_precision_is_no_cast_and_round_to_is_none_of_it():
    """lax.reduce_precision flushes the target's subnormals, and keeps NaNs that bf16 has not."""
    x = jnp.float32([3.05e-5, 2.0**-24])
    assert lax.reduce_precision(x, 5, 10).tolist() == [0.0, 0.0]
    assert rounding.round_to(x, "fp16").tolist() == [3.0517578125e-05, 2.0**-24]


def test_double_precision_is_not_rounded_by_way_of_fp32():
    """julia 40315, tinygrad 18071, ml_dtypes 401, and XLA on a CPU."""
    with jax.enable_x64(True):
        x = jnp.float64([1 + 2.0**-11 + 2.0**-40, -(1 + 2.0**-11 + 2.0**-40)])
        assert rounding.round_to(x, "fp16").tolist() == [1 + 2.0**-10, -(1 + 2.0**-10)]
        assert rounding.round_to(jnp.float64([-431.99999999999994]), "e4m3fn").tolist() == [-416.0]
        assert rounding.round_to(jnp.float64([1 + 2**-8 + 2**-40]), "bf16").tolist() == [1.0078125]
        # gfloat 49: just below 2**119, which FP32 makes of it.
        x = jnp.float64([6.6461399789245764e35])
        assert rounding.round_to(x, "bf16", "toward_zero").tolist() == [6.620178494631905e35]
    assert (
        formats.round_exact(16973823, "bf16") == 16908288.0
    )  # an integer, by way of FP32 16973824


def test_fp32_subnormals_are_not_flushed_on_a_cpu():
    """XLA on a CPU takes them for zero in arithmetic; gfloat under jax.jit, mptorch, pychop."""
    bits = np.array([0x00000001, 0x00012345, 0x007FFFFF, 0x8001C000], np.uint32)
    want = bits.view(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    got = np.asarray(rounding.round_to(bits.view(np.float32), "bf16"))
    assert np.count_nonzero(want.view(np.uint32) & 0x7FFFFFFF) == 3
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_stochastic_rounding_of_subnormals_stays_between_the_neighbours():
    """StochasticRounding.jl 62: FP16 subnormals went outside."""
    x = jnp.full(4096, 1.3 * 2.0**-24, jnp.float32)
    got = rounding.round_to(x, "fp16", "stochastic", key=jax.random.key(0))
    assert set(np.unique(got).tolist()) == {2.0**-24, 2.0**-23}


def test_to_odd_across_a_binade_stays_odd():
    """rlibm-all 1: between 2 - ulp and 2, the odd neighbour is the lower one."""
    assert float(rounding.round_to(jnp.float32(1.9999), "fp16", "to_odd")) == 2 - 2.0**-10
    assert float(rounding.round_to(jnp.float32(2.0001), "fp16", "to_odd")) == 2 + 2.0**-9


def test_every_code_of_mx_elements_survives_the_encoder():
    """tt-metal 51971: 132 of the 256 codes of E4M3 did not, and 0.25000006 became 0."""
    values = formats.values("e4m3fn").astype(np.float32)
    blocks = np.concatenate([values[:, None], np.full((len(values), 31), 448.0)], 1)
    got = rounding.round_blocks(jnp.float32(blocks), "mxfp8_e4m3")
    np.testing.assert_array_equal(got[:, 0], values)
    block = jnp.float32([0.25000006, 1.0])
    assert rounding.round_blocks(block, "mxfp4").tolist() == [0.25, 1.0]


def test_block_maxima_follow_the_rule_that_is_named():
    """microxcaling 4, torchao 436: by OCP's rule 957 becomes 896, and 127.9999 saturates at 112."""
    assert rounding.round_blocks(jnp.float32([957.0, 1.0]), "mxfp8_e4m3")[0] == 896.0
    assert rounding.round_blocks(jnp.float32([127.9999, 1.0]), "mxfp8_e5m2")[0] == 112.0
    assert rounding.round_blocks(jnp.float32([127.9999, 1.0]), "mxfp8_e5m2:ceil")[0] == 128.0


def test_an_infinity_in_a_block_gives_no_finite_number():
    """gfloat 0.5.2 gave 7.6e40, pychop zeros beside an infinity."""
    got = rounding.round_blocks(jnp.float32([math.inf, 1.0]), "mxfp8_e4m3")
    assert jnp.isnan(got).all()
