"""What a call of unconverted code (a builtin or a library's function) may read or change."""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import logging
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import jax
import numpy as np

from hybridflow.guards import noticed, reading
from hybridflow.guards.access import IN_CLASS
from hybridflow.guards.contents import items_in
from hybridflow.guards.effects import LOADED, OTHER, arguments_now, called_again
from hybridflow.guards.guards import CHANGING, CONTAINERS
from hybridflow.guards.moving import calls_the_system
from hybridflow.guards.noticed import MONITORING
from hybridflow.guards.observations import Observations
from hybridflow.guards.observe import current_observations, holds_numbers, require_untraced_key, run_over
from hybridflow.guards.parts import is_closed
from hybridflow.guards.questions import Question, is_asked_of_abstract_classes, is_leaf_class, question_of
from hybridflow.guards.users import OWN_LIBRARIES, is_users, is_users_class

CHANGES = frozenset({
    "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update", "setdefault", "popitem",
    "add", "discard", "difference_update", "intersection_update", "symmetric_difference_update", "appendleft",
    "extendleft", "popleft", "rotate", "fill", "resize", "put", "itemset", "__iadd__", "__ior__", "__iand__",
    "__isub__", "__ixor__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__imatmul__",
    "__ilshift__", "__irshift__", "__setitem__", "__delitem__",
})
"""Methods of Python's and NumPy's containers that change them."""
_BY_PROTOCOL = frozenset({
    "builtins", "operator", "_operator", "functools", "_functools", "itertools", "collections", "_collections", "copy",
    "dataclasses", "types", "typing", "contextlib", "abc", "_abc", "hybridflow",
})
"""Modules whose functions keep values, or use them only through Python's protocols, which stand-ins implement."""
_UNORDERED = frozenset({"get", "__getitem__", "__contains__", "__len__", "pop", "setdefault"})
"""Methods of a dict that do not depend on its order."""
_SHALLOW: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys([id, callable, getattr, hasattr, setattr, delattr, len, list, tuple, zip, enumerate, reversed, iter,
                     next, map, range, super, functools.partial, print, memoryview], ()),
    **dict.fromkeys([set, frozenset, dict], ("__hash__", "__eq__")),
    sorted: ("__lt__",), min: ("__lt__", "__gt__"), max: ("__lt__", "__gt__"), sum: ("__add__", "__radd__"),
    any: ("__bool__", "__len__"), all: ("__bool__", "__len__"), filter: ("__bool__", "__len__"),
}
"""Builtins that look at the items of containers, but use these only through the special methods named here."""
_OUTSIDE_ONLY = frozenset({id, callable, getattr, hasattr, setattr, delattr, len})
"""Those of them that look only at the object itself, not at its items."""
_SPECIAL: dict[Any, tuple[str, ...]] = {
    bool: ("__bool__", "__len__"), int: ("__int__", "__index__", "__trunc__"), float: ("__float__", "__index__"),
    complex: ("__complex__", "__float__", "__index__"), str: ("__str__", "__repr__"), repr: ("__repr__",),
    ascii: ("__repr__",), hash: ("__hash__",), format: ("__format__", "__str__", "__repr__"), abs: ("__abs__",),
    bytes: ("__bytes__", "__index__"), divmod: ("__divmod__", "__rdivmod__"), round: ("__round__",),
    pow: ("__pow__", "__rpow__"), hex: ("__index__",), oct: ("__index__",), bin: ("__index__",),
    isinstance: ("__instancecheck__",), issubclass: ("__subclasscheck__",), range: ("__index__",),
    len: ("__len__",), iter: ("__iter__", "__getitem__"), next: ("__next__",),
}
"""The special methods of their arguments that builtins call."""
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType)
"""Types of callables with no state of their own: a call reads only ``__self__`` and the arguments."""
_WITH_MODULE = (BuiltinFunctionType, FunctionType, type)
"""Types of callables that tell their own module; others have that of their type."""
_SHOWS_ARRAYS = frozenset({np.array2string, np.array_repr, np.array_str})
"""Functions whose result depends on NumPy's print options."""
_SEEN_APART = (ModuleType, type, *CONTAINERS, logging.Logger)
"""Types of objects whose methods do not count as reading all that is in them; what a logger does changes no result."""
_REDIRECTS = (contextlib.redirect_stdout, contextlib.redirect_stderr)
_OF_MEMORY = frozenset({np.shares_memory, np.may_share_memory, np.lib.array_utils.byte_bounds})
"""Functions whose result depends on where arrays lie in memory."""
_OF_TREES = frozenset({jax.tree_util.tree_flatten.__module__, jax.tree.flatten.__module__, "jax.tree_util", "jax.tree"})
"""Modules whose functions flatten pytrees."""
_ASSIGNS = frozenset({"STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL"})
"""Instructions that change a namespace."""


def _hand_out(observations: Observations, arguments: Iterable[Any]) -> None:
    """Record containers that are passed to an unconverted function, which may change them."""
    for argument in arguments:
        if isinstance(argument, list | tuple | dict | set | deque) and observations.is_outside(argument):
            observations.hand_out(argument)


