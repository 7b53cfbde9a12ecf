"""Library functions that only read state which guards cannot watch, inside the library or the system.

Such a function is called again, with the same arguments, before each call of the compiled function, and its result is
compared.
"""

from __future__ import annotations

import decimal
import functools
import gc
import importlib.util
import sys
import threading
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, cast

import jax
import numpy as np

from hybridflow.core.context import CONTEXT
from hybridflow.guards.access import MISSING, Access
from hybridflow.guards.shown import shown
from hybridflow.guards.signature import static_key
from hybridflow.guards.users import is_users_class, is_users_module_name

# -- functions of libraries that are identified by module and name, so that no library need be imported ---------------


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


_READERS: dict[str, str] = {
    "abc": "get_cache_token",
    "builtins": "__import__",
    "decimal": "getcontext",
    "gc": "get_count get_threshold isenabled",
    "importlib": "import_module",
    "locale": "getencoding getlocale getpreferredencoding localeconv",
    "logging": "getLevelName getLogger Logger.getChild Logger.getEffectiveLevel Logger.hasHandlers "
    "Logger.isEnabledFor",
    "multiprocessing": "current_process",
    "numpy": "get_printoptions getbufsize geterr geterrcall",
    "os": "access cpu_count getcwd getenv getenvb getpid getppid listdir path.exists path.getmtime path.getsize "
    "path.abspath path.expanduser path.expandvars path.isdir path.isfile path.islink path.ismount path.lexists "
    "path.realpath",
    "pathlib": "Path.absolute Path.cwd Path.exists Path.expanduser Path.home Path.is_dir Path.is_file Path.is_symlink "
    "Path.read_bytes Path.read_text Path.resolve",
    "signal": "getsignal",
    "socket": "getdefaulttimeout gethostname",
    "sys": "exc_info exception get_asyncgen_hooks get_int_max_str_digits getdefaultencoding getprofile "
    "getrecursionlimit getswitchinterval gettrace",
    "tempfile": "gettempdir",
    "threading": "active_count current_thread get_ident get_native_id main_thread stack_size",
}
"""Functions that only read, by module; methods are written ``CLASS.METHOD``."""
ONLY_READ = FoundByName(_READERS)


def decimal_settings() -> tuple[Any, ...]:
    """Return what decides how Python computes with decimals; not the flags that the computations set."""
    now = decimal.getcontext()
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, dict(now.traps)


CONTEXTS: tuple[Callable[[], Any], ...] = (decimal.getcontext, decimal_settings, np.geterr, np.get_printoptions)
"""Functions that read what a block, as of `np.errstate`, may set: a trace depends on what was set before its call."""
INSPECTING = FoundByName({
    "builtins": "eval exec globals",
    "gc": "get_objects get_referents get_referrers",
    "inspect": "currentframe getmembers stack",
    "sys": "_current_frames _getframe",
})
"""Functions by which code reaches what it does not name."""
OF_ATTRIBUTES = FoundByName({"builtins": "dir getattr hasattr vars", "inspect": "getattr_static"})
"""Functions that read attributes of their first argument."""
LRU_CACHE = type(functools.lru_cache(lambda: None))
"""The type of a function with `functools.lru_cache` or `functools.cache`."""
_METHODS_OF_FUNCTIONS = frozenset({"cache_info", "cache_parameters", "dispatch"})
"""Methods that `functools.lru_cache` and `functools.singledispatch` add to functions and that only read."""

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


class Question:
    """A call of a function that only reads.

    Attributes:
        function: the function.
        args, kwargs: its arguments, which it does not change.
    """

    __slots__ = ("_key", "args", "function", "kwargs")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        given = (*args, *kwargs.values())
        self._key = static_key(function), tuple(kwargs), tuple([static_key(one, by_value=True) for one in given])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Question) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        owner = getattr(self.function, "__self__", None)
        kind = getattr(owner, "__name__", type(owner).__name__)
        name = getattr(self.function, "__name__", type(self.function).__name__)
        named = [f"{key}={shown(value)}" for key, value in self.kwargs.items()]
        given = ", ".join([*map(shown, self.args), *named])
        return f"{name if owner is None else f'{kind}.{name}'}({given})"


