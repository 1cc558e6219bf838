"""PyTorch's TF32 operations in JAX: what docs/tf32_operations.md tabulates.

`OPERATIONS` is the table; tests/test_tf32_operations.py audits it against counts by hand, and
docs/generate.py prints it. A new operation is a new row.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx

from jprec import program, rounding

#: Batch, time, inputs, outputs, vocabulary. No count below depends on them, except that loops
#: run TIME steps, a number that nothing else has.
BATCH, TIME, INPUTS, OUTPUTS, VOCABULARY = 2, 37, 8, 16, 20

#: A function of parameters and input, to be differentiated by both, and its arguments. Further
#: arguments are not differentiated.
Case = tuple[Callable, tuple[Any, ...]]

#: Which of PyTorch's two switches decides, or that there is no product to switch.
Switch = Literal["matmul", "cuDNN", "none"]

#: PyTorch's defaults since version 1.12 (`torch.backends.cuda.matmul.allow_tf32` and
#: `torch.backends.cudnn.allow_tf32`).
TORCH_DEFAULTS = {"matmul": "off", "cuDNN": "**on**", "none": "–"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of PyTorch and what does the same in JAX.

    Attributes:
      torch: Its name in PyTorch.
      switch: The switch that decides there.
      listed: Whether it is on the list that the page is about.
      equivalents: Name in JAX -> what builds a case.
      remark: What a user should know.
    """

    torch: str
    switch: Switch
    listed: bool
    equivalents: dict[str, Callable[[], Case]]
    remark: str = ""


@dataclasses.dataclass(frozen=True)
class Audit:
    """The products of a case, in words; `tf32`: whether any runs in TF32 by the page's rule."""

    forward: str
    backward: str
    tf32: bool


def runs_in_tf32(product: program.Product) -> bool:
    """Whether a GPU with TF32 uses it: float32 operands, and anything but HIGHEST asked for."""
    return set(product.operand_dtypes) == {"float32"} and product.precision != "HIGHEST"


def audit(case: Case) -> Audit:
    """What the forward pass and its differentiation multiply."""
    fn, args = case

    def both(*args: Any) -> Any:
        value, pullback = jax.vjp(lambda *first: fn(*first, *args[2:]), *args[:2])
        return value, pullback(value)

    found = program.products(both, *args)
    forward, backward = (
        [p for p in found if p.phase == phase] for phase in ("forward", "backward")
    )
    return Audit(_counted(forward), _counted(backward), any(map(runs_in_tf32, found)))


def _counted(products: Iterable[program.Product]) -> str:
    kinds = collections.Counter((p.kind, p.precision, p.trips) for p in products)
    return (
        ", ".join(
            f"{count} `{kind}`"
            + (f" at {precision}" if precision else "")
            + (" × T" if trips == TIME else "")
            for (kind, precision, trips), count in kinds.items()
        )
        or "none"
    )


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _linen(module: Callable[[], nn.Module], *shape: int, **how: Any) -> Callable[[], Case]:
    def build() -> Case:
        layer, x = module(), _array(*shape)
        apply = functools.partial(layer.apply, **how)
        init = functools.partial(layer.init, **how)
        return apply, (jax.eval_shape(init, jax.random.key(0), x), x)

    return build


def _nnx(module: Callable[[nnx.Rngs], nnx.Module], *shape: int) -> Callable[[], Case]:
    def build() -> Case:
        graph, params, rest = nnx.split(nnx.eval_shape(lambda: module(nnx.Rngs(0))), nnx.Param, ...)

        def apply(params: Any, x: Any, rest: Any) -> Any:
            return nnx.merge(graph, params, rest, copy=True)(x)

        return apply, (params, _array(*shape), rest)

    return build


def _rnn(cell: type) -> Callable[[], Case]:
    return _linen(lambda: nn.RNN(cell(OUTPUTS)), BATCH, TIME, INPUTS)


def _nnx_rnn(cell: type) -> Callable[[], Case]:
    return _nnx(lambda rngs: nnx.RNN(cell(INPUTS, OUTPUTS, rngs=rngs)), BATCH, TIME, INPUTS)


def _arrays(fn: Callable, *shapes: Sequence[int]) -> Callable[[], Case]:
    return lambda: (fn, tuple(_array(*shape) for shape in shapes))


