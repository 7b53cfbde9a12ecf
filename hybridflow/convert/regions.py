"""The bodies of branches and loops on tensors while they are traced, and checks that they change no outside state.

A body runs once while it is traced. So a change of a list, dict or object from outside the body would happen once,
however often the body runs in a call. The exception is a list that a loop over rows appends to: its values are stacked.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, cast

from hybridflow.convert.cells import Cells
from hybridflow.convert.outside import Outside
from hybridflow.convert.poison import UNSET
from hybridflow.convert.syntax import RUNTIME
from hybridflow.core.context import current
from hybridflow.core.errors import HybridflowError, MutationError, TraceError
from hybridflow.core.functions import is_own
from hybridflow.core.node import Where, format_where, user_place
from hybridflow.core.staged_number import tried
from hybridflow.guards import observe
from hybridflow.guards.access import MISSING
from hybridflow.guards.calls import CHANGES
from hybridflow.guards.needs import RESTARTS
from hybridflow.guards.users import is_hybridflows

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
