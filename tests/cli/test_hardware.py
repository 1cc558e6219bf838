import json

import pytest

from jprec import hardware
from jprec.cli import main


def run(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(["hardware", *words])
    printed = capsys.readouterr()
    return end.value.code, printed.out, printed.err


def test_every_device_has_a_line(capsys):
    status, printed, _ = run(capsys)
    lines = printed.splitlines()
    assert status == 0
    assert [line.split()[0] for line in lines[3:-2]] == list(hardware.names())
    assert "156" in next(line for line in lines if line.startswith("a100"))


@pytest.mark.parametrize("device", hardware.names())
def test_one_device_names_a_source_for_every_fact(capsys, device):
    _, printed, _ = run(capsys, device)
    known = hardware.get(device)
    facts = [*known.rates, *known.tensor_cores, known.bandwidth]
    assert all(fact.source in printed and fact.status in printed for fact in facts)


def test_machines_get_all_of_it_and_bad_input_one_line(capsys):
    _, printed, _ = run(capsys, "l40s", "--json")
    assert json.loads(printed)[0]["bandwidth"]["terabytes"] == 0.864
    status, _, said = run(capsys, "a1000")
    assert (status, said.count("\n")) == (2, 1)
    assert "did you mean a100" in said
