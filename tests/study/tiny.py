"""A study that trains in seconds: a line through points, in a few arms."""

import jax
import jax.numpy as jnp
import optax

from jprec import Arm, Setting, Study, Workload
from jprec.study import ARMS


def init(key):
    return {"w": 0.1 * jax.random.normal(key, (4, 2)), "b": jnp.zeros(2)}


def loss(params, batch):
    x, y = batch
    difference = (x @ params["w"] + params["b"]).astype(jnp.float32) - y
    return jnp.mean(difference**2)


def batches(key):
    x = jax.random.normal(key, (8, 4))
    return x, x[:, :2] - x[:, 2:]


WORKLOAD = Workload(init, loss, batches, batches(jax.random.key(9)), name="line")

SETTING = Setting(
    name="line",
    workload=WORKLOAD,
    optimizer=optax.sgd(0.05),
    steps=8,
    points=2,
    seeds=4,
    margin=0.01,
    arms=(
        "fp32",
        "tf32",
        "mixed_fp16",
        ARMS["pure_bf16"],
        Arm(
            name="fp32_scaled",
            what="a power of two changes nothing",
            loss_scale=2.0**10,
            role="twin",
            twin_of="fp32",
        ),
    ),
)

STUDY = Study(name="tiny", settings=(SETTING,))
