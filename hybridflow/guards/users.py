"""Tell whether a file, a module or a class is the user's own: hybridflow converts and watches only those."""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from importlib import metadata
from types import CodeType, ModuleType

OWN_LIBRARIES = ("hybridflow", "jax", "jaxlib")
"""Libraries that do the tracing themselves; their functions hold no state of the user."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LAYERS = (os.path.join(_PACKAGE, "nn", "layers", ""), os.path.join(_PACKAGE, "models", ""))
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(
    {os.path.realpath(_PATHS[key]) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {_PATHS[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_KNOWN = frozenset({*OWN_LIBRARIES, "numpy", "scipy"})
"""Packages that need not be looked up: tracing itself runs their code."""
_NEEDS_HYBRIDFLOW = re.compile(r"^Requires-Dist: hybridflow\b", re.MULTILINE)
_HEAP_TYPE = 1 << 9
"""The CPython type flag of classes that a ``class`` statement created."""


@functools.lru_cache(maxsize=4096)
def is_users_file(name: str) -> bool:
    """Whether a file is the user's own: not part of hybridflow, the standard library or somebody else's package.

    hybridflow's layers and models count as the user's: a trace treats them the same way. Of the installed packages,
    those do that need hybridflow, and those that were installed from a folder.
    """
    if name.startswith(_LAYERS):
        return True
    if name.startswith((_PACKAGE, "<frozen", "<__array_function__")):
        return False
    folder, installed, inside = name.rpartition(_INSTALLED)
    if installed:
        package = inside.partition(os.sep)[0].partition(".")[0]
        return package not in _KNOWN and package in _users_packages(folder + installed)
    return not name.startswith(_LIBRARIES)


@functools.cache
def _users_packages(folder: str) -> frozenset[str]:
    """Return the names of the packages in a folder of installed ones that are the user's own."""
    names: set[str] = set()
    for one in metadata.distributions(path=[folder]):
        needs = _NEEDS_HYBRIDFLOW.search(one.read_text("METADATA") or "") is not None
        if needs or '"dir_info"' in (one.read_text("direct_url.json") or ""):
            names |= {file.parts[0].partition(".")[0] for file in one.files or ()}
    return frozenset(names)


def is_users(code: CodeType) -> bool:
    """Whether code is the user's own: see `is_users_file`."""
    return is_users_file(code.co_filename)


def is_hybridflows(code: CodeType) -> bool:
    """Whether code is part of hybridflow, but not of its layers and models."""
    return code.co_filename.startswith(_PACKAGE) and not is_users(code)


def is_users_module(module: ModuleType | None) -> bool:
    """Whether a module is the user's own, by its file. A module without a file was created by hand and counts too."""
    file = getattr(module, "__file__", None)
    return is_users_file(file) if isinstance(file, str) else True


def is_users_module_name(name: str) -> bool:
    """Whether the module with this name is the user's own."""
    if name.partition(".")[0] in OWN_LIBRARIES or name in sys.builtin_module_names:
        return False
    return is_users_module(sys.modules.get(name))


def is_users_class(kind: type) -> bool:
    """Whether a class is the user's own. A class that `exec` makes in a bare namespace has the module ``builtins``."""
    module = str(kind.__module__)
    return bool(kind.__flags__ & _HEAP_TYPE) and (module == "builtins" or is_users_module_name(module))