def _answer(holder: object, question: Question) -> Any:
    """Call the function outside every trace, as the user's code would, so that no cache stores a traced value."""
    del holder
    if type(question.function) is LRU_CACHE and not _is_in_cache(question.function, question.args, question.kwargs):
        return MISSING  # the user's code runs where the call is, and only there
    token = CONTEXT.set(None)
    try:
        return question.function(*question.args, **question.kwargs)
    except Exception:  # counts as a change: the function is traced again, and the user's own line raises
        return MISSING
    finally:
        CONTEXT.reset(token)


def _is_in_cache(cached: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function with `functools.lru_cache` has the result of a call, by the key that CPython makes of it."""
    cache, _, mark, *_ = gc.get_referents(cached)[-6:]
    key: Any = args
    if kwargs:
        key += (mark, *[one for pair in kwargs.items() for one in pair])
    if cached.cache_parameters()["typed"]:
        key += (*map(type, args), *map(type, kwargs.values()))
    return (key[0] if len(key) == 1 and type(key[0]) in (int, str) else key) in cache


ANSWER: Final = Access(_answer, "", "{n}")
"""The result of a function that only reads."""


def question_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Question | None:
    """Return a call as a `Question` if its function only reads hidden state; else None."""
    if type(function) is functools.partial:
        return question_of(function.func, (*function.args, *args), {**function.keywords, **kwargs})
    if is_asked_of_abstract_classes(function, args):
        return Question(issubclass, (type(args[0]) if function is isinstance else args[0], args[1]), {})
    if function is callable and len(args) == 1 and is_users_class(type(args[0])):
        return Question(is_called, (type(args[0]),), kwargs)
    name = getattr(function, "__name__", None)
    owner = getattr(function, "__self__", None)
    if function is importlib.util.find_spec:
        return Question(found_module, args, kwargs)
    is_cached = type(function) is LRU_CACHE and is_users_module_name(str(function.__module__))
    if is_cached or isinstance(function, weakref.ref):
        return Question(function, args, kwargs)
    if (name == "__subclasses__" and isinstance(owner, type)) or (name == "locked" and isinstance(owner, _LOCKS)):
        return Question(function, args, kwargs)
    if name in _METHODS_OF_FUNCTIONS and _is_of_functools(function, owner):
        return Question(function, args, kwargs)
    return Question(function, args, kwargs) if function in ONLY_READ else None


def found_module(name: str, package: str | None = None) -> tuple[str, str | None] | None:
    """Return the name and place of the module that an import would find; None if there is none."""
    spec = importlib.util.find_spec(name, package)
    return None if spec is None else (spec.name, spec.origin)


def is_called(kind: type) -> bool:
    """Whether a class's objects can be called, as `callable` tells of one of them."""
    return any("__call__" in vars(one) for one in kind.__mro__)


def is_leaf_class(kind: type) -> bool:
    """Whether JAX treats all objects of a class as leaves of a pytree."""
    try:
        return jax.tree_util.all_leaves((object.__new__(kind),))
    except TypeError:  # a subclass of a builtin class, whose objects cannot be created this way
        return True


def is_asked_of_abstract_classes(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call is an `isinstance` or `issubclass` whose result depends on registrations with abstract classes."""
    if not (function is isinstance or function is issubclass) or len(args) != 2:
        return False
    kinds = cast("tuple[Any, ...]", args[1]) if isinstance(args[1], tuple) else (args[1],)
    checks = [type(one).__instancecheck__ for one in kinds if isinstance(one, type)]
    return (
        len(checks) == len(kinds)
        and ABCMeta.__instancecheck__ in checks
        and all(one in (ABCMeta.__instancecheck__, type.__instancecheck__) for one in checks)
    )


def _is_of_functools(function: Any, owner: Any) -> bool:
    return type(owner) is LRU_CACHE or getattr(function, "__module__", None) == "functools"
