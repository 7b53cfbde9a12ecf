"""Who takes the time of what runs: see `hf.profile`."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol


class Profiler(Protocol):
    """What `hf.profile` offers to the rest."""

    def records(self) -> bool:
        """Whether what runs here and now is to be timed."""
        ...

    def bind(self, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Execute an operation."""

    def engine(self, engine: Any) -> Any:
        """Return an engine of gradients that computes as another does."""

    def executable(self, trace: Any, values: Sequence[Any], device: Any) -> Any:
        """Return what runs a compiled function's trace."""

    def compiled(self, owner: Any, key: Any, name: str, device: Any, make: Any) -> Any:
        """Return what runs a graph that `make` compiles."""


PROFILER: ContextVar[Profiler | None] = ContextVar("hybridflow profiler", default=None)
