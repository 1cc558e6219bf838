import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from jprec import records, report

REBUILD = """
import sys
from jprec import report, stats
report.write_report(sys.argv[1])
print(sorted({"jax", "matplotlib.pyplot"} & set(sys.modules)))
"""


AUTOENCODER = ("fp32", "mixed_fp16", "mixed_fp16_underscaled", "fp32_underscaled")


@pytest.fixture(scope="module")
def html(study_folder):
    return report.write_report(study_folder).read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Collects ids, text outside styles, and the elements that are still open at the end."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.ids, self.open, self.words, self.tags = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)


def test_sections_come_in_order(html):
    marks = [
        "jprec study: converges",
        "Does training in TF32 and in mixed precision converge like FP32?",
        "All 11 claims hold.",
        'id="verdicts"', 'aria-labelledby="intervals-hot-title"', '<table class="cards"',
        'id="curves"', 'id="exponents"', "that FP16 would flush to zero after", 'id="scale"',
        'id="updates"', 'id="ran"', "jprec study run converges", "Are FP32 subnormals kept",
        "seeds 100–107", 'id="limits"', "Small models, few classes",
    ]  # fmt: skip
    places = [html.index(mark) for mark in marks]
    assert places == sorted(places)


def test_every_row_says_its_verdict_and_where_it_ran(html):
    rows = re.findall(r'<tr role="row".*?</tr>', html, re.S)[1:]
    body = [row for row in rows if 'role="rowheader"' in row]
    assert len(body) == 21
    assert all("emulated on cpu" in row for row in body)
    verdicts = re.findall(r'class="verdict (\w+)"', html)
    assert {v: verdicts.count(v) for v in set(verdicts)} == {
        "none": 3, "equivalent": 11, "different": 5, "identical": 2,
    }  # fmt: skip


def test_margin_and_its_source_stand_with_the_table(html):
    assert "Margin δ = 0.0028: half the standard deviation of 32 pilot seeds" in html


def test_nothing_is_fetched_and_nothing_runs(html):
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html
    assert "<script" not in html
    assert not re.findall(r"https?:|@import|src=", html)
    assert {target[0] for target in re.findall(r'href="([^"]*)"', html)} == {"#"}
    assert {target[0] for target in re.findall(r"url\(([^)]*)\)", html)} == {"#"}


def test_the_page_is_well_formed_and_every_reference_has_its_target(html):
    outline = Outline(html)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    references = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)|labelledby="([^"]*)"', html)
    assert {name for found in references for name in found if name} <= set(outline.ids)


def test_every_picture_has_a_role_and_a_title(html):
    svgs = re.findall(r"<svg [^>]*>\s*<title[^>]*>[^<]{20,}</title>", html)
    assert len(svgs) == html.count("<svg") > 30
    assert all('role="img"' in svg for svg in svgs)


def test_colours_of_pictures_follow_the_page(html):
    assert "prefers-color-scheme: dark" in html
    drawn = re.sub(r"var\(--\w+, #\w{6}\)", "", "".join(re.findall(r"<svg.*?</svg>", html, re.S)))
    assert not re.findall(r"(?:fill|stroke): #", drawn)


def test_the_same_records_give_the_same_bytes_without_jax_or_pyplot(make_study):
    folder = make_study(only=["autoencoder"])
    here = report.page(report.read_study(folder))
    run = subprocess.run(
        [sys.executable, "-c", REBUILD, str(folder)],
        env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Pacific/Auckland"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "[]\n"
    assert (folder / "report.html").read_text(encoding="utf-8") == here


def test_what_a_study_says_is_escaped(make_study):
    folder = make_study(only=["autoencoder"], skip=[f"autoencoder/{arm}" for arm in AUTOENCODER])
    study = records.read_json(folder / "study.json")
    records.write_json(folder / "study.json", {**study, "question": "<script>alert(1)</script>"})
    page = report.page(report.read_study(folder))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_study_with_nothing_finished_still_has_a_page(make_study):
    folder = make_study(only=["autoencoder"], skip=[f"autoencoder/{arm}" for arm in AUTOENCODER])
    page = report.page(report.read_study(folder))
    assert "4 of 4 cells have no result yet" in page
    assert "Nothing has run yet." in page
    assert "No loss curve was recorded." in page
    assert Outline(page).open == []


def test_broken_and_missing_arms_are_on_the_page(make_study):
    def change(setting, arm, result):
        result["histograms"] = None
        if arm == "mixed_fp16":
            result["test_loss"] = [math.nan] * 8
            for point in result["curve"]["test_loss"][4:]:
                point[:] = [math.nan] * 8

    skip = ["autoencoder/fp32_underscaled"]
    folder = make_study(only=["autoencoder"], change=change, skip=skip)
    page = report.page(report.read_study(folder))
    assert "no interval: 8 of 8 runs diverged" in page
    assert "not finite from here" in page
    assert "autoencoder / fp32_underscaled: failed" in page
    assert "✗ not met" in page
    assert "No histogram was recorded." in page
