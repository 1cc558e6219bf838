"""Tensor cores against integers: 10**6 rows for each pair of formats that a device adds."""

import numpy as np
import pytest

from jprec import hardware, matmul

pytestmark = pytest.mark.exhaustive

ROWS = 10**6
#: Rows in one piece; six kinds of operands are alike in number.
PIECE = 25_002
#: Devices that add alike are done once: a TensorCore compares by its arithmetic.
CORES: dict[hardware.TensorCore, str] = {}
for _name in hardware.names():
    for _core in hardware.get(_name).tensor_cores:
        CORES.setdefault(_core, _name)


def bits(x):
    return np.asarray(x).view(np.uint32)


@pytest.mark.parametrize(
    "core",
    CORES,
    ids=lambda core: f"{CORES[core]}-{core.input_format}-{core.output_format}",
)
def test_a_million_rows_agree_with_two_oracles_in_integers(core, tensor_core_rows):
    # One step of the accumulator that is not filled, three, and seven.
    lengths = (core.stride // 2, 2 * core.stride + 1, 2 * core.stride + 1, 6 * core.stride + 1)
    done = results = 0
    while done < ROWS:
        piece = done // PIECE
        a, b, c = tensor_core_rows(core, PIECE // 6, length=lengths[piece % 4], seed=1 + piece)
        got = matmul.tensor_core_dot(
            a,
            b,
            c,
            device=CORES[core],
            input_format=core.input_format,
            output_format=core.output_format,
        )
        want = matmul.tensor_core_dot_int64(a, b, c, core)
        np.testing.assert_array_equal(bits(got), bits(want))
        some = slice(piece, None, 499)
        exact = matmul.tensor_core_dot_exact(a[some], b[some], c[some], core)
        np.testing.assert_array_equal(bits(exact), bits(want)[some])
        done += len(c)
        results += np.isfinite(want).sum()
    assert done >= ROWS
    assert results > ROWS // 5  # finite ones
