"""The values of variables in branches and loops: which of their leaves become tensors, and how two values merge."""

from __future__ import annotations

import copy
import math
from collections import deque
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert.poison import Poison, spoken
from hybridflow.convert.regions import note_remade
from hybridflow.convert.staged import shown as shown_number
from hybridflow.convert.staged import staged
from hybridflow.core.errors import DTypeError, ShapeError, TraceError, message
from hybridflow.core.node import format_where
from hybridflow.core.staged_number import BOOL, StagedNumber, tried, weak_dtype_of
from hybridflow.core.structures import parts_of
from hybridflow.core.tensor import ONE_TRUTH, Tensor, as_tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.traced_text import TracedText
from hybridflow.core.variable import Variable
from hybridflow.guards import observe
from hybridflow.guards.guards import describe
from hybridflow.guards.objects import is_object, objects_in, vars_of
from hybridflow.guards.objects import opened as open_objects
from hybridflow.guards.order import flattened, has_order, in_order_of, skeleton

_COPIED = (set, deque, bytearray)
"""Types of leaves that can be changed."""
_NUMBERS = frozenset({bool, int, float, complex, TracedNumber, StagedNumber})
_REAL = _NUMBERS - {complex}


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, a Variable or an array among the arguments."""
    return type(value) is Tensor or type(value) is TracedArray or isinstance(value, Tensor | Variable)


def is_staged(value: Any) -> bool:
    """Whether a value's truth can differ between calls: a tensor, a Variable or a number that depends on a tensor."""
    return type(value) is StagedNumber or is_tensor(value)


def truth(value: Any) -> Tensor:
    """Return the truth of a tensor or staged number, as a bool tensor of shape ()."""
    if type(value) is StagedNumber:
        return value.truth()
    tensor: Any = as_tensor(value)
    if tensor.size != 1:
        raise ShapeError(f"bool: needs exactly one element, there are {tensor.size}", got=str(tensor.spec),
                         hint=ONE_TRUTH)
    if tensor.shape != ():
        tensor = tensor.reshape(())
    return tensor if tensor.dtype == np.bool_ else tensor != 0


def negated(value: Any) -> Any:
    """Return ``not value``: a staged bool for a tensor or a staged number."""
    if not is_staged(value):
        return not value
    return staged(BOOL, PUBLIC.logical_not(truth(value)), 1)


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number, which takes the dtype of the tensors it is combined with."""
    return type(leaf) in _NUMBERS


def is_real_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number that a branch or loop can keep as a number: a bool, int or float."""
    return type(leaf) in _REAL


def is_dynamic(leaf: Any) -> bool:
    """Whether a leaf can be a tensor of a graph."""
    return is_number(leaf) or isinstance(leaf, Tensor | np.ndarray | np.generic | jax.Array)


class Value(NamedTuple):
    """A variable's value, flattened."""

    leaves: list[Any]
    tree: Any
    order: Any = None
    """A skeleton with the order of dicts, if jax would change it; else None."""
    opened: bool = False
    """Whether users' objects in it are flattened too, and recreated."""
    source: Any = None
    """The value itself."""

    @classmethod
    def of(cls, value: Any, opened: bool = False) -> Value:
        """Flatten a value."""
        leaves, tree = flattened("a branch or loop on tensors", open_objects(value) if opened else value)
        return cls(leaves, tree, skeleton(value) if has_order(value) else None, opened, value)

    def is_like(self, other: Value) -> bool:
        """Whether another value has the same structure, with dicts in the same order."""
        return self.tree == other.tree and str(self.order) == str(other.order)

    def dynamic(self) -> list[Any]:
        """Return the leaves that can be tensors."""
        return [leaf for leaf in self.leaves if is_dynamic(leaf)]

    def filled(self, dynamic: list[Any], *others: Any) -> Any:
        """Return the value with the leaves that can be tensors replaced.

        Args:
            dynamic: the new leaves.
            *others: further values that the result stands for in some calls.
        """
        rest = iter(dynamic)
        leaves = [standing_for(leaf, next(rest)) if is_dynamic(leaf) else leaf for leaf in self.leaves]
        value = jax.tree_util.tree_unflatten(self.tree, leaves)
        if self.opened:
            note_remade(objects_in(value))
        value = value if self.order is None else in_order_of(self.order, value)
        observe.chosen(value, (self.source, *others))
        return value

    def apart_from(self, other: Value) -> Value:
        """Return the value with copies of those sets, deques and bytearrays that are different objects in `other`."""
        pairs = zip(self.leaves, other.leaves, strict=True)
        leaves = [copy.copy(a) if a is not b and type(a) in _COPIED else a for a, b in pairs]
        return self._replace(leaves=leaves)


def standing_for(leaf: Any, made: Any, *others: Any) -> Any:
    """Return the value that replaces a leaf after a branch or loop; an array argument is replaced by an array.

    Args:
        leaf: the original leaf.
        made: the value that the branch or loop computed.
        *others: the leaves that it stands for in other calls. If only some of all are arrays, the result supports only
            what arrays and tensors have in common.
    """
    arrays = [one for one in (leaf, *others) if type(one) is TracedArray]
    if not arrays or type(made) is not Tensor:
        return made
    certain = all(one.__class__ is arrays[0].kind for one in (leaf, *others)) and all(one.certain for one in arrays)
    return TracedArray(made, arrays[0].kind, arrays[0].origin, certain, arrays[0].foreign)


