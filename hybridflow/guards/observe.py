"""The functions by which converted code reports its reads, writes and calls outside itself.

While a function is traced, its converted code calls these in place of Python's own operations. Reads from outside
become guards (`hybridflow.guards.guards`). A write that later calls would miss raises at its line.
"""

from __future__ import annotations

import operator
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import jax
import numpy as np

from hybridflow.core.context import CONTEXT
from hybridflow.core.errors import TracedValueError
from hybridflow.core.functions import is_layers
from hybridflow.core.held import defines
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.core.variable_log import tracer_around
from hybridflow.guards import reading
from hybridflow.guards.access import ATTRIBUTE, CELL, GLOBAL, IN_CLASS, IN_INSTANCE, ITEM, MISSING, Access, stored
from hybridflow.guards.effects import (
    CELL_VALUE,
    LOADED,
    OTHER,
    Augmented,
    Change,
    Target,
    arguments_now,
    attribute,
    called_again,
    global_name,
    is_constant,
    item,
)
from hybridflow.guards.guards import CHANGING, CONTAINERS, PLAIN
from hybridflow.guards.moving import is_open
from hybridflow.guards.observations import Observations
from hybridflow.guards.outside_numbers import BY_ITEM
from hybridflow.guards.parts import is_watched_module
from hybridflow.guards.questions import Question, found_module, question_of
from hybridflow.guards.shown import shown
from hybridflow.guards.users import is_users_class
from hybridflow.ir.builder import GraphBuilder


def current_observations() -> tuple[Observations | None, bool]:
    """Return the observations of the current trace, and whether one of its branches or loop bodies is being traced."""
    context = CONTEXT.get()
    tracer = tracer_around(watched=True) if context is None or context.tracer is None else context.tracer
    if tracer is None:
        return None, False
    builder = cast(GraphBuilder, tracer)
    return cast("Observations | None", builder.observations), builder.outer is not None


ARRAYS = (np.ndarray, jax.Array, Tensor, Variable, str, bytes)
"""Types whose items need no guards: the value is guarded as a whole, where it is read."""
_BY_POSITION = (list, deque, bytearray, *ARRAYS)
"""Types that do not store the keys of their items."""

# -- reads --------------------------------------------------------------------------------------------------------


def read_free(cell: CellType, name: str, value: Any) -> Any:
    """Return the value of a name that was read from an enclosing function.

    Args:
        cell: the cell that holds it.
        name: the name.
        value: the value that Python found.
    """
    observations, _ = current_observations()
    return value if observations is None else observations.read(observations.root(cell, name), CELL, name, value)


def read_global(namespace: dict[str, Any], name: str, value: Any) -> Any:
    """Return the value of a global (or builtin) name that was read.

    Args:
        namespace: the globals of the function that reads it.
        name: the name.
        value: the value that Python found.
    """
    observations, _ = current_observations()
    if observations is not None and not is_layers(namespace.get("__name__")):
        if name in namespace:
            return observations.read(observations.root(namespace, "globals"), GLOBAL, name, value)
        reading.builtin(observations, namespace, name, value)
    return value


def read_attr(obj: Any, name: str, get: Callable[[Any, str], Any] = getattr) -> Any:
    """Return ``obj.name``, as `get` reads it. A missing one is recorded too, as the code may handle the error."""
    observations, _ = current_observations()
    if observations is not None:
        observations.choices.read_one(obj)
    try:
        value = get(obj, name)
    except AttributeError:
        if observations is not None:
            reading.attribute(observations, obj, name, MISSING)
        raise
    if observations is None:
        return value
    if type(value) is TracedNumber:  # the call has stored it there: only a class could turn the read
        reading.stored(observations, obj, name)
        return value
    return reading.attribute(observations, obj, name, value)


def class_attribute(obj: Any, name: str) -> Any:
    """Return what the class of an object defines under a name; a descriptor is returned itself."""
    observations, _ = current_observations()
    return IN_CLASS.get(type(obj), name) if observations is None else reading.class_attribute(observations, obj, name)


def defined_in(kind: type, name: str) -> Any:
    """Return what a class defines or inherits under a name; a descriptor is returned itself."""
    observations, _ = current_observations()
    return IN_CLASS.get(kind, name) if observations is None else reading.defined_in(observations, kind, name)


def of_super(obj: Any, name: str) -> Any:
    """Return the attribute that ``super()`` finds, as its class defines it; a descriptor is returned itself."""
    observations, _ = current_observations()
    return MISSING if observations is None else reading.of_super(observations, obj, name)


