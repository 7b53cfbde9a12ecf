"""Users' operators and protocols: special methods that a user wrote run converted, called as Python would."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FunctionType, TracebackType
from typing import Any, cast

import numpy as np

from hybridflow.convert import regions
from hybridflow.convert.values import negated
from hybridflow.core.attached import attached
from hybridflow.core.staged_number import BOOL, StagedNumber
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_float import TracedFloat
from hybridflow.core.variable import Variable
from hybridflow.guards import observe
from hybridflow.guards.access import IN_CLASS, MISSING
from hybridflow.guards.users import is_users, is_users_class

_PLAIN = frozenset(
    {Tensor, Variable, TracedArray, TracedFloat, StagedNumber, int, float, bool, complex, str, bytes, list, tuple, dict,
     set, type(None), range, np.ndarray, type, slice}
)  # fmt: skip
"""Types whose special methods no user wrote."""
_COLLECTIONS = frozenset({list, tuple, dict, set})
"""Those of them that compare their items."""


def method_of(obj: Any, name: str) -> Callable[..., Any] | None:
    """Return the converted special method of an object, unbound; None if no user wrote it."""
    kind = type(obj)
    if kind in _PLAIN:
        return None
    method = getattr(kind, name, None)
    if is_users_class(kind):
        observe.class_attribute(obj, name)
    if type(method) is FunctionType and is_users(method.__code__):
        return attached("converted")(method)
    return None


def is_plain(obj: Any) -> bool:
    """Whether an object's type shows that no user wrote its special methods."""
    return type(obj) in _PLAIN


def truth_of(obj: Any) -> Any:
    """Return a value with the truth of an object: the result of the user's own method if there is one."""
    if type(obj) in _PLAIN:
        if type(obj) in _COLLECTIONS:
            observe.looked_at(obj)
        return obj
    for name, kind in (("__bool__", bool), ("__len__", int)):
        method = method_of(obj, name)
        if method is not None:
            answer = method(obj)
            if isinstance(answer, kind) or (type(answer) is StagedNumber and answer.kinds == BOOL):
                return answer
            raise TypeError(f"{name} should return {kind.__name__}, returned {type(answer).__name__}")
        if hasattr(type(obj), name):
            observe.special(obj, name)
            return obj
    return True


def _binary(
    name: str, reflected: str, plain: Callable[[Any, Any], Any], identity: Callable[[Any, Any], bool] | None = None
) -> Callable[[Any, Any], Any]:
    """Return the function that applies a binary operator.

    Args:
        name, reflected: its special methods.
        plain: the operator itself.
        identity: the fallback if no method gives a result; without one, that is an error.
    """
    compares = not reflected.startswith("__r")

    def operate(a: Any, b: Any) -> Any:
        if type(a) in _PLAIN and type(b) in _PLAIN:
            if type(a) in _COLLECTIONS:
                observe.looked_at(a, b)
                if compares:
                    observe.whole(a, b)
            return plain(a, b)
        mine, other = method_of(a, name), method_of(b, reflected)
        if mine is None and other is None:
            observe.whole(a, b)
            return plain(a, b)
        plain_mine, plain_other = getattr(type(a), name, None), getattr(type(b), reflected, None)
        tries = [(mine or plain_mine, a, b), (other or plain_other, b, a)]
        if type(a) is type(b) and reflected.startswith("__r"):
            del tries[1]
        elif isinstance(b, type(a)) and plain_other is not getattr(type(a), reflected, None):
            tries.reverse()
        for method, first, second in tries:
            result = NotImplemented if method is None else method(first, second)
            if result is not NotImplemented:
                return result
        return identity(a, b) if identity is not None else plain(a, b)  # plain raises

    return operate


