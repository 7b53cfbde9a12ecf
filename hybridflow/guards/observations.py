"""`Observations`: what one trace has read outside its arguments, and what it has changed there."""

from __future__ import annotations

import gc
import traceback
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, cast

import jax
import numpy as np

from hybridflow.core.attached import attached
from hybridflow.core.context import current
from hybridflow.core.dims import NeedsSizes
from hybridflow.core.errors import MutationError
from hybridflow.core.held import attributes_of, is_by_fields
from hybridflow.core.node import Where, format_where, user_place
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import TrainableFlags, Variable
from hybridflow.guards.access import (
    ATTRIBUTE,
    IN_INSTANCE,
    ITSELF,
    LENGTH,
    MISSING,
    RAW,
    TYPE,
    VALUE,
    Held,
    shared_place,
)
from hybridflow.guards.choices import Choices
from hybridflow.guards.contents import keys_of, values_of
from hybridflow.guards.effects import Augmented, Change, Effects, is_constant
from hybridflow.guards.guards import CHANGING, CONTAINERS, ITEM, PLAIN, Access, Guards, Origin, weak
from hybridflow.guards.identities import Identities, Relation, Source, Way, at_way, mutable_in, order_at, path_of
from hybridflow.guards.journal import Journal, Spot, Spots, new_journal
from hybridflow.guards.kinds import is_leaf, is_one_of_several, is_structure
from hybridflow.guards.moving import RANDOM, is_open, moving, warn_once
from hybridflow.guards.order import REBUILT
from hybridflow.guards.outside_numbers import OutsideNumbers
from hybridflow.guards.parts import WRAPPERS, items_of, parts_of
from hybridflow.guards.questions import ANSWER, CONTEXTS, INSPECTING, LRU_CACHE, OF_ATTRIBUTES, Question, question_of
from hybridflow.guards.shown import shown
from hybridflow.guards.storable import (
    NeedsGiven,
    NeedsPython,
    is_traced,
    new_inside,
    refuse_nested,
    require_none_inside,
    require_numbers,
    require_storable,
)
from hybridflow.ir.checks import Check
from hybridflow.ir.variables import ArgumentVariable

_LIBRARIES = object()
"""Stands for the hidden state of libraries; it holds the answers to questions."""


class _Changes(Journal):
    """The journal of all that a trace may have changed.

    Args:
        checks: the checks of the trace so far.

    Attributes:
        after_check: whether any change comes after a check.
    """

    def __init__(self, checks: Sequence[Check]) -> None:
        super().__init__()
        self._checks = checks
        self.after_check = False

    def note(self, spot: Spot) -> None:
        """Save a spot that is about to be changed."""
        self.after_check = self.after_check or bool(self._checks)
        super().note(spot)


