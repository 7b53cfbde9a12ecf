"""Command-line targets: ``FILE.py:FUNCTION`` and the arguments to call it with."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.analysis.compare.sizes import random_tensor, split
from hybridflow.cli.faults import users_errors
from hybridflow.core.dtypes import SHORT_NAMES, as_dtype
from hybridflow.core.errors import DTypeError, TargetError
from hybridflow.core.functions import is_whole
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable

_SPEC = re.compile(r"([a-z]+[0-9]*)\[((?:\w+(?:,\w+)*)?)\]")


Modules = dict[Path, Any]


class Target(NamedTuple):
    """A function and the arguments to call it with; `inputs` makes the arguments of a size, if the file defines it."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: Callable[[int], Any] | None = None


def load_target(
    text: str, shapes: Sequence[str | TensorSpec] | None = None, *, values: bool = True, option: str = "--shapes"
) -> Target:
    """Import the file of ``FILE.py:FUNCTION`` and find the function and its arguments.

    Args:
        text: the target.
        shapes: specs of random arguments, such as ``f32[4,3]``.
        values: whether `shapes` become random tensors; otherwise they stay specs, which take no memory.
        option: the name of the option that gives the shapes, for error messages.

    Raises:
        TargetError: no such file or function, or no arguments for it.
        UserError: the file, or the function that makes the arguments, raised.
    """
    file, name = _parts(text)
    module = _import(_existing(file))
    function = _find(module, file, name)
    args, kwargs = _arguments(module, name, function, shapes, values=values, option=option)
    _require_call(function, args, kwargs, "cannot be called with the arguments that it is given", option)
    return Target(name, function, args, kwargs)


def load_targets(
    texts: Sequence[str], shapes: Sequence[str] | None, modules: Modules, *, sized: bool = False
) -> tuple[Target, list[Callable[..., Any]]]:
    """Import several functions, and find the arguments for the first.

    Args:
        texts: targets; ``FILE.py:f,g`` names several functions of a file.
        shapes: specs of random arguments; in a sweep, ``n`` stands for the size, as in ``f32[n,3]``.
        modules: the modules imported so far, by file; new imports are added.
        sized: whether the functions are called with several sizes. Their arguments then come from ``FUNCTION_inputs``
            in the file, unless shapes are given.

    Returns:
        The first function, and all of them.

    Raises:
        TargetError: as `load_target` does.
        UserError: as `load_target` does.
    """
    targets: list[tuple[Any, str, Callable[..., Any]]] = []
    for text in texts:
        file, names = _parts(text)
        module = _import_once(file, modules)
        targets += [(module, name, _find(module, file, name)) for name in names.split(",")]
    module, name, function = targets[0]
    functions = [one for _, _, one in targets]
    if sized and shapes is None:
        inputs = getattr(module, f"{name}_inputs", None)
        if not callable(inputs):
            raise TargetError(
                f"--sizes: the file has no function {name}_inputs that makes the arguments of a size",
                hint=f"Define {name}_inputs(n) in the file, or give --shapes with n in it, such as f32[n,3]."
            )
        return Target(name, function, (), {}, _users(inputs)), functions
    args, kwargs = _arguments(module, name, function, shapes, sized=sized)
    return Target(name, function, args, kwargs), functions


def load_function(text: str, modules: Modules) -> Callable[..., Any]:
    """Import a function without looking for its arguments, such as a peer; see `load_targets`."""
    file, name = _parts(text)
    return _find(_import_once(file, modules), file, name)


def _import_once(file: str, modules: Modules) -> Any:
    path = _existing(file)
    if path.resolve() not in modules:
        modules[path.resolve()] = _import(path)
    return modules[path.resolve()]


def _users(inputs: Callable[[int], Any]) -> Callable[[int], Any]:
    """Wrap the user's function that makes arguments, so that its errors are shown as the user's."""
    _require_call(inputs, (0,), {}, "is called with a size")

    def make(size: int) -> Any:
        with users_errors():
            return inputs(size)

    return make


def _require_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], what: str, option: str = "--shapes"
) -> None:
    """Raise if a function does not take such arguments."""
    try:
        signature = inspect.signature(called(function))
    except (TypeError, ValueError):
        return  # it has no readable signature
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", "it")
        raise TargetError(
            f"target: {name} {what}: {error}", got=f"{name}{signature}",
            hint=f"The arguments are those of {option}, or of FUNCTION_args or example_args in the file."
        ) from None