def _unary(name: str, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def operate(a: Any) -> Any:
        method = method_of(a, name)
        return plain(a) if method is None else method(a)

    return operate


def _augmented(name: str, binary: Callable[[Any, Any], Any], plain: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def operate(a: Any, b: Any) -> Any:
        if type(a) in _PLAIN and type(b) in _PLAIN:
            return plain(a, b)
        method = method_of(a, name)
        if method is None:
            return plain(a, b) if hasattr(type(a), name) else binary(a, b)
        result = method(a, b)
        return binary(a, b) if result is NotImplemented else result

    return operate


_NAMES = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "FloorDiv": "floordiv", "Mod": "mod", "Pow": "pow",
    "MatMult": "matmul", "BitAnd": "and", "BitOr": "or", "BitXor": "xor", "LShift": "lshift", "RShift": "rshift",
}  # fmt: skip
_REFLECTED = {"Eq": "eq", "NotEq": "ne", "Lt": "gt", "LtE": "ge", "Gt": "lt", "GtE": "le"}
_COMPARED = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
BINARY = {
    kind: _binary(f"__{name}__", f"__r{name}__", getattr(operator, f"__{name}__")) for kind, name in _NAMES.items()
}
"""Binary operators by the name of their node."""
_IDENTITY: dict[str, Callable[[Any, Any], bool]] = {"Eq": operator.is_, "NotEq": operator.is_not}
COMPARISONS = {
    kind: _binary(f"__{name}__", f"__{_REFLECTED[kind]}__", getattr(operator, name), _IDENTITY.get(kind))
    for kind, name in _COMPARED.items()
}
"""Comparisons by the name of their node."""
_plain_not_equal = COMPARISONS["NotEq"]


def _not_equal(a: Any, b: Any) -> Any:
    """Return ``a != b``; without a method of its own, it is the negation of ``a == b``."""
    if type(a) in _PLAIN or type(a).__ne__ is not object.__ne__ or method_of(a, "__eq__") is None:
        return _plain_not_equal(a, b)
    return negated(COMPARISONS["Eq"](a, b))


COMPARISONS["NotEq"] = _not_equal
_UNARY = {"USub": "neg", "UAdd": "pos", "Invert": "invert"}
UNARY = {kind: _unary(f"__{name}__", getattr(operator, f"__{name}__")) for kind, name in _UNARY.items()}
"""Unary operators by the name of their node."""
IN_PLACE = {kind: getattr(operator, f"__i{name}__") for kind, name in _NAMES.items()}
"""Python's augmented assignments by the name of their operator's node."""
AUGMENTED = {kind: _augmented(f"__i{name}__", BINARY[kind], IN_PLACE[kind]) for kind, name in _NAMES.items()}
"""Augmented assignments by the name of their operator's node; each returns the value to store."""
OPERATORS: dict[str, Callable[..., Any]] = {**BINARY, **COMPARISONS, **UNARY}
"""All operators except the augmented assignments."""
METHODS = {kind: kind.lower() for kind in OPERATORS}
"""The runtime's method for each operator, by the name of its node."""


# -- iteration ----------------------------------------------------------------------------------------------------


class _Items:
    """A user's iterator; its converted ``__next__`` makes each item."""

    def __init__(self, iterator: Any, following: Callable[[Any], Any]) -> None:
        self.iterator = iterator
        self.following = following

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.following(self.iterator)


def items_of(obj: Any) -> Any:
    """Return an iterable of an object's items: an iterator by the user's converted methods, or the object itself."""
    made = method_of(obj, "__iter__")
    if made is None:
        getter = None if hasattr(type(obj), "__iter__") else method_of(obj, "__getitem__")
        return obj if getter is None else _by_index(obj, getter)
    iterator = made(obj)
    following = method_of(iterator, "__next__")
    return iterator if following is None else _Items(iterator, following)


def _by_index(obj: Any, getter: Callable[[Any, int], Any]) -> Iterator[Any]:
    """Yield the items of an object that only has a ``__getitem__``."""
    index = 0
    while True:
        try:
            item = getter(obj, index)
        except IndexError:
            return
        yield item
        index += 1


_OF_ITEMS = frozenset(
    {list, tuple, set, frozenset, dict, sum, min, max, any, all, sorted, enumerate, zip, map, filter, iter}
)
"""Builtins that iterate over their arguments, so that users' iterators must be converted first."""
_OF_METHODS: dict[Any, str] = {
    abs: "__abs__", len: "__len__", round: "__round__", next: "__next__", reversed: "__reversed__",
}  # fmt: skip
"""Builtins that call a special method of their argument."""


def builtin_on_users(function: Any, args: tuple[Any, ...]) -> tuple[Callable[..., Any] | None, tuple[Any, ...]]:
    """Return the converted special method that a builtin calls, or None, and the arguments with iterators converted."""
    name = _OF_METHODS.get(function)
    if name is not None and args:
        method = method_of(args[0], name)
        if method is not None and function is next and len(args) == 2:
            return _or_default(method), args
        return method, args
    if function in _OF_ITEMS:
        return None, tuple([one if type(one) in _PLAIN else items_of(one) for one in args])
    return None, args


def _or_default(following: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return ``next(iterator, default)`` for a converted ``__next__``."""

    def step(iterator: Any, default: Any) -> Any:
        try:
            return following(iterator)
        except StopIteration:
            return default

    return step


# -- items, attributes, blocks ------------------------------------------------------------------------------------


def setter_of(obj: Any, name: str) -> Callable[[Any, Any], None] | None:
    """Return the converted setter of an attribute if it is a user's property or descriptor; else None."""
    in_class = IN_CLASS.get(type(obj), name)
    if in_class is MISSING or not hasattr(type(in_class), "__set__"):
        return None
    if type(in_class) is property:
        if type(in_class.fset) is FunctionType and is_users(in_class.fset.__code__):
            observe.class_attribute(obj, name)
            return attached("converted")(in_class.fset)
        return None
    put = method_of(in_class, "__set__")
    if put is None:
        return None
    observe.class_attribute(obj, name)
    return lambda obj, value: put(in_class, obj, value)


class _Manager:
    """A context manager whose methods run converted if a user wrote them.

    It must not swallow an exception that only some calls raise.
    """

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.within: Any = None

    def __enter__(self) -> Any:
        enter = method_of(self.manager, "__enter__")
        made = type(self.manager).__enter__(self.manager) if enter is None else enter(self.manager)
        if type(self.manager) is suppress:
            classes = cast(Any, self.manager)._exceptions
            self.within = regions.trying(lambda: classes)
            self.within.__enter__()
        return made

    def __exit__(self, kind: type[BaseException] | None, error: Any, place: TracebackType | None) -> Any:
        if self.within is not None:
            self.within.__exit__(None, None, None)
        leave = method_of(self.manager, "__exit__")
        leave = type(self.manager).__exit__ if leave is None else leave
        hides = leave(self.manager, kind, error, place)
        if hides:
            regions.require_certain(error)
            if isinstance(error, NameError):
                regions.handled_name(error)
        return hides


def manager(obj: Any) -> Any:
    """Return the context manager that a ``with`` statement enters."""
    return _Manager(obj) if hasattr(type(obj), "__enter__") and hasattr(type(obj), "__exit__") else obj


def contains(container: Any) -> Callable[[Any, Any], Any] | None:
    """Return the converted ``__contains__`` of a user's container, or a replacement; None for other containers."""
    method = method_of(container, "__contains__")
    if method is not None or hasattr(type(container), "__contains__"):
        return method
    if method_of(container, "__iter__") is None and method_of(container, "__getitem__") is None:
        return None
    equal = COMPARISONS["Eq"]
    return lambda obj, item: [True if observe.same(one, item) else equal(one, item) for one in items_of(obj)]
