"""How a device runs a product: the table of rules."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jprec import doctor, hardware, matmul, program
from jprec.doctor.execution import RULES
from jprec.doctor.request import PRESETS

NAMES = ("v100", "t4", "a100", "ada", "h100", "b200", "tpu", "cpu")


def dot(dtype, precision=None, *, other=None, shapes=((8, 8), (8, 8)), result=None):
    a = jax.ShapeDtypeStruct(shapes[0], dtype)
    b = jax.ShapeDtypeStruct(shapes[1], other or dtype)
    numbers = (((len(shapes[0]) - 1,), (0,)), ((), ()))
    (found,) = program.products(
        lambda a, b: lax.dot_general(
            a, b, numbers, precision=precision, preferred_element_type=result
        ),
        a,
        b,
    )
    return found


def convolution(dtype, precision=None):
    x, k = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((2, 8, 8, 3), (3, 3, 3, 4)))
    layout = ("NHWC", "HWIO", "NHWC")
    (found,) = program.products(
        lambda x, k: lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=layout, precision=precision
        ),
        x,
        k,
    )
    return found


def runs(product):
    return [doctor.execution(product, name).runs_as for name in NAMES]


#: What is asked for -> how v100, t4, a100, ada, h100, b200, tpu and cpu run an FP32 product.
FP32_DOTS = {
    None: ["fp32"] * 2 + ["tf32"] * 4 + ["bf16", "fp32"],
    "high": ["fp32"] * 2 + ["undetermined"] * 4 + ["bf16x3", "fp32"],
    "highest": ["fp32"] * 6 + ["bf16x6", "fp32"],
    "F32_F32_F32": ["fp32"] * 6 + ["rejected", "fp32"],
    "TF32_TF32_F32": ["rejected"] * 2 + ["tf32"] * 4 + ["rejected"] * 2,
    "TF32_TF32_F32_X3": ["rejected"] * 2 + ["tf32x3"] * 4 + ["rejected"] * 2,
    "BF16_BF16_F32": ["rejected"] * 2 + ["bf16"] * 4 + ["bf16", "fp32"],
    "BF16_BF16_F32_X3": ["rejected"] * 2 + ["bf16x3"] * 4 + ["bf16x3", "fp32"],
    "BF16_BF16_F32_X6": ["rejected"] * 2 + ["bf16x6"] * 4 + ["bf16x6", "fp32"],
    "BF16_BF16_F32_X9": ["rejected"] * 2 + ["bf16x9"] * 4 + ["rejected"] * 2,
    "F16_F16_F32": ["fp16"] * 6 + ["rejected"] * 2,
    "F16_F16_F16": ["rejected"] * 7 + ["fp16"],
    "BF16_BF16_BF16": ["rejected"] * 8,
    "F64_F64_F64": ["fp64"] * 6 + ["rejected", "fp64"],
    "ANY_F8_ANY_F8_F32": ["rejected"] * 8,
}


@pytest.mark.parametrize("asked", FP32_DOTS)
def test_fp32_dots(asked):
    assert runs(dot(jnp.float32, asked)) == FP32_DOTS[asked]


FP32_CONVOLUTIONS = {
    None: ["fp32"] * 2 + ["tf32"] * 4 + ["bf16", "fp32"],
    "high": ["fp32"] * 2 + ["tf32"] * 4 + ["bf16x3", "fp32"],
    "highest": ["fp32"] * 6 + ["bf16x6", "fp32"],
    "F32_F32_F32": ["fp32"] * 2 + ["tf32"] * 4 + ["bf16", "fp32"],
    "BF16_BF16_F32": ["fp32"] * 2 + ["tf32"] * 4 + ["bf16", "fp32"],
}


@pytest.mark.parametrize("asked", FP32_CONVOLUTIONS)
def test_fp32_convolutions_heed_levels_and_no_preset(asked):
    product = convolution(jnp.float32, asked)
    assert runs(product) == FP32_CONVOLUTIONS[asked]
    ignored = asked is not None and "_" in asked
    assert all(doctor.execution(product, name).ignores == ignored for name in NAMES)


def test_narrow_operands_run_as_they_are():
    assert runs(dot(jnp.float16)) == ["fp16"] * 6 + ["undetermined", "fp16"]
    assert runs(dot(jnp.bfloat16)) == ["undetermined"] * 2 + ["bf16"] * 6
    assert runs(dot(jnp.bfloat16, "highest")) == runs(dot(jnp.bfloat16))
    assert runs(convolution(jnp.bfloat16))[2:] == ["bf16"] * 6
    assert set(runs(dot(jnp.int8))) == {"int8"}


def test_fp8_needs_the_device_the_operands_and_the_preset():
    e4m3, e5m2, preset = jnp.float8_e4m3fn, jnp.float8_e5m2, "ANY_F8_ANY_F8_F32"
    asked = dot(e4m3, preset, result=jnp.float32)
    assert runs(asked) == ["rejected"] * 3 + ["fp8_e4m3"] * 3 + ["rejected"] * 2
    assert doctor.execution(dot(e5m2, preset, result=jnp.float32), "h100").runs_as == "rejected"
    silent = doctor.execution(dot(e4m3, result=jnp.float32), "h100")
    assert (silent.runs_as, silent.may_be) == ("undetermined", ("fp8", "fp16"))


def test_the_higher_of_two_levels_counts_on_gpus_and_is_unknown_on_tpus():
    levels = (lax.Precision.HIGHEST, lax.Precision.DEFAULT)
    assert doctor.execution(dot(jnp.float32, levels), "a100").runs_as == "fp32"
    assert doctor.execution(dot(jnp.float32, levels), "tpu").runs_as == "undetermined"


def test_vectors_use_no_tensor_core_or_may_not():
    two = dot(jnp.float32, shapes=((8,), (8,)))
    one = dot(jnp.float32, shapes=((8, 8), (8,)))
    assert doctor.execution(two, "a100").runs_as == "fp32"
    found = doctor.execution(one, "a100")
    assert (found.runs_as, found.may_be) == ("undetermined", ("tf32", "fp32"))


def test_complex64_is_tf32_too_and_fp64_is_untouched():
    assert doctor.execution(dot(jnp.complex64), "a100").runs_as == "tf32"
    with jax.enable_x64(True):
        assert runs(dot(jnp.float64, "high")) == ["fp64"] * 6 + ["undetermined", "fp64"]


def test_mixed_operands_run_in_the_wider_format():
    assert doctor.execution(dot(jnp.bfloat16, other=jnp.float32), "a100").runs_as == "tf32"
    with jax.enable_x64(True):
        for left, right in ((jnp.float64, jnp.float32), (jnp.float32, jnp.float64)):
            assert doctor.execution(dot(left, other=right), "a100").runs_as == "fp64"


def test_the_cpu_rejects_exactly_what_lowering_rejects():
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn):
        x = jnp.ones((4, 4), dtype)
        for preset in lax.DotAlgorithmPreset:
            product = dot(dtype, preset, shapes=((4, 4), (4, 4)))
            said = doctor.execution(product, "cpu").runs_as == "rejected"
            traced = jax.jit(lambda x, p=preset: jnp.matmul(x, x, precision=p)).trace(x)
            try:
                traced.lower(lowering_platforms=("cpu",))
            except ValueError:
                assert said, (preset, dtype)
            else:
                assert not said, (preset, dtype)


@pytest.mark.parametrize(("platform", "device"), [("cuda", "a100"), ("tpu", "tpu")])
def test_what_lowering_for_a_gpu_or_tpu_rejects_is_rejected(platform, device):
    x = jnp.ones((4, 4), jnp.float32)
    for preset in lax.DotAlgorithmPreset:
        traced = jax.jit(lambda x, p=preset: jnp.matmul(x, x, precision=p)).trace(x)
        try:
            traced.lower(lowering_platforms=(platform,))
        except ValueError:
            product = dot(jnp.float32, preset, shapes=((4, 4), (4, 4)))
            assert doctor.execution(product, device).runs_as == "rejected", preset


def test_every_preset_of_jax_is_known_and_names_an_arithmetic():
    assert set(PRESETS) == {preset.name for preset in lax.DotAlgorithmPreset} - {"DEFAULT"}
    for name in set(PRESETS.values()) - {"fp8", "fp64", "bf16_acc16"}:
        matmul.get(name)


def test_every_rule_has_its_own_name_a_reason_and_a_source():
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.reason
        assert rule.source
        assert (rule.source == "nothing at hand") <= (rule.status == "assumed")


def test_every_known_device_is_a_target():
    for name in (*hardware.names(), "l40s", "tpu", "CPU"):
        assert doctor.target(name).title
    with pytest.raises(ValueError, match=r"did you mean a100.*Known: v100, .*, cpu, tpu\."):
        doctor.target("a1000")


def test_integers_under_a_preset_are_undetermined():
    shapes = [jax.ShapeDtypeStruct((4, 4), jnp.int8)] * 2
    for preset, runs_as in ((None, "int8"), ("BF16_BF16_F32", "undetermined")):
        found = doctor.audit(lambda a, b, p=preset: jnp.matmul(a, b, precision=p), *shapes)
        assert [operation.runs_as for operation in found.operations] == [runs_as]
