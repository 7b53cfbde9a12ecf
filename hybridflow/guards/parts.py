"""List the direct parts of a Python value and how they are accessed: unconverted code may read all of them."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import decimal
import functools
import io
import operator
import re
import threading
import types
import weakref
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridflow.core.functions import LAYERS
from hybridflow.core.staged_number import tried
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards.access import ATTRIBUTE, BYTES, CALLED, CELL, CURRENT, ITEM, MISSING, RAW, STATE, TYPE, Access
from hybridflow.guards.contents import in_sequence, items_in, pairs_of
from hybridflow.guards.guards import CONTAINERS, MAPPINGS, PLAIN
from hybridflow.guards.moving import is_open
from hybridflow.guards.users import OWN_LIBRARIES, is_hybridflows, is_users_class, is_users_module

_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
WRAPPERS: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    types.MethodType: ("__func__", "__self__"),
    types.BuiltinMethodType: ("__self__",),
    types.MethodWrapperType: ("__self__",),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
    **dict.fromkeys(_VIEWS, ("mapping",)),
    contextlib._GeneratorContextManager: ("func", "args", "kwds"),  # its generator moves only when it is entered
}
"""The attributes that make up objects of types without a ``__dict__``."""
_CLOSED = (
    Tensor, Variable, TracedArray, TracedNumber, jax.Array, np.dtype, np.generic, np.ufunc, types.CodeType,
    types.FrameType, types.TracebackType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.GenericAlias, types.UnionType, types.CellType,
    datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, re.Pattern, range, slice,
    operator.attrgetter, operator.itemgetter, operator.methodcaller, type(NotImplemented),
    array, bytearray, memoryview,
)
"""Types that cannot change, or whose values are compared as a whole: nothing inside them is looked at separately."""
_HANDLES = (type(threading.Lock()), type(threading.RLock()), io.IOBase, threading.local, type(datetime.datetime_CAPI))
"""Types whose state cannot be compared: only the identity of the object counts."""
_TOLD = (*CONTAINERS, set, frozenset, np.ndarray, str, int, float, complex, bytes, type, types.ModuleType,
         types.SimpleNamespace, *_HANDLES)
"""Classes written in C whose objects' content is looked at in ways of its own, or not at all."""
_POINTERS = frozenset("&OPXZz")
"""The characters that stand for pointers in a buffer's format."""
_BY_REFERENCE = 2
"""The length of the pickling state of an object that is pickled by name, such as a logger: it tells no content."""
_NAMES_AND_COMPLEX = re.compile(":[^:]*:|Z[fdg]")
"""What is no pointer in a buffer's format: the names of fields, and complex numbers."""


class Part(NamedTuple):
    """Something inside a value.

    Attributes:
        holder: the object it is read from, if that is not the value itself.
        access: how it is read; None if it is held by identity, so that it becomes a root of its own.
        name: the attribute, key or name.
        value: the part itself.
    """

    holder: Any
    access: Access | None
    name: Any
    value: Any


def is_closed(value: Any) -> bool:
    """Whether methods of an object may change what only its own code in C can change back."""
    kind = type(value)
    if isinstance(value, (*_CLOSED, *CONTAINERS, set, frozenset, np.ndarray, type, types.ModuleType)) or kind in PLAIN:
        return False
    return RAW.get(value, "__dict__") is MISSING and not any(True for _ in slots(kind)) and not is_users_class(kind)


class Opaque(Exception):
    """Raised for a value whose content cannot be inspected."""


def _is_of_own_library(module: str) -> bool:
    return module.partition(".")[0] in OWN_LIBRARIES and not module.startswith(LAYERS)


def is_watched_module(module: Any) -> bool:
    """Whether reads from a module, or what stands for it, are guarded: all modules but those of hybridflow and jax."""
    return str(getattr(module, "__name__", "")).partition(".")[0] not in OWN_LIBRARIES


def items_of(container: Any) -> Iterator[tuple[Any, Any]]:
    """Return the keys (or positions) and the items of a container."""
    return iter(pairs_of(container)) if isinstance(container, MAPPINGS) else enumerate(in_sequence(container))


