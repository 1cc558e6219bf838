"""Block formats against the oracle in rational arithmetic, bit for bit."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jprec import formats, rounding

FORMATS = (
    *formats.block_names(),
    *("mxfp4:ceil", "mxfp4:nearest", "mxfp8_e4m3:ceil", "mxfp8_e5m2:nearest", "nvfp4:ceil"),
    formats.BlockFormat(
        name="odd",
        size=3,
        element=formats.get("binary6p3se"),
        scale=formats.get("binary8p5uf"),
        scale_rule="nearest",
    ),
    formats.BlockFormat(
        name="wide",
        size=8,
        element=formats.get("e3m4"),
        scale=formats.get("e8m0fnu"),
        scale_rule="ceil",
    ),
    # Elements far below 1 and scales that end early: quotients beyond FP32's exponents.
    formats.BlockFormat(
        name="fractions",
        size=4,
        element=formats.FloatFormat(
            name="fraction", exponent_bits=2, mantissa_bits=1, bias=6, specials="none"
        ),
        scale="e8m0fnu",
        scale_rule="floor",
    ),
    formats.BlockFormat(
        name="early",
        size=2,
        element="e2m1fn",
        scale=formats.FloatFormat(
            name="small",
            exponent_bits=1,
            mantissa_bits=3,
            bias=46,
            specials="nan_all_ones",
            signed=False,
        ),
        scale_rule="nearest",
    ),
)
MODES = ("nearest_even", "nearest_away", "up", "to_odd")


def make_blocks(size: int, count: int) -> np.ndarray:
    """FP32 blocks of all magnitudes: [count, size], the subnormal and the largest included."""
    rng = np.random.default_rng(size)
    exponents = rng.integers(-149, 128, (count, 1)) - rng.integers(0, 12, (count, size))
    x = np.ldexp(rng.uniform(1, 2, (count, size)), exponents)
    x *= rng.choice([-1, 1], (count, size))
    x = np.clip(x, -3.4e38, 3.4e38).astype(np.float32)
    x[: count // 4] = rng.standard_normal((count // 4, size)).astype(np.float32)
    # Ties, and numbers beside them: few bits, then one bit of FP32 more or less.
    few = rng.integers(-31, 32, (count // 4, size)) * 2.0 ** rng.integers(-3, 3, (count // 4, 1))
    x[-(count // 4) :] = few.astype(np.float32)
    x[-(count // 8) :] = np.nextafter(x[-(count // 8) :], np.float32(1e9))
    x[0], x[1, 0], x[2] = 0.0, -0.0, 3.4028235e38
    return x


def expected(x: np.ndarray, fmt, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """The scales and the values that the oracle gives for each row of `x`."""
    scales, values = [], []
    for row in x.tolist():
        scale, elements = formats.round_block_exact(row, fmt, mode)
        scales.append(scale)
        values.append([math.copysign(scale * abs(e), e) for e in elements])
    with np.errstate(over="ignore"):
        return np.float32(scales), np.float32(values)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_blocks_are_those_of_the_oracle(fmt, assert_same_bits):
    fmt = formats.get_block(fmt)
    x = make_blocks(fmt.size, 2400 // fmt.size)

    @jax.jit
    def every(x):
        rounded = [rounding.round_blocks(x, fmt, mode) for mode in MODES]
        return jnp.stack(rounded), rounding.block_scales(x, fmt)

    rounded, scales = map(np.asarray, every(x))
    for mode, got in zip(MODES, rounded, strict=True):
        want_scales, want = expected(x, fmt, mode)
        assert_same_bits(scales[:, 0], want_scales)
        assert_same_bits(got, want)


def test_the_rules_of_the_scale_are_what_they_say():
    x = jnp.float32([[5.9, 0.3], [6.1, 0.3], [7.9, 0.3], [8.0, 0.3], [9.1, 0.3]])
    scales = {
        rule: rounding.block_scales(x, f"mxfp4:{rule}")[:, 0].tolist()
        for rule in ("floor", "nearest", "ceil")
    }
    assert scales == {
        "floor": [1.0, 1.0, 1.0, 2.0, 2.0],
        "nearest": [1.0, 1.0, 1.0, 1.0, 2.0],
        "ceil": [1.0, 2.0, 2.0, 2.0, 2.0],
    }
    assert rounding.round_blocks(x, "mxfp4")[2].tolist() == [6.0, 0.5]  # 7.9 saturates
    assert rounding.round_blocks(x, "mxfp4:ceil")[2].tolist() == [8.0, 0.0]


def test_stochastic_elements_are_unbiased_neighbours():
    x = jnp.broadcast_to(jnp.float32([0.3, -1.1, 2.6, 6.0]), (4000, 4))
    for name in ("mxfp4", "nvfp4", "mxfp8_e4m3"):
        round_all = functools.partial(rounding.round_blocks, fmt=name)
        got = np.asarray(round_all(x, mode="stochastic", key=jax.random.key(1)))
        down, up = (np.asarray(round_all(x[:1], mode=mode)) for mode in ("down", "up"))
        assert np.all((got == down) | (got == up)), name
        noise = (up - down)[0] / 2 / 4000**0.5
        assert np.all(np.abs(got.mean(0) - np.asarray(x[0])) <= 5 * noise + 1e-7), name


def test_few_random_bits_cut_the_probability_off():
    x = jnp.broadcast_to(jnp.float32([6.0, 1.4999]), (4000, 2))  # nearly 1.5, from 1
    got = rounding.round_blocks(x, "mxfp4", "stochastic", key=jax.random.key(2), random_bits=1)
    assert abs(float(jnp.mean(got[:, 1] > 1)) - 0.5) < 5 * 0.5 / 4000**0.5


def test_any_axis_and_a_short_last_block(assert_same_bits):
    x = np.random.default_rng(0).standard_normal((3, 40, 5)).astype(np.float32)
    got = rounding.round_blocks(x, "mxfp8_e5m2", axis=1)
    rows = np.moveaxis(x, 1, -1)
    moved = np.asarray(rounding.round_blocks(rows, "mxfp8_e5m2"))
    assert_same_bits(got, np.moveaxis(moved, -1, 1))
    for part in (rows[..., :32], rows[..., 32:]):
        alone = rounding.round_blocks(part, "mxfp8_e5m2")
        at = 0 if part.shape[-1] == 32 else 32
        assert_same_bits(alone, moved[..., at : at + part.shape[-1]])
    assert rounding.block_scales(x, "mxfp8_e5m2", axis=1).shape == (3, 2, 5)
    assert rounding.round_blocks(x[:0], "mxfp4").shape == (0, 40, 5)
    assert rounding.round_blocks(jnp.zeros((2, 0)), "mxfp4").shape == (2, 0)


def test_infinity_or_nan_spoils_its_block_and_no_other():
    x = jnp.ones((3, 32)).at[0, 3].set(jnp.nan).at[1, 5].set(-jnp.inf)
    for name in ("mxfp4", "nvfp4"):
        got = rounding.round_blocks(x, name)
        size = formats.get_block(name).size
        assert jnp.isnan(got[:2, :size]).all()
        assert jnp.isfinite(got[2]).all()
        scales = rounding.block_scales(x, name)
        assert jnp.isnan(scales[:2, 0]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_arrays_give_what_fp32_gives(dtype, assert_same_bits):
    codes = np.random.default_rng(3).integers(0, 2**16, (500, 32), dtype=np.uint16)
    x = codes.view(np.dtype(dtype))
    x = np.where(np.isfinite(x.astype(np.float32)), x, np.ones_like(x))
    for name in formats.block_names():
        got = rounding.round_blocks(x, name)
        assert got.dtype == x.dtype
        assert_same_bits(got.astype(jnp.float32), rounding.round_blocks(np.float32(x), name))


def test_double_precision_has_its_own_range(assert_same_bits):
    rng = np.random.default_rng(5)
    x = np.ldexp(rng.standard_normal((20, 16)), rng.integers(-200, 200, (20, 1)))
    x[0] *= 1e-300
    with jax.enable_x64(True):
        for name in ("mxfp4", "nvfp4"):
            got = np.asarray(rounding.round_blocks(x, name))
            for row, want in zip(got, x.tolist(), strict=True):
                scale, elements = formats.round_block_exact(want, name)
                np.testing.assert_array_equal(row, np.array(elements) * scale)


def test_transformations_give_the_same_bits_and_the_derivative_is_straight_through(
    assert_same_bits,
):
    x = make_blocks(32, 12)[4:]
    rounder = functools.partial(rounding.round_blocks, fmt="mxfp8_e4m3")
    want = rounder(x)
    assert_same_bits(jax.vmap(rounder)(x), want)
    assert_same_bits(jax.lax.map(rounder, x), want)
    assert_same_bits(jax.grad(lambda x: (2 * rounder(x)).sum())(x), np.full_like(x, 2))
    with jax.disable_jit():
        assert_same_bits(rounder(x[:1]), want[:1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_recipe_for_nvfp4_with_a_tensors_scale_takes_any_tensor(dtype):
    """docs/rounding.md: zeros, tiny and huge tensors too."""
    for size in (0.0, 1e-40, 1e-3, 1.0, 3e4):
        x = jnp.asarray(size * np.linspace(-1, 1, 32), dtype)
        wide = x.astype(jnp.float32)
        t = jnp.maximum(jnp.max(jnp.abs(wide)) / (6 * 448), 2.0**-126)
        got = rounding.round_blocks(wide / t, "nvfp4") * t
        assert float(jnp.max(jnp.abs(got - wide))) <= 0.2 * size


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (jnp.ones(4), {"fmt": "mxfp5"}, "unknown block format 'mxfp5'; did you mean"),
        (jnp.ones(4), {"fmt": "mxfp4:round"}, "scale_rule='round'.*floor, nearest, ceil"),
        (jnp.ones(4), {"fmt": "nvfp4:floor"}, "gives powers of two"),
        (jnp.ones(4), {"fmt": "mxfp4", "axis": 1}, "axis=1, but x has 1 axes"),
        (jnp.ones(4), {"fmt": "mxfp4", "axis": None}, "axis=None, but x has 1 axes"),
        (jnp.ones(4), {"fmt": "mxfp8"}, "mxfp8_e4m3 or mxfp8_e5m2"),
        (jnp.ones(4), {"fmt": "fp16"}, "are for round_to"),
        (jnp.ones(4), {"fmt": "mxfp4", "axis": np.int64(2)}, "axis=2, but x has 1 axes"),
        (jnp.ones(()), {"fmt": "mxfp4"}, "x is a scalar"),
        (jnp.ones(4), {"fmt": "mxfp4", "mode": "stochastic"}, "needs a key"),
    ],
)
def test_bad_input_is_refused_with_the_way_out(x, options, message):
    with pytest.raises(ValueError, match=message):
        rounding.round_blocks(x, **options)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "at least 1"),
        ({"size": 3.5}, "an integer number"),
        ({"scale": formats.get("binary8p1uf")}, "without zero: e8m0fnu"),
        ({"element": formats.get("fp16")}, "16 bits"),
        ({"element": formats.get("e8m0fnu")}, "a sign and a zero"),
        ({"scale": formats.get("e8m1")}, "10 bits"),
        ({"scale": formats.get("e4m3fn")}, "powers of two"),
        ({"scale": dataclasses.replace(formats.get("e8m0fnu"), bias=130)}, "scales lie between"),
        ({"element": dataclasses.replace(formats.get("e5m2"), bias=90)}, "between"),
    ],
)
def test_a_block_format_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(formats.get_block("mxfp4"), **fields)


def test_a_dtype_with_too_few_bits_is_refused():
    wide = dataclasses.replace(
        formats.get_block("nvfp4"),
        name="wide",
        element=formats.get("e3m4"),
        scale=formats.get("binary8p5uf"),
    )
    assert rounding.round_blocks(jnp.ones(4), wide).dtype == jnp.float32
    with pytest.raises(TypeError, match="bfloat16 does not hold every value of wide"):
        rounding.round_blocks(jnp.ones(4, jnp.bfloat16), wide)
    steps = dataclasses.replace(wide, name="steps", element="e4m3fn", scale="binary8p4uf")
    with pytest.raises(TypeError, match="multiples of"):
        rounding.round_blocks(jnp.ones(4, jnp.float16), steps)
    with pytest.raises(TypeError, match="names no block format"):
        rounding.round_blocks(jnp.ones(4), formats.get("fp16"))
    assert rounding.round_blocks(jnp.ones((2, 4)), "mxfp4", axis=np.int64(0)).shape == (2, 4)
