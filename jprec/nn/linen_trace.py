"""A Flax Linen model looked at as a whole: its modules, its variables and its products."""

import dataclasses
from typing import Any

import jax
from flax import core

from jprec import program
from jprec.nn.interception import Seen, watched_path, watching
from jprec.nn.trace import abstract
from jprec.nn.verification import Found


@dataclasses.dataclass(frozen=True)
class Looked:
    """What was found in a model.

    Attributes:
      variables: What `init` makes, as `jax.ShapeDtypeStruct`s.
      seen: Path -> what was found in the module there.
      products: (path of the module, product) of all products.
    """

    variables: Any
    seen: dict[str, Seen]
    products: tuple[Found, ...]


def look(model: Any, inputs: tuple, kwargs: dict[str, Any]) -> Looked:
    """What is in a Linen model that is called with these arguments. Nothing is computed."""
    arrays, call = abstract(inputs, kwargs)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def start(key: Any, arrays: Any) -> Any:
        return call(lambda *args, **named: model.init({"params": key}, *args, **named), arrays)

    def run(variables: Any, key: Any, arrays: Any) -> Any:
        # All streams of random numbers fall back on that of the parameters.
        rngs, mutable = {"params": key}, core.DenyList("params")
        return call(
            lambda *args, **named: model.apply(
                variables, *args, rngs=rngs, mutable=mutable, **named
            ),
            arrays,
        )

    variables = jax.eval_shape(start, key, arrays)
    with watching() as seen:
        found = program.products(run, variables, key, arrays)
    return Looked(variables, seen, tuple((watched_path(p.scope), p) for p in found))
