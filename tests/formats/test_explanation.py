import math

import pytest

from jprec import formats


def test_the_essays_number_is_explained_bit_by_bit():
    got = formats.explain(43008.111, "fp16")
    assert (got.bits, got.value, got.ulp) == ("0 11110 0101000000", 43008.0, 32.0)
    assert (got.below, got.above, got.kind) == (43008.0, 43040.0, "normal")
    assert got.error == pytest.approx(-0.111, abs=1e-9)
    assert formats.explain(43008.111, "bf16").above == 43264.0


def test_an_error_is_exact_before_it_is_rounded():
    got = formats.explain(-4.703990459442139, "bf16")
    assert (got.value, got.error) == (-4.71875, -0.014759540557861328)


@pytest.mark.parametrize(
    ("value", "fmt", "bits", "kind", "below", "above"),
    [
        (1.0, "fp16", "0 01111 0000000000", "normal", 1 - 2.0**-11, 1 + 2.0**-10),
        (2.0**-24, "fp16", "0 00000 0000000001", "subnormal", 0.0, 2.0**-23),
        (0.0, "e4m3fn", "0 0000 000", "zero", -(2.0**-9), 2.0**-9),
        (-0.0, "fp16", "1 00000 0000000000", "zero", -(2.0**-24), 2.0**-24),
        (65504.0, "fp16", "0 11110 1111111111", "normal", 65472.0, math.inf),
        (70000.0, "fp16", "0 11111 0000000000", "infinity", 65504.0, math.inf),
        (448.0, "e4m3fn", "0 1111 110", "normal", 416.0, None),
        (6.0, "e2m1fn", "0 11 1", "normal", 4.0, None),
        (-8.0, "e2m1fn", "1 11 1", "normal", None, -6.0),
        (1.5, "e8m0fnu", "10000000", "normal", 1.0, 2.0),
        (math.inf, "fp16", "0 11111 0000000000", "infinity", 65504.0, None),
        (math.nan, "fp16", "0 11111 1000000000", "nan", None, None),
    ],
)
def test_edges_of_a_format_are_explained(value, fmt, bits, kind, below, above):
    got = formats.explain(value, fmt)
    assert (got.bits, got.kind, got.below, got.above) == (bits, kind, below, above)
    assert got.code == int(bits.replace(" ", ""), 2)


def test_beyond_the_largest_value_the_error_is_infinite_and_the_spacing_the_last():
    got = formats.explain(70000.0, "fp16")
    assert (got.error, got.ulp) == (math.inf, 32.0)


@pytest.mark.parametrize("value", [43008.111, "1/3", 1e-7, 0, math.nan, -math.inf, "1e400", 2**70])
@pytest.mark.parametrize("fmt", ["fp64", "tf32", "fp16", "e4m3fn", "e8m0fnu"])
def test_every_explanation_reads_as_text(value, fmt):
    text = str(formats.explain(value, fmt))
    assert fmt in text.splitlines()[0]
    assert "value" in text


def test_the_mode_is_used_and_shown():
    got = formats.explain(43039.0, "fp16", "toward_zero")
    assert got.value == 43008.0
    assert "toward_zero" in str(got)
