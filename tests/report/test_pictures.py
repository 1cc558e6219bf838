import dataclasses

import pytest

from jprec import report
from jprec.report import canvas
from jprec.report.curves import curves
from jprec.report.exponents import WINDOWS, window
from jprec.report.html_page import pictures, setting_parts
from jprec.report.intervals import intervals
from jprec.report.picture import Picture
from jprec.report.traces import loss_scale_trace, static_scale, update_histogram


@pytest.fixture(scope="module")
def study(study_folder):
    return report.read_study(study_folder)


def draw(picture):
    with canvas.drawing():
        return picture.draw()


def test_no_text_is_cut_off_and_none_covers_another(study):
    parts = setting_parts(study, report.verdicts(study))
    drawn = {picture.name: canvas.text_faults(draw(picture)) for picture in pictures(parts)}
    assert len(drawn) > 30
    assert {name: faults for name, faults in drawn.items() if faults} == {}


def test_the_measure_of_texts_sees_what_is_cut_off_or_covered():
    with canvas.drawing():
        figure = canvas.sheet(100, 40)
        figure.text(0.5, 0.5, "much too long for it")
        figure.text(0.5, 0.5, "over")
    assert canvas.text_faults(figure) == [
        "'much too long for it' is cut off",
        "'much too long for it' and 'over' cover each other",
    ]


def test_a_long_name_is_shortened_where_it_does_not_fit(study):
    name = "a_policy_with_a_name_that_nobody_should_choose_but_somebody_will"
    rows = [dataclasses.replace(row, arm=name) for row in report.verdicts(study)]
    figures = [draw(intervals("hot", rows))]
    cell = dataclasses.replace(study.cell("cold", "pure_bf16"), arm=name, setting="cold")
    figures.append(draw(update_histogram(cell)))
    renamed = dataclasses.replace(study, cells=(study.cell("cold", "fp32"), cell))
    found = curves(renamed, study.settings[1], [r for r in rows if r.setting == "cold"])
    figures.append(draw(found[0][1]))
    assert [canvas.text_faults(figure) for figure in figures] == [[], [], []]


@pytest.mark.parametrize("size", [0.0, 9.0, 7e1, 6.5e3, 1.04e4, 3e9, 1e38])
def test_the_axis_of_intervals_fits_differences_of_every_size(study, size):
    rows = [
        dataclasses.replace(row, low=-size * row.margin, difference=0.0, high=size * row.margin)
        for row in report.verdicts(study)
        if row.arm == "pure_bf16"
    ]
    assert canvas.text_faults(draw(intervals("cold", rows))) == []


def test_losses_without_a_logarithm_get_a_linear_axis(study):
    cell = study.cell("autoencoder", "fp32")
    points = tuple(tuple(x - 0.2 for x in point) for point in cell.curve.test_loss)
    shifted = dataclasses.replace(cell, curve=dataclasses.replace(cell.curve, test_loss=points))
    only = dataclasses.replace(study, cells=(shifted,))
    ((_, picture),) = curves(only, study.settings[2], report.verdicts(study))
    figure = draw(picture)
    assert figure.axes[0].get_yscale() == "linear"
    assert canvas.text_faults(figure) == []


def test_windows_are_those_of_the_formats():
    assert {label: window(fmt) for fmt, label in WINDOWS} == {
        "FP16": (-24, -14, 15),
        "BF16": (-133, -126, 127),
        "E4M3": (-9, -6, 8),
        "E5M2": (-16, -14, 15),
    }


def test_a_scale_that_never_moves_has_no_trace(study):
    static = study.cell("hot", "mixed_fp16_underscaled")
    assert static_scale(static.loss_scale) == -18
    assert loss_scale_trace(static) is None
    moving = study.cell("hot", "mixed_fp16")
    assert static_scale(moving.loss_scale) is None
    assert "steps skipped per seed" in loss_scale_trace(moving).title


def test_an_svg_holds_no_date_no_name_of_its_maker_and_only_prefixed_ids():
    def one_line():
        figure = canvas.sheet(100, 60)
        axis = canvas.axes(figure, 20, 10, 70, 30)
        axis.plot([0, 1], [0, 1], color=canvas.BLUE, marker="o")
        return figure

    first, second = (
        Picture(name=name, title="A line.", draw=one_line).svg() for name in ("a", "b")
    )
    assert first.replace('"a-', '"b-').replace("#a-", "#b-") == second
    assert 'viewBox="0 0 100 60"' in first
    assert "var(--blue, #0072b2)" in first
    assert not any(word in first for word in ("matplotlib", "date", "xmlns", "font-family"))
