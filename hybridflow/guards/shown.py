"""Texts of values for messages, without running a user's code: only the traced function may call a ``__repr__``."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np

from hybridflow.core.staged_number import text_for_messages
from hybridflow.guards.users import is_users, is_users_class

_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType, CodeType, GeneratorType)
"""Types whose texts show names only, not what the objects hold."""
_MOST = 256
"""How many objects are looked at for a user's ``__repr__``; the text of more would be too long anyway."""


def shown(value: Any) -> str:
    """Return the text of a value; the name of its class if a user's own code would make the text, or a part of it."""
    if type(value) is ModuleType:  # pages are shared: they show no folders of this machine
        return f"<module {vars(value).get('__name__')!r}>"
    return f"a {type(value).__name__}" if _runs_users_code(value) else text_for_messages(value)


def _runs_users_code(value: Any) -> bool:
    pending = [value]
    seen: dict[int, Any] = {}
    while pending:
        one = pending.pop()
        kind = type(one)
        if _shows_itself(kind) or (issubclass(kind, np.ndarray) and one.dtype.hasobject) or len(seen) > _MOST:
            return True
        if id(one) in seen or kind.__repr__ is object.__repr__ or issubclass(kind, _NAMED):
            continue
        seen[id(one)] = one
        pending += gc.get_referents(one)
    return False


def _shows_itself(kind: type) -> bool:
    """Whether a user's own code would make the text of a class's objects."""
    method = next((vars(one)["__repr__"] for one in kind.__mro__ if "__repr__" in vars(one)), None)
    method = getattr(method, "__func__", method)
    if type(method) is FunctionType:
        return is_users(method.__code__) and method.__code__.co_filename != "<string>"
    return is_users_class(type(method))
