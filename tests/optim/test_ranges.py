import dataclasses
import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jprec import formats, optim
from jprec.optim import LostUpdates, Ranges, lost_updates, number_ranges, ranges
from jprec.study import watch as host

SIXTEEN_BITS = {
    name: np.arange(2**16, dtype=np.uint16).view(name) for name in ("float16", "bfloat16")
}


@functools.partial(jax.jit, static_argnames=("format", "sample"))
def measured(tree, scale, format="fp16", sample=None):
    return number_ranges(tree, format=format, scale=scale, sample=sample)


lost = jax.jit(lost_updates, static_argnames="sample")


def counts(array, scale=1.0, format="fp16"):
    """class -> how many numbers of `array` are in it."""
    found = measured({"w": array}, jnp.float32(scale), format)["w"]
    return dict(zip(ranges.CLASSES, found.counts[: len(ranges.CLASSES)].tolist(), strict=True))


def counts_by_numpy(array, scale):
    """The same for FP16, in float64, where these products with a scale are exact."""
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.abs(np.asarray(array).astype(np.float64)) * scale
        rounded = x.astype(np.float16).astype(np.float64)
    where = {
        "zero": x == 0,
        "flushed": (x > 0) & (rounded == 0),
        "subnormal": (rounded > 0) & (rounded < 2.0**-14),
        "normal": (rounded >= 2.0**-14) & np.isfinite(rounded),
        "overflow": np.isfinite(x) & np.isinf(rounded),
        "infinite": np.isinf(x),
        "nan": np.isnan(x),
    }
    return {name: int(np.count_nonzero(found)) for name, found in where.items()}


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_every_16_bit_number_is_in_the_class_that_numpy_gives_it(dtype):
    """FP32 subnormals, which are BF16 numbers, and products beyond FP32's range are among them."""
    x = SIXTEEN_BITS[dtype]
    for scale in (2.0**-126, 2.0**-10, 1.0, 2.0**16, 2.0**126):
        assert counts(x, scale) == counts_by_numpy(x, scale)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
def test_every_16_bit_number_is_in_the_bin_that_a_study_counts_it_in(dtype):
    x = SIXTEEN_BITS[dtype]
    want = host.histogram("x", {"x": x}, step=0)
    for scale, flushed in want["flushed"].items():
        found = measured({"w": x}, jnp.float32(scale))["w"]
        bins = np.flatnonzero(found.histogram)
        assert (bins + ranges.FIRST_EXPONENT).tolist() == want["exponents"]
        assert found.histogram[bins].tolist() == want["counts"]
        assert (found.size, found.zero * found.size) == (want["total"], want["zeros"])
        assert (found.infinite + found.nan) * found.size == want["nonfinite"]
        assert found.flushed * found.size == flushed


def class_of(number, scale, fmt):
    """The class of a finite number, by the oracle in rational arithmetic."""
    exact = abs(Fraction(float(number))) * Fraction(scale)
    # The same codes, and others after the largest.
    endless = fmt
    if fmt.exponent_bits < 11:
        endless = dataclasses.replace(fmt, exponent_bits=fmt.exponent_bits + 1, specials="none")
    rounded = formats.round_exact(exact, endless)
    if exact == 0 or rounded == 0:
        return "zero" if exact == 0 else "flushed"
    if rounded < fmt.min_normal:
        return "subnormal"
    return "overflow" if rounded > fmt.max else "normal"


