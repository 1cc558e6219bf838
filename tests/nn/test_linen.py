import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training import train_state

from jprec import nn, program, train
from jprec.policy import Policy, Rule

KEY = jax.random.key(0)


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


X = floats(2, 4)

#: Layers with an input that they are called with here.
LAYERS = {
    "dense": (linen.Dense(3), X),
    "dense_general": (linen.DenseGeneral((4, 5), axis=(-2, -1)), floats(7, 2, 3)),
    "einsum": (linen.Einsum((4, 2, 3), "btd,dhk->bthk"), floats(1, 2, 4)),
    "conv": (linen.Conv(4, (3, 2)), floats(1, 4, 4, 3)),
    "conv_local": (linen.ConvLocal(4, (2,)), floats(1, 4, 3)),
    "conv_transpose": (linen.ConvTranspose(4, (2, 2)), floats(1, 3, 3, 3)),
    "embed": (linen.Embed(5, 3), jax.ShapeDtypeStruct((2,), jnp.int32)),
    "attention": (linen.MultiHeadDotProductAttention(2, normalize_qk=True), floats(1, 3, 4)),
    "weight_norm": (linen.WeightNorm(linen.Dense(3)), X),
    "remat": (linen.remat(linen.Dense)(3), X),
}
NORMS = {
    "batch": linen.BatchNorm(use_running_average=False),
    "layer": linen.LayerNorm(),
    "rms": linen.RMSNorm(),
    "group": linen.GroupNorm(num_groups=2),
    "instance": linen.InstanceNorm(),
}
CELLS = {
    "lstm": linen.LSTMCell,
    "optimized": linen.OptimizedLSTMCell,
    "gru": linen.GRUCell,
    "mgu": linen.MGUCell,
    "simple": linen.SimpleCell,
}


class Block(linen.Module):
    features: int = 4

    @linen.compact
    def __call__(self, x):
        gain = self.param("gain", linen.initializers.ones, (self.features,))
        return x + linen.Dense(self.features, name="dense")(linen.LayerNorm(name="norm")(x)) * gain