class Observations:
    """What one trace has read and changed outside itself.

    Args:
        label: the function's name, for messages.
        numbers: the numbers outside the arguments that may be inputs.
        checks: the checks of the trace so far.
    """

    def __init__(self, label: str, numbers: OutsideNumbers, checks: Sequence[Check]) -> None:
        self.label = label
        self._checks = checks
        self.asks_trainable = False
        self.counts_trainable: dict[int, Variable] = {}
        """Variables whose trainable flag the trace depends on, by id.

        With `asks_trainable`, the trace depends on the flags of all its own Variables too.
        """
        self.effects: list[str] = []
        self._outside: dict[int, tuple[Any, Origin]] = {}
        self._inputs: dict[int, tuple[Any, str, tuple[Any, ...]]] = {}
        self._arguments: dict[str, Any] = {}
        self._given: dict[int, tuple[Any, list[Way]]] = {}
        self._in_arguments: dict[int, str] = {}
        self._relations: dict[Relation, None] = {}
        self.identities: Identities | None = None
        """Which of a call's arguments must be the same object; set when the trace ends, None if it does not matter."""
        self.orders: set[tuple[Any, ...]] = set()
        """The dicts among the arguments whose order was read, each as the argument's name and the keys on the way."""
        self._also: dict[int, dict[Origin, None]] = {}  # further origins of objects outside
        self._origins: dict[tuple[int, Access, Any], Origin] = {}
        self._keys: list[Any] = []  # keeps alive the objects whose ids are keys here
        self._roots: dict[int, Origin] = {}
        self._tensors: dict[int, list[Origin]] = {}
        self._made: dict[int, Callable[[], Any]] = {}
        self._doubtful: dict[int, Origin] = {}
        self._whole: dict[int, Any] = {}
        self.looked_up: set[int] = set()  # the containers from outside whose keys were compared with others
        self._frames: set[tuple[Any, ...]] = set()
        self.functions: dict[int, list[weakref.ref[types.FunctionType]]] = {}
        """The functions of code that runs unconverted, by the code's id, as they were last looked for."""
        self.converts = True
        """Whether the traced function is converted; it is not with ``autograph=False``."""
        self.stand_ins: Sequence[ArgumentVariable] = ()
        """What stands for the Variables among the arguments, until the trace needs to know which they are."""
        self.may_close = False
        """Whether the trace has open sizes and may restart without them."""
        self._holders: dict[int, tuple[Any, str | None]] = {}  # what code that is not converted may have changed
        self.streams: set[int] = set()  # those that objects of libraries write to, such as handlers of logs
        self._unwatched: dict[str, Where | None] = {}
        self.again: str | None = None
        """Why the trace can serve only its own call; None if it can serve others."""
        self._changed: set[int] = set()
        self._kept_numbers: dict[int, tuple[Any, list[TracedNumber]]] = {}
        """The containers from outside that keep numbers as they are, with what each call computes for them."""
        self._shared: dict[tuple[int, Any], tuple[Any, Any]] = {}
        """What reads of attributes and names that the trace has written gave before, in classes and modules.

        The second value is what the class had of its own.
        """
        self.choices = Choices(self.is_outside)
        self.runs_unseen = False
        """Whether code of the user's that is not converted has run."""
        self.acts_on_errors = False
        """Whether more than an error comes of a check that fails.

        ``except``, ``finally`` or ``__exit__`` run; or eager code in the trace has assigned a Variable, or code has
        stored objects that it has made, and may have changed them after the check.
        """
        self.handles_errors = False
        """Whether a check stands in a ``try`` with an ``except``."""
        self.moved = False
        """Whether the trace has done what cannot be undone: checks are then decided while it goes on."""
        self.stored_unseen = Spots()
        """The names that code which is not converted stores."""
        self.before = _Changes(checks)
        """All that the trace may have changed, with what libraries may write to, as it was: for a restart."""
        self.journal = new_journal(self.before)
        self.repeated = Effects()
        self.augmented: Augmented | None = None
        self.numbers = numbers
        numbers.note = self.journal.content
        self._contexts = {id(read): read() for read in CONTEXTS}

    # -- what is outside ----------------------------------------------------------------------------------------

    def root(self, holder: Any, label: str, *, lasting: bool = False) -> Origin:
        """Return the origin of a namespace, a cell or an object that calls pass in."""
        origin = self._roots.get(id(holder))
        if origin is None:
            origin = self._roots[id(holder)] = Origin.root(holder, label, lasting=lasting)
            self._keys.append(holder)
        return origin

    def object(self, value: Any, label: str, *, lasting: bool = False) -> None:
        """Register an object that the call passes in (``self``, an argument) as one from outside the trace."""
        if is_leaf(value) or id(value) in self._outside or isinstance(value, types.ModuleType):
            return
        root = self.root(value, label, lasting=lasting)
        if isinstance(value, CONTAINERS):  # JAX does not flatten it (such as a deque): guard its content
            self._read(root, ITSELF, None, value)
        else:
            self._register(value, root)

    def function(self, function: Callable[..., Any]) -> None:
        """Guard everything that a function may read if it is called without conversion."""
        attached("whole")(self, function)

    @property
    def size(self) -> int:
        """The number of origins that were read."""
        return len(self._origins)

    def origin_or_root(self, obj: Any) -> Origin:
        """Return the origin where an object was read; make the object a root if there is none."""
        return self.origin_of(obj) or self.root(obj, getattr(obj, "__name__", type(obj).__name__))

    def made_here(self, obj: Any) -> None:
        """Record that the trace has just created an object."""
        self._made[id(obj)] = weak(obj)  # weak: an object that the code drops must be freed, as in eager mode

    def is_made_here(self, obj: Any) -> bool:
        """Whether the trace created an object."""
        made = self._made.get(id(obj))
        return made is not None and made() is obj

    def doubtful(self, obj: Any) -> Origin | None:
        """Return an origin for an object that the trace may have created itself; it is dropped if the object is freed.

        Return None for objects that cannot be referenced weakly: whether they are gone cannot be told.
        """
        origin = self._doubtful.get(id(obj))
        if origin is None and not is_leaf(obj) and not is_open(obj):  # a stream closes when the code drops it
            try:
                weakref.ref(obj)
            except TypeError:
                return None
            origin = self._doubtful[id(obj)] = self.root(obj, type(obj).__name__)
        return origin

    def was_whole(self, value: Any) -> bool:
        """Whether everything in a value is recorded as read already; if it is from outside, mark it so."""
        if id(value) in self._whole:
            return True
        if self.origin_of(value) is not None or isinstance(value, type | types.FunctionType):
            self._whole[id(value)] = value
        return False

    def not_again(self, why: str, *, moves: bool = True) -> None:
        """Let the trace serve only its own call, since what it reads cannot be watched, and warn once.

        Args:
            why: what it reads.
            moves: whether the read cannot be undone, as with `next`: the trace must not restart after it.

        Raises:
            NeedsNumber, NeedsIdentity, NeedsSizes: the trace might have to restart later, so it does so now.
            NeedsPython: a check so far fails in this call.
        """
        if moves:
            self.settle()
            if not self.moved and (error := cast(Any, current().tracer).failure_now()) is not None:
                raise NeedsPython from error
            self.moved = True
        self.again = self.again or why
        self._unwatched[why] = user_place(3)

    def warn(self) -> None:
        """Warn of what cannot be watched: after the user's code, which may catch the warnings of its own."""
        for why, where in self._unwatched.items():
            warn_once(self.label, why, where)

    def settle(self) -> None:
        """Make the trace restart now if it may have to later: what comes next cannot be undone.

        Raises:
            NeedsNumber, NeedsIdentity, NeedsSizes: it may.
        """
        self.numbers.only_numbers()
        for one in self.stand_ins:
            one.needed()
        if self.may_close:
            raise NeedsSizes

    def release(self, error: BaseException) -> None:
        """Release the objects that a dropped trace made, also in the frames of its error: their end is undone too."""
        traceback.clear_frames(error.__traceback__)
        for kept in (self._keys, self._frames, self._made):
            kept.clear()

    def forget(self) -> None:
        """Release the objects of a trace that has ended."""
        for kept in (
            self._outside, self._inputs, self._made, self._doubtful, self._whole, self._roots, self._given,
            self._in_arguments, self._relations, self._also, self.counts_trainable, self._kept_numbers,
        ):
            kept.clear()
        self._arguments = {}  # not cleared: the next try gets the same ones
        self._keys.clear()
        self.choices.forget()

    def arguments(self, seen: dict[str, Any], given: dict[str, Any]) -> None:
        """Record the arguments as the trace sees them (`seen`) and as the call passed them (`given`)."""
        self._arguments = given
        self._in_arguments = mutable_in(given)
        for name, value in seen.items():
            self.argument(value, name, (name,))
            self._give(value, (name,))

    def _give(self, value: Any, way: Way) -> None:
        """Record which part of the call's arguments each object that the trace sees stands for."""
        if type(value) in PLAIN:
            return
        _, ways = self._given.setdefault(id(value), (value, []))
        ways.append(way)
        if len(ways) > 1:
            return
        if is_structure(value):
            for key, item in items_of(value):
                self._give(item, (*way, key))
        elif is_by_fields(value) and type(at_way(self._arguments, way)) is type(value):
            for name, part in attributes_of(value).items():
                self._give(part, (*way, name))

    def stands_for(self, copy: Any, original: Any) -> None:
        """Record reads from a copy, which the trace has created, as reads from the original."""
        origin = self.origin_of(original)
        if origin is not None:
            self._outside[id(copy)] = (copy, origin)
        else:
            self.made_here(copy)

    def argument(self, value: Any, label: str, way: tuple[Any, ...], around: tuple[Any, ...] = ()) -> None:
        """Register the containers in an argument: the trace must not change them.

        Args:
            value: the argument, or a part of it.
            label: what it is, for messages.
            way: the path to it.
            around: the dataclasses that it is part of.
        """
        if is_structure(value) and id(value) not in self._inputs:
            self._inputs[id(value)] = (value, label, way)
            for key, item in items_of(value):
                self.argument(item, f"{label}[{shown(key)}]", (*way, key), around)
        elif is_by_fields(value) and not any([value is one for one in around]):
            for name, part in attributes_of(value).items():
                self.argument(part, f"{label}.{name}", (*way, name), (*around, value))

    def origin_of(self, obj: Any) -> Origin | None:
        """Return the origin where an object was read; None if the trace created it."""
        outside = self._outside.get(id(obj))
        return None if outside is None or outside[0] is not obj else outside[1]

    def is_outside(self, obj: Any) -> bool:
        """Whether an object existed before the trace: it was read from outside or is an argument."""
        return id(obj) in self._outside or id(obj) in self._inputs

    # -- reads ------------------------------------------------------------------------------------------------

    def read(self, parent: Origin, access: Access, name: Any, value: Any) -> Any:
        """Record a value that the trace read, and return what the trace sees in its stead."""
        if current().tracer is None:  # eager code in a trace, which knows no stand-ins
            self.look(parent, access, name, value)
            return value
        origin = self._read(parent, access, name, value)
        if origin is None:
            return value
        if type(value) is float or type(value) is int:
            return self.numbers.read(origin, value)
        seen = self.numbers.read_container(origin, value, self._inside)
        if seen is not value and id(seen) not in self._outside:
            self._outside.update({id(copy): (copy, at) for copy, at in self.numbers.copies()})
        return seen

    def look(self, parent: Origin, access: Access, name: Any, value: Any) -> None:
        """Record a value that the trace receives directly, so that no stand-in can replace it."""
        origin = self._read(parent, access, name, value)
        if origin is not None:
            self.numbers.look(origin, value)

    def answered(self, question: Question, value: Any) -> Any:
        """Record the result of a function that only reads; the function is called again before each call."""
        if self.effects and type(question.function) is LRU_CACHE:
            self.not_again(f"{question}, which is asked after the call has changed what it may read", moves=False)
            return value
        try:
            hash(question)
        except TypeError:
            self.not_again(f"{question}, whose arguments may change")
        else:
            before = self._contexts.get(id(question.function), value)
            self.look(self.root(_LIBRARIES, "libraries", lasting=True), ANSWER, question, before)
        return value

    def ask(self, function: Callable[[], Any]) -> None:
        """Record the result of a function without arguments that only reads."""
        self.answered(Question(function, (), {}), function())

    def _inside(self, container: Any, key: Any) -> Origin | None:
        """Return the origin of a container inside a container."""
        return self.origin_of(container[key])

    def _read(self, parent: Origin, access: Access, name: Any, value: Any) -> Origin | None:
        if is_traced(value):
            return None
        try:
            key = (id(parent), access, name)
            origin = self._origins.get(key)
        except TypeError:  # the key cannot be hashed, for example an index array of NumPy
            return None
        if origin is None:
            written = self._written(parent, access, name) if self._shared else None
            origin = self._add(parent, access, name, value if written is None else written[0], guarded=True)
            origin.written = written is not None
            self._register(value, origin)
            return origin
        self.guard(origin, value)
        if id(value) in self._outside:  # else the call itself has put it there
            self._register(value, origin)
        return origin

    def _written(self, parent: Origin, access: Access, name: Any) -> tuple[Any] | None:
        """Return what a read gave before the trace wrote to the class or module where its value lies; else None."""
        holder = parent.now()
        place = holder if access is IN_INSTANCE else shared_place(holder, name)
        found = self._shared.get((id(place), name))
        return None if found is None else (found[access is IN_INSTANCE],)

    def guard(self, origin: Origin, value: Any) -> None:
        """Make the trace depend on the value at an origin; until now it may only have been loaded or written."""
        if not origin.guarded:
            origin.guarded = True  # if it was written before this read, the guard is on the value before the write
            self._register_inside(value, origin)

    def load(self, parent: Origin, access: Access, name: Any, value: Any) -> Any:
        """Record a number or container that is loaded only to be changed, and return what the trace sees of it.

        Only its type counts, if it is no input.
        """
        origin = self._origins.get((id(parent), access, name))
        if origin is None:
            origin = self._add(parent, access, name, value, guarded=False)
        outer_origin = self._outside.setdefault(id(value), (value, origin))[1]
        if outer_origin is not origin:
            self._also.setdefault(id(value), {})[origin] = None
        self._read(origin, TYPE, None, type(value))
        seen = value
        if type(value) in (float, int) and access is not ITEM and current().tracer is not None:
            seen = self.numbers.read(origin, value)
            origin.guarded |= seen is not value
        return seen

    def load_item(self, origin: Origin, container: Any, key: Any, value: Any) -> Any:
        """Record an item of a container that is loaded only to be changed, and return what the trace sees of it."""
        self.load(origin, ITEM, key, value)
        stand_in = self._place(origin, container, key) if self._takes(origin, container) else None
        return value if stand_in is None else stand_in

    def _takes(self, origin: Origin, container: Any) -> bool:
        """Whether the trace may write the items of a container one by one, with numbers that each call computes."""
        return current().tracer is not None and self.numbers.takes_items(origin, container)

    def _place(self, origin: Origin, container: Any, key: Any) -> TracedNumber | None:
        """Return the stand-in for an item that the trace is about to write; None if it is no input."""
        key = self.numbers.key_of_item(container, key)
        number = ITEM.get(container, key)
        stand_in = None if key is MISSING else self.numbers.place_item(origin, container, key)
        if stand_in is not None:
            own = self._origins.get((id(origin), ITEM, key)) or self._add(origin, ITEM, key, number, guarded=True)
            own.inputs[ITSELF], own.guarded = origin.inputs[key], True
        return stand_in

    def read_loaded(self, origin: Origin, container: Any) -> None:
        """Record that the content of a container is read; until now it may only have been loaded."""
        if not origin.guarded:
            self.guard(origin, container)
            if self._takes(origin, container):
                self.numbers.place(origin, container, self._inside)
        for one in self._also.get(id(container), ()):
            if not one.guarded:
                one.same_as(origin)
                one.guarded = True

    def is_known_elsewhere(self, container: Any) -> bool:
        """Whether a container was read or loaded from more than one place."""
        return bool(self._also.get(id(container)))

    def _add(self, parent: Origin, access: Access, name: Any, value: Any, *, guarded: bool) -> Origin:
        origin = Origin(parent, access, name, value, user_place(3), guarded=guarded)
        self._origins[id(parent), access, name] = origin
        if origin.tensor:
            self._tensors.setdefault(origin.tensor, []).append(origin)
            self._keys.append(value)
        return origin

    def _register(self, value: Any, origin: Origin) -> None:
        """Register a value and its content as outside the trace."""
        if is_leaf(value) or id(value) in self._inputs:
            return
        outer = self._outside.get(id(value))
        if outer is not None:
            # A container is compared by its content, and the other origin already covers the content of this one.
            changes = isinstance(value, (*CONTAINERS, *CHANGING))
            if outer[1] is not origin and outer[1].parent is not None and changes:
                origin.same_as(outer[1])
                self.guard(outer[1], value)
            elif outer[1] is not origin:
                self._also.setdefault(id(value), {})[origin] = None
            return
        self._outside[id(value)] = (value, origin)
        self._register_inside(value, origin)

    def _register_inside(self, value: Any, origin: Origin) -> None:
        if isinstance(value, (*CONTAINERS, set, frozenset)) or type(value) in WRAPPERS:
            for part in parts_of(value):
                if part.access is None:
                    self.object(part.value, type(part.value).__name__)
                elif part.access is ITEM:
                    self._register_item(origin, part.name, part.value)
                elif type(value) in WRAPPERS:
                    self._read(origin, part.access, part.name, part.value)

    def _register_item(self, parent: Origin, key: Any, item: Any) -> None:
        if type(item) not in PLAIN:  # plain values are compared with their container
            self._read(parent, ITEM, key, item)

    def value_read(self, tensor: Tensor) -> None:
        """Record that the number in a tensor from outside was read: another tensor will not do."""
        for origin in self._tensors.get(id(tensor), ()):
            origin.itself = weak(tensor)

    def reads_value(self, variable: Variable, value: Any) -> None:
        """Record that code that ran eagerly read the value of a Variable."""
        self.look(self.root(variable, variable.name), VALUE, None, Held(value))

    def writes_value(self, variable: Variable) -> None:
        """Record that code that ran eagerly is about to assign a Variable: other calls would miss that."""
        before = variable._value
        # `save` gives the value before, since a call that fails leaves Variables as they were.
        self.journal.note(Spot("value", variable, None, lambda: before, variable.store))
        self.repeated.only_once()
        self.acts_on_errors = True

    # -- which object is which ------------------------------------------------------------------------------------

    def same(self, a: Any, b: Any) -> bool:
        """Return ``a is b``, for stand-ins of the objects that the caller passed instead, and record the answer."""
        first, second = self._given_for(a), self._given_for(b)
        identical = first is second
        if is_one_of_several(first) and is_one_of_several(second):
            self.numbers.require_plain(a)
            self.numbers.require_plain(b)
            firsts, seconds = self._sources(a), self._sources(b)
            if firsts and seconds:
                self._relate(firsts, seconds, same=identical)
        return identical

    def identity(self, obj: Any) -> int:
        """Return ``id(obj)`` of the object that the caller passed, if the trace sees a stand-in; record the answer.

        Raises:
            NeedsIdentity: the object is a Variable among the arguments.
        """
        if isinstance(obj, ArgumentVariable):
            obj.needed()
        given = self._given_for(obj)
        if is_one_of_several(given) and not isinstance(given, Variable):
            self.numbers.require_plain(obj)
            for source in self._sources(obj):
                if isinstance(source, Origin):
                    source.itself = weak(given)
                else:
                    self.not_again(f"which object {path_of(source)} is", moves=False)
        return id(given)

    def in_memory(self, array: np.ndarray) -> None:
        """Record that the memory an array lies in was read; one that the trace made may be a view of any outside."""
        known = [one for one, _ in self._outside.values() if isinstance(one, np.ndarray)]
        for one in [array] if self.is_outside(array) else known:
            self.identity(one)

    def _given_for(self, value: Any) -> Any:
        """Return the object that the caller passed, for the one that the trace sees instead."""
        given = self._given.get(id(value))
        return value if given is None or given[0] is not value else at_way(self._arguments, given[1][0])

    def _sources(self, value: Any) -> list[Source]:
        """Return everywhere a value was found; empty if the trace created it."""
        given = self._given.get(id(value))
        ways: list[Source] = [] if given is None or given[0] is not value else [*given[1]]
        if isinstance(value, Variable):
            origins = [one for one in self._origins.values() if issubclass(one.kind, Variable) and one.seen() is value]
        elif type(value) is Tensor:
            origins = self._tensors.get(id(value), [])
        else:
            origin = self.origin_of(value)
            origins = [] if origin is None else [origin, *self._also.get(id(value), ())]
        return [*ways, *[one for one in origins if one.parent is not None or not ways]]

    def _relate(self, firsts: Sequence[Source], seconds: Sequence[Source], *, same: bool) -> None:
        for sources in (firsts, seconds):
            for other in sources[1:]:
                self._relations[Relation(sources[0], other, True)] = None
        if firsts[0] != seconds[0]:
            self._relations[Relation(firsts[0], seconds[0], same)] = None

    def _relate_changed(self) -> tuple[Origin, ...]:
        """Relate the containers that the trace changed to those it read, and return the origins of the changed ones."""
        known = list(self._outside.values())
        read = [origin for obj, origin in known if isinstance(obj, _MUTABLE) and origin.guarded]
        changed = [(obj, origin) for obj, origin in known if id(obj) in self._changed]
        for obj, origin in changed:
            self._relate(self._sources(obj), (origin,), same=True)
            for other in read:
                if other is not origin and other.kind is origin.kind:
                    self._relate((origin,), (other,), same=False)
        return tuple([origin for _, origin in changed])

    def use_order(self, obj: Any) -> None:
        """Record that the trace used the order of a dict."""
        if not isinstance(obj, dict):
            return
        items = cast("dict[Any, Any]", obj)
        origin = self._inputs.get(id(items))
        if origin is not None:
            self.orders.add(origin[2])
        elif dict.__len__(items) and self.origin_of(items) is None:
            # A new dict at each call; a None stands for an argument that has an entry of its own.
            for given, _, way in self._inputs.values():
                if type(given) is not dict or len(way) != 1 or [*given] != [*keys_of(items)]:
                    continue
                if all([a is b or a is None for a, b in zip(given.values(), values_of(items), strict=True)]):
                    self.orders.add(way)

    def returned(self, result: Any) -> None:
        """Record what the trace returns: returning a dict among the arguments reads its order."""
        self.choices.read(result)
        self.use_order(result)
        if isinstance(result, CONTAINERS):
            for _, item in items_of(result):
                self.returned(item)

    def orders_of(self, arguments: dict[str, Any]) -> dict[tuple[Any, ...], list[Any]]:
        """Return the orders that were read, keyed by the paths of their dicts in the arguments."""
        return {way: order_at(arguments, way) for way in self.orders}

    # -- writes -----------------------------------------------------------------------------------------------

    def write(
        self,
        parent: Origin,
        access: Access,
        name: Any,
        before: Any,
        value: Any,
        holder: Any,
        change: Change,
        *,
        nested: bool,
    ) -> None:
        """Record that the trace is about to store a value outside.

        Args:
            parent, access, name: where it is stored.
            before: the current value.
            value: the new value.
            holder: the object at `parent`.
            change: how later calls repeat the write.
            nested: whether this is in a branch or a loop body.

        Raises:
            MutationError: the value is traced, or the write is in a branch or a loop body.
        """
        path = access.path.format(p=parent.path, n=name)
        self._refuse(path, () if change.stand_in is not None else (value,), nested=nested)
        if isinstance(holder, type | types.ModuleType | dict):  # others read what is in it, by other ways
            place = vars(holder) if isinstance(holder, types.ModuleType) else holder
            own = IN_INSTANCE.get(holder, name) if isinstance(holder, type) else before
            self._shared.setdefault((id(place), name), (before, own))
        origin = self._origins.get((id(parent), access, name))
        if origin is None and not is_traced(before):
            origin = self._add(parent, access, name, before, guarded=False)
        if origin is not None and next(iter(change.numbers), None) is not change.stand_in:
            origin.guarded = True  # the number is computed from what was loaded there
        if origin is not None and ITSELF in origin.inputs and change.act is not None:
            origin.written = True
        else:
            self.numbers.write(origin, before)
        names = holder if isinstance(holder, dict) else RAW.get(holder, "__dict__")
        self.numbers.write(self.origin_of(names), names)  # the code may have read it too, through a copy
        self._do(parent, holder, change, origin, before)
        self._note(path)

    def stays(
        self, at: Origin, access: Access, name: Any, before: Any, value: Any, *, nested: bool, augmented: bool
    ) -> bool:
        """Whether the trace stores the value that is already there; later calls skip the write and check the value."""
        is_container = isinstance(value, (*CONTAINERS, *CHANGING))
        if value is before and is_container and augmented:
            return True  # it has been changed in place
        origin = self._origins.get((id(at), access, name))
        if stays := value is before and not (origin and origin.written) and (nested or not is_constant(value)):
            self.look(at, access, name, value)
            if is_container:
                self.repeated.only_once()  # a guard compares what is in a container, not which container it is
        return stays

    def keeps(self, parent: Origin, obj: Any, name: str, *, nested: bool) -> None:
        """Record that an object is about to keep a value for later calls, which then only read it.

        Raises:
            MutationError: this is in a branch or a loop body.
        """
        self._refuse(ATTRIBUTE.path.format(p=parent.path, n=name), (), nested=nested)
        attributes = RAW.get(obj, "__dict__")
        kept = Spots()
        kept.item_of(attributes, name, obj)
        kept.content(attributes)
        self.repeated.keep(kept)
        self.journal.item_of(attributes, name, obj)

    def change(
        self, obj: Any, how: str, values: Iterable[Any], change: Change, *, nested: bool, key: Any = MISSING
    ) -> None:
        """Record that the trace is about to change a container outside.

        Args:
            obj: the container.
            how: the change, for messages.
            values: the values that are put into it.
            change: how later calls repeat it.
            nested: whether this is in a branch or a loop body.
            key: the key of the item that it stores; `MISSING` for other changes.

        Raises:
            MutationError: the container is an argument, a value is traced, or this is in a branch or a loop body.
        """
        known_place = self._inputs.get(id(obj))
        label = self._in_arguments.get(id(obj)) if known_place is None else known_place[1]
        if label is not None:
            raise MutationError(f"compile: {self.label} changed its argument {label.partition('[')[0]!r}, "
                                "which a compiled call cannot do", got=f"{label}{how} at {format_where(user_place(3))}",
                                hint="Build a new structure and return it.")
        origin = self.origin_of(obj)
        if origin is None:
            # It may be a view of an array outside.
            self.before.content(obj.base if isinstance(obj, np.flatiter) else obj)
            return
        by_item = key is not MISSING and change.act is not None and self._takes(origin, obj)
        self._refuse(origin.path + how, () if by_item and change.stand_in is not None else values, nested=nested)
        self.numbers.change(obj)
        if by_item:
            self._place(origin, obj, key)
            self.numbers.write_item(origin, obj, key)
        else:
            self.numbers.write(origin, obj)
        self._changed.add(id(obj))
        repeated = self._do(origin, obj, change, origin, obj)
        if change.numbers and change.stand_in is None:
            self._kept_numbers.setdefault(id(obj), (obj, []))[1].extend(change.numbers)
            if not repeated or self.numbers.has_written(obj):
                self._require_kept(obj)
        self._note(origin.path + how)

    def _require_kept(self, obj: Any) -> None:
        """Raise if a container, whose content the trace reads, keeps numbers that each call computes.

        Raises:
            NeedsNumber: it does.
        """
        numbers = self._kept_numbers[id(obj)][1]
        self.numbers.require_numbers([position for one in numbers for position in one.arguments])

    def has_item(self, container: Any, key: Any) -> bool:
        """Whether a container has a place for an item at every later call too; a guard tells if it depends on them."""
        origin = self.origin_of(container)
        if isinstance(container, dict) or origin is None:
            return True
        before = self.journal.content_before(container)
        if len(before) != len(container) or type(key) is not int or not -len(before) <= key < len(before):
            return False
        self.look(origin, LENGTH, None, len(before))
        return True

    def _do(self, where: Origin, holder: Any, change: Change, changed: Origin | None, before: Any) -> bool:
        """Make later calls repeat a change. If they cannot, guard the origin by its value before the change."""
        change.note(self.journal, holder)
        repeated = self.repeated.add(where, holder, change)
        if not repeated and changed is not None:
            self.guard(changed, before)
            if isinstance(holder, CONTAINERS) and any(type(one) not in PLAIN for _, one in items_of(holder)):
                self.repeated.only_once()  # a guard tells of such items only what is in them
        return repeated

    def failed(self, first: int, last: int, *, in_part: bool) -> None:
        """Record that changes raised an error: later calls do not repeat them; see `observe.failed`."""
        for origin in self.repeated.forget(first, last):
            if issubclass(origin.kind, CONTAINERS):
                self.guard(origin, origin.now())  # whether it fails depends on what is in there
            if in_part:
                self.repeated.only_once()

    def may_store(self, holder: Any, *values: Any) -> None:
        """Record that code which is not converted may store values in an object from outside.

        Raises:
            NeedsNumber, NeedsSizes: a value is, or holds, a float input or an open size.
        """
        if self.is_outside(holder):
            self.before.inside(holder)
            if isinstance(holder, ContextVar):
                self.before.context_variable(holder)
            for value in values:
                require_numbers(value, self._is_known)
            if values and id(holder) not in self._holders:
                self._holders[id(holder)] = holder, format_where(user_place(4))

    def hand_out(self, container: Any) -> None:
        """Record that a container from outside is passed to unconverted code, which may change it."""
        self.journal.content(container)
        with self.numbers.put_in(container):
            self.repeated.fixed.content(container)

    def _refuse(self, what: str, values: Iterable[Any], *, nested: bool) -> None:
        if nested:
            refuse_nested(self.label, what)
        for value in values:
            require_numbers(value, self._is_known)
            require_storable(self.label, what, value)
            for one in new_inside(value, self._is_known):
                self.journal.inside(one)  # a check that fails later takes back what changes in it after the check
                self.acts_on_errors = True

    def require_known_outside(self) -> None:
        """Raise if what the trace has stored outside holds values that only the trace knows, perhaps since later.

        Raises:
            NeedsNumber, NeedsSizes: it holds numbers.
            MutationError: it holds a tensor.
        """
        self.choices.require_unchanged()
        if self._kept_numbers:
            read = [one for one in self._origins.values() if one.guarded and one.access is not TYPE]
            around = {*read, *[one.parent for one in read]}
            for kept, _ in self._kept_numbers.values():
                if not around.isdisjoint([self.origin_of(kept), *self._also.get(id(kept), ())]):
                    self._require_kept(kept)
        changed = [*self.before.changed()]
        require_numbers([now for _, now in changed], self._is_known)
        kept = [(holder, now, None) for holder, now in changed]
        for holder, inside, where in (*kept, *[(holder, holder, where) for holder, where in self._holders.values()]):
            if self._was_there(holder):
                require_none_inside(self.label, where, inside, self._is_known)

    def _was_there(self, obj: Any) -> bool:
        """Whether an object certainly existed before the trace."""
        origin = self.origin_of(obj)
        while origin is not None and origin.parent is not None:
            origin = origin.parent
        return id(obj) in self._inputs or (origin is not None and origin not in self._doubtful.values())

    def _is_known(self, value: Any) -> bool:
        """Whether an object existed before the trace; a container or frozen dataclass may be a copy with stand-ins.

        Raises:
            NeedsGiven: it is a copy of an argument without any stand-ins.
            MutationError: it is one with tensors.
        """
        copied = self._inputs.get(id(value)) if type(value) in REBUILT else None
        if copied is not None and at_way(self._arguments, copied[2]) is not value:
            leaves = [*filter(is_traced, jax.tree_util.tree_leaves(value))]
            if not leaves:
                raise NeedsGiven
            if any(isinstance(one, Tensor) for one in leaves):
                require_storable(self.label, f"the argument {copied[1]}", value)
        if self.is_made_here(value) or isinstance(value, CONTAINERS) or is_by_fields(value):
            return False
        return self.is_outside(value) or (isinstance(value, type) and id(value) in self._roots)

    def _note(self, what: str) -> None:
        self.effects.append(f"{what} at {format_where(user_place(4))}")

    # -- values that differ at every call -------------------------------------------------------------------------

    def moves(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, nested: bool) -> bool:
        """Whether a call gives another result each time; if so, the trace can serve only its own call.

        Raises:
            MutationError: in a branch or a loop body.
        """
        source_name = moving(function, args, kwargs, self)
        if source_name is not None:
            self._refuse(source_name, (), nested=nested)
            if function is next:  # the item is outside, whatever iterators led to it
                attached("whole")(self, *self.held_by(args[0]))
            self.journal.random(getattr(function, "__self__", None))
            self.not_again(source_name, moves=not isinstance(getattr(function, "__self__", None), RANDOM))
        return source_name is not None

    def held_by(self, iterator: Any) -> list[Any]:
        """Return what an iterator from outside holds, which is outside as well."""
        held: list[Any] = []
        pending = [iterator]
        while pending:
            for one in gc.get_referents(pending.pop()):
                if type(one).__module__ == "itertools":
                    pending.append(one)
                elif type(one) not in PLAIN:
                    self.object(one, type(one).__name__)
                    held.append(one)
        return held

    def calls_unseen(self, function: Any, args: Sequence[Any], *, nested: bool) -> None:
        """Record a call in code that is not converted.

        Args:
            function: what is called.
            args: its first argument, as far as it is known.
            nested: whether it is in a branch or a loop body.
        """
        if self.moves(function, args, {}, nested=nested):
            return
        if function in INSPECTING:
            self.not_again(f"{function.__name__}() in code that is not converted", moves=False)
        elif function in OF_ATTRIBUTES:
            attached("whole")(self, *args)
        else:
            question = question_of(function, tuple(args), {})
            if question is not None:
                self.not_again(f"{question} in code that is not converted", moves=False)

    def is_new_frame(self, code: types.CodeType, namespace: dict[str, Any], values: Iterable[Any]) -> bool:
        """Whether code that is not converted may read what it could not read before, given its arguments and cells."""
        marks = [self._mark(one) for one in values]
        key = (id(code), id(namespace), *marks)
        if None not in marks and key in self._frames:
            return False
        self._frames.add(key)
        self._keys += (code, namespace)
        return True

    def runs_first(self, code: types.CodeType) -> bool:
        """Whether code that is not converted runs for the first time in the trace."""
        key = (id(code),)
        is_first = key not in self._frames
        self._frames.add(key)
        return is_first

    def _mark(self, value: Any) -> Any:
        """Return a key that only this value has while the trace lasts; None if there is none."""
        if type(value) in PLAIN:
            return type(value), value
        return id(value) if self.origin_of(value) is not None or is_leaf(value) else None

    def variable_paths(self) -> dict[int, str]:
        """Return the path by which each Variable from outside was first reached, by the Variable's id."""
        paths: dict[int, str] = {}
        for origin in self._origins.values():
            if issubclass(origin.kind, Variable):
                paths.setdefault(id(origin.seen()), origin.path)
        return paths

    # -- the end ----------------------------------------------------------------------------------------------

    def guards(self, captures: Sequence[Tensor], variables: Sequence[Variable]) -> Guards | None:
        """Return the guards of the trace; None if it read nothing.

        Args:
            captures: the tensors that the trace captured.
            variables: the Variables that the trace uses and keeps alive.
        """
        alive: list[object] = [*variables]
        if asked := self.counts_trainable | ({id(one): one for one in variables} if self.asks_trainable else {}):
            flags = TrainableFlags([*asked.values()])
            alive.append(flags)
            self.read(self.root(flags, "which Variables are trainable"), ATTRIBUTE, "value", flags.value)
        origins = [*self._origins.values()]
        changed = self._relate_changed()
        relations = [*self._relations]
        among = tuple([one for one in relations if not (isinstance(one[0], Origin) and isinstance(one[1], Origin))])
        apart = changed if self._in_arguments else ()
        if among or apart:
            self.identities = Identities(among, apart)
        if self.runs_unseen and self.repeated.changes_any(self._whole):
            self.repeated.only_once()  # the user's code that is not converted may have changed it after the trace did
        self.repeated.keep(self.stored_unseen)
        self.forget()
        if not any(origin.guarded for origin in origins):
            return None
        return Guards(origins, captures, alive, [cast(Any, one) for one in relations if one not in among])


_MUTABLE = (list, dict, deque, set, bytearray, np.ndarray)
