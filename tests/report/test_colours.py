import re
from pathlib import Path

import pytest

from jprec import report
from jprec.report import canvas


def luminance(colour):
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def schemes():
    """The colours of the page by name, in light and in dark mode."""
    css = (Path(report.__file__).parent / "templates" / "report.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    return [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks]


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
def test_every_colour_of_text_stands_out_from_page_and_card(scheme):
    for name in ("ink", "faint", "blue", "vermillion", "green", "purple"):
        assert contrast(scheme[name], scheme["page"]) >= 4.5, name
        assert contrast(scheme[name], scheme["card"]) >= 4.5, name


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark"])
def test_both_modes_name_every_colour_of_the_pictures(scheme):
    assert set(canvas.COLOURS) <= set(scheme)
