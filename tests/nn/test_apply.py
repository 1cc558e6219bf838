import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jprec import nn, program
from jprec.policy import Policy, Rule

F32 = jax.ShapeDtypeStruct

#: Layers with an input that they are called with here.
LAYERS = {
    "linear": (lambda rngs: nnx.Linear(3, 4, rngs=rngs), F32((2, 3), jnp.float32)),
    "linear_general": (
        lambda rngs: nnx.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=rngs),
        F32((7, 2, 3), jnp.float32),
    ),
    "linear_general_axis": (
        lambda rngs: nnx.LinearGeneral(3, 4, axis=1, batch_axis={0: 2}, rngs=rngs),
        F32((2, 3, 5), jnp.float32),
    ),
    "einsum": (
        lambda rngs: nnx.Einsum("btd,dhk->bthk", (4, 2, 3), (2, 3), rngs=rngs),
        F32((1, 2, 4), jnp.float32),
    ),
    "conv": (lambda rngs: nnx.Conv(3, 4, (3, 2), rngs=rngs), F32((1, 4, 4, 3), jnp.float32)),
    "conv_valid": (
        lambda rngs: nnx.Conv(3, 4, 3, kernel_dilation=2, padding="VALID", rngs=rngs),
        F32((1, 9, 3), jnp.float32),
    ),
    "conv_transpose": (
        lambda rngs: nnx.ConvTranspose(3, 4, (2, 2), rngs=rngs),
        F32((1, 3, 3, 3), jnp.float32),
    ),
    "embed": (lambda rngs: nnx.Embed(5, 3, rngs=rngs), F32((2,), jnp.int32)),
    "attention": (
        lambda rngs: nnx.MultiHeadAttention(2, 4, decode=False, normalize_qk=True, rngs=rngs),
        F32((1, 3, 4), jnp.float32),
    ),
    "lora": (lambda rngs: nnx.LoRALinear(3, 4, lora_rank=2, rngs=rngs), F32((2, 3), jnp.float32)),
}
NORMS = {
    "batch": lambda rngs: nnx.BatchNorm(4, use_running_average=True, rngs=rngs),
    "layer": lambda rngs: nnx.LayerNorm(4, rngs=rngs),
    "rms": lambda rngs: nnx.RMSNorm(4, rngs=rngs),
    "group": lambda rngs: nnx.GroupNorm(4, num_groups=2, rngs=rngs),
    "instance": lambda rngs: nnx.InstanceNorm(4, rngs=rngs),
}
CELLS = {
    "lstm": nnx.LSTMCell,
    "optimized": nnx.OptimizedLSTMCell,
    "gru": nnx.GRUCell,
    "simple": nnx.SimpleCell,
}


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.dense = nnx.Linear(4, 4, rngs=rngs)
        self.gain = nnx.Param(jnp.ones(4))

    def __call__(self, x):
        return x + self.dense(self.norm(x)) * self.gain[...]


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs), Block(rngs)])
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x), "n": jnp.arange(2)}


def applied(build, policy):
    """A model with a policy, traced and not computed: initial values cost a compilation each."""
    return nnx.eval_shape(lambda: nn.apply(build(nnx.Rngs(0)), policy))


def paths(model):
    return [path for path, _ in jax.tree_util.tree_flatten_with_path(nnx.state(model))[0]]


def products_of(model, *inputs):
    graph, state = nnx.split(model)
    found = program.products(lambda s, *x: nnx.merge(graph, s)(*x), state, *inputs)
    return {dtype for product in found for dtype in product.operand_dtypes}


def output_of(model, *inputs):
    graph, state = nnx.split(model)
    return jax.eval_shape(lambda s, *x: nnx.merge(graph, s)(*x), state, *inputs)


@pytest.mark.parametrize("name", LAYERS)
def test_every_product_of_every_layer_has_operands_of_the_policys_dtype(name):
    (build, x), dtype = LAYERS[name], "float16" if name == "attention" else "bfloat16"
    layer = applied(build, Policy(compute=dtype))
    assert products_of(layer, x) <= {dtype}
    assert bool(products_of(layer, x)) == (name != "embed")
    assert output_of(layer, x).dtype == jnp.float32
    low = applied(build, Policy(params=dtype, compute=dtype, output=dtype))
    assert output_of(low, x).dtype == dtype
    assert {p.dtype for p in jax.tree.leaves(nnx.state(low, nnx.Param))} == {jnp.dtype(dtype)}


