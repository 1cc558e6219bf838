"""Specs are values: spelled, read back, compared, refused."""

import jax
import jax.numpy as jnp
import pytest

from jprec import matmul

CANONICAL = [*matmul.names(), "tf32:toward_zero", "bf16:up", "e8m2:to_odd", "fp16+fp16"]
CANONICAL += ["bf16x6:toward_zero", "tf32x3@a100", "fp16@v100+fp16", "e4m3fn+chunk128"]
CANONICAL += ["fp16+fp16+kahan+chunk64", "bf16@native", "fp32+fp32", "fp32@native"]


@pytest.mark.parametrize("name", CANONICAL)
def test_a_spec_reads_back_from_its_own_spelling(name):
    spec = matmul.get(name)
    assert str(spec) == name or name in ("fp16_acc16", "fp8_e4m3", "fp8_e5m2")
    assert matmul.get(str(spec)) == spec
    assert matmul.get(spec) is spec


def test_spellings_of_one_spec_are_equal_and_hash_alike():
    assert matmul.get("tf32") == matmul.get("e8m10:nearest_away")
    assert len({matmul.get("bfloat16"), matmul.get("bf16:nearest_even"), matmul.get("bf16")}) == 1
    assert matmul.get("fp8_e4m3@h100") == matmul.get("e4m3fn@h100")
    assert str(matmul.get("fp8_e5m2:toward_zero@l40s")) == "e5m2:toward_zero@ada"


def test_tf32_rounds_as_the_conversion_instruction_does_and_the_rest_to_even():
    assert matmul.get("tf32").rounding == "nearest_away"
    assert matmul.get("tf32@a100").rounding == "nearest_away"
    assert {matmul.get(name).rounding for name in ("bf16", "fp16", "e8m2")} == {"nearest_even"}


def test_a_spec_is_a_static_argument():
    product = jax.jit(matmul.matmul, static_argnums=2)
    x = jnp.full((1, 1), 1.0001)
    assert product(x, x, matmul.get("tf32")) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tf23", "did you mean tf32"),
        ("tf33x3", "did you mean tf32x3"),
        ("tf32x4", "products=4.*1, 3, 6, 9"),
        ("fp32x3", "neither rounded nor split"),
        ("fp16+fp17", r"\+fp17 is no accumulator.*\+chunk128"),
        ("fp16+fp64", "sums are held in FP32"),
        ("fp16+fp16+bf16", "says twice what its accumulator is"),
        ("tf32:up:down", "says twice what its rounding is"),
        ("tf32:nearest_away:toward_zero", "says twice what its rounding is"),
        ("fp32+e8m22", "at most 22 bits"),
        ("fp32+e7m23", "at most 22 bits"),
        ("tf32x٣", "unknown product spec"),
        ("fp16+kahan", r"as in '\+fp32\+kahan'"),
        ("fp16@a100+kahan", "a tensor core carries no compensation"),
        ("bf16@a100+fp16", "no tensor core.*bf16 and accumulates in fp16"),
        ("fp16+chunk0", "at least 1 product"),
        ("tf32:up@native", "leave rounding, kahan and chunk out"),
        ("tf32:nearest", "rounding='nearest'.*nearest_away"),
        ("bf16:stochastic", "would need a key"),
        ("tf32@a1000", "did you mean a100"),
        ("tf32@v100", "v100.*no tensor core.*multiplies tf32"),
        ("fp8_e4m3@a100", "a100.*no tensor core.*multiplies e4m3fn"),
        ("e4m3@h100", "no tensor core.*multiplies e4m3 .*e4m3fn to fp32"),
        ("fp32@a100", "write 'fp32' without a device"),
        ("fp32:toward_zero", "neither rounded nor split"),
        ("fp64", "cannot hold all values of fp64"),
        ("e8m0fnu", "cannot hold all values of e8m0fnu"),
        ("tf32:", "ends where"),
        ("tf32@", "ends where"),
        ("", "unknown product spec ''"),
    ],
)
def test_what_is_no_spec_says_why(text, message):
    with pytest.raises(ValueError, match=message):
        matmul.get(text)


def test_an_object_that_is_no_spec_is_refused():
    with pytest.raises(TypeError, match="pass a string"):
        matmul.get(None)


def test_a_built_spec_is_checked_as_a_spelled_one():
    with pytest.raises(ValueError, match="the name is 'bf16'"):
        matmul.MatmulSpec(operand_format="bfloat16")
    with pytest.raises(ValueError, match="write 'fp32' without a device"):
        matmul.MatmulSpec(operand_format="fp32", device="a100")


def test_a_built_spec_has_the_names_that_a_spelled_one_has():
    built = matmul.MatmulSpec(operand_format="fp16", device="l40s", compensated=0)
    assert built == matmul.get("fp16@L40S") == matmul.get(str(built))
    assert matmul.get("fp8_e4m3x3").operand_format == "e4m3fn"
    assert matmul.get("fp16+fp8_e4m3").accumulator == "e4m3fn"
    with pytest.raises(ValueError, match="chunk='8'"):
        matmul.MatmulSpec(operand_format="fp16", chunk="8")


def test_which_parts_are_multiplied_and_in_which_order():
    assert matmul.get("tf32x3").pairs == ((0, 1), (1, 0), (0, 0))
    last = ((0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 0))
    assert matmul.get("bf16x6").pairs == last
    assert matmul.get("bf16x9").pairs == ((2, 2), (1, 2), (2, 1), *last)