class TakeApart(Exception):
    """Raised to trace again, merging the attributes of a variable's object: a branch or step makes a new object.

    Attributes:
        name: the variable.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def holds_traced(value: Any) -> bool:
    """Whether an object in a structure holds a tensor or number that was traced."""
    leaves = [leaf for one in objects_in(value) for leaf in parts_of(vars_of(one))]
    return any(is_traced(leaf) or type(leaf) is TracedNumber for leaf in leaves)


def is_traced(leaf: Any) -> bool:
    """Whether a leaf is a traced tensor or array, or a number that a tensor decides."""
    return type(leaf) in (StagedNumber, TracedArray) or (isinstance(leaf, Tensor) and leaf._value is None)


def are_alike(a: Any, b: Any) -> bool:
    """Whether two leaves are different objects of one class that can be flattened."""
    return a is not b and type(a) is type(b) and is_object(a)


def same_python(a: Any, b: Any) -> bool:
    """Whether two leaves are the same Python value."""
    if a is b:
        return True
    if type(a) is not type(b) or is_tensor(a) or type(a) in (TracedNumber, StagedNumber, TracedText):
        return False
    if isinstance(a, np.ndarray | jax.Array) or is_object(a):
        return False  # objects that compare equal may hold different tensors
    if type(a) is float:
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    try:
        with tried():
            return bool(a == b)
    except Exception:  # noqa: BLE001, RUF100 (if an object's own comparison raises, they differ)
        return False


def type_name(leaf: Any) -> str:
    """Return the name of a leaf's type in messages."""
    return f"a Python {leaf.__class__.__name__}" if is_number(leaf) else str(as_tensor(leaf).dtype)


def zeros_like(leaf: Any) -> Tensor:
    """Return zeros of a leaf's shape and dtype."""
    if type(leaf) is StagedNumber:
        leaf = leaf.raw
    tensor = as_tensor(leaf)
    return PUBLIC.full(tensor.shape, 0, dtype=tensor.dtype)


def made_at(leaf: Any) -> str:
    """Describe a leaf and the line that created it."""
    if type(leaf) is TracedArray:
        return f"{leaf!r}, of {leaf.origin}"
    if isinstance(leaf, Tensor):
        edge = leaf._edge
        where = None if edge is None else format_where(edge[0].where)
        return str(leaf.spec) + ("" if where is None else f" at {where}")
    if type(leaf) is StagedNumber:
        where = format_where(leaf.where)
        return shown_number(leaf) + ("" if where is None else f" at {where}")
    return describe(leaf)[:60]


def difference(name: str, a: Value, b: Value, place: str) -> Poison | None:
    """Return a `Poison` that says why two branches' values of a variable do not merge; None if they do."""
    what = spoken(name)
    if not a.is_like(b):
        return Poison(
            TraceError,
            message(f"{what} has another structure if the condition at {place} is true than if it is false",
                    got=f"{shown(a)} if true, {shown(b)} if false", hint="Give it one structure in both branches."),
        )
    for one, other in zip(a.leaves, b.leaves, strict=True):
        reason = _leaf_difference(what, one, other, place)
        if reason is not None:
            return reason
    return None


def _leaf_difference(what: str, a: Any, b: Any, place: str) -> Poison | None:
    for leaf in (a, b):
        if type(leaf) is Poison:
            return leaf
    if not (is_dynamic(a) and is_dynamic(b)):
        if same_python(a, b):
            return None
        return Poison(
            TraceError,
            message(f"{what} is not the same Python object if the condition at {place} is true and if it is false",
                    got=f"{made_at(a)} if true, {made_at(b)} if false",
                    hint="Only tensors and numbers can depend on a tensor."),
        )
    if is_number(a) or is_number(b):
        if _shape(a) != _shape(b):
            return _shapes(what, a, b, place)
        return None if is_number(a) and is_number(b) else _widened(what, a, b, place)
    one, other = as_tensor(a), as_tensor(b)
    if one.shape != other.shape:
        return _shapes(what, a, b, place)
    if one.dtype != other.dtype:
        return Poison(
            DTypeError,
            message(f"{what} is {one.dtype} if the condition at {place} is true and {other.dtype} if it is false",
                    got=f"{made_at(a)}; {made_at(b)}", hint="Cast one of them."),
        )
    return None


def _widened(what: str, a: Any, b: Any, place: str) -> Poison | None:
    """Return the error for a tensor and a number that only a wider dtype than the tensor's holds; None if it fits."""
    number, tensor = (a, as_tensor(b)) if is_number(a) else (b, as_tensor(a))
    examples = number.examples() if type(number) is StagedNumber else (number,)
    if all(weak_dtype_of(one, tensor.dtype) == tensor.dtype for one in examples):
        return None
    return Poison(
        DTypeError,
        message(f"{what} is {_kind(a)} if the condition at {place} is true and {_kind(b)} if it is false",
                got=f"{made_at(a)}; {made_at(b)}", hint=f"Cast the tensor, or write a number of {tensor.dtype}."),
    )


def _kind(leaf: Any) -> str:
    return "a Python number" if is_number(leaf) else str(leaf.dtype)


def _shape(leaf: Any) -> Any:
    return () if is_number(leaf) else leaf.shape


def _shapes(what: str, a: Any, b: Any, place: str) -> Poison:
    return Poison(
        ShapeError,
        message(f"{what} has shape {_shape(a)} if the condition at {place} is true and {_shape(b)} if it is false",
                got=f"{made_at(a)}; {made_at(b)}", hint="Give it one shape in both branches."),
    )


def shown(value: Value) -> str:
    """Describe a value: its leaves and the lines that created them."""
    leaves = [made_at(leaf) for leaf in value.leaves]
    structure = jax.tree_util.tree_unflatten(value.tree, [_Text(leaf) for leaf in leaves])
    return str(structure if value.order is None else in_order_of(value.order, structure))[:120]


class _Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text