@pytest.mark.parametrize(
    "name", ["fp16", "bf16", "fp32", "e4m3fn", "e4m3fnuz", "e2m1fn", "binary8p1se", "fp64"]
)
def test_numbers_at_and_beside_each_bound_are_in_the_class_of_the_oracle(name):
    fmt = formats.get(name)
    tiny, ulp = Fraction(fmt.min_subnormal), Fraction(2) ** (fmt.max_exponent - fmt.mantissa_bits)
    bounds = [tiny / 2, tiny, Fraction(fmt.min_normal) - tiny / 2, Fraction(fmt.min_normal)]
    bounds += [Fraction(fmt.max), Fraction(fmt.max) + ulp / 2, Fraction(fmt.max) + ulp]
    seen = set()
    for scale in (2.0**-126, 2.0**-14, 1.0, 2.0**15, 2.0**126):
        inside = [float(b / Fraction(scale)) for b in bounds if b / Fraction(scale) < 2**128]
        at = np.asarray(inside, np.float64).clip(max=3.4e38).astype(np.float32)
        beside = [np.nextafter(at, np.float32(to)) for to in (0, np.inf)]
        x = np.concatenate([at, *beside, np.float32([0.0, -0.0, 1e-45, 3.4e38])])
        x = np.concatenate([x, -x])
        x = np.pad(x[np.isfinite(x)], (0, 100))[:60]  # one shape, one compilation
        want = dict.fromkeys(ranges.CLASSES, 0)
        for number in x:
            want[class_of(number, scale, fmt)] += 1
        assert counts(x, scale, name) == want
        seen |= {key for key, number in want.items() if number}
    assert {"zero", "normal"} <= seen
    assert ("subnormal" in seen) == fmt.has_subnormals or name == "fp64"


def test_fp16_overflows_from_65520_and_flushes_up_to_half_its_smallest_number():
    """2**-25 is a tie and goes to zero."""
    below, above = np.float32(65519.99), np.nextafter(np.float32(2.0**-25), np.float32(1))
    found = counts(np.float32([below, 65520.0, 2.0**-25, above, -65520.0, -(2.0**-25)]))
    assert found | {"normal": 1, "overflow": 2, "flushed": 2, "subnormal": 1} == found


@settings(max_examples=40, deadline=None)
@given(
    x=hnp.arrays(np.float32, 16, elements=st.floats(width=32)),
    exponent=st.integers(-126, 126),
)
def test_any_float32_numbers_at_any_scale_are_counted_as_by_numpy(x, exponent):
    assert counts(x, 2.0**exponent) == counts_by_numpy(x, 2.0**exponent)


def test_shares_of_a_16_bit_array_are_those_of_its_numbers():
    """A sum in bfloat16 would stop at 256 (google/CommonLoopUtils#380)."""
    ones = {"w": jnp.ones((768, 768), jnp.bfloat16)}
    found = measured(ones, 1.0)["w"]
    assert found.normal == 1.0
    assert found.histogram[-ranges.FIRST_EXPONENT] == found.size == 768 * 768


def test_a_share_of_more_than_2_to_24_numbers_is_not_lost_to_float32():
    """A float32 counter would stop at 2**24, and 1 - 1 / n would be 1 or the one would vanish."""
    table = jnp.zeros_like(ranges.empty_ranges().counts)
    found = Ranges(table.at[0].set(1).at[3].set(2**31 - 2))
    assert found.size == 2**31 - 1
    assert found.zero == np.float32(1 / (2**31 - 1))
    assert Ranges(table.at[3].set(2**31 - 1)).normal == 1.0
    x = np.zeros(2**24 + 3, np.float16)
    x[-1] = 1.0
    assert measured({"w": x}, 1.0)["w"].counts[0] == 2**24 + 2


def test_a_leaf_of_2_to_31_numbers_is_refused_unless_a_sample_is_counted():
    leaf = {"w": jax.ShapeDtypeStruct((2**16, 2**15), jnp.float16)}
    with pytest.raises(ValueError, match=r"more than 2\*\*31 - 1.*sample=2\*\*20"):
        jax.eval_shape(number_ranges, leaf)
    jax.eval_shape(functools.partial(number_ranges, sample=100), leaf)