def constructed(cls: type) -> None:
    """Record that a user's class is about to create an object, which may be finalized while the trace runs."""
    observations, _ = current_observations()
    if observations is not None:
        for name in ("__new__", "__init__", "__del__"):
            if observations.is_made_here(cls):
                reading.inherited(observations, cls, name)
            else:
                observations.read(observations.root(cls, cls.__name__), IN_CLASS, name, IN_CLASS.get(cls, name))
        finalizer = IN_CLASS.get(cls, "__del__")
        if type(finalizer) is FunctionType:
            reading.runs_as_it_is(observations, finalizer)


def made_class(made: Any) -> Any:
    """Record the class that a ``class`` statement has just made, and return it."""
    observations, _ = current_observations()
    if observations is not None and isinstance(made, type):
        reading.made_class(observations, made)
    return made


def handed_in(function: Any) -> None:
    """Record that hybridflow is about to call what a user gave it: its object is from outside the trace."""
    observations, _ = current_observations()
    if observations is None:
        return
    owner = function.__self__ if isinstance(function, MethodType) else function
    if type(owner) is not FunctionType and not observations.is_made_here(owner):
        observations.object(owner, type(owner).__name__)


def stands_for(copy: Any, original: Any) -> None:
    """Record that reads from a copy, which the trace has created, are reads from the original."""
    observations, _ = current_observations()
    if observations is not None:
        observations.stands_for(copy, original)


def own(obj: Any, name: str) -> None:
    """Record whether an object has an attribute in its own ``__dict__``, and its value there."""
    observations, _ = current_observations()
    origin = None if observations is None else observations.origin_of(obj)
    if observations is not None and origin is not None:
        observations.read(origin, IN_INSTANCE, name, IN_INSTANCE.get(obj, name))


def summarised(obj: Any, access: Access) -> None:
    """Record a summary of an object's content, which `access` computes."""
    observations, _ = current_observations()
    if observations is None:
        return
    origin = observations.origin_of(obj)
    if origin is None and not observations.is_made_here(obj):
        origin = observations.doubtful(obj)
    if origin is not None:
        observations.look(origin, access, None, access.get(obj, None))


def counts_trainable(variable: Variable) -> None:
    """Record that the trace depends on whether a Variable is trainable."""
    observations, _ = current_observations()
    if observations is not None:
        observations.counts_trainable[id(variable)] = variable


def absent(obj: Any, name: str) -> None:
    """Record that an object has no attribute with this name, so that ``__getattr__`` is called."""
    own(obj, name)
    class_attribute(obj, name)


def made(obj: Any) -> Any:
    """Record that the trace has just created an object, and return the object."""
    observations, _ = current_observations()
    if observations is not None:
        observations.made_here(obj)
    return obj


def is_made_here(obj: Any) -> bool:
    """Whether the trace created an object."""
    observations, _ = current_observations()
    return observations is not None and observations.is_made_here(obj)


def is_known(obj: Any) -> bool:
    """Whether an object was read from outside the trace."""
    observations, _ = current_observations()
    return observations is not None and observations.origin_of(obj) is not None


def keeps(obj: Any, name: str) -> bool:
    """Record that an object is about to keep a value under a name, and how to undo that.

    Returns:
        Whether the value may depend on a change that the trace has made: a guard must not compute it before a call.
    """
    observations, nested = current_observations()
    origin = None if observations is None else reading.holder(observations, obj, name)
    if observations is None or origin is None:
        return False
    observations.keeps(origin, obj, name, nested=nested)
    return bool(observations.effects)


def called(function: FunctionType) -> None:
    """Record that a user's function is about to be called."""
    observations, _ = current_observations()
    if observations is not None:
        reading.called(observations, function)


def special(obj: Any, *names: str) -> None:
    """Record that Python is about to call special methods of an object by itself."""
    observations, _ = current_observations()
    if observations is not None:
        reading.special(observations, obj, names)


def is_outside(obj: Any) -> bool:
    """Whether an object existed before the trace."""
    observations, _ = current_observations()
    return observations is not None and observations.is_outside(obj)


def whole(*values: Any) -> None:
    """Record that everything in these values may be read by code whose reads are not seen."""
    observations, _ = current_observations()
    if observations is not None:
        reading.whole(observations, *values)


