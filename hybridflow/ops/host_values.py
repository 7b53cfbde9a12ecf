"""Structures of arguments with holes for tensors, whose values are filled in when a compiled call runs Python code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import int32
from hybridflow.core.held import attributes_of, made_of, shows_fields
from hybridflow.core.staged_number import StagedNumber, several_kinds
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_text import TracedText
from hybridflow.core.variable import Variable
from hybridflow.ops.creation import full

Fill = Callable[[str, Any, Any], Any]
"""A function ``(kind, array, name)`` that returns the value to fill in. The kind is ``tensor``, ``size``, ``number``,
``array`` (its name is the type) or ``variable`` (its name is the Variable's)."""


_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


class Text:
    """The printed form of a mutable Python object, as it was when the function was traced."""

    def __init__(self, plain: str, quoted: str, number: Any = None) -> None:
        self._plain = plain
        self._quoted = quoted
        self._number = number

    def __format__(self, spec: str) -> str:
        return format(self._plain if self._number is None else self._number, spec) if spec else self._plain

    def __str__(self) -> str:
        return self._plain

    def __repr__(self) -> str:
        return self._quoted


def as_text(value: Any) -> Any:
    """Return what a print shows of a Python object, as it is now; constants are themselves."""
    return value if type(value) in (*_CONSTANTS, Text) else Text(str(value), repr(value))


class _Hole:
    """The place of an array in a template."""

    __slots__ = ("index", "kind", "name")

    def __init__(self, index: int, kind: str, name: Any = None) -> None:
        self.index = index
        self.kind = kind
        self.name = name


class Template:
    """A structure with holes in the places of its tensors.

    Args:
        structure: any value; tensors, Variables and symbolic sizes in it (in lists, tuples, dicts and other
            pytrees) become holes.
        leaf: a function that returns what to store for any other value.
    """

    __slots__ = ("_leaf", "_template", "tensors")

    def __init__(self, structure: Any, leaf: Callable[[Any], Any]) -> None:
        self._leaf = leaf
        self.tensors: list[Tensor] = []
        self._template = self._taken_apart(structure)

    def release(self) -> tuple[Tensor, ...]:
        """Return the tensors and forget them."""
        tensors, self.tensors = tuple(self.tensors), []
        return tensors

    def _hole(self, tensor: Tensor, kind: str, name: Any = None) -> _Hole:
        self.tensors.append(tensor)
        return _Hole(len(self.tensors) - 1, kind, name)

    def _taken_apart(self, value: Any) -> Any:
        if isinstance(value, Variable):
            return self._hole(value.read(), "variable", value.name)
        if isinstance(value, Tensor):
            return self._hole(value, "tensor")
        if type(value) is TracedArray:
            return self._hole(value.tensor, "array", value.kind)
        if type(value) is StagedNumber:
            if len(value.kinds) > 1:
                raise several_kinds(value, "is printed or handed to Python")
            return self._hole(value.raw, "number")
        if type(value) is TracedText:
            if value.make is None:
                raise value.unknown()
            return _TextHoles(value.make, *map(self._taken_apart, value.given))
        if isinstance(value, Dim):
            return self._hole(full((), value, dtype=int32), "size")
        if type(value) in (list, tuple):
            return type(value)([self._taken_apart(item) for item in cast("list[Any]", value)])
        if type(value) is dict:
            return {key: self._taken_apart(item) for key, item in cast("dict[Any, Any]", value).items()}
        if shows_fields(value):
            held = attributes_of(value)
            return _Fields(type(value), list(held), self._taken_apart([*held.values()]))
        leaves, tree = jax.tree_util.tree_flatten(value)
        if len(leaves) == 1 and leaves[0] is value:
            return self._leaf(value)
        return _Other(tree, [self._taken_apart(leaf) for leaf in leaves])

    def filled(self, arrays: Sequence[Any], fill: Fill) -> Any:
        """Return the structure with every hole filled: ``fill`` makes its value from its array."""

        def build(part: Any) -> Any:
            if isinstance(part, _Hole):
                return fill(part.kind, arrays[part.index], part.name)
            if type(part) in (list, tuple):
                return type(part)([build(item) for item in part])
            if type(part) is dict:
                return {key: build(item) for key, item in cast("dict[Any, Any]", part).items()}
            if isinstance(part, _TextHoles):
                return part.make(*build(part.args), **build(part.kwargs))
            if isinstance(part, _Fields):
                return made_of(part.kind, part.names, build(part.values))
            if isinstance(part, _Other):
                return jax.tree_util.tree_unflatten(part.tree, [build(leaf) for leaf in part.leaves])
            return part

        return build(self._template)


class _TextHoles:
    """A function that makes a text, and its arguments with holes."""

    __slots__ = ("args", "kwargs", "make")

    def __init__(self, make: Callable[..., str], args: Any, kwargs: Any) -> None:
        self.make = make
        self.args = args
        self.kwargs = kwargs


class _Fields:
    """An object of a dataclass, with the values of its fields."""

    __slots__ = ("kind", "names", "values")

    def __init__(self, kind: type, names: list[str], values: Any) -> None:
        self.kind = kind
        self.names = names
        self.values = values


class _Other:
    """A pytree that is no list, tuple or dict."""

    __slots__ = ("leaves", "tree")

    def __init__(self, tree: Any, leaves: list[Any]) -> None:
        self.tree = tree
        self.leaves = leaves
