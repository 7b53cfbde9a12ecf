"""What converted code tells about itself: every read from, write to and call of what is not its own.

Converted functions call these in place of Python's own operations, while they are traced. What they read from outside
becomes guards (`hybridflow.guards.guards`); a write that a later call would miss raises at its line.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import jax
import numpy as np

from hybridflow.core.context import CONTEXT, current
from hybridflow.core.errors import TracedValueError, message
from hybridflow.core.functions import is_layers
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.guards import reading
from hybridflow.guards.access import ATTRIBUTE, CELL, GLOBAL, IN_CLASS, IN_INSTANCE, ITEM, MISSING, Access, stored
from hybridflow.guards.effects import (
    CELL_VALUE,
    LOADED,
    OTHER,
    Augmented,
    Change,
    Target,
    attribute,
    global_name,
    is_constant,
    item,
)
from hybridflow.guards.guards import CONTAINERS, PLAIN
from hybridflow.guards.observations import Observations
from hybridflow.guards.parts import is_watched_module
from hybridflow.guards.questions import question_of
from hybridflow.ir.builder import GraphBuilder


def observations() -> tuple[Observations | None, bool]:
    """Return what is known of the trace being made, and whether a branch or loop body of it is traced."""
    context = CONTEXT.get()
    tracer = None if context is None else context.tracer
    if tracer is None:
        return None, False
    builder = cast(GraphBuilder, tracer)
    return cast("Observations | None", builder.observations), builder.outer is not None


ARRAYS = (np.ndarray, jax.Array, Tensor, Variable, str, bytes)
"""Types whose items are what they are; the whole is watched where it is read."""

# -- reads --------------------------------------------------------------------------------------------------------


def read_free(cell: CellType, name: str, value: Any) -> Any:
    """Return the value of a name that was read from a function around the converted one.

    Args:
        cell: where that function keeps it.
        name: the name.
        value: what Python found.
    """
    found, _ = observations()
    return value if found is None else found.read(found.root(cell, name), CELL, name, value)


def read_global(namespace: dict[str, Any], name: str, value: Any) -> Any:
    """Return the value of a global (or builtin) name that was read.

    Args:
        namespace: the globals of the function that reads it.
        name: the name.
        value: what Python found.
    """
    found, _ = observations()
    if found is not None and not is_layers(namespace.get("__name__")):
        if name in namespace:
            return found.read(found.root(namespace, "globals"), GLOBAL, name, value)
        reading.builtin(found, namespace, name, value)
    return value


def read_attr(obj: Any, name: str) -> Any:
    """Return ``obj.name``; that there is none is an answer too, for code that handles the error."""
    found, _ = observations()
    if found is not None:
        found.choices.read_one(obj)
    try:
        value = getattr(obj, name)
    except AttributeError:
        if found is not None:
            reading.attribute(found, obj, name, MISSING)
        raise
    return value if found is None else reading.attribute(found, obj, name, value)


def class_attribute(obj: Any, name: str) -> Any:
    """Return what the class of an object says under a name, as it stands there."""
    found, _ = observations()
    return IN_CLASS.get(type(obj), name) if found is None else reading.class_attribute(found, obj, name)


def of_super(obj: Any, name: str) -> Any:
    """Return what the class that ``super()`` finds an attribute in says under its name."""
    found, _ = observations()
    return MISSING if found is None else reading.of_super(found, obj, name)


def constructed(cls: type) -> None:
    """Take note that a user's class is about to make an object."""
    found, _ = observations()
    if found is not None:
        for name in ("__new__", "__init__"):
            found.read(found.root(cls, cls.__name__), IN_CLASS, name, IN_CLASS.get(cls, name))


def made_class(made: Any) -> Any:
    """Return what a ``class`` statement has just made."""
    found, _ = observations()
    if found is not None and isinstance(made, type):
        reading.made_class(found, made)
    return made


def stands_for(copy: Any, original: Any) -> None:
    """Take note that what is read of a copy, which the trace has made, is read of the original."""
    found, _ = observations()
    if found is not None:
        found.stands_for(copy, original)


def own(obj: Any, name: str) -> None:
    """Take note of whether an object has an attribute of its own, whatever its class says."""
    found, _ = observations()
    place = None if found is None else found.place_of(obj)
    if found is not None and place is not None:
        found.read(place, IN_INSTANCE, name, IN_INSTANCE.get(obj, name))


