"""Optax's optimisers on 16-bit parameters: what docs/optimisers.md tabulates.

`OPTIMISERS` is the table of optimisers, `LEFT_OUT` says which of optax's public transformations
are not in it and why; tests/optim/test_optimisers.py compares both with optax. `trial` drives an
optimiser, alone or inside jprec's wrappers; `rows` prints what becomes of it alone. A new
optimiser is a new row.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from jprec import optim

#: Formats of the parameters and of the gradients.
DTYPES = ("float16", "bfloat16")

#: Sizes of the gradients: none, one whose square underflows in FP16, one whose square overflows.
SIZES = (0.0, 1e-4, 300.0)

#: Steps of a trial, all with the same gradients.
STEPS = 3

#: The learning rate of the optimisers that need one.
RATE = 1e-3

#: Updates of FP32 up to this are its own rounding errors: nothing to compare with.
NOISE = 2.0**-22

#: Alone, or in `jprec.optim.wrap` with this store.
How = Literal["alone", "master", "nearest"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimiser:
    """An optimiser and how it is driven.

    Attributes:
      build: Makes it.
      extra: Arguments of `update` beyond gradients, state and parameters.
    """

    build: Callable[[], optax.GradientTransformation]
    extra: dict[str, float] = dataclasses.field(default_factory=dict)


def _found(name: str) -> Any:
    """The function that optax calls `name`, such as "adam" or "contrib.muon"."""
    return functools.reduce(getattr, name.split("."), optax)


def _optimisers(
    names: str, *args: Any, extra: dict[str, float] | None = None, **settings: Any
) -> dict[str, Optimiser]:
    """A row for each name; all are built with the same arguments."""
    return {
        name: Optimiser(build=functools.partial(_found(name), *args, **settings), extra=extra or {})
        for name in names.split()
    }


OPTIMISERS: dict[str, Optimiser] = {
    **_optimisers(
        "adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb "
        "lars lion nadam nadamw novograd optimistic_adam_v2 "
        "optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd signum sm3 yogi",
        RATE,
    ),
    **_optimisers("noisy_sgd", RATE, key=0),
    **_optimisers("polyak_sgd", extra={"value": 1.0}),
    **_optimisers("lbfgs", RATE, memory_size=2, linesearch=None),
    **_optimisers(
        "contrib.acprop contrib.ademamix contrib.adopt contrib.galore contrib.madgrad "
        "contrib.muon contrib.simplified_ademamix contrib.schedule_free_adamw "
        "contrib.schedule_free_sgd",
        RATE,
    ),
    **_optimisers("contrib.cocob contrib.dadapt_adamw contrib.dog contrib.dowg contrib.prodigy"),
    **_optimisers("contrib.momo contrib.momo_adam", extra={"value": 1.0}),
    "contrib.mechanize": Optimiser(build=lambda: contrib.mechanize(optax.sgd(RATE))),
}

#: Why -> the public transformations that are no rows above. What is called scale_by_* is the first
#: part of an optimiser, and left out as well.
LEFT_OUT: dict[str, str] = {
    "a part for a chain, no optimiser": "adaptive_grad_clip add_decayed_weights add_noise "
    "apply_every centralize clip clip_by_block_rms clip_by_global_norm ema freeze identity "
    "keep_params_nonnegative measure_with_ema normalize_by_update_norm scale set_to_zero snapshot "
    "stateless stateless_with_tree_map trace zero_nans contrib.normalize "
    "contrib.reduce_on_plateau",
    "goes around optimisers, which have rows of their own": "apply_if_finite chain "
    "conditionally_mask conditionally_transform flatten inject_hyperparams "
    "inject_stateful_hyperparams masked multi_transform named_chain partition "
    "selective_transform with_extra_args_support contrib.schedule_free "
    "contrib.split_real_and_imaginary",
    "deprecated": "optimistic_adam",
    "its parameters are pairs, fast and slow": "lookahead",
    "alternates two optimisers, and its steps are meant for two gradients": "contrib.sam",
    "its gradients are those of each example": "contrib.differentially_private_aggregate "
    "contrib.dpsgd",
    "its update calls the loss function": "contrib.sophia",
}


def transformations() -> set[str]:
    """The public functions of optax and optax.contrib that make a gradient transformation."""
    names = set()
    for module, prefix in ((optax, ""), (contrib, "contrib.")):
        for name, thing in vars(module).items():
            hidden = name.startswith("_") or inspect.isclass(thing) or not callable(thing)
            if not hidden and _makes_transformation(thing):
                names.add(prefix + name)
    return names


def _makes_transformation(function: Callable) -> bool:
    """Judged by the annotation; where that is missing, by the arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False
    made = "GradientTransformation" in str(signature.return_annotation)
    return made or "learning_rate" in signature.parameters


@dataclasses.dataclass(frozen=True)
class Trial:
    """What became of an optimiser.

    Attributes:
      error: The name of the exception that ended it, or None.
      params: The parameters before the first step and after each.
      updates: What the optimiser wanted to add to them in each step, in its own dtype.
      states: The optimiser's state before the first step and after each.
    """

    error: str | None
    params: list[jax.Array]
    updates: list[jax.Array]
    states: list[Any]


def problem(dtype: str, size: float) -> tuple[jax.Array, jax.Array]:
    """[3, 4] parameters, exact in every format, and gradients of `size`, both in `dtype`."""
    signs = np.resize([1.0, -1.0, 1.0], (3, 4))
    params = np.resize([-1.0, 0.75, -0.5, 0.25, 0.125, 0.5, 1.0], (3, 4))
    return jnp.asarray(params, dtype), jnp.asarray(signs * size, dtype)


