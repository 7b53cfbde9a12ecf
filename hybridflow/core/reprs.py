"""What an object's printed form says of how it was made: the settings that differ from the defaults."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

_PLAIN = (bool, int, float, complex, str, type(None))


def settings_of(value: Any, but: str = "") -> list[str]:
    """Return ``name=value`` for the parameters of an object's class that it keeps and that differ from the default.

    Parameters without a default come first, without their names. A parameter is kept as an attribute of its name, with
    or without an underscore before it; values that are no plain ones, such as arrays, are left out.

    Args:
        value: the object.
        but: a text; names and values that it says already are left out.
    """
    held, settings, said = vars(value), list[str](), {*but.split(", ")}
    for parameter in [*inspect.signature(type(value)).parameters.values()]:
        name = parameter.name
        key = name if name in held else f"_{name}"
        if key not in held or not _is_plain(held[key]) or f"{name}=" in but:
            continue
        if parameter.default is parameter.empty:
            settings.append(repr(held[key]))
        elif _is_other(held[key], parameter.default) and not {repr(held[key]), str(held[key])} & said:
            settings.append(f"{name}={held[key]!r}")
    return settings


def _is_other(value: Any, default: Any) -> bool:
    """Whether a value is another one of the kind of the default, and not something made of the argument."""
    return value is not None and value != default and (default is None or type(value) is type(default))


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(_is_plain(one) for one in value))


def function_text(function: Any) -> str:
    """Return a setting as text; a function that another one made as that one's name and the values which it keeps."""
    if not isinstance(function, FunctionType) or "<locals>" not in function.__qualname__:
        return repr(function)
    kept = inspect.getclosurevars(function).nonlocals
    values = [f"{name}={function_text(value)}" for name, value in kept.items()
              if _is_plain(value) or isinstance(value, FunctionType)]
    return f"{function.__qualname__.partition('.')[0]}({', '.join(values)})"
