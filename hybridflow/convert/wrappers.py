"""Users' functions behind wrappers of the standard library: `lru_cache`, `contextmanager`, `cached_property`.

A cache of the user's may only get values that are right in later calls too. Such a value is computed eagerly, outside
the trace, which then reads it like any other value from outside. A value that depends on the trace's own tensors is
wrong elsewhere: the trace keeps it for itself, per branch and loop body, and it never reaches the user's cache.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator, Hashable
from types import CodeType, FunctionType
from typing import Any, cast

from hybridflow.convert import regions
from hybridflow.convert.values import is_traced
from hybridflow.core.attached import attached
from hybridflow.core.context import current, eager_code
from hybridflow.core.errors import LeakError, MutationError, TracedValueError
from hybridflow.core.node import format_where, user_place
from hybridflow.core.structures import parts_of
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_number import TracedNumber
from hybridflow.guards import observe
from hybridflow.guards.access import CELL, IN_INSTANCE, MISSING, RAW
from hybridflow.guards.questions import LRU_CACHE
from hybridflow.guards.users import OWN_LIBRARIES, is_users


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