def computed(value: Any) -> None:
    """Record the state of a library by which it computed a value."""
    observations, _ = current_observations()
    if observations is not None:
        reading.context_of(observations, value)


def read_item(obj: Any, key: Any) -> Any:
    """Return ``obj[key]``."""
    observations, _ = current_observations()
    if observations is not None:
        alone = _item_alone(observations, obj, key)
        if alone is not MISSING:
            return alone
        _item(observations, obj, key)
        copied = observations.numbers.copy_of(obj)
        obj = obj if copied is None else copied
    return obj[key]


def _item_alone(observations: Observations, obj: Any, key: Any) -> Any:
    """Read a constant in a dict that was loaded without what else is in it; `MISSING` if it must be read whole."""
    value = ITEM.get(obj, key) if type(obj) is dict and type(key) is str else MISSING
    if type(value) is TracedNumber:
        return value
    if type(value) not in _ALONE:
        return MISSING
    observations.choices.read_one(obj)
    origin = observations.origin_of(obj)
    if origin is None or origin.parent is None or origin.guarded or observations.is_known_elsewhere(obj):
        return MISSING
    if type(value) in _LOADED:
        seen = observations.load_item(origin, obj, key, value)
        if seen is not value:
            return seen
    return observations.read(origin, ITEM, key, value)


def _item(observations: Observations, obj: Any, key: Any) -> None:
    """Record that an item of an object is about to be read or looked up."""
    require_untraced_key(observations, obj, key)
    if isinstance(obj, reading.BY_HASH):
        reading.looked_up(observations, obj, key)
    elif type(key) not in PLAIN:
        reading.made_array(observations, (key,))
    observations.choices.read_one(obj)
    origin = observations.origin_of(obj)
    if origin is not None and origin.parent is not None and isinstance(obj, (*CONTAINERS, bytearray)):
        observations.read_loaded(origin, obj)
    if isinstance(obj, CONTAINERS):
        if type(obj) not in CONTAINERS and not _is_there(obj, key):
            if origin is not None and type(obj) in BY_ITEM:
                observations.numbers.absent_item(origin, key)
            reading.special(observations, obj, ("__missing__",))
            if IN_CLASS.get(type(obj), "__missing__") is not MISSING:  # it may store the key
                observations.may_store(obj, key)
    elif not holds_numbers(obj):
        reading.whole(observations, obj)


# -- loads: reads that only serve to change a value -----------------------------------------------------------------

_LOADED_FROM = BY_ITEM | {bytearray}
"""Types of containers whose items can be loaded without what else is in them."""
_LOADED = LOADED | BY_ITEM
_ALONE = frozenset({int, float, bool, str, type(None)})
"""Types of items of a dict that are read without what else is in it."""


def load_free(cell: CellType, name: str, value: Any) -> Any:
    """Return the value of a name of an enclosing function."""
    observations, _ = current_observations()
    if observations is None or type(value) not in _LOADED:
        return read_free(cell, name, value)
    return observations.load(observations.root(cell, name), CELL, name, value)


def load_global(namespace: dict[str, Any], name: str, value: Any) -> Any:
    """Return the value of a global name."""
    observations, _ = current_observations()
    if observations is None or type(value) not in _LOADED or name not in namespace:
        return read_global(namespace, name, value)
    return observations.load(observations.root(namespace, "globals"), GLOBAL, name, value)


def load_attr(obj: Any, name: str) -> Any:
    """Return an attribute from the object's own ``__dict__``; `MISSING` if it must be read the ordinary way."""
    value = IN_INSTANCE.get(obj, name)
    if type(value) not in _LOADED or isinstance(type(obj).__getattribute__, FunctionType):
        return MISSING
    if hasattr(type(IN_CLASS.get(type(obj), name)), "__set__"):
        return MISSING
    observations, _ = current_observations()
    origin = None if observations is None else reading.holder(observations, obj, name)
    if observations is not None and origin is not None:
        return observations.load(origin, ATTRIBUTE, name, value)
    return value


def is_loaded_by(container: Any, key: Any) -> bool:
    """Whether an item of a container can be loaded without what else is in it."""
    return type(container) in _LOADED_FROM and is_constant(key)


def load_item(container: Any, key: Any) -> Any:
    """Return ``container[key]``; see `is_loaded_by`."""
    value = ITEM.get(container, key)
    if type(value) is TracedNumber:
        return value
    if type(value) not in _LOADED:
        return read_item(container, key)
    observations, _ = current_observations()
    origin = None if observations is None else observations.origin_of(container)
    if observations is not None and origin is not None:
        return observations.load_item(origin, container, key, value)
    return value


