"""`Runtime`: the only object that converted code refers to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert import builtin, protocols, regions, staged_reads, texts
from hybridflow.convert import callee as callees
from hybridflow.convert.branches import ENDLESS, branch_on_tensor, endless, value_on_tensor
from hybridflow.convert.cells import Cells
from hybridflow.convert.chains import Chain, Through
from hybridflow.convert.filtered import Filtered, keeps, kept
from hybridflow.convert.loops import LoopNames, for_on_range, for_on_rows, while_on_tensor, while_with_effects
from hybridflow.convert.poison import Late, Poison
from hybridflow.convert.rows import Rows, Stream, TensorRange, note_stopped, require_known, rows_of
from hybridflow.convert.staged import staged
from hybridflow.convert.syntax import RUNTIME
from hybridflow.convert.values import is_staged, is_tensor, negated, truth
from hybridflow.core.context import current
from hybridflow.core.errors import CheckError, TraceError
from hybridflow.core.staged_number import BOOL, StagedNumber, needed
from hybridflow.core.structures import parts_of
from hybridflow.core.tensor import raise_called
from hybridflow.core.tracebacks import trim_on_the_way
from hybridflow.core.traced_text import placeholder_of
from hybridflow.guards import calls, observe
from hybridflow.guards.access import MISSING
from hybridflow.guards.users import is_users_class
from hybridflow.ir.builder import add_check
from hybridflow.ir.effects import has_effect

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    **protocols.COMPARISONS, "Is": staged_reads.same, "IsNot": lambda a, b: negated(staged_reads.same(a, b)),
    "In": builtin.contains, "NotIn": lambda a, b: negated(builtin.contains(a, b)),
}


def _all_locals(frame: FrameType) -> dict[str, Any]:
    """Return the variables of the user's function whose frame, or that of a block of it, this is."""
    shared, found = set(frame.f_code.co_freevars), dict[str, Any]()
    for one in regions.frames_of_function(frame):
        found = {**one.f_locals, **found}
        if shared.intersection(one.f_code.co_cellvars):
            return found
    return frame.f_locals


def is_own_variable(function: FunctionType, name: str) -> bool:
    """Whether a free variable of a function is one of the converted function that the trace made it in."""
    held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return RUNTIME in held and name not in held[RUNTIME].cell_contents.cells


