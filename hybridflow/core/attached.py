"""What rooms further up give to things further down: pictures and files of graphs, reports, explanations, conversion.

A thing down here asks for it by name. `hybridflow.later` knows which module has it, and imports that when it is first
asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Attached = Callable[..., Any]
_FINDER: list[Callable[[str], Attached]] = []
_FOUND: dict[str, Attached] = {}


def attach(finder: Callable[[str], Attached]) -> None:
    """Have `attached` answered by a function of the name."""
    _FINDER[:] = [finder]


def attached(name: str) -> Attached:
    """Return the function of a room further up that has a name."""
    found = _FOUND.get(name)
    if found is None:
        found = _FOUND[name] = _FINDER[0](name)
    return found
