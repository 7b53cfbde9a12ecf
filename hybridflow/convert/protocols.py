"""Python's protocols on users' objects: CPython drives them, and the special methods that a user wrote run converted.

An object whose class has such methods goes to CPython's own operation as a stand-in: an object of a class with the same
special methods in the same order of inheritance, each of which runs the user's method, converted, on the object itself.
So CPython decides what is called, in what order, and what is an error. `OPERATORS`, `AUGMENTED` and `_OF_BUILTINS` say
which special methods an operation uses. A tensor may enter where CPython asks for a truth or a length (`Answered`), in
``x != y`` that ``__eq__`` decides, and in ``x in y`` that compares items (see `hybridflow.convert.builtin`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    TracebackType,
    WrapperDescriptorType,
)
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hybridflow.convert import regions, texts
from hybridflow.convert.values import negated
from hybridflow.core.attached import attached
from hybridflow.core.functions import is_own
from hybridflow.core.held import defines
from hybridflow.core.staged_number import BOOL, INT, StagedNumber
from hybridflow.core.tensor import Tensor
from hybridflow.core.tracebacks import trim_on_the_way
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards import observe
from hybridflow.guards.access import IN_CLASS, MISSING
from hybridflow.guards.users import is_users, is_users_class

_PLAIN = frozenset(
    {Tensor, Variable, TracedArray, TracedNumber, StagedNumber, int, float, bool, complex, str, bytes, list, tuple,
     dict, set, type(None), range, np.ndarray, type, slice}
)
"""Types whose special methods no user wrote."""
_COLLECTIONS = frozenset({list, tuple, dict, set})
"""Those of them that compare their items."""
_CPYTHONS = (
    WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType, BuiltinFunctionType, GetSetDescriptorType,
    MemberDescriptorType, type(None), type(MISSING),
)
"""Types of what a class defines under a special name if no user wrote it."""
_HEAP_TYPE = 1 << 9
"""The flag of classes that a ``class`` statement or a library made."""


# -- special methods ----------------------------------------------------------------------------------------------


def _is_written(method: Any) -> bool:
    """Whether a user wrote what a class defines under a special name."""
    kind = type(method)
    if kind in _CPYTHONS:
        return False
    if kind is FunctionType:
        return is_users(method.__code__)
    if kind is staticmethod or kind is classmethod:
        return _is_written(method.__func__)
    return _is_written(method.fget) if kind is property else True


def _bound(method: Any, obj: Any, kind: type) -> Any:
    """Return what a class defines under a special name, bound to an object (or to the class, if that is None)."""
    if type(method) is FunctionType:
        return method if obj is None else MethodType(method, obj)
    if type(method) is property and obj is not None and _is_written(method):
        return attached("converted")(method.fget)(obj)
    get = method_of(method, "__get__")
    if get is not None:
        return get(obj, kind)
    return method.__get__(obj, kind) if defines(type(method), "__get__") else method


def special(obj: Any, name: str) -> Callable[..., Any]:
    """Return a special method of an object, bound; it runs converted if a user wrote it."""
    kind = type(obj)
    if is_users_class(kind):
        observe.class_attribute(obj, name)
    method = IN_CLASS.get(kind, name)
    bound = _bound(method, obj, kind)
    return attached("callee")(bound) if _is_written(method) else bound


def method_of(obj: Any, name: str) -> Callable[..., Any] | None:
    """Return the special method of an object, bound and converted; None if no user wrote it."""
    kind = type(obj)
    if kind in _PLAIN:
        return None
    method = IN_CLASS.get(kind, name)
    if not _is_written(method):
        if is_users_class(kind):
            observe.class_attribute(obj, name)
        return None
    return special(obj, name)


def is_plain(obj: Any) -> bool:
    """Whether an object's type shows that no user wrote its special methods."""
    return type(obj) in _PLAIN


# -- stand-ins ----------------------------------------------------------------------------------------------------


class Answered(BaseException):
    """Leaves an operation of CPython's at a special method whose answer a tensor decides.

    Attributes:
        answer: the answer.
    """

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.answer = answer


