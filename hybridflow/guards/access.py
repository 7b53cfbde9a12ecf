"""The ways to read a value from an object, each as a function and as code for the generated check before a call."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cached_property
from types import CellType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple, cast

import numpy as np

from hybridflow.core.held import found_in_class, has_no_namespace_yet
from hybridflow.core.spec import spec_of
from hybridflow.guards.contents import item_at
from hybridflow.guards.users import is_users


class _Missing:
    """Stands for an attribute, item or name that does not exist."""

    def __repr__(self) -> str:
        return "absent"


MISSING: Final = _Missing()


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, MISSING)
    except ReferenceError:  # what a `weakref.proxy` stood for is gone
        return MISSING


def _method(holder: Any, name: str) -> Any:
    value = getattr(holder, name, MISSING)
    return getattr(value, "__func__", value)


def _item(holder: Any, name: Any) -> Any:
    """Return an item. Unlike a `defaultdict`, do not create one that is missing."""
    try:
        return dict.get(cast(Any, holder), name, MISSING) if isinstance(holder, dict) else item_at(holder, name)
    except (LookupError, TypeError):
        return MISSING


def _cell(holder: CellType, name: str) -> Any:
    del name
    try:
        return holder.cell_contents
    except ValueError:
        return MISSING


def _raw(holder: Any, name: str) -> Any:
    if name == "__dict__" and has_no_namespace_yet(holder):
        return MISSING
    base: Any = threading.local if issubclass(type(holder), threading.local) else object
    try:
        return base.__getattribute__(holder, name)
    except AttributeError:
        return MISSING


def _in_class(kind: type, name: str) -> Any:
    """Return what a class or its bases define under a name; a descriptor is returned itself, not called."""
    return found_in_class(kind, name, MISSING)


def _in_instance(holder: Any, name: str) -> Any:
    attributes: Any = _raw(holder, "__dict__")
    return MISSING if attributes is MISSING else attributes.get(name, MISSING)


def stored(holder: Any, name: str) -> Any:
    """Return an attribute without calling the user's code; `MISSING` if there is none."""
    if isinstance(holder, type | ModuleType):
        return _attribute(holder, name)
    in_class = _in_class(type(holder), name)
    getter = in_class.fget if type(in_class) is property else found_in_class(type(in_class), "__get__")
    computed = type(in_class) is cached_property or (type(getter) is FunctionType and is_users(getter.__code__))
    return _in_instance(holder, name) if in_class is MISSING or computed else _raw(holder, name)


def shared_place(holder: Any, name: Any) -> Any:
    """Return the class or the namespace where an attribute or name of an object lies; None if it is the object's own.

    Objects and classes share what lies in a class, and functions what lies in a module.
    """
    if isinstance(holder, ModuleType) or type(holder) is dict:
        return holder if type(holder) is dict else vars(holder)
    if not isinstance(holder, type) and _in_instance(holder, name) is not MISSING:
        return None
    kinds: tuple[type, ...] = holder.__mro__ if isinstance(holder, type) else type(holder).__mro__
    return next((kind for kind in kinds if name in vars(kind)), None)


def _itself(holder: Any, name: None) -> Any:
    del name
    return holder


def _length(holder: Any, name: None) -> int:
    del name
    return len(holder)


def _type(holder: Any, name: None) -> type:
    del name
    return type(holder)


def _called(holder: Callable[[], Any], name: None) -> Any:
    del name
    return holder()


def _current(holder: ContextVar[Any], name: None) -> Any:
    del name
    try:
        return holder.get()
    except LookupError:
        return MISSING


def _state(holder: Any, name: None) -> Any:
    """Return what pickling reads from an object: its class, and its state as a tuple."""
    del name
    reduced: Any = holder.__reduce_ex__(4)
    return tuple([tuple(cast(Any, one)) if isinstance(one, Iterator) else one for one in reduced])


def _bytes(holder: Any, name: None) -> Any:
    """Return the content of an object's memory buffer, with the buffer's format and shape."""
    del name
    with memoryview(holder) as memory:
        return memory.format, memory.shape, memory.tobytes()


class Held:
    """The raw value that a Variable holds, which is not kept alive: equal only if it is the same array."""

    __slots__ = ("__weakref__", "_array")

    def __init__(self, array: Any) -> None:
        self._array = weakref.ref(array)

    def __eq__(self, other: object) -> bool:
        array = self._array()
        return isinstance(other, Held) and array is not None and other._array() is array

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        array = self._array()
        return "gone" if array is None else str(np.asarray(array)) if array.size < _FEW else str(spec_of(array))


_FEW = 8
"""The number of elements from which on messages show a value by its shape and dtype."""


def _held(holder: Any, name: None) -> Held:
    del name
    return Held(holder.current())


class Access(NamedTuple):
    """A way to read a value from an object.

    Attributes:
        get: takes the object and the name; returns `MISSING` if there is no such value.
        code: the same as Python code with the variables ``{v}`` and ``{n}``; it may raise. If empty, `get` is called.
        path: how messages write it.
    """

    get: Callable[[Any, Any], Any]
    code: str
    path: str


ATTRIBUTE = Access(_attribute, "getattr({v}, {n})", "{p}.{n}")
METHOD = Access(_method, "getattr({v}, {n}).__func__", "{p}.{n}")
ITEM = Access(_item, "{v}[{n}]", "{p}[{n}]")
GLOBAL = Access(_item, "{v}[{n}]", "{n}")
CELL = Access(_cell, "{v}.cell_contents", "{n}")
RAW = Access(_raw, "", "{p}.{n}")
"""An attribute, read without the class's own ``__getattribute__``."""
IN_CLASS = Access(_in_class, "", "{p}.{n}")
IN_INSTANCE = Access(_in_instance, "", "{p}.{n}")
ITSELF = Access(_itself, "{v}", "{p}")
"""The object itself: for containers among a call's arguments."""
LENGTH = Access(_length, "len({v})", "len({p})")
TYPE = Access(_type, "type({v})", "type({p})")
CALLED = Access(_called, "{v}()", "{p}()")
"""What a weak reference refers to."""
CURRENT = Access(_current, "", "{p}.get()")
"""The value of a context variable."""
STATE = Access(_state, "", "the state of {p}")
VALUE = Access(_held, "", "the value of {p}")
"""The raw value of a Variable."""
BYTES = Access(_bytes, "", "the bytes of {p}")
