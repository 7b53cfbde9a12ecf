"""Functions of libraries that are known by where they are found: a library need not be loaded for that."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any


class FoundByName:
    """Functions and methods of libraries.

    Args:
        paths: by module, the functions, and the methods as ``CLASS.METHOD``, with spaces between them.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._places: dict[str, list[tuple[str, str]]] = {}
        for module, names in paths.items():
            for path in names.split():
                self._places.setdefault(path.rpartition(".")[2], []).append((module, path))

    def __contains__(self, function: Any) -> bool:
        name = getattr(function, "__name__", None)
        places = self._places.get(name, ()) if type(name) is str else ()
        wanted = getattr(function, "__func__", function)
        return any(getattr(found, "__func__", found) is wanted for found in _at(places))


def _at(places: Any) -> Iterator[Any]:
    """Yield what is at some places in the modules that are loaded."""
    for module, path in places:
        if module in sys.modules:
            try:
                yield attrgetter(path)(sys.modules[module])
            except AttributeError:  # another version of Python or of the library, or another system
                continue