class Runtime:
    """The operations that a converted function calls in place of Python's own.

    A value to store is the first parameter, since Python evaluates it before its target.
    """

    __slots__ = ("cells", "namespace")

    def __init__(self, namespace: dict[str, Any], cells: dict[str, CellType]) -> None:
        self.namespace = namespace
        self.cells = cells

    # -- reads ------------------------------------------------------------------------------------------------

    def read_global(self, name: str, value: Any) -> Any:
        """Read a global or builtin name."""
        return observe.read_global(self.namespace, name, value)

    def read_free(self, name: str, value: Any) -> Any:
        """Read a name of an enclosing function."""
        return observe.read_free(self.cells[name], name, value)

    def load_global(self, name: str, value: Any) -> Any:
        """Read a global name only to change its value."""
        return observe.load_global(self.namespace, name, value)

    def load_free(self, name: str, value: Any) -> Any:
        """Read a name of an enclosing function only to change its value."""
        return observe.load_free(self.cells[name], name, value)

    def load_attr(self, obj: Any, name: str) -> Any:
        """Read an attribute only to change its value; a ``__setattr__`` of the user's may do more with it."""
        value = MISSING if protocols.method_of(obj, "__setattr__") is not None else observe.load_attr(obj, name)
        return callees.read_attribute(obj, name) if value is MISSING else value

    def read_attr(self, obj: Any, name: str) -> Any:
        """Read an attribute; a property's getter is converted."""
        return callees.read_attribute(obj, name)

    def read_item(self, obj: Any, key: Any) -> Any:
        """Read an item."""
        return callees.read_item(obj, key)

    slice = slice

    def iterate(self, obj: Any) -> Any:
        """Return what a loop iterates over."""
        regions.read(obj)
        require_known(obj)
        return observe.iterate(protocols.items_of(obj))

    manager = staticmethod(protocols.manager)
    filtered = Filtered

    def keeps(self, test: Any) -> Any:
        """Return the truth of a comprehension's filter, which must not be a tensor."""
        return keeps(protocols.truth_of(test))

    kept = staticmethod(kept)

    def callee(self, function: Any) -> Any:
        """Return what to call in place of a function."""
        return callees.callee(function)

    def size_callee(self, function: Any) -> Any:
        """Return what to call in place of ``x.size``."""
        return callees.callee(function if callable(function) else raise_called())

    made_class = staticmethod(observe.made_class)

    def whole(self, value: Any) -> Any:
        """Return a value that Python itself reads; all of it counts as read."""
        observe.whole(value)
        return value

    def matched(self, value: Any, flags: bool, *classes: Callable[[], Any]) -> Any:
        """Return the subject of a ``match``.

        Args:
            value: the subject.
            flags: whether Python itself compares with True or False, by identity.
            *classes: give the classes that the patterns name.
        """
        for one in parts_of(value) if flags else ():
            if type(one) is StagedNumber:
                needed(one, "match with True or False in a pattern of several parts")
        for one in classes:
            with suppress(NameError, AttributeError):  # the pattern itself raises it, if it is tried
                kind = one()
                if is_users_class(type(kind)):
                    observe.special(kind, "__instancecheck__")
        return self.whole(value)

    def other_bool(self, subject: Any, value: bool) -> Any:
        """Return ``subject is value`` where the other bool was excluded: of a bool's two values that leaves one."""
        is_bool = type(subject) is StagedNumber and subject.kinds == BOOL
        return is_bool or staged_reads.same(subject, value)

    told = staticmethod(texts.told)
    formatted = staticmethod(texts.formatted)
    joined = staticmethod(texts.joined)

    def without_temporaries(self, names: Any) -> Any:
        """Return the result of ``locals()`` or ``dir()`` in the user's function, without names of the conversion."""
        found = {name: value for name, value in _all_locals(sys._getframe(1)).items() if not name.startswith(".")}
        return sorted(found) if isinstance(names, list) else found

    def defined(self, value: Any, name: str) -> Any:
        """Return the value of a variable that only branches or loops set; raise an error if it has no value."""
        kind = type(value)
        if kind is Poison:
            value.fail()
        if kind is Late:
            add_check(value.ran, TraceError, value.text)
            return value.value
        return value

    # -- control flow -------------------------------------------------------------------------------------------

    def if_(
        self, test: Any, true: Callable[[], Any], false: Callable[[], Any] | None, bound: Any, live: Any
    ) -> None:
        """Run an ``if``."""
        test = protocols.truth_of(test)
        if is_staged(test):
            branch_on_tensor(test, true, false, Cells(bound, true, false), live)
        elif test:
            true()
        elif false is not None:
            false()

    def while_(
        self, test: Callable[[], Any], step: Callable[[], Any], bound: Any, head: Any, live: Any, test_binds: bool
    ) -> None:
        """Run a ``while``."""
        names = LoopNames(bound, head, live)
        while True:
            before = _Effects()
            goes = protocols.truth_of(test())
            if is_staged(goes):
                if test_binds or before.grown():
                    while_with_effects(goes, test, step, names)
                else:
                    while_on_tensor(test, step, names)
                return
            if not goes:
                return
            step()

    def for_(
        self, iterable: Any, step: Callable[[Any], Any], test: Callable[[], Any] | None, bound: Any, head: Any,
        live: Any,
    ) -> None:
        """Run a ``for``."""
        regions.read(iterable)
        given, iterable = iterable, observe.iterate(protocols.items_of(iterable))
        names = LoopNames(bound, head, live)
        if not isinstance(iterable, Stream):
            require_known(iterable)
        if isinstance(iterable, Chain) and (iterable.filters or type(iterable.source) is TensorRange):
            step = Through(step, iterable.stages, bound, tuple({*head, *live}))
            chain, iterable = iterable, iterable.source
            if type(iterable) is TensorRange:
                chain.source = iter(())
                if test is not None:
                    note_stopped(chain)
        rows = rows_of(iterable) if is_tensor(iterable) else None
        if isinstance(iterable, Stream):
            rows = iterable.take(test is not None)
        if rows is not None:
            last = for_on_rows(rows, step, test, names)
            if isinstance(iterable, Stream) and iterable.place is not None:
                iterable.left = Rows(rows.tensors, rows.build, last)
        elif type(iterable) is TensorRange:
            for_on_range(iterable, step, test, names)
        elif test is None:
            for item in iterable:
                step(item)
        else:
            if self._for_python(iterable, step, test, names):
                note_stopped(given)

    def _for_python(
        self, iterable: Any, step: Callable[[Any], Any], test: Callable[[], Any], names: LoopNames
    ) -> bool:
        """Iterate over Python values until they end or `test`, whose result may become a tensor, is false.

        Returns:
            Whether a tensor decides how many steps the loop makes.
        """
        goes: Any = True
        kept = tuple({*names.head, *names.live})
        for count, item in enumerate(iterable):
            if not is_staged(goes):
                step(item)
            else:
                branch_on_tensor(goes, lambda item=item: step(item), None, Cells(names.bound, step, test), kept)
                if count > ENDLESS and not hasattr(iterable, "__len__"):
                    raise endless("for")
            goes = protocols.truth_of(test())
            if not is_staged(goes) and not goes:
                return False
        return is_staged(goes)

    def none_of(self, *flags: Any) -> Any:
        """Whether no flag is set."""
        any_set: Any = None
        for flag in map(protocols.truth_of, flags):
            if is_staged(flag):
                flag = truth(flag)
                any_set = flag if any_set is None else PUBLIC.logical_or(any_set, flag)
            elif flag:
                return False
        return True if any_set is None else PUBLIC.logical_not(any_set)

    def and_(self, first: Any, second: Callable[[], Any], simple: bool) -> Any:
        """Return ``first and second``; a simple second operand may be computed unconditionally."""
        if not is_staged(first):
            holds = protocols.truth_of(first)
            if is_staged(holds):
                return value_on_tensor(holds, second, lambda: first)
            return second() if holds else first
        if simple and _is_flag(first):
            value = second()
            if _is_flag(value):
                return _flags(PUBLIC.logical_and, first, value)
            return value_on_tensor(first, lambda: value, lambda: first)
        return value_on_tensor(first, second, lambda: first)

    def or_(self, first: Any, second: Callable[[], Any], simple: bool) -> Any:
        """Return ``first or second``."""
        if not is_staged(first):
            holds = protocols.truth_of(first)
            if is_staged(holds):
                return value_on_tensor(holds, lambda: first, second)
            return first if holds else second()
        if simple and _is_flag(first):
            value = second()
            if _is_flag(value):
                return _flags(PUBLIC.logical_or, first, value)
            return value_on_tensor(first, lambda: first, lambda: value)
        return value_on_tensor(first, lambda: first, second)

    def tested(self, value: Any) -> Any:
        """Return the truth of an operand in a condition."""
        value = protocols.truth_of(value)
        return truth(value) if is_staged(value) else bool(value)

    def not_(self, value: Any) -> Any:
        """Return ``not value``."""
        return negated(protocols.truth_of(value))

    def choose(self, test: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
        """Return ``true if test else false``."""
        test = protocols.truth_of(test)
        if is_staged(test):
            return value_on_tensor(test, true, false)
        return true() if test else false()

    def compare(self, names: tuple[str, ...], left: Any, right: Any, *rest: Callable[[], Any]) -> Any:
        """Return a chained comparison; each value is computed at most once, and none after the result is known."""
        answer = _COMPARISONS[names[0]](left, right)
        if not rest:
            return answer
        return self.and_(answer, lambda: self.compare(names[1:], right, rest[0](), *rest[1:]), False)

    def holds(self, test: Any, text: Callable[[], Any]) -> Any:
        """Return the condition of an ``assert``; a tensor is checked by each call."""
        test = protocols.truth_of(test)
        if not is_staged(test):
            return test
        said = text()
        add_check(truth(test), CheckError, str(placeholder_of(said)))
        return True

    trying = staticmethod(regions.trying)
    acts_on_errors = staticmethod(observe.acts_on_errors)
    augment = staticmethod(callees.augment)

    def seen(self) -> BaseException | None:
        """Begin a block that may look at the exception on its way, and at its traceback; return the exception."""
        error = sys.exc_info()[1]
        trim_on_the_way(error)
        return error

    def handled(self) -> None:
        """Begin the block of an ``except``."""
        error = self.seen()
        if type(error) is UnboundLocalError and error.__suppress_context__:  # put in the place of a NameError
            error.__context__, error.__suppress_context__ = None, False
        regions.require_certain(error)

    def handled_name(self) -> None:
        """Begin the block of an ``except`` of a generator."""
        error = self.seen()
        if isinstance(error, NameError):
            regions.handled_name(error)

    def caught(self) -> BaseException | None:
        """Return the exception that is being handled."""
        return sys.exc_info()[1]

    def hashed(self, key: Any) -> Any:
        """Return an element of a set or a key of a dict, which Python hashes and compares."""
        observe.hashed(key)
        return key

    def all_hashed(self, keys: Any) -> Any:
        """Return the elements that a set takes from an iterable."""
        return map(self.hashed, keys)

    def spread(self, mapping: Any) -> Any:
        """Return the operand of ``**``."""
        observe.iterate(mapping)
        if not isinstance(mapping, dict):
            observe.whole(mapping)
        return mapping

    def every_global(self, names: Any) -> Any:
        """Return the result of ``globals()``."""
        return observe.every_global(names)

    def evaluated(self, source: Any, *namespaces: Any) -> tuple[Any, ...]:
        """Return the arguments of ``eval`` or ``exec``, which is about to run the code unconverted."""
        calls.before_evaluation(source, namespaces)
        observe.whole(*[one for one in namespaces if one is not self.namespace])
        with suppress(SyntaxError, TypeError, ValueError):  # the call itself raises it
            code = source if isinstance(source, CodeType) else compile(source.lstrip(), "", "exec")
            observe.runs_as_it_is(FunctionType(code, self.namespace), (), {})
        return (source, *namespaces)

    def importing(self, name: str, module: str) -> None:
        """Record that an import statement may fail."""
        observe.importing(name, module)

    def imported(self, name: str, value: Any, module: str) -> Any:
        """Return what an import statement in a function imported."""
        return observe.imported(name, value, module)

    def raised(self, error: Any) -> Any:
        """Return what a ``raise`` statement raises. In a branch on a tensor, only the calls that take it fail."""
        if isinstance(error, type) and issubclass(error, BaseException):
            error = error()
        if isinstance(error, BaseException):
            regions.raised(error)
        return error

    # -- writes -----------------------------------------------------------------------------------------------

    def load_item(self, obj: Any, key: Any) -> Any:
        """Read an item only to change its value."""
        if not observe.is_loaded_by(obj, key):
            return callees.read_item(obj, key)
        regions.read(obj)
        return observe.load_item(obj, key)

    def write_attr(self, value: Any, obj: Any, name: str, augmented: bool = False) -> None:
        """Store an attribute; a property's setter is converted."""
        callees.write_attribute(obj, name, value, augmented=augmented)

    def write_item(self, value: Any, obj: Any, key: Any, augmented: bool = False) -> None:
        """Store an item."""
        callees.write_item(obj, key, value, augmented=augmented)

    def delete_attr(self, obj: Any, name: str) -> None:
        """Delete an attribute; a property's deleter is converted."""
        callees.delete_attribute(obj, name)

    delete_item = staticmethod(callees.delete_item)

    def write_global(self, name: str, value: Any, augmented: bool = False) -> Any:
        """Return the value to store to a global name."""
        return observe.write_global(self.namespace, name, value, augmented=augmented)

    def delete_global(self, name: str, _: Any) -> None:
        """Record that a global name is deleted."""
        observe.delete_global(self.namespace, name)

    def write_free(self, name: str, value: Any, augmented: bool = False) -> Any:
        """Return the value to store to a name of an enclosing function."""
        return observe.write_free(self.cells[name], name, value, augmented=augmented)

    def delete_free(self, name: str, _: Any) -> None:
        """Record that a name of an enclosing function is deleted."""
        observe.delete_free(self.cells[name], name)


for _kind, _name in protocols.METHODS.items():
    setattr(Runtime, _name, staticmethod(protocols.OPERATORS[_kind]))


class _Effects:
    """The number of effects, checks and assignments in the trace so far."""

    def __init__(self) -> None:
        tracer: Any = current().tracer
        self.tracer = tracer
        self.nodes = len(tracer.nodes) if tracer is not None else 0
        self.others = self._others()

    def _others(self) -> int:
        if self.tracer is None:
            return 0
        return len(self.tracer.checks) + sum(len(state.assignments) for state in self.tracer.variables.values())

    def grown(self) -> bool:
        """Whether there are more of them now."""
        return self._others() > self.others or any(map(has_effect, self.tracer.nodes[self.nodes :]))


def _is_flag(value: Any) -> bool:
    """Whether a value is a bool tensor of shape (), or a bool that a tensor decides."""
    if type(value) is StagedNumber:
        return value.kinds == BOOL
    return is_tensor(value) and value.shape == () and value.dtype == bool


def _flags(function: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    """Return `function` (``and`` or ``or``) of two flags."""
    flag = function(truth(first), truth(second))
    numbers = type(first) is StagedNumber and type(second) is StagedNumber
    return staged(BOOL, flag, 1) if numbers else flag
