"""Policies whose backward products differ: gradients in one format, what was saved in another."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

from jprec import matmul, policy, program, rounding

#: FP8 as Micikevicius et al. (2022) train in it: E4M3 forward, E5M2 for what comes back.
FP8 = policy.parse("params=float32,product=fp8_e4m3")
KEPT, BACK = "e4m3fn", "e5m2"


# ---- The same products written by hand


class Plain:
    """Products as a user writes them."""

    dot = staticmethod(jnp.matmul)

    @staticmethod
    def back(a, b, gradients):
        """A product in a user's own backward pass; which operands are gradients."""
        del gradients
        return jnp.matmul(a, b)

    @staticmethod
    def convolve(x, kernel):
        return lax.conv_general_dilated(x, kernel, (2, 1), ((1, 0), (1, 1)))


class ByHand:
    """The same with the roundings written in: of what is saved, and of gradients."""

    def __init__(self, kept=KEPT, back=BACK):
        self.formats = {False: kept, True: back}
        self.dot = self._rounded(functools.partial(jnp.matmul, precision="highest"))
        self.convolve = self._rounded(
            lambda x, kernel: lax.conv_general_dilated(
                x, kernel, (2, 1), ((1, 0), (1, 1)), precision=lax.Precision.HIGHEST
            )
        )

    def back(self, a, b, gradients):
        rounded = (
            rounding.round_to(v, self.formats[g]) for v, g in zip((a, b), gradients, strict=True)
        )
        return jnp.matmul(*rounded, precision="highest")

    def _rounded(self, product):
        kept, back = (functools.partial(rounding.round_to, fmt=f) for f in self.formats.values())

        @jax.custom_vjp
        def of(a, b):
            return product(kept(a), kept(b))

        def backward(saved, cotangent):
            _, pull = jax.vjp(product, *map(kept, saved))
            return pull(back(cotangent))

        of.defvjp(lambda a, b: (of(a, b), (a, b)), backward)
        return of


#: What must not come out: the forward format for all, and the two exchanged.
WRONG = (ByHand(KEPT, KEPT), ByHand(BACK, KEPT))


# ---- Functions of weights [8, 8] and inputs [4, 8], made of products


def layers(ops):
    return lambda w, x: jnp.tanh(ops.dot(jnp.tanh(ops.dot(x, w)), w.T))


def compiled(ops):
    def f(w, x):
        inner = jax.jit(lambda x: ops.dot(x, w) * x + jnp.sin(x))
        return jax.jit(lambda x: inner(x) + ops.dot(inner(inner(x)), w))(x)

    return f


def scanned(ops):
    def f(w, x):
        def turn(carry, t):
            return jnp.tanh(ops.dot(carry, w)) + t, carry.sum()

        carry, sums = lax.scan(turn, x, jnp.arange(3.0))
        return carry * sums.sum()

    return f


def scan_of_states(ops):
    """Only the states are used, so what the backward loop carries is zero in its first turn."""

    def f(w, x):
        return lax.scan(lambda carry, _: (ops.dot(carry, w), carry), x, None, length=3)[1]

    return f


def scan_of_checkpoint(ops):
    def f(w, x):
        turn = jax.checkpoint(lambda carry, _: (jnp.tanh(ops.dot(carry, w)), None))
        return lax.scan(turn, x, None, length=3)[0]

    return f


def recomputed(ops):
    def block(w, x):
        return jnp.sin(ops.dot(jnp.sin(ops.dot(x, w)), w))

    return jax.checkpoint(block)


def branching(ops):
    def f(w, x):
        return lax.cond(x.sum() > -100, lambda x: ops.dot(x, w), lambda x: ops.dot(x, w.T), x)

    return f


