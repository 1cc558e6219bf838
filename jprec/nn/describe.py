"""What each layer of a model stores, computes and hands on."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from jprec import policy as policies
from jprec.nn.apply import apply, check_is_nnx, policy_of
from jprec.nn.layers import Kind, layers_of, own_parameters
from jprec.nn.trace import trace


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer.

    Attributes:
      path: Where it is in the model.
      layer: Its class; a class of the user's own holds parameters that no layer governs.
      params: Dtypes of its own parameters, each once; "" if it has none.
      compute: Dtype in which it computes; "follows" where that depends on what it meets.
      output: Dtype of its result for float32 inputs; "" where no input for it is known.
    """

    path: str
    layer: str
    params: str
    compute: str
    output: str


@dataclasses.dataclass(frozen=True)
class Description:
    """The layers of a model; `str` of it is a table.

    Attributes:
      policy: The policy that the model has, or None.
      rows: One for each layer, by path.
    """

    policy: policies.Policy | None
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        head = Row("path", "layer", "params", "compute", "output")
        table = [dataclasses.astuple(row) for row in (head, *self.rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        title = "no policy" if self.policy is None else f"policy {self.policy.name or self.policy}"
        return "\n".join([title, *lines])


def describe(model: Any, policy: Any = None) -> Description:
    """What each layer of an NNX model stores, computes in and hands on, by tracing each layer.

    Args:
      model: A Flax NNX module.
      policy: Describe what `apply(model, policy)` would give; None for the model as it is.

    >>> from flax import nnx
    >>> print(describe(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "mixed_bf16"))
    policy mixed_bf16
    path         layer   params   compute   output
    (the model)  Linear  float32  bfloat16  float32
    """
    check_is_nnx(model, "nn.describe")
    if policy is not None:
        model = apply(model, policy)
    rows = [_row(path, module, kind) for path, module, kind in layers_of(model)]
    return Description(policy_of(model), tuple(rows))


def _row(path: str, module: Any, kind: Kind | None) -> Row:
    params = {jnp.dtype(p.dtype).name for p in own_parameters(module).values()}
    compute, output = "follows", ""
    if kind is not None:
        traced = trace(module, kind)
        if module.dtype is not None:
            compute = jnp.dtype(module.dtype).name
            if traced is not None:
                compute = ", ".join(traced.products) or compute
        if traced is not None:
            output = traced.output
    return Row(
        path or "(the model)",
        type(module).__name__,
        ", ".join(sorted(params)),
        compute,
        output,
    )
