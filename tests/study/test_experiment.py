import contextlib

import pytest

from jprec import records, report
from jprec.study import Experiment, Finding

PAGE = "# toy\n\n<!-- generated: numbers -->\nold\n<!-- end: numbers -->\n"


@pytest.fixture
def toy(tmp_path):
    """An experiment in a folder of its own, with the list of parts that ran."""
    (tmp_path / "toy").mkdir()
    script = tmp_path / "toy" / "run.py"
    script.write_text("# what runs")
    (script.parent / "README.md").write_text(PAGE)
    ran = []

    def part(name, value):
        def compute():
            ran.append(name)
            if value is KeyboardInterrupt and ran.count(name) == 1:
                raise KeyboardInterrupt
            return [1.0, float("nan")] if value is KeyboardInterrupt else value

        return compute

    return ran, Experiment(
        file=str(script),
        question="Does it run?",
        parts=lambda small: {
            "first": part("first", 1 if small else 2),
            "second": part("second", KeyboardInterrupt),
        },
        tables=lambda parts: {"numbers": f"first {parts['first']}, {parts['second']}"},
        figures=lambda parts: {
            "toy.svg": report.plot(
                [
                    report.Panel(
                        title="toy",
                        x="x",
                        y="y",
                        curves=[report.Curve(name="a", x=[1, 2], y=[parts["first"], 3])],
                    )
                ]
            )
        },
        findings=lambda parts: [Finding(claim="A1", verdict="confirmed", sentence="It runs.")],
    )


def test_an_interrupted_run_goes_on_where_it_was_and_leaves_a_record(toy, capsys):
    ran, experiment = toy
    assert experiment.main([]) == 130
    assert "the next run goes on" in capsys.readouterr().out
    assert experiment.main([]) == 0
    assert ran == ["first", "second", "second"]
    results = experiment.folder / "results"
    record = records.read_json(results / "results.json")
    assert record["parts"] == {"first": 2, "second": [1.0, "NaN"]}
    assert record["findings"][0]["claim"] == "A1"
    assert record["where"] == "emulated on a CPU"
    assert sorted(path.name for path in results.iterdir()) == ["results.json", "toy.svg"]
    page = (experiment.folder / "README.md").read_text()
    assert page == PAGE.replace("old", "first 2, [1.0, 'NaN']")


def test_a_changed_script_or_another_size_begins_again(toy):
    ran, experiment = toy
    assert experiment.main(["--small"]) == 130
    (experiment.folder / "run.py").write_text("# something else")
    assert experiment.main(["--small"]) == 0
    assert ran == ["first", "second", "first", "second"]


def test_a_miniature_leaves_the_page_alone_and_says_so(toy, capsys):
    _, experiment = toy
    with contextlib.suppress(KeyboardInterrupt):
        experiment.main(["--small"])
    assert experiment.main(["--small"]) == 0
    assert (experiment.folder / "README.md").read_text() == PAGE
    assert "A miniature" in capsys.readouterr().out


def test_tables_and_figures_are_made_again_from_the_record_without_running(toy):
    ran, experiment = toy
    experiment.main([])
    experiment.main([])
    figure = (experiment.folder / "results" / "toy.svg").read_bytes()
    (experiment.folder / "README.md").write_text(PAGE)
    assert experiment.main(["--rebuild"]) == 0
    assert len(ran) == 3
    assert "first 2" in (experiment.folder / "README.md").read_text()
    assert (experiment.folder / "results" / "toy.svg").read_bytes() == figure
