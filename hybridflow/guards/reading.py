"""Turn reads into guards: of an attribute, of a class's definition, of everything that a library may read.

An object that the trace did not create is watched from the origin where it was read. An object that arrived unwatched
(a library returned it) becomes a root and is watched from there.
"""

from __future__ import annotations

import builtins
import decimal
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, cast
from weakref import WeakKeyDictionary, WeakSet

import jax
import numpy as np

from hybridflow.core.attached import attached
from hybridflow.core.functions import is_layers, is_of_users, is_own
from hybridflow.core.held import attributes_of, defines, found_in_class
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards import numpy_rules
from hybridflow.guards.access import (
    ATTRIBUTE,
    CELL,
    GLOBAL,
    IN_CLASS,
    IN_INSTANCE,
    ITEM,
    METHOD,
    MISSING,
    RAW,
    TYPE,
    Access,
    shared_place,
)
from hybridflow.guards.contents import keys_of
from hybridflow.guards.guards import CONTAINERS, MAPPINGS, PLAIN, Origin
from hybridflow.guards.kinds import holds_attributes, is_leaf
from hybridflow.guards.moving import is_open
from hybridflow.guards.observations import Observations
from hybridflow.guards.parts import Opaque, Part, is_watched_module, items_of, of_call, parts_of
from hybridflow.guards.questions import decimal_settings
from hybridflow.guards.signature import BoundCall
from hybridflow.guards.users import is_users, is_users_class

_BY_CONTENT = frozenset(
    {list, tuple, dict, set, frozenset, bytearray, np.ndarray, Tensor, Variable, TypeVar, ParamSpec, TypeVarTuple}
) | PLAIN
"""Types whose attributes depend only on their content, which is watched or cannot change."""
_SETTINGS = frozenset({"name", "trainable"})
"""The attributes of a Variable, other than its value, that can change."""
_DEEP = frozenset({"__repr__", "__str__", "__format__", "__hash__", "__eq__", "__lt__"})
"""Special methods of containers that call the same method of their items."""
_AS_ARRAY = ("__array__", "__dlpack__", "__float__", "__index__", "__jax_array__")
"""Special methods that turn an object into a number or an array."""
_ARRAYS = (np.ndarray, np.generic, jax.Array, Tensor, Variable, TracedArray)
"""Types of arrays that are watched where they are read."""
BY_HASH = (*MAPPINGS, set, frozenset, WeakKeyDictionary, WeakSet)
"""Types of containers that look items up by equality."""
_MEMORY = frozenset({"base", "ctypes", "data", "__array_interface__"})
"""Attributes of a NumPy array that tell in which memory it lies."""
_HOLDERS = (MethodType, FunctionType, functools.partial)
_AS_TEXT = frozenset({"__repr__", "__str__", "__format__"})
_NONE: Mapping[str, Any] = {}
_MANY = 20_000
"""The number of origins above which checking them at every call costs more than tracing again."""


