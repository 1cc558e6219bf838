"""The arrays that enter a function's products, handed out beside its result."""

import enum
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jprec.program import versions
from jprec.program.description import PRODUCTS
from jprec.program.sources import is_backward, joined
from jprec.program.tracing import Trace, trace


def watch_products(fn: Callable) -> Callable:
    """A function that returns `(fn(...), operands)`: what enters the products of `fn`.

    `operands` is a dict of two lists of arrays, in the order of the program:

    - "activations": operands of forward products, except what is made of the first argument (the
      parameters) and of constants alone;
    - "activation_gradients": operands of backward products that come from the cotangent of the
      result, not from the forward pass.

    So for `watch_products(jax.value_and_grad(loss))(params, batch)` these are the inputs of the
    layers and the gradients of their outputs. A value that enters several products is handed out
    once, and so is what is computed twice in the same way: a rounded copy, or a forward value
    that `jax.checkpoint` computes again. Arrays come as they enter the product, in its dtype.

    Products inside `jit`, `checkpoint` and functions with custom derivatives are seen; those
    inside loops, conditionals and `shard_map` are not. May be used under `jit` and `vmap`, and on
    what `emulate` and `round_explicitly` return. More outputs can make XLA fuse, and so round,
    FP32 operations in another way: take results that count from `fn` itself.

    >>> import jax, jax.numpy as jnp
    >>> loss = lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2)
    >>> w, x = jnp.ones((3, 2)), jnp.ones((4, 3))
    >>> (value, gradient), operands = watch_products(jax.value_and_grad(loss))(w, x)
    >>> {name: [a.shape for a in arrays] for name, arrays in operands.items()}
    {'activations': [(4, 3)], 'activation_gradients': [(4, 2)]}
    """

    @functools.wraps(fn)
    def watched(*args: Any, **kwargs: Any) -> tuple[Any, dict[str, list[jax.Array]]]:
        traced = trace(fn, args, kwargs)
        watcher = _Watcher()
        outputs = watcher.watch(traced, parameters=len(jax.tree.leaves(args[:1])))
        return jax.tree.unflatten(traced.result, outputs), watcher.operands

    return watched


class _Origin(enum.Enum):
    """What a value is made of."""

    CONSTANT = enum.auto()
    PARAMETERS = enum.auto()
    DATA = enum.auto()
    COTANGENT = enum.auto()


class _Known(NamedTuple):
    """A value; the number that it shares with values computed in the same way; its origin."""

    value: Any
    number: int
    origin: _Origin


class _Watcher:
    """Runs a program equation by equation, and keeps what enters its products."""

    def __init__(self) -> None:
        self.operands: dict[str, list[jax.Array]] = {"activations": [], "activation_gradients": []}
        self._kept: set[int] = set()
        self._numbers: dict[Hashable, int] = {}
        self._origins: dict[int, _Origin] = {}

    def watch(self, traced: Trace, *, parameters: int) -> list[Any]:
        """The outputs of the program, whose first `parameters` arguments are the parameters."""
        consts = len(traced.program.constvars)
        inputs = []
        for index, value in enumerate(traced.values):
            is_parameter = consts <= index < consts + parameters
            origin = _Origin.PARAMETERS if is_parameter else _Origin.DATA
            inputs.append(self._known(value, ("input", index), origin))
        return [known.value for known in self._run(traced.program, inputs, "")]

    def _run(self, program: Any, inputs: Sequence[_Known], scope: str) -> list[_Known]:
        known = dict(zip((*program.constvars, *program.invars), inputs, strict=True))

        def read(atom: Any) -> _Known:
            return self._constant(atom.val) if isinstance(atom, core.Literal) else known[atom]

        for equation in program.eqns:
            values = [read(atom) for atom in equation.invars]
            names = joined(scope, equation)
            with versions.as_written(equation):
                outputs = self._outputs(equation, values, names)
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in program.outvars]

    def _outputs(self, equation: Any, inputs: Sequence[_Known], scope: str) -> list[_Known]:
        body = versions.transparent_body(equation)
        if body is not None:
            program, consts = versions.parts(body)
            return self._run(program, [*map(self._constant, consts), *inputs], scope)
        if equation.primitive.name in PRODUCTS:
            self._keep(inputs[:2], scope)
        results = versions.bind(equation, [known.value for known in inputs])
        origin = _origin(inputs, results, is_backward(scope))
        made_by = self._recipe(equation, inputs)
        return [self._known(r, (made_by, index), origin) for index, r in enumerate(results)]

    def _keep(self, operands: Sequence[_Known], scope: str) -> None:
        name, wanted = (
            ("activation_gradients", _Origin.COTANGENT)
            if is_backward(scope)
            else ("activations", _Origin.DATA)
        )
        for known in operands:
            is_new = known.origin is wanted and known.number not in self._kept
            if is_new and jnp.issubdtype(known.value.dtype, jnp.floating):
                self._kept.add(known.number)
                self.operands[name].append(known.value)

    def _known(self, value: Any, recipe: Hashable, origin: _Origin) -> _Known:
        number = self._numbers.setdefault(recipe, len(self._numbers))
        # What was computed before in the same way is the same value: a residual that is rounded
        # again in the backward pass is still a forward value.
        return _Known(value, number, self._origins.setdefault(number, origin))

    def _constant(self, value: Any) -> _Known:
        recipe: Hashable = ("array", id(value))
        if not isinstance(value, jax.Array) and np.size(value) == 1:
            number = np.asarray(value)
            recipe = (number.dtype.name, number.tobytes())
        return self._known(value, recipe, _Origin.CONSTANT)

    def _recipe(self, equation: Any, inputs: Sequence[_Known]) -> Hashable:
        """What was computed, from what: equal for equal values. Unique where that is unknown."""
        recipe = (
            equation.primitive.name,
            tuple(sorted(equation.params.items())),
            tuple(known.number for known in inputs),
        )
        try:
            hash(recipe)
        except TypeError:
            return len(self._numbers), "unique"
        return (len(self._numbers), "unique") if equation.effects else recipe


def _origin(inputs: Sequence[_Known], results: Sequence[Any], backward: bool) -> _Origin:
    """The origin of what an equation makes of `inputs`."""
    origins = {known.origin for known in inputs}
    if _Origin.COTANGENT in origins:
        return _Origin.COTANGENT
    varying = [known for known in inputs if known.origin is not _Origin.CONSTANT]
    # A cotangent begins with a number: the constant 1, or the scale of the loss.
    is_float = any(jnp.issubdtype(result.dtype, jnp.inexact) for result in results)
    if backward and is_float and all(jnp.ndim(known.value) == 0 for known in varying):
        return _Origin.COTANGENT
    if not varying:
        return _Origin.CONSTANT
    return _Origin.PARAMETERS if origins <= {_Origin.CONSTANT, _Origin.PARAMETERS} else _Origin.DATA
