import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jprec import optim
from jprec.optim import clip_by_global_norm, global_norm


def clipped(max_norm, updates):
    return clip_by_global_norm(max_norm).update(updates, optax.EmptyState())[0]


@jax.jit
def norm_and_clipped(updates, max_norm):
    return global_norm(updates), clipped(max_norm, updates)


def exact(values):
    return float(np.sqrt(sum(np.abs(np.asarray(v, np.complex128)) ** 2 for v in values)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("size", [300.0, 1e-4, 60000.0, 6e-8])
def test_squares_neither_overflow_nor_underflow(dtype, size):
    """optax gives infinity and zero for the first two in float16, and a clipped gradient of 0."""
    gradients = jnp.full(4, size, dtype)
    norm, after = norm_and_clipped(gradients, 1e-9)
    want = exact(gradients)
    assert norm.dtype == jnp.float32
    np.testing.assert_allclose(norm, want, rtol=1e-6)
    assert after.dtype == dtype
    if dtype != "float16":
        np.testing.assert_allclose(np.asarray(after, np.float64), 5e-10, rtol=2.0**-8)


def test_the_control_fails_optax_alone_loses_float16_gradients():
    for size, wrong in ((300.0, np.inf), (1e-4, 0.0)):
        assert optax.tree.norm(jnp.full(4, size, jnp.float16)) == wrong


@pytest.mark.parametrize("size", [5e-38, 1e-30, 1e30, 3e38])
def test_the_whole_range_of_float32_is_clipped_right(size):
    """The norm of four times 3e38 is infinite in float32, yet no gradient is."""
    norm, after = norm_and_clipped(jnp.float32([size, -size, size, size]), size)
    np.testing.assert_allclose(norm, 2 * size if size < 1e38 else np.inf, rtol=1e-6)
    np.testing.assert_allclose(after, np.array([0.5, -0.5, 0.5, 0.5]) * size, rtol=1e-6)


def test_the_norm_of_random_trees_agrees_with_float64():
    rng = np.random.default_rng(0)
    for _ in range(5):
        tree = {
            "low": jnp.asarray(rng.standard_normal(1000) * 200, jnp.float16),
            "wide": jnp.asarray(rng.standard_normal((10, 100)) * 100, jnp.float32),
            "z": jnp.asarray(rng.standard_normal(50) + 1j * rng.standard_normal(50), jnp.complex64),
        }
        want = exact(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]))
        norm, after = norm_and_clipped(tree, 2.0)
        np.testing.assert_allclose(norm, want, rtol=1e-6)
        for name, leaf in tree.items():
            got = np.asarray(after[name], np.complex128)
            np.testing.assert_allclose(got, np.asarray(leaf, np.complex128) * 2 / want, 2e-3, 1e-6)


def test_gradients_within_the_norm_keep_every_bit():
    gradients = {
        "a": jnp.float16([0.0, -0.0, 6e-8, 0.5]),
        "b": jnp.float32([-0.0, 1e-3]),
        "c": jnp.bfloat16(-0.25),
    }
    after = norm_and_clipped(gradients, 1.0)[1]
    for name, leaf in gradients.items():
        assert after[name].dtype == leaf.dtype
        assert np.asarray(after[name]).tobytes() == np.asarray(leaf).tobytes()


def test_zero_gradients_and_a_norm_of_zero_give_zeros():
    """optax#1752: NaN."""
    for dtype in ("float16", "float32"):
        zeros = {"w": jnp.zeros(3, dtype), "b": jnp.zeros([], dtype)}
        for max_norm in (0.0, 1.0):
            norm, after = norm_and_clipped(zeros, max_norm)
            assert norm == 0
            assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(after))
    assert norm_and_clipped(jnp.float16([300.0, -1.0]), 0.0)[1].tolist() == [0, 0]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_gradients_that_are_not_finite_pass_unchanged_and_the_norm_says_so(bad):
    gradients = {"w": jnp.float32([1e3, bad]), "b": jnp.float16([2.0, 3.0])}
    norm, after = norm_and_clipped(gradients, 1.0)
    assert np.isnan(norm) if np.isnan(bad) else norm == np.inf
    np.testing.assert_array_equal(after["w"], gradients["w"])
    np.testing.assert_array_equal(after["b"], gradients["b"])


