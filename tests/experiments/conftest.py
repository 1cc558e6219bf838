"""Experiments are scripts, not modules of the package: loaded by their path."""

import importlib.util
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def experiment():
    """experiment(name): the module experiments/name/run.py."""

    def load(name):
        path = EXPERIMENTS / name / "run.py"
        spec = importlib.util.spec_from_file_location(f"experiment_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