def summarised(obj: Any, access: Access) -> None:
    """Take note of a summary of what is in an object, one that a way from it gives."""
    found, _ = observations()
    place = None if found is None else found.place_of(obj)
    if found is not None and place is not None:
        found.look(place, access, None, access.get(obj, None))


def counts_trainable(variable: Variable) -> None:
    """Take note that it counts whether a Variable is trainable."""
    found, _ = observations()
    if found is not None:
        found.counts_trainable[id(variable)] = variable


def absent(obj: Any, name: str) -> None:
    """Take note that an object has no attribute of a name, so that ``__getattr__`` is asked."""
    own(obj, name)
    class_attribute(obj, name)


def made(obj: Any) -> Any:
    """Return an object that the trace has just made."""
    found, _ = observations()
    if found is not None:
        found.made_here(obj)
    return obj


def is_made_here(obj: Any) -> bool:
    """Whether the trace made an object."""
    found, _ = observations()
    return found is not None and found.is_made_here(obj)


def is_known(obj: Any) -> bool:
    """Whether an object was there before the trace."""
    found, _ = observations()
    return found is not None and found.place_of(obj) is not None


def has_assigned() -> bool:
    """Whether the trace has assigned a Variable so far."""
    builder = cast("GraphBuilder | None", current().tracer)
    while builder is not None:
        if any(True for _ in builder.assigned()):
            return True
        builder = builder.outer
    return False


def keeps(obj: Any, name: str) -> None:
    """Take note that an object is about to keep a value under a name, and of how to take that back."""
    found, nested = observations()
    place = None if found is None else found.place_of(obj)
    if found is not None and place is not None:
        found.keeps(place, obj, name, nested=nested)


def called(function: FunctionType) -> None:
    """Take note that a user's function is about to be called."""
    found, _ = observations()
    if found is not None:
        reading.called(found, function)


def special(obj: Any, *names: str) -> None:
    """Take note that Python is about to call special methods of an object by itself."""
    found, _ = observations()
    if found is not None:
        reading.special(found, obj, names)


def whole(*values: Any) -> None:
    """Take note that everything in some values may be read where reads are not seen."""
    found, _ = observations()
    if found is not None:
        reading.whole(found, *values)


def read_item(obj: Any, key: Any) -> Any:
    """Return ``obj[key]``."""
    found, _ = observations()
    if found is not None:
        _item(found, obj, key)
    return obj[key]


def _item(found: Observations, obj: Any, key: Any) -> None:
    """Take note that an item of an object is about to be read, or asked for."""
    require_untraced_key(found, obj, key)
    if isinstance(obj, reading.BY_HASH):
        reading.looked_up(found, obj, key)
    elif type(key) not in PLAIN:
        reading.made_array(found, (key,))
    found.choices.read_one(obj)
    if isinstance(obj, CONTAINERS):
        if type(obj) not in CONTAINERS:
            reading.special(found, obj, ("__missing__",))
    elif not isinstance(obj, ARRAYS):
        reading.whole(found, obj)


# -- loads, for nothing but a change: `LOADED` is what they are for -----------------------------------------------


def load_free(cell: CellType, name: str, value: Any) -> Any:
    """Return the value of a name of a function around the converted one."""
    found, _ = observations()
    if found is None or type(value) not in LOADED:
        return read_free(cell, name, value)
    found.load(found.root(cell, name), CELL, name, value)
    return value


def load_global(namespace: dict[str, Any], name: str, value: Any) -> Any:
    """Return the value of a global name."""
    found, _ = observations()
    if found is None or type(value) not in LOADED or name not in namespace:
        return read_global(namespace, name, value)
    found.load(found.root(namespace, "globals"), GLOBAL, name, value)
    return value


def load_attr(obj: Any, name: str) -> Any:
    """Return an attribute that is in the object itself; `MISSING` for what is to be read as others are."""
    value = IN_INSTANCE.get(obj, name)
    if type(value) not in LOADED or isinstance(type(obj).__getattribute__, FunctionType):
        return MISSING
    if hasattr(type(IN_CLASS.get(type(obj), name)), "__set__"):
        return MISSING
    found, _ = observations()
    place = None if found is None else found.place_of(obj)
    if found is not None and place is not None:
        found.load(place, ATTRIBUTE, name, value)
    return value


def load_item(obj: Any, key: Any) -> Any:
    """Return ``obj[key]``."""
    if type(obj) in (list, dict, deque, bytearray) and is_constant(key) and type(obj[key]) in PLAIN:
        return obj[key]
    return read_item(obj, key)


