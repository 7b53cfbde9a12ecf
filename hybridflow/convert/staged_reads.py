"""What converted code may ask of the stand-ins for Python numbers: attributes, types, identity, items of lists.

CPython reads an object's type, its address and its C fields without a word. Converted code asks here first. What is not
in a table ends with an error at its line, or (for float arguments, whose number the call has) a trace by value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, cast

import jax

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert.branches import value_on_tensor
from hybridflow.convert.staged import (
    absolute,
    apply,
    as_bool,
    as_float,
    as_int,
    inverted,
    kinds_of,
    negative,
    positive,
    powered,
    raw_dtype,
    rounded,
    shown,
    staged,
    staged_int,
)
from hybridflow.convert.values import is_dynamic, is_tensor
from hybridflow.core.errors import ArgumentTypeError, TracedValueError, message
from hybridflow.core.staged_number import BOOL, StagedNumber, needed, refused, several_kinds, used_at
from hybridflow.core.tensor import as_tensor, asarray
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import OF_NUMBERS, TracedNumber
from hybridflow.guards import observe
from hybridflow.ir.builder import add_check

_MOST = 64
"""The largest number of items, other than plain numbers, from which a tensor may choose."""
_PLAIN_NUMBERS = frozenset({bool, int, float})


# -- attributes -----------------------------------------------------------------------------------------------------


def _imaginary(number: StagedNumber) -> Any:
    kinds = {float if kind is float else int for kind in number.kinds}
    if len(kinds) > 1:
        raise several_kinds(number, "is asked for its imaginary part")
    return kinds.pop()(0)


def _is_whole(number: StagedNumber) -> StagedNumber:
    raw = as_float(number).raw
    return staged(BOOL, PUBLIC.logical_and(PUBLIC.isfinite(raw), PUBLIC.floor(raw) == raw), 1)


def _ratio(number: StagedNumber) -> Any:
    return needed(number, "float.as_integer_ratio") if float in number.kinds else (positive(number), 1)


def _binary(name: str) -> Callable[[Any, Any], Any]:
    return lambda number, other: apply(name, number, other)


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    return lambda number, other: apply(name, other, number)


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift")
_VALUES: dict[str, Callable[[StagedNumber], Any]] = {
    "real": positive, "imag": _imaginary, "numerator": positive, "denominator": lambda number: 1,
}
_METHODS: dict[str, Callable[..., Any]] = {
    "conjugate": positive, "is_integer": _is_whole, "as_integer_ratio": _ratio,
    "__abs__": absolute, "__neg__": negative, "__pos__": positive, "__invert__": inverted, "__round__": rounded,
    "__trunc__": as_int, "__floor__": lambda number: operator.methodcaller("__floor__")(number),
    "__ceil__": lambda number: operator.methodcaller("__ceil__")(number),
    "__bool__": as_bool, "__int__": as_int, "__float__": as_float, "__index__": as_int, "__pow__": powered,
    "__rpow__": _reflected("pow"), "__divmod__": lambda number, other: divmod(number, other),
    "__rdivmod__": lambda number, other: divmod(other, number),
    **{f"__{name}__": _binary(name) for name in (*_ARITHMETIC, "lt", "le", "gt", "ge", "eq", "ne")},
    **{f"__r{name}__": _reflected(name) for name in _ARITHMETIC},
}
"""The attributes and methods of numbers that give what Python gives; all others need the value."""


def attribute_of(number: Any, name: str) -> Any:
    """Return an attribute of a stand-in for a Python number.

    Raises:
        AttributeError: numbers of that type have none of this name.
        DTypeError: only some of the types that it may have do.
    """
    if type(number) is TracedNumber:
        kind = number.__class__
        return getattr(number, name) if name in OF_NUMBERS[kind] else _absent(kind, name, number)
    have = {name in OF_NUMBERS[kind] for kind in number.kinds}
    if have == {False}:
        return _absent(number.__class__, name, number)
    if len(have) > 1:
        raise several_kinds(number, f"is asked for its {name!r}, which only some of them have")
    if name in _VALUES:
        return _VALUES[name](number)
    if name == "__class__":
        return type_of(number)
    if not all(callable(getattr(kind, name)) for kind in number.kinds):
        return getattr(type_of(number), name)
    method = _METHODS.get(name)
    kind = number.__class__
    return MethodType(method or (lambda number, *_, **__: needed(number, f"{kind.__name__}.{name}")), number)


def _absent(kind: type, name: str, number: Any) -> Any:
    raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}", name=name)


def call_of_type(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of `int`, `float` or `bool` through the type, such as ``float.hex(x)``."""
    number = args[0] if args else None
    if function.__objclass__ is object:
        require_plain(f"object.{function.__name__}", args[:1])
        return function(*args, **kwargs)
    if type(number) is StagedNumber and all(issubclass(kind, function.__objclass__) for kind in number.kinds):
        narrower = function.__objclass__ is int and bool in number.kinds
        return attribute_of(as_int(number) if narrower else number, function.__name__)(*args[1:], **kwargs)
    require_plain(f"{function.__objclass__.__name__}.{function.__name__}", (*args, *kwargs.values()))
    return function(*args, **kwargs)