def attribute(observations: Observations, obj: Any, name: str, value: Any, *, seen: bool = True) -> Any:
    """Record that ``obj.name`` was read, and return the value that the code sees.

    Args:
        observations: the observations of the trace.
        obj: the object.
        name: the attribute.
        value: the value that Python found; `MISSING` if there is none.
        seen: whether the code receives the value returned here; if not, no stand-in can replace a float.
    """
    obj = _attributed(obj, name)
    kind = type(obj)
    if kind in _BY_CONTENT:
        if kind is Variable and name in _SETTINGS:
            observations.look(observations.origin_or_root(obj), ATTRIBUTE, name, value)
        if kind is np.ndarray and name in _MEMORY and value is not None:
            observations.in_memory(obj)
        return value
    if kind is super:
        return _number_or(value, of_super(observations, obj, name))
    if isinstance(obj, type) and observations.is_made_here(obj):
        return _number_or(value, inherited(observations, obj, name))
    if isinstance(obj, ModuleType) and not is_watched_module(obj):
        return value
    origin = _origin_for(observations, obj, name)
    if origin is None:
        if IN_INSTANCE.get(obj, name) is MISSING:
            value = _number_or(value, class_attribute(observations, obj, name))
        is_bound_to_obj = isinstance(value, MethodType) and value.__self__ is obj  # adds nothing new
        _held(observations, value.__func__ if is_bound_to_obj else value)
    elif isinstance(value, MethodType) and value.__self__ is obj:
        observations.read(origin, METHOD, name, value.__func__)
    elif type(IN_CLASS.get(kind, name)) is functools.partialmethod and IN_INSTANCE.get(obj, name) is MISSING:
        observations.look(origin, IN_INSTANCE, name, MISSING)
        class_attribute(observations, obj, name)  # it makes a new partial at each read
    elif type(value) is BuiltinMethodType and value.__self__ is obj and not isinstance(obj, ModuleType):
        return value
    elif seen:
        definer = _definer(observations, obj, name, value) if type(value) is float or type(value) is int else None
        if definer is not None:
            _inherits(observations, origin, obj, name, value, definer)
            return attribute(observations, definer, name, value)
        return observations.read(origin, _access(observations, kind, name), name, value)
    else:
        observations.look(origin, _access(observations, kind, name), name, value)
    return value


def _definer(observations: Observations, obj: Any, name: str, value: float) -> type | None:
    """Return the class where an object, or another class, finds a number; None for a number of its own.

    It is read there, so that all ways to it are one: the call may change it by another.
    """
    kind = obj if isinstance(obj, type) else type(obj)
    if type(IN_CLASS.get(type(obj), "__getattribute__")) is FunctionType:
        return None
    if IN_INSTANCE.get(obj, name) is not MISSING or IN_CLASS.get(kind, name) is not value:
        return None
    found = next(one for one in kind.__mro__ if IN_INSTANCE.get(one, name) is not MISSING)
    return found if is_users_class(found) and not observations.is_made_here(found) else None


def _inherits(
    observations: Observations, origin: Origin, obj: Any, name: str, value: Any, definer: type
) -> None:
    """Record that neither an object nor the classes before the one that defines a number have it.

    The number counts as one that was seen there: a write by the call would put another one there.
    """
    if not isinstance(obj, type):
        kind_of(observations, obj)
    kind: type = obj if isinstance(obj, type) else type(obj)
    before = [one for one in kind.__mro__[: kind.__mro__.index(definer)] if is_users_class(one)]
    if before:
        bases_of(observations, kind)
    origins = [_origin_for(observations, one, name) for one in before if not observations.is_made_here(one)]
    for one in (origin, *origins):
        if one is not None:
            observations.look(one, IN_INSTANCE, name, MISSING)
            observations.numbers.saw(one, ATTRIBUTE, name, value)


def _number_or(value: Any, found: Any) -> Any:
    """Return the stand-in for a number that the trace found in a class; the value that Python found if it is none."""
    return found if type(found) is TracedNumber and type(value) in (float, int) else value


def _access(observations: Observations, kind: type, name: str) -> Access:
    """Return how a guard reads an attribute: it runs none of the user's hooks, and no getter that is hidden now."""
    getter = type(IN_CLASS.get(kind, name))
    is_cached = bool(observations.effects) and getter is functools.cached_property
    if is_cached or (is_users_class(getter) and defines(getter, "__get__")):
        return IN_INSTANCE
    return RAW if type(IN_CLASS.get(kind, "__getattribute__")) is FunctionType else ATTRIBUTE


def _origin_for(observations: Observations, obj: Any, name: str) -> Origin | None:
    """Return the origin of an object whose attribute is read, which may become a root; None if the trace made it."""
    origin = holder(observations, obj, name)
    if isinstance(obj, ModuleType):
        return observations.origin_or_root(obj)
    if origin is None and isinstance(obj, type):
        return observations.root(obj, obj.__name__)
    if origin is None and is_leaf(obj) and is_users_class(type(obj)):  # as a subclass of Variable with attributes
        return observations.root(obj, type(obj).__name__)
    if origin is None and not observations.is_made_here(obj):
        return None if holds_attributes(obj) else observations.doubtful(obj)
    return origin


