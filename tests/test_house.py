"""The house: rooms are entered through their doors, and the evidence wing has no JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jprec

ROOT = Path(jprec.__file__).parent
ROOMS = sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists())


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_other_rooms_are_entered_through_their_doors(room):
    behind = []
    for path in (ROOT / room).rglob("*.py"):
        for name in imported_modules(path):
            parts = name.split(".")
            foreign = parts[0] == "jprec" and len(parts) > 2 and parts[1] != room
            if foreign and (ROOT / parts[1] / f"{parts[2]}.py").exists():
                door = (ROOT / parts[1] / "__init__.py").read_text(encoding="utf-8")
                if f'"{parts[2]}"' not in door:
                    behind.append(f"{path.relative_to(ROOT)}: {name}")
    assert not behind


def test_no_private_part_of_jax_is_used():
    private = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in ROOT.rglob("*.py")
        for name in imported_modules(path)
        if name.startswith(("jax._src", "jaxlib._"))
    ]
    assert not private


@pytest.mark.parametrize("room", ["formats", "records", "stats", "report", "hardware"])
def test_the_room_does_not_import_jax(room):
    program = f"import sys, jprec.{room}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_every_public_name_can_be_imported():
    for name in jprec.__all__:
        assert getattr(jprec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'polisy'"):
        jprec.polisy  # noqa: B018
