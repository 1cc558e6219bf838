"""Exact facts that essays and papers state or get wrong; A12 is in test_stochastic.py."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jprec import formats, rounding


def rounded(value: float, fmt: str, mode: str = "nearest_even") -> float:
    """One FP32 number in `fmt`; the oracle must agree."""
    got = float(rounding.round_to(jnp.float32(value), fmt, mode))
    assert got == formats.round_exact(float(np.float32(value)), fmt, mode)
    return got


# name: exponent bits, mantissa bits, p, emin, emax, max, min normal, min subnormal
TABLE = {
    "fp32": (8, 23, 24, -126, 127, (2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149),
    "tf32": (8, 10, 11, -126, 127, (2 - 2.0**-10) * 2.0**127, 2.0**-126, 2.0**-136),
    "fp16": (5, 10, 11, -14, 15, 65504.0, 2.0**-14, 2.0**-24),
    "bf16": (8, 7, 8, -126, 127, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133),
    "e4m3fn": (4, 3, 4, -6, 8, 448.0, 2.0**-6, 2.0**-9),
    "e5m2": (5, 2, 3, -14, 15, 57344.0, 2.0**-14, 2.0**-16),
}


@pytest.mark.parametrize("name", TABLE)
def test_a1_the_table_of_formats(name):
    exponent_bits, mantissa_bits, p, emin, emax, largest, normal, subnormal = TABLE[name]
    fmt = formats.get(name)
    assert (fmt.exponent_bits, fmt.mantissa_bits, fmt.precision) == (
        exponent_bits,
        mantissa_bits,
        p,
    )
    assert (fmt.min_exponent, fmt.max_exponent) == (emin, emax)
    assert (fmt.max, fmt.min_normal, fmt.min_subnormal) == (largest, normal, subnormal)
    assert (fmt.unit_roundoff, fmt.epsilon) == (2.0**-p, 2.0 ** (1 - p))
    if name != "tf32":  # which no dtype has
        info = ml_dtypes.finfo(
            {
                "fp32": "float32",
                "fp16": "float16",
                "bf16": "bfloat16",
                "e4m3fn": "float8_e4m3fn",
                "e5m2": "float8_e5m2",
            }[name]
        )
        assert (float(info.max), float(info.smallest_normal)) == (largest, normal)
        assert (float(info.smallest_subnormal), float(info.eps)) == (subnormal, fmt.epsilon)


def test_a2_the_essays_number_and_its_ties():
    assert rounded(43008.111, "fp16") == 43008.0
    assert float(rounding.ulp(jnp.float32(43008.111), "fp16")) == 32.0
    assert rounded(43024.0, "fp16") == 43008.0  # a tie: 1344 is even
    assert rounded(43024.01, "fp16") == 43040.0
    assert rounded(43056.0, "fp16") == 43072.0  # a tie: 1345 is odd
    assert rounded(43008.111, "tf32") == 43008.0
    assert rounded(43024.01, "tf32") == 43040.0
    assert rounded(43008.111, "bf16") == 43008.0
    assert formats.explain(43008.111, "bf16").above == 43264.0
    assert rounded(43008.111, "fp32") == 43008.109375


def test_a3_the_first_number_that_overflows():
    assert rounded(65519.996, "fp16") == 65504.0
    assert rounded(65520.0, "fp16") == math.inf
    largest = float(np.finfo(np.float32).max)
    assert rounded(largest, "bf16") == math.inf
    assert rounded(largest, "tf32") == math.inf
    assert rounded(largest, "tf32", "toward_zero") == 3.4011621342146535e38


def test_a4_the_last_number_that_underflows():
    assert rounded(2.0**-25, "fp16") == 0.0
    assert rounded(float(np.nextafter(np.float32(2.0**-25), np.float32(1))), "fp16") == 2.0**-24
    assert rounded(1.5 * 2.0**-24, "fp16") == 2.0**-23  # a tie


def test_a5_ties_by_mode():
    modes = ("nearest_even", "nearest_away", "toward_zero")
    assert [rounded(1 + 2.0**-11, "fp16", m) for m in modes] == [1.0, 1 + 2.0**-10, 1.0]
    assert [rounded(1 + 3 * 2.0**-11, "fp16", m) for m in modes[:2]] == [1 + 2.0**-9] * 2


@pytest.mark.parametrize(("name", "last"), [("fp16", 4094), ("bf16", 510)])
def test_a6_an_update_below_half_an_ulp_is_lost(name, last):
    p = formats.get(name).precision
    x = jnp.arange(2**p, 2 ** (p + 1), 2, dtype=jnp.float32)  # a binade with spacing 2
    ties = np.asarray(rounding.round_to(x + 1, name))
    lost = ties == np.asarray(x)
    np.testing.assert_array_equal(lost, np.arange(len(x)) % 2 == 0)  # the tie goes to even
    assert np.all(np.asarray(rounding.round_to(x + 0.99, name)) == x)
    assert float(x[-1]) == last
    # Below a power of two the spacing is half: a decrement is lost only up to a quarter.
    assert rounded(2.0**p - 0.5, name) == 2.0**p
    assert rounded(2.0**p - 0.51, name) == 2.0**p - 1
    assert rounded(1 + 1e-4, "fp16") == 1.0
    assert rounded(1 + 2.0**-8, "bf16") == 1.0


def running_sum(terms: jax.Array, name: str) -> np.ndarray:
    """The partial sums of `terms`, each rounded to `name`."""

    def step(total, term):
        total = rounding.round_to(total + term, name)
        return total, total

    return np.asarray(jax.jit(lambda t: jax.lax.scan(step, jnp.float32(0), t)[1])(terms))


def test_a7_running_sums_stall():
    assert running_sum(jnp.ones(3000), "fp16")[-1] == 2048.0
    assert running_sum(jnp.ones(3000), "bf16")[-1] == 256.0
    tenth = jnp.full(10_000, rounded(0.1, "fp16"))
    assert running_sum(tenth, "fp16")[-1] == 256.0
    assert float(tenth[0]) * 10_000 == pytest.approx(999.756, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "limit", "since"), [("fp16", 7.0859375, 513), ("bf16", 5.0625, 65)]
)
def test_a8_the_harmonic_series_converges(name, limit, since):
    terms = rounding.round_to(1 / jnp.arange(1, 3001, dtype=jnp.float32), name)
    sums = running_sum(terms, name)
    assert sums[-1] == limit
    assert int(np.argmax(sums == limit)) + 1 == since - 1  # the next term is the first one lost


def test_a9_a_tenth_and_a_third():
    assert rounded(0.1, "fp16") == rounded(0.1, "tf32") == 0.0999755859375
    assert rounded(0.1, "bf16") == 0.10009765625
    assert rounded(1 / 3, "fp16") == 0.333251953125
    assert rounded(1 / 3, "bf16") == 0.333984375
    assert rounded(1.0001, "tf32") == 1.0


def test_a10_two_roundings_are_not_one():
    value = 1 + 2.0**-11 + 2.0**-40
    assert formats.round_exact(value, "fp16") == 1.0009765625
    assert formats.round_exact(formats.round_exact(value, "fp32"), "fp16") == 1.0
    with jax.enable_x64(True):
        assert float(rounding.round_to(jnp.float64(value), "fp16")) == 1.0009765625


def test_a11_a_papers_bf16_example():
    got = formats.explain(-4.703990459442139, "bf16")
    assert (got.value, got.error) == (-4.71875, -0.014759540557861328)


def test_a13_kahan_sums_what_rounding_loses():
    """A thousand times 1e-4 added to 1 in bf16, every operation rounded."""

    def round_bf16(x):
        return rounding.round_to(x, "bf16")

    term = round_bf16(jnp.float32(1e-4))

    def step(carry, _):
        total, lost = carry
        corrected = round_bf16(term - lost)
        new = round_bf16(total + corrected)
        return (new, round_bf16(round_bf16(new - total) - corrected)), None

    start = (jnp.float32(1.0), jnp.float32(0.0))
    total = jax.jit(lambda: jax.lax.scan(step, start, None, length=1000)[0][0])()
    exact = 1 + 1000 * float(term)
    assert abs(float(total) - exact) <= 2.0**-8
    assert running_sum(jnp.concatenate([jnp.ones(1), jnp.full(1000, 1e-4)]), "bf16")[-1] == 1.0


def test_a14_adams_constants_do_not_survive():
    assert rounded(0.999, "bf16") == 1.0
    assert rounded(1e-8, "fp16") == 0.0


def test_a15_where_functions_leave_fp16():
    fmt = formats.get("fp16")
    overflow, underflow = fmt.max + 16, fmt.min_subnormal / 2  # the first, and the last
    assert math.log(overflow) == pytest.approx(11.0901, abs=1e-4)
    assert math.log(underflow) == pytest.approx(-17.3287, abs=1e-4)
    assert math.sqrt(overflow) == pytest.approx(255.97, abs=1e-2)
    assert 1 / overflow == pytest.approx(1.52625e-5, rel=1e-4)
    for inside, outside, function in (
        (11.0900, 11.0902, np.exp),
        (255.96, 255.98, np.square),
        (1.5263e-5, 1.5262e-5, np.reciprocal),
    ):
        assert rounded(float(function(inside)), "fp16") <= fmt.max
        assert rounded(float(function(outside)), "fp16") == math.inf
    assert rounded(math.exp(-17.3286), "fp16") > 0
    assert rounded(math.exp(-17.3288), "fp16") == 0.0


@pytest.mark.parametrize(
    ("name", "survive", "needed", "equivalent"),
    [("fp32", 6, 9, 7.22), ("tf32", 3, 5, 3.31), ("fp16", 3, 5, 3.31), ("bf16", 2, 4, 2.41)],
)
def test_a19_decimal_digits(name, survive, needed, equivalent):
    fmt = formats.get(name)
    assert fmt.decimal_digits == survive == math.floor((fmt.precision - 1) * math.log10(2))
    assert math.ceil(1 + fmt.precision * math.log10(2)) == needed
    assert fmt.precision * math.log10(2) == pytest.approx(equivalent, abs=5e-3)
    if fmt.bits <= 16:  # so many digits go in and come out, in every binade; one more do not
        for digits, holds in ((survive, True), (survive + 1, False)):
            trips = [
                float(f"{formats.round_exact(f'{n}e{power}', name):.{digits - 1}e}")
                == float(f"{n}e{power}")
                for power in range(-4, 3)
                for n in range(10 ** (digits - 1), 10**digits, 7)
                if fmt.min_normal <= n * 10.0**power <= fmt.max
            ]
            assert all(trips) == holds