def _require_numbers(observations: Observations, function: Any, values: Iterable[Any]) -> None:
    """Raise if stand-ins for numbers go to a function that reads numbers as C does, or asks for their type."""
    if not _is_by_protocol(function):
        for one in values:
            observations.numbers.require_no_stand_in(_spoken(function), one)


def _spoken(function: Any) -> str:
    """Return a function's name with its module."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
    module = getattr(function, "__module__", None)
    return name if module is None or module == "builtins" else f"{module}.{name}"


def _is_by_protocol(function: Any) -> bool:
    """Whether stand-ins for numbers may go to a function: it keeps them, or uses them as Python's operators do."""
    if isinstance(function, np.ufunc):
        return True
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        kind = function if isinstance(function, _WITH_MODULE) else type(function)
    else:
        kind = owner if isinstance(owner, type) else type(owner)
    if isinstance(kind, type) and is_users_class(kind):
        return True
    module = getattr(kind, "__module__", None) or "builtins"
    return module in _BY_PROTOCOL or module in _OF_TREES or module.startswith("hybridflow.")


def _is_changed(
    observations: Observations, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, nested: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Record the call of a container's method if it changes the container, and return the arguments for this call."""
    name, owner = getattr(function, "__name__", ""), function.__self__
    if name in CHANGES:
        change = called_again(owner, name, args, kwargs) if type(owner) in LOADED else OTHER
        args, kwargs = arguments_now(change, (args, kwargs))
        observations.change(owner, f".{name}(...)", (*args, *kwargs.values()), change, nested=nested)
    return args, kwargs


def _goes_out(observations: Observations, function: Any, args: tuple[Any, ...]) -> None:
    """Record what an unconverted call may read of its arguments."""
    if isinstance(function, type) and issubclass(function, _REDIRECTS):
        observations.streams.update(map(id, args))
    builtin = type(function) in (BuiltinFunctionType, type)
    if builtin and function in _SPECIAL:
        for one in () if is_asked_of_abstract_classes(function, args) else args:
            reading.special(observations, one, _SPECIAL[function])
        if function is isinstance:
            reading.kind_of(observations, next(iter(args)))
            reading.bases_of(observations, type(next(iter(args))))
    elif function is type and args:
        reading.kind_of(observations, args[0])
        if len(args) == 1 and (observations.origin_of(args[0]) is not None or observations.is_made_here(args[0])):
            return
    if builtin and function in _SHALLOW:
        for one in args:
            if function not in _OUTSIDE_ONLY:
                run_over(observations, one)
            if _SHALLOW[function] and isinstance(one, (*CONTAINERS, set, frozenset)):
                for item in items_in(one):
                    reading.special(observations, item, _SHALLOW[function])
    elif not builtin or function not in _SPECIAL:
        _reads_all(observations, function, args)


def _reads_all(observations: Observations, function: Any, args: tuple[Any, ...]) -> None:
    """Record a call that may read everything in its arguments."""
    if getattr(function, "__module__", None) in _OF_TREES:
        _taken_apart(observations, args)
    elif type(function) is type(np.array2string) and function in _SHOWS_ARRAYS:
        observations.ask(np.get_printoptions)
    elif isinstance(function, FunctionType | type(np.array2string)) and function in _OF_MEMORY:
        for one in args:
            if isinstance(one, np.ndarray):
                observations.in_memory(one)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, list | deque):
        for item in items_in(owner):
            reading.special(observations, item, ("__eq__", "__lt__"))
    for one in args:
        observations.use_order(one)
        reading.whole(observations, one)


def _is_made_by_a_library(kind: type) -> bool:
    """Whether a library's code creates the objects of a user's class, and so may call methods that the user wrote."""
    if not is_users_class(kind):
        return False
    makers: list[Any] = [IN_CLASS.get(type(kind), "__call__"), kind.__new__, kind.__init__]
    return any(type(one) is FunctionType and not is_users(one.__code__) for one in makers)