def augmented(operate: Callable[[Any, Any], Any], operand: Any, value: Any) -> None:
    """Take note of what an augmented assignment has computed, which it is about to store."""
    found, _ = observations()
    if found is not None:
        found.augmented = Augmented(operate, operand, value)



def require_untraced_key(found: Observations, container: Any, key: Any) -> None:
    """Raise if a traced tensor is looked for among the tensors that are keys outside: there it is the eager one.

    Raises:
        TracedValueError: it is.
    """
    if type(key) is not Tensor or key._value is not None or not isinstance(container, reading.BY_HASH):
        return
    if found.is_outside(container) and any(type(one) is Tensor for one in cast("set[Any]", container)):
        raise TracedValueError(
            message(
                "compile: a traced tensor is looked up among tensors that are keys, which is by which tensor it is",
                got=f"{key.spec} as a key of a {type(container).__name__}",
                hint="Use a key that is no tensor, and pass it as an argument of its own.",
            )
        )


def asked(container: Any, item: Any) -> None:
    """Take note that ``item in container`` is about to be asked."""
    found, _ = observations()
    if found is None:
        return
    found.choices.read(container)
    require_untraced_key(found, container, item)
    if isinstance(container, (*CONTAINERS, set, frozenset)):
        if isinstance(container, reading.BY_HASH):
            reading.looked_up(found, container, item)
        else:
            for one in (item, *container):
                reading.special(found, one, ("__eq__",))
    elif not isinstance(container, ARRAYS):
        reading.whole(found, container, item)


def same(a: Any, b: Any) -> bool:
    """Return ``a is b``."""
    found, _ = observations()
    return a is b if found is None else found.same(a, b)


def identity(obj: Any) -> int:
    """Return ``id(obj)``."""
    found, _ = observations()
    return id(obj) if found is None else found.identity(obj)


def chosen(made: Any, sources: Iterable[Any]) -> None:
    """Take note of a structure that a branch or loop on tensors made, and of those that it stands for one of."""
    found, _ = observations()
    if found is not None:
        found.choices.made(made, sources)


def looked_at(*values: Any) -> None:
    """Take note that containers are looked at by an operator, or by what asks whether they count as true."""
    found, _ = observations()
    if found is not None:
        for one in values:
            found.choices.read(one)


def importing(name: str, module: str) -> None:
    """Take note of what an import statement does not find, so that it fails: a name of a module, or the module."""
    found, _ = observations()
    if found is None:
        return
    source = sys.modules.get(module)
    if source is None:
        with suppress(ImportError, ValueError):
            if find_spec(module) is not None:
                return
        found.read(found.root(sys.modules, "sys.modules"), ITEM, module, MISSING)
    elif name and not hasattr(source, name) and is_watched_module(source):
        found.read(found.root(sys.modules, "sys.modules"), ITEM, module, source)
        reading.attribute(found, source, name, MISSING)


def imported(name: str, value: Any, module: str) -> Any:
    """Return what an import statement gave.

    Args:
        name: a name of a module; empty if that module itself was imported.
        value: what Python found.
        module: the module.
    """
    found, _ = observations()
    source = sys.modules.get(module)
    if found is None or source is None or not is_watched_module(source):
        return value
    for one in (module, *(() if name else (module.partition(".")[0],))):
        found.read(found.root(sys.modules, "sys.modules"), ITEM, one, sys.modules[one])
    return reading.attribute(found, source, name, value) if name and value is not source else value


def every_global(names: dict[str, Any]) -> dict[str, Any]:
    """Return what ``globals()`` gave."""
    found, _ = observations()
    module = sys.modules.get(str(names.get("__name__")))
    if found is None:
        return names
    if module is None or vars(module) is not names:
        found.not_again("the globals of what is no module")
        return names
    return found.read(found.place_or_root(module), ATTRIBUTE, "__dict__", names)


