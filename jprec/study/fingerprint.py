"""A fingerprint of what a setting trains: programs and data, not their names."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jprec.study.design import Setting


def fingerprint(setting: Setting) -> str:
    """SHA-256 of the setting's traced programs (init, loss, batches, optimiser) and its data.

    It changes when the learning rate, the model, the loss or the data change, and so keeps records
    of two versions of a study apart. Nothing is computed; the programs are only traced.
    """
    workload = setting.load()
    key = jax.random.key(0)
    params = jax.eval_shape(workload.init, key)
    batch = jax.eval_shape(workload.batches, key)
    state = jax.eval_shape(setting.optimizer.init, params)
    sha = hashlib.sha256()
    _add(sha, workload.init, key)
    _add(sha, workload.batches, key)
    _add(sha, workload.loss, params, batch)
    _add(sha, setting.optimizer.init, params)
    _add(sha, setting.optimizer.update, params, state, params)
    for leaf in jax.tree.leaves(workload.test):
        _add_array(sha, leaf)
    return sha.hexdigest()


def _add(sha: Any, fn: Callable, *args: Any) -> None:
    """Adds the text of the traced program and the arrays that it holds."""
    traced = jax.make_jaxpr(fn)(*args)
    # The text may name functions with their addresses, which differ from process to process.
    sha.update(re.sub(r"0x[0-9a-f]+", "", str(traced)).encode())
    for constant in traced.consts:
        _add_array(sha, constant)


def _add_array(sha: Any, array: Any) -> None:
    array = np.asarray(array)
    sha.update(f"{array.dtype}{array.shape}".encode())
    sha.update(np.ascontiguousarray(array).tobytes())
