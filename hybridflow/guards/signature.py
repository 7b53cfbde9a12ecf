"""Signatures: two calls can share a trace only if the keys of their signatures are equal."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import math
import types
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from hybridflow.core.dtypes import as_dtype
from hybridflow.core.functions import Whole, is_whole
from hybridflow.core.held import Opened, attributes_of, defines, is_by_fields, made_of
from hybridflow.core.mesh import lies_on_several
from hybridflow.core.spec import TensorSpec, format_spec, make_spec
from hybridflow.core.structures import nested_too_deep
from hybridflow.core.tensor import Tensor, make_tensor, to_numpy
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards.access import MISSING
from hybridflow.guards.contents import in_sequence, pairs_of
from hybridflow.guards.order import DICTS, flattened, has_order, in_order_of, with_given_parts
from hybridflow.guards.shown import shown

TENSOR, VARIABLE, STATIC = "tensor", "variable", "static"
NUMBER = "number"
"""The kind of a Python number that each call has its own value of, unless the traced code needs the number."""
NOTHING = "nothing"
"""The kind of a None inside a structure. It belongs to the structure; only `named_leaves` makes it a leaf."""
LEAF = jax.tree_util.tree_structure(0)
"""The structure of a single leaf. (`jax.tree_util.treedef_is_leaf` is also true of empty structures.)"""


class Leaf(NamedTuple):
    """One flattened argument.

    Attributes:
        path: where it is, such as ``x`` or ``batch['image']``; empty unless `named_leaves` filled it in.
        kind: tensor, variable, number, static or nothing.
        value: the tensor, the Variable, or the Python value.
        key: what a trace depends on.
    """

    path: str
    kind: str
    value: Any
    key: Any

    @property
    def array(self) -> type | None:
        """The type of what was passed as a tensor, NumPy's array; None for tensors."""
        return self.key[3] if len(self.key) > 3 and self.kind == TENSOR else None

    def describe(self) -> str:
        """Describe the leaf as ``explain`` shows it."""
        if self.kind == TENSOR:
            spec = self.value.spec
            if self.key[1] == spec.shape:
                return str(spec)
            return f"{spec} as {format_spec(tuple([None if s == -1 else s for s in self.key[1]]), spec.dtype)}"
        if self.kind == VARIABLE:
            return f"Variable {self.value.spec}"
        if self.kind == NUMBER:
            return self.key[1].__name__
        if is_whole(self.value):
            return f"a {type(self.value).__name__}"
        kind = self.value.kind if isinstance(self.value, _Text) else type(self.value).__name__
        text = shown(self.value)
        return (text if text == f"a {kind}" else f"{kind} {text}")[:80]


def _kind(leaf: Leaf) -> str:
    return "a tensor" if leaf.array is None else f"{leaf.array.__module__.partition('.')[0]}.{leaf.array.__name__}"


class Identity:
    """A key that equals itself only for the same living object."""

    __slots__ = ("_hash", "_reference")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._reference: Any = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value  # kept alive, so that its id is not used again

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return NotImplemented
        obj = self._reference()
        return obj is not None and obj is other._reference()

    def __hash__(self) -> int:
        return self._hash

    def watch(self, gone: Callable[[Any], None]) -> Any:
        """Return what calls a function when the object is gone, as long as it is kept; None if it never will."""
        obj = self._reference()
        return weakref.ref(obj, gone) if type(self._reference) is weakref.ref and obj is not None else None


def identities_in(key: Any) -> Iterator[Identity]:
    """Yield the identities of objects in a key (nested tuples)."""
    if isinstance(key, tuple):
        for part in cast("tuple[Any, ...]", key):
            yield from identities_in(part)
    elif isinstance(key, Identity):
        yield key


class BoundCall:
    """A function together with the instance it is a method of."""

    __slots__ = ("__func__", "__self__")

    def __init__(self, function: Any, instance: object) -> None:
        self.__func__ = function
        self.__self__ = instance

    @property
    def attributed(self) -> Any:
        """The function that has the attributes which the user set."""
        return self.__func__

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature for `inspect.signature`: the function's, without the instance."""
        return inspect.signature(types.MethodType(self.__func__, self.__self__))


_PLAIN = frozenset({bool, int, str, bytes, type(None), type(...)})
_BY_IDENTITY = frozenset({weakref.ProxyType, weakref.CallableProxyType})
"""Types whose objects answer for others, which may be gone."""


