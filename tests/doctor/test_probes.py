import jax
import jax.numpy as jnp
import pytest

from jprec import doctor, matmul


@pytest.fixture(scope="module")
def probes():
    return {probe.name: probe for probe in doctor.probe_backend()}


def test_every_probe_answers_in_words(probes):
    assert len(probes) == 12
    for probe in probes.values():
        assert probe.question.endswith(("?", ")?"))
        assert probe.answer
        assert "\n" not in probe.answer


def test_full_precision_is_full_and_the_emulated_tf32_is_exact(probes):
    assert probes["fp32_product"].value < 2.0**-18
    assert probes["emulated_tf32"].value is True


def test_a_compiler_that_undoes_the_emulation_stops_everything(monkeypatch):
    monkeypatch.setattr(matmul, "matmul", lambda a, b, spec: jnp.matmul(a, b))
    with pytest.raises(RuntimeError, match="The compiler has changed the emulation"):
        doctor.probe_backend()


def test_a_baseline_that_is_not_full_fp32_stops_everything(monkeypatch):
    low = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)
    monkeypatch.setattr(matmul, "matmul", lambda a, b, spec: low(a) @ low(b))
    with pytest.raises(RuntimeError, match="there is no baseline"):
        doctor.probe_backend()


def test_the_environment_names_what_a_result_may_depend_on():
    found = doctor.environment()
    assert found["jax"] == jax.__version__
    assert found["backend"] == jax.default_backend()
    assert {"processor", "flags", "x64", "devices"} <= set(found)