def _is_there(container: Any, key: Any) -> bool:
    """Whether a dict has a key that Python compares by itself, so that it does not call ``__missing__``."""
    return issubclass(type(container), dict) and is_constant(key) and dict.__contains__(container, key)


def augmented(operate: Callable[[Any, Any], Any], operand: Any, value: Any) -> None:
    """Record the result of an augmented assignment, which is about to be stored."""
    observations, _ = current_observations()
    if observations is not None:
        observations.augmented = Augmented(operate, operand, value)



def require_untraced_key(observations: Observations, container: Any, key: Any) -> None:
    """Raise if a traced tensor is looked up among keys outside that are tensors: those are the eager tensors.

    Raises:
        TracedValueError: the key is traced, and a key in the container is a tensor.
    """
    if type(key) is not Tensor or key._value is not None or not isinstance(container, reading.BY_HASH):
        return
    if observations.is_outside(container) and any(type(one) is Tensor for one in cast("set[Any]", container)):
        raise TracedValueError(
            "compile: a traced tensor is looked up among tensors that are keys, which is by which tensor it is",
            got=f"{key.spec} as a key of a {type(container).__name__}",
            hint="Use a key that is no tensor, and pass it as an argument of its own."
        )


def asked(container: Any, item: Any) -> None:
    """Record that ``item in container`` is about to be evaluated."""
    observations, _ = current_observations()
    if observations is None:
        return
    observations.choices.read(container)
    require_untraced_key(observations, container, item)
    if isinstance(container, (*CONTAINERS, set, frozenset)):
        if isinstance(container, reading.BY_HASH):
            reading.looked_up(observations, container, item)
        else:
            for one in (item, *container):
                reading.special(observations, one, ("__eq__",))
    elif not isinstance(container, ARRAYS):
        reading.whole(observations, container, item)


def same(a: Any, b: Any) -> bool:
    """Return ``a is b``."""
    observations, _ = current_observations()
    return a is b if observations is None else observations.same(a, b)


def may_be_one(a: Any, b: Any) -> bool:
    """Whether a tensor decides whether two objects are one."""
    observations, _ = current_observations()
    return observations is not None and observations.choices.may_be_one(a, b)


def identity(obj: Any) -> int:
    """Return ``id(obj)``."""
    observations, _ = current_observations()
    return id(obj) if observations is None else observations.identity(obj)


def chosen(made: Any, sources: Iterable[Any]) -> None:
    """Record a structure that a branch or loop on tensors made, and the sources it was merged from."""
    observations, _ = current_observations()
    if observations is not None:
        observations.choices.made(made, sources)


def looked_at(*values: Any) -> None:
    """Record that an operator or a truth test reads containers."""
    observations, _ = current_observations()
    if observations is not None:
        for one in values:
            observations.choices.read(one)


def importing(name: str, module: str) -> None:
    """Record that an import statement is about to fail: a module, or a name in it, does not exist."""
    observations, _ = current_observations()
    if observations is None:
        return
    source = sys.modules.get(module)
    if source is None:
        with suppress(ImportError, ValueError):
            if find_spec(module) is not None:
                return
            observations.answered(Question(found_module, (module,), {}), None)
        reading.module_of(observations, module)
    elif name and not hasattr(source, name) and is_watched_module(source):
        reading.module_of(observations, module)
        reading.attribute(observations, source, name, MISSING)


def imported(name: str, value: Any, module: str) -> Any:
    """Return what an import statement imported.

    Args:
        name: the name in the module; empty if the module itself was imported.
        value: the value that Python found.
        module: the module's name.
    """
    observations, _ = current_observations()
    source = sys.modules.get(module)
    if observations is None or source is None or not is_watched_module(source):
        return value
    for one in (module, *(() if name else (module.partition(".")[0],))):
        reading.module_of(observations, one)
    return reading.attribute(observations, source, name, value) if name and value is not source else value


def every_global(names: dict[str, Any]) -> dict[str, Any]:
    """Return the result of ``globals()``."""
    observations, _ = current_observations()
    module = sys.modules.get(str(names.get("__name__")))
    if observations is None:
        return names
    if module is None or vars(module) is not names:
        observations.not_again("the globals of what is no module")
        return names
    return observations.read(observations.origin_or_root(module), ATTRIBUTE, "__dict__", names)