def static_key(value: Any, *, by_value: bool = False, whole: bool = True) -> Any:
    """Return the key of a Python value: its type and value, and what else an object that counts by value holds.

    The type is part of the key because Python's ``==`` does not distinguish 1, 1.0 and True.

    Args:
        value: the value.
        by_value: whether an object of an unknown class is keyed by its own ``==`` and hash, if it is hashable, instead
            of by identity.
        whole: whether attributes count that are no part of the value, such as those of a subclass of `str`.
    """
    if type(value) in _PLAIN:
        return type(value), value
    return _Keys(by_value, whole).of(value)


class _Keys:
    """Makes the key of one value: see `static_key`."""

    def __init__(self, by_value: bool, whole: bool) -> None:
        self._by_value = by_value
        self._whole = whole
        self._around: list[Any] = []

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind is float:
            return kind, _of_float(value)
        if kind in _BY_IDENTITY or issubclass(kind, enum.Enum | type):
            return kind, Identity(value)
        for number, one in enumerate(self._around):
            if one is value:
                return kind, ("the object around it", number)
        self._around.append(value)
        try:
            key = self._of_parts(value)
            if key is not None:
                attributes = self._attributes(value) if self._whole and kind not in _EXACT else ()
                return (kind, key, attributes) if attributes else (kind, key)
        finally:
            self._around.pop()
        if isinstance(value, types.MethodType | BoundCall):
            return kind, Identity(value.__func__), Identity(value.__self__)
        if isinstance(value, np.dtype):  # ``==`` ignores how fields are aligned, and metadata
            return (kind, value) if value.isbuiltin and value.metadata is None else (kind, value, repr(value))
        if isinstance(value, TensorSpec):
            return kind, value
        if self._by_value and not isinstance(value, Tensor | Variable):
            try:
                hash(value)
            except TypeError:
                return kind, Identity(value)
            return kind, value
        return kind, Identity(value)

    def _attributes(self, value: Any) -> tuple[Any, ...]:
        """Return the keys of the attributes that are not part of the value."""
        fields = value.__dataclass_fields__ if is_by_fields(value) else ()
        return tuple([(name, self.of(one)) for name, one in attributes_of(value).items() if name not in fields])

    def _of_parts(self, value: Any) -> Any:
        """Return the key of a value that its parts determine; None if it is not of such a kind.

        No method of a user's subclass is called.
        """
        if isinstance(value, list | tuple):
            return tuple([self.of(item) for item in in_sequence(value)])
        if isinstance(value, dict):
            return tuple([(self.of(name), self.of(item)) for name, item in pairs_of(value)])
        if isinstance(value, set | frozenset):  # in iteration order: a function may loop over it
            iterate = set.__iter__ if isinstance(value, set) else frozenset.__iter__
            return tuple([self.of(item) for item in iterate(cast(Any, value))])
        for base, exact in _EXACTLY.items():
            if issubclass(type(value), base):  # not `isinstance`: stand-ins for numbers call themselves numbers
                return exact(value)
        if isinstance(value, memoryview):
            return value.format, value.shape, value.strides, value.readonly, bytes(value)
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, array):
            return value.typecode, value.tobytes()
        if isinstance(value, slice | range):
            return self.of(value.start), self.of(value.stop), self.of(value.step)
        if isinstance(value, np.ndarray | np.generic):
            objects = isinstance(value, np.ndarray) and value.dtype.hasobject
            name = value.dtype.str if value.dtype.isbuiltin == 1 else str(value.dtype)  # quick, and with all fields
            return name, value.shape, self.of(value.ravel().tolist()) if objects else value.tobytes()
        if isinstance(value, decimal.Decimal):
            return value.as_tuple()
        if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
            return repr(value), self.of(getattr(value, "tzinfo", None))
        if is_by_fields(value):
            return tuple([self.of(getattr(value, one.name, MISSING)) for one in dataclasses.fields(value)])
        return None


def _of_float(value: float) -> str:
    """Return a float's key: ``==`` takes -0.0 for 0.0, and NaN is not equal to itself."""
    return "nan" if math.isnan(value) else float.hex(value)


_EXACTLY: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    float: _of_float,
    complex: lambda value: (_of_float(complex.real.__get__(value)), _of_float(complex.imag.__get__(value))),
}
"""For subclasses of Python's plain types, a function that returns the plain value."""
_EXACT = frozenset({
    list, tuple, dict, set, frozenset, float, complex, bytearray, memoryview, array, slice, range, np.ndarray,
})
"""Types whose objects have no attributes of users."""


def counts_by_value(value: Any) -> bool:
    """Whether an object of a user's class is known by what it holds, so that an equal one stands for it.

    It is a frozen dataclass, or of a subclass of one of Python's plain types.
    """
    return type(value) not in _PLAIN and (
        is_by_fields(value) or (issubclass(type(value), (*_EXACTLY,)) and type(value) is not float)
    ) and not isinstance(value, enum.Enum)


