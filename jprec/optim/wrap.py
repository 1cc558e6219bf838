"""A policy in an optimiser: one call that puts the right parts around it."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from jprec import policy as policies
from jprec.optim import guard, moments, new_value, storage

#: How 16-bit parameters are stored: name -> the wrapper.
STORES: dict[str, Callable[..., optax.GradientTransformationExtraArgs]] = {
    "nearest": storage.round_on_store,
    "master": storage.master_weights,
    "stochastic": storage.stochastic_rounding,
    "kahan": storage.kahan,
}


def wrap(
    tx: optax.GradientTransformation,
    policy: Any,
    *,
    loss_scale: str | float | guard.DynamicScale | None = None,
    store: str | None = None,
    key: jax.Array | None = None,
) -> optax.GradientTransformationExtraArgs:
    """`tx` with what `policy` needs to store 16-bit moments and parameters, the guard outermost.

    Args:
      tx: Any Optax optimiser; it sees float32 gradients, parameters and moments.
      policy: A policy, its name or its string.
      loss_scale: None for a dynamic scale where gradients pass through a range narrower than
        float32's (float16, FP8) and none elsewhere; "none" for no scale and no guard; a power of
        two for a static scale; a `DynamicScale` for one with these settings. A static scale of 1
        guards and does not scale.
      store: None for "nearest" where the policy stores in 16 bits and nothing elsewhere;
        "nearest", "master", "stochastic" or "kahan".
      key: For store="stochastic", which needs it, and for 16-bit moments, which are rounded
        stochastically too, from `jax.random.key(0)` without it.

    A setting that cannot act is an error. From the inside: `store_moments` where the policy's
    moments are 16-bit, the way to store 16-bit parameters, the guard. Clipping, accumulation
    (`optax.MultiSteps`) and averages (`ema`) belong into `tx`.

    >>> tx = wrap(optax.adam(1e-3), "mixed_fp16")
    >>> type(tx.init({})).__name__
    'LossScaleState'
    """
    policy = policies.get(policy)
    if not hasattr(tx, "init"):
        raise TypeError(
            f"tx={tx!r} is no Optax optimiser, which has init and update. Call what makes one: "
            "optax.adam(1e-3)."
        )
    low_moments = policy.moments != "float32"
    if key is not None and store != "stochastic" and not low_moments:
        raise ValueError(
            f'store={store!r} uses no key; got key={key}. A key goes with store="stochastic" or '
            "with a policy that keeps moments in 16 bits, and only with these."
        )
    if low_moments:
        tx = moments.store_moments(tx, policy.moments, key=key)
    tx = _with_store(tx, policy, store, key)
    if loss_scale is None:
        loss_scale = guard.DynamicScale() if policy.needs_loss_scale else "none"
    if isinstance(loss_scale, guard.DynamicScale):
        return guard.dynamic_loss_scale(
            tx,
            initial=loss_scale.initial,
            growth_interval=loss_scale.growth_interval,
            floor=loss_scale.floor,
            ceiling=loss_scale.ceiling,
        )
    if loss_scale == "none":
        return optax.with_extra_args_support(tx)
    if isinstance(loss_scale, str):
        raise ValueError(
            f'loss_scale={loss_scale!r}: the only word is "none". For a dynamic scale give '
            "jprec.optim.DynamicScale(), for a static one its power of two."
        )
    return guard.static_loss_scale(tx, loss_scale)


def _with_store(
    tx: optax.GradientTransformation,
    policy: policies.Policy,
    store: str | None,
    key: jax.Array | None,
) -> optax.GradientTransformation:
    """`tx` in the wrapper that stores 16-bit parameters as `store` says."""
    low = any(policy.uses(dtype, roles=("params",)) for dtype in ("bfloat16", "float16"))
    if store is not None and store not in STORES:
        raise ValueError(f"store={store!r}. {policies.close_to(str(store), STORES)}")
    if store is not None and not low:
        raise ValueError(
            f"store={store!r} would do nothing: policy {policy.name or str(policy)!r} stores "
            "float32 parameters, which are their own master weights. Leave store out, or take a "
            "policy with 16-bit params such as pure_bf16."
        )
    store = store or ("nearest" if low else None)
    if store is None:
        return _for_wide(tx, policy)
    if store != "stochastic":
        return STORES[store](tx)
    if key is None:
        raise ValueError(
            f"store={store!r} needs a key, which makes its draws: give key=jax.random.key(0)."
        )
    return STORES[store](tx, key)


def _for_wide(
    tx: optax.GradientTransformation, policy: policies.Policy
) -> optax.GradientTransformationExtraArgs:
    """`tx`, which refuses 16-bit parameters: it would do its arithmetic in their dtype."""
    tx = optax.with_extra_args_support(tx)

    def init(params: Any) -> Any:
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
            if new_value.is_low(leaf):
                raise ValueError(
                    f"parameter {policies.leaf_path(path)!r} is {leaf.dtype}, but policy "
                    f"{policy.name or str(policy)!r} stores float32 parameters, and its optimiser "
                    "would compute in 16 bits there. Raise it to float32, or say in the policy how "
                    f"it is stored: a rule with params={leaf.dtype}, or a recipe such as pure_bf16."
                )
        return tx.init(params)

    return optax.GradientTransformationExtraArgs(init, tx.update)