def test_a_sample_meets_every_row_and_column_and_is_no_larger_than_asked():
    rows, columns = np.indices((64, 48))
    for axis in (rows, columns):
        found = measured({"w": np.exp2(axis).astype(np.float32)}, 1.0, sample=400)["w"]
        assert 100 < found.size <= 400
        assert np.count_nonzero(found.histogram) == axis.max() + 1
    assert measured({"w": np.ones((20, 20), np.float32)}, 1.0, sample=400)["w"].size == 400


def test_leaves_that_hold_no_floating_point_numbers_have_no_row():
    tree = {
        "step": jnp.int32(3),
        "key": jax.random.key(0),
        "float0": np.zeros(2, jax.dtypes.float0),
        "none": None,
        "empty": jnp.zeros((0, 3)),
        "layers": [jnp.ones(2), 1.5],
        "narrow": jnp.ones(2, jnp.float8_e4m3fn),
        "complex": jnp.asarray([1e-9 + 1j, np.inf + 0j], jnp.complex64),
    }
    found = number_ranges(tree)
    assert list(found) == ["complex", "empty", "layers/0", "layers/1", "narrow"]
    assert [row.size.item() for row in found.values()] == [4, 0, 2, 1, 2]
    assert [float(getattr(found["empty"], name)) for name in ranges.CLASSES] == [0.0] * 7
    both = found["complex"]
    assert [float(s) for s in (both.flushed, both.infinite, both.zero)] == [0.25, 0.25, 0.25]
    assert number_ranges({}) == number_ranges(None) == {}
    assert list(number_ranges(jnp.ones(2))) == [""]


def test_two_leaves_with_one_path_are_an_error():
    with pytest.raises(ValueError, match="two leaves have the path 'a/b'"):
        number_ranges({"a": {"b": jnp.ones(1)}, "a/b": jnp.ones(1)})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"scale": 1000.0}, "not a power of two.*nearest is"),
        ({"format": "e8m0fnu"}, "no sign"),
        ({"format": "fp17"}, "fp16"),
        ({"sample": 0}, "at least 1"),
        ({"sample": 2.5}, "counts numbers"),
    ],
)
def test_a_setting_out_of_range_is_an_error(settings, says):
    with pytest.raises(ValueError, match=says):
        number_ranges({"w": jnp.ones(2)}, **settings)


def test_float64_numbers_are_counted_as_they_are():
    with jax.enable_x64(True):
        x = np.float64([2.0**-1000, 2.0**-25, np.nextafter(2.0**-25, 1), 65520 - 1e-9, 1e300])
        found = measured({"w": jnp.asarray(x)}, 1.0)["w"]
        assert found.counts.dtype == jnp.int32
        assert found.counts[:7].tolist() == [0, 2, 1, 1, 1, 0, 0]
        assert (found.histogram[0], found.histogram[-1]) == (1, 1)
        complex_ = measured({"w": jnp.asarray([1e-300 + 1j])}, 1.0)["w"]
        assert (complex_.flushed, complex_.normal) == (0.5, 0.5)


def counts_on_the_host(params, updates):
    """What a study counts of one step, as one LostUpdates."""
    counter = host.UpdateCounter()
    counter.add(params, updates)
    want = counter.record()
    bins = np.clip(want["log2_ratio"], ranges.FIRST_RATIO, ranges.LAST_RATIO) - ranges.FIRST_RATIO
    table = np.zeros(ranges.LAST_RATIO - ranges.FIRST_RATIO + 1, np.int32)
    np.add.at(table, np.asarray(bins, int), want["counts"])
    moved = want["total"] - want["zeros"] - want["nonfinite"] - want["lost"]
    return np.concatenate([[want["zeros"], want["nonfinite"], want["lost"], moved], table])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_updates_are_lost_as_a_study_counts_them(dtype):
    rng = np.random.default_rng(5)
    numbers = rng.normal(size=(3, 700)) * 10.0 ** rng.integers(-4, 4, (3, 700))
    numbers[0, :6] = 0.0, -0.0, 1.0, -1.0, np.inf, np.nan
    params = jnp.asarray(numbers, dtype)
    sizes = 2.0 ** rng.integers(-28, 3, (3, 700))
    updates = rng.choice([-1, 0, 1], (3, 700)) * sizes * np.where(numbers == 0, 1.0, numbers)
    updates[1, :2] = np.inf, np.nan
    updates = updates.astype(np.float32)
    found = lost({"w": params}, {"w": updates})["w"]
    assert found.counts.tolist() == counts_on_the_host([params], [updates]).tolist()
    assert 0.1 < found.lost < 0.9


