"""What existed before the body of a branch or loop on tensors: such objects must not change while the body is traced.

They are found from the variables of the functions that are running, whatever leads to them: attributes, slots, items,
keys, closures, bound methods, views, iterators. What code changes without a word to us (C functions, NumPy, iterators)
is compared after the body.
"""

from __future__ import annotations

import gc
import io
import itertools
import operator
import random
import sys
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
    TracebackType,
)
from typing import Any, cast

import jax
import numpy as np

from hybridflow.convert.poison import UNSET
from hybridflow.core.functions import LAYERS
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards.access import MISSING, RAW
from hybridflow.guards.contents import in_sequence, pairs_of
from hybridflow.guards.guards import PLAIN
from hybridflow.guards.parts import slots
from hybridflow.guards.users import OWN_LIBRARIES, is_users_class, is_users_file

_CLOSED = (
    Tensor, Variable, TracedArray, TracedNumber, jax.Array, np.dtype, np.generic, np.ufunc,
    CodeType, FrameType, TracebackType,
)
"""Types that cannot change, or whose changes are recorded as operations."""
_CONTAINERS_FROM = ("builtins", "collections", "functools", "types")
"""The modules whose objects hold what users put there. Inside of others (queues, loggers, threads), libraries keep
books of their own, which may change at any time."""
_MOST = 10_000
"""How many objects are looked at, those that fewer steps lead to first: a trace shall not wait for a whole data set."""
_LARGE, _HUGE = 1 << 16, 1 << 24
"""The bytes from which an array is compared by a checksum, and from which by a part of its elements; the first is also
the number of items from which containers are compared by a part of them."""
_SAMPLES = 1 << 14


class Outside:
    """The objects that are reachable when a body begins.

    Args:
        cells: the cells of the variables that the body shares: it may set those, so only what they hold now counts.
        frame: the frame that the body is run from; its callers up to the compiled function are looked at.
    """

    def __init__(self, cells: Iterable[CellType], frame: FrameType | None) -> None:
        self.known: dict[int, Any] = {}
        self._shared = {id(cell) for cell in cells}
        self._states: list[tuple[Any, Callable[[Any], Any], Any]] = []
        self._global: deque[Any] = deque()
        self._namespaces: dict[int, dict[str, Any]] = {}
        pending: deque[Any] = deque(map(_content, cells))
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith("hybridflow.tracing."):
            if is_users_file(frame.f_code.co_filename):
                pending += frame.f_locals.values()
                self._global += _globals_of(frame.f_code, frame.f_globals)
                self._namespace(frame.f_globals)
            frame = frame.f_back
        self._look_at(pending)
        reached = dict(self.known)
        self._look_at(self._global)  # stores there are observed, and layers may set their sizes there
        self.known = reached

    @classmethod
    def of(cls, values: Iterable[Any]) -> Outside:
        """Return what is reachable from values."""
        made = cls((), None)
        made._look_at(deque(values))
        return made

    def changed(self) -> Any:
        """Return an object whose content is no longer what it was; `UNSET` if there is none."""
        return next((value for value, state, before in self._states if not _same(state(value), before)), UNSET)

    def renew(self) -> None:
        """Take what the objects hold now for what they held before the body."""
        self._states = [(value, state, state(value)) for value, state, _ in self._states]

    def _look_at(self, pending: deque[Any]) -> None:
        end = len(self.known) + _MOST
        while pending and len(self.known) < end:
            self._add(pending.popleft(), pending)

    def _add(self, value: Any, pending: deque[Any]) -> None:
        kind = type(value)
        if kind in PLAIN or id(value) in self.known or id(value) in self._shared or isinstance(value, _CLOSED):
            return
        self.known[id(value)] = value
        if isinstance(value, FunctionType):
            if is_users_file(value.__code__.co_filename):  # not its module: `functools.wraps` copies that
                pending += [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__, value.__dict__]
                self._global += _globals_of(value.__code__, value.__globals__)
                self._namespace(value.__globals__)
            return
        if isinstance(value, ModuleType):
            if sys.modules.get(value.__name__) is not value:
                pending.append(vars(value))
            return
        if isinstance(value, type):
            if is_users_class(value):
                pending += [*vars(value).values(), *value.__bases__]
                self._note(value, _attributes_of)
            return
        module = str(kind.__module__)
        own = module.partition(".")[0] in OWN_LIBRARIES and not module.startswith(LAYERS)
        if own and not isinstance(value, tuple):  # a namedtuple's class has the module of its maker's caller
            return
        attributes = RAW.get(value, "__dict__")
        state = _state_of(value) or _slots_of(kind)
        if attributes is not MISSING:
            if state is None and not is_users_class(kind) and module not in _CONTAINERS_FROM:
                return
            self.known[id(attributes)] = attributes
            pending += attributes.values()
            if is_users_class(kind):
                self._note(value, _attributes_of)
        self._note(value, state)
        inside = [value()] if isinstance(value, weakref.ref) else gc.get_referents(value)
        pending += [one for one in inside if type(one) not in PLAIN]

    def _namespace(self, names: dict[str, Any]) -> None:
        if id(names) not in self._namespaces:
            self._namespaces[id(names)] = names
            self._note(names, _names)

    def _note(self, value: Any, state: Callable[[Any], Any] | None) -> None:
        if state is not None:
            self._states.append((value, state, state(value)))