def test_leaves_that_are_no_numbers_with_a_size_pass_and_do_not_count():
    gradients = {
        "w": jnp.float32([3.0, 4.0]),
        "n": jnp.asarray([100]),
        "none": None,
        "f0": np.zeros(2, jax.dtypes.float0),
        "key": jax.random.key(0),
        "flag": np.ones(2, bool),
        "empty": jnp.zeros((0, 3), jnp.float16),
    }
    assert global_norm(gradients) == 5.0
    after = clipped(1.0, gradients)
    np.testing.assert_allclose(after["w"], [0.6, 0.8], rtol=1e-6)
    for name in ("n", "none", "f0", "key", "flag"):
        assert after[name] is gradients[name]
    assert after["empty"].dtype == jnp.float16
    assert global_norm({}) == 0
    assert clipped(1.0, {}) == {}


def test_a_tree_with_float64_is_measured_in_float64_and_others_stay_float32():
    with jax.enable_x64(True):
        assert global_norm(jnp.float16([3.0, 4.0])).dtype == jnp.float32
        wide = {"w": jnp.asarray([3e200, 4e200]), "h": jnp.float16([1.0])}
        norm = global_norm(wide)
        assert norm.dtype == jnp.float64
        np.testing.assert_allclose(norm, 5e200, rtol=1e-15)
        after = clipped(1.0, wide)
        np.testing.assert_allclose(after["w"], [0.6, 0.8], rtol=1e-15)
        assert {name: leaf.dtype.name for name, leaf in after.items()} == {
            "w": "float64",
            "h": "float16",
        }


def test_each_lane_of_a_vmap_has_its_norm():
    gradients = jnp.float16([[3.0, 4.0], [300.0, 400.0], [0.0, 0.0], [np.inf, 1.0]])
    norm, after = jax.vmap(norm_and_clipped, in_axes=(0, None))(gradients, 10.0)
    assert norm.tolist() == [5.0, 500.0, 0.0, np.inf]
    np.testing.assert_allclose(after[:3], [[3, 4], [6, 8], [0, 0]], rtol=1e-3)


def test_float8_gradients_are_measured_in_float32():
    gradients = jnp.asarray([384.0, 288.0], jnp.float8_e4m3fn)
    assert global_norm(gradients) == 480.0
    assert clipped(240.0, gradients).astype(jnp.float32).tolist() == [192.0, 144.0]


def test_the_clipped_step_does_not_depend_on_the_loss_scale():
    """Gradients are handed out unscaled, so that nobody clips scaled ones (apex#1512)."""
    clip = optax.chain(clip_by_global_norm(1.0), optax.sgd(1.0))
    params = jnp.asarray([1.0, 2.0], jnp.float16)
    after = []
    for scale in (1.0, 2.0**10):
        tx = optim.wrap(clip, "pure_fp16", loss_scale=scale, store="master")
        state = tx.init(params)
        scaled = jax.grad(lambda w, state=state: jnp.sum(w**2) * optim.loss_scale(state))
        gradients = scaled(params).astype(jnp.float32) / optim.loss_scale(state)
        updates, _ = tx.update(gradients, state, params)
        after.append(np.asarray(optim.apply_updates(params, updates)).tobytes())
    assert after[0] == after[1]


def test_the_guard_judges_what_the_clip_sees():
    """A clip before the guard would turn infinity into a finite step (optax: sgd moves by -1)."""
    tx = optim.wrap(optax.chain(clip_by_global_norm(1.0), optax.sgd(1.0)), "mixed_fp16")
    params = jnp.ones(2)
    updates, state = tx.update(jnp.float32([np.inf, 1.0]), tx.init(params), params)
    assert optim.apply_updates(params, updates).tolist() == [1.0, 1.0]
    assert state.skipped == 1


@pytest.mark.parametrize("max_norm", [-1.0, float("nan"), -1])
def test_a_number_that_is_no_norm_is_an_error(max_norm):
    with pytest.raises(ValueError, match="is not a norm"):
        clip_by_global_norm(max_norm)
