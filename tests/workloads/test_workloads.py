import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jprec import workloads
from jprec.workloads import digits, plays

ALL = [
    workloads.digits_mlp,
    workloads.digits_cnn,
    workloads.digits_autoencoder,
    workloads.plays_transformer,
]


def test_the_digits_are_split_the_same_way_everywhere():
    (images, labels), (held_out, answers) = digits.load()
    assert (len(images), len(held_out)) == (1200, 597)
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    # Frozen: another split would be another study.
    assert labels[:10].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5]
    assert answers[-5:].tolist() == [3, 3, 7, 7, 8]


def test_guessing_letters_by_frequency_costs_about_three_nats():
    assert 3.0 < plays.guess() < 3.6


@pytest.mark.parametrize("make", ALL, ids=lambda m: m.__name__)
def test_a_workload_keeps_its_promises(make):
    workload = make()
    key = jax.random.key(0)
    params = jax.eval_shape(workload.init, key)
    batch = jax.eval_shape(workload.batches, key)
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    for given in (batch, workload.test):
        loss = jax.eval_shape(workload.loss, params, given)
        assert (loss.shape, loss.dtype) == ((), jnp.float32)
        if workload.accuracy is not None:
            assert jax.eval_shape(workload.accuracy, params, given).dtype == jnp.float32
    assert workload.guess > 0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("make", ALL, ids=lambda m: m.__name__)
def test_products_follow_the_dtype_of_the_parameters(make, dtype):
    """The models are silent about precision, so casting parameters and inputs casts them all."""
    workload = make()

    def cast(tree):
        floats = lambda a: a.dtype == jnp.float32
        return jax.tree.map(lambda a: a.astype(dtype) if floats(a) else a, tree)

    def low(key):
        return workload.loss(cast(workload.init(key)), cast(workload.batches(key)))

    program = str(jax.make_jaxpr(low)(jax.random.key(0)))
    products = [
        line for line in program.splitlines() if "= dot_general" in line or "= conv_general" in line
    ]
    short = {jnp.bfloat16: "bf16[", jnp.float16: "f16["}[dtype]
    assert products
    assert all(short in line for line in products), products


def test_a_model_with_other_state_than_parameters_is_refused():
    with pytest.raises(ValueError, match="state that is not a parameter"):
        workloads.functions(lambda rngs: nnx.BatchNorm(3, rngs=rngs))