def _attributed(obj: Any, name: str) -> Any:
    """Return the object that has an attribute: a bound method has those of its function."""
    if isinstance(obj, MethodType) and name not in ("__self__", "__func__"):
        return obj.__func__
    return obj.attributed if isinstance(obj, BoundCall) else obj


def holder(observations: Observations, obj: Any, name: str) -> Origin | None:
    """Return the origin of an object whose attribute is read or written; None if the attribute is not watched."""
    origin = observations.origin_of(obj)
    return None if origin is not None and holds_attributes(obj) and not is_of_users(obj, name) else origin


def _held(observations: Observations, value: Any) -> None:
    """Guard the functions and methods inside a value of a known object; each becomes a root."""
    if isinstance(value, CONTAINERS):
        for _, item in items_of(value):
            _held(observations, item)
    elif type(value) in _HOLDERS:
        observations.object(value, getattr(value, "__name__", type(value).__name__))


def of_super(observations: Observations, obj: Any, name: str) -> Any:
    """Record the classes in which ``super()`` looks for an attribute, in order, up to the one that has it.

    Returns:
        The attribute as that class defines it; `MISSING` if no class does.
    """
    kind: type = obj.__self_class__
    order = kind.__mro__
    bases_of(observations, kind)
    return _first_of(observations, order[order.index(obj.__thisclass__) + 1 :], name)


def _first_of(observations: Observations, kinds: Iterable[type], name: str) -> Any:
    """Record what the first class that defines an attribute has, and that those before have none."""
    for one in kinds:
        value = IN_INSTANCE.get(one, name)
        if is_users_class(one) and not observations.is_made_here(one):
            value = observations.read(observations.root(one, one.__name__), IN_INSTANCE, name, value)
        if value is not MISSING:
            return value
    return MISSING


def inherited(observations: Observations, made: type, name: str) -> Any:
    """Record where a class that the trace has made has an attribute from: no guard may need the class, which dies.

    Returns:
        The attribute as the class that has it defines it; `MISSING` if no class does.
    """
    return _first_of(observations, (*made.__mro__, *cast(type, type(made)).__mro__), name)


def kind_of(observations: Observations, obj: Any) -> None:
    """Record that an object's class was read."""
    if type(obj) is TracedArray:
        numpy_rules.kind_of(obj)
        return
    origin = observations.origin_of(obj)
    if origin is not None and type(obj) not in PLAIN:
        observations.read(origin, TYPE, None, type(obj))


def bases_of(observations: Observations, kind: type) -> None:
    """Record that the classes that a user's class derives from were read; they may be assigned."""
    if is_users_class(kind) and not observations.is_made_here(kind):
        observations.read(observations.root(kind, kind.__name__), ATTRIBUTE, "__mro__", kind.__mro__)


def module_of(observations: Observations, name: str) -> Any:
    """Record which module Python holds under a name, and return it; `MISSING` if there is none."""
    module = sys.modules.get(name, MISSING)
    observations.read(observations.root(sys.modules, "sys.modules"), ITEM, name, module)
    return module


def class_attribute(observations: Observations, obj: Any, name: str) -> Any:
    """Record what an object's class defines under a name, and return it; a descriptor is returned itself."""
    if is_users_class(type(obj)):
        kind_of(observations, obj)
    return defined_in(observations, type(obj), name)


def stored(observations: Observations, obj: Any, name: str) -> None:
    """Record where an attribute lies that the trace has stored: in an object, or in a class that it is found by."""
    if isinstance(obj, ModuleType):
        return
    place = shared_place(obj, name)
    if place is None:
        class_attribute(observations, obj, name)
        return
    kinds = obj.__mro__ if isinstance(obj, type) else type(obj).__mro__
    if not isinstance(obj, type):
        kind_of(observations, obj)
        origin = observations.origin_of(obj)
        if origin is not None:
            observations.read(origin, IN_INSTANCE, name, MISSING)
    _first_of(observations, kinds[: kinds.index(place)], name)


