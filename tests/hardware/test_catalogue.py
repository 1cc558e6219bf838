"""The catalogue says what is known, how, and what is not."""

import dataclasses

import pytest

from jprec import formats, hardware

EVERY = [hardware.get(name) for name in hardware.names()]


@pytest.mark.parametrize("device", EVERY, ids=lambda device: device.name)
def test_every_fact_has_a_source_and_a_name_that_formats_knows(device):
    for fact in (*device.rates, *device.tensor_cores):
        assert fact.source
        assert fact.status in ("measured", "documented", "assumed")
    for core in device.tensor_cores:
        assert formats.get(core.input_format).name == core.input_format
        assert device.tensor_core(core.input_format, core.output_format) is core


@pytest.mark.parametrize("device", EVERY, ids=lambda device: device.name)
def test_a_device_is_hashable_and_found_by_its_name(device):
    assert {device: 1}[hardware.get(device.name)] == 1
    assert hardware.get(device) is device


def test_blocks_are_those_of_table_2_1_of_khattak_and_mikaitis():
    table = {
        ("v100", "fp16"): (4, 23, -131),
        ("a100", "fp16"): (8, 24, -132),
        ("a100", "bf16"): (8, 24, -132),
        ("a100", "tf32"): (4, 24, -132),
        ("ada", "tf32"): (4, 24, -132),
        ("h100", "bf16"): (16, 25, -133),
        ("h200", "tf32"): (8, 25, -133),
        ("b200", "fp16"): (16, 25, -133),
    }
    for (device, fmt), expected in table.items():
        core = hardware.get(device).tensor_core(fmt)
        assert (core.products, core.fraction_bits, core.min_exponent) == expected
        assert core.final_rounding == "toward_zero"
    half = hardware.get("a100").tensor_core("fp16", "fp16")
    assert (half.min_exponent, half.final_rounding) == (-20, "nearest_even")


def test_rates_are_dense_and_found_by_any_spelling_of_the_format():
    a100 = hardware.get("a100")
    assert [a100.rate(fmt).teraflops for fmt in ("float32", "tf32", "bfloat16")] == [19.5, 156, 312]


def test_unknown_names_say_what_is_close_and_what_is_known():
    with pytest.raises(ValueError, match="did you mean a100"):
        hardware.get("A100x")
    with pytest.raises(ValueError, match=r"multiplies tf32 and accumulates in fp32.*fp16 to fp32"):
        hardware.get("v100").tensor_core("tf32")
    with pytest.raises(ValueError, match="no peak rate with a source is known for fp16"):
        hardware.get("v100").rate("fp16")


def test_descriptions_are_checked_when_they_are_built():
    core = hardware.get("a100").tensor_core("tf32")
    with pytest.raises(ValueError, match="status='guessed'"):
        dataclasses.replace(core, status="guessed")
    with pytest.raises(ValueError, match="output_format='bf16'"):
        dataclasses.replace(core, output_format="bf16")
    with pytest.raises(ValueError, match="products=0"):
        dataclasses.replace(core, products=0)
    rate = hardware.get("a100").rate("tf32")
    with pytest.raises(ValueError, match="'tfloat32' is not the name"):
        dataclasses.replace(rate, format="tfloat32")
    with pytest.raises(ValueError, match="teraflops=0"):
        dataclasses.replace(rate, teraflops=0)
