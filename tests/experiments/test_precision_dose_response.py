"""The experiment in miniature, its arithmetic against the library's, and its closed forms."""

import copy
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jprec import matmul, program, records, rounding, train
from jprec.workloads import digits_cnn, digits_mlp


@pytest.fixture(scope="module")
def run():
    """The script, once for all tests: what it compiles is kept."""
    path = Path(__file__).parents[2] / "experiments" / "precision_dose_response" / "run.py"
    spec = importlib.util.spec_from_file_location("experiment_precision_dose_response", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def small(run):
    return run.sizes(True)["mlp"]


@pytest.fixture
def record(run):
    return records.read_json(run.EXPERIMENT.folder / "results" / "results.json")


def test_the_miniature_runs_and_23_bits_are_fp32(run, tmp_path, capsys):
    assert run.EXPERIMENT.main(["--small", "--out", str(tmp_path)]) == 0
    parts = records.read_json(tmp_path / "results.json")["parts"]
    nearest, cut = parts[f"mlp {run.EVEN}"], parts[f"mlp {run.ZERO}"]
    full = parts["mlp fp32"]
    assert nearest["23"]["loss"] == full["loss"] == nearest["23"]["own"]
    assert nearest["10"]["loss"] != full["loss"]
    ways = [cut[name]["loss"] for name in ("1", "1 forward", "1 backward")]
    assert len({tuple(losses) for losses in [*ways, full["loss"]]}) == 4
    # The outputs of a net whose operands are cut to one bit shrink about as predicted.
    along, across = full["outputs"][run.ZERO]["1"]
    assert along == pytest.approx(run.along_predicted(1, 2), rel=0.25)
    assert across < abs(along)
    assert {file.name for file in tmp_path.iterdir()} >= {"dose.svg", "errors.svg"}
    assert "A miniature" in capsys.readouterr().out


# --- the arithmetic


def rounded_step(run, workload, mode, bits, policy):
    step = train.value_and_grad(workload.loss, policy, exact=True)
    return program.rewrite(step, run.Dose(mode=mode, bits=jnp.int32(bits)))


def test_ten_bits_rounded_ties_away_are_tf32_bit_for_bit(run, small, assert_same_bits):
    workload = small.workload
    params, batch = workload.init(jax.random.key(0)), workload.batches(jax.random.key(1))

    @jax.jit
    def both(params, batch):
        traced = rounded_step(run, workload, run.AWAY, (10, 10), run.POLICY)(params, batch)
        named = train.value_and_grad(workload.loss, "product=tf32", exact=True)(params, batch)
        return traced, named

    traced, named = both(params, batch)
    jax.tree.map(assert_same_bits, traced, named)


@pytest.mark.parametrize(("make", "forward", "backward"), [(digits_mlp, 3, 5), (digits_cnn, 3, 5)])
def test_each_pass_has_its_own_number_of_bits(run, make, forward, backward, monkeypatch):
    workload = make()
    seen = []

    def noted(x, bits, mode, key=None):
        seen.append(int(bits))
        return x

    monkeypatch.setattr(run, "round_to_mantissa", noted)
    step = train.value_and_grad(workload.loss, run.POLICY, exact=True)
    shapes = jax.eval_shape(workload.init, jax.random.key(0))
    batch = jax.eval_shape(workload.batches, jax.random.key(0))
    rule = run.Dose(mode=run.EVEN, bits=np.int32([4, 9]))
    jax.eval_shape(program.rewrite(step, rule), shapes, batch)
    # Two operands each; the first layer's input has no gradient.
    assert (seen.count(4), seen.count(9)) == (2 * forward, 2 * backward)


def test_every_operand_of_every_product_draws_for_itself(run):
    rule = run.Dose(mode=run.RANDOM, bits=jnp.int32([2, 2]), key=jax.random.key(0))

    def products(x):
        return [x @ jnp.eye(64), x @ jnp.eye(64)]

    x = jnp.full((64, 64), 1.1)
    first, second = jax.jit(program.rewrite(products, rule))(x)
    assert set(np.unique(first)) == {1.0, 1.25}
    assert np.mean(first) == pytest.approx(1.1, abs=0.01)
    assert np.mean(first != second) > 0.3


def test_convolutions_with_reordered_axes_are_the_same_convolutions(run):
    x, kernel = (
        jax.random.normal(k, s)
        for k, s in zip(
            jax.random.split(jax.random.key(0)), ((4, 8, 8, 3), (3, 3, 3, 5)), strict=True
        )
    )

    def convolve(x, kernel):
        return lax.conv_general_dilated(
            x,
            kernel,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=lax.Precision.HIGHEST,
        )

    def with_gradients(x, kernel):
        out, pull = jax.vjp(convolve, x, kernel)
        return out, *pull(jnp.cos(out))

    plain = run.Dose(mode=None, bits=jnp.int32([23, 23]))
    got, want = jax.jit(
        lambda *a: (program.rewrite(with_gradients, plain)(*a), with_gradients(*a))
    )(x, kernel)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5), got, want)


