"""All that differs between JAX releases (0.10 to 0.12) in the programs that JAX traces.

Only public names are used: `jax.extend.core`, `jax.extend.source_info_util`,
`jax.interpreters.ad`, and the attributes of equations. The rest of the room reads programs
through the functions below and knows no release.

A *body* is a program inside an equation's parameters. JAX 0.10 has two classes of body, with
and without constants; 0.12 has one.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.extend import core, source_info_util
from jax.interpreters import ad

#: The zero that a pullback takes for an output that nothing depends on.
Zero = ad.Zero

#: Equations that hold one body, which is evaluated in their place. Their derivative rules are
#: gone afterwards, which is why `rewriting` differentiates first.
_EVALUATED = frozenset(
    {
        "custom_jvp_call",
        "custom_vjp_call",
        "closed_call",
        "call",
        "eval_jaxpr",
        "composite",
        "custom_vmap_call",
        "linear_call",
    }
)

#: JAX 0.11 and newer: an object that carries its own rules and is expanded into a program.
_HIDDEN_BODY = "call_hi_primitive"

#: Equations that are kept, with rewritten bodies of the same types.
_KEPT = frozenset(
    {
        "jit",
        "pjit",
        "scan",
        "while",
        "cond",
        "remat2",
        "checkpoint",
        "custom_linear_solve",
        "xla_metadata_call",
        "compute_on",
    }
)

#: Calls that add a name, a compilation unit or a memory plan, but no meaning of their own.
_TRANSPARENT = frozenset({"jit", "pjit", "remat2", "checkpoint"})

#: Equations that compute something which no traced program shows, or only in a language of
#: its own (a kernel on blocks of memory).
_HIDING = """
pallas_call mpmd_map core_map tpu_custom_call mosaic_gpu_p triton_kernel_call ffi_call
buffer_callback pure_callback io_callback custom_partitioning call_exported call_tf cudnn_fusion
dot_product_attention_fwd dot_product_attention_bwd dot_product_attention_fwd_wrapper
dot_product_attention_bwd_wrapper dot_product_attention_fp8_fwd dot_product_attention_fp8_bwd
dot_product_attention_fp8_fwd_wrapper dot_product_attention_fp8_bwd_wrapper rnn_fwd rnn_bwd
scaled_dot scaled_matmul scaled_matmul_wrapper bcoo_dot_general bcoo_dot_general_sampled
bcoo_spdot_general bcsr_dot_general coo_matmat coo_matvec coo_spmm coo_spmv csr_matmat
csr_matvec csr_spmm csr_spmv
"""
_OPAQUE = frozenset(_HIDING.split())

#: Equations that call the host and give nothing back.
_REPORTS = frozenset({"debug_callback", "debug_print"})

#: Part of the name of equations that JAX adds to a backward pass to compute forward values anew.
RECOMPUTED = "rematted_computation"


def is_body(value: Any) -> bool:
    """Whether a parameter's value is a program."""
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


def parts(body: Any) -> tuple[Any, list[Any]]:
    """The program of a body, and its constants.

    `constvars` of the program stand for the constants, `invars` for the arguments.
    """
    return getattr(body, "jaxpr", body), list(getattr(body, "consts", ()))


def evaluate(program: Any, values: Sequence[Any]) -> list[Any]:
    """The program's outputs for `values`: one for each of its constants, then its arguments."""
    count = len(program.constvars)
    return jax.core.eval_jaxpr(program, values[:count], *values[count:])


def opened(body: Any) -> tuple[Any, list[Any]]:
    """The body as an equation wants it that takes no constants, and the constants to pass first."""
    program, consts = parts(body)
    if not consts:
        return program, []

    def run(*values: Any) -> list[Any]:
        return evaluate(program, values)

    avals = [variable.aval for variable in (*program.constvars, *program.invars)]
    return parts(jax.make_jaxpr(run)(*avals))[0], consts


def is_opaque(equation: Any) -> bool:
    """Whether the equation computes something that its parameters do not show."""
    return equation.primitive.name in _OPAQUE


def is_report(equation: Any) -> bool:
    """Whether the equation calls the host, and gives nothing back."""
    return equation.primitive.name in _REPORTS


def is_known(equation: Any) -> bool:
    """Whether it is known what the bodies of the equation mean."""
    return equation.primitive.name in _EVALUATED | _KEPT | {_HIDDEN_BODY, "shard_map"}


def has_body(equation: Any) -> bool:
    """Whether the equation runs a program of its own."""
    return equation.primitive.name == _HIDDEN_BODY or bool(bodies(equation))


def is_checkpoint(equation: Any) -> bool:
    """Whether the equation is a `jax.checkpoint`. Its body must not have constants."""
    return equation.primitive.name in ("remat2", "checkpoint")


def is_shard_map(equation: Any) -> bool:
    """Whether the equation runs its body once per device."""
    return equation.primitive.name == "shard_map"


def sharded(run: Any, equation: Any) -> Any:
    """`run` on each device's part of its arguments, split as the equation splits them."""
    params = equation.params
    return jax.shard_map(
        run,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=frozenset(params["newly_manual_axes"]),
        check_vma=params["check_vma"],
    )


