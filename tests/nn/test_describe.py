import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

from jprec import nn
from jprec.policy import Policy, Rule

X = jax.ShapeDtypeStruct((2, 4), jnp.float32)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.dense = nnx.Linear(4, 4, rngs=rngs)
        self.mix = nnx.Param(jnp.ones((4, 4)))

    def __call__(self, x):
        return self.dense(self.norm(x)) @ self.mix[...]


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs)])
        self.embed = nnx.Embed(3, 4, rngs=rngs)

    def __call__(self, x, training=False):
        assert training in (True, False)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x):
        mix = self.param("mix", linen.initializers.ones, (4, 4))
        return linen.Dense(4, name="dense")(linen.LayerNorm(name="norm")(x)) @ mix


class LinenModel(linen.Module):
    @linen.compact
    def __call__(self, x, training=False):
        assert training in (True, False)
        return linen.Embed(3, 4, name="embed").attend(LinenBlock(name="blocks")(x))


MODELS = {"nnx": lambda: Model(nnx.Rngs(0)), "linen": LinenModel}
PATH = {"nnx": "blocks/0", "linen": "blocks"}


def rows_of(table):
    return {row.path: dataclasses.astuple(row)[1:] for row in table.rows}


@pytest.mark.parametrize("library", MODELS)
def test_it_tabulates_what_each_layer_does(library):
    """Defect 44: users take `dtype` for the dtype of parameters; the table shows all three."""
    policy = Policy(params="bf16", compute="bf16", product="tf32", name="study")
    table = nn.describe(MODELS[library](), policy, inputs=(X,), kwargs={"training": True})
    path, rows = PATH[library], rows_of(table)
    block, linear, output = {
        "nnx": ("Block", "Linear", ""),
        "linen": ("LinenBlock", "Dense", "bfloat16"),
    }[library]
    assert rows.pop("embed")[:3] == ("Embed", "bfloat16", "bfloat16")
    assert rows == {
        path: (block, "bfloat16", "bfloat16", output, "tf32"),
        f"{path}/dense": (linear, "bfloat16", "bfloat16", "bfloat16", "tf32"),
        f"{path}/norm": ("LayerNorm", "bfloat16", "float32", "float32", ""),
    }
    lines = str(table).splitlines()
    assert lines[0] == "policy study"
    assert lines[1].split() == ["path", "layer", "params", "compute", "output", "product"]
    assert len(lines) == 6


@pytest.mark.parametrize("library", MODELS)
def test_products_written_in_a_call_that_the_policy_does_not_reach_are_named(library):
    table = nn.describe(MODELS[library](), "mixed_bf16", inputs=(X,))
    assert rows_of(table)[PATH[library]][2] == "bfloat16, float32"
    (remark,) = table.remarks
    assert remark.startswith(f"at {PATH[library]} a product written in the model, ")
    assert "test_describe.py:" in remark
    assert "operands in bfloat16 and float32, where the policy computes in bfloat16" in remark
    assert str(table).splitlines()[-1] == remark


@pytest.mark.parametrize("library", MODELS)
def test_rules_that_contradict_one_another_stand_below_the_table(library):
    rules = (Rule("dense", compute="float32"), Rule("dense|embed", compute="bf16"))
    table = nn.describe(MODELS[library](), Policy(rules=rules), inputs=(X,))
    assert table.remarks[0].startswith(f"at {PATH[library]}/dense")
    assert "'dense->compute=float32' wins over 'dense|embed->" in table.remarks[0]


@pytest.mark.parametrize("library", MODELS)
def test_without_a_policy_products_are_the_programs_own(library):
    table = nn.describe(MODELS[library](), inputs=(X,))
    rows = rows_of(table)
    assert rows[f"{PATH[library]}/dense"][2:] == ("float32", "float32", "native")
    assert rows[f"{PATH[library]}/norm"][2] == "follows"
    assert str(table).startswith("no policy")
    assert table.remarks == ()


def test_a_layer_that_is_the_model_hands_out_the_output_dtype():
    for layer in (nnx.Linear(4, 3, rngs=nnx.Rngs(0)), linen.Dense(3)):
        (row,) = nn.describe(layer, "mixed_bf16", inputs=(X,)).rows
        assert (row.path, row.compute, row.output) == ("(the model)", "bfloat16", "float32")


def test_what_a_layer_of_flax_makes_for_itself_has_no_row():
    rnn = linen.RNN(linen.OptimizedLSTMCell(4))
    table = nn.describe(rnn, "mixed_bf16", inputs=(jax.ShapeDtypeStruct((1, 3, 4), jnp.float32),))
    assert rows_of(table) == {"cell": ("OptimizedLSTMCell", "", "bfloat16", "bfloat16", "native")}


def test_an_nnx_model_is_described_without_inputs_too():
    table = nn.describe(MODELS["nnx"](), "mixed_bf16")
    assert rows_of(table) == {
        "blocks/0": ("Block", "float32", "follows", "", ""),
        "blocks/0/dense": ("Linear", "float32", "bfloat16", "bfloat16", "native"),
        "blocks/0/norm": ("LayerNorm", "float32", "float32", "float32", ""),
        "embed": ("Embed", "float32", "bfloat16", "bfloat16", ""),
    }
    bare = nn.describe(nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0))))
    assert [row.compute for row in bare.rows] == ["follows"]


def test_a_linen_model_is_not_described_without_inputs():
    with pytest.raises(ValueError, match=r"no layers before it runs.*inputs=\(jax\.Shape"):
        nn.describe(LinenModel(), "mixed_bf16")
    with pytest.raises(TypeError, match=r"nn\.describe takes a Flax module, not a function"):
        nn.describe(lambda x: x)
