"""`jprec.audit`: what it lists, counts and adds up."""

import dataclasses
import inspect
import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jprec
from jprec import doctor, hardware, records


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def train(w, x):
    def loss(w):
        with jax.named_scope("net"):
            return jnp.sum(jnp.tanh(x @ w) ** 2)  # product

    return w - 0.1 * jax.grad(loss)(w)


@pytest.fixture(scope="module")
def found():
    return jprec.audit(train, f32(64, 32), f32(128, 64))


def test_every_operation_says_what_where_and_how(found):
    forward, backward = found.operations
    assert (forward.kind, forward.phase, forward.runs_as) == ("dot_general", "forward", "tf32")
    assert "net" in forward.scope
    lines, first = inspect.getsourcelines(train)
    line = next(first + n for n, text in enumerate(lines) if text.endswith("# product\n"))
    assert forward.source == f"{__file__}:{line}"
    assert forward.operand_dtypes == ("float32", "float32")
    assert forward.operand_shapes == ((128, 64), (64, 32))
    assert forward.result_shape == (128, 32)
    assert forward.reason
    assert forward.evidence
    assert backward.phase == "backward"
    assert found.findings == ()


def test_operations_are_counted_with_their_loops():
    def looped(w, x):
        return lax.scan(lambda x, _: (x @ w, None), x, None, length=10)[0]

    found = jprec.audit(looped, f32(64, 64), f32(64, 64))
    assert found.flops == 10 * 2 * 64**3


def test_a_while_loop_counts_one_run_and_says_so():
    def until(w, x):
        return lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ w, x)

    found = jprec.audit(until, f32(64, 64), f32(64, 64))
    assert found.flops == 2 * 64**3
    assert found.operations[0].trips is None
    assert "* in a while loop: the operations of one run" in str(found)


def test_totals_add_up():
    def several(a):
        b = jnp.matmul(a, a, precision="highest")
        return (
            jnp.matmul(b, a, precision="high")
            + a @ a
            + a.astype(jnp.bfloat16) @ a.astype(jnp.bfloat16)
        )

    found = jprec.audit(several, f32(32, 32))
    totals = {total.runs_as: total for total in found.totals}
    assert set(totals) == {"fp32", "undetermined", "tf32", "bf16"}
    assert sum(total.flops for total in totals.values()) == found.flops == 4 * 2 * 32**3
    assert sum(total.share for total in totals.values()) == pytest.approx(1)


def test_the_roofline_is_as_by_hand():
    n = 4096
    flops, moved = 2 * n**3, 3 * n * n * 4
    device = hardware.get("a100")
    found = jprec.audit(lambda a: a @ a, f32(n, n), device="a100").roofline
    assert found.now == pytest.approx(flops / 156e12)
    assert found.tf32 == found.now
    assert found.fp32 == pytest.approx(flops / 19.5e12)
    assert found.bf16 == pytest.approx(flops / 312e12)
    # A thin product waits for memory, so TF32 gains nothing and BF16 half of it.
    thin = jprec.audit(lambda a, b: a @ b, f32(n, n), f32(n, 2), device="a100").roofline
    moved = (n * n + 4 * n) * 4
    assert thin.now == thin.fp32 == pytest.approx(moved / (device.bandwidth.terabytes * 1e12))
    assert thin.bf16 == pytest.approx(thin.now / 2)


def test_split_products_take_their_passes_and_the_undetermined_their_slowest():
    def asked(precision):
        fn = lambda a: jnp.matmul(a, a, precision=precision)
        return jprec.audit(fn, f32(4096, 4096), device="h100").roofline.now

    assert asked("BF16_BF16_F32_X3") == pytest.approx(3 * asked("BF16_BF16_F32"))
    assert asked("high") == asked("highest")


def test_where_no_rate_has_a_source_the_time_is_unknown():
    for device in ("cpu", "tpu"):
        found = jprec.audit(lambda a: a @ a, f32(8, 8), device=device)
        assert found.roofline.now is None
        assert "Time: unknown" in str(found)


def test_a_program_without_products_is_an_empty_audit():
    assert jprec.audit(jnp.sin, f32(8)).operations == ()
    assert str(jprec.audit(jnp.sin, f32(8)))


def test_layers_share_a_line_and_the_widest_comes_first():
    def stack(x, ws, v):
        for i, w in enumerate(ws):
            with jax.named_scope(f"block_{i}"):
                x = x @ w
        return x @ v

    found = jprec.audit(stack, f32(8, 16), [f32(16, 16)] * 5, f32(16, 64))
    lines = [line.split() for line in str(found).splitlines() if " · " in line]
    assert [line[4] for line in lines] == ["5", "1"]
    every = doctor.table(found, every=True)
    assert sum(" · " in line for line in every.splitlines()) == 6
    assert "block_3" in every


def test_no_line_is_wider_than_120_columns(found):
    def long(a):
        with jax.named_scope("a_scope_with_a_very_long_name_" * 5):
            return jnp.matmul(a, a, precision="F32_F32_F32")

    wide = jprec.audit(long, f32(1024, 16384, 1024, 8, 8))
    for audit in (found, wide):
        for text in (str(audit), doctor.table(audit, every=True)):
            assert max(map(len, text.splitlines())) <= 120


def test_facts_are_json(found):
    facts = json.loads(records.dumps(doctor.facts(found)))
    assert facts["device"] == "a100"
    assert len(facts["operations"]) == 2
    assert set(facts["operations"][0]) == {f.name for f in dataclasses.fields(doctor.Operation)}


def test_arguments_that_are_no_arrays_pass_through():
    def fn(w, *, flag, name):
        return w @ w if flag and name == "x" else w

    assert len(jprec.audit(fn, f32(4, 4), flag=True, name="x").operations) == 1


def test_the_setting_around_the_call_is_reported():
    with jax.default_matmul_precision("highest"):
        found = jprec.audit(lambda a: a @ a, f32(8, 8))
    assert found.default_precision == "highest"
    assert found.operations[0].runs_as == "fp32"


def test_what_does_not_show_its_products_is_named():
    shape = jax.ShapeDtypeStruct((4, 4), jnp.float32)

    def hidden(a):
        return jax.pure_callback(lambda a: a @ a, shape, a) @ a

    found = jprec.audit(hidden, shape)
    assert len(found.operations) == 1
    assert [line.split(" at ")[0] for line in found.opaque] == ["pure_callback"]
    assert "Not counted is what these do not show: pure_callback at" in " ".join(str(found).split())


def test_a_program_without_products_says_so():
    found = jprec.audit(jnp.tanh, jax.ShapeDtypeStruct((4,), jnp.float32))
    assert found.operations == ()
    assert "There are no products in it." in str(found)


def test_complex_numbers_have_two_parts_in_bf16():
    shapes = [jax.ShapeDtypeStruct(s, jnp.complex64) for s in ((65536, 16), (16, 16))]
    roof = jprec.audit(lambda a, b: a @ b, *shapes).roofline
    assert roof.now / roof.bf16 <= 2.001