class StandIn:
    """The base of all stand-ins, in the place of `object`."""

    __slots__ = ()

    def __ne__(self, other: Any) -> Any:
        method = IN_CLASS.get(type(self), "__eq__")
        result = _bound(method, self, type(self))(other)
        return result if result is NotImplemented else negated(truth_of(result))

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _itself(value: Any) -> Any:
    """Return the object that a stand-in stands for; other values unchanged."""
    return object.__getattribute__(value, "__dict__")["of"] if issubclass(type(value), StandIn) else value


class _Caller:
    """A special method of a stand-in, bound or such as CPython does not bind: an object with a ``__call__``.

    Args:
        function: the method of the object.
        name: its name.
        reads: the object, if no user wrote the method, so that its reads are not seen; else None.
    """

    def __init__(self, function: Any, name: str, reads: Any = None) -> None:
        self.function = function
        self.name = name
        self.reads = reads

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_itself, args))
        if self.reads is None:
            result = attached("callee")(self.function)(*args, **kwargs)
        else:
            (observe.iterate if self.name in CONTAINMENT else observe.whole)(self.reads)
            result = self.function(*args, **kwargs)
        if self.name in _MADE:
            return stand_in(result, _MADE[self.name])
        if type(result) is StagedNumber and result.kinds == _DECIDED.get(self.name):
            raise Answered(result)
        if type(result) is TracedNumber and self.name in _LOOKED_AT:
            result.needed()
        if self.name == "__contains__" and isinstance(result, Tensor | StagedNumber):
            raise Answered(result)
        return result


class _Binder(_Caller):
    """A special method of a stand-in that CPython binds."""

    def __get__(self, obj: Any, kind: Any) -> Any:
        if obj is None:
            return _bound(self.function, None, kind.stands_for)
        obj = _itself(obj)
        return _Caller(_bound(self.function, obj, type(obj)), self.name, None if _is_written(self.function) else obj)


_ITERATOR = ("__next__", "__iter__", "__length_hint__")
_ITERATION = ("__iter__", "__getitem__", "__len__", "__length_hint__")
CONTAINMENT = ("__contains__", *_ITERATION)
"""The special methods that ``x in y`` uses of y."""
_MADE = {"__iter__": _ITERATOR, "__reversed__": _ITERATOR}
"""The special methods whose results CPython goes on to use, and the special methods that it uses of them."""
_DECIDED = {"__bool__": BOOL, "__len__": INT}
"""The kinds of the numbers that special methods return."""
_LOOKED_AT = frozenset({"__bool__", "__len__", "__length_hint__", "__index__", "__int__", "__float__", "__hash__"})
"""The special methods whose results CPython takes only if they are numbers of its own."""
_OF_OPERANDS: set[tuple[str, ...]] = set()
"""The special methods of operators on two objects: these depend on whether one's type inherits from the other's."""
_LAYOUTS: dict[type, Callable[[Any], Any]] = {
    list: list.copy, dict: dict.copy, set: set.__iter__, frozenset: frozenset.__iter__, int: int.__int__,
    float: float.__float__, complex: complex.__complex__, str: str.__str__,
    **{kind: lambda obj, kind=kind: kind.__getitem__(obj, slice(None)) for kind in (tuple, bytes, bytearray)},
}
"""The interpreter's types from which users' classes inherit operators, and how to copy what an object of them holds."""
_mirrors: WeakKeyDictionary[type, dict[tuple[str, ...], tuple[tuple[type, ...], dict[str, Any], type]]]
_mirrors = WeakKeyDictionary()
"""The classes of stand-ins by class and special methods, each with its bases and the methods that it was made of."""


def stand_in(obj: Any, names: tuple[str, ...], *, always: bool = False) -> Any:
    """Return what stands for an object in an operation of CPython's; the object itself if no user wrote its methods.

    Args:
        obj: the object.
        names: the special methods that the operation uses.
        always: whether to make a stand-in even if no user wrote a method.
    """
    kind = type(obj)
    if not always and (kind in _PLAIN or issubclass(kind, StandIn)):
        return obj
    if is_users_class(kind):
        for name in names:
            observe.class_attribute(obj, name)
    if not always and not any(_is_written(vars(one).get(name)) for one in kind.__mro__[:-1] for name in names):
        return obj
    made = _mirror(kind, names)
    layout = next((one for one in _LAYOUTS if one in made.__mro__), None)
    stand: Any = object.__new__(made) if layout is None else _copied(made, layout, obj)
    object.__getattribute__(stand, "__dict__")["of"] = obj
    return stand


