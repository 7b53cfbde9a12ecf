"""The bodies of branches and loops on tensors while they are traced, and checks that they change no outside state.

A body runs once while it is traced. So a change of a list, dict or object from outside the body would happen once,
however often the body runs in a call. The exception is a list that a loop over rows appends to: its values are stacked.
"""

from __future__ import annotations

import functools
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
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
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

from hybridflow.convert.cells import Cells
from hybridflow.convert.poison import UNSET
from hybridflow.convert.syntax import RUNTIME
from hybridflow.core.context import current
from hybridflow.core.errors import HybridflowError, MutationError, TraceError
from hybridflow.core.functions import LAYERS, is_own
from hybridflow.core.node import Where, format_where, user_place
from hybridflow.core.staged_number import StagedNumber, tried
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards import observe
from hybridflow.guards.access import MISSING, RAW
from hybridflow.guards.calls import CHANGES
from hybridflow.guards.contents import in_sequence, pairs_of
from hybridflow.guards.guards import PLAIN
from hybridflow.guards.needs import RESTARTS
from hybridflow.guards.parts import slots
from hybridflow.guards.users import OWN_LIBRARIES, is_hybridflows, is_users_class, is_users_file

_HINT = "Return the new value through a variable, or make the object inside."
_CONTAINERS = (list, dict, set, deque, bytearray)


class Region:
    """One body while it is traced.

    Attributes:
        known: the objects that existed before the body, by id.
        rows: whether it is the body of a loop over rows, which may append to lists.
        code: the code of a branch's function, which identifies the statement; None for a loop.
        names: the variables that it may set.
        appended: the values that a step appends, by the id of the list.
        seen: the ids of the lists that were read in the step.
        raised: what ``raise`` statements of converted code raised in it.
        outside: what existed before the body, and what was in it.
    """

    def __init__(self, cells: Cells, rows: bool, code: Any) -> None:
        self.rows = rows
        self.code = code
        self.names = frozenset(cells.names)
        self.appended: dict[int, tuple[list[Any], list[Any]]] = {}
        self.seen: set[int] = set()
        self.raised: list[BaseException] = []
        self.tracer = current().tracer
        self.outside = Outside(cells.all.values(), sys._getframe(1))
        self.known = self.outside.known

    def raises(self, error: BaseException) -> bool:
        """Whether a ``raise`` statement of the user raised an exception."""
        return any(error is one for one in self.raised)

    def require_unchanged(self) -> None:
        """Raise if the body changed what existed before it in a way that was not noticed at its line.

        Raises:
            MutationError: it did.
        """
        value = self.outside.changed()
        if value is not UNSET:
            raise _changed_in_body(value, "", user_place(3), _HINT)


LEFT_BODY = "__hybridflow_left_body__"
"""An attribute of exceptions that left the body of a branch or loop on tensors: the line where they did."""
_REGIONS: ContextVar[tuple[Region, ...]] = ContextVar("regions", default=())


@contextmanager
def region(cells: Cells, rows: bool = False, code: Any = None) -> Generator[Region, None, None]:
    """Trace a body that shares the variables of `cells`."""
    made = Region(cells, rows, code)
    token = _REGIONS.set((*_REGIONS.get(), made))
    try:
        yield made
        made.require_unchanged()
    except BaseException as error:
        place = format_where(user_place(3))
        if isinstance(error, Exception) and not made.raises(error) and _is_users(error):
            if LEFT_BODY not in error.__dict__:
                error.add_note(f"in a branch or loop at {place}, which is traced whether or not a call runs it")
            with tried():
                swallowed = _cannot_handle(type(error), place)
            cast(Any, current().tracer).refused(swallowed, error)
        error.__dict__.setdefault(LEFT_BODY, place)
        raise
    finally:
        _REGIONS.reset(token)


def _is_users(error: Exception) -> bool:
    """Whether an exception may reach the user's code, and is no message from hybridflow to itself."""
    return isinstance(error, HybridflowError) or not is_own(type(error).__module__)


def raised(error: BaseException) -> None:
    """Record that a ``raise`` statement raises an exception; not in functions that a body gives to `cond` or `scan`."""
    bodies = _REGIONS.get()
    if bodies and bodies[-1].tracer is current().tracer:
        bodies[-1].raised.append(error)


