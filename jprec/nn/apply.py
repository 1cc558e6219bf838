"""A policy in a Flax model that nobody edits."""

from collections.abc import Mapping
from typing import Any

from jprec import policy as policies
from jprec.nn.libraries import check_is_module, is_linen
from jprec.nn.linen_apply import apply_linen
from jprec.nn.marks import policy_of
from jprec.nn.nnx_apply import apply_nnx

__all__ = ["apply", "policy_of"]


def apply(
    model: Any,
    policy: Any,
    *,
    inputs: tuple | None = None,
    kwargs: Mapping[str, Any] | None = None,
    verify: bool = True,
) -> Any:
    """A copy of a Flax model that computes, stores and answers as `policy` says.

    Each Flax layer computes in the policy's compute dtype, or in that of the first rule found in
    its path ("blocks/0/norm"), whatever dtype was written into it. Norms compute in the policy's
    dtype for statistics, which is float32 unless a study asks for another; a rule about a norm's
    compute dtype is about its *result*, and its statistics stay as they are. The softmax of
    attention is taken in float32, and a recurrent cell keeps the dtype of its carry. Parameters
    are stored in the policy's params dtype; batch statistics, counters and random keys keep
    theirs, and so do layers of float64, complex or 8-bit parameters. What the model returns is
    cast to the policy's output dtype, and so is the result of a layer whose rule names an output.
    Paths stay as they are. The policy's product is not the model's business:
    `jprec.value_and_grad` and `jprec.emulate` see to it.

    In Linen the copy is an instance of a subclass, whose `init` stores what the policy says. Its
    layers are reached while a method of the model runs (`init`, `apply`, a call inside another
    module), and not through the parts of a model that `bind` returned. They cast the parameters
    that they get: `jprec.value_and_grad` is given the model in the policy's place, and leaves
    the parameters to it.

    Args:
      model: A Flax NNX or Linen module. The original is not changed.
      policy: A policy, its name or its string.
      inputs: Arguments of the model's `__call__`, as arrays or `jax.ShapeDtypeStruct`s. With them
        the whole model is traced, and each product inside a layer is checked at once.
      kwargs: Its keyword arguments, such as {"training": False}.
      verify: Compare what layers do with the policy; one whose dtype switch has no effect is an
        error. Of NNX each layer is traced here. Linen's layers are known only when the model
        runs: each result is looked at whenever the model is traced, products with `inputs`.

    Raises:
      TypeError: for what is no Flax module; for a bridge between Linen and NNX.
      ValueError: if the model, or a part of it, already has a policy; if a rule finds nothing, or
        nothing that an earlier one leaves to it (of Linen, which has no layers before, found by
        `init` at the latest); if a layer does not do what it is told.

    Parameters held by modules of your own, and products and casts written in `__call__`, follow
    the dtypes they meet; `describe` lists them.

    >>> import jax, jax.numpy as jnp
    >>> from flax import linen, nnx
    >>> model = apply(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "mixed_bf16")
    >>> model.dtype.name, model(jnp.ones((1, 2))).dtype.name
    ('bfloat16', 'float32')
    >>> model = apply(linen.Dense(3), "pure_bf16")
    >>> variables = model.init(jax.random.key(0), jnp.ones((1, 2)))
    >>> output = model.apply(variables, jnp.ones((1, 2)))
    >>> variables["params"]["kernel"].dtype.name, output.dtype.name
    ('bfloat16', 'float32')
    """
    check_is_module(model, "nn.apply")
    if hasattr(inputs, "shape"):
        inputs = (inputs,)
    give = apply_linen if is_linen(model) else apply_nnx
    if kwargs is not None and inputs is None:
        raise ValueError("kwargs without inputs: give inputs=() for a model that takes none.")
    return give(model, policies.get(policy), inputs, dict(kwargs or {}), verify=verify)