def answer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    """Return the result of an unconverted function. If the function only reads, it is called again before each call."""
    observations, _ = current_observations()
    question = None if observations is None else question_of(function, args, kwargs)
    if observations is None or question is None:
        return value
    observations.answered(question, found_module(*args, **kwargs) if question.function is found_module else value)
    return value


def iterate(obj: Iterable[Any]) -> Any:
    """Return what a ``for`` loop or a comprehension iterates over."""
    observations, _ = current_observations()
    if observations is not None:
        run_over(observations, obj)
    return obj


def run_over(observations: Observations, obj: Any) -> None:
    """Record that something iterates over an object's items."""
    observations.choices.read_one(obj)
    observations.use_order(obj)
    if not isinstance(obj, CONTAINERS) and not holds_numbers(obj) and observations.is_outside(obj):
        reading.whole(observations, obj)


def holds_numbers(value: Any) -> bool:
    """Whether a value is an array of numbers; one of objects is a container that NumPy reads."""
    objects = issubclass(type(value), np.ndarray) and value.dtype.hasobject
    return isinstance(value, ARRAYS) and not objects


def is_not_converted(function: Any, args: tuple[Any, ...]) -> None:
    """Record that the traced function itself runs unconverted, as the user wished."""
    observations, _ = current_observations()
    if observations is not None:
        observations.converts = False
    runs_as_it_is(function, args, {})


def acts_on_errors(handles: bool) -> None:
    """Record that code runs if a check of the trace fails: that of a ``finally`` or ``__exit__``, or a handler."""
    observations, _ = current_observations()
    if observations is not None:
        observations.acts_on_errors = True
        observations.handles_errors |= handles


