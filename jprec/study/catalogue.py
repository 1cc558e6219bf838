"""Studies by name, and studies of the reader's own by module and attribute."""

import difflib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from jprec.study.design import Study

#: Name -> where the study is defined.
STUDIES = {"converges": "jprec.study.converges:STUDY"}


def names() -> dict[str, str]:
    """The studies that come with jprec: name -> question."""
    return {name: find(name).question for name in STUDIES}


def find(reference: str) -> Study:
    """The study called `reference`, or at "package.module:NAME" or "folder/file.py:NAME".

    Modules are looked for in the current folder first, as `python -m` does.

    Raises:
      ValueError: if there is none, with what was wrong and what is close.
    """
    where = STUDIES.get(reference, reference)
    module_name, colon, attribute = where.rpartition(":")
    if reference.endswith(".py"):
        raise ValueError(f"{reference} is a file; name the study in it: {reference}:STUDY.")
    if not colon:
        close = difflib.get_close_matches(reference, STUDIES, n=3)
        hint = f" Close: {', '.join(close)}." if close else ""
        raise ValueError(
            f"unknown study {reference!r}.{hint} Studies: {', '.join(STUDIES)}; a study of your "
            "own is written package.module:NAME or file.py:NAME."
        )
    try:
        module = load_module(module_name)
    except ImportError as error:
        raise ValueError(f"study {reference!r}: cannot import {module_name}: {error}.") from error
    study = getattr(module, attribute, None)
    if isinstance(study, Study):
        return study
    found = [n for n, v in vars(module).items() if isinstance(v, Study)]
    what = "has no such name" if study is None else f"has a {type(study).__name__} there"
    raise ValueError(
        f"study {reference!r}: {module_name} {what}. "
        + (f"Its studies: {', '.join(found)}." if found else "It holds no jprec.Study.")
    )


def load_module(name: str) -> ModuleType:
    """The module called `name`, or in the file `name`; the current folder is looked in first."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise ImportError(f"there is no file {name}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
