"""What is trained, as three functions and a held-out batch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

#: A pytree of arrays.
Tree = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """A training problem that knows nothing of precision: policies act on it from outside.

    The functions are traced by JAX and mapped over seeds, so they are pure and take their
    randomness from the key. To follow a policy they leave dtypes alone: a layer computes in the
    dtype of its operands (Flax: `dtype=None`), and the loss is taken in FP32
    (`logits.astype(jnp.float32)`).

    Attributes:
      init: key -> parameters, a pytree of FP32 arrays.
      loss: (parameters, batch) -> [] float32, the mean loss of the batch.
      batches: key -> batch, one training batch drawn at random; float arrays in FP32.
      test: The held-out batch; the loss on it, with products in full FP32, is what a study judges.
      name: Enters the keys that initial weights and batches are drawn with.
      guess: The test loss that guessing gives, for instance log(classes): a run that ends above
        it has diverged. None: the test loss of the initial weights.
      accuracy: (parameters, batch) -> [] float32 in [0, 1], or None where there is none.
    """

    init: Callable[[jax.Array], Tree]
    loss: Callable[[Tree, Tree], jax.Array]
    batches: Callable[[jax.Array], Tree]
    test: Tree
    name: str = "workload"
    guess: float | None = None
    accuracy: Callable[[Tree, Tree], jax.Array] | None = None


def functions(
    make: Callable[[nnx.Rngs], nnx.Module],
) -> tuple[Callable[[jax.Array], Tree], Callable[..., jax.Array]]:
    """Pure functions of a Flax NNX model: `init(key) -> params` and `apply(params, *inputs)`.

    The parameters are a nested dict with the model's attribute names as keys. Models with state
    other than parameters (batch statistics, dropout) need functions of their own.

    Raises:
      ValueError: if the model has such state.

    >>> init, apply = functions(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    >>> parameters = init(jax.random.key(0))
    >>> sorted(parameters), apply(parameters, jax.numpy.ones((5, 3))).shape
    (['bias', 'kernel'], (5, 2))
    """
    graph, abstract, rest = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param, ...)
    state = [k for k in nnx.to_pure_dict(rest) if k != "rngs"]
    if state:
        raise ValueError(
            f"the model has state that is not a parameter: {state}. Write init and loss by hand "
            "with flax.nnx.split and merge, and carry that state in the parameters."
        )

    def init(key: jax.Array) -> Tree:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

    def apply(parameters: Tree, *inputs: jax.Array) -> jax.Array:
        filled = jax.tree.map(lambda leaf: leaf, abstract)  # replace_by_pure_dict writes into it
        nnx.replace_by_pure_dict(filled, parameters)
        return nnx.merge(graph, filled, rest)(*inputs)  # type: ignore[operator]

    return init, apply
