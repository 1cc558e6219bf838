"""The products of models and layers, against numbers worked out by hand.

A row of `ROWS` is a function with its arguments, and what it multiplies: for each product the
operations of one run as a formula in the sizes below, how often it runs, and the formats. The
formulas come from the mathematics of the layer, not from a trace. Nothing is computed here.

Convolutions count the zeros of their padding and those between strided cotangents.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from jprec import program

#: Sizes: batch, time, inputs, outputs, hidden units, vocabulary, rank; heads and their width.
#: They are different primes, so that products of different shapes have different operations.
B, T, IN, OUT, H, V, R = 2, 3, 5, 7, 11, 13, 17
HEADS, HEAD = 4, 19
WIDTH = HEADS * HEAD

#: Side of an image, side of a kernel, layers of a stack.
SIDE, K, LAYERS = 8, 3, 6

SHORT = {"float32": "f32", "bfloat16": "bf16", "complex64": "c64", "int32": "i32"}


class Expected(NamedTuple):
    """One product: `flops` in one run, `steps` runs, `formats` of both operands and the result."""

    phase: str
    kind: str
    flops: int
    steps: int | None
    formats: str
    precision: str | None


def _expected(phase, flops, *, count=1, steps=1, formats="f32 f32 f32", precision=None, kind="dot"):
    kind = {"dot": "dot_general", "conv": "conv_general_dilated"}.get(kind, kind)
    return count * [Expected(phase, kind, flops, steps, formats, precision)]


forward = functools.partial(_expected, "forward")
backward = functools.partial(_expected, "backward")
recomputed = functools.partial(_expected, "recomputed")


def found(fn, *args):
    """What the walk says, in the same words."""
    return [
        Expected(
            p.phase,
            p.kind,
            p.flops,
            p.trips,
            " ".join(SHORT[name] for name in (*p.operand_dtypes, p.result_dtype)),
            p.precision,
        )
        for p in program.products(fn, *args)
    ]


# --- how a row is built; shapes stand for arrays


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def linen(module, *inputs, **how):
    """A Linen layer: a function of its variables and inputs."""
    apply = functools.partial(module.apply, **how)
    init = functools.partial(module.init, **{k: v for k, v in how.items() if k != "mutable"})
    variables = jax.eval_shape(init, jax.random.key(0), *inputs)
    if "mutable" not in how:
        return apply, (variables, *inputs)
    return lambda *args: apply(*args)[0], (variables, *inputs)


def modern(build, *inputs):
    """An NNX layer: a function of its parameters, its inputs, and what else it holds."""
    graph, params, rest = nnx.split(nnx.eval_shape(lambda: build(rngs=nnx.Rngs(0))), nnx.Param, ...)

    def apply(params, *args):
        *inputs, rest = args
        return nnx.merge(graph, params, rest, copy=True)(*inputs)

    return apply, (params, *inputs, rest)


def gradient(case, argnums=(0, 1)):
    """The gradient of the sum of all outputs, of parameters and input unless told otherwise."""
    fn, args = case
    return jax.grad(lambda *args: jnp.sum(fn(*args).astype(jnp.float32)), argnums), args


def highest(case):
    """The same within `jax.default_matmul_precision("highest")`."""
    fn, args = case
    return jax.default_matmul_precision("highest")(fn), args


def recurrent(cell):
    """A Linen cell over T steps."""
    return linen(nn.RNN(cell), array(B, T, IN))


def modern_recurrent(cell):
    """An NNX cell over T steps."""
    return modern(lambda rngs: nnx.RNN(cell(IN, H, rngs=rngs)), array(B, T, IN))


# --- functions that are no single layer


def self_attention(query_key_value):
    return jax.nn.dot_product_attention(*query_key_value)


def dot_product_attention(dtype):
    """Attention of T queries to T keys, a function of a list of three arrays."""
    return self_attention, ([array(B, T, HEADS, HEAD, dtype=dtype)] * 3,)


class BatchNormMLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=False)(nn.Dense(H)(x))
        return nn.Dense(OUT)(nn.relu(x))


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(IN, H, rngs=rngs)
        self.second = nnx.Linear(H, OUT, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


def mlp(params, x):
    return jnp.tanh(x @ params["first"]) @ params["second"]


MLP_PARAMS = {"first": array(IN, H), "second": array(H, OUT)}


def adam_step():
    """A step on a pytree: loss, gradient, Adam, update."""
    adam = optax.adam(1e-3)

    def step(params, state, x, y):
        loss = lambda params: jnp.mean((mlp(params, x) - y) ** 2)
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = adam.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (MLP_PARAMS, jax.eval_shape(adam.init, MLP_PARAMS), array(B, IN), array(B, OUT))


def nnx_step():
    """The same step on an NNX model, through nnx.jit and nnx.Optimizer."""

    def build():
        model = MLP(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    graph, state = nnx.split(nnx.eval_shape(build))

    @nnx.jit
    def update(model, optimizer, x, y):
        loss = lambda model: jnp.mean((model(x) - y) ** 2)
        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        value = update(model, optimizer, x, y)
        return nnx.state((model, optimizer)), value

    return step, (state, array(B, IN), array(B, OUT))


def layers_by_scan(weights, x):
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.tanh(nn.Dense(H)(x)), None


class Stack(nn.Module):
    """nn.scan over layers that are computed anew in the backward pass."""

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            nn.remat(Block),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
        )
        return layers()(x, None)[0]


def nnx_stack():
    """nnx.scan over layers that nnx.vmap made."""

    @nnx.vmap(in_axes=0, out_axes=0)
    def create(rngs):
        return nnx.Linear(H, H, rngs=rngs)

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def run(layer, x):
        return nnx.tanh(layer(x))

    graph, state = nnx.split(nnx.eval_shape(lambda: create(nnx.Rngs(0).split(LAYERS))))
    return lambda state, x: run(nnx.merge(graph, state), x), (state, array(B, H))


@jax.custom_vjp
def clipped_product(x, w):
    return x @ w


def _clipped_product_forward(x, w):
    return x @ w, (x, w)


def _clipped_product_backward(kept, cotangent):
    x, w = kept
    cotangent = jnp.clip(cotangent, -1, 1)
    return cotangent @ w.T, x.T @ cotangent


clipped_product.defvjp(_clipped_product_forward, _clipped_product_backward)


def while_small(w, x):
    return lax.while_loop(lambda x: jnp.sum(x) < 1, lambda x: x @ w, x)


def repeated(w, x, n):
    return lax.fori_loop(0, n, lambda _, x: x @ w, x)


def branches(w, x):
    return lax.cond(jnp.sum(x) > 0, lambda: x @ w, lambda: (x @ w) @ (w.T @ w))


def sharded(w, x):
    """A product that is split by rows among four devices."""
    mesh = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (PartitionSpec(), PartitionSpec("data"))
    run = jax.shard_map(
        lambda w, x: x @ w, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("data")
    )
    return run(w, x)


def ctc(logits, labels):
    padding = jnp.zeros
    return optax.ctc_loss(logits, padding(logits.shape[:2]), labels, padding(labels.shape))


@dataclasses.dataclass(frozen=True)
class Row:
    """A function with its arguments, and the products that it must show."""

    build: Callable[[], tuple[Callable, tuple[Any, ...]]]
    expected: list[Expected]


CONV = (B, SIDE, SIDE, IN)
#: Positions of a 3 × 3 window that moves by two in 8 × 8 pixels without padding.
STRIDED = (SIDE - K) // 2 + 1

ROWS = {
    # --- dense layers: x [B, IN] W [IN, OUT] is 2 B IN OUT operations, and so is each of
    # dx = dy Wᵀ and dW = xᵀ dy
    "nn.Dense": Row(lambda: linen(nn.Dense(OUT), array(B, IN)), forward(2 * B * IN * OUT)),
    "nn.Dense, gradient": Row(
        lambda: gradient(linen(nn.Dense(OUT), array(B, IN))),
        forward(2 * B * IN * OUT) + backward(2 * B * IN * OUT, count=2),
    ),
    "nnx.Linear, gradient": Row(
        lambda: gradient(modern(lambda rngs: nnx.Linear(IN, OUT, rngs=rngs), array(B, IN))),
        forward(2 * B * IN * OUT) + backward(2 * B * IN * OUT, count=2),
    ),
    "nnx.Linear, gradient of the parameters": Row(
        lambda: gradient(
            modern(lambda rngs: nnx.Linear(IN, OUT, rngs=rngs), array(B, IN)), argnums=0
        ),
        forward(2 * B * IN * OUT) + backward(2 * B * IN * OUT),
    ),
    "nnx.Linear over leading axes": Row(
        lambda: modern(lambda rngs: nnx.Linear(IN, OUT, rngs=rngs), array(B, T, SIDE, IN)),
        forward(2 * (B * T * SIDE) * IN * OUT),
    ),
    "nn.DenseGeneral of two axes": Row(
        lambda: linen(nn.DenseGeneral((HEADS, HEAD), axis=(-2, -1)), array(B, T, IN)),
        forward(2 * B * (T * IN) * (HEADS * HEAD)),
    ),
    "nnx.LinearGeneral of two axes, gradient": Row(
        lambda: gradient(
            modern(
                lambda rngs: nnx.LinearGeneral((T, IN), (HEADS, HEAD), axis=(-2, -1), rngs=rngs),
                array(B, T, IN),
            )
        ),
        forward(2 * B * (T * IN) * (HEADS * HEAD)) + backward(2 * B * (T * IN) * WIDTH, count=2),
    ),
    "nn.Einsum": Row(
        lambda: linen(nn.Einsum((T, IN, OUT), "bti,tio->bto"), array(B, T, IN)),
        forward(2 * B * T * IN * OUT),
    ),
    "nnx.Einsum": Row(
        lambda: modern(
            lambda rngs: nnx.Einsum("bti,tio->bto", (T, IN, OUT), (T, OUT), rngs=rngs),
            array(B, T, IN),
        ),
        forward(2 * B * T * IN * OUT),
    ),
    "nn.Dense, dtype bf16": Row(  # the parameters stay in float32, and are cast
        lambda: gradient(linen(nn.Dense(OUT, dtype=jnp.bfloat16), array(B, IN))),
        forward(2 * B * IN * OUT, formats="bf16 bf16 bf16")
        + backward(2 * B * IN * OUT, count=2, formats="bf16 bf16 bf16"),
    ),
    "nn.Dense, parameters bf16, input f32": Row(  # promoted: the product is FP32
        lambda: gradient(linen(nn.Dense(OUT, param_dtype=jnp.bfloat16), array(B, IN))),
        forward(2 * B * IN * OUT) + backward(2 * B * IN * OUT, count=2),
    ),
    "lax.dot_general, bf16 by f32": Row(  # not promoted: XLA takes two formats in one product
        lambda: (
            lambda x, w: lax.dot_general(x, w, (((1,), (0,)), ((), ()))),
            (array(B, IN, dtype=jnp.bfloat16), array(IN, OUT)),
        ),
        forward(2 * B * IN * OUT, formats="bf16 f32 f32"),
    ),
    "jnp.matmul, bf16 to f32": Row(  # the cotangent is f32, so the backward products are mixed
        lambda: gradient(
            (
                functools.partial(jnp.matmul, preferred_element_type=jnp.float32),
                (array(B, IN, dtype=jnp.bfloat16), array(IN, OUT, dtype=jnp.bfloat16)),
            )
        ),
        forward(2 * B * IN * OUT, formats="bf16 bf16 f32")
        + backward(2 * B * IN * OUT, count=2, formats="f32 bf16 f32"),
    ),
    "complex and integer": Row(  # two operations for each product, whatever it takes to do it
        lambda: (
            lambda z, n: (z @ z.T, n @ n.T),
            (array(B, IN, dtype=jnp.complex64), array(B, IN, dtype=jnp.int32)),
        ),
        forward(2 * B * IN * B, formats="c64 c64 c64")
        + forward(2 * B * IN * B, formats="i32 i32 i32"),
    ),
    # --- convolutions: each number of the result sums K K IN products; the input's gradient has
    # IN numbers a pixel and sums K K OUT, the kernel's has K K IN OUT and sums over all positions
    "nn.Conv of one axis": Row(
        lambda: linen(nn.Conv(OUT, (K,)), array(B, T, IN)),
        forward(2 * (B * T * OUT) * (K * IN), kind="conv"),
    ),
    "nnx.Conv, strides 2, gradient": Row(
        lambda: gradient(
            modern(
                lambda rngs: nnx.Conv(IN, OUT, (K, K), strides=2, padding="VALID", rngs=rngs),
                array(*CONV),
            )
        ),
        forward(2 * (B * STRIDED**2 * OUT) * (K * K * IN), kind="conv")
        + backward(2 * (B * SIDE * SIDE * IN) * (K * K * OUT), kind="conv")
        + backward(2 * (K * K * IN * OUT) * (B * STRIDED**2), kind="conv"),
    ),
    "nn.Conv, depthwise, gradient": Row(  # a group is one channel
        lambda: gradient(linen(nn.Conv(2 * IN, (K, K), feature_group_count=IN), array(*CONV))),
        forward(2 * (B * SIDE * SIDE * 2 * IN) * (K * K * 1), kind="conv")
        + backward(2 * (B * SIDE * SIDE * IN) * (K * K * 2), kind="conv")
        + backward(2 * (K * K * 1 * 2 * IN) * (B * SIDE * SIDE), kind="conv"),
    ),
    "nnx.Conv, dilated": Row(  # the holes of the kernel cost nothing
        lambda: modern(
            lambda rngs: nnx.Conv(IN, OUT, (K, K), kernel_dilation=2, rngs=rngs), array(*CONV)
        ),
        forward(2 * (B * SIDE * SIDE * OUT) * (K * K * IN), kind="conv"),
    ),
    "nn.ConvTranspose, strides 2": Row(  # the zeros between the inputs count
        lambda: linen(nn.ConvTranspose(OUT, (K, K), strides=(2, 2)), array(*CONV)),
        forward(2 * (B * (2 * SIDE) ** 2 * OUT) * (K * K * IN), kind="conv"),
    ),
    "nnx.ConvTranspose, strides 2, gradient": Row(  # and do so again in the kernel's gradient
        lambda: gradient(
            modern(
                lambda rngs: nnx.ConvTranspose(IN, OUT, (K, K), strides=(2, 2), rngs=rngs),
                array(*CONV),
            )
        ),
        forward(2 * (B * (2 * SIDE) ** 2 * OUT) * (K * K * IN), kind="conv")
        + backward(2 * (B * SIDE * SIDE * IN) * (K * K * OUT), kind="conv")
        + backward(2 * (K * K * IN * OUT) * (B * (2 * SIDE) ** 2), kind="conv"),
    ),
    "nn.ConvLocal": Row(  # patches are cut out by a convolution with an identity
        lambda: linen(nn.ConvLocal(OUT, (K, K)), array(*CONV)),
        forward(2 * (B * SIDE * SIDE * IN * K * K) * (K * K), kind="conv")
        + forward(2 * (B * SIDE * SIDE) * (K * K * IN) * OUT),
    ),
    "jnp.convolve": Row(  # full: IN + K - 1 sums
        lambda: (jnp.convolve, (array(SIDE), array(K))),
        forward(2 * (SIDE + K - 1) * K, kind="conv"),
    ),
    # --- attention: four projections of WIDTH, two products of T × T
    "nn.MultiHeadAttention": Row(
        lambda: linen(nn.MultiHeadAttention(HEADS), array(B, T, WIDTH)),
        forward(2 * B * T * WIDTH**2, count=4) + forward(2 * B * T * T * WIDTH, count=2),
    ),
    "nn.MultiHeadAttention, gradient": Row(
        lambda: gradient(linen(nn.MultiHeadAttention(HEADS), array(B, T, WIDTH))),
        forward(2 * B * T * WIDTH**2, count=4)
        + forward(2 * B * T * T * WIDTH, count=2)
        + backward(2 * B * T * WIDTH**2, count=8)
        + backward(2 * B * T * T * WIDTH, count=4),
    ),
    "nnx.MultiHeadAttention, gradient": Row(
        lambda: gradient(
            modern(
                lambda rngs: nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs),
                array(B, T, WIDTH),
            )
        ),
        forward(2 * B * T * WIDTH**2, count=4)
        + forward(2 * B * T * T * WIDTH, count=2)
        + backward(2 * B * T * WIDTH**2, count=8)
        + backward(2 * B * T * T * WIDTH, count=4),
    ),
    "nn.MultiHeadAttention, precision highest": Row(
        lambda: linen(nn.MultiHeadAttention(HEADS, precision="highest"), array(B, T, WIDTH)),
        forward(2 * B * T * WIDTH**2, count=4, precision="HIGHEST")
        + forward(2 * B * T * T * WIDTH, count=2, precision="HIGHEST"),
    ),
    "nnx.MultiHeadAttention, precision highest": Row(  # which reaches the projections only
        lambda: modern(
            lambda rngs: nnx.MultiHeadAttention(
                HEADS, WIDTH, decode=False, precision="highest", rngs=rngs
            ),
            array(B, T, WIDTH),
        ),
        forward(2 * B * T * WIDTH**2, count=4, precision="HIGHEST")
        + forward(2 * B * T * T * WIDTH, count=2),
    ),
    "jax.nn.dot_product_attention, gradient": Row(
        lambda: gradient(dot_product_attention(jnp.float32), argnums=0),
        forward(2 * B * T * T * WIDTH, count=2) + backward(2 * B * T * T * WIDTH, count=4),
    ),
    "jax.nn.dot_product_attention, bf16, gradient": Row(
        # The scores are f32, and so is their cotangent: it meets bf16 queries and keys.
        lambda: gradient(dot_product_attention(jnp.bfloat16), argnums=0),
        forward(2 * B * T * T * WIDTH, formats="bf16 bf16 f32", precision="BF16_BF16_F32")
        + forward(2 * B * T * T * WIDTH, formats="bf16 bf16 bf16")
        + backward(
            2 * B * T * T * WIDTH, count=2, formats="f32 bf16 f32", precision="BF16_BF16_F32"
        )
        + backward(2 * B * T * T * WIDTH, count=2, formats="bf16 bf16 bf16"),
    ),
    # --- recurrent cells: a gate is x [B, IN] W [IN, H] and h [B, H] U [H, H], in each of T steps
    "nn.SimpleCell": Row(
        lambda: recurrent(nn.SimpleCell(H)),
        forward(2 * B * IN * H, steps=T) + forward(2 * B * H * H, steps=T),
    ),
    "nnx.SimpleCell, gradient": Row(
        lambda: gradient(modern_recurrent(nnx.SimpleCell)),
        forward(2 * B * IN * H, steps=T)
        + forward(2 * B * H * H, steps=T)
        + backward(2 * B * IN * H, count=2, steps=T)
        + backward(2 * B * H * H, count=2, steps=T),
    ),
    "nn.LSTMCell": Row(  # four gates, one product each
        lambda: recurrent(nn.LSTMCell(H)),
        forward(2 * B * IN * H, count=4, steps=T) + forward(2 * B * H * H, count=4, steps=T),
    ),
    "nn.LSTMCell, gradient": Row(
        lambda: gradient(recurrent(nn.LSTMCell(H))),
        forward(2 * B * IN * H, count=4, steps=T)
        + forward(2 * B * H * H, count=4, steps=T)
        + backward(2 * B * IN * H, count=8, steps=T)
        + backward(2 * B * H * H, count=8, steps=T),
    ),
    "nnx.LSTMCell": Row(
        lambda: modern_recurrent(nnx.LSTMCell),
        forward(2 * B * IN * H, count=4, steps=T) + forward(2 * B * H * H, count=4, steps=T),
    ),
    "nn.OptimizedLSTMCell, gradient": Row(  # four gates in one product
        lambda: gradient(recurrent(nn.OptimizedLSTMCell(H))),
        forward(2 * B * IN * (4 * H), steps=T)
        + forward(2 * B * H * (4 * H), steps=T)
        + backward(2 * B * IN * (4 * H), count=2, steps=T)
        + backward(2 * B * H * (4 * H), count=2, steps=T),
    ),
    "nnx.OptimizedLSTMCell": Row(
        lambda: modern_recurrent(nnx.OptimizedLSTMCell),
        forward(2 * B * IN * (4 * H), steps=T) + forward(2 * B * H * (4 * H), steps=T),
    ),
    "nn.GRUCell": Row(  # three gates, one product each
        lambda: recurrent(nn.GRUCell(H)),
        forward(2 * B * IN * H, count=3, steps=T) + forward(2 * B * H * H, count=3, steps=T),
    ),
    "nnx.GRUCell, gradient": Row(  # three gates in one product
        lambda: gradient(modern_recurrent(nnx.GRUCell)),
        forward(2 * B * IN * (3 * H), steps=T)
        + forward(2 * B * H * (3 * H), steps=T)
        + backward(2 * B * IN * (3 * H), count=2, steps=T)
        + backward(2 * B * H * (3 * H), count=2, steps=T),
    ),
    "nn.GRUCell, default_matmul_precision highest": Row(  # the only way: no cell has `precision`
        lambda: highest(recurrent(nn.GRUCell(H))),
        forward(2 * B * IN * H, count=3, steps=T, precision="HIGHEST")
        + forward(2 * B * H * H, count=3, steps=T, precision="HIGHEST"),
    ),
    "nn.LSTMCell, dtype bf16": Row(
        lambda: recurrent(nn.LSTMCell(H, dtype=jnp.bfloat16)),
        forward(2 * B * IN * H, count=4, steps=T, formats="bf16 bf16 bf16")
        + forward(2 * B * H * H, count=4, steps=T, formats="bf16 bf16 bf16"),
    ),
    "nn.MGUCell": Row(  # two gates
        lambda: recurrent(nn.MGUCell(H)),
        forward(2 * B * IN * H, count=2, steps=T) + forward(2 * B * H * H, count=2, steps=T),
    ),
    "nn.ConvLSTMCell": Row(
        lambda: linen(nn.RNN(nn.ConvLSTMCell(H, (K, K))), array(B, T, SIDE, SIDE, IN)),
        forward(2 * (B * SIDE * SIDE * 4 * H) * (K * K * IN), steps=T, kind="conv")
        + forward(2 * (B * SIDE * SIDE * 4 * H) * (K * K * H), steps=T, kind="conv"),
    ),
    "nnx.Bidirectional of GRUs": Row(
        lambda: modern(
            lambda rngs: nnx.Bidirectional(
                *(nnx.RNN(nnx.GRUCell(IN, H, rngs=rngs)) for _ in range(2))
            ),
            array(B, T, IN),
        ),
        forward(2 * B * IN * (3 * H), count=2, steps=T)
        + forward(2 * B * H * (3 * H), count=2, steps=T),
    ),
    # --- other layers and losses
    "nn.Embed": Row(  # a lookup
        lambda: gradient(linen(nn.Embed(V, WIDTH), array(B, T, dtype=jnp.int32)), argnums=0),
        [],
    ),
    "nn.Embed.attend, gradient": Row(
        lambda: gradient(linen(nn.Embed(V, WIDTH), array(B, T, WIDTH), method="attend")),
        forward(2 * B * T * WIDTH * V) + backward(2 * B * T * WIDTH * V, count=2),
    ),
    "nnx.LoRA": Row(
        lambda: modern(lambda rngs: nnx.LoRA(IN, R, OUT, rngs=rngs), array(B, IN)),
        forward(2 * B * IN * R) + forward(2 * B * R * OUT),
    ),
    "nnx.LoRALinear, precision highest": Row(  # which reaches the dense layer only
        lambda: modern(
            lambda rngs: nnx.LoRALinear(IN, OUT, lora_rank=R, precision="highest", rngs=rngs),
            array(B, IN),
        ),
        forward(2 * B * IN * OUT, precision="HIGHEST")
        + forward(2 * B * IN * R)
        + forward(2 * B * R * OUT),
    ),
    "nnx.LoRALinear, dtype bf16": Row(  # which reaches the dense layer only
        lambda: modern(
            lambda rngs: nnx.LoRALinear(IN, OUT, lora_rank=R, dtype=jnp.bfloat16, rngs=rngs),
            array(B, IN),
        ),
        forward(2 * B * IN * OUT, formats="bf16 bf16 bf16")
        + forward(2 * B * IN * R)
        + forward(2 * B * R * OUT),
    ),
    "nn.SpectralNorm": Row(  # v = W u, u = v W, σ = (v W) u, and the layer
        lambda: linen(
            nn.SpectralNorm(nn.Dense(OUT)), array(B, IN), update_stats=True, mutable=["batch_stats"]
        ),
        forward(2 * IN * OUT, count=3) + forward(2 * OUT) + forward(2 * B * IN * OUT),
    ),
    "nnx.SpectralNorm": Row(
        lambda: modern(
            lambda rngs: nnx.SpectralNorm(nnx.Linear(IN, OUT, rngs=rngs), rngs=rngs), array(B, IN)
        ),
        forward(2 * IN * OUT, count=3) + forward(2 * OUT) + forward(2 * B * IN * OUT),
    ),
    "MLP with nn.BatchNorm, gradient": Row(  # the norm has no product
        lambda: gradient(linen(BatchNormMLP(), array(B, IN), mutable=["batch_stats"])),
        forward(2 * B * IN * H)
        + forward(2 * B * H * OUT)
        + backward(2 * B * IN * H, count=2)
        + backward(2 * B * H * OUT, count=2),
    ),
    "optax.ctc_loss, gradient": Row(
        # log-probabilities are picked by a product with a one-hot matrix of labels, and the last
        # score by one with a one-hot row; the gradient of a row product multiplies, without a sum
        lambda: gradient((ctc, (array(B, T, V), array(B, OUT, dtype=jnp.int32))), argnums=0),
        forward(2 * B * T * OUT * V)
        + forward(2 * B * (OUT + 1))
        + backward(2 * B * T * OUT * V)
        + backward(2 * B * (OUT + 1)),
    ),
    "jax.image.resize": Row(  # one matrix for each axis, [SIDE, 2 SIDE]
        lambda: (
            lambda x: jax.image.resize(x, (2 * SIDE, 2 * SIDE), "linear"),
            (array(SIDE, SIDE),),
        ),
        forward(2 * SIDE * SIDE * (2 * SIDE), precision="HIGHEST")
        + forward(2 * SIDE * (2 * SIDE) ** 2, precision="HIGHEST"),
    ),
    # --- einsum and linear algebra
    "einsum of three operands": Row(  # (A B) C, since the batch is small
        lambda: (
            lambda a, b, c: jnp.einsum("ij,jk,kl->il", a, b, c),
            (array(B, IN), array(IN, V), array(V, OUT)),
        ),
        forward(2 * B * IN * V) + forward(2 * B * V * OUT),
    ),
    "jnp.linalg.multi_dot": Row(
        lambda: (
            lambda *factors: jnp.linalg.multi_dot(factors, precision="highest"),
            (array(B, IN), array(IN, V), array(V, OUT)),
        ),
        forward(2 * B * IN * V, precision="HIGHEST")
        + forward(2 * B * V * OUT, precision="HIGHEST"),
    ),
    "inner and outer products": Row(  # jnp.outer is no product of matrices
        lambda: (
            lambda x, y: (jnp.vdot(x, x), jnp.outer(x, y), jnp.einsum("i,j->ij", x, y)),
            (array(IN), array(OUT)),
        ),
        forward(2 * IN) + forward(2 * IN * OUT),
    ),
    "jnp.linalg.solve": Row(  # by LU and triangular solves, which are no products
        lambda: (jnp.linalg.solve, (array(IN, IN), array(IN, OUT))),
        [],
    ),
    "jnp.linalg.solve, gradient": Row(  # dA = -A⁻ᵀ dx xᵀ
        lambda: gradient((jnp.linalg.solve, (array(IN, IN), array(IN, OUT)))),
        backward(2 * IN * IN * OUT, precision="HIGHEST"),
    ),
    "jnp.linalg.inv, gradient": Row(
        lambda: gradient((jnp.linalg.inv, (array(IN, IN),)), argnums=0),
        backward(2 * IN * IN * IN, precision="HIGHEST"),
    ),
    "jax.scipy.linalg.expm": Row(
        # Padé of order 3, 5 and 7 in branches: 2, 3 and 4 products; at most 16 squarings.
        lambda: (jax.scipy.linalg.expm, (array(IN, IN),)),
        forward(2 * IN * IN * IN, count=2 + 3 + 4, precision="HIGHEST")
        + forward(2 * IN * IN * IN, steps=16, precision="HIGHEST"),
    ),
    "jnp.linalg.matrix_power": Row(  # A⁵ = A (A²)²
        lambda: (lambda a: jnp.linalg.matrix_power(a, 5), (array(IN, IN),)),
        forward(2 * IN * IN * IN, count=3),
    ),
    "lax.ragged_dot": Row(  # each row meets the matrix of its own group
        lambda: (lax.ragged_dot, (array(B, IN), array(T, IN, OUT), array(T, dtype=jnp.int32))),
        forward(2 * B * IN * OUT, kind="ragged_dot_general"),
    ),
    # --- transformations
    "jvp": Row(  # y = x W, dy = dx W + x dW
        lambda: (
            lambda x, w, dx, dw: jax.jvp(jnp.matmul, (x, w), (dx, dw)),
            (array(B, IN), array(IN, OUT), array(B, IN), array(IN, OUT)),
        ),
        forward(2 * B * IN * OUT, count=3),
    ),
    "vmap of a matrix by a vector": Row(  # one product of matrices, which a GPU does in TF32
        lambda: (
            jax.vmap(lambda w, x: w @ x, in_axes=(None, 0)),
            (array(OUT, IN), array(B, IN)),
        ),
        forward(2 * B * IN * OUT),
    ),
    "jacrev of a matrix by a vector": Row(  # OUT unit vectors times W
        lambda: (
            lambda w, x: jax.jacrev(lambda x: w @ x)(x),
            (array(OUT, IN), array(IN)),
        ),
        forward(2 * OUT * IN) + backward(2 * OUT * OUT * IN),
    ),
    "remat of two layers": Row(  # tanh wants its outputs back: both products run again
        lambda: gradient(
            (jax.checkpoint(lambda p, x: jnp.tanh(mlp(p, x))), (MLP_PARAMS, array(B, IN)))
        ),
        forward(2 * B * IN * H)
        + forward(2 * B * H * OUT)
        + recomputed(2 * B * IN * H)
        + recomputed(2 * B * H * OUT)
        + backward(2 * B * IN * H, count=2)
        + backward(2 * B * H * OUT, count=2),
    ),
    "remat that saves products": Row(
        lambda: gradient(
            (
                jax.checkpoint(
                    lambda p, x: jnp.tanh(mlp(p, x)), policy=jax.checkpoint_policies.dots_saveable
                ),
                (MLP_PARAMS, array(B, IN)),
            )
        ),
        forward(2 * B * IN * H)
        + forward(2 * B * H * OUT)
        + backward(2 * B * IN * H, count=2)
        + backward(2 * B * H * OUT, count=2),
    ),
    "Hessian by a vector": Row(  # of tanh(x W): forward x W and x dW, backward their transposes
        lambda: (
            lambda w, dw, x: jax.jvp(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w))), (w,), (dw,)),
            (array(IN, OUT), array(IN, OUT), array(B, IN)),
        ),
        forward(2 * B * IN * OUT, count=2) + backward(2 * B * IN * OUT, count=2),
    ),
    "lax.scan over layers, gradient": Row(
        lambda: gradient((layers_by_scan, (array(LAYERS, H, H), array(B, H)))),
        forward(2 * B * H * H, steps=LAYERS) + backward(2 * B * H * H, count=2, steps=LAYERS),
    ),
    "lax.scan, unrolled": Row(  # unroll is a matter of the compiler
        lambda: (
            lambda w, x: lax.scan(lambda x, w: (x @ w, None), x, w, unroll=2)[0],
            (array(LAYERS, H, H), array(B, H)),
        ),
        forward(2 * B * H * H, steps=LAYERS),
    ),
    "lax.map": Row(
        lambda: (lambda w, x: lax.map(lambda x: w @ x, x), (array(OUT, IN), array(B, IN))),
        forward(2 * OUT * IN, steps=B),
    ),
    "nn.scan of nn.remat, gradient": Row(
        lambda: gradient(linen(Stack(), array(B, H))),
        forward(2 * B * H * H, steps=LAYERS)
        + recomputed(2 * B * H * H, steps=LAYERS)
        + backward(2 * B * H * H, count=2, steps=LAYERS),
    ),
    "nnx.scan over layers, gradient": Row(
        lambda: gradient(nnx_stack()),
        forward(2 * B * H * H, steps=LAYERS) + backward(2 * B * H * H, count=2, steps=LAYERS),
    ),
    "while loop": Row(  # nobody knows how often
        lambda: (while_small, (array(IN, IN), array(B, IN))),
        forward(2 * B * IN * IN, steps=None),
    ),
    "fori_loop of a known length": Row(
        lambda: (functools.partial(repeated, n=T), (array(IN, IN), array(B, IN))),
        forward(2 * B * IN * IN, steps=T),
    ),
    "fori_loop of a traced length": Row(
        lambda: (repeated, (array(IN, IN), array(B, IN), array(dtype=jnp.int32))),
        forward(2 * B * IN * IN, steps=None),
    ),
    "cond": Row(  # both branches count
        lambda: (branches, (array(IN, OUT), array(B, IN))),
        forward(2 * B * IN * OUT, count=2)
        + forward(2 * OUT * IN * OUT)
        + forward(2 * B * OUT * OUT),
    ),
    "jax.shard_map over four devices": Row(  # what one device does
        lambda: (sharded, (array(IN, OUT), array(4 * B, IN))),
        forward(2 * B * IN * OUT),
    ),
    "custom_vjp": Row(
        lambda: (clipped_product, (array(B, IN), array(IN, OUT))),
        forward(2 * B * IN * OUT),
    ),
    "custom_vjp, gradient": Row(
        lambda: gradient((clipped_product, (array(B, IN), array(IN, OUT)))),
        forward(2 * B * IN * OUT) + backward(2 * B * IN * OUT, count=2),
    ),
    # --- training steps: three products a layer, less the gradient of the input of the first
    "step of an MLP with optax.adam": Row(
        adam_step,
        forward(2 * B * IN * H)
        + forward(2 * B * H * OUT)
        + backward(2 * B * IN * H)
        + backward(2 * B * H * OUT, count=2),
    ),
    "step of an NNX model with nnx.Optimizer": Row(
        nnx_step,
        forward(2 * B * IN * H)
        + forward(2 * B * H * OUT)
        + backward(2 * B * IN * H)
        + backward(2 * B * H * OUT, count=2),
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_products_are_those_worked_out_by_hand(row):
    fn, args = row.build()
    assert collections.Counter(found(fn, *args)) == collections.Counter(row.expected)
