"""Sources whose results differ at every call: iterators, random numbers, clocks, streams, files, other processes."""

from __future__ import annotations

import builtins
import datetime
import io
import random
import sys
import time
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType
from typing import Any, Protocol

import numpy as np

from hybridflow.core.context import current
from hybridflow.core.errors import EffectWarning, message
from hybridflow.core.node import Where, format_where, warn_at, where_file_line
from hybridflow.guards.questions import LRU_CACHE, ONLY_READ, FoundByName


class OutsideObjects(Protocol):
    """The part of `Observations` that this module uses."""

    def is_outside(self, obj: Any) -> bool:
        """Whether an object existed before the trace."""
        ...

    def is_made_here(self, obj: Any) -> bool:
        """Whether the trace created an object."""
        ...


_OUTSIDE_OF_PYTHON: Mapping[str, str] = {
    "bz2": "open BZ2File",
    "codecs": "open",
    "configparser": "RawConfigParser.read",
    "fileinput": "input",
    "filecmp": "cmp cmpfiles",
    "glob": "glob iglob",
    "gzip": "open GzipFile",
    "h5py": "File",
    "linecache": "checkcache getline getlines",
    "lzma": "open LZMAFile",
    "mmap": "mmap",
    "numpy": "fromfile fromregex genfromtxt load loadtxt memmap",
    "os": "fwalk popen walk",
    "pandas": "read_csv read_excel read_feather read_fwf read_hdf read_html read_json read_parquet read_pickle "
    "read_sql read_sql_query read_sql_table read_table read_xml",
    "pathlib": "Path.glob Path.iterdir Path.lstat Path.open Path.readlink Path.rglob Path.stat Path.walk",
    "PIL.Image": "open",
    "scipy.io": "loadmat",
    "secrets": "choice randbelow randbits token_bytes token_hex token_urlsafe",
    "shelve": "open",
    "shutil": "disk_usage which",
    "socket": "create_connection getaddrinfo gethostbyname socket",
    "sqlite3": "connect",
    "subprocess": "Popen call check_call check_output getoutput getstatusoutput run",
    "tarfile": "open TarFile.open",
    "tempfile": "NamedTemporaryFile TemporaryDirectory TemporaryFile mkdtemp mkstemp mktemp",
    "urllib.request": "urlopen urlretrieve",
    "uuid": "uuid1 uuid4",
    "xml.etree.ElementTree": "parse iterparse",
    "zipfile": "ZipFile",
}
"""Functions that ask the system for something that may change at any time, by module, as in `FoundByName`."""
_SETS_STATE: Mapping[str, str] = {
    "decimal": "setcontext",
    "gc": "disable enable set_threshold",
    "locale": "setlocale",
    "logging": "Logger.setLevel basicConfig disable",
    "numpy": "set_printoptions setbufsize seterr seterrcall",
    "signal": "signal",
    "socket": "setdefaulttimeout",
    "sys": "setrecursionlimit setswitchinterval",
    "warnings": "filterwarnings resetwarnings simplefilter",
}
"""Functions that set state of Python, a library or the process, which each call must set again; written as above."""
_SYSTEM = frozenset({"posix", "nt", "fcntl", "resource", "select", "termios", "syslog", "msvcrt"})
"""The modules of Python's functions that call the system."""
_ALIKE = frozenset(
    {"_path_normpath", "_path_splitroot_ex", "confstr", "ctermid", "device_encoding", "fspath", "get_terminal_size",
     "getegid", "geteuid", "getgid", "getgroups", "getlogin", "getuid", "major", "makedev", "minor",
     "sched_get_priority_max", "sched_get_priority_min", "strerror", "sysconf", "uname", "waitstatus_to_exitcode",
     "WCOREDUMP", "WEXITSTATUS", "WIFCONTINUED", "WIFEXITED", "WIFSIGNALED", "WIFSTOPPED", "WSTOPSIG", "WTERMSIG"}
)
"""Their functions that change nothing and answer alike as long as a process lives."""
_OPEN = frozenset(
    {"_multiprocessing", "_socket", "codecs", "fileinput", "mmap", "multiprocessing.connection", "select", "socket",
     "ssl", "tempfile"}
)
"""The modules of types whose objects are open to the world outside of the process; `io.IOBase` is the other one."""
_OF_NO_PLACE = frozenset({"fileno", "flush", "isatty", "readable", "seekable", "writable"})
"""Methods of streams that neither read nor move."""
_OF_PYTHON = " (vectorized)"
"""The ending of the names of ufuncs from `np.frompyfunc`. The Python function inside cannot be found."""
_ASKS_THE_SYSTEM = FoundByName(_OUTSIDE_OF_PYTHON)
_SETS = FoundByName(_SETS_STATE)
_WARNED: set[tuple[str, int] | None] = set()
"""The lines that a warning was given for."""


