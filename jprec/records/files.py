"""JSON files that are strict, and either complete or absent."""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: JSON has no NaN and no infinity; these strings stand for them.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _strict(value: Any) -> Any:
    """`value` with every non-finite float replaced by its string, tuples by lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """The strict JSON text of `value`; non-finite floats become strings.

    Raises:
      TypeError: for a value that JSON has no form for (an array, a set); convert it first.

    >>> dumps({"loss": float("nan"), "step": 3})
    '{"loss": "NaN", "step": 3}'
    """
    return json.dumps(_strict(value), allow_nan=False, indent=indent, ensure_ascii=False)


def as_floats(values: Iterable[Any]) -> list[float]:
    """The numbers of a list that was read from JSON, with NaN and infinities restored.

    >>> as_floats([0.5, "Infinity", 2])
    [0.5, inf, 2.0]
    """
    return [NON_FINITE[v] if isinstance(v, str) else float(v) for v in values]


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes `text` to `path` so that a reader finds the old file or the new one, never a part.

    The text goes to a temporary file in the same folder, is flushed to the disk and renamed.

    Raises:
      OSError: when the folder cannot be written or the disk is full; `path` is then untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's file creation mask (mkstemp makes files that only their owner can read)."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` to `path` as strict JSON, whole or not at all."""
    write_text(path, dumps(value, indent=1) + "\n")


def read_json(path: str | os.PathLike) -> Any:
    """The value in the JSON file `path`; non-finite floats stay strings (see `as_floats`).

    Raises:
      ValueError: if the file is not JSON, with its name.
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not a JSON record ({error}). Records are written whole, so another "
            "program has changed it: delete it, and the run that made it is repeated."
        ) from error
