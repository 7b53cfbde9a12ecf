"""Functions that a module calls although they are defined in a module that is imported after it.

Most are of a higher-level package: pictures, reports, conversion. Others are of a module that itself imports the
caller, so that importing it back would be a cycle. Code asks for such a function by name. `hybridflow.later` knows
which module defines it, and imports that module on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Attached = Callable[..., Any]
_FINDER: list[Callable[[str], Attached]] = []
_FOUND: dict[str, Attached] = {}


def attach(finder: Callable[[str], Attached]) -> None:
    """Set the function that `attached` uses to find a function by name."""
    _FINDER[:] = [finder]


def attached(name: str) -> Attached:
    """Return a function of a module that is imported later, by name."""
    function = _FOUND.get(name)
    if function is None:
        function = _FOUND[name] = _FINDER[0](name)
    return function
