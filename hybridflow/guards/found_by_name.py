"""Functions of libraries that are identified by module and name, so that no library need be imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any


class FoundByName:
    """A set of functions and methods of libraries.

    Args:
        paths: the functions by module, separated by spaces; methods are written ``CLASS.METHOD``.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._sites: dict[str, list[tuple[str, str]]] = {}
        for module, names in paths.items():
            for path in names.split():
                self._sites.setdefault(path.rpartition(".")[2], []).append((module, path))

    def __contains__(self, function: Any) -> bool:
        name = getattr(function, "__name__", None)
        sites = self._sites.get(name, ()) if type(name) is str else ()
        wanted = getattr(function, "__func__", function)
        return any(getattr(method, "__func__", method) is wanted for method in _at(sites))


def _at(sites: Any) -> Iterator[Any]:
    """Yield the objects at these sites in the modules that are loaded."""
    for module, path in sites:
        if module in sys.modules:
            try:
                yield attrgetter(path)(sys.modules[module])
            except AttributeError:  # not in this version or on this system
                continue
