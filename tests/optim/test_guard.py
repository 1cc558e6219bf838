import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jprec import optim, train

INTERVAL, FLOOR, CEILING, INITIAL = 3, 2.0**-2, 2.0**3, 2.0**1
DYNAMIC = optim.dynamic_loss_scale(
    optax.sgd(0.1), initial=INITIAL, growth_interval=INTERVAL, floor=FLOOR, ceiling=CEILING
)
STEPS = 24
UPDATE = jax.jit(DYNAMIC.update)


@jax.jit
def drive(clean):
    """The trace of (scale before, state after) over steps whose gradients are finite or not."""

    def step(state, clean):
        scale = optim.loss_scale(state)
        _, after = DYNAMIC.update({"w": jnp.where(clean, 1.0, jnp.inf)}, state)
        return after, (scale, after._replace(inner_state=None))

    return jax.lax.scan(step, DYNAMIC.init({"w": jnp.ones([])}), clean)


def reference(clean):
    scale, streak, taken, skipped, start, row, floor_steps = INITIAL, 0, 0, 0, 0, 0, 0
    for ok in clean:
        used, floor_steps = scale, floor_steps + (scale == FLOOR)
        start += not ok and taken == 0
        taken, skipped, row = (taken + 1, skipped, 0) if ok else (taken, skipped + 1, row + 1)
        streak = streak + 1 if ok else 0
        if not ok:
            scale = max(scale / 2, FLOOR)
        elif streak == INTERVAL:
            scale, streak = min(scale * 2, CEILING), 0
        yield used, scale, streak, taken, skipped, start, row, floor_steps


@given(st.lists(st.booleans(), min_size=STEPS, max_size=STEPS))
@settings(max_examples=100, deadline=None)
@example([True] * STEPS)
@example([False] * STEPS)
def test_the_scale_machine_agrees_with_ten_lines_of_python(clean):
    _, (used, states) = drive(np.asarray(clean))
    counters = ("taken", "skipped", "skipped_at_start", "skipped_in_row", "steps_at_floor")
    fields = ("scale", "clean_steps", *counters)
    got = zip(used.tolist(), *(getattr(states, f).tolist() for f in fields), strict=True)
    assert list(got) == list(reference(clean))


def test_the_scale_grows_on_exactly_the_interval_th_clean_step():
    _, (used, states) = drive(np.asarray([True] * STEPS))
    assert states.scale[: 2 * INTERVAL].tolist() == [2.0, 2.0, 4.0, 4.0, 4.0, 8.0]
    assert used[0] == INITIAL


def test_a_refused_growth_starts_the_count_again_and_the_scale_is_never_infinite():
    end, (_, states) = drive(np.asarray([True] * STEPS))
    assert states.scale.max() == CEILING
    assert states.clean_steps[-3:].tolist() == [1, 2, 0]
    assert end.scale == CEILING


def test_the_scale_stops_at_its_floor_and_says_so():
    end, _ = drive(np.asarray([False] * STEPS))
    assert end.scale == FLOOR
    assert end.skipped == end.skipped_in_row == STEPS
    assert end.steps_at_floor == STEPS - 3


@pytest.mark.parametrize("scale", [0.0, np.nan, np.inf, -1.0, 2.0**-140])
def test_the_scale_recovers_from_any_restored_state(scale):
    state = DYNAMIC.init({"w": jnp.ones([])})._replace(scale=jnp.float32(scale))
    _, state = UPDATE({"w": jnp.asarray(jnp.nan)}, state)
    assert FLOOR <= state.scale <= CEILING
    assert np.log2(state.scale) % 1 == 0


@jax.jit
def after_bad_steps(value, scale):
    """The state after forty steps with `value` in the gradient, from this scale."""
    state = LOW.init({"w": jnp.ones(2)})._replace(scale=scale)

    def step(state, _):
        return LOW.update({"w": jnp.stack([1.0, value])}, state)[1], None

    return jax.lax.scan(step, state, length=40)[0]


LOW = optim.dynamic_loss_scale(optax.identity(), floor=2.0**-30)


def test_nan_without_infinity_lowers_the_scale_for_a_while_and_stops():
    """GradScaler sinks to 5e-324 and below on a NaN that no scale cures (pytorch#99640, #40497)."""
    for start, end in [(16, -8), (24, 0), (30, 0), (4, -20)]:
        state = after_bad_steps(jnp.float32(jnp.nan), jnp.float32(2.0**start))
        assert (state.scale, state.nan_in_row, state.skipped_in_row) == (2.0**end, 40, 40)
    state = guard_after(jnp.nan, floor=1.0)
    assert (state.scale, state.nan_in_row) == (1.0, 40)