def rule_by_hand(ops):
    """A derivative rule that recomputes, masks, and writes the gradient last."""

    @jax.custom_vjp
    def g(x, w):
        return jnp.sin(ops.dot(x, 2.0 * w))

    def backward(saved, cotangent):
        x, w = saved
        anew = ops.back(jnp.where(x > -9, x, -1e30), 2.0 * w, (False, False))
        inner = cotangent * jnp.cos(anew)
        return ops.back(w, inner.T, (False, True)).T, ops.back(x.T, inner, (False, True))

    g.defvjp(lambda x, w: (g(x, w), (x, w)), backward)
    return lambda w, x: jnp.tanh(g(x, w))


def rule_that_differentiates(ops):
    """A derivative rule that takes `jax.vjp` itself."""
    f = layers(ops)

    @jax.custom_vjp
    def g(w, x):
        return f(w, x)

    g.defvjp(lambda w, x: (g(w, x), (w, x)), lambda saved, ct: jax.vjp(f, *saved)[1](ct))
    return g


def mapped(ops):
    return lambda w, x: jax.vmap(lambda row: jnp.tanh(ops.dot(row, w)))(x)


def attention(ops):
    def f(w, x):
        q, k, v = ops.dot(x, w), ops.dot(x, w.T), ops.dot(x, jnp.sin(w))
        return ops.dot(jax.nn.softmax(ops.dot(q, k.T)), v)

    return f


def attend(ops):
    """An embedding that is looked up, and multiplied by at the end."""

    def f(w, x):
        hidden = jnp.tanh(w[jnp.array([1, 3, 3, 7])] + x)
        return ops.dot(hidden, w.T)

    return f


def convolutions(ops):
    def f(w, x):
        images = jnp.tile(x, (2, 1)).reshape(2, 2, 4, 4)
        kernel = jnp.tile(w.ravel()[:16], 3)[:36].reshape(2, 2, 3, 3)
        hidden = jnp.tanh(ops.convolve(images, kernel))
        return ops.convolve(hidden, kernel.transpose(1, 0, 3, 2))

    return f


FUNCTIONS = (
    *(
        layers,
        compiled,
        scanned,
        scan_of_states,
        scan_of_checkpoint,
        recomputed,
        branching,
        rule_by_hand,
    ),
    *(rule_that_differentiates, mapped, attention, attend, convolutions),
)


def named(functions):
    return pytest.mark.parametrize("make", functions, ids=lambda make: make.__name__)


def loss_of(f):
    return lambda *args: jnp.sin(f(*args)).sum()


def gradient(f):
    return jax.value_and_grad(loss_of(f), (0, 1))


@named(FUNCTIONS)
def test_gradients_and_saved_operands_are_rounded_as_by_hand(make, same, weights, inputs):
    @jax.jit
    def run(*args):
        outside = gradient(program.emulate(make(Plain), FP8))
        inside = program.emulate(gradient(make(Plain)), FP8)
        hand = [gradient(make(ops)) for ops in (ByHand(), *WRONG)]
        return [f(*args) for f in (outside, inside, *hand)]

    outside, inside, want, *wrong = run(weights, inputs)
    assert same(outside, want)
    assert same(inside, want)
    for bad in wrong:  # both gradients tell
        assert all((one != other).any() for one, other in zip(want[1], bad[1], strict=True))


# ---- Where a backward pass begins


def with_a_scale(f):
    """The scale of a loss enters as the cotangent, and is divided out."""

    def run(w, x):
        scale = 8.0 + 0.0 * x[0, 0]
        value, pull = jax.vjp(loss_of(f), w, x)
        return value, [g / scale for g in pull(scale)]

    return run


def with_an_array(f):
    def run(w, x):
        _, pull = jax.vjp(f, w, x)
        return pull(jnp.cos(x) * 1.1)

    return run


def with_two_arrays(f):
    def run(w, x):
        _, pull = jax.vjp(lambda w, x: (f(w, x), f(jnp.cos(w), x)), w, x)
        return pull((jnp.cos(x) * 1.1, jnp.sin(x)))

    return run


def with_unit_vectors(f):
    return lambda w, x: jax.jacrev(lambda w: f(w, x)[0])(w)