def runs_as_it_is(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record that a user's function is about to run unconverted: it may read its arguments and what its code names."""
    observations, _ = current_observations()
    if observations is None:
        return
    if type(function) is MethodType:
        function, args = function.__func__, (function.__self__, *args)
    if type(function) is FunctionType:
        reading.runs_as_it_is(observations, function, args, kwargs)
    else:
        reading.whole(observations, function, *args, *kwargs.values())


# -- writes -------------------------------------------------------------------------------------------------------


def changes(obj: Any, what: str) -> None:
    """Record that an object or container, from outside or not, is about to be changed."""
    observations, _ = current_observations()
    if observations is not None:
        observations.choices.changed(obj, what)


def _change(observations: Observations, value: Any, target: Target, *, augmented: bool) -> Change:
    """Return the change by which later calls repeat a store."""
    assignment = observations.augmented
    if augmented and assignment is not None and assignment.value is value:
        return assignment.change(target)
    return target.stored(value)


def writes_attr(
    obj: Any, name: Any, value: Any, *, put: Callable[..., None] = setattr, augmented: bool = False
) -> None:
    """Record that an attribute is about to be stored or deleted, and how to undo that."""
    observations, nested = current_observations()
    origin = None if observations is None else reading.holder(observations, obj, name)
    if observations is None or origin is None or type(name) is not str:
        return
    before = stored(obj, name)
    if value is MISSING and before is MISSING:
        observations.look(origin, ATTRIBUTE, name, MISSING)  # the delete raises, and the code may handle it
    elif not observations.stays(origin, ATTRIBUTE, name, before, value, nested=nested, augmented=augmented):
        change = _change(observations, value, attribute(name, put), augmented=augmented)
        observations.write(origin, ATTRIBUTE, name, before, value, obj, change, nested=nested)


def recorded() -> int:
    """Return the number of changes that later calls repeat, for `failed`."""
    observations, _ = current_observations()
    return 0 if observations is None else observations.repeated.count


def failed(first: int, last: int, *, in_part: bool = False) -> None:
    """Record that the changes from number `first` to `last` raised an error, which the code may handle.

    Args:
        first, last: what `recorded` returned before and after the changes were recorded, which came before they ran.
        in_part: whether a part of the changes may have been made.
    """
    observations, _ = current_observations()
    if observations is not None:
        observations.failed(first, last, in_part=in_part)


def hashed(key: Any) -> None:
    """Record that Python hashes a value, and compares it to others."""
    observations, _ = current_observations()
    if observations is not None and is_users_class(type(key)):
        reading.special(observations, key, ("__hash__", "__eq__"))


def settle() -> None:
    """Make the trace take numbers and sizes by value, if it took them for inputs.

    Raises:
        NeedsNumber, NeedsIdentity, NeedsSizes: it did; it restarts.
    """
    observations, _ = current_observations()
    if observations is not None:
        observations.settle()


def _do(first: int, change: Callable[..., None], *args: Any) -> None:
    """Make a change that was recorded since `first`."""
    last = recorded()
    try:
        change(*args)
    except Exception:
        failed(first, last)
        raise


def write_attr(obj: Any, name: str, value: Any, *, augmented: bool = False) -> None:
    """Do ``obj.name = value``."""
    first = recorded()
    writes_attr(obj, name, value, augmented=augmented)
    _do(first, setattr, obj, name, value)


def write_attr_by(put: Callable[..., None], obj: Any, name: str, value: Any) -> None:
    """Do ``put(obj, name, value)``, as `object.__setattr__` and `type.__setattr__` store an attribute."""
    first = recorded()
    writes_attr(obj, name, value, put=put)
    _do(first, put, obj, name, value)


def write_item(obj: Any, key: Any, value: Any, *, augmented: bool = False) -> None:
    """Do ``obj[key] = value``."""
    observations, nested = current_observations()
    first = recorded()
    if observations is not None and defines(type(obj), "__setitem__"):
        if type(key) is slice:
            run_over(observations, value)
        change, by_key = OTHER, not is_constant(key)
        if by_key and type(obj) in BY_ITEM:
            change = called_again(obj, "__setitem__", (key, value), {})
            key, value = arguments_now(change, (key, value))
        elif is_loaded_by(obj, key) and observations.has_item(obj, key):
            change = _change(observations, value, item(key), augmented=augmented)
        kept = (value,) if issubclass(type(obj), _BY_POSITION) else (key, value)
        _written_by_library(observations, obj)
        observations.change(obj, f"[{shown(key)}]", kept, change, nested=nested, key=MISSING if by_key else key)
    _do(first, operator.setitem, obj, key, value)


def _written_by_library(observations: Observations, obj: Any) -> None:
    """Record that a library's own method is about to change an object, and may read and change what it holds."""
    if is_open(obj) and observations.is_outside(obj):
        observations.not_again(f"an item of a {type(obj).__name__}")
    elif not isinstance(obj, (*CONTAINERS, *CHANGING, *ARRAYS)):
        reading.whole(observations, obj)


def delete_attr(obj: Any, name: str, put: Callable[[Any, str], None] = delattr) -> None:
    """Do ``del obj.name``, or ``put(obj, name)``, as `object.__delattr__` deletes an attribute."""
    first = recorded()
    writes_attr(obj, name, MISSING)
    _do(first, put, obj, name)


def delete_item(obj: Any, key: Any) -> None:
    """Do ``del obj[key]``."""
    observations, nested = current_observations()
    if observations is not None and defines(type(obj), "__delitem__"):
        _written_by_library(observations, obj)
        observations.change(obj, f"[{shown(key)}]", (), OTHER, nested=nested)
    del obj[key]


def write_global(namespace: dict[str, Any], name: str, value: Any, *, augmented: bool = False) -> Any:
    """Record a store to a global name, and return the value; the caller stores it afterwards."""
    observations, nested = current_observations()
    if observations is None:
        return value
    before, origin = namespace.get(name, MISSING), observations.root(namespace, "globals")
    if not observations.stays(origin, GLOBAL, name, before, value, nested=nested, augmented=augmented):
        change = _change(observations, value, global_name(name), augmented=augmented)
        observations.write(origin, GLOBAL, name, before, value, namespace, change, nested=nested)
    return value


def delete_global(namespace: dict[str, Any], name: str) -> None:
    """Record that a global name is about to be deleted."""
    write_global(namespace, name, MISSING)


def write_free(cell: CellType, name: str, value: Any, *, augmented: bool = False) -> Any:
    """Record a store to a ``nonlocal`` name of a function outside the trace, and return the value to store."""
    observations, nested = current_observations()
    if observations is None:
        return value
    before, origin = CELL.get(cell, name), observations.root(cell, name)
    if not observations.stays(origin, CELL, name, before, value, nested=nested, augmented=augmented):
        change = _change(observations, value, CELL_VALUE, augmented=augmented)
        observations.write(origin, CELL, name, before, value, cell, change, nested=nested)
    return value


def delete_free(cell: CellType, name: str) -> None:
    """Record that a ``nonlocal`` name of a function outside the trace is about to be deleted."""
    write_free(cell, name, MISSING)
