"""The programs that train one arm: start, a stretch of steps, and the test loss."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jprec import optim, program, rounding, train
from jprec import policy as policies
from jprec.study.arms import Arm
from jprec.study.design import Setting
from jprec.study.keys import key_for
from jprec.workloads import Workload

Tree = Any


class State(NamedTuple):
    """What training carries from step to step.

    `before` and `update` are the parameters before the latest step and the FP32 update that the
    optimiser wanted then; they are watched, never used.
    """

    params: Tree
    opt_state: Tree
    before: Tree
    update: Tree


class Trace(NamedTuple):
    """What each step of a stretch leaves, [steps] each: loss, loss scale, whether skipped."""

    loss: jax.Array
    scale: jax.Array
    skipped: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Programs:
    """One arm's compiled functions, each mapped over seeds [n] int32.

    Attributes:
      start: seeds -> State at step 0.
      stretch: (State, seeds, first step) -> (State, Trace [n, steps]), `steps_a_stretch` steps.
      test: parameters -> (test loss [n], accuracy [n] or None), always in full FP32.
      batch: (seeds, step) -> the batches of that step.
    """

    start: Callable[..., State]
    stretch: Callable[..., tuple[State, Trace]]
    test: Callable[..., tuple[jax.Array, jax.Array | None]]
    batch: Callable[..., Tree]
    steps_a_stretch: int


def programs(setting: Setting, arm: Arm, workload: Workload) -> Programs:
    """The programs that train `arm` in `setting`.

    Initial weights and batches come from keys that name the workload and what is drawn, not the
    arm: arms of one setting are paired seed by seed.
    """
    policy = full_precision_unless_named(arm)
    transformation = _transformations(setting, arm, workload)

    def start(seed: jax.Array, params: Tree) -> State:
        if arm.one_ulp:
            params = nudged(params)
        params = stored(params, policy)
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        return State(params, transformation(seed).init(params), params, zeros)

    mapped = jax.jit(jax.vmap(start))
    return Programs(
        start=lambda seeds: mapped(seeds, initial(workload)(seeds)),
        stretch=_stretch(setting, _program(arm), workload),
        test=tester(workload),
        batch=jax.jit(jax.vmap(lambda seed, t: _batch(workload, seed, t), in_axes=(0, None))),
        steps_a_stretch=setting.steps // setting.points,
    )


def _program(arm: Arm) -> Arm:
    """The arm without what is data to its training program: arms alike in the rest share one.

    A static loss scale and the initial weights are data. An arm and a twin that differs in them
    alone are therefore the same instructions, and a difference between them is one of arithmetic.
    """
    static = isinstance(arm.loss_scale, int | float)
    return dataclasses.replace(
        arm,
        name="",
        what="",
        loss_scale=1.0 if static else arm.loss_scale,
        one_ulp=False,
        role="report",
        twin_of=None,
    )


def _transformations(
    setting: Setting, arm: Arm, workload: Workload
) -> Callable[[jax.Array], optax.GradientTransformationExtraArgs]:
    """seed -> the setting's optimiser, wrapped as the arm says."""
    policy = full_precision_unless_named(arm)
    wrap = functools.partial(
        optim.wrap, setting.optimizer, policy, loss_scale=arm.loss_scale, store=arm.store
    )
    if arm.store != "stochastic":
        return lambda seed: wrap()
    return lambda seed: wrap(key=key_for(seed, workload.name, "store"))


def _batch(workload: Workload, seed: jax.Array, step: jax.Array) -> Tree:
    return workload.batches(jax.random.fold_in(key_for(seed, workload.name, "batches"), step))


