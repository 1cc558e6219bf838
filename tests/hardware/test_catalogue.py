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
        ("t4", "fp16"): (8, 24, -132),
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


@pytest.mark.parametrize("fmt", ["e4m3fn", "e5m2"])
def test_fp8_blocks_are_those_of_khattak_and_mikaitis_and_of_mma_sim(fmt):
    table = {
        "ada": (16, 13, -132, "e8m13", False),
        "h100": (32, 13, -133, "e8m13", False),
        "h100_mma": (16, 25, -133, "fp32", True),
        "b200": (32, 25, -133, "fp32", False),
        "b200_mma": (16, 25, -133, "fp32", True),
    }
    for device, expected in table.items():
        core = hardware.get(device).tensor_core(fmt)
        parts = (core.products, core.fraction_bits, core.min_exponent, core.sum_format)
        assert (*parts, core.interleaved) == expected
        half = hardware.get(device).tensor_core(fmt, "fp16")
        assert half.min_exponent == core.min_exponent + 112
        assert (half.sum_format, half.products) == ("fp16", core.products)
    for device in ("v100", "t4", "a100"):
        with pytest.raises(ValueError, match=f"{device} .*multiplies {fmt}"):
            hardware.get(device).tensor_core(fmt)


def test_synonyms_name_the_same_device():
    assert hardware.get("l40s") is hardware.get("ada")
    assert hardware.get("h200_mma") is hardware.get("h100_mma")
    h200 = hardware.get("h200")
    assert h200.tensor_core("fp8_e5m2") is h200.tensor_core("e5m2")


def test_blocks_that_add_alike_are_equal_whatever_is_known_about_them():
    t4, a100 = (hardware.get(name).tensor_core("fp16") for name in ("t4", "a100"))
    assert t4.source != a100.source
    assert (t4, hash(t4)) == (a100, hash(a100))


def test_rates_are_dense_and_found_by_any_spelling_of_the_format():
    a100 = hardware.get("a100")
    assert [a100.rate(fmt).teraflops for fmt in ("float32", "tf32", "bfloat16")] == [19.5, 156, 312]


def test_unknown_names_say_what_is_close_and_what_is_known():
    with pytest.raises(ValueError, match="did you mean a100"):
        hardware.get("A100x")
    with pytest.raises(ValueError, match=r"multiplies tf32 and accumulates in fp32.*fp16 to fp32"):
        hardware.get("v100").tensor_core("tf32")
    with pytest.raises(ValueError, match="no peak rate with a source is known for tf32"):
        hardware.get("v100").rate("tf32")


def test_descriptions_are_checked_when_they_are_built():
    core = hardware.get("a100").tensor_core("tf32")
    with pytest.raises(ValueError, match="status='guessed'"):
        dataclasses.replace(core, status="guessed")
    with pytest.raises(ValueError, match="output_format='bf16'"):
        dataclasses.replace(core, output_format="bf16")
    with pytest.raises(ValueError, match="products=0"):
        dataclasses.replace(core, products=0)
    with pytest.raises(ValueError, match="sum_format='fp16', but sums are stored in fp32"):
        dataclasses.replace(core, sum_format="fp16")
    with pytest.raises(ValueError, match="products=3, but interleaved"):
        dataclasses.replace(core, products=3, interleaved=True)
    rate = hardware.get("a100").rate("tf32")
    with pytest.raises(ValueError, match="'tfloat32' is not the name"):
        dataclasses.replace(rate, format="tfloat32")
    with pytest.raises(ValueError, match="teraflops=0"):
        dataclasses.replace(rate, teraflops=0)
