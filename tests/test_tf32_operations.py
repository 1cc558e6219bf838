"""docs/tf32_operations.py: each operation multiplies what was worked out by hand."""

import importlib.util
from pathlib import Path

import pytest

from jprec import program

PATH = Path(__file__).parents[1] / "docs" / "tf32_operations.py"


def loaded():
    spec = importlib.util.spec_from_file_location("docs_tf32_operations", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


page = loaded()


def dots(forward, backward, *, of="dot_general", steps="", precision="", tf32=True):
    """The audit of so many products forward and backward."""
    words = [f"{n} `{of}`{precision}{steps}" if n else "none" for n in (forward, backward)]
    return page.Audit(*words, tf32)


NOTHING = page.Audit("none", "none", False)
PER_STEP = {"steps": " × T"}

#: By hand. Each product y = a b has the two derivatives da = dy bᵀ and db = aᵀ dy.
EXPECTED = {
    "nn.Linear": {"nn.Dense": dots(1, 2), "nnx.Linear": dots(1, 2)},
    "nn.Conv1d … 3d": {
        name: dots(1, 2, of="conv_general_dilated") for name in ("nn.Conv", "nnx.Conv")
    },
    "nn.ConvTranspose1d … 3d": {
        name: dots(1, 2, of="conv_general_dilated")
        for name in ("nn.ConvTranspose", "nnx.ConvTranspose")
    },
    "cdist": {"\\|a\\|² − 2 a·b + \\|b\\|²": dots(1, 2), "norm of a − b": NOTHING},
    "tensordot": {"jnp.tensordot": dots(1, 2)},
    "affine_grid": {"jnp.einsum": dots(1, 2)},
    "grid_sample": {"jax.scipy.ndimage.map_coordinates": NOTHING},
    "AdaptiveLogSoftmaxWithLoss": {"by hand": dots(1 + 2 * 2, 2 * (1 + 2 * 2))},
    # Three gates, four gates: each of the input and of the state, or all gates at once.
    "GRU": {
        "nn.GRUCell": dots(3 + 3, 2 * (3 + 3), **PER_STEP),
        "nnx.GRUCell": dots(1 + 1, 2 * (1 + 1), **PER_STEP),
    },
    "LSTM": {
        "nn.LSTMCell": dots(4 + 4, 2 * (4 + 4), **PER_STEP),
        "nnx.LSTMCell": dots(4 + 4, 2 * (4 + 4), **PER_STEP),
        "nn.OptimizedLSTMCell": dots(1 + 1, 2 * (1 + 1), **PER_STEP),
        "nnx.OptimizedLSTMCell": dots(1 + 1, 2 * (1 + 1), **PER_STEP),
    },
    "RNN": {
        name: dots(1 + 1, 2 * (1 + 1), **PER_STEP) for name in ("nn.SimpleCell", "nnx.SimpleCell")
    },
    "matmul, bmm, einsum": {"jnp.matmul": dots(1, 2)},
    "nn.Bilinear": {"jnp.einsum": dots(2, 4)},  # three operands
    # Query, key, value, scores, their sum, output.
    "MultiheadAttention": {
        name: dots(6, 12) for name in ("nn.MultiHeadAttention", "nnx.MultiHeadAttention")
    },
    "scaled_dot_product_attention": {"jax.nn.dot_product_attention": dots(2, 4)},
    "nn.Embedding": {"nn.Embed": NOTHING},
    "a head tied to it": {"nn.Embed.attend": dots(1, 2)},
    "CTCLoss": {"optax.ctc_loss": dots(2, 2)},  # one-hot matrices have no derivative
    # W u, v W, (v W) u of the norm and the layer; the derivatives of u and v are stopped.
    "spectral_norm": {"nn.SpectralNorm": dots(2 + 2 + 1, 1 + 1 + 2)},
    "interpolate": {"jax.image.resize": dots(2, 2, precision=" at HIGHEST", tf32=False)},
    # x = A⁻¹ b, dA = −(A⁻ᵀ dx) xᵀ: what is not this product is a solve.
    "linalg.solve, linalg.inv": {
        name: dots(0, 1, precision=" at HIGHEST", tf32=False)
        for name in ("jnp.linalg.solve", "jnp.linalg.inv")
    },
}


def test_every_operation_has_its_expectation():
    assert list(EXPECTED) == [operation.torch for operation in page.OPERATIONS]


@pytest.mark.parametrize("operation", page.OPERATIONS, ids=lambda operation: operation.torch)
def test_products_and_tf32_are_those_worked_out_by_hand(operation):
    found = {name: page.audit(build()) for name, build in operation.equivalents.items()}
    assert found == EXPECTED[operation.torch]


def test_the_list_is_the_one_in_circulation():
    listed = [operation.torch.lower() for operation in page.OPERATIONS if operation.listed]
    names = "linear conv1d convtranspose cdist tensordot affine_grid grid_sample adaptive gru lstm"
    assert all(name in word for name, word in zip(names.split(), listed, strict=True))


def product(dtype, precision):
    return program.Product(
        kind="dot_general",
        phase="forward",
        scope="",
        source=None,
        operand_dtypes=dtype,
        operand_shapes=((2, 2), (2, 2)),
        result_dtype="float32",
        result_shape=(2, 2),
        precision=precision,
        flops=16,
        trips=1,
    )


def test_tf32_is_for_two_float32_operands_unless_highest_is_asked_for():
    full = ("float32", "float32")
    assert page.runs_in_tf32(product(full, None))
    assert page.runs_in_tf32(product(full, "HIGH"))
    assert not page.runs_in_tf32(product(full, "HIGHEST"))
    assert not page.runs_in_tf32(product(("float32", "bfloat16"), None))


@pytest.mark.parametrize("width", [256, 1000, 1920, 4096])
@pytest.mark.parametrize("degrees", [0, 30, 45])
def test_pixels_shift_by_less_than_the_page_says(width, degrees):
    shift = page.shift(width, degrees)
    assert shift < 2**0.5 * width / 2048
    assert (shift == 0) == (degrees == 0 and width == 256)


def test_distances_are_lost_where_the_page_says():
    errors = [page.distance_error(offset) for offset in (0, 1, 3, 10)]
    assert errors == sorted(errors)
    assert errors[0] < 0.05
    assert errors[-1] > 1  # nothing is left: |a||b| / d² is above 512