@pytest.mark.parametrize("name", NORMS)
def test_norms_stay_in_float32_unless_a_rule_says_otherwise(name):
    x = F32((2, 3, 4), jnp.bfloat16)

    def model(rngs):
        return nnx.Sequential(NORMS[name](rngs))

    norm = applied(model, "compute=bfloat16,output=bfloat16").layers[0]
    assert output_of(norm, x).dtype == jnp.float32
    ruled = applied(model, Policy(compute="bf16", rules=(Rule("layers/0", compute="bf16"),)))
    assert output_of(ruled.layers[0], x).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("dtype", "mean", "var", "x", "want"),
    [
        # In float16 Flax makes the variance infinite: all outputs 0. In bfloat16 100.25 is 100.
        ("float16", 0.0, 1e6, [1000.0, -1000.0, 500.0], [1.0, -1.0, 0.5]),
        ("bfloat16", 100.25, 1.0, [100.0, 100.0, 100.0], [-0.25, -0.25, -0.25]),
    ],
)
def test_batch_norm_in_half_precision_evaluates_with_float32_statistics(dtype, mean, var, x, want):
    norm = nnx.BatchNorm(1, use_running_average=True, epsilon=0.0, rngs=nnx.Rngs(0))
    norm.mean[...], norm.var[...] = jnp.full(1, mean), jnp.full(1, var)
    rule = Rule(".*", compute=dtype)
    norm = nn.apply(norm, Policy(compute=dtype, output=dtype, rules=(rule,)))
    y = norm(jnp.asarray(x, dtype)[:, None])
    assert y.dtype == dtype
    np.testing.assert_allclose(y[:, 0].astype(np.float32), want, rtol=1e-3)
    assert norm.mean[...].dtype == norm.var[...].dtype == jnp.float32


@pytest.mark.parametrize("name", CELLS)
def test_recurrent_cells_run_in_a_scan_and_their_products_are_low(name):
    """Alone, SimpleCell in bfloat16 gives its carry another dtype, and scan refuses it."""
    build = lambda rngs: nnx.RNN(CELLS[name](3, 4, rngs=rngs))
    rnn = applied(build, "compute=bfloat16,output=bfloat16")
    assert products_of(rnn, F32((1, 5, 3), jnp.float32)) == {"bfloat16"}
    assert output_of(rnn, F32((1, 5, 3), jnp.float32)).dtype == jnp.bfloat16


def test_float16_attention_runs_under_jit_and_is_right():
    """Flax asks for a preset that XLA on a CPU does not compile."""
    seen = jnp.asarray([[1, 1, 1, 0, 0], [1, 0, 1, 0, 1]])

    @jax.jit
    def differences():
        layer = nnx.MultiHeadAttention(2, 8, num_kv_heads=1, decode=False, rngs=nnx.Rngs(0))
        low = nn.apply(layer, "mixed_fp16")
        x = jnp.sin(jnp.arange(80.0)).reshape(2, 5, 8)
        mask = nnx.make_attention_mask(jnp.ones((2, 5)), seen)
        want, got = (m(x, mask=mask, is_causal=True) for m in (layer, low))
        return jnp.abs(want - got).max(), jnp.abs(want).max()

    error, size = differences()
    assert 0.0 < error < 0.01 * size


def test_rules_act_by_path_and_the_first_wins():
    policy = Policy(
        compute="bf16",
        rules=(
            Rule("^head/", compute="float32"),
            Rule("blocks/1/dense$", compute="float16"),
            Rule("norm", params="bf16", compute="bf16"),
        ),
    )
    model = applied(Model, policy)
    assert model.head.dtype == jnp.float32
    assert model.blocks[0].dense.dtype == jnp.bfloat16
    assert model.blocks[1].dense.dtype == jnp.float16
    assert model.blocks[0].norm.scale.dtype == jnp.bfloat16
    assert model.blocks[0].dense.kernel.dtype == jnp.float32