class Signature(NamedTuple):
    """The flattened arguments of one call, the key they make, and the arguments by name.

    Attributes:
        leaves: the leaves.
        tree: the structure of each argument.
        key: equal for calls that share a trace.
        arguments: the arguments by name; frozen dataclasses that contain tensors are opened.
        types: what the structure does not tell of dict keys that are not strings, and the attributes of named tuples.
            Python's ``==`` does not distinguish 1, 1.0 and True.
        outside: the numbers outside the arguments that are inputs of the call's trace, once these are known.
    """

    leaves: list[Leaf]
    tree: Any
    key: Any
    arguments: dict[str, Any]
    types: tuple[Any, ...] = ()
    outside: tuple[float, ...] = ()


def flatten_arguments(arguments: dict[str, Any], static: frozenset[str]) -> Signature:
    """Flatten named arguments into leaves.

    Args:
        arguments: every parameter's name and value, in signature order.
        static: names whose whole value is static.
    """
    leaves: list[Leaf] = []
    seen: dict[int, int] = {}
    trees: list[Any] = []
    types: tuple[Any, ...] = ()
    for name, value in arguments.items():
        if name in static:
            leaves.append(Leaf("", STATIC, value, (STATIC, static_key(value, by_value=True))))
            trees.append(None)
        elif type(value) is Tensor or type(value) in _PLAIN:
            leaves.append(_leaf(value, seen))
            trees.append(LEAF)
        else:
            try:
                flat, tree = _flatten(name, value)
                if any(map(is_by_fields, flat)):
                    structure = jax.tree_util.tree_map(opened, value, is_leaf=is_whole)
                    arguments[name] = value = in_order_of(value, structure) if has_order(value) else structure
                    flat, tree = _flatten(name, value)
                types += _untold(value)
            except (RecursionError, SystemError) as error:
                raise nested_too_deep(value, error) from None
            leaves += [_leaf(leaf, seen) for leaf in flat]
            trees.append(tree)
    structure = tuple(trees)
    key = tuple(arguments), structure, tuple([leaf[3] for leaf in leaves])
    return Signature(leaves, structure, key, arguments, types)


def _untold(structure: Any) -> tuple[Any, ...]:
    """Return what jax's structure does not tell of a structure: the keys of dicts that are no strings, attributes."""
    untold: tuple[Any, ...] = ()
    items: Iterable[Any] = ()
    if isinstance(structure, dict):
        named = cast("dict[Any, Any]", structure)
        if {*map(type, named)} - _STRING:
            order = sorted(named) if type(named) in DICTS else [*named]
            untold = tuple([static_key(key) for key in order])
            items = [named[key] for key in order]
        else:
            items = named.values()
    elif isinstance(structure, list | tuple):
        items = cast("list[Any]", structure)
        if attributes := attributes_of(structure):
            untold = (static_key(attributes),)
    elif type(structure) is Opened:
        items = structure.values
    for item in items:
        if isinstance(item, dict | list | tuple | Opened):
            untold += _untold(item)
    return untold


_STRING = {str}