class Model(linen.Module):
    block: type = Block

    def setup(self):
        self.blocks = [self.block(), self.block()]
        self.head = linen.Dense(2)

    def __call__(self, x):
        return {"logits": self.head(self.encode(x)), "n": jnp.arange(2)}

    def encode(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Digits(linen.Module):
    """A convolution's worth of everything: a norm with statistics, dropout with a random key."""

    @linen.compact
    def __call__(self, x, training):
        x = linen.Conv(4, (3, 3))(x)
        x = linen.relu(linen.BatchNorm(use_running_average=not training)(x))
        x = linen.Dropout(0.5, deterministic=not training)(x.reshape(x.shape[0], -1))
        return linen.Dense(10, name="head")(x)


IMAGE = floats(2, 6, 6, 1)


def variables_of(model, *inputs, **flags):
    """What `init` makes, traced and not computed."""
    return jax.eval_shape(functools.partial(model.init, **flags), KEY, *inputs)


def dtypes(tree):
    return {
        "/".join(entry.key for entry in path): leaf.dtype.name
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def output_of(model, *inputs, **flags):
    variables = variables_of(model, *inputs)
    return jax.eval_shape(functools.partial(model.apply, **flags), variables, *inputs)


def operands_of(model, *inputs):
    found = program.products(model.apply, variables_of(model, *inputs), *inputs)
    return {dtype for product in found for dtype in product.operand_dtypes}


@pytest.mark.parametrize("name", LAYERS)
def test_every_product_of_every_layer_has_operands_of_the_policys_dtype(name):
    """Defect 47: 16-bit products with a float32 result, in Linen."""
    (layer, x), dtype = LAYERS[name], "float16" if "attention" in name else "bfloat16"
    model = nn.apply(layer, Policy(compute=dtype))
    assert operands_of(model, x) == (set() if name == "embed" else {dtype})
    assert output_of(model, x).dtype == jnp.float32
    low = nn.apply(layer, Policy(params=dtype, compute=dtype, output=dtype))
    assert output_of(low, x).dtype == dtype
    assert set(dtypes(variables_of(low, x)["params"]).values()) == {dtype}


def test_attend_of_an_embedding_follows_the_policy():
    class Tied(linen.Module):
        @linen.compact
        def __call__(self, ids):
            embed = linen.Embed(5, 4, name="embed")
            return embed.attend(embed(ids))

    ids = jax.ShapeDtypeStruct((2,), jnp.int32)
    assert operands_of(nn.apply(Tied(), "mixed_bf16"), ids) == {"bfloat16"}
    rule = Rule("embed", compute="float32")
    assert operands_of(nn.apply(Tied(), Policy(compute="bf16", rules=(rule,))), ids) == {"float32"}


@pytest.mark.parametrize("name", NORMS)
def test_norms_take_float32_statistics_and_a_rule_is_about_their_result(name):
    """Defects 49 and 50: norms stay in float32 whatever the layer was written with."""
    layer = NORMS[name].clone(force_float32_reductions=False, dtype=jnp.float16)
    x = jnp.full((4, 3, 4), 900.0, jnp.float16) * jnp.arange(-1.5, 2)[:, None, None] / 1.5

    def run(policy):
        model = nn.apply(linen.Sequential([layer]), policy)
        return model.init_with_output(KEY, x)

    out, _ = run("compute=float16,output=float32")
    assert out.dtype == jnp.float32
    assert bool(jnp.all(jnp.isfinite(out)))
    low, _ = run(Policy(compute="fp16", output="fp16", rules=(Rule("layers_0", compute="fp16"),)))
    assert low.dtype == jnp.float16
    np.testing.assert_array_equal(low, out.astype(jnp.float16))


def test_statistics_in_16_bits_change_the_arithmetic_and_not_what_is_stored():
    """Means and variances of |x| = 900 overflow in float16; running statistics are float32."""
    norm = linen.BatchNorm(use_running_average=False, param_dtype=jnp.bfloat16)
    x = jnp.full((2, 4), 900.0, jnp.float16)
    out, variables = nn.apply(norm, "pure_fp16").init_with_output(KEY, x)
    assert bool(jnp.all(out == 0))
    studied = nn.apply(norm, "params=float16,compute=float16,statistics=float16")
    out, low = studied.init_with_output(KEY, x)
    assert not bool(jnp.any(jnp.isfinite(out) & (out == 0)))
    assert dtypes(low) == dtypes(variables)
    _, updated = studied.apply(low, x, mutable="batch_stats")
    assert set(dtypes(updated).values()) == {"float32"}


@pytest.mark.parametrize(
    ("dtype", "mean", "var", "x", "want"),
    [
        ("float16", 0.0, 1e6, [1000.0, -1000.0, 500.0], [1.0, -1.0, 0.5]),
        ("bfloat16", 100.25, 1.0, [100.0, 100.0, 100.0], [-0.25, -0.25, -0.25]),
    ],
)
def test_batch_norm_in_half_precision_evaluates_with_float32_statistics(dtype, mean, var, x, want):
    """Defect 48, of NNX; here the same holds for Linen."""
    norm = linen.BatchNorm(use_running_average=True, epsilon=0.0)
    policy = Policy(compute=dtype, output=dtype, rules=(Rule(".*", compute=dtype),))
    stats = {"mean": jnp.float32([mean]), "var": jnp.float32([var])}
    params = {"scale": jnp.ones(1), "bias": jnp.zeros(1)}
    variables = {"params": params, "batch_stats": stats}
    y = nn.apply(norm, policy).apply(variables, jnp.asarray(x, dtype)[:, None])
    assert y.dtype == dtype
    np.testing.assert_allclose(y[:, 0].astype(np.float32), want, rtol=1e-3)


@pytest.mark.parametrize("name", CELLS)
def test_recurrent_cells_run_in_a_scan_and_their_products_are_low(name):
    """Alone, SimpleCell in bfloat16 gives its carry another dtype, and scan refuses it."""
    sequence = floats(1, 5, 3)
    rnn = nn.apply(linen.RNN(CELLS[name](4)), "params=bf16,compute=bf16,output=bf16")
    assert operands_of(rnn, sequence) == {"bfloat16"}
    assert output_of(rnn, sequence).dtype == jnp.bfloat16
    assert set(dtypes(variables_of(rnn, sequence)).values()) == {"bfloat16"}
    # A cell that is the model hands its carry on as it came, and its result in the output dtype.
    cell = nn.apply(CELLS[name](4), "mixed_bf16")
    carry = jax.eval_shape(lambda key: CELLS[name](4).initialize_carry(key, (1, 3)), KEY)
    new, result = output_of(cell, carry, floats(1, 3))
    assert dtypes_of(new) == dtypes_of(carry)
    assert result.dtype == jnp.float32


def dtypes_of(tree):
    return [leaf.dtype for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_float16_attention_runs_under_jit_with_a_float32_softmax(dropout):
    """Defect 45: the switch for it was accepted by Flax and not passed on. Logits of 15 and 15.01
    are the same number in float16; their softmax is taken before it is rounded."""
    layer = linen.MultiHeadAttention(2, dropout_rate=dropout, deterministic=dropout == 0.0)
    low = nn.apply(layer, "mixed_fp16")
    x = 3 * jnp.sin(jnp.arange(80.0)).reshape(2, 5, 8)
    mask = linen.make_causal_mask(jnp.ones((2, 5)))
    rngs = {"params": KEY, "dropout": jax.random.key(1)}

    @jax.jit
    def differences():
        variables = layer.init(KEY, x)
        run = lambda m: m.apply(variables, x, mask=mask, rngs=rngs)
        return jnp.abs(run(layer) - run(low)).max(), jnp.abs(run(layer)).max()

    error, size = differences()
    assert 0.0 < error < 0.01 * size
    variables = variables_of(low, x)
    text = str(jax.make_jaxpr(lambda v: low.apply(v, x, rngs=rngs))(variables))
    assert "f16[2,2,5,5] = exp" not in text
    assert "f32[2,2,5,5] = exp" in text


def test_rules_act_by_path_and_the_first_wins():
    policy = Policy(
        compute="bf16",
        rules=(
            Rule("^head/", compute="float32"),
            Rule("blocks_1/dense$", compute="float16"),
            Rule("norm", params="bf16", compute="bf16"),
            Rule("gain$", params="fp16"),
        ),
    )
    table = nn.describe(Model(), policy, inputs=(X,))
    assert {
        row.path: (row.compute, row.output) for row in table.rows if "norm" not in row.path
    } == {
        "blocks_0": ("follows", "float32"),
        "blocks_0/dense": ("bfloat16", "bfloat16"),
        "blocks_1": ("follows", "float32"),
        "blocks_1/dense": ("float16", "float16"),
        "head": ("float32", "float32"),
    }
    stored = dtypes(variables_of(nn.apply(Model(), policy), X)["params"])
    assert stored["blocks_0/norm/scale"] == "bfloat16"
    assert stored["blocks_0/gain"] == "float16"
    assert stored["head/kernel"] == "float32"


def test_a_rule_can_set_the_output_of_a_layer():
    policy = Policy(compute="bf16", rules=(Rule("blocks_1$", output="float16"),))
    assert {row.path: row.output for row in nn.describe(Model(), policy, inputs=(X,)).rows}[
        "blocks_1"
    ] == "float16"


def test_init_gives_the_same_numbers_once_rounded():
    want = jax.jit(Model().init)(KEY, jnp.ones((1, 4)))
    got = jax.jit(nn.apply(Model(), "pure_bf16").init)(KEY, jnp.ones((1, 4)))
    jax.tree.map(lambda w, g: np.testing.assert_array_equal(w.astype(jnp.bfloat16), g), want, got)


def test_parameters_that_others_take_are_stored_as_the_policy_says():
    class Table(linen.Module):
        def setup(self):
            self.weights = self.param("weights", linen.initializers.ones, (4, 2))

    class Taking(linen.Module):
        def setup(self):
            self.table = Table()

        def __call__(self, x):
            return x @ self.table.weights

    assert dtypes(variables_of(nn.apply(Taking(), "pure_bf16"), X)["params"]) == {
        "table/weights": "bfloat16"
    }
    rule = Rule("table/", params="fp16")
    assert dtypes(variables_of(nn.apply(Taking(), Policy(rules=(rule,))), X)["params"]) == {
        "table/weights": "float16"
    }


def test_only_parameters_are_stored_low_and_state_keeps_its_dtype():
    """Defect 49: batch statistics came back in another dtype."""
    model = nn.apply(Digits(), "pure_fp16", inputs=(IMAGE,), kwargs={"training": True})
    variables = variables_of(model, IMAGE, training=False)
    assert set(dtypes(variables["params"]).values()) == {"float16"}
    assert set(dtypes(variables["batch_stats"]).values()) == {"float32"}
    run = functools.partial(
        model.apply, training=True, rngs={"dropout": KEY}, mutable="batch_stats"
    )
    out, updated = jax.eval_shape(run, variables, IMAGE)
    assert out.dtype == jnp.float32
    assert updated["batch_stats"] == variables["batch_stats"]


def test_models_of_many_seeds_are_stored_and_run_under_vmap():
    model = nn.apply(Model(), "pure_bf16")
    init = jax.vmap(model.init, in_axes=(0, None))
    variables = jax.eval_shape(init, jax.eval_shape(lambda: jax.random.split(KEY, 3)), X)
    assert {(leaf.shape[0], leaf.dtype.name) for leaf in jax.tree.leaves(variables)} == {
        (3, "bfloat16")
    }
    out = jax.eval_shape(jax.vmap(model.apply, in_axes=(0, None)), variables, X)
    assert (out["logits"].shape, out["logits"].dtype) == ((3, 2, 2), jnp.float32)


def test_the_copy_is_a_model_like_the_original():
    original = Model()
    model = nn.apply(original, "mixed_bf16")
    assert isinstance(model, Model)
    assert repr(model) == repr(original)
    assert model == nn.apply(Model(), "mixed_bf16")
    assert hash(model) == hash(nn.apply(Model(), "mixed_bf16"))
    assert model != original
    assert model != nn.apply(Model(), "mixed_fp16")
    assert model.clone() == model
    assert nn.policy_of(model).name == "mixed_bf16"
    assert nn.policy_of(original) is None
    out = output_of(model, X)
    assert (out["logits"].dtype, out["n"].dtype) == (jnp.float32, jnp.int32)
    assert dtypes(variables_of(model, X)) == dtypes(variables_of(original, X))
    assert operands_of(original, X) == {"float32"}


class Named(linen.Module):
    """Equal to all others of its name, as its author wants it."""

    name_of_it: str = "a"
    width: int = 3

    def __eq__(self, other):
        return type(other) is type(self) and other.name_of_it == self.name_of_it

    def __hash__(self):
        return hash(self.name_of_it)


def test_a_models_own_equality_stays():
    policy = Policy(compute="bf16")
    assert nn.apply(Named(width=3), policy) == nn.apply(Named(width=4), policy)
    assert hash(nn.apply(Named(width=3), policy)) == hash(Named(width=4))


def test_two_applications_are_one_model_to_jit():
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def run(model, x):
        traces.append(1)
        return model.init(KEY, x)

    for _ in range(2):
        run(nn.apply(linen.Dense(2), "mixed_bf16"), jnp.ones((1, 4)))
    assert len(traces) == 1


METHODS = {
    "name": "encode",
    "bound": nn.apply(Model(), "mixed_bf16").encode,
    "of the original class": Model.encode,
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_is_run_with_the_policy(method):
    model = nn.apply(Model(), "mixed_bf16")
    variables = variables_of(model, X)
    run = functools.partial(model.apply, method=method)
    assert jax.eval_shape(run, variables, X).dtype == jnp.float32
    found = program.products(run, variables, X)
    assert {p.operand_dtypes for p in found} == {("bfloat16", "bfloat16")}
    bound = program.products(lambda v, x: model.bind(v).encode(x), variables, X)
    assert [p.operand_dtypes for p in bound] == [p.operand_dtypes for p in found]


class Holder(linen.Module):
    part: linen.Module | None = None

    def setup(self):
        self.made = nn.apply(Model(), "mixed_fp16")

    def __call__(self, x):
        return (self.part or self.made)(x)["logits"]


def test_a_model_with_a_policy_works_inside_one_without():
    for part, dtype in ((nn.apply(Model(), "pure_bf16"), "bfloat16"), (None, "float16")):
        holder = Holder(part)
        assert operands_of(holder, X) == {dtype}
        assert output_of(holder, X).dtype == jnp.float32
    rows = nn.describe(Holder(nn.apply(Model(), "pure_bf16")), inputs=(X,)).rows
    assert {row.path: row.params for row in rows}["part/blocks_0/dense"] == "bfloat16"


def test_a_second_policy_is_an_error_also_on_a_part():
    model = nn.apply(Model(), "mixed_bf16")
    with pytest.raises(ValueError, match=r"Model: it already has a policy \(params=float32"):
        nn.apply(model, "mixed_bf16")
    with pytest.raises(ValueError, match="its part 'layers' already has a policy"):
        nn.apply(linen.Sequential([linen.relu, model]), "mixed_fp16")
    with pytest.raises(ValueError, match=r"made has a policy \(.*, and runs inside a model that"):
        nn.apply(Holder(), "mixed_bf16", inputs=(X,))


def test_a_module_that_is_bound_already_is_refused_with_the_way_out():
    class Late(linen.Module):
        @linen.compact
        def __call__(self, x):
            return nn.apply(linen.Dense(2), "mixed_bf16")(x)

    with pytest.raises(ValueError, match=r"Dense is bound already.*in setup\(\) without a name"):
        variables_of(Late(), X)


def lifted_scan(block):
    class Step(linen.Module):
        @linen.compact
        def __call__(self, x, _):
            return block(name="block")(x).astype(x.dtype), None

    return linen.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)


class Lifted(linen.Module):
    @linen.compact
    def __call__(self, x):
        x, _ = lifted_scan(linen.remat(Block))(name="layers")(x, None)
        many = linen.vmap(linen.Dense, variable_axes={"params": 0}, split_rngs={"params": True})
        return many(3, name="many")(x)


def test_transformed_layers_follow_and_have_the_paths_of_their_parameters():
    policy = Policy("bf16", "bf16", rules=(Rule("layers/block/dense", compute="float16"),))
    model = nn.apply(Lifted(), policy, inputs=(X,))
    stored = dtypes(variables_of(model, X)["params"])
    assert set(stored.values()) == {"bfloat16"} | {stored["layers/block/dense/kernel"]}
    assert stored["layers/block/gain"] == "bfloat16"
    assert {row.path: row.compute for row in nn.describe(Lifted(), policy, inputs=(X,)).rows} == {
        "layers/block": "follows",
        "layers/block/dense": "float16",
        "layers/block/norm": "float32",
        "many": "bfloat16",
    }


class Jitted(linen.Module):
    part: linen.Module = linen.jit(Model)()

    def __call__(self, x):
        return self.part(x)


def test_what_nn_jit_has_traced_for_one_policy_is_not_taken_for_another():
    model, x = Jitted(), jnp.ones((2, 4))
    variables = model.init(KEY, x)
    operands = lambda m: {
        dtype for p in program.products(m.apply, variables, x) for dtype in p.operand_dtypes
    }
    assert operands(model) == {"float32"}
    for name, dtype in (("mixed_bf16", "bfloat16"), ("mixed_fp16", "float16")):
        assert operands(nn.apply(model, name)) == {dtype}
    assert operands(model) == {"float32"}


def test_what_nn_jit_has_traced_is_looked_at_again():
    policy = Policy(compute="bf16", rules=(Rule("part/head", compute="float32"),))
    for _ in range(2):
        nn.apply(Jitted(), policy).init(KEY, jnp.ones((2, 4)))
        assert len(nn.describe(Jitted(), policy, inputs=(X,)).rows) == 7


class Stubborn(linen.Dense):
    """Accepts a dtype and does not pass it on, as flax#4008 did."""

    @linen.compact
    def __call__(self, x):
        return x @ self.param("kernel", self.kernel_init, (x.shape[-1], self.features))


class Secretive(Stubborn):
    """Computes in float32 and says that it did as it was told."""

    @linen.compact
    def __call__(self, x):
        return super().__call__(x).astype(self.dtype)


class Around(linen.Module):
    layer: type

    @linen.compact
    def __call__(self, x):
        return self.layer(3, name="inner")(x)


def test_a_switch_without_effect_is_an_error_and_a_rule_is_the_way_out():
    """Defect 45 (flax#4008): what a layer does is looked at, not what it accepts."""
    says = r"inner \(Stubborn\): dtype=bfloat16 was set, but its result \(.*test_linen.py:\d+\) is"
    with pytest.raises(ValueError, match=says):
        variables_of(nn.apply(Around(Stubborn), "mixed_bf16"), X)
    low = nn.apply(Around(Secretive), "mixed_bf16")
    variables_of(low, X)  # its result is right, and only the program shows more
    says = r"inner \(Secretive\).*its products \(.*test_linen.py:\d+\) have operands in float32"
    with pytest.raises(ValueError, match=says):
        nn.apply(Around(Secretive), "mixed_bf16", inputs=(X,))
    nn.apply(Around(Secretive), "mixed_bf16", inputs=(X,), verify=False)
    rule = Rule("inner", compute="float32")
    nn.apply(Around(Stubborn), Policy(compute="bf16", rules=(rule,)), inputs=(X,))


def test_a_layer_that_calls_its_base_is_judged_by_what_it_hands_out():
    class Widening(linen.Dense):
        @linen.compact
        def __call__(self, x):
            return super().__call__(x.astype(jnp.float32)).astype(jnp.bfloat16)

    nn.apply(Around(Widening), "mixed_bf16", inputs=(X,))


RULES = {
    "idle": (Rule("nrom", compute="float32"), r"finds nothing in this model\. Layers: blocks_0/de"),
    "only parameters": (
        Rule("kernel$", compute="float32"),
        r"compute can do nothing, since it finds only parameters \(blocks_0/dense/kernel\)",
    ),
    "hidden": (Rule("blocks_1/norm", compute="bf16"), "never holds: the earlier rule 'norm->"),
}


@pytest.mark.parametrize(("rule", "says"), RULES.values(), ids=RULES)
def test_a_rule_that_cannot_act_is_an_error(rule, says):
    model = nn.apply(Model(), Policy(rules=(Rule("norm", compute="float32"), rule)))
    with pytest.raises(ValueError, match=says):
        variables_of(model, X)


def test_parameters_that_were_cast_on_their_way_are_an_error_where_digits_are_lost():
    """Scales of norms, and layers that a rule keeps in float32: `value_and_grad` given the policy
    would round them."""
    model = nn.apply(Model(), "mixed_bf16")
    variables = variables_of(model, X)
    low = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), variables)
    with pytest.raises(ValueError, match=r"blocks_0/norm/\w+ arrives in bfloat16, but the policy"):
        jax.eval_shape(model.apply, low, X)
    dense = nn.apply(linen.Dense(2), "mixed_bf16")
    low = {"params": {"kernel": jnp.ones((4, 2), jnp.bfloat16), "bias": jnp.ones(2, jnp.bfloat16)}}
    assert jax.eval_shape(dense.apply, low, X).dtype == jnp.float32


def test_bridges_between_the_libraries_are_refused():
    class Bridge(linen.Module):
        @linen.compact
        def __call__(self, x):
            return nnx.bridge.to_linen(nnx.Linear, 4, 3)(x)

    with pytest.raises(TypeError, match=r"ToLinen_0 \(ToLinen\) is a bridge between"):
        nn.apply(Bridge(), "mixed_bf16", inputs=(X,))
    with pytest.raises(TypeError, match=r"the model \(ToNNX\) is a bridge between"):
        nn.apply(nnx.bridge.ToNNX(linen.Dense(3), rngs=nnx.Rngs(0)), "mixed_bf16")


def test_layers_of_other_dtypes_are_left_as_they_were_written():
    class Mixed(linen.Module):
        @linen.compact
        def __call__(self, x):
            wide = linen.Dense(3, param_dtype=jnp.float64, name="wide")(x)
            turned = linen.Dense(3, param_dtype=jnp.complex64, name="turned")(x)
            return wide, turned, linen.Dense(3, name="low")(x)

    with jax.enable_x64(True):
        model = nn.apply(Mixed(), "pure_bf16", inputs=(X,))
        stored = dtypes(variables_of(model, X)["params"])
        assert [leaf.dtype.name for leaf in output_of(model, X)] == [
            "float64",
            "complex64",
            "float32",
        ]
    assert {stored[f"{name}/kernel"] for name in ("wide", "turned", "low")} == {
        "float64",
        "complex64",
        "bfloat16",
    }


#: Values that bfloat16 has, so that a cast of the input changes nothing.
WIDE = jnp.float32([[1.0, -0.5, 0.25, 3.0], [2.0, 0.125, -1.5, 0.75]])


MIXED = nn.apply(Model(), "mixed_bf16")


def loss_of(model, params, x):
    return jnp.mean(model.apply({"params": params}, x)["logits"] ** 2)


@functools.cache
def parameters():
    return jax.jit(MIXED.init)(KEY, WIDE)["params"]


@functools.cache
def gradients(block):
    """Those of a model that casts its float32 parameters itself."""
    loss = functools.partial(loss_of, nn.apply(Model(block), "mixed_bf16"))
    return jax.jit(jax.grad(loss))(parameters(), WIDE)


def test_gradients_are_float32_and_those_of_low_weights_have_the_bits_of_the_low_product():
    """The cast in a layer hands the 16-bit gradient on as it is: as if the cast came before."""
    grads = gradients(Block)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}
    low = lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32)
    kernel = grads["blocks_0"]["dense"]["kernel"]
    np.testing.assert_array_equal(kernel, low(kernel))
    scale = grads["blocks_0"]["norm"]["scale"]
    assert np.any(scale != low(scale))


