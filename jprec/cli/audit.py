"""`jprec audit`: which products does a program have, and how does a device run them?"""

import contextlib
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jprec import records
from jprec.cli.trouble import Trouble
from jprec.cli.words import meant

if TYPE_CHECKING:
    from jprec.doctor import Audit

#: Short names of dtypes, as JAX prints them.
_SHORT_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "c64": "complex64",
    "c128": "complex128",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u32": "uint32",
    "u8": "uint8",
    "f8_e4m3fn": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
}


@dataclasses.dataclass(frozen=True)
class AuditVerb:
    """Lists every product and convolution of a program, and how a device will run it.

    Nothing runs, and no GPU is needed. A function is named by module or by file:
      jprec audit my.model:loss --shapes "f32[784,10], f32[32,784]"
      jprec audit model.py:step_and_arguments --device h100

    Without --shapes, NAME may be a function that takes nothing and returns (function, argument,
    ...), or such a tuple itself. This is how trees of parameters are given; arguments may be
    jax.ShapeDtypeStruct, for instance those of jax.eval_shape, so that no weight is made:
      def step_and_arguments():
          return train_step, jax.eval_shape(init, jax.random.key(0)), batch

    Printed are what runs in which arithmetic, the shortest time that it can take, what to mend,
    and the products, widest first, those that differ only in the number of their layer on one
    line. Exit status: 0; 1 if there is something to mend; 2 for bad input.
    """

    function: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODULE:NAME")]
    """What to audit: package.module:NAME or file.py:NAME."""

    shapes: Annotated[str, tyro.conf.arg(metavar="DTYPE[N,...],...")] = ""
    """One array for each argument: f32[32,784] or float32[32,784]; i32[] is a number."""

    device: str = "a100"
    """Where it is to run: a name of `jprec hardware`, or tpu or cpu."""

    all: bool = False
    """Print each product on lines of its own, with its scope, in the order of the program."""

    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write a page with everything into a .html file."""

    json: bool = False
    """Print JSON for machines."""

    def run(self) -> int:
        """Prints the audit; 1 if there is something to mend."""
        from jprec import doctor

        try:
            doctor.target(self.device)
        except ValueError as error:
            raise Trouble(str(error)) from error
        found = _audited(self)
        if not found.operations:
            raise Trouble(
                f"{self.function} has no product and no convolution, so there is nothing to "
                "audit. Name the function that calls the model, for instance the training step."
            )
        if self.html is not None:
            _write(found, self.html)
        if self.json:
            print(records.dumps(doctor.facts(found), indent=1))
        else:
            print(doctor.table(found, every=self.all))
        if self.html is not None:
            print(self.html, file=sys.stderr if self.json else sys.stdout)
        return 1 if found.findings else 0


def _audited(asked: AuditVerb) -> "Audit":
    """The audit of what the command names."""
    from jprec import doctor

    fn, arguments = _call(asked)
    try:
        inspect.signature(fn).bind(*arguments)
    except TypeError as error:
        raise Trouble(
            f"{asked.function}: its arguments do not fit: {error}. {_takes(fn)}"
        ) from error
    except ValueError:  # a function without a signature, such as one written in C
        pass
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the function prints is not our output
            return doctor.audit(fn, *arguments, device=asked.device)
    except Exception as error:
        raise Trouble(
            f"{asked.function} cannot be traced: {_first_line(error)} JAX must be able to trace it "
            "with these shapes; bind what is no array first, with functools.partial."
        ) from error


def _call(asked: AuditVerb) -> tuple[Callable, tuple]:
    """The function and its arguments."""
    named = _named(asked.function)
    if asked.shapes:
        if not callable(named):
            raise Trouble(f"{asked.function} is a {type(named).__name__}, no function.")
        return named, shapes(asked.shapes)
    if callable(named) and not _required(named):
        try:
            result = named()
        except Exception as error:
            raise Trouble(f"{asked.function}() failed: {_first_line(error)}") from error
        return _pair(result) or (named, ())
    pair = _pair(named)
    if pair is None and callable(named):
        raise Trouble(f"{asked.function} needs arguments. {_takes(named)}")
    if pair is None:
        raise Trouble(
            f"{asked.function} is a {type(named).__name__}; name a function, or a tuple "
            "(function, argument, ...)."
        )
    return pair


def _pair(value: Any) -> tuple[Callable, tuple] | None:
    """Function and arguments, where `value` is a tuple of them."""
    is_pair = isinstance(value, tuple) and len(value) > 0 and callable(value[0])
    return (value[0], tuple(value[1:])) if is_pair else None


def _named(reference: str) -> Any:
    """The object at "package.module:NAME" or "file.py:NAME"."""
    module_name, colon, attribute = reference.rpartition(":")
    if not colon or not module_name or not attribute:
        raise Trouble(
            f"{reference}: name a function in a module or in a file, as in package.module:NAME or "
            "file.py:NAME."
        )
    from jprec.study import load_module

    try:
        module = load_module(module_name)
    except Exception as error:
        raise Trouble(f"cannot import {module_name}: {_first_line(error)}") from error
    if not hasattr(module, attribute):
        hint = meant(attribute, [name for name in vars(module) if not name.startswith("_")])
        raise Trouble(f"{module_name} has no {attribute!r}; {hint}".rstrip("; ") + ".")
    return getattr(module, attribute)


def _required(fn: Callable) -> list[str]:
    """The arguments without which `fn` cannot be called."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return ["?"]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in positional and p.default is p.empty]