def defined_in(observations: Observations, kind: type, name: str) -> Any:
    """Record what a class defines or inherits under a name, and return it; a descriptor is returned itself."""
    value = IN_CLASS.get(kind, name)
    if not is_users_class(kind):
        return value
    if observations.is_made_here(kind):
        return _number_or(value, inherited(observations, kind, name))
    origin = observations.root(kind, kind.__name__)
    computed = defines(type(value), "__get__") and type(value) is not FunctionType  # its `__get__` runs the user's code
    if computed and is_users_class(type(value)):  # an attribute of the object comes first if it cannot be set
        descriptor = observations.root(type(value), type(value).__name__)
        for way in ("__set__", "__delete__"):
            observations.read(descriptor, IN_CLASS, way, IN_CLASS.get(type(value), way))
    if value is not MISSING and not computed and IN_CLASS.get(type(kind), name) is MISSING:
        return observations.read(origin, ATTRIBUTE, name, value)
    return observations.read(origin, IN_CLASS, name, value)


def made_class(observations: Observations, made: type) -> None:
    """Record a class that the trace has made, and what its metaclass, bases and attributes may have read."""
    observations.made_here(made)
    hooks = [(type(made), name, type(made)) for name in ("__prepare__", "__new__", "__init__")]
    hooks += [(base, "__init_subclass__", made) for base in made.__mro__[1:]]
    hooks += [(type(value), "__set_name__", value) for value in vars(made).values()]
    for kind, name, owner in hooks:
        method = IN_CLASS.get(kind, name)
        function = getattr(method, "__func__", method)
        if not is_users_class(kind):
            continue
        observations.read(observations.root(kind, kind.__name__), IN_CLASS, name, method)
        if type(function) is FunctionType and is_users(function.__code__):
            runs_as_it_is(observations, function, (owner,))


def builtin(observations: Observations, namespace: dict[str, Any], name: str, value: Any) -> None:
    """Record that a builtin was read; a global of the same name would come first."""
    observations.read(observations.root(namespace, "globals"), GLOBAL, name, MISSING)
    observations.read(observations.root(vars(builtins), "builtins"), GLOBAL, name, value)


def called(observations: Observations, function: FunctionType) -> None:
    """Record that a function was called: the trace depends on its code and its defaults."""
    if is_layers(function.__module__):
        return
    origin = observations.origin_or_root(function)
    for part in of_call(function):
        observations.look(origin, ATTRIBUTE, part.name, part.value)


def special(observations: Observations, obj: Any, names: Iterable[str]) -> None:
    """Record that Python itself calls special methods of an object, so that they run unconverted."""
    if type(obj) in _BY_CONTENT:
        if isinstance(obj, (np.ndarray, Tensor, Variable, *CONTAINERS)) and not _AS_TEXT.isdisjoint(names):
            observations.ask(np.get_printoptions)
        if isinstance(obj, CONTAINERS) and not _DEEP.isdisjoint(names):
            whole(observations, obj)
        return
    if not is_users_class(type(obj)):
        whole(observations, obj)
        return
    for name in names:
        method = class_attribute(observations, obj, name)
        if isinstance(method, FunctionType) and is_users(method.__code__):
            runs_as_it_is(observations, method, (obj,))
        elif method is not MISSING and not isinstance(getattr(object, name, None), type(method)):
            whole(observations, obj)


def looked_up(observations: Observations, container: Any, key: Any) -> None:
    """Record a lookup of a key in a container: Python may call the ``__eq__`` of the keys there."""
    others: Iterable[Any] = ()
    if observations.is_outside(container) and id(container) not in observations.looked_up:
        observations.looked_up.add(id(container))
        others = keys_of(container) if isinstance(container, MAPPINGS) else container
    for one in (key, *others):
        if type(one) not in PLAIN:
            special(observations, one, ("__hash__", "__eq__"))


