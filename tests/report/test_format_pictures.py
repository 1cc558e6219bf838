import pytest

from jprec import formats, report
from jprec.report import canvas

CHOICES = {
    "all": formats.names(),
    "training": ("fp32", "tf32", "bf16", "fp16"),
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


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in .svg, .png or .pdf, not in '.jpg'"):
        report.write_formats_picture(tmp_path / "a.jpg", [formats.get("fp16")])
