import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from jprec import nn, program

X = jnp.linspace(-1.0, 1.0, 48).reshape(2, 3, 8)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.dense = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.dense(x)


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(5, 8, rngs=rngs)
        self.blocks = nnx.List([Block(rngs), Block(rngs)])

    def __call__(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return self.embed.attend(x)

    def run(self, block, x):
        return block(x)


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x):
        norm, attention = (
            linen.LayerNorm(name="norm"),
            linen.MultiHeadAttention(2, name="attention"),
        )
        x = x + attention(norm(x))
        return x + linen.Dense(8, name="dense")(x)


class LinenTransformer(linen.Module):
    block: type = LinenBlock

    def setup(self):
        self.embed = linen.Embed(5, 8)
        self.blocks = [self.block(), self.block()]

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


@functools.cache
def built():
    return Transformer(nnx.Rngs(0))


def model():
    return nnx.clone(built())


def loss_of(module):
    graph, state = nnx.split(module)
    return state, lambda state, x: jnp.mean(nnx.merge(graph, state)(x) ** 2)


def same(a, b):
    leaves = [jax.tree.leaves(tree) for tree in (a, b)]
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(np.array_equal(x, y) for x, y in zip(*leaves, strict=True))


BLOCK = [
    "attention/query",
    "attention/key",
    "attention/value",
    "attention/...qhd,...khd->...hqk",
    "attention/...hqk,...khd->...qhd",
    "attention/out",
    "dense",
]


def test_products_carry_the_paths_of_their_modules():
    state, loss = loss_of(nn.scoped(model()))
    scopes = [p.scope for p in program.products(loss, state, X)]
    assert [nn.scope_path(s) for s in scopes] == [
        *[f"blocks/{i}/{nn.scope_path(name)}" for i in (0, 1) for name in BLOCK],
        "embed",
    ]
    assert scopes[0] == "blocks/0/attention/query"
    plain, loss = loss_of(model())
    assert {nn.scope_path(p.scope) for p in program.products(loss, plain, X)} == {""}


def test_forward_and_backward_products_of_a_module_have_the_same_path():
    state, loss = loss_of(nn.scoped(model()))
    found = program.products(jax.grad(loss), state, X)
    forward, backward = (
        {nn.scope_path(p.scope) for p in found if p.phase == phase}
        for phase in ("forward", "backward")
    )
    assert forward == backward
    assert "blocks/1/attention/out" in forward


@pytest.mark.parametrize("block", [LinenBlock, linen.remat(LinenBlock)], ids=["plain", "remat"])
def test_linen_names_come_out_the_same(block):
    net = LinenTransformer(block)
    params = net.init(jax.random.key(0), X)["params"]

    def loss(params):
        return jnp.mean(net.apply({"params": params}, X) ** 2)

    found = program.products(jax.grad(loss), params)
    state, nnx_loss = loss_of(nn.scoped(model()))
    want = {nn.scope_path(p.scope) for p in program.products(nnx_loss, state, X)}
    in_params = lambda path: path.replace("blocks/", "blocks_")
    assert {nn.scope_path(p.scope) for p in found} == set(map(in_params, want))
    # They are the paths of the parameters.
    for path in {nn.scope_path(p.scope) for p in found}:
        holder = params
        for name in path.split("/"):
            holder = holder[name]


def test_recomputed_products_carry_the_same_paths():
    class Checkpointed(Transformer):
        def run(self, block, x):
            return nnx.remat(lambda block, x: block(x))(block, x)

    state, loss = loss_of(nn.scoped(Checkpointed(nnx.Rngs(0))))
    found = program.products(jax.grad(loss), state, X)
    recomputed = {nn.scope_path(p.scope) for p in found if p.phase == "recomputed"}
    assert "blocks/0/attention/query" in recomputed
    assert recomputed <= {nn.scope_path(p.scope) for p in found if p.phase == "forward"}


def test_bits_of_values_and_gradients_stay():
    plain, plain_loss = loss_of(model().blocks[0])
    state, loss = loss_of(nn.scoped(model().blocks[0]))
    assert same(plain, state)
    got = jax.jit(jax.value_and_grad(loss))(state, X)
    assert same(got, jax.jit(jax.value_and_grad(plain_loss))(plain, X))


