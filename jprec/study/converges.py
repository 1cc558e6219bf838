"""The study `converges`: does training in TF32 and in mixed precision end where FP32 ends?"""

import dataclasses
import importlib.resources
import json
from typing import Any

import optax

from jprec import policy as policies
from jprec import workloads
from jprec.study.arms import ARMS, Arm, underscaled, underscaled_twin
from jprec.study.design import Setting, Study


def _margins() -> dict[str, dict[str, Any]]:
    """δ per setting, found by `jprec study pilot converges --full` and committed."""
    file = importlib.resources.files("jprec.study") / "converges_margins.json"
    return json.loads(file.read_text(encoding="utf-8"))


def _setting(name: str, arms: tuple[str | Arm, ...], **fields: Any) -> Setting:
    pilot = _margins().get(name, {})
    return Setting(
        name=name,
        arms=arms,
        margin=pilot.get("margin"),
        **({"margin_source": pilot["margin_source"]} if pilot else {}),
        **fields,
    )


def _hot(steps: int) -> optax.GradientTransformation:
    return optax.sgd(optax.cosine_decay_schedule(0.05, steps), momentum=0.9)


#: Scales so small that gradients leave FP16's range; a mean over few outputs needs a smaller one.
_HOT_UNDERSCALE = 2.0**-18
_AUTOENCODER_UNDERSCALE = 2.0**-10

_HOT_ARMS = (
    "fp32",
    "fp32_one_ulp",
    "tf32",
    "tf32_truncated",
    "mixed_bf16",
    "mixed_fp16",
    underscaled(_HOT_UNDERSCALE),
    underscaled_twin(_HOT_UNDERSCALE),
    "mantissa2_truncated",
)

HOT = _setting(
    "hot",
    (*_HOT_ARMS[:4], "tf32@a100", *_HOT_ARMS[4:]),
    title="digits, MLP 64-128-128-10, SGD with momentum 0.9, learning rate 0.05 with cosine "
    "decay, batch 64",
    workload=workloads.digits_mlp,
    optimizer=_hot(600),
    steps=600,
)

COLD = _setting(
    "cold",
    (
        "fp32",
        "fp32_one_ulp",
        "mixed_bf16",
        "mixed_fp16",
        "pure_bf16",
        "pure_fp16",
        "bf16_stochastic",
        "bf16_kahan",
    ),
    title="digits, MLP 64-128-128-10, SGD with momentum 0.9, learning rate 0.0005, batch 64",
    workload=workloads.digits_mlp,
    optimizer=optax.sgd(5e-4, momentum=0.9),
    steps=3000,
    seeds=8,  # differences spread far less here than in hot; 8 decide everything
)

AUTOENCODER = _setting(
    "autoencoder",
    (
        "fp32",
        "mixed_bf16",
        "mixed_fp16",
        underscaled(_AUTOENCODER_UNDERSCALE),
        underscaled_twin(_AUTOENCODER_UNDERSCALE),
    ),
    title="digits, autoencoder 64-64-16-64-64 with tanh, Adam, learning rate 0.003 with cosine "
    "decay, batch 1024",
    workload=workloads.digits_autoencoder,
    optimizer=optax.adam(optax.cosine_decay_schedule(3e-3, 1000)),
    steps=1000,
    seeds=8,
)

HOT_CNN = _setting(
    "hot_cnn",
    _HOT_ARMS,
    title="digits, CNN of two 3x3 convolutions and a dense layer, SGD with momentum 0.9, learning "
    "rate 0.05 with cosine decay, batch 64",
    workload=workloads.digits_cnn,
    optimizer=_hot(600),
    steps=600,
)


def _norms_in_fp32(arm: Arm) -> Arm:
    """The arm with the parameters of norms in FP32, as they compute."""
    return dataclasses.replace(arm, policy=f"{policies.get(arm.policy)};norm->compute=float32")


HOT_TRANSFORMER = _setting(
    "hot_transformer",
    (
        "fp32",
        "fp32_one_ulp",
        "tf32",
        "tf32_truncated",
        _norms_in_fp32(ARMS["mixed_bf16"]),
        _norms_in_fp32(ARMS["mixed_fp16"]),
        _norms_in_fp32(underscaled(_HOT_UNDERSCALE)),
        underscaled_twin(_HOT_UNDERSCALE),
    ),
    title="three plays, character transformer of one layer, SGD with momentum 0.9, learning rate "
    "0.05 with cosine decay, batch 16 of 64 characters",
    workload=workloads.plays_transformer,
    optimizer=_hot(600),
    steps=600,
)

STUDY = Study(
    name="converges",
    question="Does training in TF32 and in mixed precision end at the same test loss as FP32?",
    limits=(
        "These are small models, ten classes of small images (with --full also one short text), "
        "and arithmetic emulated on a CPU: a larger model, a longer training or a real GPU's order "
        "of summation can behave differently. Equivalent means closer than the margin of each "
        "setting, which half of the seed-to-seed spread fixed beforehand; it does not mean equal."
    ),
    settings=(HOT, COLD, AUTOENCODER),
    full=(HOT, COLD, AUTOENCODER, HOT_CNN, HOT_TRANSFORMER),
    full_seeds=32,
)