def evaluated_body(equation: Any) -> Any | None:
    """The body whose value is the value of the equation, for equations that are mere wrappers."""
    name = equation.primitive.name
    if name in _EVALUATED:
        (body,) = bodies(equation).values()
        return body
    return _expanded(equation) if name == _HIDDEN_BODY else None


def transparent_body(equation: Any) -> Any | None:
    """As `evaluated_body`, and also the bodies of `jit` and of `checkpoint`."""
    if equation.primitive.name in _TRANSPARENT:
        return equation.params["jaxpr"]
    return evaluated_body(equation)


def _expanded(equation: Any) -> Any:
    primitive = equation.params["_prim"]

    def run(*flat: Any) -> list[Any]:
        result = primitive.expand(*primitive.in_tree.unflatten(flat))
        return primitive.out_tree.flatten_up_to(result)

    return jax.make_jaxpr(run)(*[variable.aval for variable in equation.invars])


def bodies(equation: Any) -> dict[str, Any]:
    """The parameters that hold bodies: each a body, or a tuple of bodies and None."""
    held = {}
    for name, value in equation.params.items():
        if is_body(value) or (isinstance(value, tuple) and any(map(is_body, value))):
            held[name] = value
    return held


def executed_bodies(equation: Any) -> list[Any]:
    """The bodies that run when the equation runs forward, each once or as often as `trips` says."""
    body = evaluated_body(equation)
    if body is not None:
        return [body]
    if is_opaque(equation):
        return []
    if equation.primitive.name == "custom_linear_solve":
        return [equation.params["jaxprs"].solve]
    found: list[Any] = []
    for value in bodies(equation).values():
        found += [value] if is_body(value) else [body for body in value if is_body(body)]
    return found


def calls(equation: Any) -> list[tuple[Any, list[int] | None]]:
    """The executed bodies, each with the places of its arguments among the equation's inputs.

    The places are None where arguments and inputs do not correspond one to one.
    """
    found: list[tuple[Any, list[int] | None]] = []
    places = list(range(len(equation.invars)))
    if equation.primitive.name == "while":
        params = equation.params
        tested, run = params["cond_nconsts"], params["body_nconsts"]
        carried = places[tested + run :]
        return [
            (params["cond_jaxpr"], [*places[:tested], *carried]),
            (params["body_jaxpr"], places[tested:]),
        ]
    if equation.primitive.name == "cond":
        places = places[1:]  # the first input chooses the branch
    if equation.primitive.name == "custom_linear_solve":
        places = solve_inputs(equation, places)
    for body in executed_bodies(equation):
        fits = len(parts(body)[0].invars) == len(places)
        found.append((body, places if fits else None))
    return found


def is_combiner(body: Any) -> bool:
    """Whether a body says only how elements combine (in a reduction, a scatter): all is scalar."""
    program = parts(body)[0]
    return all(getattr(v.aval, "shape", None) == () for v in (*program.invars, *program.outvars))


def trips(equation: Any) -> int | None:
    """How often the equation runs its bodies; None where only the run can tell."""
    name = equation.primitive.name
    if name == "scan":
        return int(equation.params["length"])
    return None if name == "while" else 1


def scan_sizes(equation: Any) -> tuple[int, int]:
    """How many of a scan's first inputs are constants, and how many of the next its carry."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].update(equation.invars).unpack()
    return len(consts), len(carry)


def solve_inputs(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """What of the inputs of a `custom_linear_solve` its solver takes."""
    lengths = equation.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    right_hand_side = start + lengths.solve + lengths.transpose_solve
    return [*inputs[start : start + lengths.solve], *inputs[right_hand_side:]]


def copies(equation: Any) -> int:
    """How often the lowered program holds the equation's bodies. A scan may be unrolled."""
    unroll = int(equation.params.get("unroll", 1)) if equation.primitive.name == "scan" else 1
    if unroll <= 1:
        return 1
    turns, rest = divmod(int(equation.params["length"]), unroll)
    return (unroll if turns else 0) + rest


@contextlib.contextmanager
def as_written(equation: Any) -> Iterator[None]:
    """Equations made inside carry the names, the source line and the settings of `equation`."""
    info = equation.source_info
    names = source_info_util.current_name_stack() + info.name_stack
    with (
        source_info_util.user_context(info.traceback, name_stack=names),
        equation.ctx.manager,
    ):
        yield


def bind(equation: Any, inputs: Sequence[Any], **changed: Any) -> list[Any]:
    """The equation's outputs for other inputs, with some parameters changed."""
    primitive = equation.primitive
    params = primitive.get_bind_params({**equation.params, **changed})
    outputs = primitive.bind(*inputs, **params)
    return list(outputs) if primitive.multiple_results else [outputs]


def frames(equation: Any) -> Sequence[Any]:
    """The stack of calls that made the equation, innermost first: .file_name, .line_num."""
    traceback = equation.source_info.traceback
    return () if traceback is None else traceback.frames