def watched(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an unconverted function, and record what it reads by itself: files, and by calling the user's code."""
    observations, _ = current_observations()
    reads_files = is_watched(function) and question_of(function, args, kwargs) is None
    if observations is None or not (reads_files or MONITORING is None):
        return function(*args, **kwargs)

    def asks(name: str) -> None:
        if reads_files:
            observations.not_again(f"{name}() in {getattr(function, '__name__', '?')}()")

    with watching_files(asks):
        return function(*args, **kwargs)


def _taken_apart(observations: Observations, values: Any) -> None:
    """Record that JAX treats the objects in a structure as leaves: their class may be registered as a pytree later."""
    kinds = dict.fromkeys([type(leaf) for leaf in jax.tree_util.tree_leaves(values) if is_users_class(type(leaf))])
    for kind in kinds:
        observations.answered(Question(is_leaf_class, (kind,), {}), True)


def before_evaluation(source: Any, namespaces: tuple[Any, ...]) -> None:
    """Record that ``eval`` or ``exec`` is about to run code, which may assign names in namespaces from outside."""
    observations, _ = current_observations()
    if observations is None or not any(map(observations.is_outside, namespaces)):
        return
    with suppress(SyntaxError, TypeError, ValueError):  # the call itself raises it
        code = source if isinstance(source, CodeType) else compile(source, "", "exec")
        if any(one.opname in _ASSIGNS for one in dis.get_instructions(code)):
            observations.not_again("code in a text that assigns names")
            for namespace in namespaces:
                observations.before.content(namespace)


def before_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, own: bool = False, replaced: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Record that an unconverted callable is about to be called: a builtin or a library's function.

    This includes bound methods of lists, dicts and sets, also those that implement ``+=``.

    Args:
        function: the callable.
        args, kwargs: its arguments.
        own: whether it is part of hybridflow.
        replaced: whether a function that knows the stand-ins for numbers is called in its place.

    Returns:
        The arguments that it gets: a container from outside keeps numbers, not their stand-ins.
    """
    observations, nested = current_observations()
    if observations is None:
        return args, kwargs
    owner = getattr(function, "__self__", None)
    values = (*args, *kwargs.values())
    if not (own or replaced):
        _require_numbers(observations, function, values)
    observations.choices.read(values if owner is None or isinstance(owner, ModuleType) else (owner, *values))
    if owner is not None and (not own or isinstance(owner, CONTAINERS)) and observations.is_outside(owner):
        args, kwargs = _is_changed(observations, function, args, kwargs, nested=nested)
        values = (*args, *kwargs.values())
        if isinstance(owner, (*CONTAINERS, *CHANGING, type, ModuleType)):
            observations.before.inside(owner)
        else:
            observations.may_store(owner, *values)
        if not own and is_closed(owner):
            observations.settle()
    elif isinstance(owner, np.ndarray) and getattr(function, "__name__", "") in CHANGES:  # a view, perhaps
        observations.before.content(owner)
    if isinstance(owner, dict) and getattr(function, "__name__", "") not in _UNORDERED:
        observations.use_order(owner)
    if args:
        require_untraced_key(observations, owner, args[0])
        if isinstance(owner, reading.BY_HASH):
            reading.looked_up(observations, owner, args[0])
    if observations.moves(function, args, kwargs, nested=nested):
        _hand_out(observations, values)
        return args, kwargs
    if owner is not None and not isinstance(owner, _SEEN_APART) and not holds_numbers(owner):
        reading.whole(observations, owner)
    if own:
        reading.made_array(observations, values)
    else:
        if _is_made_by_a_library(function) if isinstance(function, type) else not isinstance(function, _FUNCTIONS):
            observations.may_store(function, *values)
            reading.whole(observations, function)
        _goes_out(observations, function, values)
    _hand_out(observations, values)
    return args, kwargs


# -- notice through Python's profiling hook when a library asks the system or calls the user's code -------------------

_KEPT = frozenset({"putenv", "unsetenv"})
"""The functions by which a library changes what Python holds too."""
_DATABASES = ("_sqlite3",)
"""Modules written in C whose functions open files themselves."""
_FOR_ITSELF = ("importlib", "linecache", "logging", "warnings", "traceback", "inspect", "zipimport")
"""Modules that read files for their own purposes (source lines, imports, logs), not to give values to the caller."""


def is_watched(function: Any) -> bool:
    """Whether a function is one of a library's, written in Python, which may open files unseen."""
    called = function.__func__ if type(function) is MethodType else function
    called = getattr(called, "__init__", None) if isinstance(called, type) else called
    if type(called) is not FunctionType and not hasattr(called, "__wrapped__"):
        return False
    module = str(getattr(called, "__module__", None))
    return module.partition(".")[0] not in (*OWN_LIBRARIES, *_FOR_ITSELF)


@contextmanager
def watching_files(asks: Callable[[str], None]) -> Generator[None]:
    """Tell of functions that ask the system in a ``with`` block; before Python 3.12, notice the user's code.

    Args:
        asks: is called with the name of each such function before that runs.

    A user's profiler goes on, unless it is written in C: then nothing is collected.
    """
    before: Any = sys.getprofile()

    def heard(frame: FrameType, event: str, called: Any) -> None:
        if before is not None:
            before(frame, event, called)
        if event == "c_call":
            if _asks(called) and not _is_for_itself(frame):
                asks(called.__name__)
            if noticed.MONITORING is None and noticed.is_unconverted(frame):
                noticed.calls(called, ())
        elif event == "call" and noticed.MONITORING is None and noticed.is_unconverted(frame):
            noticed.notice(frame)

    if before is not None and not callable(before):
        yield
        return
    sys.setprofile(heard)
    try:
        yield
    finally:
        sys.setprofile(before)


def _asks(function: Any) -> bool:
    """Whether a function written in C goes to the system."""
    if function is builtins.open or (function.__module__ in _DATABASES and function.__name__ == "connect"):
        return True
    return calls_the_system(function) and function.__name__ not in _KEPT


def _is_for_itself(frame: FrameType | None) -> bool:
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] in (*_FOR_ITSELF, "hybridflow"):
            return not module.startswith("hybridflow.")
        frame = frame.f_back
    return False