def answer(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    """Return what a function gave that is not converted: if it only read, it is asked again before each call."""
    found, _ = observations()
    question = None if found is None else question_of(function, args, kwargs)
    return value if found is None or question is None else found.answered(question, value)


def iterate(obj: Iterable[Any]) -> Any:
    """Return what a ``for`` loop or a comprehension runs over."""
    found, _ = observations()
    if found is not None:
        run_over(found, obj)
    return obj


def run_over(found: Observations, obj: Any) -> None:
    """Take note that something runs over an object's items."""
    found.choices.read_one(obj)
    found.use_order(obj)
    if not isinstance(obj, (*CONTAINERS, *ARRAYS)) and found.is_outside(obj):
        reading.whole(found, obj)


def runs_as_it_is(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Take note that a user's function is about to run as it is: what its code names and what it gets is read."""
    found, _ = observations()
    if found is None:
        return
    if type(function) is MethodType:
        function, args = function.__func__, (function.__self__, *args)
    if type(function) is FunctionType:
        reading.runs_as_it_is(found, function, args, kwargs)
    else:
        reading.whole(found, function, *args, *kwargs.values())


# -- writes -------------------------------------------------------------------------------------------------------


def changes(obj: Any, what: str) -> None:
    """Take note that an object or container is about to be changed, wherever it came from."""
    found, _ = observations()
    if found is not None:
        found.choices.changed(obj, what)


def _change(found: Observations, value: Any, target: Target, *, augmented: bool) -> Change:
    """Return how later calls store what is about to be stored."""
    made = found.augmented
    if augmented and made is not None and made.value is value:
        return made.change(target)
    return target.stored(value)


def writes_attr(
    obj: Any, name: Any, value: Any, *, put: Callable[..., None] = setattr, augmented: bool = False
) -> None:
    """Take note that an attribute is about to be stored or deleted, and of how to take that back."""
    found, nested = observations()
    place = None if found is None else found.place_of(obj)
    if found is None or place is None or type(name) is not str:
        return
    before = stored(obj, name)
    if value is MISSING and before is MISSING:
        found.look(place, ATTRIBUTE, name, MISSING)  # deleting what is not there raises what the code may handle
    elif not found.stays(place, ATTRIBUTE, name, before, value, nested=nested):
        change = _change(found, value, attribute(name, put), augmented=augmented)
        found.write(place, ATTRIBUTE, name, before, value, obj, change, nested=nested)


def write_attr(obj: Any, name: str, value: Any, *, augmented: bool = False) -> None:
    """Do ``obj.name = value``."""
    writes_attr(obj, name, value, augmented=augmented)
    setattr(obj, name, value)


def write_attr_by(put: Callable[..., None], obj: Any, name: str, value: Any) -> None:
    """Do ``put(obj, name, value)``, as `object.__setattr__` and `type.__setattr__` store an attribute."""
    writes_attr(obj, name, value, put=put)
    put(obj, name, value)


def write_item(obj: Any, key: Any, value: Any, *, augmented: bool = False) -> None:
    """Do ``obj[key] = value``."""
    found, nested = observations()
    if found is not None:
        if type(key) is slice:
            run_over(found, value)
        again = type(obj) in LOADED and is_constant(key)
        change = _change(found, value, item(key), augmented=augmented) if again else OTHER
        found.change(obj, f"[{key!r}]", (value,), change, nested=nested)
    obj[key] = value


def delete_attr(obj: Any, name: str) -> None:
    """Do ``del obj.name``."""
    writes_attr(obj, name, MISSING)
    delattr(obj, name)


def delete_item(obj: Any, key: Any) -> None:
    """Do ``del obj[key]``."""
    found, nested = observations()
    if found is not None:
        found.change(obj, f"[{key!r}]", (), OTHER, nested=nested)
    del obj[key]


def write_global(namespace: dict[str, Any], name: str, value: Any, *, augmented: bool = False) -> Any:
    """Return the value to store to a global name; Python stores it after the call."""
    found, nested = observations()
    if found is None:
        return value
    before, place = namespace.get(name, MISSING), found.root(namespace, "globals")
    if not found.stays(place, GLOBAL, name, before, value, nested=nested):
        change = _change(found, value, global_name(name), augmented=augmented)
        found.write(place, GLOBAL, name, before, value, namespace, change, nested=nested)
    return value


def delete_global(namespace: dict[str, Any], name: str) -> None:
    """Take note that a global name is about to be deleted."""
    write_global(namespace, name, MISSING)


def write_free(cell: CellType, name: str, value: Any, *, augmented: bool = False) -> Any:
    """Return the value to store to a ``nonlocal`` name of a function outside the trace; Python stores it then."""
    found, nested = observations()
    if found is None:
        return value
    before, place = CELL.get(cell, name), found.root(cell, name)
    if not found.stays(place, CELL, name, before, value, nested=nested):
        change = _change(found, value, CELL_VALUE, augmented=augmented)
        found.write(place, CELL, name, before, value, cell, change, nested=nested)
    return value


def delete_free(cell: CellType, name: str) -> None:
    """Take note that a ``nonlocal`` name of a function outside the trace is about to be deleted."""
    write_free(cell, name, MISSING)
