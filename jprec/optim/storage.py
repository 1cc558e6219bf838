"""Optimisers for parameters stored in 16 bits: the arithmetic is float32, the store rounds once.

Each wrapper shows its inner optimiser float32 gradients and float32 parameters, so that moments
are float32 and constants such as b2 = 0.999 (1.0 in bfloat16) or eps = 1e-8 (0.0 in float16)
keep their meaning. The new value is computed in float32 and rounded once. Parameters that are
not 16-bit pass through as ordinary updates. XLA on a CPU flushes float32 subnormals, so a master
or a bfloat16 parameter below 2**-126 counts as zero there.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jprec import policy
from jprec.optim.keys import fold_path, key_parts
from jprec.optim.new_value import NewValue, is_low, store, widen


class RoundOnStoreState(NamedTuple):
    """inner_state: the inner optimiser's, in float32."""

    inner_state: Any


class MasterWeightsState(NamedTuple):
    """inner_state: the inner optimiser's. masters: float32, None where the parameter is wide."""

    inner_state: Any
    masters: Any


class StochasticRoundingState(NamedTuple):
    """inner_state: the inner optimiser's. key: uint32 data of the key for the next update."""

    inner_state: Any
    key: jax.Array


class KahanState(NamedTuple):
    """inner_state: the inner optimiser's. residuals: 16-bit, None where the parameter is wide."""

    inner_state: Any
    residuals: Any


def _check_acts(params: Any, name: str) -> None:
    """An error if `params` has leaves, but none that `name` would act on."""
    leaves = jax.tree.leaves(params)
    if leaves and not any(is_low(leaf) for leaf in leaves):
        dtypes = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves})
        raise ValueError(
            f"{name} has nothing to do: the parameters are {', '.join(dtypes)}, and it acts on "
            "bfloat16 and float16 ones. Store the parameters in 16 bits (jprec.train.cast, or "
            "jprec.nn.apply before the optimiser is created), or use the inner optimiser alone. "
            "An optimiser that is wrapped twice sees float32 inside, too: wrap it once."
        )


def _check_params(params: Any, name: str) -> None:
    if params is None:
        raise ValueError(
            f"{name} needs the parameters: write tx.update(gradients, state, parameters)."
        )


def _on_low(function: Any, params: Any, *trees: Any) -> Any:
    """`function` of the 16-bit leaves and what the other trees have there; None elsewhere."""
    return jax.tree.map(
        lambda p, *others: function(p, *others) if is_low(p) else None, params, *trees
    )


def _inner_update(
    inner: optax.GradientTransformationExtraArgs,
    gradients: Any,
    inner_state: Any,
    params: Any,
    wide: Any,
    extra: dict[str, Any],
) -> tuple[Any, Any]:
    """The float32 updates that `inner` wants, shown float32 gradients and `wide` parameters."""

    def like_parameter(parameter: Any, leaf: Any) -> Any:
        dtype = jnp.float32 if is_low(parameter) else getattr(parameter, "dtype", None)
        floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
        return leaf.astype(dtype) if floating else leaf

    gradients = jax.tree.map(like_parameter, params, gradients)
    updates, inner_state = inner.update(gradients, inner_state, wide, **extra)
    # Learning rates of another dtype must not change that of the update (optax#1405).
    return jax.tree.map(like_parameter, params, updates), inner_state


def _updates(params: Any, values: Any, updates: Any) -> Any:
    """A NewValue for each 16-bit parameter, the plain update for each other one."""
    return jax.tree.map(
        lambda p, value, update: NewValue(value, update) if is_low(p) else update,
        params,
        values,
        updates,
    )


