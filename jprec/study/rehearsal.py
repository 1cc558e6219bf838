"""A rehearsal: every arm's step is traced before anything is trained."""

import jax

from jprec import train
from jprec.study.arms import Arm
from jprec.study.design import Setting
from jprec.study.training import full_precision_unless_named


def rehearse(setting: Setting) -> None:
    """Traces the test loss and each arm's value and gradient; nothing is computed.

    Raises:
      ValueError: if one does not fit, with the setting, the part and the reason.
    """
    workload = setting.load()
    key = jax.random.key(0)
    try:
        part = "init(key)"
        params = jax.eval_shape(workload.init, key)
        part = "batches(key)"
        batch = jax.eval_shape(workload.batches, key)
        part = "optimizer"
        jax.eval_shape(setting.optimizer.init, params)
        part = "loss(params, test)"
        jax.eval_shape(workload.loss, params, workload.test)
        for arm in setting.arms:
            assert isinstance(arm, Arm)
            part = f"loss(params, batch) in the arm {arm.name}"
            policy = full_precision_unless_named(arm)
            jax.eval_shape(train.value_and_grad(workload.loss, policy, scale=1.0), params, batch)
    except Exception as error:
        raise ValueError(
            f"setting {setting.name!r}: {part} does not work: {type(error).__name__}: {error}"
        ) from error