def _takes(fn: Callable) -> str:
    names = _required(fn)
    example = ", ".join(["f32[8,32]"] * len(names))
    return (
        f"It takes ({', '.join(names)}): give a shape for each, as in --shapes "
        f'"{example}", or name a function that returns (function, argument, ...).'
    )


def _first_line(error: BaseException) -> str:
    """What went wrong, on one line that ends as a sentence does."""
    line = next(iter(str(error).strip().splitlines()), "").strip().rstrip(".:")
    return f"{type(error).__name__}: {line}." if line else f"{type(error).__name__}."


def shapes(text: str) -> tuple[Any, ...]:
    """Abstract arrays for text such as "f32[8,32], i32[8]".

    >>> shapes("f32[8,32], int32[]")
    (ShapeDtypeStruct(shape=(8, 32), dtype=float32), ShapeDtypeStruct(shape=(), dtype=int32))
    """
    import jax
    import jax.numpy as jnp

    found = []
    for word in re.split(r",(?![^\[]*\])", text):
        match = re.fullmatch(r"\s*(\w+)\s*\[([\d\s,]*)\]\s*", word)
        if match is None:
            raise Trouble(
                f"--shapes: {word.strip()!r} is no array; write DTYPE[SIZE,...], as in f32[8,32] "
                "or i32[]."
            )
        try:
            dtype = jnp.dtype(_SHORT_DTYPES.get(match[1], match[1]))
        except TypeError as error:
            raise Trouble(
                f"--shapes: no dtype {match[1]!r}; there are {', '.join(_SHORT_DTYPES)}, and the "
                "names of NumPy."
            ) from error
        sizes = tuple(int(size) for size in match[2].split(",") if size.strip())
        found.append(jax.ShapeDtypeStruct(sizes, dtype))
    return tuple(found)


def _write(found: "Audit", path: Path) -> None:
    """Writes the page of an audit."""
    from jprec import doctor

    if path.suffix.lower() not in (".html", ".htm"):
        raise Trouble(f"--html {path}: a page's name ends in .html.")
    try:
        from jprec import report
    except ModuleNotFoundError as error:
        raise Trouble(f"--html needs {error.name}: pip install 'jprec[lab]'.") from error
    try:
        records.write_text(path, report.audit_page(doctor.page_facts(found)))
    except OSError as error:
        raise Trouble(f"cannot write {path}: {error.strerror or error}.") from error