def round_on_store(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Stores each new value rounded to nearest: updates below half an ulp are lost.

    This is what a 16-bit parameter does at best without help; the wrappers below are the help.
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> RoundOnStoreState:
        _check_acts(params, "round_on_store")
        return RoundOnStoreState(inner.init(jax.tree.map(widen, params)))

    def update(gradients: Any, state: RoundOnStoreState, params: Any = None, **extra: Any) -> Any:
        _check_params(params, "round_on_store")
        wide = jax.tree.map(widen, params)
        updates, inner_state = _inner_update(
            inner, gradients, state.inner_state, params, wide, extra
        )
        values = _on_low(lambda p, w, u: store(w + u, p.dtype), params, wide, updates)
        return _updates(params, values, updates), RoundOnStoreState(inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


def master_weights(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Keeps a float32 copy of each 16-bit parameter in the state, and updates that.

    The parameter always equals cast(master), bit for bit. The masters are part of the state:
    save and restore it with the parameters, and they go on where they were; `init` alone builds
    them from the parameters. (Micikevicius et al., Mixed Precision Training, 2018, section 3.1.)
    """
    inner = optax.with_extra_args_support(inner)

    def wide_of(params: Any, masters: Any) -> Any:
        return jax.tree.map(lambda p, m: m if is_low(p) else p, params, masters)

    def init(params: Any) -> MasterWeightsState:
        _check_acts(params, "master_weights")
        masters = _on_low(widen, params)
        return MasterWeightsState(inner.init(wide_of(params, masters)), masters)

    def update(gradients: Any, state: MasterWeightsState, params: Any = None, **extra: Any) -> Any:
        _check_params(params, "master_weights")
        wide = wide_of(params, state.masters)
        updates, inner_state = _inner_update(
            inner, gradients, state.inner_state, params, wide, extra
        )
        masters = _on_low(lambda _, m, u: m + u, params, state.masters, updates)
        values = _on_low(lambda p, m: store(m, p.dtype), params, masters)
        return _updates(params, values, updates), MasterWeightsState(inner_state, masters)

    return optax.GradientTransformationExtraArgs(init, update)


def stochastic_rounding(
    inner: optax.GradientTransformation, key: jax.Array
) -> optax.GradientTransformationExtraArgs:
    """Stores each new value rounded up or down at random, right on average.

    The chance of either neighbour is its nearness, so that updates below half an ulp act on
    average (Gupta et al., Deep Learning with Limited Numerical Precision, 2015, section 3;
    Zamirai et al., Revisiting BFloat16 Training, 2020). The key is split at each update and kept
    in the state: the same key gives the same bits.

    Args:
      inner: The optimiser.
      key: A key of `jax.random.key`, or the uint32 data of one.
    """
    inner = optax.with_extra_args_support(inner)
    implementation, data = key_parts(key)

    def init(params: Any) -> StochasticRoundingState:
        _check_acts(params, "stochastic_rounding")
        # A copy: the state may be donated.
        return StochasticRoundingState(inner.init(jax.tree.map(widen, params)), jnp.array(data))

    def update(
        gradients: Any, state: StochasticRoundingState, params: Any = None, **extra: Any
    ) -> Any:
        _check_params(params, "stochastic_rounding")
        wide = jax.tree.map(widen, params)
        updates, inner_state = _inner_update(
            inner, gradients, state.inner_state, params, wide, extra
        )
        following, now = jax.random.split(jax.random.wrap_key_data(state.key, impl=implementation))

        def put(path: Any, parameter: Any, wide: Any, update: Any) -> Any:
            if not is_low(parameter):
                return None
            owned = fold_path(now, policy.leaf_path(path))
            return store(wide + update, parameter.dtype, "stochastic", key=owned)

        values = jax.tree_util.tree_map_with_path(put, params, wide, updates)
        state = StochasticRoundingState(inner_state, jax.random.key_data(following))
        return _updates(params, values, updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def kahan(inner: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Stores each new value rounded to nearest, and adds what the rounding lost the next time.

    The residual is kept in the parameter's own format, so that parameter and residual together
    carry about twice its digits (Kahan, Further remarks on reducing truncation errors, 1965;
    Zamirai et al., Revisiting BFloat16 Training, 2020).
    """
    inner = optax.with_extra_args_support(inner)

    def init(params: Any) -> KahanState:
        _check_acts(params, "kahan")
        residuals = _on_low(jnp.zeros_like, params)
        return KahanState(inner.init(jax.tree.map(widen, params)), residuals)

    def update(gradients: Any, state: KahanState, params: Any = None, **extra: Any) -> Any:
        _check_params(params, "kahan")
        wide = jax.tree.map(widen, params)
        updates, inner_state = _inner_update(
            inner, gradients, state.inner_state, params, wide, extra
        )
        wanted = _on_low(
            lambda _, w, u, r: w + (u + widen(r)), params, wide, updates, state.residuals
        )
        values = _on_low(lambda p, w: store(w, p.dtype), params, wanted)

        def lost(parameter: Any, wanted: jax.Array, value: jax.Array) -> jax.Array:
            # Exact in float32: the two agree in their leading digits.
            difference = wanted - widen(value)
            # Infinity minus infinity would turn a parameter that overflowed into NaN.
            difference = jnp.where(jnp.isfinite(difference), difference, 0.0)
            return store(difference, parameter.dtype)

        residuals = _on_low(lost, params, wanted, values)
        return _updates(params, values, updates), KahanState(inner_state, residuals)

    return optax.GradientTransformationExtraArgs(init, update)
