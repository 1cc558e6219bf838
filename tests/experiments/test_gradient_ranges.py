"""The experiment in miniature, its closed forms, and its page in step with its record."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jprec import records, report


@pytest.fixture
def run(experiment):
    return experiment("gradient_ranges")


@pytest.fixture
def record(run):
    return records.read_json(run.EXPERIMENT.folder / "results" / "results.json")


def test_the_miniature_counts_what_a_hand_made_gradient_has(run, tmp_path, capsys):
    assert run.EXPERIMENT.main(["--small", "--out", str(tmp_path)]) == 0
    parts = records.read_json(tmp_path / "results.json")["parts"]
    holds = run.controls(parts)
    # The third, that E4M3 fails, is for trained models.
    assert [*holds.values()] == [True, True, True, False, True]
    workload = run.shallow()
    params = [workload.init(run.training.key_for(seed, workload.name, "init")) for seed in range(2)]
    kernels = np.stack([by_seed["down"]["kernel"] for by_seed in params])
    (found,) = run.tensors(parts, "shallow", "weights", step=0, layer="down")
    exponents = np.frexp(kernels)[1] - 1
    assert run.histogram([found]) == {
        int(e): int((exponents == e).sum()) for e in range(exponents.min(), exponents.max() + 1)
    }
    # The gradient of a unit that ReLU cut off is zero, and its activation is.
    zeros = [
        run.classes(parts, "shallow", kind, step=0, layer=layer).zero
        for kind, layer in (("activations", "up"), ("activation_gradients", "down"))
    ]
    assert zeros[0] == zeros[1] > 0
    assert {file.name for file in tmp_path.iterdir()} == {"atlas.svg", "shares.svg", "results.json"}
    assert "A miniature" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fmt", "dtype"),
    [("fp16", np.float16), ("e5m2", ml_dtypes.float8_e5m2), ("e4m3fn", ml_dtypes.float8_e4m3fn)],
)
def test_arrays_of_any_size_are_counted_as_a_cast_treats_them(run, fmt, dtype):
    rng = np.random.default_rng(0)
    x = np.float32(rng.standard_normal(5000) * 2.0 ** rng.integers(-40, 20, 5000))
    x[:7] = [0.0, -0.0, 2.0**-25, 65520.0, 65519.99, np.inf, np.nan]
    arrays = [x, x[:1], x[:0], x[:7]]
    small = run.formats.get(fmt).min_normal
    for array, row in zip(arrays, run.counted(arrays, fmt=fmt, exponent=3), strict=True):
        with np.errstate(all="ignore"):
            scaled = np.float64(array) * 8
            low = scaled.astype(dtype).astype(np.float64)
        finite, nonzero = np.isfinite(array), array != 0
        inside = finite & np.isfinite(low)
        want = [
            ~nonzero,
            inside & nonzero & (low == 0),
            inside & (low != 0) & (np.abs(low) < small),
            inside & (np.abs(low) >= small),
            finite & ~np.isfinite(low),
            np.isinf(array),
            np.isnan(array),
        ]
        assert row[:7].tolist() == [int(np.count_nonzero(w)) for w in want]
        assert row[7:].sum() == np.count_nonzero(finite & nonzero)


@pytest.mark.parametrize("counts", [[1, 1, 1], [668, 310, 53], [0, 0, 7], [1, 99999, 3, 5, 2]])
def test_printed_percentages_add_up(run, counts):
    printed = run.adding_up(counts)
    assert sum(round(float(p) * 100) for p in printed) == 100_00
    exact = [100 * n / sum(counts) for n in counts]
    assert all(abs(float(p) - e) < 0.01 for p, e in zip(printed, exact, strict=True))
    assert run.adding_up([0, 0]) == ["0.00", "0.00"]


def test_what_the_backward_pass_keeps_is_counted_once_and_without_parameters(run):
    w, x = jnp.ones((64, 10)), jnp.ones((32, 64))

    def loss(w, x):
        y = jnp.tanh(x @ w)
        return jnp.sum(y * y) + jnp.sum(w)

    kept = run.kept(loss, w, x)
    # x, y (for y * y) and the derivative of tanh; w itself is a parameter.
    assert run.size(kept) == 4 * (x.size + 2 * 32 * 10)
    assert run.size(run.kept(loss, w.astype("float16"), x.astype("float16"))) * 2 == run.size(kept)
    state = {"mu": w, "count": jnp.int32(3), "key": jax.random.PRNGKey(0), "scale": jnp.ones(())}
    assert run.size(run.numbers(state)) == 4 * w.size


def test_the_published_percentages_do_not_add_up_and_the_readings_do(run):
    rows = [line.split("|")[2:6] for line in run._published_table().splitlines()[2:]]
    sums = [sum(map(float, row[:3])) for row in rows]
    assert sums == pytest.approx([103.1, 100, 100, 100])
    assert [float(row[3]) for row in rows] == pytest.approx(sums)


def test_page_and_findings_are_those_of_the_record(run, record):
    page = (run.EXPERIMENT.folder / "README.md").read_text(encoding="utf-8")
    assert report.renewed(page, run.tables(record["parts"])) == page
    assert record["findings"] == [dataclasses.asdict(f) for f in run.findings(record["parts"])]
    assert not record["small"]


def test_the_record_is_whole_and_its_seeds_are_its_sums(run, record):
    parts = record["parts"]
    assert all(run.controls(parts).values())
    for name in run.MODELS:
        for kind in run.GRADIENTS:
            for e in run.SCALES:
                of = run.classes(parts, name, kind, exponent=e)
                by_seed = run.of_seeds(parts, name, kind, exponent=e)
                assert len(by_seed) == parts[name]["seeds"]
                assert sum(c.flushed for c in by_seed) == of.flushed
                assert sum(c.total for c in by_seed) == of.total
            found = run.histogram(run.tensors(parts, name, kind))
            assert sum(found.values()) == of.nonzero
            assert run.flushed_at(found, 0) == pytest.approx(
                run.classes(parts, name, kind).flushed_share, abs=1e-6
            )


@pytest.mark.parametrize("broken", ["a class", "FP32", "a zero", "E4M3", "a byte"])
def test_where_a_control_does_not_hold_nothing_is_found(run, record, broken):
    parts = copy.deepcopy(record["parts"])
    part = parts["digits-cnn"]
    tensor = run.tensors(parts, "digits-cnn", "updates")[0]
    if broken == "a class":
        tensor["numbers"] += 1
    elif broken == "FP32":
        zero, _, _, normal, *rest = run.numbers_of(tensor["in"]["fp32"])
        tensor["in"]["fp32"] = run.words([zero, 1, 0, normal - 1, *rest])
    elif broken == "a zero":
        part["zeros_of_fp32"][-1]["appear"] = 1
    elif broken == "E4M3":
        for t in run.tensors(parts, "digits-cnn", "activation_gradients", step=part["looks"][-1]):
            t["in"]["e4m3fn"] = t["in"]["bf16"]
    else:
        parts["memory"]["digits-cnn"]["bytes"]["fp32"]["moments"] += 4
    assert {f.verdict for f in run.findings(parts)} == {"undecided"}


def test_a_scale_that_overflows_or_leaves_zeros_does_not_work(run, record):
    parts = copy.deepcopy(record["parts"])

    def verdict():
        return run._factors(parts, "B12", run.NAMED).verdict

    def flush(key, share):
        for t in run.tensors(parts, "digits-cnn", "activation_gradients"):
            zero, flushed, subnormal, normal, *rest = run.numbers_of(t["in"][key])
            moved = int((normal + subnormal) * share)
            kept = normal + subnormal - moved
            t["in"][key] = run.words([zero, flushed + moved, 0, kept, *rest])

    assert verdict() == "undecided"  # no model loses more than 1 % without a scale
    flush("fp16", 0.5)
    assert verdict() == "confirmed"
    flush("fp16 2^5", 0.5)
    assert verdict() == "corrected"
    for e in run.NAMED:
        flush(f"fp16 2^{e}", 0.5)
    assert verdict() == "refuted in miniature"
