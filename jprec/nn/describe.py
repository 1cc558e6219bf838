"""What each layer of a model stores, computes and hands on."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jprec import policy as policies
from jprec.nn.apply import apply
from jprec.nn.decisions import compute_dtype, joined, remarks
from jprec.nn.layers import layers_of, own_parameters
from jprec.nn.libraries import check_is_module, is_linen
from jprec.nn.linen_trace import Looked, look
from jprec.nn.marks import policy_of
from jprec.nn.trace import nnx_products, trace
from jprec.nn.verification import Found, layer_at


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer.

    Attributes:
      path: Where it is in the model.
      layer: Its class; a class of the user's own holds parameters that no layer governs.
      params: Dtypes of its own parameters, each once; "" if it has none.
      compute: Dtypes of the operands of its products; without products, the dtype that it was
        told; "follows" where that depends on what it meets.
      output: Dtype of its result, for float32 inputs where no others were given; "" where no
        input for it is known.
      product: The arithmetic of its products: the policy's, or "native" for the program's own;
        "" if it has none.
    """

    path: str
    layer: str
    params: str
    compute: str
    output: str
    product: str


@dataclasses.dataclass(frozen=True)
class Description:
    """The layers of a model; `str` of it is a table.

    Attributes:
      policy: The policy that the model has, or None.
      rows: One for each layer, by path.
      remarks: What stands below the table: rules that contradict one another, and products
        written in a `__call__` that the policy does not reach.
    """

    policy: policies.Policy | None
    rows: tuple[Row, ...]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = Row(*(field.name for field in dataclasses.fields(Row)))
        table = [dataclasses.astuple(row) for row in (head, *self.rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        title = "no policy" if self.policy is None else f"policy {self.policy.name or self.policy}"
        return "\n".join([title, *lines, *self.remarks])


def describe(
    model: Any,
    policy: Any = None,
    *,
    inputs: tuple | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Description:
    """What each layer of a Flax model stores, computes in and hands on, read off its program.

    Args:
      model: A Flax NNX or Linen module.
      policy: Describe what `apply(model, policy)` would give; None for the model as it is.
      inputs: Arguments of the model's `__call__`, as arrays or `jax.ShapeDtypeStruct`s; an array
        alone stands for one argument. Without them each NNX layer is traced by itself, with
        float32 inputs; a Linen model has no layers before it runs, and needs them.
      kwargs: Its keyword arguments.

    Raises:
      TypeError: for what is no Flax module.
      ValueError: for a Linen model without inputs; what `apply` raises.

    >>> print(describe(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), "mixed_bf16"))
    policy mixed_bf16
    path         layer   params   compute   output   product
    (the model)  Linear  float32  bfloat16  float32  native
    """
    check_is_module(model, "nn.describe")
    if hasattr(inputs, "shape"):
        inputs = (inputs,)
    if is_linen(model) and inputs is None:
        given = "model, policy" if policy_of(model) is None else "model"
        raise ValueError(
            f"{type(model).__name__} is a Flax Linen module, which has no layers before it runs. "
            "Give the arguments that it is called with: "
            f"describe({given}, inputs=(jax.ShapeDtypeStruct((1, 28, 28, 1), 'float32'),)), and "
            "its keyword arguments as kwargs={'train': True}."
        )
    if policy is not None:
        model = apply(model, policy)
    if is_linen(model):
        return _linen(model, look(model, inputs or (), dict(kwargs or {})))
    return _nnx(
        model, nnx_products(model, inputs, dict(kwargs or {})) if inputs is not None else ()
    )


def _nnx(model: Any, products: tuple[Found, ...]) -> Description:
    policy = policy_of(model)
    layers = layers_of(model)
    rows = []
    for path, module, kind in layers:
        own = own_parameters(module).values()
        dtype = None if kind is None or module.dtype is None else jnp.dtype(module.dtype).name
        traced = None if kind is None else trace(module, kind)
        found = _operands(path, [path for path, _, _ in layers], products)
        alone = () if traced is None else traced.products
        rows.append(
            Row(
                path or "(the model)",
                type(module).__name__,
                _names(parameter.get_value() for parameter in own),
                # Without a dtype the products alone follow the float32 input that they get.
                ", ".join(found or (alone if dtype else ())) or dtype or "follows",
                "" if traced is None else traced.output,
                _arithmetic(policy) if found or alone else "",
            )
        )
    return Description(
        policy,
        tuple(rows),
        _remarks(
            policy,
            [path for path, _, kind in layers if kind is not None],
            ["/".join(map(str, path)) for path, _ in nnx.iter_modules(model)],
            [joined(path, name) for path, module, _ in layers for name in own_parameters(module)],
            products,
        ),
    )


def _linen(model: Any, looked: Looked) -> Description:
    policy, seen = policy_of(model), looked.seen
    known = [path for path, module in seen.items() if module.kind is not None]
    rows = []
    for path, module in sorted(seen.items()):
        # What a layer of Flax makes for itself is no layer of its own.
        is_inner = module.kind is None and layer_at(path, known) is not None
        if is_inner or (module.kind is None and not module.parameters):
            continue
        found = _operands(path, seen, looked.products)
        rows.append(
            Row(
                path or "(the model)",
                module.layer,
                _names(_at(looked.variables, path, name) for name in module.parameters),
                ", ".join(found) or module.dtype or "follows",
                ", ".join(module.results),
                _arithmetic(policy) if found else "",
            )
        )
    parameters = [joined(path, name) for path in seen for name in seen[path].parameters]
    return Description(
        policy, tuple(rows), _remarks(policy, known, seen, parameters, looked.products)
    )


def _arithmetic(policy: policies.Policy | None) -> str:
    return (policy and policy.product) or "native"


def _names(trees: Iterable[Any]) -> str:
    leaves = jax.tree.leaves(list(trees))
    return ", ".join(sorted({jnp.dtype(leaf.dtype).name for leaf in leaves}))


def _at(variables: Any, path: str, name: str) -> Any:
    """The parameter `name` of the module at `path`."""
    place = variables["params"]
    for part in path.split("/") if path else ():
        place = place[part]
    return place[name]


def _operands(path: str, layers: Iterable[str], products: Iterable[Found]) -> tuple[str, ...]:
    """Dtypes of the operands of the products that the layer at `path` runs itself."""
    layers = list(layers)
    found = {
        dtype
        for where, product in products
        if layer_at(where, layers) == path
        for dtype in product.operand_dtypes
    }
    return tuple(sorted(found))


def _remarks(
    policy: policies.Policy | None,
    known: Iterable[str],
    modules: Iterable[str],
    parameters: Iterable[str],
    products: Iterable[Found],
) -> tuple[str, ...]:
    if policy is None:
        return ()
    said = [str(remark) for remark in remarks(policy, modules, parameters)]
    known = list(known)
    for path, product in products:
        want = compute_dtype(policy, path, None)
        if layer_at(path, known) is None and set(product.operand_dtypes) != {want}:
            where = "" if product.source is None else f", {product.source}"
            said.append(
                f"at {path or '(the model)'} a product written in the model{where} has operands "
                f"in {' and '.join(dict.fromkeys(product.operand_dtypes))}, where the policy "
                f"computes in {want}. Cast them there."
            )
    return tuple(dict.fromkeys(said))