def test_a_rule_can_set_the_output_of_a_layer():
    policy = Policy(compute="bf16", rules=(Rule("blocks/0$", output="float16"),))
    block = applied(Model, policy).blocks[0]
    assert output_of(block, F32((1, 4), jnp.float32)).dtype == jnp.float16


def test_the_original_is_not_changed_and_paths_and_output_structure_stay():
    original = Model(nnx.Rngs(0))
    before = jax.tree.map(lambda x: x.dtype, nnx.state(original))
    model = nn.apply(original, "pure_bf16")
    assert jax.tree.map(lambda x: x.dtype, nnx.state(original)) == before
    assert paths(model) == paths(original)
    out = model(jnp.ones((1, 4)))
    assert out["logits"].dtype == jnp.float32
    assert out["n"].dtype == jnp.int32
    assert isinstance(model, Model)


def test_two_applications_give_the_same_graph_so_that_jit_does_not_trace_again():
    traces = []

    @nnx.jit
    def run(model, x):
        traces.append(1)
        return model(x)

    for _ in range(2):
        run(nn.apply(Model(nnx.Rngs(0)), "mixed_bf16"), jnp.ones((1, 4)))
    assert len(traces) == 1


def test_a_second_application_is_an_error_also_on_a_part():
    model = nn.apply(Model(nnx.Rngs(0)), "mixed_bf16")
    with pytest.raises(ValueError, match=r"already has a policy \(params=float32"):
        nn.apply(model, "mixed_bf16")
    with pytest.raises(ValueError, match="its part 'layers/0' already has a policy"):
        nn.apply(nnx.Sequential(model), "mixed_fp16")
    with pytest.raises(ValueError, match="it already has a policy"):
        nn.apply(model.head, "mixed_fp16")


class Stubborn(nnx.Linear):
    """Accepts a dtype and does not pass it on, as flax#4008 did."""

    def __call__(self, x):
        return x @ self.kernel[...]


class Wide(nnx.Linear):
    """Computes as it is told and hands on float32 all the same."""

    def __call__(self, x):
        return super().__call__(x).astype(jnp.float32)


def test_a_switch_without_effect_is_an_error_and_a_rule_is_the_way_out():
    model = nnx.Sequential(Stubborn(2, 2, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"layers/0 \(Stubborn\): dtype=bfloat16 was set, but its"):
        nn.apply(model, "mixed_bf16")
    nn.apply(model, Policy(compute="bf16", rules=(Rule("layers/0", compute="float32"),)))
    nn.apply(model, "mixed_bf16", verify=False)
    with pytest.raises(ValueError, match="its result is float32: the switch has no effect"):
        nn.apply(Wide(2, 2, rngs=nnx.Rngs(0)), "mixed_bf16")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Rule("nrom", compute="float32"), r"finds nothing in this model\. Layers: blocks/0/dense"),
        (
            Rule("kernel$", compute="float32"),
            r"compute can do nothing, since it finds only parameters \(blocks/0/dense/kernel\)",
        ),
        (Rule("1/norm", compute="bf16"), "never holds: the earlier rule 'norm->compute=float32'"),
    ],
)
def test_a_rule_that_cannot_act_is_an_error(rule, says):
    first = Rule("norm", compute="float32")
    with pytest.raises(ValueError, match=says):
        applied(Model, Policy(compute="bf16", rules=(first, rule)))


class Unknown(nnx.MultiHeadAttention):
    """Decodes with a cache that is made later, so that it cannot be traced by itself."""

    def __call__(self, x):
        return (x @ self.query.kernel[...].reshape(4, 4)).astype(self.dtype)


def test_with_inputs_the_products_of_the_whole_model_are_checked():
    """Defect 45: what a layer does is looked at, not what it accepts."""
    model = nnx.Sequential(Unknown(2, 4, decode=True, rngs=nnx.Rngs(0)))
    inputs = (F32((2, 4), jnp.float32),)
    nn.apply(model, "mixed_bf16")
    says = r"layers/0 \(Unknown\).*its products \(.*test_apply\.py:\d+\) have operands in float32"
    with pytest.raises(ValueError, match=says):
        nn.apply(model, "mixed_bf16", inputs=inputs)
    rule = Rule("layers", compute="float32")
    nn.apply(model, Policy(compute="bf16", rules=(rule,)), inputs=inputs)
    with pytest.raises(ValueError, match="kwargs without inputs"):
        nn.apply(model, "mixed_bf16", kwargs={"training": True})


