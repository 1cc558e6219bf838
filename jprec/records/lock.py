"""One writer per folder."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock; there two writers are not told apart.
    fcntl = None  # type: ignore[assignment]


class FolderInUse(RuntimeError):
    """Another process writes to the folder."""


@contextlib.contextmanager
def locked(folder: str | os.PathLike) -> Iterator[None]:
    """Holds `folder` for this process; the system releases it when the process ends, however.

    Raises:
      FolderInUse: if another process holds it.
    """
    path = Path(folder) / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FolderInUse(
                    f"{folder} is in use by another run. Wait for it, or give this one a folder "
                    "of its own with --out."
                ) from error
        yield