def test_value_and_grad_is_given_the_model_and_leaves_the_parameters_to_it():
    loss = functools.partial(loss_of, MIXED)
    step = train.value_and_grad(loss, MIXED, scale=2.0**10)
    jax.tree.map(
        np.testing.assert_array_equal, jax.jit(step)(parameters(), WIDE)[1], gradients(Block)
    )
    with pytest.raises(ValueError, match=r"norm/\w+ arrives in bfloat16.*in place of the policy"):
        jax.eval_shape(train.value_and_grad(loss, "mixed_bf16"), parameters(), WIDE)


def test_each_weight_is_cast_once_and_remat_gives_the_same_gradients():
    """Defect 53: a cache of cast weights went stale. Here is no cache: a weight is cast once, and
    what `remat` casts anew is the same."""
    step = jax.value_and_grad(functools.partial(loss_of, MIXED))
    text = str(jax.make_jaxpr(step)(parameters(), WIDE))
    assert text.count("bf16[4,4] = convert_element_type") == 2  # one kernel in each block
    want, got = gradients(Block), gradients(linen.remat(Block))
    jax.tree.map(np.testing.assert_array_equal, want, got)


def test_it_is_the_apply_fn_of_a_train_state_and_does_not_trace_again():
    model = nn.apply(linen.Sequential([linen.Dense(4), linen.LayerNorm()]), "mixed_bf16")
    x, traces = jnp.ones((2, 4)), []
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=jax.jit(model.init)(KEY, x)["params"], tx=optax.sgd(0.1)
    ).replace(step=jnp.int32(0))

    @jax.jit
    def step(state, x):
        traces.append(1)
        grads = jax.grad(lambda p: jnp.sum(state.apply_fn({"params": p}, x) ** 2))(state.params)
        return state.apply_gradients(grads=grads)

    step(step(state, x), x)
    assert len(traces) == 1