@pytest.mark.parametrize("role", ["params", "compute", "output"])
def test_each_role_changes_the_program(role):
    """Defect 45: a switch that changes nothing was accepted."""

    def program_of(policy):
        graph, state = nnx.split(applied(Model, policy))
        text = jax.make_jaxpr(lambda s, x: nnx.merge(graph, s)(x))(state, jnp.ones((1, 4)))
        return str(text)

    plain = program_of(Policy())
    assert "bf16" not in plain
    assert "bf16" in program_of(Policy(**{role: "bfloat16"}))


def test_statistics_in_16_bits_are_refused_where_norms_cannot_take_them_so():
    with pytest.raises(ValueError, match=r"blocks/0/norm \(LayerNorm\): statistics=float16 has no"):
        applied(Model, "compute=float16,statistics=float16")

    class Willing(nnx.LayerNorm):
        force_float32_reductions = True

        def __call__(self, x):
            assert not self.force_float32_reductions
            return super().__call__(x)

    norm = applied(lambda rngs: Willing(4, rngs=rngs), "statistics=float16,output=bfloat16")
    assert norm.dtype == jnp.float16


def test_layers_of_other_dtypes_are_left_as_they_were_written():
    build = lambda rngs: nnx.Sequential(
        nnx.Linear(4, 4, param_dtype=jnp.complex64, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)
    )
    turned, low = applied(build, "pure_bf16").layers
    assert (turned.kernel.dtype, turned.dtype) == (jnp.complex64, None)
    assert (low.kernel.dtype, low.dtype) == (jnp.bfloat16, jnp.bfloat16)


def test_attention_with_dropout_takes_its_softmax_in_float32():
    layer = applied(
        lambda rngs: nnx.MultiHeadAttention(
            2, 4, decode=False, dropout_rate=0.5, deterministic=False, rngs=rngs
        ),
        "mixed_bf16",
    )
    graph, state = nnx.split(layer)
    text = str(jax.make_jaxpr(lambda s, x: nnx.merge(graph, s)(x))(state, jnp.ones((1, 3, 4))))
    assert "f32[1,2,3,3] = exp" in text
    assert "bf16[1,2,3,3] = exp" not in text
    assert products_of(layer, F32((1, 3, 4), jnp.float32)) == {"bfloat16"}


def test_what_is_no_flax_module_is_refused_with_the_way_that_works():
    with pytest.raises(
        TypeError, match=r"not a function.*jprec\.value_and_grad\(loss_fn, policy\)"
    ):
        nn.apply(lambda x: x, "mixed_bf16")


def test_stacks_of_layers_and_classes_called_in_another_way_are_given_a_policy_untraced():
    class Stack(nnx.Module):
        def __init__(self, rngs):
            make = nnx.vmap(lambda rngs: nnx.Linear(4, 6, rngs=rngs), in_axes=0, out_axes=0)
            self.layers = make(rngs.split(3))

        def __call__(self, x):
            return nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))(self.layers, x)

    class Masked(nnx.Linear):
        def __call__(self, x, mask):
            return super().__call__(x * mask)

    x = F32((2, 4), jnp.float32)
    stack = applied(Stack, "mixed_bf16")
    assert products_of(stack, x) == {"bfloat16"}
    assert "layers" in str(nn.describe(stack))
    masked = applied(lambda rngs: Masked(4, 6, rngs=rngs), "mixed_bf16")
    assert products_of(masked, x, x) == {"bfloat16"}


def test_a_cell_is_called_by_keywords_and_a_model_without_a_call_stays_without():
    cell = nn.apply(nnx.SimpleCell(3, 4, rngs=nnx.Rngs(0)), "mixed_bf16")
    carry, out = cell(carry=jnp.zeros((1, 4)), inputs=jnp.ones((1, 3)))
    assert (carry.dtype, out.dtype) == (jnp.float32, jnp.float32)

    class Encoder(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(3, 2, rngs=rngs)

        def encode(self, x):
            return self.dense(x)

    model = nn.apply(Encoder(nnx.Rngs(0)), "mixed_bf16")
    assert model.encode(jnp.ones((1, 3))).dtype == jnp.bfloat16
    assert not callable(model)