def cdist(a: jax.Array, b: jax.Array) -> jax.Array:
    """Distances of all rows by |a|² − 2 a·b + |b|², the usual idiom."""
    squares = jnp.sum(a**2, -1)[:, None] - 2 * a @ b.T + jnp.sum(b**2, -1)
    return jnp.sqrt(jnp.maximum(squares, 0))


def cdist_by_differences(a: jax.Array, b: jax.Array) -> jax.Array:
    """Distances of all rows from the differences: no product of matrices, more memory."""
    return jnp.linalg.norm(a[:, None] - b, axis=-1)


def affine_grid(theta: jax.Array, base: jax.Array) -> jax.Array:
    """theta: [N, 2, 3]. base: [H, W, 3], the coordinates (x, y, 1). Returns [N, H, W, 2]."""
    return jnp.einsum("nij,hwj->nhwi", theta, base)


def grid_sample(image: jax.Array, coordinates: jax.Array) -> jax.Array:
    """image: [H, W]. coordinates: [2, ...] in pixels. Bilinear interpolation."""
    return jax.scipy.ndimage.map_coordinates(image, coordinates, order=1)


def adaptive_log_softmax(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """All log-probabilities; params: "head" and, for each cluster, a pair of matrices."""
    head = jax.nn.log_softmax(x @ params["head"])
    short = head.shape[-1] - len(params["tail"])
    tails = [
        jax.nn.log_softmax(x @ narrow @ wide) + head[:, short + i, None]
        for i, (narrow, wide) in enumerate(params["tail"])
    ]
    return jnp.concatenate([head[:, :short], *tails], -1)


def _adaptive_log_softmax() -> Case:
    tail = [(_array(INPUTS, INPUTS // 4**i), _array(INPUTS // 4**i, 6)) for i in (0, 1)]
    return adaptive_log_softmax, (
        {"head": _array(INPUTS, 8 + 2), "tail": tail},
        _array(BATCH, INPUTS),
    )


def _attention(qkv: list[jax.Array]) -> jax.Array:
    return jax.nn.dot_product_attention(*qkv)


def _ctc(logits: jax.Array) -> jax.Array:
    labels = jnp.ones((BATCH, 5), jnp.int32)
    return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, jnp.zeros(labels.shape))


OPERATIONS = (
    Operation(
        torch="nn.Linear",
        switch="matmul",
        listed=True,
        equivalents={
            "nn.Dense": _linen(lambda: nn.Dense(OUTPUTS), BATCH, INPUTS),
            "nnx.Linear": _nnx(lambda rngs: nnx.Linear(INPUTS, OUTPUTS, rngs=rngs), BATCH, INPUTS),
        },
        remark="`precision=` of the layer holds forward and backward",
    ),
    Operation(
        torch="nn.Conv1d … 3d",
        switch="cuDNN",
        listed=True,
        equivalents={
            "nn.Conv": _linen(lambda: nn.Conv(OUTPUTS, (3, 3)), BATCH, 8, 8, INPUTS),
            "nnx.Conv": _nnx(
                lambda rngs: nnx.Conv(INPUTS, OUTPUTS, (3, 3), rngs=rngs), BATCH, 8, 8, INPUTS
            ),
        },
        remark="only HIGHEST switches it off; a preset such as `F32_F32_F32` is ignored",
    ),
    Operation(
        torch="nn.ConvTranspose1d … 3d",
        switch="cuDNN",
        listed=True,
        equivalents={
            "nn.ConvTranspose": _linen(
                lambda: nn.ConvTranspose(OUTPUTS, (3, 3)), BATCH, 8, 8, INPUTS
            ),
            "nnx.ConvTranspose": _nnx(
                lambda rngs: nnx.ConvTranspose(INPUTS, OUTPUTS, (3, 3), rngs=rngs),
                *(BATCH, 8, 8, INPUTS),
            ),
        },
        remark="as above",
    ),
    Operation(
        torch="cdist",
        switch="matmul",
        listed=True,
        equivalents={
            "\\|a\\|² − 2 a·b + \\|b\\|²": _arrays(cdist, (BATCH, INPUTS), (5, INPUTS)),
            "norm of a − b": _arrays(cdist_by_differences, (BATCH, INPUTS), (5, INPUTS)),
        },
        remark="no function in JAX; the product cancels, see below",
    ),
    Operation(
        torch="tensordot",
        switch="matmul",
        listed=True,
        equivalents={
            "jnp.tensordot": _arrays(
                functools.partial(jnp.tensordot, axes=2), (BATCH, 3, 4), (3, 4, OUTPUTS)
            )
        },
        remark="n operands of an `einsum` are n − 1 products",
    ),
    Operation(
        torch="affine_grid",
        switch="matmul",
        listed=True,
        equivalents={"jnp.einsum": _arrays(affine_grid, (BATCH, 2, 3), (8, 8, 3))},
        remark="sums of three products, but of coordinates: the picture shifts, see below",
    ),
    Operation(
        torch="grid_sample",
        switch="none",
        listed=True,
        equivalents={"jax.scipy.ndimage.map_coordinates": _arrays(grid_sample, (8, 8), (2, 5, 5))},
        remark="no product: it reads pixels and weighs them",
    ),
    Operation(
        torch="AdaptiveLogSoftmaxWithLoss",
        switch="matmul",
        listed=True,
        equivalents={"by hand": _adaptive_log_softmax},
        remark="neither in Flax nor in Optax; the head, and two for each cluster, here of two",
    ),
    Operation(
        torch="GRU",
        switch="cuDNN",
        listed=True,
        equivalents={"nn.GRUCell": _rnn(nn.GRUCell), "nnx.GRUCell": _nnx_rnn(nnx.GRUCell)},
        remark="T steps; a cell has no `precision=`, only `jax.default_matmul_precision` helps",
    ),
    Operation(
        torch="LSTM",
        switch="cuDNN",
        listed=True,
        equivalents={
            "nn.LSTMCell": _rnn(nn.LSTMCell),
            "nnx.LSTMCell": _nnx_rnn(nnx.LSTMCell),
            "nn.OptimizedLSTMCell": _rnn(nn.OptimizedLSTMCell),
            "nnx.OptimizedLSTMCell": _nnx_rnn(nnx.OptimizedLSTMCell),
        },
        remark="as above",
    ),
    Operation(
        torch="RNN",
        switch="cuDNN",
        listed=False,
        equivalents={
            "nn.SimpleCell": _rnn(nn.SimpleCell),
            "nnx.SimpleCell": _nnx_rnn(nnx.SimpleCell),
        },
        remark="as GRU",
    ),
    Operation(
        torch="matmul, bmm, einsum",
        switch="matmul",
        listed=False,
        equivalents={"jnp.matmul": _arrays(jnp.matmul, (3, 4, 5), (3, 5, 6))},
        remark="`@` has no `precision=`",
    ),
    Operation(
        torch="nn.Bilinear",
        switch="matmul",
        listed=False,
        equivalents={
            "jnp.einsum": _arrays(
                lambda w, x: jnp.einsum("bi,oij,bj->bo", x, w, x), (3, 4, 4), (BATCH, 4)
            )
        },
        remark="three operands",
    ),
    Operation(
        torch="MultiheadAttention",
        switch="matmul",
        listed=False,
        equivalents={
            "nn.MultiHeadAttention": _linen(lambda: nn.MultiHeadAttention(2), BATCH, 5, INPUTS),
            "nnx.MultiHeadAttention": _nnx(
                lambda rngs: nnx.MultiHeadAttention(2, INPUTS, decode=False, rngs=rngs),
                *(BATCH, 5, INPUTS),
            ),
        },
        remark="`precision=` of the NNX layer leaves the scores and their sum in TF32",
    ),
    Operation(
        torch="scaled_dot_product_attention",
        switch="matmul",
        listed=False,
        equivalents={
            "jax.nn.dot_product_attention": lambda: (
                _attention,
                ([_array(BATCH, 5, 2, INPUTS)] * 3,),
            )
        },
        remark="no `precision=`; in PyTorch, of the path that is not fused",
    ),
    Operation(
        torch="nn.Embedding",
        switch="none",
        listed=False,
        equivalents={
            "nn.Embed": lambda: (
                lambda table: nn.Embed(VOCABULARY, INPUTS).apply(
                    {"params": {"embedding": table}}, jnp.arange(BATCH)
                ),
                (_array(VOCABULARY, INPUTS),),
            )
        },
        remark="a lookup",
    ),
    Operation(
        torch="a head tied to it",
        switch="matmul",
        listed=False,
        equivalents={
            "nn.Embed.attend": _linen(
                lambda: nn.Embed(VOCABULARY, INPUTS), BATCH, INPUTS, method="attend"
            )
        },
        remark="no `precision=`",
    ),
    Operation(
        torch="CTCLoss",
        switch="none",
        listed=False,
        equivalents={"optax.ctc_loss": _arrays(_ctc, (BATCH, 11, VOCABULARY))},
        remark="picks by products with one-hot matrices: TF32 rounds what it picks, see below",
    ),
    Operation(
        torch="spectral_norm",
        switch="matmul",
        listed=False,
        equivalents={
            "nn.SpectralNorm": _linen(
                lambda: nn.SpectralNorm(nn.Dense(OUTPUTS)), BATCH, INPUTS, update_stats=False
            )
        },
        remark="no `precision=`; four products of the norm, one of the layer",
    ),
    Operation(
        torch="interpolate",
        switch="none",
        listed=False,
        equivalents={
            "jax.image.resize": _arrays(lambda x: jax.image.resize(x, (16, 16), "linear"), (8, 8))
        },
        remark="two products, at HIGHEST unless told otherwise",
    ),
    Operation(
        torch="linalg.solve, linalg.inv",
        switch="matmul",
        listed=False,
        equivalents={
            "jnp.linalg.solve": _arrays(jnp.linalg.solve, (4, 4), (4, 3)),
            "jnp.linalg.inv": _arrays(jnp.linalg.inv, (4, 4)),
        },
        remark="LU and triangular solves are no products; the gradient has one",
    ),
)


def rows(*, listed: bool) -> list[list[str]]:
    """The lines of a table: PyTorch, its default, JAX, forward, backward, TF32, remark."""
    lines = []
    for operation in OPERATIONS:
        if operation.listed != listed:
            continue
        alike: dict[Audit, list[str]] = {}
        for name, build in operation.equivalents.items():
            alike.setdefault(audit(build()), []).append(name)
        first = [f"`{operation.torch}`", TORCH_DEFAULTS[operation.switch]]
        remark = operation.remark
        for found, names in alike.items():
            code = [f"`{name}`" if "." in name else name for name in names]
            tf32 = "**yes**" if found.tf32 else "no"
            lines.append([*first, ", ".join(code), found.forward, found.backward, tf32, remark])
            first, remark = ["", ""], ""
    return lines


HEAD = ("PyTorch", "TF32 there", "JAX", "forward", "backward", "TF32 in JAX", "remark")


def _tf32(x: np.ndarray) -> np.ndarray:
    rounded = rounding.round_to(jnp.float32(x), "tf32", "nearest_away")
    return np.asarray(rounded, np.float64)


def shift(width: int, degrees: float) -> float:
    """The largest error of affine_grid, in pixels, from rounding its operands to TF32 alone."""
    x = np.linspace(-1 + 1 / width, 1 - 1 / width, width)
    edge = np.stack([x, np.full(width, x[-1]), np.ones(width)])  # the last line of a square
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    theta = np.array([[cos, -sin, 0], [sin, cos, 0]])
    return float(np.max(abs(_tf32(theta) @ _tf32(edge) - theta @ edge)) * width / 2)


def distance_error(offset: float) -> float:
    """The largest relative error of |a|² − 2 a·b + |b|² from rounding a and b to TF32 alone.

    Points in 16 dimensions, between -1 and 1 in each, and `offset` added to each coordinate. The
    norms and all sums are exact to FP64.
    """
    points = np.sin(np.arange(1, 2 * 64 * 16 + 1) ** 2).reshape(2, 64, 16) + offset
    a, b = np.asarray(jnp.float32(points), np.float64)  # what FP32 can hold
    squares = np.sum((a[:, None] - b) ** 2, -1)
    return float(np.max(abs(2 * a @ b.T - 2 * _tf32(a) @ _tf32(b).T) / squares))