def changing_nothing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a body that raises if what existed before it has changed, as the body of a converted statement does."""

    @functools.wraps(function)
    def body(*args: Any) -> Any:
        with region(Cells(())):
            return function(*args)

    return body


@contextmanager
def apart() -> Generator[None, None, None]:
    """Run code that is no part of the bodies that are being traced: what it changes is as if changed before them."""
    bodies = _REGIONS.get()
    for one in bodies:
        one.require_unchanged()
    try:
        yield
    finally:
        for one in bodies:
            one.outside.renew()


@contextmanager
def trying(handles: bool) -> Generator[None, None, None]:
    """Run the body of a ``try`` or ``with``, whose other blocks run if a check in it fails, and may handle that."""
    tracer: Any = current().tracer
    checks = 0 if tracer is None else len(tracer.checks)
    try:
        yield
    except NameError as error:
        local = handled_name(error)
        if local is None:
            raise
        raise local from None
    finally:
        if tracer is not None and len(tracer.checks) > checks:
            observe.acts_on_errors(handles)


def frames_of_function(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame of converted code, and those around it that run the same function: blocks, and the function."""
    function = None if frame is None else (frame.f_code.co_filename, frame.f_code.co_qualname)
    while frame is not None:
        if (frame.f_code.co_filename, frame.f_code.co_qualname) == function:
            yield frame
        elif not is_hybridflows(frame.f_code):
            return
        frame = frame.f_back


def handled_name(error: NameError) -> UnboundLocalError | None:
    """Record a read of a name without a value, whose error is handled: in later calls the name may have a value.

    Returns:
        the error that Python raises if the name is a variable of the user's function, and only free in a block of it.
    """
    place, name = error.__traceback__, error.name
    if place is None or name is None or isinstance(error, UnboundLocalError):
        return None
    while place.tb_next is not None:
        place = place.tb_next
    frame: Any = place.tb_frame
    if name not in frame.f_code.co_freevars:
        observe.read_global(frame.f_globals, name, MISSING)
        return None
    runtime: Any = frame.f_locals.get(RUNTIME)
    if runtime is not None and name in runtime.cells:
        observe.read_free(runtime.cells[name], name, MISSING)
    if not any(name in one.f_code.co_cellvars for one in frames_of_function(frame)):
        return None
    text = f"cannot access local variable {name!r} where it is not associated with a value"
    return UnboundLocalError(text).with_traceback(error.__traceback__)


def require_certain(error: BaseException | None) -> None:
    """Raise if an exception that is being handled left a branch or loop body on tensors.

    Raises:
        TraceError: it did, and only some calls raise it. Errors of tracing itself are raised again too, since eager
            code would not raise them.
    """
    if isinstance(error, (TraceError, *RESTARTS)):
        raise error
    place = None if error is None else error.__dict__.get(LEFT_BODY)
    if place is not None:
        raise _cannot_handle(type(error), place)


def _cannot_handle(kind: type, place: str | None) -> TraceError:
    return TraceError(
        f"except: whether {kind.__name__} is raised at {place} depends on a tensor, so it cannot be handled",
        hint="Do in the branch itself what is to be done, or put the try inside of it."
    )


DEPTH: ContextVar[int] = ContextVar("depth", default=32)
"""The largest number of nested bodies of one statement; only recursion nests them."""


@contextmanager
def recursion_limit(depth: int) -> Generator[None, None, None]:
    """Trace with another limit of recursion on tensors."""
    token = DEPTH.set(depth)
    try:
        yield
    finally:
        DEPTH.reset(token)


def is_too_deep(code: Any) -> bool:
    """Whether recursion has reached its limit at a body."""
    return sum(one.code is code for one in _REGIONS.get()) >= DEPTH.get()


def is_set_by_loop(name: str) -> bool:
    """Whether a loop that is being traced may set a variable in another step."""
    return any(one.code is None and name in one.names for one in _REGIONS.get())


_remade: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()
"""For each trace, branch and loop body: the objects that were merged from several, by id."""


def note_remade(objects: Iterable[Any]) -> None:
    """Record objects that a branch or loop merged from the attributes of several.

    In some calls such an object stands for an older object that other code may hold, so it must not be changed.
    """
    tracer = current().tracer
    if tracer is not None:
        _remade.setdefault(tracer, {}).update({id(one): one for one in objects})