def unfused(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`tx`, but each of its operations is compiled by itself, and so rounds to its dtype.

    Compiled together, 16-bit operations keep more digits and range between them.
    """
    tx = optax.with_extra_args_support(tx)

    def update(*args: Any, **extra: Any) -> Any:
        with jax.disable_jit():
            return tx.update(*args, **extra)

    return optax.GradientTransformationExtraArgs(tx.init, update)


def optimiser(name: str, dtype: str, how: How) -> optax.GradientTransformation:
    """The optimiser, alone or wrapped for parameters of `dtype`."""
    tx = unfused(OPTIMISERS[name].build())
    if how == "alone":
        return tx
    policy = {"float16": "pure_fp16", "bfloat16": "pure_bf16"}[dtype]
    return optim.wrap(tx, policy, store=how)


@functools.cache
def trial(name: str, dtype: str, size: float, how: How) -> Trial:
    """Drives the optimiser for `STEPS` steps."""
    tx = optimiser(name, dtype, how)
    params, gradients = problem(dtype, size)
    if how != "alone":
        # What jprec.value_and_grad hands out.
        _, gradients = problem("float32", size)
    result = Trial(None, [params], [], [tx.init(params)])
    for _ in range(STEPS):
        try:
            updates, state = tx.update(
                gradients, result.states[-1], result.params[-1], **OPTIMISERS[name].extra
            )
        except (TypeError, ValueError) as error:
            return dataclasses.replace(result, error=type(error).__name__)
        result.states.append(state)
        result.params.append(optax.apply_updates(result.params[-1], updates))
        known = isinstance(updates, optim.NewValue)
        result.updates.append(updates.update if known else updates)
    return result


def types(state: Any) -> list[tuple[Any, ...]]:
    """Shape, dtype and weakness of every leaf."""
    found = [jax.typeof(leaf) for leaf in jax.tree.leaves(state)]
    return [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in found]


def not_finite(tree: Any) -> str:
    """NaN if a leaf of `tree` has one, else ∞ if a leaf has one, else nothing."""
    leaves = [
        np.asarray(leaf, np.float64)
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(jax.typeof(leaf).dtype, jnp.floating)
    ]
    for word, test in (("NaN", np.isnan), ("∞", np.isinf)):
        if any(test(leaf).any() for leaf in leaves):
            return word
    return ""


def largest(trial: Trial) -> float:
    """The largest magnitude among the updates."""
    return max(float(np.max(np.abs(np.asarray(u, np.float64)))) for u in trial.updates)


def verdict(name: str, dtype: str, size: float) -> str:
    """What becomes of the optimiser alone, compared with itself in FP32; docs/optimisers.md says
    what the words mean."""
    alone, exact = (trial(name, d, size, "alone") for d in (dtype, "float32"))
    if alone.error:
        return alone.error
    if not_finite(exact.params):
        return f"{not_finite(alone.params)}, in FP32 too"
    if not_finite(alone.params):
        return not_finite(alone.params)
    words = []
    if any(types(state) != types(alone.states[0]) for state in alone.states):
        words.append("drift")
    if not_finite(alone.states):
        words.append(f"{not_finite(alone.states)} in the state")
    wanted, got = largest(exact), largest(alone)
    moved = [bool(np.any(t.params[-1] != t.params[0])) for t in (exact, alone)]
    if wanted > NOISE and got == 0:
        words.append("frozen")
    elif wanted > NOISE and not 1 / 2 <= got / wanted <= 2:
        words.append(f"× {float(f'{got / wanted:.1g}'):g}")
    elif moved == [True, False]:
        words.append("lost")
    return ", ".join(words) or "✓"


HEAD = [
    "optimiser",
    *(f"{short}, {size:g}" for short in ("FP16", "BF16") for size in SIZES),
]


def rows() -> list[list[str]]:
    """For each optimiser what becomes of it alone."""
    return [
        [f"`{name}`", *(verdict(name, dtype, size) for dtype in DTYPES for size in SIZES)]
        for name in OPTIMISERS
    ]


#: The worst that happens to an optimiser: what the table says -> in which verdicts.
CLASSES: dict[str, Callable[[str], bool]] = {
    "NaN or ∞ in the parameters": lambda word: (
        word.startswith(("NaN", "∞")) and "state" not in word
    ),
    "moves not at all, or by a wrong amount, or has NaN or ∞ in its state": lambda word: (
        word not in ("✓", "lost")
    ),
    "is right, but its updates are lost in the addition": lambda word: word == "lost",
    "right": lambda word: True,
}

COUNT_HEAD = ["the worst that happens", "FP16", "BF16"]


def counts() -> list[list[str]]:
    """How many optimisers fall into each of `CLASSES`; failures of FP32 itself do not count."""
    found = {(dtype, name): 0 for dtype in DTYPES for name in CLASSES}
    for dtype in DTYPES:
        for name in OPTIMISERS:
            words = [verdict(name, dtype, size) for size in SIZES]
            words = [word for word in words if not word.endswith("in FP32 too")]
            worst = next(c for c, holds in CLASSES.items() if any(map(holds, words)))
            found[dtype, worst] += 1
    return [[name, *(str(found[dtype, name]) for dtype in DTYPES)] for name in CLASSES]