@functools.cache
def _stretch(setting: Setting, arm: Arm, workload: Workload) -> Callable[..., tuple[State, Trace]]:
    """(State, seeds, first step) -> (State, Trace), the same for all arms with this program."""
    policy = full_precision_unless_named(arm)
    transformation = _transformations(setting, arm, workload)
    guarded = is_guarded(policy, arm)
    steps = setting.steps // setting.points

    def advance(state: State, seed: jax.Array, step: jax.Array) -> tuple[State, Trace]:
        scale = optim.loss_scale(state.opt_state) if guarded else 1.0
        value_and_grad = train.value_and_grad(workload.loss, policy, scale=scale, exact=True)
        loss, gradients = value_and_grad(state.params, _batch(workload, seed, step))
        finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]).all()
        updates, opt_state = transformation(seed).update(gradients, state.opt_state, state.params)
        params = optim.apply_updates(state.params, updates)
        skipped = ~finite if guarded else jnp.zeros((), bool)
        trace = Trace(loss, jnp.asarray(scale, jnp.float32), skipped)
        return State(params, opt_state, state.params, wanted(updates)), trace

    def stretch(state: State, seed: jax.Array, first: jax.Array) -> tuple[State, Trace]:
        return lax.scan(lambda s, t: advance(s, seed, t), state, first + jnp.arange(steps))

    return jax.jit(jax.vmap(stretch, in_axes=(0, 0, None)), donate_argnums=0)


def full_precision_unless_named(arm: Arm) -> policies.Policy:
    """The arm's policy; products that it says nothing about run in full FP32, not in TF32."""
    policy = policies.get(arm.policy)
    return dataclasses.replace(policy, product=policy.product or "fp32")


def is_guarded(policy: policies.Policy, arm: Arm) -> bool:
    """Whether a loss scale, static or dynamic, watches over the arm and skips bad steps."""
    if arm.loss_scale is None:
        return policy.needs_loss_scale
    return arm.loss_scale != "none"


@functools.cache
def initial(workload: Workload) -> Callable[[jax.Array], Tree]:
    """seeds -> initial FP32 weights; one compilation for all arms."""
    return jax.jit(jax.vmap(lambda seed: workload.init(key_for(seed, workload.name, "init"))))


@functools.cache
def tester(workload: Workload) -> Callable[..., tuple[jax.Array, jax.Array | None]]:
    """parameters -> (test loss, accuracy or None), in full FP32; one compilation for all arms."""

    def test(params: Tree) -> tuple[jax.Array, jax.Array | None]:
        params = jax.tree.map(lambda p: p.astype(jnp.float32), params)
        batch = jax.tree.map(jnp.asarray, workload.test)
        loss = program.emulate(workload.loss, "fp32")(params, batch)
        if workload.accuracy is None:
            return loss, None
        return loss, program.emulate(workload.accuracy, "fp32")(params, batch)

    mapped = jax.jit(jax.vmap(test))
    # One signature for every arm: 16-bit parameters are widened (exactly) before the call.
    return lambda params: mapped(jax.tree.map(lambda p: p.astype(jnp.float32), params))


def stored(params: Tree, policy: policies.Policy) -> Tree:
    """FP32 parameters as the policy stores them, rounded to nearest even."""

    def store(path: Any, leaf: jax.Array) -> jax.Array:
        at = policy.for_path(jax.tree_util.keystr(path, simple=True, separator="/"))
        if at.params == "float32":
            return leaf
        return rounding.round_to(leaf, at.params).astype(at.params)

    return jax.tree_util.tree_map_with_path(store, params)


def nudged(params: Tree) -> Tree:
    """The parameters with one weight one ulp farther from zero: the largest of the last matrix."""
    leaves, structure = jax.tree.flatten(params)
    last = max(i for i, leaf in enumerate(leaves) if leaf.ndim >= 2)
    flat = leaves[last].reshape(-1)
    at = jnp.argmax(jnp.abs(flat))
    bits = lax.bitcast_convert_type(flat, jnp.uint32)
    moved = lax.bitcast_convert_type(bits.at[at].add(jnp.uint32(1)), jnp.float32)
    leaves[last] = moved.reshape(leaves[last].shape)
    return jax.tree.unflatten(structure, leaves)


def wanted(updates: Tree) -> Tree:
    """The FP32 updates that the optimiser asked for, before anything was rounded on store."""
    new_value = lambda u: isinstance(u, optim.NewValue)  # noqa: E731
    return jax.tree.map(lambda u: u.update if new_value(u) else u, updates, is_leaf=new_value)


def seeds_of(numbers: Any) -> jax.Array:
    """Seeds as the programs take them."""
    return jnp.asarray(np.asarray(numbers, np.int32))