def flatten_again(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the structure of an argument as the traced function received it."""
    which = is_whole if Whole.exist else None
    return jax.tree_util.tree_flatten(jax.tree_util.tree_map(opened, value, is_leaf=which), which)


def _flatten(name: str, value: Any) -> tuple[list[Any], Any]:
    return flattened(f"argument {name!r}", value, is_whole if Whole.exist else None)


def named_leaves(signature: Signature) -> list[Leaf]:
    """Return the leaves with their paths, including the Nones inside structures."""
    leaves = iter(signature.leaves)
    named: list[Leaf] = []
    for (name, value), tree in zip(signature.arguments.items(), signature.tree, strict=True):
        if tree is None or tree == LEAF:
            named.append(next(leaves)._replace(path=name))
            continue
        for path, leaf in jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is None or is_whole(x))[0]:
            where = name + jax.tree_util.keystr(path)
            named.append(_NOTHING._replace(path=where) if leaf is None else next(leaves)._replace(path=where))
    return named


NUMBER_KEYS: dict[type, Any] = {kind: (NUMBER, kind) for kind in (float, int)}
_NOTHING = Leaf("", NOTHING, None, NOTHING)


_NO_NUMBERS = frozenset("SUTOMm")
"""The kinds of NumPy's dtypes of texts, objects and times."""
_RECORD = np.dtype(np.void).num


def is_array(value: Any) -> bool:
    """Whether a value is an array of numbers. A compiled function receives it as a tensor."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind not in _NO_NUMBERS and value.dtype.num != _RECORD
    if isinstance(value, jax.Array):
        return True
    kind = type(value)
    return kind not in _PLAIN and defines(kind, "__dlpack__") and not isinstance(value, Tensor | Variable)


def _leaf(value: Any, seen: dict[int, int]) -> Leaf:
    kind = type(value)
    if kind is Tensor:
        return Leaf("", TENSOR, value, (TENSOR, value.shape, value.dtype.num))
    if kind in _PLAIN:
        return Leaf("", STATIC, value, (STATIC, kind, value))
    if kind is float or kind is TracedNumber:
        return Leaf("", NUMBER, value, NUMBER_KEYS[value.__class__])
    if isinstance(value, Variable):
        order = seen.setdefault(id(value), len(seen))
        leaf = value._notes is not None, value._edge is not None
        return Leaf("", VARIABLE, value, (VARIABLE, order, value.shape, value.dtype.num, value.trainable, leaf))
    if is_array(value):
        # Copy the user's array: XLA runs asynchronously and would see later writes. One on several devices stays there.
        tensor = make_tensor(value if lies_on_several(value) else to_numpy(value))
        own = kind is np.ndarray and not (value.dtype.isnative and value.dtype.metadata is None)
        foreign = (value.dtype,) if own else ()
        return Leaf("", TENSOR, tensor, (TENSOR, tensor.shape, tensor.dtype.num, kind, *foreign))
    return Leaf("", STATIC, value, (STATIC, *static_key(value)))


def unflatten_arguments(
    signature: Signature, values: list[Any], static: frozenset[str], *, as_given: bool = False
) -> dict[str, Any]:
    """Rebuild the named arguments from one value per leaf; dicts keep the order of this call.

    Args:
        signature: the flattened arguments.
        values: the values.
        static: the names of static arguments.
        as_given: whether lists and dicts whose leaves are all the given ones are the given lists and dicts.
    """
    names, trees, _ = signature.key
    result: dict[str, Any] = {}
    position = 0
    for name, tree in zip(names, trees, strict=True):
        if name in static:
            result[name] = values[position]
            position += 1
            continue
        count = tree.num_leaves
        rebuilt = jax.tree_util.tree_unflatten(tree, values[position : position + count])
        given = signature.arguments[name]
        rebuilt = rebuilt if tree == LEAF else closed(rebuilt)
        rebuilt = in_order_of(given, rebuilt) if has_order(given) else rebuilt
        result[name] = with_given_parts(given, rebuilt) if as_given else rebuilt
        position += count
    return result


def argument_variables(signature: Signature) -> list[Variable]:
    """Return the distinct Variables among the arguments, in the order of their numbers in the leaves' keys."""
    return list({leaf.key[1]: leaf.value for leaf in signature.leaves if leaf.kind == VARIABLE}.values())


def argument_numbers(signature: Signature) -> list[float]:
    """Return the numbers among the arguments whose values are not part of the key."""
    return [leaf.value for leaf in signature.leaves if leaf.kind == NUMBER]


def numbers_of(signature: Signature) -> list[float]:
    """Return the numbers of a call that are inputs of its trace: those among the arguments, then those outside."""
    return [*argument_numbers(signature), *signature.outside]


def _shown_keys(keys: Iterable[tuple[Any, ...]]) -> str:
    return ", ".join([f"{one[0].__name__} {one[1]}" for one in keys])[:80] or "str"


def differences(
    old: list[Leaf], old_tree: Any, old_types: tuple[Any, ...], new: Signature
) -> list[tuple[str, str, str]]:
    """Return ``(argument, before, after)`` for each difference between a call and an earlier trace."""
    before = {leaf.path: leaf for leaf in old}
    after = {leaf.path: leaf for leaf in new.leaves}
    changes: list[tuple[str, str, str]] = []
    for path in dict.fromkeys([*before, *after]):
        a, b = before.get(path), after.get(path)
        if a is None or b is None:
            changes.append((path, a.describe() if a else "absent", b.describe() if b else "absent"))
        elif a.key != b.key:
            changes.append((path, *_told_apart(a, b)))
    if not changes and old_types != new.types:
        changes.append(("keys", _shown_keys(old_types), _shown_keys(new.types)))
    if not changes and old_tree != new.tree:
        changes.append(("structure", str(old_tree), str(new.tree)))
    return changes


def _told_apart(a: Leaf, b: Leaf) -> tuple[str, str]:
    if a.kind == b.kind == TENSOR and str(a.value.spec) != str(b.value.spec) and int not in (a.array, b.array):
        return str(a.value.spec), str(b.value.spec)
    before, after = a.describe(), b.describe()
    if before == after:
        if a.kind == VARIABLE:
            return f"{before} (alias pattern {a.key[1]})", f"{after} (alias pattern {b.key[1]})"
        if a.kind == b.kind == TENSOR:
            return f"{before} ({_kind(a)})", f"{after} ({_kind(b)})"
        return f"{before} (id {id(a.value):#x})", f"{after} (id {id(b.value):#x})"
    return before, after


def forget_values(leaves: Iterable[Leaf]) -> list[Leaf]:
    """Return leaves with the same descriptions that keep no array, Variable or object alive."""
    described: list[Leaf] = []
    for leaf in leaves:
        if leaf.kind == TENSOR:
            spec = make_spec(leaf.value.shape, as_dtype(leaf.value.dtype))
            described.append(leaf._replace(value=_Described(spec)))
        elif leaf.kind == VARIABLE:
            described.append(leaf._replace(value=_Described(leaf.value.spec)))
        elif leaf.kind == NUMBER:
            described.append(leaf._replace(value=0))
        elif leaf.value is None or isinstance(leaf.value, bool | int | float | complex | str):
            described.append(leaf)
        else:
            described.append(leaf._replace(value=_Text(type(leaf.value).__name__, shown(leaf.value)[:60])))
    return described


class _Described:
    """Stands for a tensor or Variable that is not kept alive."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec


class _Text:
    """Stands for an object that is not kept alive."""

    def __init__(self, kind: str, text: str) -> None:
        self.text = text
        self.kind = kind

    def __repr__(self) -> str:
        return self.text


# -- frozen dataclasses among the arguments ---------------------------------------------------------------------------
# A frozen dataclass that holds tensors or numbers is a structure of its attributes, as a list is of its items: a
# number of it can be an input of the trace. Others are compared by all that they hold: not only the fields that
# ``==`` compares, but also what `functools.cached_property` or ``object.__setattr__`` left in them.

_NUMBERS = frozenset({float, int, TracedNumber})


def _is_opened(value: Any) -> bool:
    return type(value) is Opened


def closed(structure: Any) -> Any:
    """Return a structure with its opened dataclasses turned back into objects."""

    def close(leaf: Any) -> Any:
        return made_of(leaf.kind, leaf.names, map(closed, leaf.values)) if _is_opened(leaf) else leaf

    return jax.tree_util.tree_map(close, structure, is_leaf=lambda one: _is_opened(one) or is_whole(one))


def _leaves_of(value: Any, around: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield what is in a frozen dataclass and in those inside it; for one that contains itself, itself once more."""
    around = (*around, value)
    for leaf in jax.tree_util.tree_leaves([*attributes_of(value).values()], is_whole):
        if is_by_fields(leaf) and not any([leaf is one for one in around]):
            yield from _leaves_of(leaf, around)
        else:
            yield leaf


def _has_structure(value: Any) -> bool:
    """Whether a frozen dataclass holds tensors or Variables, or numbers and no arrays, and does not contain itself.

    Arrays in one without tensors stay NumPy's own, and are compared by value.
    """
    leaves = [*_leaves_of(value)]
    if any(map(is_by_fields, leaves)):
        return False
    if any([isinstance(leaf, Tensor | Variable) for leaf in leaves]):
        return True
    has_arrays = any([isinstance(leaf, np.ndarray | np.generic | jax.Array) for leaf in leaves])
    return not has_arrays and any([type(leaf) in _NUMBERS for leaf in leaves])


def opened(leaf: Any) -> Any:
    """Return a leaf as an `Opened` if it is a frozen dataclass that holds tensors, Variables or numbers."""
    if not is_by_fields(leaf) or not _has_structure(leaf):
        return leaf
    held = attributes_of(leaf)
    values: list[Any] = []
    for one in held.values():
        value = jax.tree_util.tree_map(opened, one, is_leaf=is_whole)
        values.append(in_order_of(one, value) if has_order(one) else value)
    return Opened(type(leaf), tuple(held), tuple(values), leaf)


def _flatten_opened(value: Opened) -> tuple[list[tuple[Any, Any]], Any]:
    keys = map(jax.tree_util.GetAttrKey, value.names)
    return list(zip(keys, value.values, strict=True)), (value.kind, value.names)


def _unflatten_opened(kind: Any, values: Any) -> Opened:
    return Opened(*cast("tuple[type, tuple[str, ...]]", kind), tuple(values))


jax.tree_util.register_pytree_with_keys(Opened, _flatten_opened, _unflatten_opened)
