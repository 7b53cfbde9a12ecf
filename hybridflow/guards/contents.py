"""Read containers as Python's own types store them, without calling methods of users' subclasses.

A subclass's own methods may return something else; their reads are recorded when they run.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, cast

from hybridflow.core.errors import TraceError

_SEQUENCES = (list, tuple, deque)
_EXACT = frozenset({list, tuple, deque, dict, OrderedDict, MappingProxyType})


def _own_type(kind: type) -> Any:
    """Return the Python container type that a class is or inherits from.

    Raises:
        TraceError: the class is that of a proxy, which only says that it is one.
    """
    for one in (list, tuple, deque, OrderedDict, dict, MappingProxyType):
        if issubclass(kind, one):
            return one
    raise TraceError("compile: what a proxy of a container stands for cannot be watched", got=f"a {kind.__name__}",
                     hint="Use weakref.ref, and call it.")


def in_sequence(sequence: Any) -> Sequence[Any]:
    """Return what is in a list, a tuple or a deque."""
    return sequence if type(sequence) in _EXACT else [*_own_type(type(sequence)).__iter__(sequence)]


def items_in(container: Any) -> Iterable[Any]:
    """Return the items of a container or set; the keys of a dict."""
    for kind in (set, frozenset):
        if isinstance(container, kind):
            return kind.__iter__(cast(Any, container))
    return in_sequence(container) if isinstance(container, _SEQUENCES) else keys_of(container)


def keys_of(mapping: Any) -> Iterable[Any]:
    """Return the keys of a dict."""
    return mapping if type(mapping) in _EXACT else _own_type(type(mapping)).keys(mapping)


def values_of(mapping: Any) -> Iterable[Any]:
    """Return the values of a dict."""
    return mapping.values() if type(mapping) in _EXACT else _own_type(type(mapping)).values(mapping)


def pairs_of(mapping: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys of a dict with their values."""
    return mapping.items() if type(mapping) in _EXACT else _own_type(type(mapping)).items(mapping)


def item_at(container: Any, key: Any) -> Any:
    """Return an item of a sequence as it is stored; for other objects, by their own ``__getitem__``.

    Raises:
        LookupError, TypeError: there is none.
    """
    kind = type(container)
    if kind in _EXACT or not isinstance(container, _SEQUENCES):
        return container[key]
    return _own_type(kind).__getitem__(cast(Any, container), key)


def has_own_way(kind: type, method: str) -> bool:
    """Whether a container class overrides a special method of Python's container type."""
    base = _own_type(kind)
    return kind is not base and _defined(kind, method) is not _defined(base, method)


def _defined(kind: type, method: str) -> Any:
    return next(one.__dict__[method] for one in kind.__mro__ if method in one.__dict__)
