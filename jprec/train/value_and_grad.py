"""One mixed-precision step: value and gradient, in a policy's formats."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jprec import nn, optim, program
from jprec import policy as policies
from jprec.train.cast import argument_names, cast_leaf, check_rules, dtypes_of, is_array


def value_and_grad(
    loss_fn: Callable,
    policy: Any,
    *,
    scale: Any = None,
    has_aux: bool = False,
    exact: bool = False,
) -> Callable:
    """A function that returns the loss and its gradient, both float32 and unscaled.

    The returned function has the arguments of `loss_fn`. It casts the floating-point leaves of
    the first argument and of all others to the policy's compute dtype, differentiates with
    respect to the *cast* parameters, raises the gradients to float32 and then divides by the
    scale, which is exact. Inputs of a model with a policy stay as they are: its layers cast what
    they get, and targets keep their digits. Raising the gradient, instead of differentiating the
    cast, rounds it to the compute dtype once, by the operation that made it. The scale enters as
    the cotangent of the loss: the loss itself is never scaled, and cannot overflow by it.

    Args:
      loss_fn: (params, *args, **kwargs) -> loss, or (loss, aux) with `has_aux`. The loss is a
        float32 scalar: raise the logits to float32 before it. `params` is a pytree, or a Flax
        NNX module; a module's `Param`s are differentiated, and its other state (batch
        statistics, random streams) is carried on in the module in its own dtype, and so is that
        of other NNX objects among the arguments; a variable that is given alone, or in a state
        that was split, is data. Batch statistics of the module stay as they were
        where the gradients are not finite, since a guard will skip that step; random streams go
        on.
      policy: A policy, its name or its string. Its rules see the paths of parameters, and those
        of inputs, which begin with the argument's name: "^targets" is the input `targets`. Or a
        model that `jprec.nn.apply` gave one: with Flax Linen, whose layers then cast the
        parameters that they get, the model is what is given here.
      scale: Power of two; may be traced: `jprec.optim.loss_scale(opt_state)`. Only with a power
        of two is unscaling exact, and a traced number cannot be checked. It may be left out where
        the policy needs none; 1.0 goes without one in float16.
      has_aux: Whether `loss_fn` returns (loss, aux); aux is handed through.
      exact: Make every rounding to bfloat16 or float16 in the program an operation of its own,
        which no compiler skips or adds (`jprec.program.round_explicitly`). Slow; for studies.

    Returns:
      The function: (params, *args, **kwargs) -> (loss, gradients), or ((loss, aux), gradients).
      The gradients have the structure of `params`: float32; float64 and complex where the
      parameter is; float0 for integers and other leaves without a gradient.

    Inside `jax.shard_map` gradients of parameters that all devices share are the sum over the
    devices, as with `jax.value_and_grad`, but added up in float32: take `jax.lax.pmean` of the
    loss in `loss_fn` for the mean.

    Products are emulated after differentiation: forward ones as the policy's `product` says,
    backward ones with the gradient rounded as its `backward_product` says.

    Raises:
      ValueError: for a scale that is no power of two or no scalar, or that is missing; for a rule
        about compute that finds nothing among parameters and inputs; for a policy other than the
        one that `jprec.nn.apply` gave to the model, and for an NNX model that has none, if the
        policy computes in 16 bits; for an NNX object that is given twice.
      TypeError: for a loss that is no float32 scalar (the policy's `loss` may allow 16 bits).

    >>> step = value_and_grad(lambda w, x: ((w * x).astype(jnp.float32) ** 2).sum(), "mixed_bf16")
    >>> loss, gradient = step(jnp.ones(2), jnp.full(2, 3.0))
    >>> loss.item(), gradient.tolist(), gradient.dtype.name
    (18.0, [18.0, 18.0], 'float32')
    """
    own = nn.policy_of(policy)
    layers_cast = own is not None and not nn.is_module(policy)
    given = policies.get(policy) if own is None else own
    _check_scale(scale, given)
    return _Step(loss_fn, given, scale, has_aux, exact, layers_cast)


@dataclasses.dataclass(frozen=True, eq=False)  # A traced scale has no hash.
class _Step:
    """What `value_and_grad` returns; its fields are the arguments.

    With `layers_cast`, parameters go as they are stored to the layers of a model with a policy.
    """

    loss_fn: Callable
    policy: policies.Policy
    scale: Any
    has_aux: bool
    exact: bool
    layers_cast: bool

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> Any:
        """((loss, aux) or loss, gradients) at these arguments."""
        # Other NNX objects (random streams, a second model) carry state on, too.
        nn.check_given_once(params, args, kwargs)
        held = nn.take_apart((args, kwargs))
        named = self._named(*held)
        self._check_policy(params, named)
        inputs = [d for name, x in named for d in dtypes_of(x, self.policy, "compute", prefix=name)]
        if self.layers_cast or nn.policy_of(params) is not None:
            inputs = [None] * len(inputs)
        if nn.is_module(params):
            (loss, (aux, states)), gradients = self._of_module(params, held, inputs)
        else:
            own = [None] * len(jax.tree.leaves(params))
            if not self.layers_cast:
                own = dtypes_of(params, self.policy, "compute")
            (loss, (aux, states)), gradients = self._differentiate(
                self._loss_and_aux, own + inputs, (params, *held)
            )
        nn.renew_all((args, kwargs), states)
        return ((loss, aux) if self.has_aux else loss), gradients

    def _named(self, args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """(name, input) of all inputs but the parameters, in flattening order."""
        names = [*argument_names(self.loss_fn, 1 + len(args))][1:]
        return [*zip(names, args, strict=True), *((name, kwargs[name]) for name in sorted(kwargs))]

    def _check_policy(self, params: Any, named: list[tuple[str, Any]]) -> None:
        """An error for a rule that cannot act, and for a policy beside the model's own."""
        objects = [x for x in jax.tree.leaves(params, is_leaf=nn.is_object) if nn.is_object(x)]
        if objects and not nn.is_module(params):
            raise ValueError(
                f"the first argument holds {len(objects)} NNX objects in a "
                f"{type(params).__name__}, whose state would be lost. Hold them in one module, as "
                "in nnx.Dict(a=..., b=...)."
            )
        if self.layers_cast:
            return
        own = nn.policy_of(params)
        low = any(self.policy.uses(d, roles=("compute",)) for d in ("bfloat16", "float16"))
        if own is None and nn.is_module(params) and low:
            raise ValueError(
                f"{type(params).__name__} has no policy, so that its norms, say, would raise what "
                "follows them to float32. Give it the policy first: "
                "model = jprec.nn.apply(model, policy)."
            )
        if own is None:
            trees = nn.split(params)[:2] if nn.is_module(params) else (params,)
            check_rules(self.policy, "compute", [*(("", tree) for tree in trees), *named])
        elif _of_model(own) != _of_model(self.policy):
            raise ValueError(
                f"the model has the policy {own} (jprec.nn.apply), and value_and_grad was given "
                f"{self.policy}. One step has one policy: give both the same."
            )

    def _loss_and_aux(self, params: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The loss, checked, and (auxiliary output or None, states of the NNX objects given)."""
        args, kwargs = nn.put_together((args, kwargs))
        out = self.loss_fn(params, *args, **kwargs)
        states = nn.states_in((args, kwargs))
        if not self.has_aux:
            return _checked(out, self.policy.loss), (None, states)
        if isinstance(out, tuple) and len(out) == 2:
            return _checked(out[0], self.policy.loss), (out[1], states)
        raise TypeError(f"has_aux=True: loss_fn returns (loss, aux); it returned {type(out)}.")

    def _of_module(
        self, module: Any, held: tuple[tuple, dict[str, Any]], inputs: list[Any]
    ) -> tuple[tuple[Any, Any], Any]:
        """As for a tree, of a module's parameters; the module's other state is then renewed."""
        parameters, before, merge, state_of = nn.split(module)

        def pure(parameters: Any, state: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
            merged = merge(parameters, state)
            loss, more = self._loss_and_aux(merged, args, kwargs)
            return loss, (more, state_of(merged))

        kept = [None] * len(jax.tree.leaves(before))
        dtypes = dtypes_of(parameters, self.policy, "compute") + kept + inputs
        (loss, (more, state)), gradients = self._differentiate(
            pure, dtypes, (parameters, before, *held)
        )
        if kept:
            # A guard skips such a step: running statistics must not keep what it saw.
            state = nn.unless_skipped(optim.all_finite(gradients), state, before)
        nn.renew(module, state)
        return (loss, more), gradients

    def _differentiate(self, pure: Callable, dtypes: list[Any], inputs: tuple) -> Any:
        """((loss, aux), gradients) of pure(*inputs) -> (loss, aux) with respect to inputs[0].

        Everything that computes is one function of a list of arrays, so that products can be
        emulated and roundings made explicit in all of it, the casts and the unscaling included.
        """
        leaves, structure = jax.tree.flatten(inputs)
        count = len(jax.tree.leaves(inputs[0]))
        # Python numbers among the parameters are float32, as everywhere in JAX.
        leaves[:count] = [jnp.float32(x) if isinstance(x, float) else x for x in leaves[:count]]
        traced = [index for index, leaf in enumerate(leaves) if is_array(leaf)]
        wanted = [index for index in traced if index < count and _has_gradient(leaves[index])]

        def compute(arrays: list[Any], scale: jax.Array | None) -> Any:
            given = dict(zip(traced, arrays, strict=True))
            # Inside shard_map a parameter that is the same on all devices is made to differ
            # before it is cast: JAX would otherwise add its gradients up in the compute dtype.
            axes = frozenset[str]().union(*map(_varies_over, arrays))
            summed = {index: tuple(sorted(axes - _varies_over(given[index]))) for index in wanted}
            for index in wanted:
                given[index] = _varying(given[index], summed[index])
            low = {index: cast_leaf(leaf, dtypes[index]) for index, leaf in given.items()}

            def of_parameters(parameters: list[Any]) -> Any:
                low_now = low | dict(zip(wanted, parameters, strict=True))
                all_leaves = [low_now.get(index, leaf) for index, leaf in enumerate(leaves)]
                return pure(*jax.tree.unflatten(structure, all_leaves))

            parameters = [low[index] for index in wanted]
            loss, pull, aux = jax.vjp(of_parameters, parameters, has_aux=True)
            # In float16 a scale of 2**16 is infinite here: the guard then halves it.
            cotangent = jnp.ones([], loss.dtype) if scale is None else scale.astype(loss.dtype)
            (gradients,) = pull(_varying(cotangent, _varies_over(loss) - _varies_over(cotangent)))
            return (
                loss if loss.dtype == jnp.float64 else loss.astype(jnp.float32),
                aux,
                [
                    _added_up(_unscaled(gradient, scale), summed[index])
                    for index, gradient in zip(wanted, gradients, strict=True)
                ],
            )

        # In this order a product is rounded once: made explicit first, it is a product in FP32
        # followed by a rounding, and only the former is emulated.
        if self.exact:
            compute = program.round_explicitly(compute)
        if self.policy.product is not None:
            compute = program.emulate(compute, self.policy)
        loss, aux, gradients = compute([leaves[index] for index in traced], _as_array(self.scale))
        found = dict(zip(wanted, gradients, strict=True))
        without = [
            found[index] if index in found else np.zeros(np.shape(leaves[index]), jax.dtypes.float0)
            for index in range(count)
        ]
        return (loss, aux), jax.tree.unflatten(jax.tree.structure(inputs[0]), without)


def _of_model(policy: policies.Policy) -> policies.Policy:
    """What of a policy is the model's business: no products, no optimiser, no loss."""
    return dataclasses.replace(
        policy, product=None, grad_product=None, moments="float32", loss="float32"
    )


def _checked(loss: Any, dtype: str) -> jax.Array:
    """`loss`, if it is a scalar of float32 (or float64); or in the 16 bits that `dtype` says."""
    if not is_array(loss) and not isinstance(loss, float):
        more = " Pass has_aux=True if it returns (loss, aux)." if isinstance(loss, tuple) else ""
        raise TypeError(f"loss_fn returned a {type(loss).__name__}, not a loss.{more}")
    loss = jnp.asarray(loss)
    if loss.shape:
        raise TypeError(
            f"loss_fn returned an array of shape {loss.shape}; the loss is a scalar. Take its mean."
        )
    if dtype != "float32" and loss.dtype in (jnp.float32, jnp.dtype(dtype)):
        return loss.astype(dtype)
    if loss.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(
            f"loss_fn returned {loss.dtype}; the loss is float32, since in 16 bits it loses its "
            "digits and its scale overflows. Raise what goes into it: "
            "logits.astype(jnp.float32). To study such a loss, write loss="
            f"{loss.dtype} into the policy."
        )
    return loss


def _has_gradient(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _unscaled(gradient: jax.Array, scale: jax.Array | None) -> jax.Array:
    """`gradient` in at least float32, divided by `scale`; never the other way round."""
    if jnp.issubdtype(gradient.dtype, jnp.floating) and gradient.dtype.itemsize < 4:
        gradient = gradient.astype(jnp.float32)
    if scale is None:
        return gradient
    # The reciprocal of a power of two is exact, and so is the product.
    return (gradient * (1.0 / scale)).astype(gradient.dtype)


def _varies_over(x: Any) -> frozenset[str]:
    """The mesh axes along which `x` differs between devices, where shard_map keeps account."""
    kind = jax.typeof(x)
    manual = getattr(kind, "manual_axis_type", None)
    return frozenset(getattr(kind, "vma", ()) if manual is None else manual.varying)


def _varying(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    axes = tuple(sorted(axes))
    return jax.lax.pcast(x, axes, to="varying") if axes else x


def _added_up(gradient: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return jax.lax.psum(gradient, axes) if axes else gradient


def _check_scale(scale: Any, policy: policies.Policy) -> None:
    """An error if `scale` is needed and missing, no scalar, or known and not a power of two."""
    wrapped = "Wrap the optimiser with this policy, jprec.optim.wrap(tx, policy)"
    if isinstance(scale, str):
        raise ValueError(f"scale={scale!r}: give scale=jprec.optim.loss_scale(opt_state).")
    if policy.needs_loss_scale and (scale is None or isinstance(scale, optim.Unguarded)):
        what = "no scale was given" if scale is None else "the optimiser's state has no loss scale"
        raise ValueError(
            f"policy {policy.name or policy} takes gradients through a narrow range, and {what}: "
            f"they would vanish unseen. {wrapped}, and give "
            "scale=jprec.optim.loss_scale(opt_state); or scale=1.0 to go without."
        )
    if scale is None:
        return
    if np.shape(scale):
        raise ValueError(
            f"scale has shape {np.shape(scale)}; one loss has one scale, a scalar. Under vmap, "
            "map the whole step, the optimiser's state with it, so that each sees its own."
        )
    if not isinstance(scale, jax.core.Tracer):
        optim.power_of_two(float(scale), name="scale")


def _as_array(scale: Any) -> jax.Array | None:
    """`scale` as a strong float32 scalar; None if it is a plain 1, which needs no arithmetic."""
    if scale is None or (isinstance(scale, int | float) and scale == 1):
        return None
    return jnp.asarray(scale, jnp.float32)