# --- closed forms


@pytest.mark.parametrize("bits", [1, 2, 4, 7])
def test_the_shrinkage_of_truncation_is_that_of_log_uniform_numbers(run, bits):
    x = np.float32(2.0 ** np.random.default_rng(0).uniform(-8, 8, 200_000))
    cut = np.asarray(rounding.round_to(x, f"e8m{bits}", "toward_zero"))
    lost = float(np.mean((x - cut) / x))
    assert run.shrink(bits) == pytest.approx(lost, rel=0.01)
    assert run.shrink(bits) == pytest.approx(2.0**-bits / (4 * np.log(2)), rel=0.15)


def test_truncated_products_shrink_by_that_factor(run):
    rng = np.random.default_rng(1)
    a, b = np.float32(rng.standard_normal((2, 300, 300)))
    cut = matmul.matmul(a, b, "e8m2:toward_zero")
    along, _ = run.split(np.asarray(cut), a.astype(np.float64) @ b)
    assert along == pytest.approx(run.of_product(2) - 1, rel=0.03)


def test_gradients_shrink_once_more_for_each_layer_behind(run, small):
    params = jax.eval_shape(jax.vmap(small.workload.init), jax.random.split(jax.random.key(0)))
    factors = run.gradient_factors(small, params, 1)
    once = run.of_product(1)
    by_layer = {i: (float(f["kernel"]), float(f["bias"])) for i, f in factors["layers"].items()}
    assert by_layer[1] == pytest.approx((once, 1.0))
    assert by_layer[0] == pytest.approx((once**2, once))


# --- what the record says


def test_the_controls_hold_and_their_failure_forbids_any_conclusion(run, record):
    parts = record["parts"]
    found = run.judged(parts)
    assert run.controls_hold(found)
    assert {arm[2] for arm in found if run.is_control(arm)} == {1, 23}
    broken = copy.deepcopy(parts)
    broken[f"cnn {run.ZERO}"]["1"] = broken[f"cnn {run.ZERO}"]["10"]
    verdicts = {f.claim: f.verdict for f in run.findings(broken)}
    assert set(verdicts.values()) == {"undecided", "needs a GPU"}


def test_the_fewest_bits_are_those_from_which_all_are_equivalent(run, record):
    parts = copy.deepcopy(record["parts"])
    arms = parts[f"mlp {run.EVEN}"]
    least = run.fewest(run.judged(parts), "mlp", run.EVEN)
    assert least is not None
    assert least < 9
    arms["9"]["loss"] = [loss + 1.0 for loss in arms["9"]["loss"]]
    assert run.fewest(run.judged(parts), "mlp", run.EVEN) == 10
    arms["10"]["loss"] = arms["9"]["loss"]
    worse = run.judged(parts)
    assert run.fewest(worse, "mlp", run.EVEN) is None
    found = {f.claim: f.verdict for f in run.findings(parts)}
    assert found["B13"] == "refuted in miniature"
    assert found["A10"] == "refuted in miniature"


def test_one_diverged_run_forbids_equivalence(run, record):
    parts = copy.deepcopy(record["parts"])
    parts[f"mlp {run.AWAY}"]["10"]["loss"][0] = "NaN"
    judgement = run.judged(parts)["mlp", run.AWAY, 10]
    assert judgement.verdict.diverged == 1
    assert not judgement.met
    assert run.findings(parts)[0].verdict == "undecided"
