"""Where the operands of a program's products come from, and where their results go.

The program is walked once with, for each value, the arrays that it is made of (`origins`) and
marks that equations leave on it. This is a reading of the program's structure: it follows calls,
branches and one pass of each loop, and computes nothing.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core

from jprec.program import is_users

#: Equations that multiply two arrays and sum.
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})

#: Equations whose result holds the numbers of their only operand, in another order or format.
_SHAPE = frozenset(
    {
        "broadcast_in_dim",
        "conj",
        "convert_element_type",
        "copy",
        "copy_p",
        "expand_dims",
        "neg",
        "optimization_barrier",
        "pvary",
        "real",
        "reduce_precision",
        "reshape",
        "rev",
        "sharding_constraint",
        "squeeze",
        "stop_gradient",
        "transpose",
    }
)

#: Equations of two arrays, element by element, after which both are still to be seen.
_ELEMENTWISE = frozenset({"add", "add_any", "sub", "mul", "div", "max", "min", "select_n"})
_SUMS = frozenset({"add", "add_any", "sub"})

#: Equations that pick some of an array's elements.
_PICKS = frozenset({"gather", "slice", "dynamic_slice", "split"})

#: Equations that factorise a matrix, and fail or lose accuracy where it is not what it should be.
FACTORISATIONS = frozenset(
    {
        "cholesky",
        "eig",
        "eigh",
        "geqrf",
        "hessenberg",
        "lu",
        "qr",
        "schur",
        "svd",
        "tridiagonal",
    }
)


_WIDTHS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclasses.dataclass(frozen=True)
class Value:
    """What is known of one array: the arrays it is made of, and the marks on it.

    Marks are pairs. ("gram", n), ("cross", n) and ("diagonal", n) say that product n is in it as
    any function of a Gram matrix, as a multiple, or as picked elements; ("squared", origins) and
    ("square", origins) that it holds squares, or sums of squares, of the array made of these;
    ("argument", "") that it is an argument of the program; ("widened", dtype) that it was stored
    in a narrower dtype.
    """

    origins: frozenset[int]
    marks: frozenset[tuple[str, Any]] = frozenset()

    def marked(self, kind: str) -> frozenset[Any]:
        """What the marks of one kind say."""
        return frozenset(what for mark, what in self.marks if mark == kind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProductSite:
    """One product of the program, as the walk found it.

    Attributes:
      kind: Name of the equation.
      operand_dtypes: Dtypes of both operands.
      operand_shapes: Their shapes.
      result_shape: Shape of the result.
      operands: What both operands are made of.
      frames: The calls that made it, innermost first: (file, function). A function under `jit` is
        traced on its own, so that the calls around each enclosing equation follow.
      source: "file:line" of the innermost call that is a user's; None where none is on record.
    """

    kind: str
    operand_dtypes: tuple[str, str]
    operand_shapes: tuple[tuple[int, ...], tuple[int, ...]]
    result_shape: tuple[int, ...]
    operands: tuple[Value, Value]
    frames: tuple[tuple[str, str], ...]
    source: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Narrowing:
    """A cast of an array from FP64 to a narrower format: dtypes before and after, and the line."""

    before: str
    after: str
    source: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow:
    """What the walk found.

    Attributes:
      products: The products, in the order of the program.
      factorised: Number of a product that is a Gram matrix -> the factorisation that it reaches.
      cancelled: Numbers of the products that are subtracted from squares of their own operands.
      narrowed: Casts from FP64.
    """

    products: tuple[ProductSite, ...]
    factorised: dict[int, str]
    cancelled: frozenset[int]
    narrowed: tuple[Narrowing, ...]


def flow(fn: Callable, *args: Any, **kwargs: Any) -> Flow:
    """What the program of `fn(*args, **kwargs)` does with its arrays.

    >>> import jax.numpy as jnp
    >>> flow(lambda a: jnp.linalg.cholesky(a @ a.T), jnp.ones((3, 3))).factorised
    {0: 'cholesky'}
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = array_arguments(leaves)

    def of_arrays(*given: Any) -> Any:
        values = iter(given)
        filled = [next(values) if is_array(leaf) else leaf for leaf in leaves]
        own_args, own_kwargs = jax.tree.unflatten(tree, filled)
        return fn(*own_args, **own_kwargs)

    body = jax.make_jaxpr(of_arrays)(*arrays)
    walk = _Walk()
    argument = frozenset({("argument", "")})
    walk.run(body, [Value(walk.fresh(), argument) for _ in _program(body).invars])
    return Flow(
        products=tuple(walk.products),
        factorised=walk.factorised,
        cancelled=frozenset(walk.cancelled),
        narrowed=tuple(walk.narrowed),
    )


