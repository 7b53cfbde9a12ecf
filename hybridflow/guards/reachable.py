"""The Python state that a function can reach, noted as a whole, whatever a trace knows of it."""

from __future__ import annotations

import dis
import functools
import random
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import jax
import numpy as np

from hybridflow.core.functions import is_layers, is_own
from hybridflow.core.held import defines
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import GradientCell, Variable
from hybridflow.guards.access import CELL, MISSING, RAW
from hybridflow.guards.contents import in_sequence, items_in
from hybridflow.guards.guards import CONTAINERS, PLAIN
from hybridflow.guards.journal import Journal
from hybridflow.guards.moving import RANDOM
from hybridflow.guards.parts import items_of, slots
from hybridflow.guards.shown import shown
from hybridflow.guards.signature import BoundCall
from hybridflow.guards.users import is_users, is_users_class

_MANY = 20_000
"""The largest number of objects that are looked at."""
_LARGE = 1 << 24
"""The size in bytes from which on NumPy arrays are not copied: data, which functions read."""
_CLOSED = (Tensor, jax.Array, np.dtype, np.generic, type, ModuleType, CodeType)


class Reachable:
    """Notes the state that functions and objects can reach, and walks no further than a user's own code and objects.

    Attributes:
        cells: the gradients of the Variables among it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: dict[int, tuple[Any, str]] = {}
        self.cells: list[GradientCell] = []

    def note(self, roots: Iterable[tuple[Any, str]]) -> None:
        """Note everything that can be reached from some objects, given with their names."""
        self._journal.random(cast(Any, random)._inst)
        self._journal.random(np.random.mtrand._rand)
        waiting = deque(roots)
        while waiting and len(self._seen) < _MANY:
            value, path = waiting.popleft()
            if type(value) in PLAIN or isinstance(value, _CLOSED) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value, path
            waiting.extend(self._parts(value, path))

    def path_of(self, holder: Any) -> str | None:
        """Return how an object was reached."""
        known = self._seen.get(id(holder))
        return None if known is None else known[1]

    def _parts(self, value: Any, path: str) -> Iterator[tuple[Any, str]]:
        kind = type(value)
        if isinstance(value, Variable):
            if value._notes is not None:
                self.cells.append(value._notes.cell)
        elif kind is FunctionType:
            yield from self._of_function(value)
        elif isinstance(value, MethodType | BoundCall):
            yield from ((value.__func__, path), (value.__self__, path))
        elif isinstance(value, functools.partial):
            yield from ((one, path) for one in (value.func, value.args, value.keywords))
        elif defines(kind, "python_function"):
            yield value.python_function, path
        elif isinstance(value, RANDOM):
            self._journal.random(value)
        elif isinstance(value, np.ndarray):
            if value.nbytes < _LARGE and value.flags.writeable:
                self._journal.content(value)
        else:
            yield from self._of_object(value, kind, path)

    def _of_function(self, function: FunctionType) -> Iterator[tuple[Any, str]]:
        if not is_users(function.__code__):
            return
        yield from ((one, "a default") for one in (function.__defaults__, function.__kwdefaults__))
        yield vars(function), function.__name__
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._journal.cell(cell)
            self._seen[id(cell)] = cell, name
            yield CELL.get(cell, name), name
        namespace = function.__globals__
        for name, is_stored in _globals_in(function.__code__).items():
            if is_stored:
                self._journal.item_of(namespace, name)
            yield namespace.get(name), name

    def _of_object(self, value: Any, kind: type, path: str) -> Iterator[tuple[Any, str]]:
        self._journal.content(value)
        if isinstance(value, CONTAINERS):
            yield from ((item, f"{path}[{shown(key)}]") for key, item in items_of(value))
        elif isinstance(value, set | frozenset):
            yield from ((item, f"an item of {path}") for item in items_in(value))
        attributes, module = RAW.get(value, "__dict__"), str(kind.__module__)
        is_watched = is_users_class(kind) or is_layers(module)
        if type(attributes) is dict and (is_watched or is_own(module)):
            if is_watched:
                self._seen[id(attributes)] = attributes, path
                self._journal.content(attributes)
            yield from ((one, f"{path}.{name}") for name, one in cast("dict[str, Any]", attributes).items())
        if is_users_class(kind):
            for name in slots(kind):
                self._journal.attribute(value, name)
                yield RAW.get(value, name), f"{path}.{name}"
            special = [vars(one).get("__call__") for one in kind.__mro__ if is_users_class(one)]
            yield from ((one, path) for one in special if one is not None)


@functools.lru_cache(maxsize=4096)
def _globals_in(code: CodeType) -> dict[str, bool]:
    """Return the globals that code names, and whether it stores them."""
    found: dict[str, bool] = {}
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.setdefault(step.argval, False)
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found[step.argval] = True
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            for name, is_stored in _globals_in(constant).items():
                found[name] = is_stored or found.get(name, False)
    return found


def alike(first: Any, second: Any, depth: int = 0) -> bool:
    """Whether two values that two runs of the same code stored are the same, as far as Python tells."""
    if first is second or depth > 20:
        return True
    if type(first) is not type(second):
        return False
    if type(first) in PLAIN:
        return bool(first == second) or bool(first != first and second != second)
    if isinstance(first, np.ndarray | np.generic):
        return _same_arrays(np.asarray(first), np.asarray(second))
    if isinstance(first, dict):
        one, other = [*items_of(first)], [*items_of(second)]
        return len(one) == len(other) and all(
            alike(a, b, depth + 1) and alike(x, y, depth + 1) for (a, x), (b, y) in zip(one, other, strict=True)
        )
    if isinstance(first, list | tuple | deque):
        one, other = in_sequence(first), in_sequence(second)
        return len(one) == len(other) and all(alike(a, b, depth + 1) for a, b in zip(one, other, strict=True))
    if isinstance(first, set | frozenset):
        return len(first) == len(second)
    return True


def _same_arrays(first: Any, second: Any) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return first.dtype.hasobject or first.tobytes() == second.tobytes()


def text_of(value: Any) -> str:
    """Return a value of the state for messages."""
    if value is MISSING:
        return "nothing"
    if isinstance(value, list | dict | set | tuple | deque):
        return f"{len(value)} items" if len(repr(value)) > 60 else repr(value)
    return repr(value)[:60]
