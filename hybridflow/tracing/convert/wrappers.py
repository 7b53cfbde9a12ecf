"""Users' functions behind wrappers of the standard library: `lru_cache`, `contextmanager`, `cached_property`.

What a cache would keep is a traced tensor, of use to one trace only; so a trace keeps such values itself, per branch
and loop body, and the user's cache gets none of them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator, Hashable
from types import CodeType, FunctionType
from typing import Any, cast

import jax

from hybridflow.core.context import current
from hybridflow.core.errors import TracedValueError
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.tensor import Tensor
from hybridflow.tracing import observe
from hybridflow.tracing.convert import callee as callees
from hybridflow.tracing.questions import LRU_CACHE

def _code_of(wrapper: Any) -> CodeType:
    return wrapper.__code__



def _block() -> Generator[None]:
    yield


_CONTEXT_MANAGER = _code_of(contextlib.contextmanager(_block))
_DISPATCHER = _code_of(functools.singledispatch(lambda one: one))
_kept: weakref.WeakKeyDictionary[Any, dict[Hashable, tuple[Any, Any]]] = weakref.WeakKeyDictionary()
"""Per trace, branch and loop body: values by key, and the objects that the key's numbers belong to."""


def _remembered(key: Hashable, objects: Any, make: Callable[[], Any]) -> Any:
    """Return a value that is made once in a trace."""
    tracer: Any = current().tracer
    around = tracer
    while around is not None:
        found = _kept.get(around, {}).get(key)
        if found is not None:
            return found[1]
        around = around.outer
    value = make()
    if tracer is not None:
        _kept.setdefault(tracer, {})[key] = objects, value
    return value


def _traced(value: Any) -> bool:
    """Whether a traced tensor or number is in a structure."""
    leaves = jax.tree_util.tree_leaves(value)
    return any(type(leaf) is StagedNumber or (isinstance(leaf, Tensor) and leaf._value is None) for leaf in leaves)


def _call_cached(cached: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function with a cache."""
    inner = cached.__wrapped__
    objects = cached, args, kwargs

    def make() -> Any:
        return callees.converted(inner)(*args, **kwargs)

    given = [("", one) for one in args] + sorted(kwargs.items(), key=lambda pair: pair[0])
    key = (id(cached), *[(name, type(one), id(one) if _traced(one) else one) for name, one in given])
    if _traced((args, kwargs)):
        return _remembered(key, objects, make)

    def as_it_is() -> Any:
        observe.runs_as_it_is(inner, args, kwargs)
        try:
            found = cached(*args, **kwargs)
        except TracedValueError:
            return make()
        if _traced(found):
            cached.cache_clear()
        return found

    return _remembered(key, objects, as_it_is)


def unwrapped(function: Any) -> Any:
    """Return what runs a user's function in place of one that a wrapper of the standard library made of it.

    Returns:
        None for every other function.
    """
    if type(function) is LRU_CACHE:
        inner = cast(Any, function).__wrapped__
        users = type(inner) is FunctionType and callees.is_users(inner.__code__)
        return functools.partial(_call_cached, function) if users else None
    if type(function) is not FunctionType:
        return None
    if function.__code__ is _CONTEXT_MANAGER:
        inner = cast(Any, function).__wrapped__
        made = callees.target(inner)
        return None if made is None else contextlib.contextmanager(made)
    if function.__code__ is _DISPATCHER:
        return functools.partial(_call_dispatched, function)
    return None


def _call_dispatched(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the function that `functools.singledispatch` chooses."""
    if not args:
        return function(**kwargs)  # raises Python's error
    kind = (type(args[0]),)
    chosen = observe.answer(function.dispatch, kind, {}, function.dispatch(*kind))
    return callees.callee(chosen)(*args, **kwargs)


def cached_property_of(obj: Any, name: str) -> Callable[[Any], Any] | None:
    """Return what computes an attribute, a `cached_property`, if a user wrote it and it has no value yet."""
    if name in vars(obj):
        return None
    inner = callees.target(getattr(type(obj), name).func)
    if inner is None:
        return None
    return lambda obj: _remembered((id(obj), name), obj, lambda: inner(obj))