def made_array(observations: Observations, values: Iterable[Any]) -> None:
    """Record users' objects that will be converted to numbers or arrays, by hybridflow or as an index of an array."""
    for one in values:
        if isinstance(one, list | tuple):
            made_array(observations, cast("list[Any]", one))
        elif type(one) is slice:
            made_array(observations, (one.start, one.stop, one.step))
        else:
            if is_users_class(type(one)):
                special(observations, one, [name for name in _AS_ARRAY if IN_CLASS.get(type(one), name) is not MISSING])
            if _is_librarys_array(one):
                whole(observations, one)


def _is_librarys_array(value: Any) -> bool:
    """Whether a value is made a tensor from memory that a library owns and may write to, as PyTorch's tensors are."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, _ARRAYS) or is_own(str(kind.__module__)):
        return False
    ways = [found_in_class(kind, name) for name in ("__array__", "__dlpack__")]
    if any(ways):
        return not any(type(way) is FunctionType and is_users(way.__code__) for way in ways)
    try:
        return memoryview(value).nbytes > 0
    except (TypeError, ValueError, BufferError):
        return False


def runs_as_it_is(
    observations: Observations, function: FunctionType, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = _NONE
) -> None:
    """Record everything that a user's function may read, since it runs unconverted."""
    called(observations, function)
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = dict(zip(names[: code.co_argcount], args, strict=False))
    given |= {name: value for name, value in kwargs.items() if name in names}
    runs_with(observations, function, given)
    if _names_type(code):
        observations.numbers.require_no_inputs((*args, *kwargs.values()))
    whole(observations, *args[code.co_argcount :], *[value for name, value in kwargs.items() if name not in names])


def runs_with(observations: Observations, function: FunctionType, given: Mapping[str, Any]) -> None:
    """Record everything that a user's function may read besides its definition.

    Args:
        observations: the observations of the trace.
        function: the function.
        given: its arguments by name.

    Raises:
        NeedsNumber: it names `type`, which tells stand-ins for numbers, and its arguments hold some; or a container
            that it is given does.
    """
    observations.runs_unseen |= is_users(function.__code__)
    if _names_type(function.__code__):
        observations.numbers.require_no_inputs(given.values())
    for value in given.values():
        if isinstance(value, CONTAINERS):
            observations.numbers.require_plain(value)  # it may change the container, of which this may be a copy
    whole(observations, *attached("named_by")(observations, function, given))


@functools.lru_cache(maxsize=1024)
def _names_type(code: CodeType) -> bool:
    """Whether code, or a function inside of it, names `type`."""
    return "type" in code.co_names or any(_names_type(one) for one in code.co_consts if type(one) is CodeType)


def whole(observations: Observations, *values: Any) -> None:
    """Record that everything in these values may be read: they go to code whose reads are not seen."""
    waiting = list(values)
    attached("read_whole")(waiting)
    scanned: set[tuple[CodeType, int]] = set()
    while waiting:
        value = waiting.pop()
        if type(value) in PLAIN or observations.was_whole(value):
            continue
        if value is sys.modules:  # all that there is
            observations.not_again("sys.modules in code that is not converted", moves=False)
            continue
        _beside(observations, value)
        if observations.size > _MANY:
            observations.not_again(
                f"{observations.size} values that a library may read are too many to be watched", moves=False
            )
            return
        method = _function_of(value)
        parts = _read_parts(observations, value)
        if method is None:
            waiting += parts
            continue
        key = method.__code__, id(value.__self__)
        if key not in scanned:
            scanned.add(key)
            waiting += _of_method(observations, method, value.__self__)


def _beside(observations: Observations, value: Any) -> None:
    """Record facts outside a value, such as whether a Variable is trainable."""
    if type(value) is Variable:
        observations.counts_trainable[id(value)] = value
    observations.use_order(value)
    if issubclass(type(value), (np.ndarray, Tensor, Variable)):
        observations.ask(np.get_printoptions)
    context_of(observations, value)


