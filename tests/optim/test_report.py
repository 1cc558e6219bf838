import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from jprec import optim

PARAMS = {"head": {"kernel": jnp.ones(3)}, "bias": jnp.ones(2)}
TX = optim.wrap(optax.adam(1e-3), "mixed_fp16")


def after(*values, scale=2.0**16):
    """The state after gradients with these values in the last place of head/kernel."""
    state = TX.init(PARAMS)._replace(scale=jnp.float32(scale))
    for value in values:
        grads = {"head": {"kernel": jnp.asarray([1.0, value, value])}, "bias": jnp.ones(2)}
        _, state = update(grads, state, PARAMS)
    return state


update = jax.jit(TX.update)


def test_the_report_names_the_leaves_that_were_not_finite():
    got = optim.report(after(1.0, jnp.inf))
    assert got.nonfinite == {"head/kernel": (2, 0)}
    assert (got.taken, got.skipped, got.skipped_in_row, got.scale) == (1, 1, 1, 2.0**15)
    assert got.finding == "overflow"
    lines = str(got).splitlines()
    assert lines[0].startswith("loss scale 32768: 1 steps taken, 1 skipped (0 before the first")
    assert lines[-1] == "  head/kernel  2 infinite, 0 NaN"


def test_what_was_last_not_finite_is_kept_after_good_steps():
    got = optim.report(after(jnp.nan, 1.0))
    assert got.finding == "fine"
    assert got.nonfinite == {"head/kernel": (0, 2)}


def test_skips_at_the_start_are_counted_apart():
    """The first steps search for the scale; a user took them for a bug (pytorch#111739)."""
    got = optim.report(after(jnp.inf, jnp.inf))
    assert (got.finding, got.skipped_at_start) == ("searching", 2)
    got = optim.report(after(jnp.inf, 1.0, jnp.inf))
    assert (got.finding, got.skipped, got.skipped_at_start) == ("overflow", 2, 1)


@pytest.mark.parametrize(("scale", "then"), [(1.0, 1.0), (2.0**16, 2.0**15)])
def test_a_nan_without_infinity_is_told_from_an_overflow(scale, then):
    got = optim.report(after(1.0, jnp.nan, scale=scale))
    assert (got.finding, got.scale, got.nan_in_row) == ("nan", then, 1)
    assert "forward pass" in str(got)


def test_before_the_first_step_there_is_nothing_to_say():
    assert optim.report(TX.init(PARAMS)).finding == "new"
    assert "No step yet" in str(optim.report(TX.init(PARAMS)))


def test_inside_jit_there_are_no_numbers_to_report():
    with pytest.raises(TypeError, match="Call them outside"):
        jax.jit(lambda state: optim.check(state).scale)(TX.init(PARAMS))


def test_check_passes_a_search_and_stops_a_run_that_skips_all_its_steps():
    """Keras' scale becomes 0 and flax's 1.2e-38 without a word (keras#16100)."""
    assert optim.check(after(*[jnp.inf] * 16)).scale == 1.0
    stuck = after(*[jnp.inf] * 21)
    with pytest.raises(FloatingPointError, match=r"21 steps in a row.*\n.*\n  head/kernel  2 inf"):
        optim.check(stuck)
    assert optim.report(stuck).finding == "stuck"
    assert optim.check(stuck, patience=21).skipped == 21


def test_flax_optimisers_hold_a_state_that_can_be_reported():
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, TX, wrt=nnx.Param)
    grads = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), nnx.state(model, nnx.Param))
    optimizer.update(model, grads)
    assert optim.report(optimizer.opt_state).nonfinite == {"bias": (0, 1), "kernel": (0, 2)}


def test_without_a_guard_the_report_says_that_nothing_was_counted():
    """A script whose policy needs no scale must not fail for its last line."""
    for read in (optim.report, optim.check):
        got = read(optim.wrap(optax.adam(1.0), "mixed_bf16").init(PARAMS))
        assert (got.finding, got.scale, got.taken) == ("unguarded", 1.0, 0)
        assert "loss_scale=1.0" in str(got)


def test_several_seeds_are_an_error_with_the_way_out():
    seeds = jax.vmap(lambda _: TX.init(PARAMS))(jnp.arange(3))
    with pytest.raises(ValueError, match="one for each seed"):
        optim.report(seeds)


def test_what_a_step_carries_beside_is_kept_when_the_step_was_skipped():
    new, old = {"mean": jnp.ones(2), "n": jnp.int32(3)}, {"mean": -jnp.zeros(2), "n": jnp.int32(2)}
    kept = optim.if_taken(after(jnp.inf), new, old)
    assert jnp.signbit(kept["mean"]).all()
    assert kept["n"] == 2
    assert optim.if_taken(after(1.0), new, old)["n"] == 3
    assert optim.if_taken(optax.sgd(1.0).init(PARAMS), new, old) is new