def guard_after(value, **settings):
    transform = optim.dynamic_loss_scale(optax.identity(), **settings)
    step = lambda state, _: (transform.update({"w": jnp.full(1, value)}, state)[1], None)
    return jax.lax.scan(step, transform.init({"w": jnp.ones(1)}), length=40)[0]


def test_an_overflow_that_arrives_as_nan_alone_is_cured_by_a_scale_below_one():
    """Infinity times zero on the way back: no infinity is left in the only gradient."""
    transform = optim.wrap(
        optax.sgd(0.1), "mixed_fp16", loss_scale=optim.DynamicScale(initial=4.0, floor=2.0**-10)
    )
    params = {"w": jnp.ones(1)}
    big = jnp.asarray([[60000.0, 60000.0]])

    def loss(params, x):
        return ((params["w"] * x)[None] @ big.astype(x.dtype)).astype(jnp.float32).sum()

    state = transform.init(params)
    for _ in range(4):
        scale = optim.loss_scale(state)
        _, grads = train.value_and_grad(loss, "mixed_fp16", scale=scale)(params, jnp.zeros(1))
        _, state = transform.update(grads, state, params)
    assert (state.taken, state.scale) == (1, 0.5)


def test_a_skip_moves_no_integer_either():
    inner = optax.GradientTransformation(
        lambda params: optax.EmptyState(),
        lambda g, s, p=None: ({"w": g["w"], "n": jnp.int32(1)}, s),
    )
    transform = optim.dynamic_loss_scale(inner)
    params = {"w": jnp.ones(1), "n": jnp.int32(5)}
    for value, n in [(jnp.inf, 5), (1.0, 6)]:
        grads = {"w": jnp.full(1, value), "n": jnp.int32(0)}
        updates, _ = transform.update(grads, transform.init(params), params)
        assert optim.apply_updates(params, updates)["n"] == n


def test_optax_finds_what_is_shaped_like_the_parameters_in_a_guarded_state():
    for policy in ("mixed_fp16", "pure_fp16"):
        params = {
            "w": jnp.ones(2, jnp.float32 if policy[0] == "m" else jnp.float16),
            "b": jnp.ones(3),
        }
        transform = optim.wrap(optax.adam(0.1), policy)
        state = transform.init(params)
        marked = optax.tree_map_params(transform, lambda x: x + 1, state)
        moved = [
            bool(jnp.any(a != b))
            for a, b in zip(*map(jax.tree.leaves, (marked, state)), strict=True)
        ]
        assert sum(moved) == 4  # mu and nu of both
        assert jax.tree.structure(marked) == jax.tree.structure(state)


def test_infinity_lowers_the_scale_below_one_to_the_floor():
    state = after_bad_steps(jnp.float32(jnp.inf), jnp.float32(2.0**5))
    assert (state.scale, state.nan_in_row) == (2.0**-30, 0)


def test_a_nan_beside_an_infinity_is_an_overflow():
    """Infinity times zero or minus infinity makes NaN on the way back."""
    grads = {"w": jnp.asarray([jnp.inf, jnp.nan])}
    _, state = LOW.update(grads, LOW.init(grads)._replace(scale=jnp.float32(1.0)))
    assert (state.scale, state.nan_in_row) == (0.5, 0)


def test_a_gradient_whose_square_overflows_counts_as_infinite():
    """A finite gradient of 3e38 makes Adam's second moment infinite for ever, unseen by optax."""
    transform = optim.dynamic_loss_scale(optax.adam(0.1))
    params = {"w": jnp.ones(2)}
    start = transform.init(params)
    update = jax.jit(transform.update)
    for value, skipped in [(3e38, 1), (2.0**63, 1), (-(2.0**63), 1), (2.0**62.9, 0)]:
        _, state = update({"w": jnp.asarray([1.0, value], jnp.float32)}, start, params)
        assert state.skipped == skipped
        chex.assert_tree_all_finite(state.inner_state)


def test_a_static_scale_stays_and_skips():
    transform = optim.static_loss_scale(optax.sgd(0.1), 2.0**-18)
    update = jax.jit(transform.update)
    params = {"w": jnp.ones(2)}
    state = transform.init(params)
    for value, skipped, row in [(1.0, 0, 0), (np.inf, 1, 1), (np.nan, 2, 2), (1.0, 2, 0)]:
        _, state = update({"w": jnp.full(2, value)}, state, params)
        assert (int(state.skipped), int(state.skipped_in_row)) == (skipped, row)
        assert optim.loss_scale(state) == 2.0**-18
    assert state.steps_at_floor == 0