def context_of(observations: Observations, value: Any) -> None:
    """Record the state of a library that decides, besides the values, what its operations on them do."""
    for kind, function in _CONTEXTS:
        if issubclass(type(value), kind):
            observations.ask(function)


def named(observations: Observations, value: Any) -> None:
    """Record the state of a library that code which is not converted names, or names a class or function of."""
    if type(value) not in (ModuleType, type, FunctionType, BuiltinMethodType):
        return
    module = value.__name__ if isinstance(value, ModuleType) else value.__module__
    if module in _CONTEXT_OF_MODULE:
        observations.ask(_CONTEXT_OF_MODULE[module])


_CONTEXTS: tuple[tuple[Any, Callable[[], Any]], ...] = (
    ((decimal.Decimal, decimal.Context), decimal_settings),
    ((np.ndarray, np.generic, np.ufunc), np.geterr),
)
"""Types, and the function that reads the state."""
_CONTEXT_OF_MODULE: Mapping[str, Callable[[], Any]] = {"decimal": decimal_settings, "numpy": np.get_printoptions}


def _of_method(observations: Observations, function: FunctionType, instance: Any) -> Iterator[Any]:
    """Record what a call of a user's method reads; yield the values that it passes on."""
    called(observations, function)
    first = function.__code__.co_varnames[: min(function.__code__.co_argcount, 1)]
    return attached("named_by")(observations, function, dict.fromkeys(first, instance))


def _read_parts(observations: Observations, value: Any) -> list[Any]:
    """Record everything that is one step inside a value, and return it."""
    if isinstance(value, type) and observations.is_made_here(value):  # it is still being filled
        return [type(value), *value.__bases__, *vars(value).values()]
    origin = observations.origin_of(value)
    if origin is None and isinstance(value, type | FunctionType):
        origin = observations.origin_or_root(value)
    if origin is not None:
        observations.before.inside(value)  # the code that reads it may write to it
    inside: list[Any] = []
    if _is_of_a_library(value):  # such as a logger's handler: what it writes to is no state of the user's code
        observations.streams.update([id(one) for one in attributes_of(value).values() if is_open(one)])
    try:
        for part in parts_of(value):
            _read_part(observations, value, origin, part)
            inside.append(part.value)
    except Opaque as what:
        # What has no origin, the trace created from values that it has already read.
        if observations.origin_of(value) is not None and id(value) not in observations.streams:
            observations.not_again(f"a {what}")
            inside += observations.held_by(value) if isinstance(value, Iterator) else ()
    if type(value) is FunctionType and is_users(value.__code__):
        inside += attached("named_by")(observations, value)
    return inside


def _is_of_a_library(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, logging.Handler) or not (is_users_class(kind) or kind.__module__ in _OF_PYTHON)


_OF_PYTHON = frozenset({"builtins", "collections", "functools", "itertools", "types", "_csv", "_pickle"})
"""Modules of types whose objects hold what users put there."""


def _read_part(observations: Observations, value: Any, origin: Origin | None, part: Part) -> None:
    if part.access is CELL and attached("is_own_variable")(value, part.name):
        return
    if part.access is None:
        if not observations.is_made_here(part.holder):
            observations.object(part.holder, type(part.holder).__name__)
        return
    if part.access is ITEM and type(part.value) in PLAIN:
        return  # its container's guard covers it
    if part.holder is not None:
        origin = observations.root(part.holder, part.name)
    elif origin is None and part.access is not ITEM and not _is_made_here(observations, value):
        origin = observations.doubtful(value)
    if origin is not None:
        observations.look(origin, part.access, part.name, part.value)


def _is_made_here(observations: Observations, value: Any) -> bool:
    """Whether the trace made a value; a bound method that was not read from outside, it did."""
    return observations.is_made_here(value) or type(value) in (MethodType, BuiltinMethodType, MethodWrapperType)


def _function_of(value: Any) -> FunctionType | None:
    """Return the function of a bound method if it is the user's; None for everything else."""
    function: Any = value.__func__ if type(value) is MethodType else None
    return function if type(function) is FunctionType and is_users(function.__code__) else None
