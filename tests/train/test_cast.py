import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jprec import train
from jprec.policy import Policy, Rule


def test_cast_stores_parameters_by_path_and_leaves_the_rest():
    tree = {"norm": jnp.ones(1), "dense": jnp.ones(1), "n": jnp.arange(1), "key": jax.random.key(0)}
    stored = train.cast(tree, Policy(params="bf16", rules=(Rule("norm", params="f32"),)))
    assert stored["norm"].dtype == jnp.float32
    assert stored["dense"].dtype == jnp.bfloat16
    assert stored["n"] is tree["n"]
    assert stored["key"] is tree["key"]


def test_cast_takes_abstract_arrays():
    shapes = jax.eval_shape(lambda: {"w": jnp.ones((2, 3))})
    assert train.cast(shapes, "pure_fp16")["w"] == jax.ShapeDtypeStruct((2, 3), jnp.float16)


def test_cast_leaves_nnx_state_that_is_no_parameter():
    model = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    state = train.cast(nnx.state(model), "pure_bf16")
    assert state["scale"][...].dtype == jnp.bfloat16
    assert state["mean"][...].dtype == jnp.float32


def test_an_unknown_role_is_an_error():
    with pytest.raises(ValueError, match=r"Allowed: params, compute\. Close: compute"):
        train.cast({}, "fp32", "computes")