def twice(f):
    """Two backward passes, the second of which sees what the first one made."""

    def run(w, x):
        first = jax.grad(loss_of(f))(w, x)
        second, _ = jax.grad(loss_of(f), (0, 1))(w - 0.1 * first, x)
        return first, second

    return run


def of_one_product(f):
    """The loss is a product, and so JAX's own 1 enters one."""
    return jax.grad(lambda w, x: jnp.dot(f(w, x).ravel(), w.ravel()[:32]), (0, 1))


BEGINNINGS = (with_a_scale, with_an_array, with_two_arrays, with_unit_vectors, twice)


@named(BEGINNINGS)
def test_the_beginning_of_a_backward_pass_is_found(make, same, weights, inputs):
    @jax.jit
    def run(*args):
        inside = program.emulate(make(layers(Plain)), FP8)
        outside = make(program.emulate(layers(Plain), FP8))
        hand = [make(layers(ops)) for ops in (ByHand(), *WRONG)]
        return [f(*args) for f in (inside, outside, *hand)]

    inside, outside, want, *wrong = run(weights, inputs)
    assert same(outside, want)
    assert same(inside, want)
    assert not any(same(bad, want) for bad in wrong)


def feedback(ops):
    """Feedback alignment: what comes back is multiplied by a matrix that no forward pass sees."""
    fixed = jnp.sin(jnp.arange(64.0)).reshape(8, 8)

    @jax.custom_vjp
    def g(w, x):
        return ops.dot(x, w)

    def backward(saved, cotangent):
        _, x = saved
        of_w = ops.back(x.T, cotangent, (False, True))
        return of_w, ops.back(fixed, cotangent.T, (False, True)).T

    g.defvjp(lambda w, x: (g(w, x), (w, x)), backward)
    return g


def test_what_only_a_backward_pass_sees_is_no_gradient_for_that(same, weights, inputs):
    @jax.jit
    def run(*args):
        inside = program.emulate(with_an_array(feedback(Plain)), FP8)
        outside = with_an_array(program.emulate(feedback(Plain), FP8))
        hand = [with_an_array(feedback(ops)) for ops in (ByHand(), *WRONG)]
        return [f(*args) for f in (inside, outside, *hand)]

    inside, outside, want, *wrong = run(weights, inputs)
    assert same(inside, want)
    assert same(outside, want)
    assert not any(same(bad, want) for bad in wrong)


def loss_that_is_a_product(ops):
    """JAX's own 1 enters a product."""
    return lambda w, x: ops.dot(layers(ops)(w, x).ravel(), jnp.sin(w).ravel()[:32])


def sum_of_losses(ops):
    """JAX's own 1 enters in three places."""

    def f(w, x):
        out = layers(ops)(w, x)
        return jnp.sin(out).sum() + (out[0] * jnp.sin(x[0])).sum() / 3 + 0.1 * (out**2).mean()

    return f


def loss_with_a_rule(ops):
    """JAX's own 1 enters a derivative rule written by hand."""

    @jax.custom_vjp
    def loss(out):
        return jnp.cos(out).sum()

    loss.defvjp(lambda out: (loss(out), out), lambda out, ct: (-ct * jnp.sin(out),))
    return lambda w, x: loss(layers(ops)(w, x))


@named([loss_that_is_a_product, sum_of_losses, loss_with_a_rule])
def test_the_beginning_is_found_where_jax_writes_a_number(make, same, weights, inputs):
    @jax.jit
    def run(*args):
        inside = program.emulate(jax.grad(make(Plain), (0, 1)), FP8)
        hand = [jax.grad(make(ops), (0, 1)) for ops in (ByHand(), *WRONG)]
        return [f(*args) for f in (inside, *hand)]

    inside, want, *wrong = run(weights, inputs)
    assert same(inside, want)
    assert not any(same(bad, want) for bad in wrong)