def _globals_of(code: CodeType, namespace: dict[str, Any]) -> list[Any]:
    """Return what the global names in a function's code, and in the functions inside of it, stand for."""
    inner = [one for part in code.co_consts if isinstance(part, CodeType) for one in _globals_of(part, namespace)]
    return [namespace[name] for name in code.co_names if name in namespace] + inner


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _state_of(value: Any) -> Callable[[Any], Any] | None:
    """Return a function that tells the content of an object which code may change without being seen."""
    if isinstance(value, list | deque):
        return lambda one: _sample(in_sequence(one), len(one))
    if isinstance(value, ContextVar):
        return lambda one: [one.get(None)]
    if isinstance(value, CellType):
        return lambda one: [_content(one)]
    if isinstance(value, dict):
        return lambda one: _sample(itertools.chain.from_iterable(pairs_of(one)), 2 * len(one))
    if isinstance(value, set):
        return lambda one: _sample(set.__iter__(one), len(one))
    if isinstance(value, bytearray | array):
        return bytes
    if isinstance(value, memoryview):
        return None if value.readonly else bytes
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject or not value.flags.writeable else _array_content
    if isinstance(value, random.Random):
        return random.Random.getstate
    if isinstance(value, np.random.Generator):
        return lambda one: repr(one.bit_generator.state)
    if isinstance(value, io.StringIO | io.BytesIO):
        return lambda one: None if one.closed else (one.getvalue(), one.tell())
    if isinstance(value, GeneratorType):
        return lambda one: None if one.gi_frame is None else one.gi_frame.f_lasti
    if type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator):
        return _position
    return None


def _sample(items: Iterable[Any], count: int) -> list[Any]:
    """Return what a container holds; of a large one, the number of items (as a text that is one object) and some."""
    if count < _LARGE:
        return [*items]
    return [sys.intern(str(count)), *itertools.islice(items, 0, None, count // _SAMPLES | 1)]


def _array_content(array: Any) -> Any:
    """Return the bytes of an array, a checksum of a large one, or some elements of a huge one."""
    if array.nbytes < _LARGE:
        return array.tobytes()
    if array.nbytes < _HUGE:
        return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data)
    return array.flat[:: array.size // _SAMPLES].tobytes()


def _names(namespace: Any) -> list[Any]:
    """Return the names and values of a namespace, but for what Python itself keeps there."""
    items = [item for item in [*namespace.items()] if not (type(item[0]) is str and item[0].startswith("__"))]
    return [*itertools.chain.from_iterable(items)]


def _attributes_of(value: Any) -> list[Any]:
    """Return the attributes of an object or class, which code that is not converted may change."""
    attributes = vars(value) if isinstance(value, type) else RAW.get(value, "__dict__")
    return [] if attributes is MISSING else _names(attributes)


def _slots_of(kind: type) -> Callable[[Any], Any] | None:
    """Return a function that tells what is in the slots of a user's class; None if it has none."""
    if not is_users_class(kind):
        return None
    names = [*slots(kind)]
    return (lambda one: [RAW.get(one, name) for name in names]) if names else None


def _position(iterator: Any) -> Any:
    """Return how far one of Python's own iterators has come, if it tells."""
    if isinstance(iterator, itertools.count):
        numbers: Any = cast(Any, iterator).__reduce__()[1]
        return str([id(one) if type(one) is StagedNumber else one for one in numbers])
    hint = getattr(iterator, "__length_hint__", None)
    return None if hint is None else hint()


def _same(now: Any, before: Any) -> bool:
    """Whether a content is the same; lists hold what they held, each by identity."""
    if isinstance(now, list) and isinstance(before, list):
        first, second = cast("list[Any]", now), cast("list[Any]", before)
        return len(first) == len(second) and all(map(operator.is_, first, second))
    return now == before