def parts_of(value: Any) -> Iterator[Part]:
    """Yield the parts of a value.

    Raises:
        Opaque: the value is an iterator, or an object of a C type that does not reveal its content.
    """
    kind = type(value)
    if kind in PLAIN or kind is object:
        return
    if isinstance(value, _CLOSED):
        if is_users_class(kind):
            yield from _of_users(value, kind)
        return
    if issubclass(kind, threading.local):
        yield Part(None, ATTRIBUTE, "__dict__", value.__dict__)  # of this thread
        return
    if _is_of_own_library(str(kind.__module__)):
        inner = RAW.get(value, "__wrapped__")
        if inner is not MISSING:
            yield Part(None, ATTRIBUTE, "__wrapped__", inner)
    elif isinstance(value, types.ModuleType):
        if is_watched_module(value) and is_users_module(value):
            yield Part(None, ATTRIBUTE, "__dict__", value.__dict__)
    elif isinstance(value, type):
        yield from _of_class(value)
    elif kind in WRAPPERS:
        yield from _of_wrapper(value, WRAPPERS[kind])
    elif kind is types.FunctionType:
        yield from _of_function(value)
    elif isinstance(value, weakref.ref):
        yield Part(None, CALLED, None, value())
    elif kind is contextvars.ContextVar:
        yield Part(None, CURRENT, None, CURRENT.get(value, None))
    else:
        yield from _of_object(value, kind)


def _of_wrapper(value: Any, names: tuple[str, ...]) -> Iterator[Part]:
    for name in names:
        part = getattr(value, name, None)  # a manager that is entered has none
        if part is not None and not isinstance(part, types.ModuleType):
            yield Part(None, ATTRIBUTE, name, part)


def _of_class(value: type) -> Iterator[Part]:
    if is_users_class(value):
        yield Part(None, ATTRIBUTE, "__dict__", value.__dict__)
        yield Part(None, ATTRIBUTE, "__name__", value.__name__)
        yield Part(None, ATTRIBUTE, "__qualname__", value.__qualname__)
        yield Part(None, ATTRIBUTE, "__mro__", value.__mro__)
        if type(value) is not type:
            yield Part(None, TYPE, None, type(value))
        for base in value.__mro__[1:]:
            yield Part(base, None, None, base)


def of_call(function: types.FunctionType) -> Iterator[Part]:
    """Yield the parts of a function that a call depends on, other than its globals and cells."""
    yield Part(None, ATTRIBUTE, "__code__", function.__code__)
    if function.__defaults__ is not None:
        yield Part(None, ATTRIBUTE, "__defaults__", function.__defaults__)
    if function.__kwdefaults__ is not None:
        yield Part(None, ATTRIBUTE, "__kwdefaults__", function.__kwdefaults__)


def cannot_be_users(value: Any) -> bool:
    """Return whether nothing in a value can be the user's."""
    if type(value) is functools.partial and type(value.func) is types.FunctionType:
        return is_hybridflows(value.func.__code__) and cannot_be_users((*value.args, *value.keywords.values()))
    if type(value) is tuple:
        return all(map(cannot_be_users, value))
    return type(value) in PLAIN or type(value) is np.ufunc


def _of_function(value: types.FunctionType) -> Iterator[Part]:
    if is_hybridflows(value.__code__):  # its own state, such as what it remembers of its calls, is not the user's
        for cell in value.__closure__ or ():
            held = CELL.get(cell, "")
            if not cannot_be_users(held):
                yield Part(held, None, None, held)
        return
    yield from of_call(value)
    yield Part(None, ATTRIBUTE, "__dict__", value.__dict__)
    for name in ("__doc__", "__qualname__", "__module__"):
        yield Part(None, ATTRIBUTE, name, getattr(value, name))
    if getattr(value, "__annotate__", None) is None:  # otherwise, reading them may run the user's code
        yield Part(None, ATTRIBUTE, "__annotations__", value.__annotations__)
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        yield Part(cell, CELL, name, CELL.get(cell, name))


def _of_object(value: Any, kind: type) -> Iterator[Part]:
    if is_open(value):
        raise Opaque(kind.__name__)
    inside = isinstance(value, (*CONTAINERS, set, frozenset, np.ndarray))
    if isinstance(value, CONTAINERS):
        yield from _of_container(value, kind)
    elif isinstance(value, set | frozenset):
        yield from (Part(item, None, None, item) for item in items_in(value))
    elif isinstance(value, contextvars.Context):
        yield from (Part(item, None, None, item) for item in value.values())
    elif isinstance(value, np.flatiter):
        yield Part(value.base, None, None, value.base)
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        yield from (Part(item, None, None, item) for item in value.ravel().tolist())
    elif _has_memory(value):
        inside = True
        yield Part(None, BYTES, None, BYTES.get(value, None))
    handle = issubclass(kind, (*_HANDLES, Iterator))  # not `isinstance`, which asks the object itself for its class
    attributes = RAW.get(value, "__dict__")
    if not inside and not handle and not _is_of_attributes(kind) and _tells_its_state(kind):
        state = _state_of(value)
        yield Part(None, STATE, None, state)
        if attributes is MISSING or len(state) > _BY_REFERENCE:
            return
    yield from _of_users(value, kind)
    if is_users_class(kind) and not inside:
        yield from _of_base(value, kind)
    inside = inside or attributes is not MISSING or is_users_class(kind) or any(True for _ in slots(kind))
    if not inside and not issubclass(kind, _HANDLES):
        yield Part(None, STATE, None, _state_of(value))


