"""Which library a model is of, and which models a policy does not reach."""

from typing import Any

from flax import linen, nnx
from flax.nnx import bridge


def is_linen(model: Any) -> bool:
    """Whether `model` is a Flax Linen module."""
    return isinstance(model, linen.Module)


def check_is_module(model: Any, what: str) -> None:
    """An error that names the way that works, unless `model` is a Flax module."""
    if not isinstance(model, nnx.Module | linen.Module):
        raise TypeError(
            f"{what} takes a Flax module, not a {type(model).__name__}. For pure functions of "
            "parameters use jprec.value_and_grad(loss_fn, policy)."
        )


def check_is_nnx(model: Any, what: str) -> None:
    """An error, unless `model` is a Flax NNX module, for what Linen does by itself."""
    if is_linen(model):
        raise TypeError(
            f"{type(model).__name__} is a Flax Linen module, and {what} takes Flax NNX modules. "
            "Linen names its operations itself; jprec.nn.scope_path reads the names of both."
        )
    if not isinstance(model, nnx.Module):
        raise TypeError(f"{what} takes a Flax NNX module, not a {type(model).__name__}.")


def check_is_no_bridge(module: Any, path: str) -> None:
    """An error for a module of one library that holds one of the other."""
    if isinstance(module, bridge.ToNNX | bridge.ToLinen | bridge.Module):
        raise TypeError(
            f"{path or 'the model'} ({type(module).__name__}) is a bridge between Flax Linen and "
            "Flax NNX, and a policy does not reach what lies behind it. Give jprec.nn.apply a "
            "model of one library, or write the dtypes into the layers behind the bridge."
        )
