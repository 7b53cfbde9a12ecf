"""Make names of other packages work, or raise an error that says what to write; `core.foreign_names` lists them.

Tensors get a class attribute for each name. They get no ``__getattr__``, because merely defining one slows down the
lookup of every attribute in Python 3.11. Modules do get one; Python calls it only for names that they lack. `dir`,
stubs and type checkers show only hybridflow's own names: the foreign names are for code that comes from other packages.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from hybridflow.core.errors import ArgumentTypeError, ForeignNameError, MutationError, message
from hybridflow.core.foreign_names import HINTS, NAMES, Hint, Name
from hybridflow.core.keywords import our_keyword
from hybridflow.core.methods import TensorMethods
from hybridflow.core.tensor import describe

_MODULES = ("hf", "hf.nn", "hf.random")
_CALL = re.compile(r"(?P<name>[\w.]+)(?:\((?P<parameters>.*)\))?$")
_TITLES = {"torch": "PyTorch", "numpy": "NumPy", "tensorflow": "TensorFlow", "jax": "JAX"}


def titles(packages: str) -> str:
    """Return the packages of a row by their usual titles."""
    return ", ".join(_TITLES[package] for package in packages.split())


def name_of(row: Name | Hint) -> str:
    """Return the dotted name of a row."""
    return (row.call if isinstance(row, Name) else row.name).partition("(")[0]


@functools.cache
def rows() -> dict[str, Name | Hint]:
    """Return the rows of the table, keyed by names such as ``hf.cat`` and ``x.view``."""
    return {name_of(row): row for row in (*NAMES, *HINTS)}


@functools.cache
def meaning(name: str) -> Any:
    """Return what a foreign name stands for here: a function, module or dtype; for tensors, a class attribute.

    Raises:
        ForeignNameError: the name has no direct equivalent; the text says what to use instead.
    """
    row = rows()[name]
    if isinstance(row, Hint):
        raise ForeignNameError(
            message(f"{name}: it is a name of {titles(row.packages)}", hint=f"Use {row.ours}: {row.because}.")
        )
    match = _CALL.match(row.call)
    parameters = match["parameters"] if match is not None else None
    of_tensor = name.startswith("x.")
    if parameters is None:
        if not of_tensor:
            return _evaluated(row.ours)
        ours = row.ours.removeprefix("x.")
        method = vars(TensorMethods).get(ours)
        return method if method is not None else property(_evaluated(f"lambda x: {row.ours}"))
    parts = [part for part in ("x" if of_tensor else "", parameters) if part]
    return _function(name.rpartition(".")[2], ", ".join(parts), row.ours)


def _evaluated(expression: str) -> Any:
    """Evaluate an expression of the table, in which `hf` is hybridflow; the text is always the package's own."""
    code = compile(expression, __file__, "eval")  # this file's name, so that its frames do not count as the user's
    return eval(code, {"hf": sys.modules["hybridflow"], "__name__": __name__})


def _function(name: str, parameters: str, ours: str) -> Callable[..., Any]:
    """Return a function of the parameters that evaluates an expression and accepts foreign keywords."""
    several = re.search(r"\*(\w+)", parameters)
    if several is not None:  # takes numbers, or one tuple of them
        one = several[1]
        ours = f"(lambda {one}: {ours})({one}[0] if len({one}) == 1 and isinstance({one}[0], tuple | list) else {one})"
    made = _evaluated(f"lambda {parameters}: {ours}")
    own = made.__code__.co_varnames[: made.__code__.co_argcount + made.__code__.co_kwonlyargcount]
    many = several[1] if several is not None else None

    def function(*args: Any, **kwargs: Any) -> Any:
        for keyword in [one for one in kwargs if one not in own]:
            if keyword == many:
                args = (*args, kwargs.pop(keyword))
            else:
                kwargs[our_keyword(name, keyword, own)] = kwargs.pop(keyword)
        return made(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    return function


class _Foreign:
    """A class attribute of tensors under another package's name, resolved on first use."""

    __slots__ = ("found", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: Any = None

    def __get__(self, tensor: Any, owner: type) -> Any:
        if self.found is None:
            self.found = meaning(f"x.{self.name}")
        return self.found if tensor is None else self.found.__get__(tensor, owner)


_FOREIGN = frozenset(name.removeprefix("x.") for name in map(name_of, (*NAMES, *HINTS)) if name.startswith("x."))


def _of_module(path: str, module: ModuleType) -> Callable[[str], Any]:
    """Return a module's new ``__getattr__``: foreign names first, then the ``__getattr__`` it had before."""
    before = vars(module).get("__getattr__")

    def getattr_(name: str) -> Any:
        if f"{path}.{name}" in rows():
            return meaning(f"{path}.{name}")
        if before is not None:
            return before(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}", name=name, obj=module)

    return getattr_


def _array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Run a NumPy ufunc on tensors with hybridflow's function of the same name: ``np.exp(t)`` is ``hf.exp(t)``.

    Raises:
        MutationError: the result would be written into an array, as in ``array += t``.
        ArgumentTypeError: another use of the ufunc, or a ufunc that hybridflow does not have.
    """
    name = ufunc.__name__
    if "out" in kwargs:
        raise MutationError(
            message(f"numpy.{name}: the result would be written into a NumPy array, which no gradient follows",
                    got=f"numpy.{name}({', '.join(map(describe, inputs))}, out=...)",
                    hint="Write `array = array + t` in place of `array += t`.")
        )  # fmt: skip
    function = getattr(sys.modules["hybridflow"], name, None)
    if method != "__call__" or kwargs or function is None:
        call = name if method == "__call__" else f"{name}.{method}"
        raise ArgumentTypeError(
            message(f"numpy.{call}: it is not done to tensors{' with these options' if kwargs else ''}",
                    got=f"numpy.{call}({', '.join(map(describe, inputs))})",
                    hint="Use the functions of hf; or t.numpy(), through which no gradient flows.")
        )  # fmt: skip
    return function(*inputs)


def _dir(self: Any) -> list[str]:
    """Return the attributes of a tensor without the foreign names."""
    return sorted(set(object.__dir__(self)) - _FOREIGN)


def install() -> None:
    """Give tensors and modules the names of the table. The package calls this once, when it is imported."""
    for name in _FOREIGN:
        setattr(TensorMethods, name, _Foreign(name))
    tensors = cast(Any, TensorMethods)
    tensors.__dir__, tensors.__array_ufunc__ = _dir, _array_ufunc
    package = sys.modules["hybridflow"]
    for path in _MODULES:
        module = functools.reduce(getattr, path.split(".")[1:], package)
        cast(Any, module).__getattr__ = _of_module(path, module)
