"""What converted code calls: a user's functions in their converted form, everything else as it is."""

from __future__ import annotations

import functools
import os
import sysconfig
from collections import deque
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import jax
import numpy as np

from hybridflow.core.functions import KEPT
from hybridflow.tracing import observe
from hybridflow.tracing.convert import builtin, protocols, wrappers
from hybridflow.tracing.convert.regions import before_change

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(
    {
        os.path.realpath(_PATHS[key]) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    | {_PATHS[key] + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")}
)
CONTAINERS = frozenset({list, dict, set, deque, bytearray, np.ndarray})
"""Types that an augmented assignment changes in place."""
_KEEPS_FUNCTIONS = frozenset({"compile", "from_jax", "to_jax", "pure_callback", "callback", "compare", "no_convert"})
"""Functions of hybridflow that want a function as the user wrote it."""


@functools.lru_cache(maxsize=4096)
def is_users_file(name: str) -> bool:
    """Whether a file is the user's own: not hybridflow's, the standard library's or an installed package's."""
    if name.startswith((_PACKAGE, "<frozen", "<__array_function__")):
        return False
    return not name.startswith(_LIBRARIES) and f"{os.sep}site-packages{os.sep}" not in name


def is_users(code: CodeType) -> bool:
    """Whether code is the user's own: not hybridflow's, the standard library's or an installed package's."""
    return is_users_file(code.co_filename)


def converted(function: Any) -> Any:
    """Return a function (method, partial, object with ``__call__``) converted; as it is where it cannot be."""
    from hybridflow.tracing.convert.build import converted_function, is_converted

    kind = type(function)
    if kind is FunctionType:
        if is_converted(function.__code__):
            return function
        made = function if function in KEPT else converted_function(function)
        if made is function:
            observe.unconverted(function)
        return made
    if kind is MethodType:
        inner = converted(function.__func__)
        if inner is not function.__func__:
            return MethodType(inner, function.__self__)
        if type(inner) is FunctionType and not is_converted(inner.__code__):
            observe.unconverted(inner, function.__self__)
        return function
    if kind is functools.partial:
        inner = converted(function.func)
        return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
    method = getattr(kind, "__call__", None)  # noqa: B004 (the method itself is wanted)
    if isinstance(method, FunctionType) and is_users(method.__code__):
        return MethodType(converted(method), function)
    return function


def target(function: Any) -> Any:
    """Return the converted form of what the user wrote, None for everything else."""
    kind = type(function)
    if kind is FunctionType:
        return converted(function) if is_users(function.__code__) else wrappers.unwrapped(function)
    if kind is MethodType:
        inner = function.__func__
        if type(inner) is FunctionType and is_users(inner.__code__):
            return converted(function)
        made = wrappers.unwrapped(inner)
        return None if made is None else functools.partial(made, function.__self__)
    if kind is wrappers.LRU_CACHE:
        return wrappers.unwrapped(function)
    if kind is functools.partial:
        inner = target(function.func)
        return None if inner is None else functools.partial(inner, *function.args, **function.keywords)
    if kind is type:
        return _constructor(function)
    if issubclass(kind, type):
        return None
    method = getattr(kind, "__call__", None)  # noqa: B004 (the method itself is wanted)
    if type(method) is FunctionType and is_users(method.__code__):
        return MethodType(converted(method), function)
    return None


def _constructor(cls: type) -> Any:
    """Return what makes an object of a user's class, with its ``__init__`` converted."""
    method: Any = cls.__init__
    if type(method) is not FunctionType or not is_users(method.__code__) or cls.__new__ is not object.__new__:
        return None
    after = getattr(cls, "__post_init__", None)
    generated = hasattr(cls, "__dataclass_fields__") and method.__code__.co_filename == "<string>"
    if generated and type(after) is FunctionType and "__slots__" not in vars(cls):
        return functools.partial(_construct_dataclass, cls, converted(after))
    inner = converted(method)
    if inner is method:
        return None

    def construct(*args: Any, **kwargs: Any) -> Any:
        made = object.__new__(cls)
        inner(made, *args, **kwargs)
        return made

    return construct


def _construct_dataclass(cls: type, after: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Make an object of a dataclass, whose generated ``__init__`` calls a converted ``__post_init__``."""
    made: Any = object.__new__(cls)
    made.__dict__["__post_init__"] = MethodType(after, made)
    made.__init__(*args, **kwargs)
    del made.__dict__["__post_init__"]
    return made


def callee(function: Any) -> Any:
    """Return what converted code calls in place of a function."""
    found = target(function)
    if found is not None:
        return found
    if type(function) in (_BUILTIN, type) and builtin.replacement(function) is not None:
        return functools.partial(_call_builtin, function)
    if _is_hybridflows(function):
        return functools.partial(_call_own, function)
    return functools.partial(_call_other, function)


def _is_hybridflows(function: Any) -> bool:
    kind = type(function)
    if kind is MethodType:
        function = function.__func__
    code = getattr(function, "__code__", None)
    if type(code) is CodeType:
        return code.co_filename.startswith(_PACKAGE)
    return type(function).__module__.startswith("hybridflow.")


def _call_own(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of hybridflow: functions among its arguments run inside the trace, so they are converted."""
    if getattr(function, "__name__", None) not in _KEEPS_FUNCTIONS:
        args, kwargs = _converted_arguments(args, kwargs)
    observe.before_call(function, args, kwargs)
    return function(*args, **kwargs)


def _call_builtin(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a builtin that tensors give another meaning."""
    args, kwargs = _converted_arguments(args, kwargs)
    method, args = protocols.builtin_on_users(function, args)
    if method is not None:
        return method(*args, **kwargs)
    before_change(function, args)
    observe.before_call(function, args, kwargs)
    called = builtin.replacement(function) if builtin.replaces(function, args) else function
    return cast(Any, called)(*args, **kwargs)


_BUILTIN = type(len)


def _call_other(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call what is neither the user's nor hybridflow's."""
    if _calls_arguments(function):
        args, kwargs = _converted_arguments(args, kwargs)
    if type(function) in (_BUILTIN, type):
        method, args = protocols.builtin_on_users(function, args)
        if method is not None:
            return method(*args, **kwargs)
    if before_change(function, args):
        return None
    observe.before_call(function, args, kwargs)
    return function(*args, **kwargs)


_CALLING: frozenset[Any] = frozenset(
    {sorted, min, max, functools.reduce, functools.partial, jax.tree_util.tree_map, jax.tree.map,
     jax.tree.reduce, jax.tree_util.tree_map_with_path, jax.tree_util.tree_reduce, jax.tree.map_with_path, list.sort}
)  # fmt: skip


def _calls_arguments(function: Any) -> bool:
    """Whether what is called does nothing with functions but call them."""
    if type(function) is type(len) and type(function.__self__) is list:
        return function.__name__ == "sort"
    return isinstance(function, type | FunctionType | type(len)) and function in _CALLING


def _converted_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple([_argument(one) for one in args]), {name: _argument(one) for name, one in kwargs.items()}


def _argument(value: Any) -> Any:
    if type(value) in (FunctionType, MethodType, functools.partial):
        found = target(value)
        return value if found is None else found
    return value


def getter_of(obj: Any, name: str) -> Any:
    """Return the converted getter if an attribute is a property that the user wrote."""
    found = getattr(type(obj), name, None)
    if type(found) is property and type(found.fget) is FunctionType and is_users(found.fget.__code__):
        return converted(found.fget)
    return wrappers.cached_property_of(obj, name) if type(found) is functools.cached_property else None


_CHANGING = {list: "__iadd__", dict: "__ior__", set: "__ior__", deque: "__iadd__", bytearray: "__iadd__",
             np.ndarray: "__iadd__"}  # fmt: skip


def changing_method(container: Any) -> Any:
    """Return the method that an augmented assignment to a container calls."""
    return getattr(container, _CHANGING[type(container)])