def call_of_number(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a plain number, such as ``(0.5).__add__``, which would not know a stand-in."""
    require_plain(f"{type(function.__self__).__name__}.{function.__name__}", (*args, *kwargs.values()))
    return function(*args, **kwargs)


def require_plain(name: str, values: Sequence[Any]) -> None:
    """Raise if there are stand-ins among the arguments of a function that reads numbers as C does.

    Raises:
        TracedValueError: a number that a tensor decides.
        NeedsNumber: a number that is an input.
    """
    for one in values:
        if type(one) is StagedNumber:
            needed(one, name)
        if type(one) is TracedNumber:
            one.needed()


# -- types and identity -----------------------------------------------------------------------------------------------


def type_of(number: StagedNumber | TracedNumber) -> type:
    """Return ``type(number)``.

    Raises:
        DTypeError: it depends on a tensor.
    """
    if type(number) is StagedNumber:
        if len(number.kinds) > 1:
            raise several_kinds(number, "is asked for its type")
        return next(iter(number.kinds))
    return number.__class__


def is_instance(number: Any, classes: Any, /) -> bool:
    """Return ``isinstance`` for a number that a tensor decides, or for an array among the arguments.

    Raises:
        DTypeError: the answer depends on a tensor.
    """
    if type(number) is TracedArray:
        return issubclass(number.kind, classes)
    if type(number) is not StagedNumber:
        return isinstance(number, classes)  # raises Python's error: a number is no class
    answers = {isinstance(one, classes) for one in number.examples()}
    if len(answers) > 1:
        raise several_kinds(number, "is asked whether it is of a type, which some of them are")
    return answers.pop()


def same(a: Any, b: Any) -> Any:
    """Return ``a is b``: for a bool that a tensor decides, a number; for other numbers, an error if it may be either.

    Raises:
        TracedValueError: the answer depends on which objects CPython makes.
    """
    if a is not b:
        for one, other in ((a, b), (b, a)):
            if type(one) is StagedNumber or type(one) is TracedNumber:
                return _is(one, other)
        if observe.may_be_one(a, b):
            text = message(
                f"is: which {type(a).__name__} it is depends on a tensor", got=f"two of them, {used_at()}",
                hint="Compare what is in them, or choose a number beside the object and compare that.",
            )
            raise refused(TracedValueError(text))
    return observe.same(a, b)


def _is(number: Any, other: Any) -> Any:
    plain = type(other) in (StagedNumber, TracedNumber, bool, int, float)
    if not plain or not kinds_of(number) & kinds_of(other):
        return False
    if kinds_of(number) == kinds_of(other) == BOOL:  # there is one True, and one False
        return apply("eq", number, other)
    for one in (number, other):
        if type(one) is TracedNumber and one.__class__ is int:
            one.needed()  # small ints are one object each
    text = message(
        "is: whether two Python numbers are one object differs from call to call",
        got=f"{_spoken(number)} is {_spoken(other)}, {used_at()}",
        hint="Compare them with ==, or use None as the mark.",
    )
    raise refused(ArgumentTypeError(text))


def _spoken(number: Any) -> str:
    if type(number) is TracedNumber:
        return f"<a {number.__class__.__name__} that is an input>"
    return shown(number) if type(number) is StagedNumber else repr(number)


def identity(obj: Any) -> int:
    """Return ``id(obj)``."""
    if type(obj) is TracedNumber and obj.__class__ is int:
        obj.needed()
    if type(obj) is StagedNumber or type(obj) is TracedNumber:
        text = message("id: a Python number is another object in each call", got=f"{_spoken(obj)}, {used_at()}",
                       hint="Use the number itself.")
        raise refused(ArgumentTypeError(text))
    return observe.identity(obj)


# -- items ----------------------------------------------------------------------------------------------------------


def is_position(key: Any) -> bool:
    """Whether a key is an integer that a tensor decides, or a tensor of one integer."""
    if type(key) is StagedNumber:
        return float not in key.kinds
    return is_tensor(key) and key.shape == () and key.dtype.kind in "iu"


def item_at(items: Sequence[Any], key: Any) -> Any:
    """Return ``items[key]`` of a list or tuple for a position that a tensor decides.

    Raises:
        TracedValueError: the items are no tensors or numbers, or there are too many.
    """
    index = key if type(key) is StagedNumber else staged_int(as_tensor(key))
    leaves = jax.tree_util.tree_leaves(list(items))
    numbers = {type(one) for one in items}
    table = len(numbers) == 1 and numbers <= _PLAIN_NUMBERS
    if not (items and all(map(is_dynamic, leaves)) and leaves and (table or len(items) <= _MOST)):
        what = f"an index of a {type(items).__name__} whose {len(items)} items are not all tensors or numbers"
        return needed(index, what if len(items) <= _MOST else f"an index of {len(items)} items")
    size = len(items)
    position = as_int(index).raw
    position = PUBLIC.where(position < 0, position + size, position)
    ok = PUBLIC.logical_and(position >= 0, position < size)
    add_check(ok, IndexError, f"{type(items).__name__} index out of range")
    if table:
        kinds = kinds_of(items[0])
        array: Any = asarray(list(items), dtype=raw_dtype(kinds))
        limit = 0 if float in kinds else max(map(abs, cast("list[int]", items)))
        return staged(kinds, array[PUBLIC.clip(position, 0, size - 1)], limit)

    def between(low: int, high: int) -> Any:
        if high - low == 1:
            return items[low]
        middle = (low + high) // 2
        return value_on_tensor(position < middle, lambda: between(low, middle), lambda: between(middle, high))

    return between(0, size)