def test_a_training_step_of_nnx_works_and_does_not_trace_again():
    traces = []

    @nnx.jit
    def step(module, optimizer, x):
        traces.append(1)
        loss, gradient = nnx.value_and_grad(lambda module: jnp.mean(module(x) ** 2))(module)
        optimizer.update(module, gradient)
        return loss

    states = []
    adam = optax.adam(1e-3)
    plain = Shared(nnx.Rngs(0))
    for module in (nn.scoped(plain), nn.scoped(plain), nnx.clone(plain)):
        optimizer = nnx.Optimizer(module, adam, wrt=nnx.Param)
        step(module, optimizer, X)
        step(module, optimizer, X)
        states.append(nnx.state((module, optimizer)))
    assert len(traces) == 2  # scoped, and not
    assert same(states[0], states[1])
    assert same(states[0], states[2])


def test_states_are_exchanged_with_the_plain_model_and_copies_stay_scoped():
    original = model()
    scoped = nn.scoped(original)
    nnx.update(scoped, jax.tree.map(jnp.zeros_like, nnx.state(scoped)))
    assert same(nnx.state(original), nnx.state(model()))  # the original is not touched
    nnx.update(original, nnx.state(scoped))
    for twin in (copy.deepcopy(scoped), nnx.clone(scoped)):
        state, loss = loss_of(twin)
        assert program.products(loss, state, X)[0].scope == "blocks/0/attention/query"
    assert repr(nnx.graphdef(scoped)) == repr(nnx.graphdef(original))
    assert [type(m).__name__ for _, m in nnx.iter_modules(scoped)] == [
        type(m).__name__ for _, m in nnx.iter_modules(original)
    ]


def test_twice_is_once_and_there_is_a_way_back():
    once = nn.scoped(model())
    assert nnx.graphdef(nn.scoped(once)) == nnx.graphdef(once)
    assert nnx.graphdef(nn.unscoped(once)) == nnx.graphdef(model())
    assert nnx.graphdef(once) != nnx.graphdef(model())
    assert nnx.graphdef(nn.unscoped(model())) == nnx.graphdef(model())


def test_a_part_taken_out_of_a_scoped_model_is_renamed():
    block = nn.scoped(nn.scoped(model()).blocks[1])
    state, loss = loss_of(block)
    assert program.products(loss, state, X)[0].scope == "attention/query"


@pytest.mark.parametrize("policy_first", [True, False])
def test_scopes_and_policies_go_together(policy_first):
    both = (lambda m: nn.apply(m, "mixed_bf16"), nn.scoped)
    module = model()
    for step in both if policy_first else both[::-1]:
        module = step(module)
    assert nn.policy_of(module).name == "mixed_bf16"
    state, loss = loss_of(module)
    first = program.products(loss, state, X)[0]
    assert (first.scope, first.operand_dtypes[0]) == ("blocks/0/attention/query", "bfloat16")
    assert nnx.graphdef(nn.scoped(module)) == nnx.graphdef(module)
    if policy_first:
        assert nnx.graphdef(nn.unscoped(module)) == nnx.graphdef(nn.apply(model(), "mixed_bf16"))
    else:
        with pytest.raises(ValueError, match="Apply the policy first"):
            nn.unscoped(module)


class Shared(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(8, 8, rngs=rngs)
        self.outer = Outer(self.inner)

    def __call__(self, x):
        return self.outer(self.inner(x))


class Outer(nnx.Module):
    def __init__(self, inner):
        self.held = inner

    def __call__(self, x):
        return self.held(x)


def test_a_module_held_twice_has_one_path_inside_the_callers():
    state, loss = loss_of(nn.scoped(Shared(nnx.Rngs(0))))
    assert [p.scope for p in program.products(loss, state, X)] == ["inner", "outer/inner"]


def test_recurrent_cells_inside_a_scan():
    rnn = nnx.RNN(nnx.LSTMCell(8, 4, rngs=nnx.Rngs(0)))
    state, loss = loss_of(nn.scoped(nnx.Sequential(rnn)))
    found = program.products(loss, state, X)
    assert {(p.scope.rpartition("/")[0], p.trips) for p in found} == {("layers/0/cell", 3)}


def test_linen_modules_are_refused():
    with pytest.raises(TypeError, match="Linen"):
        nn.scoped(linen.Dense(3))


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("", ""),
        ("jvp()", ""),
        ("vmap(transpose(jvp(Net)))/head", "head"),
        ("MLP/Dense_0", "Dense_0"),
        ("Net.encode/Dense_0", "Dense_0"),
        ("jvp(Net)/encoder.attend", "encoder"),
        ("Dense", ""),
        ("blocks/0/features", "blocks/0/features"),
    ],
)
def test_scope_paths(scope, path):
    assert nn.scope_path(scope) == path
