"""Is what a layer does what it was told? The errors that say no."""

import sys
from collections.abc import Iterable, Mapping

from jprec import program

#: A product, and the path of the module that runs it.
Found = tuple[str, program.Product]


def check_products(
    layer: str, want: str, operands: Iterable[str], source: str | None = None
) -> None:
    """An error unless all operands of a layer's products have the dtype that it was told."""
    wrong = sorted({dtype for dtype in operands if dtype != want})
    if not wrong:
        return
    raise ValueError(
        f"{layer}: dtype={want} was set, but its products{_at(source)} have operands in "
        f"{', '.join(wrong)}: the switch has no effect there. Give this layer a rule with "
        f"compute={wrong[0]}, or a class that follows its dtype."
    )


def check_result(layer: str, want: str, results: Iterable[str], source: str | None = None) -> None:
    """An error unless a layer's result has the dtype that it was told."""
    wrong = [dtype for dtype in results if dtype != want]
    if not wrong:
        return
    raise ValueError(
        f"{layer}: dtype={want} was set, but its result{_at(source)} is {', '.join(wrong)}: the "
        f"switch has no effect. Give this layer a rule with compute={wrong[0]}, or a class that "
        "follows its dtype."
    )


def check_model(wants: Mapping[str, tuple[str, str]], products: Iterable[Found]) -> None:
    """An error for the first product inside a layer that is not in the layer's dtype.

    Args:
      wants: Path of a layer -> (its class, the dtype that it was told).
      products: Those of the whole model.
    """
    for path, product in products:
        owner = layer_at(path, wants)
        if owner is not None:
            layer, want = wants[owner]
            name = f"{owner or 'the model'} ({layer})"
            check_products(name, want, product.operand_dtypes, product.source)


def layer_at(path: str, layers: Iterable[str]) -> str | None:
    """The innermost of `layers` that `path` is in; None if it is in none."""
    around = [layer for layer in layers if not layer or f"{path}/".startswith(f"{layer}/")]
    return max(around, key=len, default=None)


def users_line() -> str | None:
    """The innermost line of the user's that runs now, as "file:line"."""
    frame = sys._getframe(1)
    while frame is not None:
        if program.is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _at(source: str | None) -> str:
    return "" if source is None else f" ({source})"