def test_a_tie_from_a_power_of_two_moves_down_and_not_up():
    """At 1 the spacing below is half of that above: 2**-8 + a bit more than a quarter ulp acts."""
    updates = jnp.float32([2.0**-8, -(2.0**-8), -(2.0**-9), -(2.0**-9) * 1.01, -0.0])
    found = lost({"w": jnp.ones(5, jnp.bfloat16)}, {"w": updates})["w"]
    assert found.counts[:4].tolist() == [1, 0, 2, 2]
    assert found.median == -2.0
    assert found.histogram[-1 - ranges.FIRST_RATIO] == 2


def test_the_new_value_decides_where_an_update_knows_it():
    """A stochastic store may move what a nearest one would lose, and hold what it would move."""
    value = jnp.asarray([1.0, 1.0078125, -0.0], jnp.bfloat16)
    wanted = jnp.float32([0.5, 1e-9, 1e-45])
    update = optim.NewValue(value, wanted)
    found = lost({"w": jnp.asarray([1.0, 1.0, 0.0], jnp.bfloat16)}, {"w": update})["w"]
    assert found.counts[:4].tolist() == [0, 0, 2, 1]


def test_float32_subnormal_updates_are_no_zeros():
    """The backend may flush them; then they are lost, and never zero."""
    found = lost({"w": jnp.ones(2)}, {"w": jnp.float32([1e-45, 0.0])})["w"]
    assert found.counts[:4].tolist() == [1, 0, 1, 0]
    assert found.histogram[0] == 1


def test_updates_of_other_leaves_have_no_row_and_of_complex_ones_two_parts():
    params = {
        "n": jnp.int32(1),
        "none": None,
        "empty": jnp.zeros((0,), jnp.float16),
        "c": jnp.ones(1, jnp.complex64),
    }
    updates = {
        "n": np.zeros((), jax.dtypes.float0),
        "none": None,
        "empty": jnp.zeros((0,)),
        "c": jnp.asarray([1e-9 + 1e-9j], jnp.complex64),
    }
    found = lost_updates(params, updates)
    assert list(found) == ["c", "empty"]
    assert found["c"].counts[:4].tolist() == [0, 0, 1, 1]
    assert np.isnan(found["empty"].median)
    assert found["empty"].lost == 0.0


def test_the_median_is_the_lower_of_the_two_in_the_middle():
    table = np.zeros(4 + 128, np.int32)
    table[4 + 10], table[4 + 20] = 2, 2
    assert LostUpdates(table).median == 10 + ranges.FIRST_RATIO
    table[4 + 20] = 3
    assert LostUpdates(table).median == 20 + ranges.FIRST_RATIO


def test_runs_under_vmap_are_counted_apart():
    params = jnp.ones((2, 3), jnp.bfloat16)
    gradients = jnp.float32([[0.0, 1.0, 1e9], [1e-9, 1e-9, np.nan]])
    found = jax.vmap(lambda g: measured({"w": g}, 1.0)["w"])(gradients)
    assert found.zero.tolist() == [np.float32(1 / 3), 0.0]
    assert found.flushed.tolist() == [0.0, np.float32(2 / 3)]
    updates = jnp.float32([[1e-9, 1.0, 0.0], [0.0, 0.0, 0.0]])
    found = jax.vmap(lambda p, u: lost({"w": p}, {"w": u})["w"])(params, updates)
    assert found.lost.tolist() == [0.5, 0.0]
    assert np.isnan(found.median[1])
