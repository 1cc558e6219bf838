"""The path of a leaf, spelt so that a rule finds it whatever library built the tree."""

from collections.abc import Sequence
from typing import Any


def leaf_path(key_path: Sequence[Any]) -> str:
    """The "/"-joined path of a leaf, from what `jax.tree_util.tree_flatten_with_path` gives.

    Flax NNX holds each array in a variable, whose attribute `value` ends the path in some trees
    and is missing in others; it is left away, so that "norm/scale" names the same leaf in both.
    """
    parts = [(type(entry).__name__, _name(entry)) for entry in key_path]
    if len(parts) > 1 and parts[-1] == ("GetAttrKey", "value"):
        parts.pop()
    return "/".join(name for _, name in parts)


def _name(entry: Any) -> str:
    """What one step of a path is called: a key, an index or an attribute."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)
