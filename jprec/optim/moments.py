"""Moments kept in 16 bits between the steps, with float32 arithmetic in each step.

Adam's second moment is multiplied by 0.999 a step, but the neighbours of a bfloat16 number are
2**-8 of it apart: rounded to nearest it never decays (optax#1552). Rounded at random it decays on
average. Moments in float16 also leave its range: a gradient of 1e-4 has the second moment 1e-11,
and the smallest float16 is 6e-8, so that what Adam divides by is zero; 70000 is infinite.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from jprec import policy
from jprec.optim.average import AverageState
from jprec.optim.keys import fold_path, key_parts
from jprec.optim.new_value import LOW, store
from jprec.optim.storage import KahanState, MasterWeightsState

#: How moments are rounded: word -> mode of `jprec.rounding.round_to`.
MODES = {"stochastic": "stochastic", "nearest": "nearest_even"}

#: What is shaped like the parameters and yet no moment: copies of the parameters, which hold more
#: digits than 16 bits have, sums that must be exact, and bases. State -> its fields.
KEPT: dict[type, tuple[str, ...]] = {
    AverageState: ("average",),
    KahanState: ("residuals",),
    MasterWeightsState: ("masters",),
    optax.MultiStepsState: ("acc_grads",),
    optax.ScaleByLBFGSState: ("params",),
    contrib.COCOBState: ("init_particles",),
    contrib.DoGState: ("init_params",),
    contrib.DoWGState: ("init_params",),
    contrib.GaLoreState: ("projector",),
    contrib.MadgradState: ("x0",),
    contrib.MechanicState: ("x0",),
    contrib.ProdigyState: ("params0",),
    contrib.ScheduleFreeState: ("z",),
}


class StoredMomentsState(NamedTuple):
    """inner_state: the inner optimiser's, its moments in 16 bits.

    key: uint32 data of the key for the next update; None for nearest rounding.
    """

    inner_state: Any
    key: jax.Array | None


def store_moments(
    inner: optax.GradientTransformation,
    dtype: Any,
    *,
    key: jax.Array | None = None,
    mode: str = "stochastic",
) -> optax.GradientTransformationExtraArgs:
    """Keeps the moments of `inner` in `dtype` between the steps; each step computes in float32.

    The moments are the float32 leaves of its state that are shaped like the parameters, as
    `optax.tree_map_params` finds them, but for those in `KEPT`. They are widened before the inner
    update (exact) and rounded once after it. Counts, schedules and other scalars stay as they are.
    It goes inside the wrappers of the parameters' storage and of the loss scale, whose skipped
    steps then change neither moments nor key.

    Args:
      inner: The optimiser; `wrap` shows it float32 gradients and parameters.
      dtype: bfloat16 or float16. Float16 has too narrow a range for most second moments.
      key: For the stochastic mode, where it defaults to `jax.random.key(0)`. Each moment draws
        with its own key, derived from its path; the same key gives the same bits.
      mode: "stochastic", right on average; or "nearest", which loses changes below half an ulp.

    Raises:
      ValueError: dtype, mode or key cannot act; at `init`, `inner` has no moments.

    >>> tx = store_moments(optax.adam(1e-3), "bfloat16")
    >>> tx.init(jnp.ones(2)).inner_state[0].nu.dtype
    dtype(bfloat16)
    """
    inner = optax.with_extra_args_support(inner)
    dtype = _dtype(dtype)
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}. {policy.close_to(str(mode), MODES)}")
    random = mode == "stochastic"
    if key is not None and not random:
        raise ValueError(
            f'mode="nearest" uses no key; got key={key}. Leave it out, or take mode="stochastic".'
        )
    implementation, data = None, None
    if random:
        implementation, data = key_parts(jax.random.key(0) if key is None else key)

    def init(params: Any) -> StoredMomentsState:
        inner_state = inner.init(params)

        def narrow(mark: bool, leaf: Any) -> Any:
            stored = mark and getattr(leaf, "dtype", None) == jnp.float32
            return store(leaf, dtype) if stored else leaf

        narrowed = jax.tree.map(narrow, _marks(inner, inner_state), inner_state)
        _check_acts(params, narrowed, dtype)
        # A copy: a step may be given the state to overwrite.
        return StoredMomentsState(narrowed, None if data is None else jnp.array(data))

    def update(gradients: Any, state: StoredMomentsState, params: Any = None, **extra: Any) -> Any:
        marks = jax.tree.map(
            lambda mark, leaf: mark and getattr(leaf, "dtype", None) == dtype,
            _marks(inner, state.inner_state),
            state.inner_state,
        )
        wide = jax.tree.map(
            lambda mark, leaf: leaf.astype(jnp.float32) if mark else leaf, marks, state.inner_state
        )
        updates, wide = inner.update(gradients, wide, params, **extra)
        now, following = None, None
        if state.key is not None:
            own = jax.random.wrap_key_data(state.key, impl=implementation)
            following, now = jax.random.split(own)
            following = jax.random.key_data(following)

        def narrow(path: Any, mark: bool, leaf: Any) -> Any:
            if not mark:
                return leaf
            owned = None if now is None else fold_path(now, policy.leaf_path(path))
            return store(leaf.astype(jnp.float32), dtype, MODES[mode], key=owned)

        inner_state = jax.tree_util.tree_map_with_path(narrow, marks, wide)
        return updates, StoredMomentsState(inner_state, following)

    return optax.GradientTransformationExtraArgs(init, update)


def _dtype(dtype: Any) -> Any:
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found not in LOW:
        raise ValueError(
            f"dtype={dtype!r}: moments are stored in bfloat16 or float16. In float32 they are "
            "without this wrapper."
        )
    return found


def _marks(inner: optax.GradientTransformation, state: Any) -> Any:
    """Like `state`, with True where it is shaped like the parameters and False elsewhere."""
    try:
        marks = optax.tree_map_params(
            inner, lambda _: True, state, transform_non_params=lambda _: False
        )
    except Exception as error:
        raise ValueError(
            "store_moments cannot tell which parts of the optimiser's state are shaped like the "
            "parameters: optax.tree_map_params fails, because init does not work on a "
            f"placeholder ({type(error).__name__}: {error}). Keep its moments in float32."
        ) from error
    return _without_kept(marks)


def _without_kept(marks: Any) -> Any:
    """`marks`, False in the fields of `KEPT`."""

    def is_holder(node: Any) -> bool:
        return type(node) in KEPT

    def visit(node: Any) -> Any:
        if not is_holder(node):
            return node
        kept = KEPT[type(node)]
        fields = {
            name: jax.tree.map(lambda _: False, field) if name in kept else _without_kept(field)
            for name, field in node._asdict().items()
        }
        return node._replace(**fields)

    return jax.tree.map(visit, marks, is_leaf=is_holder)


def _check_acts(params: Any, inner_state: Any, dtype: Any) -> None:
    stored = any(getattr(leaf, "dtype", None) == dtype for leaf in jax.tree.leaves(inner_state))
    if jax.tree.leaves(params) and not stored:
        raise ValueError(
            "store_moments has nothing to do: the optimiser's state has no float32 moments. Leave "
            "it out, or take an optimiser with moments, such as optax.adam."
        )