def test_a_cotangent_that_a_forward_pass_has_used_is_an_error_that_says_what_to_do(weights, inputs):
    def run(w, x):
        out, pull = jax.vjp(layers(Plain), w, x)
        return pull(out)

    with pytest.raises(NotImplementedError, match=r"Emulate the function itself before jax\.vjp"):
        jax.eval_shape(program.emulate(run, FP8), weights, inputs)
    jax.eval_shape(program.emulate(run, "fp8_e4m3"), weights, inputs)


def test_what_a_transposed_dot_multiplies_first_is_the_gradient(same, weights, inputs):
    def run(w, x):
        return jax.linear_transpose(lambda x: x @ w, x)(jnp.cos(x))

    got = jax.jit(program.emulate(run, FP8))(weights, inputs)
    want = jax.jit(lambda w, x: (ByHand().back(jnp.cos(x), w.T, (True, False)),))(weights, inputs)
    assert same(got, want)


def test_a_convolution_that_does_not_tell_is_an_error_that_says_what_to_do():
    x, kernel = jnp.ones((1, 2, 6, 5)), jnp.ones((3, 2, 3, 3))
    convolve = Plain.convolve

    def run(kernel, cotangent):
        return jax.linear_transpose(lambda x: convolve(x, kernel), x)(cotangent)

    cotangent = jnp.ones(convolve(x, kernel).shape)
    with pytest.raises(NotImplementedError, match="neither operand was seen in a forward pass"):
        jax.eval_shape(program.emulate(run, FP8), kernel, cotangent)
    jax.eval_shape(program.emulate(run, "fp8_e4m3"), kernel, cotangent)


# ---- Derivatives of higher order, optimisers, models


def of_gradient_norm(f):
    return jax.grad(lambda w, x: sum((g**2).sum() for g in gradient(f)(w, x)[1]))


def of_a_step(f):
    """Through a step of gradient descent."""

    def after(w, x):
        return loss_of(f)(w - 0.1 * jax.grad(loss_of(f))(w, x), x)

    return jax.grad(after, (0, 1))


def of_a_rewritten_gradient(f):
    """By a vector; the outer derivative is taken by vjp, with an array."""

    def run(w, x):
        _, pull = jax.vjp(lambda w: jax.grad(loss_of(f))(w, x), w)
        return pull(jnp.cos(w))

    return run


@named([of_gradient_norm, of_a_step, of_a_rewritten_gradient])
def test_derivatives_of_derivatives_are_the_same_inside_and_outside(make, same, weights, inputs):
    f = layers(Plain)

    @jax.jit
    def run(*args):
        between = make(program.emulate(f, FP8))
        inside = program.emulate(make(f), FP8)
        return between(*args), inside(*args), program.emulate(make(f), "fp8_e4m3")(*args)

    between, inside, e4m3 = run(weights, inputs)
    assert same(between, inside)
    assert not same(inside, e4m3)


def test_products_of_an_optimiser_are_done_as_forward_ones(same, weights, inputs):
    def step(ops):
        def run(w, x):
            def turn(w, x):
                g = jax.grad(loss_of(layers(ops)))(w, x)
                whitened = ops.back(ops.back(g, g.T, (False, False)), g, (False, False))
                return w - 0.01 * whitened, None

            return lax.scan(turn, w, jnp.stack([x, -x]))[0]

        return run

    got = jax.jit(program.emulate(step(Plain), FP8))(weights, inputs)
    assert same(got, jax.jit(step(ByHand()))(weights, inputs))


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_gradient_of_an_emulated_model_is_the_emulated_gradient(name, model, batch, same):
    state, loss = model(name)

    @jax.jit
    def run(state, batch):
        outside = jax.value_and_grad(program.emulate(loss, FP8))(state, batch)
        return outside, program.emulate(jax.value_and_grad(loss), FP8)(state, batch)

    outside, inside = run(state, batch)
    assert same(outside, inside)


