"""The script for a GPU, run without one: its parts with a stand-in for the hardware."""

import functools
import json
import types

import jax
import numpy as np
import pytest

from jprec import matmul

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="here the CPU stands in for the hardware"
)


@pytest.fixture
def check(experiment):
    return experiment("device_check")


def run(check, tmp_path, capsys):
    status = check.main(["--out", str(tmp_path), "--rows", "300", "--largest", "0"])
    findings = json.loads((tmp_path / "findings.json").read_text())
    vectors = json.loads((tmp_path / "vectors.json").read_text())["vectors"]
    return status, findings, vectors, capsys.readouterr().err


def test_without_a_gpu_it_runs_to_its_end_and_says_what_is_missing(check, tmp_path, capsys):
    status, findings, vectors, said = run(check, tmp_path, capsys)
    assert (status, vectors, said) == (0, [], "")
    assert findings["emulation"].startswith("not available")
    assert findings["where"] == "no hardware checked"
    assert findings["probes"]["emulated_tf32"] == "yes"


def pretend(check, monkeypatch, product):
    """As if this were an A100 with this product for its own."""
    monkeypatch.setattr(check, "on_gpu", lambda: True)
    monkeypatch.setattr(check, "device_name", lambda: "a100")
    monkeypatch.setattr(check, "CHAINS", (64,))
    monkeypatch.setattr(check, "real_product", product)
    monkeypatch.setattr(check, "roundings", lambda until: {})


def emulated(name):
    return lambda a, b: np.asarray(
        jax.jit(functools.partial(matmul.matmul, spec=f"{name}@a100"))(a, b)
    )


def test_hardware_that_agrees_passes_and_its_vectors_are_kept(check, tmp_path, capsys, monkeypatch):
    pretend(check, monkeypatch, emulated)
    status, findings, vectors, said = run(check, tmp_path, capsys)
    assert (status, said) == (0, "")
    assert findings["emulation"]["tf32 one block"]["differ"] == 0
    assert findings["emulation"]["tf32 one block"]["rows"] >= 300
    assert findings["emulation"]["fp16 chain of 64"]["differ"] == 0
    assert all(vector["real"] == vector["emulated"] for vector in vectors)
    assert {vector["format"] for vector in vectors} >= {"tf32", "bf16", "fp16"}


def test_hardware_that_rounds_to_nearest_is_found_out(check, tmp_path, capsys, monkeypatch):
    pretend(check, monkeypatch, lambda name: lambda a, b: np.float32(np.float64(a) @ b))
    status, findings, _, said = run(check, tmp_path, capsys)
    assert status == 1
    assert "bf16 one block: emulation and hardware differ in" in said
    assert findings["emulation"]["fp16 one block"]["differ"] > 0


def test_a_part_that_fails_is_a_finding_and_stops_no_other(check, tmp_path, capsys, monkeypatch):
    def broken(name):
        raise RuntimeError("no such algorithm\nmore")

    pretend(check, monkeypatch, broken)
    status, findings, _, said = run(check, tmp_path, capsys)
    assert status == 1  # a block that was not compared has not agreed
    assert "tf32 one block was not compared" in said
    failed = "failed: RuntimeError: no such algorithm"
    assert findings["emulation"]["tf32 one block"] == failed


def test_the_probes_tell_the_roundings_apart(check):
    def product(spec):
        return check.rounding_of(lambda a, b: matmul.matmul(a, b, spec), 16)

    def means(spec):
        found = product(spec)
        return found["square"]["means"], found["tie"]["means"]

    assert means("fp32") == (["no TF32"], ["no TF32"])
    assert means("tf32@a100") == (["TF32, to nearest"], ["away from zero"])
    assert means("tf32:nearest_even@a100") == (["TF32, to nearest"], ["even or truncated"])
    assert means("tf32:toward_zero@a100")[0] == ["TF32, truncated"]


def test_convolutions_are_asked_for_a_matrix_product(check):
    a, b = np.float32(np.random.default_rng(0).standard_normal((2, 8, 8)))
    got = check.as_convolution(jax.numpy.asarray(a), jax.numpy.asarray(b), precision=None)
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)
    assert check.vmapped()["largest difference"] < 1e-5
    assert check.teraflops(64, np.float32, None) > 0
    assert isinstance(check.throughput((64,), float("inf"))["fp32 64"], float)


def test_devices_are_known_by_whole_words(check, monkeypatch):
    names = {
        "NVIDIA H200": "h200",
        "NVIDIA A100-SXM4-80GB": "a100",
        "Tesla T4": "t4",
        "NVIDIA GeForce RTX 4090": "ada",
        "NVIDIA L40S": "ada",
        "Quadro RTX 4000": None,
        "NVIDIA T400": None,
    }
    for kind, device in names.items():
        monkeypatch.setattr(
            check.jax, "devices", lambda kind=kind: [types.SimpleNamespace(device_kind=kind)]
        )
        assert check.device_name() == device, kind
