"""Every optimiser part keeps the same promises: a table of parts times a table of promises."""

import chex
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest

from jprec import optim

SCHEDULE = optax.linear_schedule(1e-2, 1e-3, 100)


def inner():
    return optax.sgd(SCHEDULE, momentum=0.9)


PARTS = {
    "static_loss_scale": lambda: optim.static_loss_scale(inner(), 2.0**10),
    "dynamic_loss_scale": lambda: optim.dynamic_loss_scale(inner()),
    "round_on_store": lambda: optim.wrap(inner(), "pure_fp16"),
    "master_weights": lambda: optim.wrap(inner(), "pure_fp16", store="master"),
    "stochastic_rounding": lambda: optim.wrap(
        inner(), "pure_fp16", store="stochastic", key=jax.random.key(1)
    ),
    "kahan": lambda: optim.wrap(inner(), "pure_fp16", store="kahan"),
    "store_moments": lambda: optim.wrap(
        inner(), "params=float16,compute=float16,moments=bfloat16", store="master"
    ),
    "ema": lambda: optim.wrap(optim.ema(inner(), 0.9), "pure_fp16"),
    "clip_by_global_norm": lambda: optim.wrap(
        optax.chain(optim.clip_by_global_norm(0.1), inner()), "pure_fp16", store="master"
    ),
    "accumulation": lambda: optim.wrap(
        optax.MultiSteps(inner(), 2).gradient_transformation(), "pure_fp16", store="kahan"
    ),
    "master_weights_alone": lambda: optim.master_weights(inner()),
    "watch_alone": lambda: optim.watch(optim.dynamic_loss_scale(inner()), every=2),
}
GUARDED = [name for name in PARTS if not name.endswith("_alone")]


def parameters():
    return {
        "low": jnp.linspace(-1.0, 1.0, 6).astype(jnp.bfloat16),
        "half": jnp.linspace(1.0, 2.0, 3).astype(jnp.float16),
        "wide": jnp.ones((2, 2), jnp.float32),
    }


def gradients(params, value=1.0):
    return jax.tree.map(lambda p: jnp.full(p.shape, value, jnp.float32), params)


def types(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), tree)


def assert_same_bits(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


class Run:
    """Two jitted steps of one part, taken with one trace."""

    def __init__(self, name):
        self.name, self.transform = name, PARTS[name]()
        chex.clear_trace_counter()  # It counts by the name of the function.
        self.step = jax.jit(chex.assert_max_traces(self._step, n=1))
        self.start = self.transform.init(parameters())
        self.first = self.step(gradients(parameters()), self.start, parameters())
        self.second = self.step(gradients(parameters()), self.first[1], self.first[0])

    def _step(self, grads, state, params):
        updates, state = self.transform.update(grads, state, params)
        return optim.apply_updates(params, updates), state, optax.apply_updates(params, updates)


@pytest.fixture(scope="module", params=PARTS)
def run(request):
    return Run(request.param)


def test_types_do_not_drift_and_are_strong_and_no_step_traces_again(run):
    assert types(run.start) == types(run.first[1]) == types(run.second[1])
    assert types(parameters()) == types(run.first[0]) == types(run.second[0])
    assert [leaf for leaf in jax.tree.leaves(run.second) if leaf.weak_type] == []


def test_parameters_move(run):
    params = run.second[0]
    assert np.any(np.asarray(params["wide"]) != 1.0)
    assert np.any(np.asarray(params["half"]) != np.asarray(parameters()["half"]))


def test_optax_apply_updates_gives_the_same_bits(run):
    assert_same_bits(run.second[2], run.second[0])


def test_counters_are_int32(run):
    leaves = jax.tree.leaves(run.start)
    integers = {x.dtype.name for x in leaves if jnp.issubdtype(x.dtype, jnp.integer)}
    assert integers <= {"int32", "uint32"}


def test_every_field_survives_jit_flatten_and_serialisation(run):
    state = run.first[1]
    assert_same_bits(jax.jit(lambda s: s)(state), state)
    leaves, structure = jax.tree.flatten(state)
    assert_same_bits(structure.unflatten([np.asarray(leaf) for leaf in leaves]), state)
    back = flax.serialization.from_bytes(run.start, flax.serialization.to_bytes(state))
    assert type(back) is type(state)
    for field in state._fields:
        assert_same_bits(getattr(back, field), getattr(state, field))


def test_a_restored_state_continues_bit_for_bit(run, tmp_path):
    saved = {"state": run.first[1], "params": run.first[0]}
    checkpointer = orbax.checkpoint.StandardCheckpointer()
    checkpointer.save(tmp_path / "saved", saved)
    checkpointer.wait_until_finished()
    back = checkpointer.restore(tmp_path / "saved", jax.tree.map(np.zeros_like, saved))
    checkpointer.close()
    back = jax.tree.map(jnp.asarray, back)
    after = run.step(gradients(parameters()), back["state"], back["params"])
    assert_same_bits(after, run.second)


def test_scan_over_steps_under_vmap_is_the_loop(run):
    """Steps in a scan, two lanes under vmap: one trains, one has infinite gradients."""

    def body(carry, _):
        params, state, value = carry
        params, state, _ = run._step(gradients(params, value), state, params)
        return (params, state, value), None

    def lane(value):
        params, state, _ = jax.lax.scan(body, (parameters(), run.start, value), length=2)[0]
        return params, state

    chex.clear_trace_counter()
    params, state = jax.jit(jax.vmap(lane))(jnp.asarray([1.0, jnp.inf]))
    assert_same_bits(jax.tree.map(lambda x: x[0], params), run.second[0])
    if run.name in GUARDED:
        assert_same_bits(jax.tree.map(lambda x: x[1], params), parameters())
        assert state.skipped.tolist() == [0, 2]


@pytest.mark.parametrize("run", GUARDED, indirect=True)
def test_a_skipped_step_changes_no_parameter_no_moment_and_no_schedule_count(run):
    params = parameters() | {"wide": jnp.asarray([[-0.0, 0.0], [1.0, jnp.inf]])}
    for bad in (np.inf, -np.inf, np.nan):
        grads = gradients(params)
        grads["half"] = grads["half"].at[1].set(bad)
        ours, state, optaxs = run.step(grads, run.start, params)
        assert_same_bits(ours, params)
        assert_same_bits(optaxs, params)
        assert_same_bits(state.inner_state, run.start.inner_state)
        assert (int(state.skipped), int(state.skipped_in_row)) == (1, 1)


@pytest.mark.parametrize("build", PARTS.values(), ids=PARTS)
def test_types_hold_with_x64_on(build):
    with jax.enable_x64(True):
        transform, params = build(), parameters()
        start = jax.eval_shape(transform.init, params)

        def step(grads, state, params):
            updates, state = transform.update(grads, state, params)
            return optim.apply_updates(params, updates), state

        after = jax.eval_shape(step, gradients(params), start, params)
        assert types(after) == (types(params), types(start))
        dtypes = {jnp.dtype(leaf.dtype).name for leaf in jax.tree.leaves(start)}
        assert not dtypes & {"float64", "int64"}


@pytest.mark.parametrize("build", PARTS.values(), ids=PARTS)
def test_a_first_state_may_be_donated_and_init_serves_again(build):
    """No two leaves share a buffer, and none is the transformation's own or the parameters'."""
    transform, params = build(), parameters()
    keep = jax.jit(lambda tree: tree, donate_argnums=0)
    first = keep(transform.init(params))
    assert_same_bits(keep(transform.init(params)), first)
