import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jprec import optim


@given(st.lists(st.sampled_from([0.0, -1.5, np.inf, -np.inf, np.nan, -np.nan]), max_size=8))
@settings(max_examples=30, deadline=None)
def test_infinities_and_nans_are_counted_in_each_leaf(values):
    x = np.float32(values)
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        got = optim.count_nonfinite({"a": jnp.asarray(x, dtype), "b": [jnp.ones(2)]})
        assert {k: v.tolist() for k, v in got.items()} == {
            "a": [np.isinf(x).sum(), np.isnan(x).sum()],
            "b/0": [0, 0],
        }
    assert bool(optim.all_finite({"a": jnp.asarray(x)})) == bool(np.isfinite(x).all())


def test_only_inexact_leaves_are_counted_and_complex_ones_once():
    tree = {
        "n": jnp.arange(3),
        "key": jax.random.key(0),
        "zero": np.zeros(2, jax.dtypes.float0),
        "none": None,
        "z": jnp.asarray([complex(1, np.inf), complex(np.nan, np.inf), 1.0]),
        "empty": jnp.zeros((0, 3)),
        "scalar": jnp.asarray(jnp.nan),
    }
    got = optim.count_nonfinite(tree)
    assert {k: v.tolist() for k, v in got.items()} == {
        "z": [1, 1],
        "empty": [0, 0],
        "scalar": [0, 1],
    }
    assert bool(optim.all_finite({"n": jnp.arange(3)}))
    assert bool(optim.all_finite({}))


def test_float64_has_its_own_range_and_counts_stay_int32():
    with jax.enable_x64(True):
        tree = {"d": jnp.asarray([1e200, jnp.inf]), "f": jnp.asarray([1e30], jnp.float32)}
        got = optim.count_nonfinite(tree)
    assert {k: (v.tolist(), v.dtype.name) for k, v in got.items()} == {
        "d": ([1, 0], "int32"),
        "f": ([1, 0], "int32"),
    }


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_what_has_an_infinite_square_in_float32_counts_as_infinite(dtype):
    x = jnp.asarray([2.0**62, 2.0**63, -(2.0**90)], dtype)
    assert optim.count_nonfinite({"x": x})["x"].tolist() == [2, 0]


def test_counts_are_right_under_vmap():
    x = jnp.asarray([[1.0, jnp.nan], [jnp.inf, jnp.inf]])
    got = jax.jit(jax.vmap(lambda x: optim.count_nonfinite({"w": x})["w"]))(x)
    assert got.tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_leaves_are_judged_too(name):
    x = jnp.asarray([1.0, jnp.nan], name)
    assert optim.count_nonfinite({"x": x})["x"].tolist() == [0, 1]
