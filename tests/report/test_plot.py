import math

import pytest

from jprec import report
from jprec.report import Curve, Mark, Panel, canvas


def panel(**more):
    curves = [
        Curve(
            name="fp16", x=[-4, 0, 4], y=[1.0, 0.1, math.inf], low=[0.5, 0.05, 1], high=[2, 1, 1]
        ),
        Curve(name="bf16", x=[-4, 0, 4], y=[0.1, 0.1, 0.1], kind="plain"),
        Curve(name="zeros", x=[-4, 0, 4], y=[0.0, 0.2, 0.3], kind="steps"),
    ]
    fields = {"title": "loss", "x": "log2 S", "y": "test loss", "curves": curves} | more
    return Panel(**fields)


@pytest.mark.parametrize("count", [1, 3])
def test_no_text_is_cut_off_or_covered(count):
    marks = [Mark(x=(-2, 2), label="plateau"), Mark(y=0.3, label="guessing"), Mark(x=3.0)]
    with report.drawing():
        figure = report.plot(
            [panel(y_scale="log10", marks=marks)] * count, title="bathtub", columns=2
        )
        assert canvas.text_faults(figure) == []


def test_what_a_logarithm_cannot_show_and_what_is_not_finite_is_left_out():
    with report.drawing():
        axis = report.plot([panel(y_scale="log2")]).axes[0]
    assert [line.get_xdata().tolist() for line in axis.lines] == [[-4, 0], [-4, 0, 4], [0, 4]]


def test_a_name_has_one_colour_in_all_panels():
    other = panel(curves=[Curve(name="bf16", x=[1], y=[1])])
    with report.drawing():
        first, second = report.plot([panel(), other], columns=2).axes
    assert first.lines[1].get_color() == second.lines[0].get_color()


def test_the_same_panels_give_the_same_bytes(tmp_path):
    for name in ("a.svg", "b.svg"):
        report.write_plot(tmp_path / name, [panel()], title="twice")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Curve(name="a", x=[1], y=[1, 2]), "one value each"),
        (lambda: Curve(name="a", x=[1], y=[1], low=[0]), "two ends"),
        (lambda: Mark(label="a"), "x or y"),
        (lambda: report.plot([]), "without panels"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(make, says):
    with pytest.raises(ValueError, match=says):
        make()
