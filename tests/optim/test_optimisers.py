"""docs/optimisers.py: every optimiser of optax runs through the wrappers; the table is complete."""

import functools
import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jprec import optim

DOCS = Path(__file__).parents[2] / "docs"


def loaded():
    spec = importlib.util.spec_from_file_location("docs_optimisers", DOCS / "optimisers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


page = loaded()

#: Optimisers that are NaN in FP32: they divide 0 by 0 if the first gradients are all zero.
FAIL_IN_FP32 = {("contrib.dadapt_adamw", 0.0), ("contrib.prodigy", 0.0)}

#: In float16 these were NaN or infinite in earlier trials by others (see also optax#1754).
KNOWN_TO_FAIL = """
    adabelief adafactor adam adamax adamw adan amsgrad nadam nadamw novograd rmsprop
    optimistic_adam_v2 fromage contrib.ademamix contrib.cocob contrib.dadapt_adamw contrib.dog
    contrib.muon contrib.prodigy contrib.schedule_free_adamw contrib.galore contrib.mechanize
"""


def assert_same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    unsigned = f"u{got.itemsize}"
    np.testing.assert_array_equal(got.view(unsigned), want.view(unsigned))


def test_every_transformation_of_optax_is_an_optimiser_here_or_left_out_with_a_reason():
    found = page.transformations()
    assert {"adam", "nadam", "contrib.dog", "lookahead"} <= found
    parts = {name for name in found if name.split(".")[-1].startswith("scale_by_")}
    left_out = [name for names in page.LEFT_OUT.values() for name in names.split()]
    assert len(left_out) == len(set(left_out))
    assert not set(left_out) & set(page.OPTIMISERS)
    assert set(page.OPTIMISERS) | set(left_out) == found - parts


@pytest.mark.parametrize("name", page.OPTIMISERS)
def test_wrapped_it_is_finite_moves_as_in_fp32_and_keeps_its_types(name):
    """Gradients of 0, 1e-4 and 300, for float16 and bfloat16 parameters."""
    for size in page.SIZES:
        exact = page.trial(name, "float32", size, "alone")
        if page.not_finite(exact.params):
            assert (name, size) in FAIL_IN_FP32
            continue
        for dtype, how in (
            ("float16", "nearest"),
            ("bfloat16", "nearest"),
            ("bfloat16", "master"),
        ):
            wrapped = page.trial(name, dtype, size, how)
            assert wrapped.error is None
            assert page.not_finite((wrapped.params, wrapped.states)) == ""
            assert {p.dtype for p in wrapped.params} == {jnp.dtype(dtype)}
            start = page.types(wrapped.states[0])
            assert [page.types(state) for state in wrapped.states[1:]] == [start] * page.STEPS
            assert_same_bits(wrapped.updates[0], exact.updates[0])
            wide = wrapped.params[0].astype(jnp.float32) + exact.updates[0]
            assert_same_bits(wrapped.params[1], wide.astype(dtype))
            if how == "master":
                for state, params, want in zip(
                    wrapped.states, wrapped.params, exact.params, strict=True
                ):
                    assert_same_bits(state.masters, want)
                    assert_same_bits(params, want.astype(dtype))


@pytest.mark.parametrize("name", page.OPTIMISERS)
def test_wrapped_and_jitted_the_second_step_does_not_trace_again(name):
    """The state's avals are the same before and after a traced step, without any guard."""
    row = page.OPTIMISERS[name]
    transform = optim.wrap(row.build(), "pure_bf16", loss_scale="none")
    params, _ = page.problem("bfloat16", 1.0)
    start = jax.eval_shape(transform.init, params)

    def step(grads, state):
        updates, state = transform.update(grads, state, params, **row.extra)
        return optim.apply_updates(params, updates), state

    after, state = jax.eval_shape(step, jax.ShapeDtypeStruct(params.shape, jnp.float32), start)
    assert jax.tree.structure(state) == jax.tree.structure(start)
    assert page.types(state) == page.types(start)
    assert page.types(after) == page.types(params)


# --- the verdicts on optimisers alone, which the page tabulates


@functools.cache
def table():
    """The page's table: (optimiser, dtype, size) -> verdict. tests/test_docs.py renews it."""
    text = (DOCS / "optimisers.md").read_text(encoding="utf-8")
    (part,) = re.findall(r"(?s)<!-- generated: optimisers -->\n(.*?)<!-- end", text)
    columns = [(dtype, size) for dtype in page.DTYPES for size in page.SIZES]
    cells = {}
    for line in part.strip().splitlines()[2:]:
        name, *words = [cell.strip() for cell in line.strip("|").split("|")]
        cells |= {
            (name.strip("`"), *column): word for column, word in zip(columns, words, strict=True)
        }
    return cells


def test_the_page_has_every_optimiser():
    assert {name for name, *_ in table()} == set(page.OPTIMISERS)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        # 0/0; 1e-5 / (0 + 0); 300**2 is infinite, and mu divided by that zero.
        ("adam", ["NaN", "∞", "∞ in the state, frozen", "✓", "✓", "✓"]),
        # 1e-7 is below half an ulp of the parameters, 0.3 is not.
        ("sgd", ["✓", "lost", "✓", "✓", "lost", "✓"]),
        ("sign_sgd", ["✓"] * 6),
        ("contrib.prodigy", ["NaN, in FP32 too", "NaN", "NaN", "NaN, in FP32 too", "lost", "lost"]),
    ],
)
def test_verdicts_by_hand(name, want):
    got = [page.verdict(name, dtype, size) for dtype in page.DTYPES for size in page.SIZES]
    assert got == want == [table()[name, d, size] for d in page.DTYPES for size in page.SIZES]


def test_those_known_to_fail_in_float16_fail_here():
    broken = {
        name
        for (name, dtype, _), word in table().items()
        if dtype == "float16" and re.match("NaN$|∞$", word)
    }
    assert set(KNOWN_TO_FAIL.split()) <= broken


def test_an_exception_and_a_drift_would_be_told(monkeypatch):
    def drifting(updates, state, params=None):
        return updates, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), state)

    def raising(updates, state, params=None):
        raise TypeError("lax.cond: branches differ")

    keep = lambda params: optax.TraceState(params)
    for name, update, want in (("drifts", drifting, "drift"), ("raises", raising, "TypeError")):
        row = page.Optimiser(build=lambda u=update: optax.GradientTransformation(keep, u))
        monkeypatch.setitem(page.OPTIMISERS, name, row)
        assert page.verdict(name, "float16", 300.0) == want


# --- the prose of the page


def test_the_python_on_the_page_runs():
    text = (DOCS / "optimisers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(block, "optimisers.md", "exec"), {})


def test_accumulation_around_the_wrapper_leaves_parameters_alone_until_the_window_is_full():
    """MultiSteps multiplies updates by 0 or 1, which must not reach the value they know."""
    transform = optax.MultiSteps(optim.wrap(optax.sgd(0.5), "pure_bf16"), 2)
    params = jnp.ones(2, jnp.bfloat16)
    state = transform.init(params)
    for want in (1.0, 0.5):
        updates, state = transform.update(jnp.ones(2), state, params)
        assert optax.apply_updates(params, updates).tolist() == [want, want]
        params = optim.apply_updates(params, updates)
        assert params.tolist() == [want, want]
