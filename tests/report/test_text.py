import math

from jprec import report


def table_and_answer(folder):
    study = report.read_study(folder)
    rows = report.verdicts(study)
    return report.verdict_table(rows), report.answer(study, rows)


def test_the_table_has_a_line_for_each_arm_with_its_verdict(study_folder):
    table, _ = table_and_answer(study_folder)
    lines = {line.split()[0]: line for line in table.splitlines() if line.strip()}
    assert "equivalent" in lines["bf16_kahan"]
    assert "different (worse)" in lines["pure_bf16"]
    assert "identical" in lines["fp32_underscaled"]
    assert "emulated on cpu" in lines["hot:"]
    assert table.endswith("Every control did what it must.\n")


def test_no_line_is_wider_than_a_hundred_columns(make_study):
    def change(setting, arm, result):
        if arm == "mixed_fp16":
            result["test_loss"][0] = math.inf
        if arm == "tf32":
            result["emulated"] = False
        if arm == "pure_bf16":
            result["test_loss"] = [x * 1e9 for x in result["test_loss"]]

    table, _ = table_and_answer(make_study(change=change, skip=["hot/tf32@a100"]))
    assert max(map(len, table.splitlines())) == 100
    assert "1 of 8 runs diverged, 0 of fp32 (p = 1)" in table
    assert "NOT MET: expected equivalent, found undecided" in table
    assert "hardware (cpu)" in table
    assert "no result" in table


def test_the_answer_names_what_holds_and_that_controls_failed_as_they_must(study_folder):
    _, answer = table_and_answer(study_folder)
    assert answer.startswith("All 11 claims hold.")
    assert "bf16_stochastic and bf16_kahan, wherever they were tried" in answer
    assert "mixed_fp16_underscaled in hot and autoencoder; pure_bf16 in cold" in answer
    assert "so the comparison can see a difference where there is one" in answer
    assert "fp32_underscaled in hot and autoencoder equals fp32 bit for bit" in answer


def test_a_failed_control_comes_before_all_claims(make_study):
    def change(setting, arm, result):
        if (setting, arm) == ("cold", "pure_bf16"):
            result["test_loss"] = [x - 1.64 for x in result["test_loss"]]

    table, answer = table_and_answer(make_study(change=change))
    assert answer.startswith("This study shows nothing, because a control")
    assert "can see a difference" not in answer
    assert "A control did not do what it must" in table
    assert "cold/pure_bf16: undecided" in table


def test_an_unfinished_study_says_so_first(make_study):
    _, answer = table_and_answer(make_study(skip=["hot/tf32"]))
    assert answer.startswith("The study is not complete: 1 of 21 cells")


def test_a_claim_that_does_not_hold_is_named(make_study):
    def change(setting, arm, result):
        if arm == "mixed_bf16":
            result["test_loss"] = [x + 1 for x in result["test_loss"]]

    _, answer = table_and_answer(make_study(change=change))
    assert "9 of 11 claims hold." in answer
    assert "Claimed equivalent, found different (worse): mixed_bf16 in hot and cold." in answer
