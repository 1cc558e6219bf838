import math

import pytest

from jprec import records, report


def test_reads_every_cell_in_the_order_of_the_study(study_folder):
    study = report.read_study(study_folder)
    assert [s.name for s in study.settings] == ["hot", "cold", "autoencoder"]
    assert len(study.cells) == 21
    assert study.missing == ()
    assert [c.arm for c in study.cells if c.setting == "autoencoder"] == [
        "fp32", "mixed_fp16", "mixed_fp16_underscaled", "fp32_underscaled",
    ]  # fmt: skip


def test_a_cell_without_a_result_is_missing_with_its_reason(make_study):
    folder = make_study(skip=["hot/tf32", "cold/fp32"])
    records.Journal(folder / "journal.jsonl").append("started", cell="cold/fp32")
    study = report.read_study(folder)
    assert [(m.setting, m.arm, m.reason) for m in study.missing] == [
        ("hot", "tf32", "failed"),
        ("cold", "fp32", "not finished"),
    ]


def test_non_finite_losses_come_back_as_floats(make_study):
    def change(setting, arm, result):
        if (setting, arm) == ("hot", "tf32"):
            result["test_loss"][:2] = [math.nan, math.inf]
            result["curve"]["test_loss"][-1][:2] = [math.nan, -math.inf]

    cell = report.read_study(make_study(change=change)).cell("hot", "tf32")
    assert math.isnan(cell.test_loss[0])
    assert cell.test_loss[1] == math.inf
    assert cell.curve.test_loss[-1][1] == -math.inf


def test_environment_is_told_in_words(study_folder):
    environment = dict(report.read_study(study_folder).environment)
    assert environment["devices"] == "cpu"
    assert environment["x64"] == "off"
    assert environment["flags"] == ""


def test_a_folder_without_a_study_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"no study\.json"):
        report.read_study(tmp_path)


def test_another_schema_is_an_error(make_study):
    folder = make_study()
    records.write_json(folder / "study.json", {"schema": 99})
    with pytest.raises(ValueError, match="schema 99"):
        report.read_study(folder)


def test_a_missing_field_is_named_with_its_file(make_study):
    def change(setting, arm, result):
        if (setting, arm) == ("cold", "bf16_kahan"):
            del result["weights_sha256"]

    with pytest.raises(ValueError, match=r"bf16_kahan.*'weights_sha256'"):
        report.read_study(make_study(change=change))


def test_losses_and_seeds_of_unequal_number_are_an_error(make_study):
    def change(setting, arm, result):
        if (setting, arm) == ("hot", "tf32"):
            result["test_loss"].pop()

    with pytest.raises(ValueError, match="7 entries in test_loss, but 8 seeds"):
        report.read_study(make_study(change=change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baseline": "fp64"}, "baseline"),
        ({"arms": [{"name": "fp32", "role": "king"}]}, "role 'king'"),
        ({"arms": [{"name": "fp32", "role": "claim"}]}, "one baseline"),
        (
            {"arms": [{"name": "fp32"}, {"name": "a", "role": "twin", "twin_of": "b"}]},
            "twin of 'b'",
        ),
    ],
)
def test_a_setting_that_contradicts_itself_is_an_error(make_study, change, message):
    folder = make_study()
    study = records.read_json(folder / "study.json")
    setting = study["settings"][0]
    arms = [{**setting["arms"][0], **arm} for arm in change.get("arms", setting["arms"])]
    study["settings"] = [{**setting, **change, "arms": arms}]
    records.write_json(folder / "study.json", study)
    with pytest.raises(ValueError, match=message):
        report.read_study(folder)


def test_a_study_that_has_only_begun_says_how_to_go_on(make_study):
    folder = make_study()
    study = records.read_json(folder / "study.json")
    del study["settings"]
    records.write_json(folder / "study.json", study)
    with pytest.raises(ValueError, match=r"no settings yet.*finished cells are kept"):
        report.read_study(folder)
