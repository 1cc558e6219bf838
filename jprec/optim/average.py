"""An exponential moving average of the parameters, in float32.

In bfloat16 an average with decay 0.999 stands still: each step moves it by a thousandth of the
distance, which is below half an ulp (`optax.ema` and `optax.incremental_update` keep the dtype
they are given). In float32 it comes as near as 2**-24 of its size, divided by 1 - decay.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jprec import policy
from jprec.optim.new_value import NewValue, widen


class AverageState(NamedTuple):
    """inner_state: the inner optimiser's. steps: int32, steps taken.

    average: of the parameters, float32 where they are 16-bit, otherwise in their own dtype; None
    where a parameter is neither real nor complex.
    """

    inner_state: Any
    steps: jax.Array
    average: Any


def ema(
    inner: optax.GradientTransformation, decay: float | Callable[[jax.Array], Any]
) -> optax.GradientTransformationExtraArgs:
    """Keeps `average`, which moves by 1 - decay of the distance to each step's new parameters.

    It starts as the first parameters. The new parameters are what the parameters and the updates
    of `inner` add up to, in float32: inside the storage wrappers these are the masters; outside
    them, the stored 16-bit values. Inside the loss scale, a skipped step leaves it as it is. Within
    `optax.MultiSteps` it counts the steps of the optimiser, around it each micro-batch.

    Args:
      inner: The optimiser; its updates pass through unchanged.
      decay: In [0, 1), or a function of the number of steps taken, such as
        `lambda n: jnp.minimum(0.999, (1 + n) / (10 + n))`, which forgets the start sooner.

    Raises:
      ValueError: decay is outside [0, 1); at `update`, there are no parameters.

    Read it with `averages`.
    """
    if not callable(decay) and (isinstance(decay, bool) or not 0 <= decay < 1):
        raise ValueError(
            f"decay={decay!r} is outside [0, 1): it is the share of the old average that a step "
            "keeps. Take 0.999 for an average over about 1000 steps."
        )
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> AverageState:
        average = jax.tree.map(_start, params)
        return AverageState(inner.init(params), jnp.zeros([], jnp.int32), average)

    def update(gradients: Any, state: AverageState, params: Any = None, **extra: Any) -> Any:
        if params is None:
            raise ValueError(
                "ema needs the parameters: write tx.update(gradients, state, parameters)."
            )
        updates, inner_state = inner.update(gradients, state.inner_state, params, **extra)
        weight = 1 - (decay(state.steps) if callable(decay) else decay)

        def follow(parameter: Any, update: Any, average: Any) -> Any:
            if average is None:
                return None
            target = _after(parameter, update, average.dtype)
            moved = average + (weight * (target - average)).astype(average.dtype)
            # An average that has arrived stays: -0 too, and infinity, which minus itself is NaN.
            return jnp.where(target == average, average, moved)

        average = jax.tree.map(follow, params, updates, state.average)
        return updates, AverageState(inner_state, optax.safe_increment(state.steps), average)

    return optax.GradientTransformationExtraArgs(init, update)


def _is_averaged(parameter: Any) -> bool:
    return jnp.issubdtype(jax.typeof(parameter).dtype, jnp.inexact)


def _start(parameter: Any) -> Any:
    """The start of a parameter's average; None if it has none."""
    if not _is_averaged(parameter):
        return None
    dtype = jax.typeof(parameter).dtype
    wide = jnp.float32 if dtype.itemsize < 4 else dtype
    # A copy: the parameters may be donated.
    return jnp.array(parameter, wide, copy=True)


def _after(parameter: Any, update: Any, dtype: Any) -> jax.Array:
    """The parameter after its update, in the average's dtype."""
    if isinstance(update, NewValue):
        return widen(update.value).astype(dtype)
    wide = jnp.asarray(parameter).astype(dtype)
    return wide if update is None else wide + jnp.asarray(update).astype(dtype)


def averages(opt_state: Any, params: Any, *, cast: bool = False) -> Any:
    """The average in an optimiser's state, however deep, in the structure of `params`.

    Args:
      opt_state: The state of an optimiser with `ema` in it.
      params: The parameters; those without an average are returned as they are.
      cast: Whether in the dtypes of `params`, rounded once; otherwise float32 for 16-bit ones.

    Raises:
      ValueError: There is no average in the state, or more than one, or of other parameters.

    >>> tx = ema(optax.sgd(1.0), decay=0.5)
    >>> params = {"w": jnp.ones(1)}
    >>> _, state = tx.update({"w": jnp.ones(1)}, tx.init(params), params)
    >>> averages(state, params)["w"].tolist()
    [0.5]
    """
    found = _average_states(opt_state)
    if len(found) != 1:
        raise ValueError(
            f"{len(found)} averages of the parameters in this optimiser state, so there is no one "
            "to give. Put jprec.optim.ema around the optimiser once, inside jprec.optim.wrap: "
            "wrap(ema(optax.adam(1e-3), 0.999), policy)."
        )

    # By path, since Flax NNX holds parameters and what an optimiser keeps in different variables.
    leaves = jax.tree_util.tree_leaves_with_path(found[0].average)
    average = {policy.leaf_path(path): leaf for path, leaf in leaves}

    def give(path: Any, parameter: Any) -> Any:
        name = policy.leaf_path(path)
        if name in average:
            return average[name].astype(parameter.dtype) if cast else average[name]
        if not _is_averaged(parameter):
            return parameter
        raise ValueError(
            f"The average has no {name!r}. It has {', '.join(average) or 'nothing'}. Pass the "
            "parameters with which the optimiser was initialised."
        )

    return jax.tree_util.tree_map_with_path(give, params)


def _average_states(tree: Any) -> list[AverageState]:
    """Every AverageState in `tree`, the outer before the inner."""

    def is_state(node: Any) -> bool:
        return isinstance(node, AverageState)

    found = []
    for node in jax.tree.leaves(tree, is_leaf=is_state):
        if is_state(node):
            found += [node, *_average_states(node.inner_state)]
    return found