def test_an_embedding_of_flax_that_attends(same, inputs):
    graph, state = nnx.split(nnx.Embed(10, 8, rngs=nnx.Rngs(0)))
    table = state["embedding"][...]

    def loss(ops):
        def of(table, x):
            tokens = jnp.array([1, 3, 3, 7])
            if ops is Plain:
                embed = nnx.merge(graph, nnx.State({"embedding": nnx.Param(table)}))
                return embed.attend(jnp.tanh(embed(tokens) + x))
            return ops.dot(jnp.tanh(table[tokens] + x), table.T)

        return of

    got = jax.jit(program.emulate(gradient(loss(Plain)), FP8))(table, inputs)
    assert same(got, jax.jit(gradient(loss(ByHand())))(table, inputs))


# ---- What a policy says, and what stays as it was


def test_any_two_specs_may_be_named(same, weights, inputs):
    mixed = policy.Policy(product="bf16", grad_product="tf32:nearest_even")
    got = jax.jit(gradient(program.emulate(layers(Plain), mixed)))(weights, inputs)
    want = jax.jit(gradient(layers(ByHand("bf16", "tf32"))))(weights, inputs)
    assert same(got, want)


def test_a_device_rounds_both_ways_and_sums_alike(same, weights, inputs):
    on_device = policy.Policy(product="fp8_e4m3@ada")
    assert on_device.backward_product == "e5m2@ada"

    def got(w, x):
        return jax.vjp(program.emulate(jnp.matmul, on_device), x, w)[1](x)

    def want(w, x):
        e4m3, e5m2 = ({"fmt": fmt} for fmt in (KEPT, BACK))
        w, saved, cotangent = (
            rounding.round_to(v, **how) for v, how in ((w, e4m3), (x, e4m3), (x, e5m2))
        )
        axes = [(((1,), (1,)), ((), ())), (((0,), (0,)), ((), ()))]
        dot = functools.partial(matmul.dot_general, spec="e5m2@ada", rhs_spec="e4m3fn")
        return dot(cotangent, w, axes[0]), dot(cotangent, saved, axes[1]).T

    assert same(jax.jit(got)(weights, inputs), jax.jit(want)(weights, inputs))


def test_where_both_passes_agree_the_program_is_what_it_was(weights, inputs):
    def text(spec):
        return str(jax.make_jaxpr(program.emulate(gradient(layers(Plain)), spec))(weights, inputs))

    assert text(policy.Policy(product="tf32")) == text("tf32")
    assert text(policy.Policy(product="tf32", grad_product="tf32")) == text("tf32")
    assert text(policy.Policy(product="fp8_e4m3", grad_product="fp8_e4m3")) == text("fp8_e4m3")
    assert text(FP8) != text("fp8_e4m3")


def test_a_shadow_runs_beside_the_same_arithmetic(same, weights, inputs):
    fn = jax.grad(loss_of(scan_of_checkpoint(Plain)), (0, 1))
    result = program.shadow(fn, FP8)(weights, inputs)
    assert same(result.outputs, jax.jit(program.emulate(fn, FP8))(weights, inputs))


def test_a_second_call_is_not_traced_anew(weights, inputs):
    traces = []

    @jax.jit
    def step(w, x):
        traces.append(None)
        return w - 0.1 * program.emulate(jax.grad(loss_of(scanned(Plain))), FP8)(w, x)

    step(step(weights, inputs), inputs)
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_are_followed_through_explicit_roundings(dtype, same, weights, inputs):
    def f(w, x):
        return layers(Plain)(w.astype(dtype), x.astype(dtype)).astype(jnp.float32)

    def explicit(f):
        return program.emulate(program.round_explicitly(f), FP8)

    @jax.jit
    def run(*args):
        e4m3 = program.emulate(program.round_explicitly(gradient(f)), "fp8_e4m3")
        return explicit(gradient(f))(*args), gradient(explicit(f))(*args), e4m3(*args)

    inside, outside, e4m3 = run(weights, inputs)
    assert same(inside, outside)
    assert not same(inside, e4m3)