def _require_one(obj: Any, what: str) -> None:
    """Raise if an object stands for one of several: it must not be changed."""
    tracer: Any = current().tracer
    while tracer is not None:
        if id(obj) in _remade.get(tracer, ()):
            raise MutationError(f"{type(obj).__name__}{what}: which object is changed depends on a tensor, "
                                f"at {format_where(user_place(4))}",
                                got=f"a {type(obj).__name__} that a branch or loop on tensors chose",
                                hint="Make a new one, for example with dataclasses.replace or copy.copy.")
        tracer = tracer.outer


def is_older(obj: Any) -> bool:
    """Whether an object existed before the current body, or before a body around it."""
    return any(id(obj) in one.known for one in _REGIONS.get())


def changed(obj: Any, what: str) -> None:
    """Raise if an object must not be changed: it existed before the current body, or a body chose it from several.

    Raises:
        MutationError: it must not be changed.
    """
    if _remade:
        _require_one(obj, what)
    observe.changes(obj, what)
    if not is_older(obj):
        return
    hint = _HINT
    if type(obj) is list and what == ".append(...)":
        hint = "Append in a loop over a tensor's rows, use hf.TensorArray, or keep a tensor and its .at[i].set(value)."
    raise _changed_in_body(obj, what, user_place(3), hint)


def _changed_in_body(obj: Any, what: str, place: Where | None, hint: str) -> MutationError:
    return MutationError(f"{type(obj).__name__}{what}: changes Python state in a branch or loop body on tensors, "
                         f"at {format_where(place)}", got=f"a {type(obj).__name__} made outside of that body",
                         hint=hint)


def before_change(function: Any, args: tuple[Any, ...]) -> bool:
    """Check a call of a container's method in a body; return whether it was an append that is already done.

    Raises:
        MutationError: it changes a container from outside the body, or reads a list that a step appends to.
    """
    regions = _REGIONS.get()
    owner = getattr(function, "__self__", None)
    changes = isinstance(owner, _CONTAINERS) and getattr(function, "__name__", "") in CHANGES
    if not regions:
        if changes:
            observe.changes(owner, f".{function.__name__}(...)")
        return False
    if changes:
        if function.__name__ == "append" and type(owner) is list and len(args) == 1 and _collects(regions, owner):
            if id(owner) in regions[-1].seen:
                raise _read_too_early()
            regions[-1].appended.setdefault(id(owner), (owner, []))[1].append(args[0])
            return True
        changed(owner, f".{function.__name__}(...)")
    for one in (owner, *args):
        read(one)
    return False


def _collects(regions: tuple[Region, ...], owner: list[Any]) -> bool:
    """Whether appends to a list are collected: the list is from outside the current loop over rows."""
    return regions[-1].rows and id(owner) in regions[-1].known


def read(obj: Any) -> None:
    """Raise if a list is read in a loop whose steps append to it: the rows are not there yet.

    Raises:
        MutationError: a step of a current loop has appended to the list.
    """
    for one in _REGIONS.get():
        if id(obj) in one.appended:
            raise _read_too_early()
        if type(obj) is list and one.rows:
            one.seen.add(id(obj))


def read_whole(values: Iterable[Any]) -> None:
    """Raise, as `read` does, for lists in whatever holds them: code whose reads are not seen gets these values.

    Raises:
        MutationError: a step of a current loop has appended to one of the lists.
    """
    if any([one.rows for one in _REGIONS.get()]):
        for one in Outside.of(values).known.values():
            read(one)


def _read_too_early() -> MutationError:
    """Return the error for a list whose rows exist only after the loop."""
    return MutationError(f"list: read in the loop over rows that appends to it, at {format_where(user_place(4))}",
                         hint="Keep what the next step needs in a variable of its own.")


def append_rows(lists: Iterable[list[Any]], values: Iterable[Any], length: int, call: Callable[..., Any]) -> None:
    """Append the rows that a loop collected.

    Args:
        lists: the lists.
        values: for each list, the stacked `Appended` values of its steps.
        length: the number of steps.
        call: calls the append in the body around the loop.
    """
    for one, stacked in zip(lists, values, strict=True):
        for index in range(length):
            for value in stacked:
                call(one.append, value.row(index))


# -- what existed before a body ---------------------------------------------------------------------------------------
# What existed before the body of a branch or loop on tensors: such objects must not change while the body is traced.
# They are found from the variables of the functions that are running, whatever leads to them: attributes, slots,
# items, keys, closures, bound methods, views, iterators. What code changes without a word to us (C functions, NumPy,
# iterators) is compared after the body.

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