def _mirror(kind: type, names: tuple[str, ...]) -> type:
    """Return the class of stand-ins for a class: it has the same special methods, by the same inheritance."""
    if kind is object:
        return StandIn
    own = {name: vars(kind)[name] for name in names if name in vars(kind)}
    bases = tuple([_mirror(base, names) for base in kind.__bases__])
    known = _mirrors.setdefault(kind, {}).get(names)
    if known is not None and known[0] == bases and _are_same(known[1], own):
        return known[2]
    if kind in _LAYOUTS and names in _OF_OPERANDS:
        made = type(kind.__name__, (kind, StandIn), {"stands_for": kind})
    else:
        methods = {name: _mirrored(method, name) for name, method in own.items()}
        if "keys" in names:
            methods["__getattribute__"] = _read
        made = type(kind.__name__, bases, {"__hash__": object.__hash__, **methods, "stands_for": kind})
    _mirrors[kind][names] = bases, own, made
    return made


def _are_same(known: dict[str, Any], own: dict[str, Any]) -> bool:
    return known.keys() == own.keys() and all(known[name] is method for name, method in own.items())


def _mirrored(method: Any, name: str) -> Any:
    if method is None:
        return None
    return (_Binder if defines(type(method), "__get__") else _Caller)(method, name)


def _copied(made: Any, layout: Any, obj: Any) -> Any:
    """Return a stand-in with what an object of a type of the interpreter's holds."""
    held = _LAYOUTS[layout](obj)
    stand = layout.__new__(made, held)
    if layout in (list, dict, set, bytearray):
        layout.__init__(stand, held)
    return stand


def _read(stand: Any, name: str) -> Any:
    """Read an attribute, such as ``keys``, for a stand-in."""
    return attached("callee")(attached("read_attribute")(_itself(stand), name))


