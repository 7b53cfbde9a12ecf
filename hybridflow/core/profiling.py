"""The profiler that times what runs; see `hf.profile`."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol


class Profiler(Protocol):
    """The part of `hf.profile` that other modules use."""

    def records(self) -> bool:
        """Whether to time what runs now in this thread."""
        ...

    def bind(self, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Execute an operation."""

    def engine(self, engine: Any) -> Any:
        """Return a gradient engine that computes the same as the given one, and is timed."""

    def executable(self, trace: Any, values: Sequence[Any], device: Any) -> Any:
        """Return the executable of a trace, wrapped so that the profiler times its runs."""

    def compiled(self, owner: Any, key: Any, name: str, device: Any, make: Any) -> Any:
        """Return the executable that `make` compiles, wrapped so that the profiler times its runs."""


PROFILER: ContextVar[Profiler | None] = ContextVar("hybridflow profiler", default=None)
