"""Functions of higher-level packages that lower-level code calls, such as pictures, reports and conversion.

Lower-level code asks for such a function by name. `hybridflow.later` knows which module defines it, and imports that
module on first use.
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
    """Return a function of a higher-level package by name."""
    function = _FOUND.get(name)
    if function is None:
        function = _FOUND[name] = _FINDER[0](name)
    return function
