"""Tell whether a file, a module or a class is the user's own: hybridflow converts and watches only those."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
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
_HEAP_TYPE = 1 << 9
"""The CPython type flag of classes that a ``class`` statement created."""


@functools.lru_cache(maxsize=4096)
def is_users_file(name: str) -> bool:
    """Whether a file is the user's own: not part of hybridflow, the standard library or an installed package.

    hybridflow's layers and models count as the user's: a trace treats them the same way.
    """
    if name.startswith(_LAYERS):
        return True
    if name.startswith((_PACKAGE, "<frozen", "<__array_function__")):
        return False
    return not name.startswith(_LIBRARIES) and f"{os.sep}site-packages{os.sep}" not in name


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
