"""Command-line targets: ``FILE.py:FUNCTION`` and the arguments to call it with."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.dtypes import SHORT_NAMES, as_dtype, is_integer
from hybridflow.core.errors import DTypeError, HybridflowError, TargetError, message
from hybridflow.core.tensor import Tensor, asarray
from hybridflow.core.variable import Variable

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SPEC = re.compile(r"([a-z]+[0-9]*)\[((?:\d+(?:,\d+)*)?)\]")


class UserError(Exception):
    """An error raised by the user's own code; its text is the traceback of the user's files alone."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Target(NamedTuple):
    """A function and the arguments to call it with."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def load_target(text: str, shapes: Sequence[str] | None = None) -> Target:
    """Import the file of ``FILE.py:FUNCTION`` and find the function and its arguments.

    Args:
        text: the target.
        shapes: specs of random arguments, such as ``f32[4,3]``.

    Raises:
        TargetError: no such file or function, or no arguments for it.
        UserError: the file, or the function that makes the arguments, raised.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not name or not file:
        raise TargetError(message(f"target: {text!r} is not FILE.py:FUNCTION", hint="Example: model.py:train_step"))
    path = Path(file)
    if not path.is_file():
        raise TargetError(message(f"target: there is no file {file!r}", hint=_like(path.name, _python_files(path))))
    module = _import(path)
    function = getattr(module, name, None)
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value) and _is_a_target(key)]
        raise TargetError(message(f"target: {file} has no function {name!r}", hint=_like(name, known)))
    if not callable(function):
        raise TargetError(message(f"target: {name!r} in {file} is a {type(function).__name__}, not a function"))
    args, kwargs = _arguments(module, name, function, shapes)
    return Target(name, function, args, kwargs)


def _is_a_target(name: str) -> bool:
    return not name.startswith("_") and not name.endswith("_args")


def _python_files(path: Path) -> list[str]:
    return sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []


def _like(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"There is: {', '.join(known[:10])}." if known else "There is none of that kind there."


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise TargetError(message(f"target: {path} is not a Python file", hint="Its name must end in .py."))
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    with users_errors():
        spec.loader.exec_module(module)
    return module


# -- arguments ----------------------------------------------------------------------------------------------------


def _arguments(
    module: Any, name: str, function: Callable[..., Any], shapes: Sequence[str] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if shapes is not None:
        rng = np.random.default_rng(0)
        return tuple([_random(text, rng) for text in shapes]), {}
    for candidate in (f"{name}_args", "example_args"):
        if hasattr(module, candidate):
            value = getattr(module, candidate)
            if callable(value) and not isinstance(value, Tensor | Variable):
                with users_errors():
                    value = value()
            return _split(value)
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise TargetError(
            message(
                f"target: {name} needs arguments",
                got=f"{name}{inspect.signature(function)}",
                hint=f"Define {name}_args in the file (a tuple, or a function that returns one), "
                "or give --shapes f32[4,3] ...",
            )
        ) from None
    return (), {}


def _split(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(value, dict):
        return (), cast("dict[str, Any]", value)
    if isinstance(value, tuple | list):
        return tuple(cast("list[Any]", value)), {}
    return (value,), {}


def _random(text: str, rng: np.random.Generator) -> Tensor:
    found = _SPEC.fullmatch(text)
    if found is None:
        raise TargetError(message(f"--shapes: {text!r} is not a dtype and a shape", hint="Example: f32[4,3] or i32[]"))
    try:
        dtype = SHORT_NAMES.get(found[1]) or as_dtype(found[1])
    except DTypeError as error:
        raise TargetError(message(f"--shapes: {text!r}: {error}")) from None
    shape = tuple([int(size) for size in found[2].split(",") if size])
    if dtype == np.bool_:
        return asarray(rng.integers(0, 2, shape).astype(bool))
    return asarray((rng.integers(0, 10, shape) if is_integer(dtype) else rng.standard_normal(shape)).astype(dtype))


# -- the user's errors --------------------------------------------------------------------------------------------


@contextmanager
def users_errors() -> Generator[None]:
    """Turn what the user's code raises into a `UserError` that shows the user's files and lines only.

    An error with no line of the user's in it is not theirs, and passes.
    """
    try:
        yield
    except Exception as error:
        text = users_traceback(error)
        if text is None:
            raise
        raise UserError(text) from error


def users_traceback(error: BaseException) -> str | None:
    """Return an error's traceback without the frames of hybridflow and its libraries, None if nothing is left."""
    found = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException] = [found]
    for one in chain:
        chain.extend(other for other in (one.__cause__, one.__context__) if other is not None)
        one.stack = traceback.StackSummary.from_list([frame for frame in one.stack if _is_users(frame.filename)])
    if not any(one.stack for one in chain) and not isinstance(error, SyntaxError):
        return None
    if isinstance(error, HybridflowError):
        # How hybridflow came to its message is its own affair.
        found.__cause__ = found.__context__ = None
    return "".join(found.format())


def _is_users(filename: str) -> bool:
    return not filename.startswith((_PACKAGE, "<frozen")) and f"{os.sep}site-packages{os.sep}" not in filename and (
        not filename.startswith((os.path.dirname(os.__file__) + os.sep, sys.prefix + os.sep + "bin"))
    )
