import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jprec import formats, rounding
from jprec.rounding import dither
from jprec.rounding.rounder import rounded
from jprec.rounding.storage import as_floats

# Random123's file of known answers (kat_vectors), Threefry-2x32: counter, key, and the results
# after 13 and 20 rounds.
KNOWN = [
    ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731), (0x6B200159, 0x99BA4EFE)),
    ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0xFD36D048, 0x2D17272C), (0x1CB996FC, 0xBB002BE7)),
    (
        (0x243F6A88, 0x85A308D3),
        (0x13198A2E, 0x03707344),
        (0xBA3E4725, 0xF27D669E),
        (0xC4923A9C, 0x483DF7A0),
    ),
]


@pytest.mark.parametrize(("counter", "key", "after_13", "after_20"), KNOWN)
def test_threefry_gives_the_known_answers(counter, key, after_13, after_20):
    words = [tuple(map(jnp.uint32, pair)) for pair in (key, counter)]
    for rounds, want in ((13, after_13), (20, after_20)):
        got = dither.threefry(*words, rounds=rounds)
        assert tuple(map(int, got)) == want


def test_what_is_drawn_is_pinned():
    """Thirteen rounds: the known answer for key 0 and counter 0, its two words combined."""
    drawn = dither.draw(jnp.zeros(2, jnp.uint32), (3,), 32)
    assert int(drawn[0]) == 0x9D1C5EC6 ^ 0x8BD50731
    assert dither.ROUNDS == 13


def lifts(x: float, fmt, dither_word: int, dtype: str = "float32") -> bool:
    """Whether `x`, below the smallest value of the format, goes up under this draw."""
    numbers = jnp.asarray([x], dtype)
    _, storage = as_floats(numbers)
    plan = rounding.Rounding(format=formats.get(fmt), mode="stochastic")
    return bool(rounded(numbers, jnp.asarray([dither_word], jnp.uint32), plan, storage)[0] > 0)


@pytest.mark.parametrize("below", [1, 8, 20, 31])
def test_tiny_numbers_go_up_for_exactly_their_share_of_the_draws(below):
    """A number of 2**-below of the smallest value: 2**(32 - below) draws of 2**32, the largest."""
    first = 2**32 - 2 ** (32 - below)
    low = dataclasses.replace(formats.get("e5m2"), name="low", exponent_bits=4, bias=124)
    for fmt in ("fp16", low):
        smallest = formats.get(fmt).min_subnormal
        if smallest * 2.0**-below < 2.0**-149:
            continue
        x = smallest * 2.0**-below
        assert (lifts(x, fmt, first), lifts(x, fmt, first - 1)) == (True, False), fmt
    with jax.enable_x64(True):
        x = 2.0**-24 * 2.0**-below
        found = lifts(x, "fp16", first, "float64"), lifts(x, "fp16", first - 1, "float64")
        assert found == (True, False)


def test_zero_and_what_is_too_tiny_go_up_for_no_draw():
    for x in (0.0, 2.0**-24 * 2.0**-33, 2.0**-149):
        assert not lifts(x, "fp16", 2**32 - 1)


@pytest.mark.parametrize("shape", [(), (7,), (3, 4, 5)])
def test_with_twenty_rounds_it_is_the_generator_of_jax(shape, monkeypatch, assert_same_bits):
    monkeypatch.setattr(dither, "ROUNDS", 20)
    key = jax.random.key(12)
    assert_same_bits(dither.draw(key, shape, 32), jax.random.bits(key, shape, jnp.uint32))


def test_positions_are_counted_in_row_major_order_and_go_on_beyond_32_bits(monkeypatch):
    first, second = dither._counters((2, 3, 5))
    assert not np.asarray(first).any()
    np.testing.assert_array_equal(second, np.arange(30).reshape(2, 3, 5))
    monkeypatch.setattr(dither, "_COUNTERS", 6)  # as if words held no more
    first, second = map(np.asarray, dither._counters((2, 3, 5)))
    assert len(set(zip(first.ravel().tolist(), second.ravel().tolist(), strict=True))) == 30


def test_every_kind_of_key_draws_and_the_same_key_draws_the_same():
    typed = dither.draw(jax.random.key(3), (100,), 32)
    np.testing.assert_array_equal(typed, dither.draw(jax.random.PRNGKey(3), (100,), 32))
    other = dither.draw(jax.random.key(3, impl="rbg"), (100,), 32)
    assert other.shape == typed.shape
    assert not np.array_equal(other, typed)


@pytest.mark.parametrize("random_bits", [1, 2, 8])
def test_only_the_bits_asked_for_are_drawn(random_bits):
    drawn = np.asarray(dither.draw(jax.random.key(0), (5000,), random_bits))
    assert set(drawn.tolist()) == {n << (32 - random_bits) for n in range(2**random_bits)}


def test_draws_are_uniform_and_independent_across_elements_bits_and_keys():
    """Chi-squared tests; the threshold lets one run in 10**6 fail, and the keys are fixed."""
    n = 2**18
    key = jax.random.key(42)
    streams = {
        "one key": dither.draw(key, (n,), 32),
        "split keys": jax.vmap(lambda k: dither.draw(k, (), 32))(jax.random.split(key, n)),
        "small seeds": jax.vmap(lambda s: dither.draw(jax.random.key(s), (), 32))(jnp.arange(n)),
    }
    for name, drawn in streams.items():
        drawn = np.asarray(drawn)
        tables = {
            "top byte": np.bincount(drawn >> 24, minlength=256),
            "low byte": np.bincount(drawn & 255, minlength=256),
            "pairs": np.bincount((drawn[:-1] >> 28) * 16 + (drawn[1:] >> 28), minlength=256),
            "bit pairs": np.bincount((drawn >> 31) * 2 + (drawn & 1), minlength=4),
        }
        for what, counts in tables.items():
            assert stats.chisquare(counts).pvalue > 1e-6, (name, what)


def test_no_array_of_random_bits_is_stored():
    x = jnp.ones((1 << 16,), jnp.float32)
    step = jax.jit(lambda x, key: rounding.round_to(x, "e4m3fn", "stochastic", key=key))
    used = step.lower(x, jax.random.key(0)).compile().memory_analysis()
    assert used.temp_size_in_bytes < 1024
    assert used.output_size_in_bytes < x.nbytes + 1024
