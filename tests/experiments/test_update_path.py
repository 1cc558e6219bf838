"""The experiment in miniature, its closed forms, and its page in step with its record."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jprec import records, report
from jprec.optim import LostUpdates


@pytest.fixture
def run(experiment):
    return experiment("update_path")


@pytest.fixture
def record(run):
    return records.read_json(run.EXPERIMENT.folder / "results" / "results.json")


def test_the_miniature_runs_and_masters_are_fp32_weights_bit_for_bit(run, tmp_path, capsys):
    assert run.EXPERIMENT.main(["--small", "--out", str(tmp_path)]) == 0
    parts = records.read_json(tmp_path / "results.json")["parts"]
    assert parts["fp16_master"]["weights"] == parts["fp16_mixed"]["weights"]
    assert parts["fp16_nearest"]["weights"] != parts["fp16_mixed"]["weights"]
    assert (tmp_path / "damage.svg").is_file()
    # A larger rate makes larger updates of the same weights.
    cold, hot = (np.mean(row) for row in parts["fp16_nearest"]["updates"]["fp16"]["early_lost"])
    assert hot < cold / 4
    assert parts["fp32"]["loss"][0] != parts["fp32"]["loss"][1]
    assert "A miniature" in capsys.readouterr().out


@pytest.mark.parametrize(("fmt", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_an_update_is_lost_from_the_ratio_on_that_the_closed_form_gives(run, fmt, dtype):
    for exponent in (-3, 0, 4):
        values = np.arange(2.0**exponent, 2.0 ** (exponent + 1), 2.0 ** (exponent - 5))
        for weight in values.astype(dtype):
            ratio = run.least_ratio_lost(float(weight), fmt)
            for factor, moves in ((0.999, True), (1.001, False)):
                update = np.float32(float(weight) / (factor * ratio))
                assert ((np.float32(weight) + update).astype(dtype) != weight) == moves
    assert run.least_ratio_lost(-1.5, fmt) == run.least_ratio_lost(1.5, fmt)


def test_the_ratio_falls_with_the_weight_below_the_normal_range(run):
    assert run.least_ratio_lost(2.0**-14, "fp16") == 2048
    assert run.least_ratio_lost(0.0, "fp16") == 0
    for ulps in (1, 3, 1000):
        weight = np.float16(ulps * 2.0**-24)
        assert run.least_ratio_lost(float(weight), "fp16") == 2 * ulps
        for factor, moves in ((0.999, True), (1.001, False)):
            update = np.float32(2.0**-25 / factor)
            assert (np.float16(np.float32(weight) + update) != weight) == moves


def test_a_look_counts_what_is_lost_moved_and_far(run):
    # The ulp of 1 is 2**-10, of 1.5 too: half of it is 2048 and 3072 times smaller.
    weights = jnp.float16([1.0, 1.5, 1.5, 1.5, 0.0])
    updates = jnp.float32([2.0**-12, 2.0**-12, 2.0**-11 * 1.2, 2.0**-5, 2.0**-24])
    found = run.look("fp16")({"w": weights[None]}, {"w": updates[None]})
    assert found.ratio[0].tolist() == [[0, 2], [2, 1]]  # the third is far, and moves
    assert LostUpdates(found.counts[0]).lost == pytest.approx(0.4)
    assert found.lost_size[0] / found.size[0] == pytest.approx(2.0**-11 / float(updates.sum()))


def test_fp32_weights_are_rounded_for_the_count_alone(run):
    weights, updates = jnp.float32([[1.0003, 3.0]]), jnp.float32([[1e-4, 1e-2]])
    found = run.look("bf16")({"w": weights}, {"w": updates})
    again = run.look("bf16")({"w": weights.astype(jnp.bfloat16)}, {"w": updates})
    assert np.array_equal(found.counts, again.counts)
    assert LostUpdates(found.counts[0]).lost == 0.5


def test_a_trimmed_histogram_keeps_its_place(run):
    counts = np.zeros(128, int)
    counts[[60, 63]] = 5, 7  # exponents -4 and -1
    assert run.trimmed(counts) == {"first": -4, "counts": [5, 0, 0, 7]}
    assert run.trimmed(np.zeros(128, int))["counts"] == []


def parts_of(losses, lost, *, rates=(1e-3, 1e-2)):
    """Parts of a record: arm -> final loss at each rate, the same for all seeds but for a bit."""
    spread = np.linspace(-1e-3, 1e-3, 8)
    chosen = {"rates": list(rates), "steps": 10, "early": [10], "images": 10, "guess": 2.3}
    edge = {"rates": [0.1], "loss": [[0.5]]}
    pilot = {"loss": [np.linspace(0, 1, 32).tolist()] * len(rates)}  # δ is 0.15
    parts = {"setting": chosen, "edge": edge, "pilot": pilot}
    for name, row in losses.items():
        fmt = name.partition("_")[0]
        shares = {"early_lost": [[share] for share in lost.get(fmt, (0.9, 0.1))]}
        counted = {f: shares | {"ratio": [[0, 1], [1, 0]]} for f in ("fp16", "bf16")}
        parts[name] = {
            "start": 2.5,
            "loss": [(loss + k * spread).tolist() for k, loss in enumerate(row)],
            "wrong": [1] * len(rates),
            "skipped": [0] * len(rates),
            "weights": name.replace("mixed", "master"),
            "updates": counted,
        }
    return parts


SAME = {"fp32": (0.5, 0.2), "fp32_one_ulp": (0.5, 0.2)} | {
    f"{fmt}_{store}": (0.5, 0.2)
    for fmt in ("fp16", "bf16")
    for store in ("mixed", "master", "stochastic", "kahan")
}


def test_claims_rest_on_controls_and_on_rates_that_decide(run):
    worse = SAME | {"fp16_nearest": (1.0, 0.2), "bf16_nearest": (1.5, 0.3)}
    verdicts = {f.claim: f.verdict for f in run.findings(parts_of(worse, {}))}
    assert verdicts == {"M3.1": "corrected", "B11": "confirmed", "B9": "corrected"}
    # Nearest BF16 that does no harm shows that the experiment shows nothing.
    harmless = run.findings(parts_of(worse | {"bf16_nearest": (0.5, 0.2)}, {}))
    assert {f.verdict for f in harmless} == {"undecided"}
    other = parts_of(worse, {})
    other["fp16_master"]["weights"] = "others"
    assert {f.verdict for f in run.findings(other)} == {"undecided"}
    # An ulp that makes a difference takes its rate out of the claims.
    outcome = run.Outcome(parts_of(worse | {"fp32_one_ulp": (0.5, 0.9)}, {}))
    assert outcome.deciding == [0]
    assert not any(j.met for (_, at), j in outcome.verdicts.items() if at == 1)
    spoilt = parts_of(worse | {"fp16_master": (0.5, 0.9)}, {})
    assert {f.claim: f.verdict for f in run.findings(spoilt)}["B11"] == "corrected"


def test_a_prediction_is_contradicted_by_damage_without_loss_and_loss_without_damage(run):
    worse = SAME | {"fp16_nearest": (1.0, 0.2), "bf16_nearest": (1.5, 0.8)}
    lost = {"fp16": (0.9, 0.1), "bf16": (0.9, 0.9)}
    assert run.contradictions(run.Outcome(parts_of(worse, lost))) == []
    lost = {"fp16": (0.9, 0.6), "bf16": (0.5, 0.9)}
    found = run.contradictions(run.Outcome(parts_of(worse, lost)))
    assert found == ["fp16 at 0.01", "bf16 at 0.001"]


def test_the_share_of_progress_lost_is_one_where_nothing_was_learnt(run):
    outcome = run.Outcome(parts_of(SAME | {"fp16_nearest": (2.5, 0.2)}, {}))
    assert [outcome.progress_lost("fp16_nearest", at) for at in (0, 1)] == pytest.approx([1, 0])


def test_the_page_is_made_from_the_record(run, record):
    page = (run.EXPERIMENT.folder / "README.md").read_text(encoding="utf-8")
    assert not record["small"]
    assert report.renewed(page, run.tables(record["parts"])) == page
    assert [f.sentence for f in run.findings(record["parts"])] == [
        f["sentence"] for f in record["findings"]
    ]


def test_the_verdicts_follow_from_the_losses(run, record):
    parts = record["parts"]

    def interval(name, at):
        d = np.subtract(parts[name]["loss"][at], parts["fp32"]["loss"][at])
        half_width = 1.894578605 * np.std(d, ddof=1) / np.sqrt(8)  # t(7), 95 %
        return np.mean(d) - half_width, np.mean(d) + half_width

    margins = [np.std(row, ddof=1) / 2 for row in parts["pilot"]["loss"]]
    assert interval("bf16_nearest", 0)[0] > margins[0]  # the control
    for fmt in ("fp16", "bf16"):
        assert parts[f"{fmt}_master"]["weights"] == parts[f"{fmt}_mixed"]["weights"]
    outcome = run.Outcome(parts)
    assert outcome.deciding == list(range(len(margins) - 1))
    for at in outcome.deciding:
        low, high = interval("fp16_master", at)
        assert -margins[at] < low < high < margins[at]
    assert {f.claim: f.verdict for f in run.findings(parts)} == {
        f["claim"]: f["verdict"] for f in record["findings"]
    }


def test_the_last_judged_rate_is_the_last_stable_one_of_the_ladder(run, record):
    edge, guess = record["parts"]["edge"], record["parts"]["setting"]["guess"]
    stable = [run.is_stable(records.as_floats(row), guess) for row in edge["loss"]]
    last = stable.index(False) - 1
    assert edge["rates"][last] == record["parts"]["setting"]["rates"][-1]
    assert not any(stable[last + 1 :])


def test_the_text_says_what_the_record_holds(run, record):
    parts, outcome = record["parts"], run.Outcome(record["parts"])
    guess = parts["setting"]["guess"]
    (broken,) = np.flatnonzero(np.asarray(outcome.losses("fp32", -1)) > guess)
    assert max(outcome.losses("fp32_one_ulp", -1)) < guess / 2, broken
    for fmt, at, _ in outcome.predicted:
        counted = [
            outcome.measure(arm, "early_lost", at, fmt) for arm in ("fp32", f"{fmt}_nearest")
        ]
        assert abs(counted[0] - counted[1]) < 0.01
        if at in outcome.deciding:  # most are lost at the end, damage or not
            assert outcome.measure(f"{fmt}_nearest", "last_lost", at) > 0.5
    for fmt in ("fp16", "bf16"):  # each measure orders the damage without exception
        damage = [outcome.progress_lost(f"{fmt}_nearest", at) for at in outcome.deciding]
        for name in ("early_lost", "early_lost_size"):
            measured = [outcome.measure(f"{fmt}_nearest", name, at) for at in outcome.deciding]
            assert run.rank_correlation(measured, damage) == 1
