"""The experiment in miniature, its closed forms, and its page in step with its record."""

import copy
import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats as scipy_stats

from jprec import records, report, workloads


@pytest.fixture
def run(experiment):
    return experiment("chaos_control")


@pytest.fixture
def record(run):
    return records.read_json(run.EXPERIMENT.folder / "results" / "results.json")


def test_the_miniature_runs_and_the_controls_hold(run, tmp_path, capsys):
    assert run.EXPERIMENT.main(["--small", "--out", str(tmp_path)]) == 0
    parts = records.read_json(tmp_path / "results.json")["parts"]
    assert run.controls_hold(parts)
    distance = {
        change: run.measured(parts, run.MLP, change, "distance")
        for change in run.tried(parts, run.MLP, run.SHOWN)
    }
    looks = parts[run.MLP]["looks"]
    assert looks[0] == 0
    # At the start only those differ whose weights do; after it, all.
    assert {c.name for c, d in distance.items() if d[0].any()} == {
        run.ULP.name,
        run.ONCE.name,
        run.SEED.name,
    }
    assert all((d[1:] > 0).all() for d in distance.values())
    assert (distance[run.ULP][0] < 2**-20).all()
    assert (distance[run.ONCE][0] < 2**-11).all()  # half an ulp of TF32's 11 bits, relatively
    assert (distance[run.REORDERED][-1] < 1e-6).all()
    assert (distance[run.REORDERED][-1] * 10 < distance[run.TF32][-1]).all()
    assert (distance[run.TF32][-1] * 10 < distance[run.BATCHES][-1]).all()
    assert {file.name for file in tmp_path.iterdir()} >= {"distance.svg", "predictions.svg"}
    assert "A miniature" in capsys.readouterr().out


def test_the_net_with_gelu_is_the_cnn_but_for_its_activation(run):
    theirs = workloads.digits_cnn()
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(theirs.init, jax.random.key(0))
    params = jax.tree.map(lambda s: np.float32(rng.normal(0, 0.3, s.shape)), shapes)
    batch = jax.tree.map(lambda a: a[:8], theirs.test)
    nets = (theirs, run.cnn(nnx.relu), run.cnn())
    want, relu, gelu = jax.jit(lambda p, b: [net.loss(p, b) for net in nets])(params, batch)
    assert float(relu) == pytest.approx(float(want), rel=1e-5)
    assert abs(float(gelu) - float(want)) > 1e-3


def test_a_reordered_batch_has_the_same_examples_and_its_own_order_is_the_batch(run):
    narrow = run.narrow()
    images, labels = narrow.batches(jax.random.key(1))
    own = run.ordered(narrow, "own").batches(jax.random.key(1))
    drawn = run.ordered(narrow, "drawn").batches(jax.random.key(1))
    np.testing.assert_array_equal(own[0], images)
    np.testing.assert_array_equal(own[1], labels)
    assert (np.asarray(drawn[0]) != np.asarray(images)).any()
    rows = [np.column_stack([np.asarray(a) for a in batch]) for batch in ((images, labels), drawn)]
    np.testing.assert_array_equal(*(batch[np.lexsort(batch.T)] for batch in rows))


def test_predictions_are_those_of_the_logits(run):
    narrow = run.narrow()
    params = jax.vmap(narrow.init)(jax.random.split(jax.random.key(2), 2))
    images, _ = narrow.test
    hidden = np.maximum(images @ np.float64(params["first"]), 0)
    logits = hidden @ np.float64(params["last"])
    top = np.sort(logits, -1)
    clear = top[..., -1] - top[..., -2] > 1e-5
    assert clear.mean() > 0.99
    predicted = np.asarray(run.predictor(narrow)(params))
    np.testing.assert_array_equal(predicted[clear], logits.argmax(-1)[clear])


def test_the_exponent_tells_independent_kicks_from_steady_ones(run):
    looks = run.LOOKS
    noise = np.random.default_rng(0).standard_normal((601, 64))
    walk = np.abs(np.cumsum(noise, 0))
    steps = np.float64(looks)[:, None]
    assert run.exponent(looks, 3e-9 * steps**0.5) == pytest.approx(0.5)
    assert run.exponent(looks, 3e-9 * steps * np.ones(8)) == pytest.approx(1.0)
    assert run.exponent(looks, np.stack([walk[s] for s in looks])) == pytest.approx(0.5, abs=0.15)
    assert np.isnan(run.exponent(looks, 0 * steps))


def test_distances_are_relative_and_taken_in_float64(run):
    weights = np.float32([[3, 4], [1, 0]])
    moved = np.float32([[3, 4.5], [1, 1e-7]])
    np.testing.assert_allclose(run.distances(weights, moved), [0.1, 1e-7])
    assert not run.distances(weights, weights).any()


def test_page_and_findings_are_those_of_the_record(run, record):
    page = (run.EXPERIMENT.folder / "README.md").read_text(encoding="utf-8")
    assert report.renewed(page, run.tables(record["parts"])) == page
    assert record["findings"] == [dataclasses.asdict(f) for f in run.findings(record["parts"])]
    assert not record["small"]


def test_the_noise_follows_from_the_record_by_hand(run, record):
    parts = record["parts"]
    for net in run.names(parts):
        tf32, reordered, seed = (
            np.abs(np.float64(parts[f"{net}: {name}"]["loss"][-1]))
            for name in ("TF32", "batch reordered", "another seed")
        )
        difference = tf32 - reordered
        half = scipy_stats.t.ppf(0.95, 7) * scipy_stats.sem(difference)
        found = run.excess(parts, net, run.TF32, "loss")
        assert (found.low, found.high) == pytest.approx(
            (difference.mean() - half, difference.mean() + half)
        )
        assert found.margin == pytest.approx(seed.mean() / 10)
        if difference.mean() - half > 0:
            assert run.noise(parts, net, run.TF32) == "above"


def test_where_a_control_does_not_hold_nothing_is_found(run, record):
    for change, value in ((run.AGAIN, 1e-12), (run.KEPT, 1e-12), (run.SEED, 0.1)):
        parts = copy.deepcopy(record["parts"])
        assert run.controls_hold(parts)
        parts[run.part(run.CNN, change)]["distance"][3][2] = value
        assert not run.controls_hold(parts)
        assert {f.verdict for f in run.findings(parts)} == {"undecided"}


def test_a_tf32_that_is_as_far_as_another_seed_is_not_confirmed(run, record):
    parts = copy.deepcopy(record["parts"])
    parts[run.part(run.CNN, run.TF32)] = parts[run.part(run.CNN, run.SEED)]
    verdicts = {f.claim: f.verdict for f in run.findings(parts)}
    assert verdicts["A1"] != "confirmed"
    assert run.noise(parts, run.CNN, run.TF32) == "above"
    assert not run.is_far_below(parts, run.CNN, run.TF32)
