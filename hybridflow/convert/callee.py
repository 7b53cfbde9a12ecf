"""What converted code calls: a user's functions in their converted form, everything else unconverted."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import sys
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Generator, Hashable
from types import (
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, cast

import jax
import numpy as np

from hybridflow.convert import builtin, protocols, regions, staged_reads, texts
from hybridflow.convert.regions import before_change
from hybridflow.convert.rows import require_known
from hybridflow.convert.values import is_traced
from hybridflow.core.attached import attached
from hybridflow.core.context import context_now, current, eager_code
from hybridflow.core.dims import Dim
from hybridflow.core.errors import LeakError, MutationError, TracedValueError
from hybridflow.core.functions import KEPT, is_own
from hybridflow.core.held import defines, found_in_class
from hybridflow.core.node import format_where, user_place
from hybridflow.core.recursion import RECURSION
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.structures import parts_of
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_number import TracedNumber, call_on_numbers
from hybridflow.core.variable import Variable
from hybridflow.guards import calls, observe
from hybridflow.guards.access import CELL, IN_CLASS, IN_INSTANCE, MISSING, RAW
from hybridflow.guards.effects import is_constant
from hybridflow.guards.guards import CHANGING, CONTAINERS
from hybridflow.guards.moving import makes_random_source
from hybridflow.guards.parts import cannot_be_users
from hybridflow.guards.questions import LRU_CACHE
from hybridflow.guards.users import OWN_LIBRARIES, is_hybridflows, is_users, is_users_class


def converted(function: Any) -> Any:
    """Return a function (method, partial, object with ``__call__``) converted, or unchanged if it cannot be.

    A function of hybridflow runs as if converted code called it; the user's functions in its closure are converted.
    """
    kind = type(function)
    if kind is FunctionType:
        if attached("is_converted")(function.__code__):
            return function
        if _is_hybridflows(function):  # it reads hybridflow's own state, such as the trace's context, not the user's
            return functools.partial(_call_own, _with_converted(function))
        observe.called(function)
        made = function if function in KEPT else attached("converted_function")(function)
        return _as_it_is(function) if made is function else made
    if kind is MethodType:
        inner = converted(function.__func__)
        return function if inner is function.__func__ else MethodType(inner, function.__self__)
    if kind is functools.partial:
        inner = converted(function.func)
        return function if inner is function.func else functools.partial(inner, *function.args, **function.keywords)
    made = _caller_of_class(function, kind) if issubclass(kind, type) else protocols.method_of(function, "__call__")
    return function if made is None else made


def handed_in(function: Any) -> Any:
    """Return a callable that a user gave to hybridflow, converted; its object counts as read from outside the trace."""
    observe.handed_in(function)
    return converted(_argument(function))


def _with_converted(function: FunctionType, around: tuple[FunctionType, ...] = ()) -> FunctionType:
    """Return a function of hybridflow with the user's functions in its closure converted; itself if it holds none.

    Args:
        function: the function.
        around: the functions in whose closures it was found.
    """

    def with_converted(cell: CellType) -> CellType:
        value = CELL.get(cell, "")
        if type(value) is FunctionType and _is_hybridflows(value):
            converted = value if value in around else _with_converted(value, (*around, function))
        else:
            converted = value if cannot_be_users(value) else _argument(value)
        return cell if converted is value else CellType(converted)

    cells = function.__closure__ or ()
    others = tuple(map(with_converted, cells))
    if all(map(operator.is_, others, cells)):
        return function
    made = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, others)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    return made


def _as_it_is(function: FunctionType) -> Any:
    """Wrap a user's function that runs unconverted, to record that it reads its arguments; itself if it takes none."""
    code = function.__code__
    takes = code.co_argcount or code.co_kwonlyargcount or code.co_flags & (_VARIABLE | _KEYWORDS)
    if takes and context_now() is not None:
        return functools.partial(_call_as_it_is, function)
    observe.runs_as_it_is(function, (), {})
    return function


_VARIABLE, _KEYWORDS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS


def _call_as_it_is(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a user's function that is not converted."""
    observe.runs_as_it_is(function, args, kwargs)
    return function(*args, **kwargs)


def target(function: Any) -> Any:
    """Return the converted form of a callable that the user wrote; None for everything else."""
    kind = type(function)
    if kind is FunctionType:
        return converted(function) if is_users(function.__code__) else _unwrapped(function)
    if kind is MethodType:
        inner = function.__func__
        if type(inner) is FunctionType and is_users(inner.__code__):
            return converted(function)
        made = _unwrapped(inner)
        return None if made is None else functools.partial(made, function.__self__)
    if kind is LRU_CACHE:
        return unwrapped(function)
    if kind in _OF_PYTHON:
        return _target_of_python(function, kind)
    if kind is functools.partial:
        observe.handed_in(function)
        inner = target(function.func)
        return None if inner is None else observe.made(functools.partial(inner, *function.args, **function.keywords))
    if issubclass(kind, type):
        return _caller_of_class(function, kind)
    if kind in LIBRARY_READERS:
        return functools.partial(LIBRARY_READERS[kind], function)
    return protocols.method_of(function, "__call__")


def _target_of_python(function: Any, kind: type) -> Any:
    """Return what converted code calls in place of a function or method that is written in C; None for itself."""
    name = function.__name__
    if kind is _BUILTIN and function in _OPERATORS:
        return _OPERATORS[function]
    if kind in _UNBOUND:
        if name in _CHANGING_METHODS:
            return functools.partial(_call_unbound, function)
        if name == "__getattribute__":
            return functools.partial(_read_by, function)
        of_numbers = function.__objclass__ in _OF_CLASSES
        return functools.partial(staged_reads.call_of_type, function) if of_numbers else None
    instance = function.__self__
    if type(instance) in _NUMBERS:
        return functools.partial(staged_reads.call_of_number, function)
    if kind is not MethodWrapperType:
        return None
    if name == "__getattribute__" and type(instance) not in _PLAIN:
        return functools.partial(_read_by, vars(function.__objclass__)[name], instance)
    if name in _OF_ATTRIBUTES:
        return functools.partial(_call_unbound, vars(function.__objclass__)[name], instance)
    if isinstance(instance, type) and function == _TYPE_CALL.__get__(instance):  # super().__call__ in a metaclass
        return _constructor(instance)
    return None


def _unwrapped(function: Any) -> Any:
    """Return a replacement for a wrapper that runs the user's function converted; None for all else."""
    made = unwrapped(function)
    if made is not None or type(function) is not FunctionType or "__wrapped__" not in function.__dict__:
        return made
    if _is_hybridflows(function):
        with_converted = _with_converted(function)
        return None if with_converted is function else functools.partial(_call_own, with_converted)
    return converted(function) if wraps_users(function) else None


def _read_attributes(getter: Any, /, obj: Any) -> Any:
    """Call an `operator.attrgetter`."""
    values = [functools.reduce(read_attribute, name.split("."), obj) for name in getter.__reduce__()[1]]
    return values[0] if len(values) == 1 else tuple(values)


def _read_items(getter: Any, /, obj: Any) -> Any:
    """Call an `operator.itemgetter`."""
    items = [read_item(obj, key) for key in getter.__reduce__()[1]]
    return items[0] if len(items) == 1 else tuple(items)


def _call_method(caller: Any, /, obj: Any) -> Any:
    """Call an `operator.methodcaller`."""
    made, given = caller.__reduce__()[:2]
    named = made.keywords if isinstance(made, functools.partial) else {}
    name, *args = made.args if isinstance(made, functools.partial) else given
    return callee(read_attribute(obj, name))(*args, *(given if made is not type(caller) else ()), **named)


_NUMBERS = frozenset({bool, int, float})
_OF_CLASSES = _NUMBERS | {object}
_UNBOUND = frozenset({MethodDescriptorType, WrapperDescriptorType})
_OF_PYTHON = _UNBOUND | {type(len), MethodWrapperType}
_TYPE_CALL: Any = vars(type)["__call__"]
"""The ``__call__`` that creates objects, unless a metaclass overrides it."""
LIBRARY_READERS: dict[type, Callable[..., Any]] = {
    operator.attrgetter: _read_attributes, operator.itemgetter: _read_items, operator.methodcaller: _call_method,
}
"""Replacements for the readers of the operator module, which run as converted code would."""


def read_attribute(obj: Any, name: str) -> Any:
    """Read an attribute as Python does; the user's hooks and getters run converted."""
    if type(obj) in _PLAIN:
        return observe.read_attr(obj, name)
    if type(obj) is StagedNumber or type(obj) is TracedNumber:
        return staged_reads.attribute_of(obj, name)
    if type(obj) is super:
        return _read_super(obj, name)
    hook = protocols.method_of(obj, "__getattribute__")
    if hook is None:
        return _read_generically(obj, name)
    try:
        return hook(name)
    except AttributeError:
        return _after_failure(obj, name)


def _after_failure(obj: Any, name: str) -> Any:
    """Call ``__getattr__``, if there is one, while the `AttributeError` of another way to read is handled."""
    if IN_CLASS.get(type(obj), "__getattr__") is MISSING:
        raise
    return protocols.special(obj, "__getattr__")(name)


def _read_generically(obj: Any, name: str, *get: Callable[[Any, str], Any]) -> Any:
    """Read an attribute of an object whose class has no ``__getattribute__`` of the user's, or none that counts.

    Args:
        obj: the object.
        name: the attribute.
        *get: the ``__getattribute__`` of a class of Python's, which does not call ``__getattr__``, or nothing.
    """
    if isinstance(obj, ModuleType):
        return observe.read_attr(obj, name, *get)
    in_class = IN_CLASS.get(type(obj), name)
    if isinstance(obj, type):
        getter, in_instance = _getter_of_class(obj, name, in_class)
    else:
        getter, in_instance = _getter_of(obj, name, in_class), IN_INSTANCE.get(obj, name)
    if getter is not None:
        try:
            return getter(obj)
        except AttributeError:
            if get:
                raise
            return _after_failure(obj, name)
    if in_class is MISSING and in_instance is MISSING and not get:
        hook = protocols.method_of(obj, "__getattr__")
        if hook is not None:
            observe.absent(obj, name)
            return hook(name)
    return observe.read_attr(obj, name, *get)


def _read_super(obj: Any, name: str) -> Any:
    """Read an attribute of a ``super()`` object; a getter is called for the instance behind it."""
    instance = obj.__self__
    value = observe.of_super(obj, name)
    if instance is None or instance is obj.__self_class__:
        return observe.read_attr(obj, name)
    if type(value) is functools.cached_property:
        getter = cached_property_of(instance, name, value)
        return observe.read_attr(instance, name) if getter is None else getter(instance)
    getter = _users_getter(value)
    if getter is not None:
        return getter(instance)
    if type(value) is MemberDescriptorType:
        observe.whole(instance)
    return observe.read_attr(obj, name)


def _getter_of(obj: Any, name: str, in_class: Any) -> Any:
    """Return the getter of an attribute if it is a user's property or descriptor; else None."""
    if type(in_class) is functools.cached_property:
        return cached_property_of(obj, name, in_class)
    if type(in_class) is functools.singledispatchmethod:
        observe.class_attribute(obj, name)
        return lambda obj: functools.partial(call_dispatched_method, in_class, obj)
    getter = _users_getter(in_class)
    if getter is None:
        return None
    if not defines(type(in_class), "__set__"):
        observe.own(obj, name)
        if IN_INSTANCE.get(obj, name) is not MISSING:
            getter = None
    observe.class_attribute(obj, name)
    return getter


def _getter_of_class(cls: type, name: str, in_meta: Any) -> tuple[Callable[[Any], Any] | None, Any]:
    """Return the getter of a class's attribute if the user wrote it, else None; and what the class defines."""
    defined = IN_CLASS.get(cls, name)
    if defined is MISSING or defines(type(in_meta), "__set__"):
        getter = _users_getter(in_meta)
        if getter is not None:
            observe.class_attribute(cls, name)
            observe.defined_in(cls, name)
        return getter, defined
    get = protocols.method_of(defined, "__get__")
    if get is None:
        return None, defined
    observe.defined_in(cls, name)
    return lambda cls: get(None, cls), defined


def _users_getter(in_class: Any) -> Callable[[Any], Any] | None:
    """Return the converted getter of a property or a descriptor in a class, if the user wrote it; else None."""
    kind = type(in_class)
    if kind is property:
        users = type(in_class.fget) is FunctionType and is_users(in_class.fget.__code__)
        return converted(in_class.fget) if users else None
    get = None if kind in _PLAIN or kind is FunctionType else protocols.method_of(in_class, "__get__")
    return None if get is None else lambda obj: get(obj, type(obj))


def _get_attribute(obj: Any, name: Any, *default: Any) -> Any:
    """Call ``getattr``."""
    if type(name) is not str or len(default) > 1:
        return getattr(obj, name, *default)  # raises Python's error
    try:
        return read_attribute(obj, name)
    except AttributeError:
        if default:
            return default[0]
        raise


def _has_attribute(obj: Any, name: Any) -> bool:
    """Call ``hasattr``."""
    return _get_attribute(obj, name, MISSING) is not MISSING


def write_attribute(obj: Any, name: str, value: Any, *, augmented: bool = False) -> None:
    """Store an attribute as Python does; the user's hooks and setters run converted."""
    hook = protocols.method_of(obj, "__setattr__")
    setter = None if hook is not None else protocols.setter_of(obj, name)
    if hook is not None:
        hook(name, value)
    elif IN_CLASS.get(type(obj), "__setattr__") is None:
        setattr(obj, name, value)  # raises Python's error
    elif setter is not None:
        setter(value)
    else:
        regions.changed(obj, f".{name} = ...")
        observe.write_attr(obj, name, value, augmented=augmented)


def delete_attribute(obj: Any, name: str) -> None:
    """Delete an attribute as Python does; the user's hooks and deleters run converted."""
    hook = protocols.method_of(obj, "__delattr__")
    deleter = None if hook is not None else protocols.setter_of(obj, name, "__delete__")
    if hook is not None:
        hook(name)
    elif IN_CLASS.get(type(obj), "__delattr__") is None:
        delattr(obj, name)  # raises Python's error
    elif deleter is not None:
        deleter()
    else:
        regions.changed(obj, f".{name} deleted")
        observe.delete_attr(obj, name)


def _call_setattr(put: Any, obj: Any, name: Any, value: Any) -> None:
    """Call `object.__setattr__` or `type.__setattr__`, which respect setters."""
    setter = protocols.setter_of(obj, name)
    if setter is not None:
        setter(value)
    else:
        regions.changed(obj, f".{name} = ...")
        observe.write_attr_by(put, obj, name, value)


def _call_delattr(put: Any, obj: Any, name: Any) -> None:
    """Call `object.__delattr__` or `type.__delattr__`, which respect deleters."""
    deleter = protocols.setter_of(obj, name, "__delete__")
    if deleter is not None:
        deleter()
    else:
        regions.changed(obj, f".{name} deleted")
        observe.delete_attr(obj, name, put)


def read_item(obj: Any, key: Any) -> Any:
    """Read an item."""
    getter = protocols.method_of(obj, "__getitem__")
    if getter is not None:
        return getter(key)
    regions.read(obj)
    if (type(obj) is list or type(obj) is tuple) and staged_reads.is_position(key):
        return staged_reads.item_at([observe.read_item(obj, index) for index in range(len(obj))], key)
    return observe.read_item(obj, key)


def write_item(obj: Any, key: Any, value: Any, *, augmented: bool = False) -> None:
    """Store an item."""
    setter = protocols.method_of(obj, "__setitem__")
    if setter is not None:
        setter(key, value)
        return
    regions.changed(obj, "[...] = ...")
    observe.write_item(obj, key, value, augmented=augmented)


def delete_item(obj: Any, key: Any) -> None:
    """Delete an item."""
    method = protocols.method_of(obj, "__delitem__")
    if method is not None:
        method(key)
        return
    regions.changed(obj, "[...] deleted")
    observe.delete_item(obj, key)


_PLAIN = frozenset({Tensor, Variable, type(None), int, float, bool, str, bytes, list, tuple, dict, set, np.ndarray})


def _caller_of_class(cls: type, kind: type) -> Any:
    """Return the callable that creates objects of a class; its metaclass may define it. None if nothing converts."""
    method = IN_CLASS.get(kind, "__call__")
    if method is _TYPE_CALL:
        return _constructor(cls)
    if type(method) is FunctionType and is_users(method.__code__):
        observe.class_attribute(cls, "__call__")
        return MethodType(converted(method), cls)
    return None


def _constructor(cls: type) -> Any:
    """Return a constructor for a user's class with its ``__new__`` and ``__init__`` converted; None if it has none."""
    method: Any = cls.__init__
    make: Any = cls.__new__
    if is_users_class(cls):
        observe.constructed(cls)
    users_make = type(make) is FunctionType and is_users(make.__code__)
    if not users_make and (type(method) is not FunctionType or not is_users(method.__code__)):
        return None
    if make is not object.__new__:
        return functools.partial(_construct, converted(make) if users_make else make, cls, None)
    after = found_in_class(cls, "__post_init__")
    generated = defines(cls, "__dataclass_fields__") and method.__code__.co_filename == "<string>"
    if generated and type(after) is FunctionType and "__slots__" not in vars(cls):
        return functools.partial(_construct_dataclass, cls, converted(after))
    return functools.partial(_construct, object.__new__, cls, ())


def _construct(make: Any, cls: type, given: tuple[Any, ...] | None, /, *args: Any, **kwargs: Any) -> Any:
    """Create an object as `type` does.

    Args:
        make: the class's ``__new__``, converted if a user wrote it.
        cls: the class.
        given: the arguments of ``__new__``; None for those of the call.
        *args, **kwargs: the arguments of the call.
    """
    made = make(cls, *args, **kwargs) if given is None else make(cls, *given)
    if issubclass(type(made), cls):
        if not isinstance(make, functools.partial | FunctionType):
            observe.made(made)
        initial = protocols.method_of(made, "__init__") or functools.partial(type(made).__init__, made)
        result = initial(*args, **kwargs)
        if result is not None:
            type("", (), {"__init__": lambda _: result})()  # raises Python's error
    return made


def _make_object(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the ``__new__`` of a builtin class."""
    made = function(*args, **kwargs)
    return observe.made(made) if is_users_class(type(made)) else made


def _construct_dataclass(cls: type, after: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Create an object of a dataclass whose generated ``__init__`` calls a converted ``__post_init__``."""
    made: Any = observe.made(object.__new__(cls))

    def once(*args: Any) -> None:
        del made.__dict__["__post_init__"]
        after(made, *args)

    made.__dict__["__post_init__"] = once
    made.__init__(*args, **kwargs)
    return made


def callee(function: Any) -> Any:
    """Return the callable that converted code calls in place of a function."""
    stand_in = target(function)
    if stand_in is not None:
        return stand_in
    if not callable(function):
        return function  # the call raises Python's error
    if type(function) is _BUILTIN and function.__name__ == "__new__":
        return functools.partial(_make_object, function)
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
        return is_hybridflows(code)
    return is_own(str(type(function).__module__))


def _call_own(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of hybridflow, which calls functions among its arguments by `as_traced`, or hands them on."""
    regions.read_whole((*args, *kwargs.values()))
    args, kwargs = texts.handed_on(function, args, kwargs)
    calls.before_call(function, args, kwargs, own=True)
    result = function(*args, **kwargs)
    return texts.seen(result) if type(result) is str and function.__name__ in _OF_TEXT else result


_OF_TEXT = frozenset({"__repr__", "__str__", "__format__"})


def _call_builtin(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a builtin that has a replacement for tensors."""
    if _calls_arguments(function):
        args, kwargs = _converted_arguments(args, kwargs)
    if not builtin.replaces(function, (*args, *kwargs.values())):
        return _call_other(function, *args, **kwargs)
    given, args = args, protocols.drives(function, args)
    for one in args:
        require_known(one)
    before_change(function, args)
    calls.before_call(function, args, kwargs, replaced=True)
    replacement = cast(Any, builtin.replacement(function))
    if any(map(operator.is_not, given, args)):
        result = protocols.driven(replacement, *args, **kwargs)
    else:  # recursion goes deeper without a frame more
        result = replacement(*args, **kwargs)
    return observe.made_class(_of_the_user(result)) if function is type and len(args) == 3 else result


def _of_the_user(made: type) -> type:
    """Return a class that a call made, which is in the module of the line that calls."""
    if made.__module__ in _CALLING_MODULES:
        frame = sys._getframe(2)
        while is_hybridflows(frame.f_code) and frame.f_back is not None:
            frame = frame.f_back
        made.__module__ = str(frame.f_globals.get("__name__"))
    return made


_CALLING_MODULES = frozenset({__name__, builtin.__name__, calls.__name__})
_BUILTIN = type(len)


def _call_other(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function that is neither the user's nor hybridflow's."""
    if type(function) in _UNBOUND and function.__objclass__ is str and args and isinstance(args[0], str):
        return callee(getattr(args[0], function.__name__))(*args[1:], **kwargs)
    if _calls_arguments(function):
        args, kwargs = _converted_arguments(args, kwargs)
    if type(function) in (_BUILTIN, type):
        if not kwargs and (number := call_on_numbers(function, args)) is not NotImplemented:
            return number
        for one in (getattr(function, "__self__", None), *args):
            require_known(one)
        if (text := texts.made_by(function, args, kwargs)) is not None:
            return text
        given, args = args, protocols.drives(function, args)
        if any(map(operator.is_not, given, args)):
            return texts.seen(protocols.driven(function, *args, **kwargs))
    if _stores_numbers(function, args, kwargs) or before_change(function, args):
        return None
    args, kwargs = texts.handed_on(function, args, kwargs)
    first = observe.recorded()
    args, kwargs = calls.before_call(function, args, kwargs)
    last = observe.recorded()
    try:
        result = calls.watched(function, args, kwargs)
    except Exception as error:
        observe.failed(first, last, in_part=getattr(function, "__name__", None) in _IN_PARTS)
        observe.answer(function, args, kwargs, MISSING)
        if _wants_number(error, args, kwargs) or _takes_functions(function, args, kwargs):
            observe.settle()  # C takes only numbers of its own, also from functions that it calls
        raise
    if type(result) is str:
        result = texts.seen(result)
    elif isinstance(result, type):
        result = _of_the_user(result)
    elif type(result) is function or makes_random_source(function):
        return observe.made(result)
    return observe.answer(function, args, kwargs, result)


def _stores_numbers(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Do an update of a dict by numbers of the call as the stores of its items, whose numbers each call computes.

    Returns:
        Whether it was one.
    """
    owner = getattr(method, "__self__", None)
    updates = type(owner) in _DICTS and method.__name__ in ("update", "__ior__")
    if not updates or [*map(type, args)] not in ([], [dict]):
        return False
    items = {**dict(*args), **kwargs}
    if not is_constant(tuple(items)) or not any(type(one) is TracedNumber for one in items.values()):
        return False
    for key, value in items.items():
        write_item(owner, key, value)
    return True


_DICTS = frozenset({dict, OrderedDict, defaultdict})
"""Types of dicts whose updates store items."""


def _wants_number(error: Exception, *values: Any) -> bool:
    """Whether an error may come from a stand-in, which is an argument or what a special method of theirs returned."""
    parts = parts_of(values) if type(error) is TypeError else ()
    return any(type(one) in (Dim, TracedNumber) or is_users_class(type(one)) for one in parts)


def _takes_functions(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = (*args, *kwargs.values())
    return any(type(one) in (FunctionType, MethodType) for one in given) and not _calls_arguments(function)


_IN_PARTS = frozenset({"extend", "extendleft", "sort", "update", "__iadd__", "__ior__"})
"""Methods of containers that may have made a part of their change when they raise an error."""
_CALLING: frozenset[Any] = frozenset(
    {map, filter, sorted, min, max, functools.reduce, jax.tree_util.tree_map, jax.tree.map,
     jax.tree.reduce, jax.tree_util.tree_map_with_path, jax.tree_util.tree_reduce, jax.tree.map_with_path, list.sort}
)


def _calls_arguments(function: Any) -> bool:
    """Whether a callable only calls the functions among its arguments."""
    if type(function) is type(len) and type(function.__self__) is list:
        return function.__name__ == "sort"
    return isinstance(function, FunctionType | type(len) | type) and function in _CALLING


def _converted_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    positional = tuple([_argument(one, called=True) for one in args])
    return positional, {name: _argument(one, called=True) for name, one in kwargs.items()}


def _argument(value: Any, *, called: bool = False) -> Any:
    """Return what stands for a function that is called; `called` says that any type or builtin is replaced too."""
    if type(value) in (FunctionType, MethodType, functools.partial):
        stand_in = target(value)
        return value if stand_in is None else stand_in
    if type(value) in (_BUILTIN, type) and (called or value in texts.MAKERS):
        return callee(value)
    if type(value) in (_BUILTIN, MethodWrapperType) and value.__name__ in _CHANGING_METHODS:
        return callee(value)
    return value


def _call_unbound(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call an unbound method, such as `list.append` or `object.__setattr__`, as a method of its first argument."""
    if not args or not isinstance(args[0], function.__objclass__):
        return function(*args, **kwargs)  # raises Python's error
    if function.__name__ in _OF_ATTRIBUTES:
        count = 3 if function.__name__ == "__setattr__" else 2
        if len(args) != count or kwargs or isinstance(args[0], type) != (function.__objclass__ is type):
            return function(*args, **kwargs)  # raises Python's error
        return _call_setattr(function, *args) if count == 3 else _call_delattr(function, *args)
    return callee(function.__get__(args[0]))(*args[1:], **kwargs)


def _read_by(get: Any, *args: Any) -> Any:
    """Call the ``__getattribute__`` of a class of Python's, such as `object`."""
    if len(args) != 2 or type(args[1]) is not str or not isinstance(args[0], get.__objclass__):
        return get(*args)  # raises Python's error
    return _read_generically(*args, get)


_OF_ATTRIBUTES = frozenset({"__setattr__", "__delattr__"})
_CHANGING_METHODS = calls.CHANGES | _OF_ATTRIBUTES


def augment(kind: str, target: Any, operand: Any) -> Any:
    """Return the value that ``target += operand`` stores; record a change of the target itself."""
    name = f"__{protocols.IN_PLACE[kind].__name__}__"
    in_class = IN_CLASS.get(type(target), name)
    if type(in_class) is FunctionType:
        by_a_library = not (is_users(in_class.__code__) or is_own(in_class.__module__))
    else:
        by_a_library = isinstance(target, (*CONTAINERS, *CHANGING))
    method = getattr(target, name, None) if by_a_library else None
    if method is not None:
        if _stores_numbers(method, (operand,), {}):
            return target
        before_change(method, (operand,))
        (operand,), _ = calls.before_call(method, (operand,), {})
    elif isinstance(target, Tensor):
        observe.changes(target, " += ...")  # in eager code, it may be an array
    value = protocols.AUGMENTED[kind](target, operand)
    observe.augmented(protocols.IN_PLACE[kind], operand, value)
    return value


_OPERATORS: dict[Any, Callable[..., Any]] = {
    getattr: texts.by_name(_get_attribute),
    hasattr: texts.by_name(_has_attribute),
    setattr: texts.by_name(write_attribute),
    sys.getrecursionlimit: lambda: observe.answer(sys.getrecursionlimit, (), {}, RECURSION.limit),
    delattr: texts.by_name(delete_attribute),
    operator.getitem: read_item,
    operator.setitem: write_item,
    operator.delitem: delete_item,
    **{function: functools.partial(augment, kind) for kind, function in protocols.IN_PLACE.items()},
}
"""Replacements for Python's functions that do the same as syntax, which run as converted code would."""


# -- users' functions behind wrappers of the standard library: `lru_cache`, `contextmanager`, `cached_property` -------
# A cache of the user's may only get values that are right in later calls too. Such a value is computed eagerly,
# outside the trace, which then reads it like any other value from outside. A value that depends on the trace's own
# tensors is wrong elsewhere: the trace keeps it for itself, per branch and loop body, and it never reaches the user's
# cache.


def _code_of(wrapper: Any) -> CodeType:
    return wrapper.__code__


def _block() -> Generator[None]:
    yield


_CONTEXT_MANAGER = _code_of(contextlib.contextmanager(_block))
_DISPATCHER = _code_of(functools.singledispatch(lambda one: one))
_kept: weakref.WeakKeyDictionary[Any, dict[Hashable, tuple[Any, Any]]] = weakref.WeakKeyDictionary()
"""For each trace, branch and loop body: values by key, with the objects whose ids are in the key."""


def _remembered(key: Hashable, objects: Any, make: Callable[[], Any]) -> Any:
    """Return a value that is computed once per trace."""
    tracer: Any = current().tracer
    around = tracer
    while around is not None:
        remembered = _kept.get(around, {}).get(key)
        if remembered is not None:
            return remembered[1]
        around = around.outer
    value = make()
    if tracer is not None:
        _kept.setdefault(tracer, {})[key] = objects, value
    return value


def _traced(value: Any) -> bool:
    """Whether a structure holds a traced tensor or number."""
    return any(map(is_traced, parts_of(value)))


def _call_cached(cached: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function with a cache."""
    inner = cached.__wrapped__
    given = [("", one) for one in args] + sorted(kwargs.items(), key=lambda pair: pair[0])

    def remembered() -> Any:
        objects = cached, args, kwargs
        key = (id(cached), *[(name, type(one), id(one) if _traced(one) else one) for name, one in given])
        return _remembered(key, objects, lambda: attached("converted")(inner)(*args, **kwargs))

    for _, one in given:
        if type(one).__hash__ is None:
            hash(one)  # raises Python's error
    if any(map(_belongs_to_trace, (*args, *kwargs.values()))):
        return remembered()
    for one in parts_of((args, kwargs)):
        if type(one) is TracedNumber:
            one.needed()  # a cache that keeps nothing does not even hash it
    observe.whole(*args, *kwargs.values())
    try:
        value = _kept_outside(cached, lambda: cached(*args, **kwargs))
    except (TracedValueError, LeakError):  # it reads values of the trace
        return remembered()
    except Exception as error:
        if not isinstance(error, MutationError):
            observe.answer(cached, args, kwargs, MISSING)
        raise
    if _traced(value):
        cached.cache_clear()
        return remembered()
    return observe.answer(cached, args, kwargs, value)


def _belongs_to_trace(value: Any) -> bool:
    """Whether results computed from a value are valid in this trace only."""
    return _traced(value) or observe.is_made_here(value)


def _kept_outside(what: Any, make: Callable[[], Any]) -> Any:
    """Return the value from the user's cache, computed eagerly: later calls use it too.

    Args:
        what: the cached function or property, for messages.
        make: reads the cache, which computes the value if needed.

    Raises:
        MutationError: the cache would keep a value through which a gradient flows.
    """
    context = current()
    with regions.apart(), eager_code(once=True, tapes=context.tapes):
        value = make()
    if context.tapes and any(isinstance(leaf, Tensor) and leaf._edge is not None for leaf in parts_of(value)):
        raise _not_kept(what, "is made of a Variable, where a gradient is taken of it")
    return value


def _not_kept(what: Any, why: str) -> MutationError:
    name = getattr(what, "__qualname__", repr(what))
    return MutationError(f"compile: the value that {name} keeps for later calls {why}, which a compiled call cannot do",
                         got=f"a tensor from {name} at {format_where(user_place(3))}",
                         hint="Call it before the compiled function, or compute the value at every call.")


def unwrapped(function: Any) -> Any:
    """Return a replacement for a standard library wrapper that runs the user's function converted.

    Returns:
        The replacement; None for every other function.
    """
    if type(function) is LRU_CACHE:
        inner = cast(Any, function).__wrapped__
        users = type(inner) is FunctionType and is_users(inner.__code__)
        return functools.partial(_call_cached, function) if users else None
    if type(function) is not FunctionType:
        return None
    if function.__code__ is _CONTEXT_MANAGER:
        inner = cast(Any, function).__wrapped__
        made = attached("target")(inner)
        return None if made is None else contextlib.contextmanager(made)
    if function.__code__ is _DISPATCHER:
        return functools.partial(_call_dispatched, function)
    return None


def wraps_users(function: FunctionType) -> bool:
    """Whether a function is a library's wrapper around a function of the user's, such as a decorator makes."""
    if is_users(function.__code__) or str(function.__globals__.get("__name__")).partition(".")[0] in OWN_LIBRARIES:
        return False
    inside = [CELL.get(cell, "") for cell in function.__closure__ or ()]
    return any(type(one) is FunctionType and (is_users(one.__code__) or wraps_users(one)) for one in inside)


def _call_dispatched(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the function that `functools.singledispatch` chooses."""
    if not args:
        return function(**kwargs)  # raises Python's error
    kind = (attached("type_of")(args[0]),)
    chosen = observe.answer(function.dispatch, kind, {}, function.dispatch(*kind))
    return attached("callee")(chosen)(*args, **kwargs)


def call_dispatched_method(method: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the method of an object that `functools.singledispatchmethod` chooses."""
    if not args:
        return method.__get__(obj)(**kwargs)  # raises Python's error
    kind = (attached("type_of")(args[0]),)
    chosen = observe.answer(method.dispatcher.dispatch, kind, {}, method.dispatcher.dispatch(*kind))
    return attached("callee")(chosen.__get__(obj, type(obj)))(*args, **kwargs)


def cached_property_of(obj: Any, name: str, property_: functools.cached_property[Any]) -> Callable[[Any], Any] | None:
    """Return a function that computes a user's `cached_property`; None if it has a value, or is not the user's."""
    if IN_INSTANCE.get(obj, name) is not MISSING:
        return None
    inner = attached("target")(property_.func)
    if inner is None:
        return None
    if _belongs_to_trace(obj) and not regions.is_older(obj):
        return lambda obj: _kept_in_made(obj, property_.attrname or name, inner)
    if _belongs_to_trace(obj) or not observe.is_known(obj):
        return lambda obj: _remembered((id(obj), name), obj, lambda: inner(obj))
    return lambda obj: _kept_in_object(obj, name, property_, inner)


def _kept_in_made(obj: Any, name: str, inner: Any) -> Any:
    """Compute a `cached_property` of an object that the trace made: the object keeps the value, as in eager code."""
    attached("read_attribute")(obj, "__dict__")  # the user's `__getattribute__` is asked, as CPython does
    value = inner(obj)
    observe.write_attr_by(object.__setattr__, obj, name, value)
    return value


def _kept_in_object(obj: Any, name: str, property_: functools.cached_property[Any], inner: Any) -> Any:
    """Compute a `cached_property` of an object that outlives the trace: the object keeps the value."""
    key = property_.attrname or name
    is_late = observe.keeps(obj, key)
    try:
        value = _kept_outside(property_.func, lambda: property_.__get__(obj, type(obj)))
        if _traced(value):
            raise _not_kept(property_.func, "is a traced tensor")
    except (TracedValueError, LeakError) as error:
        raise _not_kept(property_.func, "is made of a traced tensor") from error
    except MutationError:
        RAW.get(obj, "__dict__").pop(key, None)
        raise
    if is_late:
        observe.own(obj, key)
        return value
    return observe.read_attr(obj, key, object.__getattribute__)
