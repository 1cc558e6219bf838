import itertools
from fractions import Fraction

import numpy as np
import pytest

from jprec import formats


@pytest.mark.parametrize(
    "fmt", [name for name in formats.names() if formats.get(name).bits <= 16] + ["binary8p3ue"]
)
def test_binades_hold_the_positive_values(fmt):
    values = formats.values(fmt)
    positive = values[values > 0]
    found = []
    for binade in formats.binades(fmt):
        inside = positive[(positive >= float(binade.low)) & (positive < float(binade.high))]
        assert len(inside) == binade.values
        assert np.all(np.diff(inside) == float(binade.spacing))
        found.append(inside)
    assert np.array_equal(np.concatenate(found), positive)


def test_the_overview_has_a_line_for_each_format():
    text = formats.overview([formats.get(name) for name in formats.names()])
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    assert [line.split()[0] for line in lines[3:]] == list(formats.names())
    tf32 = next(line for line in lines if line.startswith("tf32")).split()
    assert tf32 == [
        *("tf32", "1+8+10", "11", "127", "-126", "…", "127", "3.4012e38", "1.1755e-38"),
        *("1.1479e-41", "2⁻¹¹", "3", "1024", "inf", "nan"),
    ]


@pytest.mark.parametrize("name", ["e2m1fn", "float16", "binary8p4se"])
def test_tables_take_names(name):
    fmt = formats.get(name)
    assert formats.binades(name) == formats.binades(fmt)
    assert formats.details(name) == formats.details(fmt)
    assert formats.facts(name) == formats.facts(fmt)
    assert formats.overview([name]) == formats.overview([fmt])
    assert "binades" not in formats.facts(name, with_binades=False)


@pytest.mark.parametrize("width", [50, 80, 118, 119])
def test_a_narrow_overview_is_in_parts_with_the_names_in_each(width):
    text = formats.overview(formats.names(), width)
    assert max(map(len, text.splitlines())) <= width
    parts = text.split("\n\n")
    assert (len(parts) == 1) == (width == 119)
    for part in parts:
        assert [line.split()[0] for line in part.splitlines()[3:]] == list(formats.names())
    assert {"smallest", "roundoff", "2⁻⁵³", "4.9407e-324"} <= set(text.split())


def test_what_is_rounded_stands_behind_the_sign_that_says_so():
    assert "largest         2047 × 2¹¹⁷ ≈ 3.401162134e38\n" in formats.details("tf32")
    assert "largest         65504 = 2047 × 2⁵\n" in formats.details("fp16")
    assert "precision       2 = 1 stored bit and the implicit 1\n" in formats.details("e2m1fn")


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3", "e5m2", "e2m1fn"])
def test_the_largest_relative_error_is_less_than_the_unit_roundoff(fmt):
    described = formats.get(fmt)
    u = Fraction(described.unit_roundoff)
    assert abs(formats.explain(1 + u, fmt).relative_error) == float(u / (1 + u))
    assert "at most u/(1 + u)" in formats.details(fmt)
    normal = [v for v in formats.values(fmt) if v >= described.min_normal]
    for low, high in itertools.pairwise(normal):
        tie = (Fraction(low) + Fraction(high)) / 2
        assert (tie - Fraction(low)) / tie <= u / (1 + u)


def test_one_format_is_shown_with_its_binades():
    text = formats.details(formats.get("fp16"))
    assert "digits          3 survive decimal → fp16 → decimal; p log₁₀2 = 3.31; 5 tell" in text
    assert "[2¹⁵, 2¹⁶)          1024  2⁵ = 32" in text
    assert len(text.splitlines()) == 13 + 1 + 31
    tf32 = formats.get("tf32")
    assert formats.details(tf32).count("…") == 2
    assert len(formats.details(tf32, every_binade=True).splitlines()) == 13 + 1 + 255


@pytest.mark.parametrize("fmt", [*formats.names(), "binary8p1ue", "binary8p7se", "binary3p1uf"])
def test_every_format_has_details_and_facts(fmt):
    described = formats.get(fmt)
    assert formats.details(described).startswith(described.name)
    facts = formats.facts(described)
    last = facts["binades"][-1]
    assert last["low"] <= described.max < last["low"] + last["spacing"] * 2**described.mantissa_bits


def test_a_format_without_a_binade_at_one_has_details():
    high = formats.FloatFormat(name="high", exponent_bits=6, mantissa_bits=1, bias=-10)
    assert "binade" in formats.details(high)