def warn_once(label: str, why: str, where: Where | None) -> None:
    """Warn once for each line that a function is traced again at every call.

    Args:
        label: the function's name.
        why: what it reads.
        where: the user's line that reads it.
    """
    file_line = where_file_line(where)
    if file_line in _WARNED:
        return
    text = message(
        f"compile: {label} is traced again at every call, because what it reads cannot be watched",
        got=f"{why} at {format_where(where)}",
        hint="Read it before the call and pass what was read as an argument; draw random numbers with hf.random.",
    )
    warn_at(where, text, EffectWarning)
    _WARNED.add(file_line)


def is_open(value: Any) -> bool:
    """Whether a value is an object through which others read and write: a file, a connection, shared memory."""
    kind = type(value)
    return kind.__module__ in _OPEN or (issubclass(kind, io.IOBase) and not _is_standard(value))


def _is_standard(stream: Any) -> bool:
    return any(stream is one for one in getattr(current().tracer, "streams", (sys.stdout, sys.stderr)))


def calls_the_system(function: Any) -> bool:
    """Whether a function of Python's asks or changes the system: nothing tells later calls of it."""
    if type(function) is not BuiltinFunctionType or function.__module__ not in _SYSTEM:
        return False
    return function.__name__ not in _ALIKE and function not in ONLY_READ


RANDOM = (random.Random, np.random.Generator, np.random.RandomState)
"""The classes of random number generators: a journal can undo what they draw."""


def makes_random_source(function: Any) -> bool:
    """Whether a function creates a random number generator; without a seed, each call gets a different one."""
    return function is np.random.default_rng or function is np.random.RandomState or function is random.Random


def moving(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], observations: OutsideObjects
) -> str | None:
    """Return the name of a function that gives another result at every call, or that moves a stream; else None."""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "?")
    if function is builtins.next:
        return "next()" if args and observations.is_outside(args[0]) else None
    if isinstance(owner, RANDOM):
        module = "random." if isinstance(owner, random.Random) else "numpy.random's "
        return None if name == "seed" or observations.is_made_here(owner) else f"{module}{name}()"
    stream = kwargs.get("file") if function is builtins.print else owner
    if stream is owner and name in _OF_NO_PLACE:
        return None
    wrapped = getattr(function, "__wrapped__", None)  # as in `tempfile`
    if type(wrapped) is BuiltinFunctionType and is_open(wrapped.__self__):
        return f"{type(wrapped.__self__).__name__}.{name}()"
    shown = function is builtins.print and (stream is sys.stdout or stream is sys.stderr)
    if is_open(stream) and not shown and observations.is_outside(stream):
        return f"{type(stream).__name__}.{name}()" if stream is owner else f"print(file={type(stream).__name__})"
    if makes_random_source(function) and (not args or args[0] is None):
        return f"{name}() without a seed"
    if name == "cache_clear" and type(owner) is LRU_CACHE:
        return "cache_clear()"
    if owner is datetime.datetime and name in ("now", "utcnow", "today"):
        return f"datetime.{name}()"
    if owner is time and name not in ("sleep", "get_clock_info"):
        return f"time.{name}()"
    called = owner if isinstance(owner, np.ufunc) else function
    if isinstance(called, np.ufunc) and called.__name__.endswith(_OF_PYTHON):
        return f"{called.__name__}, a ufunc that calls a Python function"
    known = function is builtins.input or function is builtins.open or calls_the_system(function)
    return f"{name}()" if known or function in _ASKS_THE_SYSTEM or function in _SETS else None
