import numpy as np
import pytest
from matplotlib.patches import StepPatch

from jprec import formats, report
from jprec.report import canvas
from jprec.report.format_values import steps

CHOICES = {
    "all": formats.names(),
    "training": ("fp32", "tf32", "bf16", "fp16"),
    "alike": ("e4m3", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"),
    "p3109": ("binary8p1ue", "binary8p4se", "binary8p7sf"),
    **{name: (name,) for name in ("fp64", "tf32", "e4m3fn", "e2m1fn", "e8m0fnu", "binary8p7se")},
}


def figure(names):
    with canvas.drawing():
        return report.formats_picture([formats.get(name) for name in names])


@pytest.mark.parametrize("names", CHOICES.values(), ids=CHOICES)
def test_no_text_is_cut_off_and_none_covers_another(names):
    assert canvas.text_faults(figure(names)) == []


def test_texts_are_at_least_nine_points_on_a_sheet_800_pixels_wide():
    drawn = figure(formats.names())
    assert drawn.get_size_inches()[0] * 72 == 800
    pixels = min(text.get_fontsize() for text in drawn.findobj(canvas.Text) if text.get_text())
    assert pixels * 72 / 96 >= 9


def test_the_same_picture_has_the_same_bytes(tmp_path):
    chosen = [formats.get("e4m3fn"), formats.get("e5m2")]
    for name in ("a.svg", "b.svg"):
        report.write_formats_picture(tmp_path / name, chosen)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert b"dc:date" not in first
    assert b'width="800"' in first


def test_the_window_of_a_format_is_drawn_to_scale():
    with canvas.drawing():
        drawn = report.stack([report.windows([formats.get("fp16"), formats.get("fp32")])])
    bars = [*drawn.axes[0].patches, *drawn.axes[0].artists]
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    assert [(round(a, 3), round(b, 3)) for a, b in spans] == [
        (-14, 15.999),
        (-24, -14),
        (-126, 128),
        (-149, -126),
    ]


def texts(drawn):
    return [text.get_text() for text in drawn.findobj(canvas.Text)]


@pytest.mark.parametrize("fmt", ["e4m3fn", "e5m2", "e2m1fn", "e8m0fnu", "binary8p4se", "fp16"])
def test_the_density_shows_how_many_values_there_are(fmt):
    fmt = formats.get(fmt)
    edges, counts = steps(fmt)
    values = formats.values(fmt)
    there = [((values >= 2.0**e) & (values < 2.0 ** (e + 1))).sum() for e in edges[:-1]]
    assert counts.tolist() == there
    assert sum(there) == (values > 0).sum()
    with canvas.drawing():
        drawn = report.stack([report.density([fmt])])
    (stairs,) = drawn.findobj(StepPatch)
    np.testing.assert_array_equal(stairs.get_data().values, np.log2(counts))


def test_the_density_of_all_formats_shows_those_of_the_page_and_names_the_others():
    drawn = figure(formats.names())
    assert len(drawn.findobj(StepPatch)) == 7
    (left_out,) = [text for text in texts(drawn) if text.startswith("Not drawn: ")]
    assert "e4m3," in left_out
    assert "e4m3fn," not in left_out
    assert "The values from 0 to 8 of the formats of up to 8 bits" in texts(drawn)


@pytest.mark.parametrize("fmt", ["e8m0fnu", "e2m1fn", "e4m3fn", "fp16"])
def test_the_density_fills_its_axes(fmt):
    with canvas.drawing():
        drawn = report.stack([report.density([formats.get(fmt)])])
    axis = drawn.axes[0]
    low, high = axis.get_ylim()
    assert (formats.get(fmt).mantissa_bits - low) / (high - low) > 0.6
    left, right = axis.get_xlim()
    edges = steps(formats.get(fmt))[0]
    assert (edges[-1] - edges[0]) / (right - left) > 0.9


def test_legends_name_what_there_is():
    scale = set(texts(figure(["e8m0fnu"])))
    assert not scale & {"sign", "fraction", "subnormal", "zero and subnormal", "zero"}
    assert {"exponent", "normal"} <= scale
    assert {"sign", "fraction", "subnormal", "zero and subnormal"} <= set(texts(figure(["fp16"])))


def test_several_formats_have_their_bits_drawn():
    assert "The bits, first to last" in texts(figure(["fp16", "bf16"]))


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in .svg, .png or .pdf, not in '.jpg'"):
        report.write_formats_picture(tmp_path / "a.jpg", [formats.get("fp16")])