def driven(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of CPython's with stand-ins, and return the result."""
    try:
        return _itself(function(*args, **kwargs))
    except Answered as found:
        return found.answer


def _pair(a: Any, b: Any, names: tuple[str, ...]) -> tuple[Any, Any]:
    """Return what stands for two operands; both get a stand-in if one does, unless the interpreter defines its type."""
    first = stand_in(a, names)
    second = first if b is a else stand_in(b, names)
    if first is a and second is not b and _is_foreign(type(a)):
        first = stand_in(a, names, always=True)
    elif second is b and first is not a and _is_foreign(type(b)):
        second = stand_in(b, names, always=True)
    return first, second


def ordered(keys: list[Any]) -> list[Any]:
    """Return what stands for the keys of a sort."""
    names = ("__lt__", "__gt__")
    stands = [stand_in(one, names) for one in keys]
    if all(map(operator.is_, stands, keys)):
        return keys
    return [stand_in(one, names, always=_is_foreign(type(one))) for one in keys]


def _is_foreign(kind: type) -> bool:
    return bool(kind.__flags__ & _HEAP_TYPE) or kind.__module__ != "builtins"


def truth_of(obj: Any) -> Any:
    """Return a value with the truth of an object: the result of the user's own method if there is one."""
    if type(obj) in _PLAIN:
        if type(obj) in _COLLECTIONS:
            _looked_at(obj)
        return obj
    stand = stand_in(obj, _TRUTH)
    if stand is not obj:
        return driven(bool, stand)
    for name in _TRUTH:
        if IN_CLASS.get(type(obj), name) is not MISSING:
            observe.special(obj, name)
            return obj
    return True


_TRUTH = ("__bool__", "__len__")


def _looked_at(*values: Any) -> None:
    observe.looked_at(*values)
    for one in values:
        regions.read(one)


# -- operators ----------------------------------------------------------------------------------------------------


def _binary(names: tuple[str, ...], plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function that applies a binary operator, which uses these special methods."""
    compares, formats = names[-1] in _ORDER, "__mod__" in names

    def operate(a: Any, b: Any) -> Any:
        if type(a) in _PLAIN and type(b) in _PLAIN:
            if type(a) in _COLLECTIONS:
                _looked_at(a, b)
                if compares:
                    observe.whole(a, b)
            elif formats and type(a) in (str, bytes):
                observe.whole(b)
            return _computed(plain(a, b))
        first, second = _pair(a, b, names)
        if first is a and second is b:
            observe.whole(a, b)
            return plain(a, b)
        return driven(plain, first, second)

    return operate


def _unary(name: str, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def operate(a: Any) -> Any:
        return _computed(driven(plain, stand_in(a, (name,))))

    return operate


def _computed(result: Any) -> Any:
    """Return the result of an operator; record the state by which NumPy computed it."""
    if isinstance(result, np.ndarray | np.generic):
        observe.computed(result)
    return result


def _augmented(names: tuple[str, ...], plain: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def operate(a: Any, b: Any) -> Any:
        if type(a) in _PLAIN and type(b) in _PLAIN:
            return _computed(plain(a, b))
        first, second = _pair(a, b, names)
        if first is a and second is b:
            observe.whole(a, b)
            return plain(a, b)
        result = plain(first, second)
        if result is first and first is not a:  # a sequence's own method has changed the stand-in
            return getattr(super(type(a), a), names[0])(b)
        return _itself(result)

    return operate


_NAMES = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "truediv", "FloorDiv": "floordiv", "Mod": "mod", "Pow": "pow",
    "MatMult": "matmul", "BitAnd": "and", "BitOr": "or", "BitXor": "xor", "LShift": "lshift", "RShift": "rshift",
}


def _plain(operation: Any) -> Any:
    return texts.of_text(operation) if operation in (operator.mod, operator.imod) else operation


_REFLECTED = {"Eq": "eq", "NotEq": "eq", "Lt": "gt", "LtE": "ge", "Gt": "lt", "GtE": "le"}
_ORDER = frozenset({f"__{name}__" for name in _REFLECTED.values()})
_COMPARED = {"Eq": "eq", "NotEq": "ne", "Lt": "lt", "LtE": "le", "Gt": "gt", "GtE": "ge"}
BINARY = {
    kind: _binary((f"__{name}__", f"__r{name}__"), _plain(getattr(operator, f"__{name}__")))
    for kind, name in _NAMES.items()
}
"""Binary operators by the name of their node."""
COMPARISONS = {
    kind: _binary((f"__{name}__", f"__{_REFLECTED[kind]}__"), getattr(operator, name))
    for kind, name in _COMPARED.items()
}
"""Comparisons by the name of their node."""
_UNARY = {"USub": "neg", "UAdd": "pos", "Invert": "invert"}
UNARY = {kind: _unary(f"__{name}__", getattr(operator, f"__{name}__")) for kind, name in _UNARY.items()}
"""Unary operators by the name of their node."""
IN_PLACE = {kind: getattr(operator, f"__i{name}__") for kind, name in _NAMES.items()}
"""Python's augmented assignments by the name of their operator's node."""
AUGMENTED = {
    kind: _augmented((f"__i{name}__", f"__{name}__", f"__r{name}__"), _plain(IN_PLACE[kind]))
    for kind, name in _NAMES.items()
}
"""Augmented assignments by the name of their operator's node; each returns the value to store."""
OPERATORS: dict[str, Callable[..., Any]] = {**BINARY, **COMPARISONS, **UNARY}
"""All operators except the augmented assignments."""
METHODS = {kind: kind.lower() for kind in OPERATORS}
"""The runtime's method for each operator, by the name of its node."""


_OF_OPERANDS.update(
    {(f"__{name}__", f"__r{name}__") for name in (*_NAMES.values(), "divmod")},
    {(f"__i{name}__", f"__{name}__", f"__r{name}__") for name in _NAMES.values()},
    {(f"__{name}__", f"__{_REFLECTED[kind]}__") for kind, name in _COMPARED.items()},
)


# -- builtins -----------------------------------------------------------------------------------------------------


def items_of(obj: Any) -> Any:
    """Return what has an object's items when CPython iterates over it: a stand-in, or the object itself."""
    return stand_in(obj, _ITERATION)


_OF_BUILTINS: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((list, tuple, set, frozenset, sum, min, max, any, all, sorted, enumerate, zip, map, filter, iter),
                    _ITERATION),
    **dict.fromkeys((repr, ascii), ("__repr__",)), str: ("__str__", "__repr__"),
    format: ("__format__", "__str__", "__repr__"),
    dict: (*_ITERATION, "keys"), abs: ("__abs__",), len: ("__len__",), round: ("__round__",), next: ("__next__",),
    reversed: ("__reversed__", "__len__", "__getitem__"), divmod: ("__divmod__", "__rdivmod__"),
    pow: ("__pow__", "__rpow__"), bool: _TRUTH,
}
"""Builtins that use their arguments by special methods, which a user may have written."""
_FIRST_IS_CALLED = frozenset({map, filter})


def drives(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a builtin with stand-ins for users' objects."""
    names = _OF_BUILTINS.get(function)
    if names is None or (function is iter and len(args) != 1):
        return args
    if function is dict and issubclass(type(next(iter(args), None)), dict) and method_of(args[0], "__iter__") is None:
        return args  # its items are copied as they are stored
    if function in (divmod, pow):
        return (*_pair(*args[:2], names), *args[2:]) if len(args) > 1 else args
    start = 1 if function in _FIRST_IS_CALLED else 0
    end = 1 if function in _OF_FIRST else None
    if function in (min, max) and len(args) > 1:
        return args
    return tuple([*args[:start], *[stand_in(one, names) for one in args[start:end]], *(args[end:] if end else ())])


_OF_FIRST = frozenset({sum, next, enumerate, round, sorted, iter, str, format})
"""Builtins that use only their first argument so."""


# -- items, attributes, blocks ------------------------------------------------------------------------------------


def setter_of(obj: Any, name: str, method: str = "__set__") -> Callable[..., None] | None:
    """Return the converted setter (or ``__delete__``) of a user's property or descriptor, for an object; else None."""
    in_class = IN_CLASS.get(type(obj), name)
    if in_class is MISSING or not defines(type(in_class), method):
        return None
    if type(in_class) is property:
        function = in_class.fset if method == "__set__" else in_class.fdel
        if not _is_written(function):
            return None
        observe.class_attribute(obj, name)
        return MethodType(attached("converted")(function), obj)
    put = method_of(in_class, method)
    if put is None:
        return None
    observe.class_attribute(obj, name)
    return partial(put, obj)


@contextmanager
def _nothing() -> Generator[None]:
    yield


_GENERATOR = type(_nothing())
"""The type of what `contextlib.contextmanager` makes of a generator."""


class _Manager:
    """A context manager whose methods run converted if a user wrote them.

    It must not swallow an exception that only some calls raise.
    """

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.within: Any = None
        self.leave: Any = None

    def __enter__(self) -> Any:
        enter, self.leave = [special(self.manager, name) for name in ("__enter__", "__exit__")]
        # A generator's manager knows its function only until it is entered.
        made_by = getattr(self.manager, "func", None) if type(self.manager) is _GENERATOR else type(self.manager)
        made = enter()
        if not is_own(str(getattr(made_by, "__module__", None))):
            self.within = regions.trying(type(self.manager) is suppress)
            self.within.__enter__()
        return made

    def __exit__(self, kind: type[BaseException] | None, error: Any, place: TracebackType | None) -> Any:
        if self.within is not None:
            self.within.__exit__(None, None, None)
        trim_on_the_way(error)
        place = place if error is None else error.__traceback__
        hides = self.leave(kind, error, place)
        if error is None:
            return None
        hides = truth_of(hides)
        if hides:
            regions.require_certain(error)
            if isinstance(error, NameError):
                regions.handled_name(error)
        return hides


def manager(obj: Any) -> Any:
    """Return the context manager that a ``with`` statement enters."""
    has = all(IN_CLASS.get(type(obj), name) is not MISSING for name in ("__enter__", "__exit__"))
    return _Manager(obj) if has else obj