def is_array(leaf: Any) -> bool:
    """Whether a leaf of the arguments is an array, or stands for one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def array_arguments(tree: Any) -> list[Any]:
    """The arrays among a function's arguments, abstract ones too."""
    return [leaf for leaf in jax.tree.leaves(tree) if is_array(leaf)]


def _program(body: Any) -> Any:
    """The program of a body, without its constants."""
    return getattr(body, "jaxpr", body)


def _bodies(equation: Any) -> list[Any]:
    """The programs inside an equation that it may run."""
    found: list[Any] = []
    for value in equation.params.values():
        if hasattr(value, "solve"):  # custom_linear_solve: the rest differentiates it
            value = value.solve
        several = value if isinstance(value, tuple) else (value,)
        found += [body for body in several if isinstance(body, core.Jaxpr | core.ClosedJaxpr)]
    return found


class _Walk:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.products: list[ProductSite] = []
        self.factorised: dict[int, str] = {}
        self.cancelled: set[int] = set()
        self.narrowed: list[Narrowing] = []
        self._around: list[Any] = []  # the equations whose bodies are being walked

    def fresh(self) -> frozenset[int]:
        return frozenset({next(self._numbers)})

    def run(self, body: Any, inputs: Sequence[Value]) -> list[Value]:
        """What is known of a body's results, given what is known of its arguments."""
        program = _program(body)
        known: dict[Any, Value] = dict(zip(program.invars, inputs, strict=True))

        def read(variable: Any) -> Value:
            if isinstance(variable, core.Literal):
                return Value(frozenset())
            if variable not in known:  # a constant
                known[variable] = Value(self.fresh())
            return known[variable]

        for equation in program.eqns:
            results = self._results(equation, [read(v) for v in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in program.outvars]

    def _results(self, equation: Any, inputs: list[Value]) -> list[Value]:
        name = equation.primitive.name
        bodies = _bodies(equation)
        if name in _PRODUCTS:
            return [self._product(equation, inputs)]
        if bodies and name not in ("reduce", "sort", "scatter-add", "scatter_add", "scatter"):
            return self._called(equation, bodies, inputs)
        if name in FACTORISATIONS:
            for number in frozenset().union(*(value.marked("gram") for value in inputs)):
                self.factorised.setdefault(number, name)
        rule = (
            self._kept
            if name in _SHAPE
            else self._combined
            if name in _ELEMENTWISE
            else self._changed
        )
        return rule(equation, inputs)

    def _called(self, equation: Any, bodies: list[Any], inputs: list[Value]) -> list[Value]:
        """The results of an equation that runs programs."""
        count = len(equation.outvars)
        results = [Value(self.fresh()) for _ in range(count)]
        for body in bodies:
            wanted = len(_program(body).invars)
            match equation.primitive.name:
                case "cond":
                    given = inputs[1:]
                case "while":
                    cond, own = (equation.params[f"{part}_nconsts"] for part in ("cond", "body"))
                    is_test = body is equation.params["cond_jaxpr"]
                    consts = inputs[:cond] if is_test else inputs[cond : cond + own]
                    given = [*consts, *inputs[cond + own :]]
                case _:
                    given = inputs
            if len(given) != wanted:
                given = [_joined(inputs)] * wanted
            self._around.append(equation)
            found = self.run(body, given)
            self._around.pop()
            if len(found) == count:
                results = [_joined(pair) for pair in zip(results, found, strict=True)]
        return results

    def _product(self, equation: Any, inputs: list[Value]) -> Value:
        number = len(self.products)
        left, right = inputs[:2]
        shapes = tuple(tuple(variable.aval.shape) for variable in equation.invars[:2])
        result = tuple(equation.outvars[0].aval.shape)
        self.products.append(
            ProductSite(
                kind=equation.primitive.name,
                operand_dtypes=tuple(v.aval.dtype.name for v in equation.invars[:2]),  # type: ignore[arg-type]
                operand_shapes=shapes,  # type: ignore[arg-type]
                result_shape=result,
                operands=(left, right),
                frames=tuple((f.file_name, f.function_name) for f in self._frames(equation)),
                source=self._user_line(equation),
            )
        )
        marks: set[tuple[str, Any]] = {("cross", number)}
        if left.origins & right.origins and equation.primitive.name == "dot_general":
            marks.add(("gram", number))
            (summed, _), (batch, _) = equation.params["dimension_numbers"]
            if len(summed) + len(batch) == len(shapes[0]):  # row by row with itself
                marks = {("square", left.origins)} if left.origins == right.origins else set()
        return Value(self.fresh(), frozenset(marks))

    def _kept(self, equation: Any, inputs: list[Value]) -> list[Value]:
        (*_, value) = inputs[:1]
        if equation.primitive.name == "convert_element_type":
            value = self._converted(equation, value)
        return [value] * len(equation.outvars)

    def _converted(self, equation: Any, value: Value) -> Value:
        aval = equation.invars[0].aval
        before, after = aval.dtype.name, equation.outvars[0].aval.dtype.name
        if before not in _WIDTHS or after not in _WIDTHS:
            return value
        if _WIDTHS[after] > _WIDTHS[before] and value.marked("argument"):
            return Value(value.origins, value.marks | {("widened", before)})
        if before == "float64" and _WIDTHS[after] < 8 and aval.ndim:
            self.narrowed.append(
                Narrowing(before=before, after=after, source=self._user_line(equation))
            )
        return value

    def _combined(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Sums, products and choices, element by element."""
        name = equation.primitive.name
        is_number = [getattr(variable.aval, "size", 1) == 1 for variable in equation.invars]
        if name in ("mul", "div") and is_number[1]:
            return [inputs[0]]
        if name == "mul" and is_number[0]:
            return [inputs[1]]
        if name == "mul" and inputs[0].origins and inputs[0].origins == inputs[1].origins:
            return [Value(self.fresh(), frozenset({("squared", inputs[0].origins)}))]
        if name in _SUMS:
            self._notice_cancellation(inputs[0], inputs[1])
            self._notice_cancellation(inputs[1], inputs[0])
        joined = _joined(inputs)
        kept = ("gram", "cross", "square", "diagonal") if name in _SUMS else ("gram",)
        return [Value(joined.origins, _only(joined.marks, *kept))]

    def _notice_cancellation(self, one: Value, other: Value) -> None:
        squares, diagonals = other.marked("square"), other.marked("diagonal")
        for number in one.marked("cross"):
            left, right = self.products[number].operands
            if squares & {left.origins, right.origins} or number in diagonals:
                self.cancelled.add(number)

    def _changed(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Whatever else: a new array, which may still be a function of a Gram matrix."""
        name = equation.primitive.name
        joined = _joined(inputs)
        marks: set[tuple[str, Any]] = set()
        if name == "square" or (name == "integer_pow" and equation.params["y"] == 2):
            marks.add(("squared", joined.origins))
        elif name == "reduce_sum":
            marks |= {("square", origins) for origins in joined.marked("squared")}
        elif name in _PICKS:
            marks |= {("diagonal", number) for number in joined.marked("gram")}
            return [Value(joined.origins, frozenset(marks))] * len(equation.outvars)
        keeps = all(getattr(v.aval, "ndim", 0) >= 2 for v in equation.outvars)
        if keeps:
            marks |= _only(joined.marks, "gram")
        return [Value(self.fresh(), frozenset(marks)) for _ in equation.outvars]

    def _frames(self, equation: Any) -> Iterator[Any]:
        """The calls that made an equation, innermost first."""
        for one in (equation, *reversed(self._around)):
            yield from _frames(one)

    def _user_line(self, equation: Any) -> str | None:
        """The innermost line that is in no library, as "file:line"."""
        users = (frame for frame in self._frames(equation) if is_users(frame.file_name))
        return next((f"{frame.file_name}:{frame.line_num}" for frame in users), None)


def _only(marks: Iterable[tuple[str, Any]], *kinds: str) -> frozenset[tuple[str, Any]]:
    return frozenset(mark for mark in marks if mark[0] in kinds)


def _joined(values: Iterable[Value]) -> Value:
    values = tuple(values)
    return Value(
        frozenset().union(*(value.origins for value in values)),
        frozenset().union(*(value.marks for value in values)),
    )


def _frames(equation: Any) -> Sequence[Any]:
    traceback = equation.source_info.traceback
    return () if traceback is None else traceback.frames