def _of_container(value: Any, kind: type) -> Iterator[Part]:
    for key, item in items_of(value):
        yield Part(None, ITEM, key, item)
        if isinstance(value, MAPPINGS) and type(key) not in PLAIN:
            yield Part(key, None, None, key)
    for name in _members(kind):
        yield Part(None, RAW, name, RAW.get(value, name))


@functools.cache
def _members(kind: type) -> tuple[str, ...]:
    """Return the names of what containers of a class hold in C besides items, such as ``maxlen`` of a deque."""
    data = types.GetSetDescriptorType, types.MemberDescriptorType
    of_python = [one for one in kind.__mro__ if one.__module__ in ("builtins", "collections")]
    return tuple([name for one in of_python for name, held in vars(one).items()
                  if isinstance(held, data) and not name.startswith("__")])


def _of_users(value: Any, kind: type) -> Iterator[Part]:
    """Yield what an object holds that Python keeps: attributes, slots, and its class if a user wrote that."""
    attributes = RAW.get(value, "__dict__")
    if attributes is not MISSING:
        yield Part(None, RAW, "__dict__", attributes)
    for name in slots(kind):
        yield Part(None, RAW, name, RAW.get(value, name))
    if is_users_class(kind):
        yield Part(None, TYPE, None, kind)


def _of_base(value: Any, kind: type) -> Iterator[Part]:
    """Yield what an object of a user's class holds in a base that is written in C.

    Raises:
        Opaque: the base does not tell.
    """
    for base, names in WRAPPERS.items():
        if issubclass(kind, base):
            yield from _of_wrapper(value, names)
            return
    if issubclass(kind, BaseException):
        yield from (Part(None, RAW, name, RAW.get(value, name)) for name in ("args", "__cause__", "__context__"))
        return
    for one in kind.__mro__:
        in_python = is_users_class(one) or any(type(part) is types.FunctionType for part in vars(one).values())
        if not in_python and one.__basicsize__ > object.__basicsize__ and not issubclass(one, _TOLD):
            raise Opaque(f"{kind.__name__}, whose base {one.__name__} does not tell what is in it")


def _has_memory(value: Any) -> bool:
    """Whether an object is a memory buffer that other code may write to, such as those of ctypes.

    Raises: Opaque: it contains pointers, and the memory behind them may change too.
    """
    try:
        with memoryview(value) as memory:
            names = memory.format
    except (TypeError, ValueError, BufferError):
        return False
    if not _POINTERS.isdisjoint(_NAMES_AND_COMPLEX.sub("", names)):
        raise Opaque(f"{type(value).__name__}, which points to other memory")
    return True


def slots(kind: type) -> Iterator[str]:
    """Yield the names of the slots of a class, as they are stored."""
    for one in kind.__mro__:
        if one.__module__.startswith("hybridflow."):
            continue  # no result depends on these
        names = one.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                yield f"_{one.__name__.lstrip('_')}{name}" if private else name


def _is_of_attributes(kind: type) -> bool:
    """Whether the state of a class's objects is their attributes, even if the class defines methods for pickling."""
    return is_users_class(kind) or str(kind.__module__).startswith(LAYERS)


def _tells_its_state(kind: type) -> bool:
    """Whether a class defines the state that pickling saves, as pandas does; its objects' attributes end in C types."""
    names = ("__reduce_ex__", "__reduce__", "__getstate__")
    return any(getattr(kind, name) is not getattr(object, name) for name in names)


def _state_of(value: Any) -> Any:
    if issubclass(type(value), Iterator):
        raise Opaque(f"{type(value).__name__}, an iterator that a call moves on")
    try:
        with tried():
            return STATE.get(value, None)
    except Exception as error:
        raise Opaque(f"{type(value).__name__}, which does not tell what is in it") from error
