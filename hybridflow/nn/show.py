"""The printed form of a module: a tree of the modules in it."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from hybridflow.core.functions import Whole
from hybridflow.core.reprs import settings_of
from hybridflow.nn.tree import holds


def tree_text(module: Any) -> str:
    """Return a module as text, the modules in it indented."""
    return "\n".join(_lines(module, "", ()))


def _lines(module: Any, name: str, around: tuple[Any, ...]) -> list[str]:
    label = f"({name}): " if name else ""
    if any(module is one for one in around):
        return [f"{label}{type(module).__name__}(...)"]
    inside = [
        line for key, value in vars(module).items() for line in _inside(key, value, (*around, module))
    ]
    own = module.extra_repr()
    settings = [one for one in settings_of(module, own) if "=" in one]  # those without a default are its own text
    head = f"{label}{type(module).__name__}({', '.join([own, *settings] if own else settings)}"
    return [f"{head})"] if not inside else [head, *[f"  {line}" for line in inside], ")"]


def _inside(name: str, value: Any, around: tuple[Any, ...]) -> list[str]:
    if isinstance(value, Whole):
        return _lines(value, name, around)
    if name.isdigit() and callable(value):
        return [f"({name}): {_called(value)}"]
    if not isinstance(value, list | tuple | dict) or not holds(value, set()):
        return []
    items: Any = cast("dict[Any, Any]", value).items() if isinstance(value, dict) else enumerate(value)
    lines: list[str] = []
    for key, item in items:
        if callable(item) and not isinstance(item, Whole):
            lines.append(f"({name}.{key}): {_called(item)}")
        else:
            lines += _inside(f"{name}.{key}", item, around)
    return lines


def _called(function: Any) -> str:
    """Return the text for a function among the layers."""
    if isinstance(function, partial):
        given = [*map(repr, function.args), *[f"{name}={value!r}" for name, value in function.keywords.items()]]
        return f"{_called(cast(Any, function).func)}({', '.join(given)})"
    return getattr(function, "__name__", repr(function))
