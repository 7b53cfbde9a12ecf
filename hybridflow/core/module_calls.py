"""The calls of modules while a function is traced, with the operations of each in a name scope of its own.

Nothing is recorded unless `module_calls` is active, so ordinary calls only check that.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hybridflow.core.node import name_scope

_SCOPE = "module."
"""What the names of the scopes start with; the number of a module follows."""
_CALLS: ContextVar[ModuleCalls | None] = ContextVar("hybridflow module calls", default=None)
ACTIVE: set[object] = set()  # of all threads; almost always empty, which makes the check cheap


class ModuleCalls:
    """The modules that were called.

    Attributes:
        modules: the modules, in the order of their first calls.
        results: the result of each module's last call.
        roots: whether each was first called outside of any other module.
    """

    def __init__(self) -> None:
        self.modules: list[Any] = []
        self.results: list[Any] = []
        self.roots: list[bool] = []
        self._numbers: dict[int, int] = {}
        self._depth = 0

    def number(self, module: Any) -> int:
        """Return the number of a module, which is a new one at its first call."""
        number = self._numbers.setdefault(id(module), len(self.modules))
        if number == len(self.modules):
            self.modules.append(module)
            self.results.append(None)
            self.roots.append(not self._depth)
        return number

    @contextmanager
    def around(self, module: Any) -> Generator[None]:
        """Return the context in which a module is called: its operations are in a scope of its own."""
        number = self.number(module)
        self._depth += 1
        try:
            with name_scope(f"{_SCOPE}{number}"):
                yield
        finally:
            self._depth -= 1

    def result(self, path: str, module: Any, value: Any) -> None:
        """Keep the result of a module, which comes after those of functions in it."""
        del path
        self.results[self.number(module)] = value


@contextmanager
def module_calls() -> Generator[ModuleCalls]:
    """Record the calls of modules in the block."""
    calls, key = ModuleCalls(), object()
    token = _CALLS.set(calls)
    ACTIVE.add(key)
    try:
        yield calls
    finally:
        ACTIVE.discard(key)
        _CALLS.reset(token)


def calls_here() -> tuple[ModuleCalls, ...]:
    """Return the recording that is active here, if there is one."""
    calls = _CALLS.get()
    return () if calls is None else (calls,)


def module_number(scope: str) -> int | None:
    """Return the number of the innermost module that a name scope is in, or None if it is in none."""
    parts = [part for part in scope.split("/") if part.startswith(_SCOPE)]
    return int(parts[-1][len(_SCOPE) :]) if parts else None
