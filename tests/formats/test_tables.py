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
    for binade in formats.binades(formats.get(fmt)):
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