def called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the callable whose signature applies: a module's `forward`, or the function itself."""
    return cast(Any, function).forward if is_whole(function) and hasattr(function, "forward") else function


def _parts(text: str) -> tuple[str, str]:
    file, colon, name = text.rpartition(":")
    if not colon or not name or not file:
        raise TargetError(f"target: {text!r} is not FILE.py:FUNCTION", hint="Example: model.py:train_step")
    return file, name


def _existing(file: str) -> Path:
    path = Path(file)
    if path.is_dir():
        raise TargetError(f"target: {file!r} is a folder", hint=_like(path.name, _python_files(path / "_")))
    if not path.is_file():
        raise TargetError(f"target: there is no file {file!r}", hint=_like(path.name, _python_files(path)))
    return path


def _find(module: Any, file: str, name: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value) and _is_a_target(key)]
        raise TargetError(f"target: {file} has no function {name!r}", hint=_like(name, known))
    if not callable(function):
        raise TargetError(f"target: {name!r} in {file} is a {type(function).__name__}, not a function")
    return function


def _is_a_target(name: str) -> bool:
    return not name.startswith("_") and not name.endswith(("_args", "_inputs"))


def _python_files(path: Path) -> list[str]:
    return sorted(one.name for one in path.parent.glob("*.py") if one.is_file()) if path.parent.is_dir() else []


def _like(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"There is: {', '.join(known[:10])}." if known else "There is none of that kind there."


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise TargetError(f"target: {path} is not a Python file", hint="Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    with users_errors():
        spec.loader.exec_module(module)
    return module


# -- arguments ----------------------------------------------------------------------------------------------------


def _arguments(
    module: Any, name: str, function: Callable[..., Any], shapes: Sequence[str | TensorSpec] | None, *,
    sized: bool = False, values: bool = True, option: str = "--shapes",
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if shapes is not None:
        rng = np.random.default_rng(0)
        specs = [one if isinstance(one, TensorSpec) else _spec(one, sized=sized) for one in shapes]
        return tuple([one if None in one.shape or not values else _random(one, rng) for one in specs]), {}
    for candidate in (f"{name}_args", "example_args"):
        if hasattr(module, candidate):
            value = getattr(module, candidate)
            if callable(value) and not isinstance(value, Tensor | Variable):
                with users_errors():
                    value = value()
            return split(value)
    try:
        inspect.signature(called(function)).bind()
    except TypeError:
        raise TargetError(f"target: {name} needs arguments", got=f"{name}{inspect.signature(called(function))}",
                          hint=f"Define {name}_args in the file (a tuple, or a function that returns one), "
                               f"or give {option} f32[4,3] ...") from None
    return (), {}


def _random(spec: TensorSpec, rng: np.random.Generator) -> Tensor:
    return random_tensor(cast("tuple[int, ...]", spec.shape), spec.dtype, rng)


def _spec(text: str, *, sized: bool) -> TensorSpec:
    """Parse a spec; in a sweep, ``n`` marks the size that is left open."""
    spec = _parsed(text, "--shapes", "n")
    if None in spec.shape and not sized:
        raise TargetError(f"--shapes: {text!r} has a size n, which only --sizes gives a value")
    return spec


def open_spec(text: str) -> TensorSpec:
    """Parse a spec that may leave sizes open, such as ``f32[None,784]`` or ``f32[batch,784]``.

    Raises:
        TargetError: the text is not a spec.
    """
    return _parsed(text, "--spec", "None", names=True)


def _parsed(text: str, option: str, *words: str, names: bool = False) -> TensorSpec:
    """Parse an option's spec, in which the given words, or all names if `names`, mark sizes left open."""
    match = _SPEC.fullmatch(text)
    sizes = [] if match is None else [one for one in match[2].split(",") if one]
    known = [one in words or (one.isascii() and (one.isdigit() or (names and one.isidentifier()))) for one in sizes]
    if match is None or not all(known):
        raise TargetError(f"{option}: {text!r} is not a dtype and a shape",
                          hint=f"Example: f32[4,3], f32[{words[0]},3] or i32[].")
    try:
        dtype = SHORT_NAMES.get(match[1]) or as_dtype(match[1])
    except DTypeError as error:
        raise TargetError(f"{option}: {text!r}: {error}") from None
    return TensorSpec([None if one in words else int(one) if one.isdigit() else one for one in sizes], dtype)