def test_moments_hold_no_nan_after_a_skip_and_training_goes_on():
    transform = optim.dynamic_loss_scale(optax.adam(0.1))
    params = {"w": jnp.ones(2)}

    @jax.jit
    def two_steps():
        _, state = transform.update({"w": jnp.full(2, jnp.nan)}, transform.init(params), params)
        return transform.update({"w": jnp.ones(2)}, state, params)

    updates, state = two_steps()
    chex.assert_tree_all_finite((updates, state))
    assert np.all(np.asarray(updates["w"]) < 0)


def test_only_raw_gradients_are_judged():
    """A clip inside the guard cannot hide an infinity, as it does in front of apply_if_finite."""
    transform = optim.dynamic_loss_scale(optax.chain(optax.clip(1.0), optax.sgd(1.0)))
    params = {"w": jnp.ones(2)}
    updates, state = transform.update(
        {"w": jnp.asarray([jnp.inf, 0.0])}, transform.init(params), params
    )
    assert np.all(np.asarray(updates["w"]) == 0)
    assert state.skipped == 1


def test_leaves_that_are_not_floating_are_not_judged():
    grads = {"n": jnp.arange(3), "key": jax.random.key(0), "zero": np.zeros(2, jax.dtypes.float0)}
    transform = optim.dynamic_loss_scale(optax.identity())
    _, state = transform.update(grads, transform.init(grads))
    assert state.skipped == 0
    _, state = transform.update({"z": jnp.asarray([1 + 1j * jnp.inf])}, state)
    assert state.skipped == 1


def test_optimiser_counts_and_clipping_see_unscaled_gradients_and_the_scale_does_not_matter():
    params = {"w": jnp.asarray([3.0, 4.0])}
    results = []
    for scale in (2.0**-10, 1.0, 2.0**10):
        transform = optim.static_loss_scale(
            optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)), scale
        )
        updates, _ = transform.update(params, transform.init(params), params)
        results.append(updates["w"].tolist())
    assert results[0] == results[1] == results[2]


def test_the_scale_is_found_however_deep_and_is_one_where_there_is_none():
    params = {"w": jnp.ones(2)}
    deep = optax.chain(optax.identity(), optax.chain(optim.static_loss_scale(optax.sgd(1.0), 4.0)))
    assert optim.loss_scale(deep.init(params)) == 4.0
    none = optim.loss_scale(optax.adam(1.0).init(params))
    assert none == 1.0
    assert isinstance(none, optim.Unguarded)


def test_two_scales_in_one_state_are_an_error_that_explains_itself():
    once = optim.static_loss_scale(optax.sgd(1.0), 4.0)
    params = {"w": jnp.ones(2)}
    for twice in (optim.dynamic_loss_scale(once), optax.chain(once, once)):
        with pytest.raises(ValueError, match=r"2 loss scales.*One loss has one scale"):
            optim.loss_scale(twice.init(params))


def test_two_named_scales_can_be_told_apart_by_asking_for_a_part():
    once = optim.static_loss_scale(optax.sgd(1.0), 4.0)
    state = optax.chain(once, once).init({"w": jnp.ones(2)})
    assert optim.loss_scale(state[1]) == 4.0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"initial": 65504.0}, r"nearest is 2.0\*\*16"),
        ({"initial": 0.0}, "power of two"),
        ({"initial": float("nan")}, "power of two"),
        ({"ceiling": float(np.finfo(np.float32).max)}, "ceiling"),
        ({"floor": 2.0**-149}, "2\\*\\*-126"),
        ({"initial": 2.0**25}, "between the two"),
        ({"growth_interval": 0}, "at least 1"),
        ({"growth_interval": 2.5}, "whole number"),
        ({"initial": "big"}, "not a number"),
    ],
)
def test_a_wrong_setting_is_named_with_the_way_out(settings, says):
    with pytest.raises(ValueError, match=says):
        optim.dynamic_loss_scale(optax.sgd(1.0), **settings)


def test_a_static_scale_is_a_power_of_two():
    with pytest.raises(ValueError, match=r"scale=1000\.0 is not a power of two"):
        optim.static_loss_scale(optax.sgd(1.0), 1000.0)
