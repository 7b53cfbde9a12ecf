"""Padding: values whose open axes are as long as a bound, and the rules by which operations keep them right.

A graph with open sizes can be compiled once for all sizes up to a bound. Its values are then as large as the bound
says, and the real sizes are inputs. An operation's rule (the column `padded` of its record) says what it does with the
elements beyond the real sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from hybridflow.core.dims import Dim
from hybridflow.core.errors import HybridflowError
from hybridflow.core.spec import TensorSpec

Size = int | Dim


class NoRule(HybridflowError):
    """A graph cannot be compiled for a bound: an operation has no rule for the axis that is open.

    Attributes:
        placed: whether the message names the operation already.
    """

    def __init__(self, text: str, *, placed: bool = False) -> None:
        super().__init__(text)
        self.placed = placed


class Open(NamedTuple):
    """An axis whose size is open.

    Attributes:
        sizes: its real size is their product. There are several where a reshape folded axes into one: its elements are
            then those of an array of these sizes in row-major order, each of them padded.
        fill: the value of the elements beyond the real size, as far as the other axes are within theirs; None if they
            may be anything.
    """

    sizes: tuple[Size, ...]
    fill: Any = None

    def same(self, other: Open | None) -> bool:
        """Whether another axis is padded in the same way."""
        return other is not None and list(map(str, self.sizes)) == list(map(str, other.sizes))

    @property
    def anything(self) -> Open:
        """The same axis, with anything beyond the real size."""
        return self._replace(fill=None)


Axes = tuple[Open | None, ...]


class Padded(NamedTuple):
    """A value that is as large as the bounds.

    Attributes:
        value: the tensor.
        axes: for each axis how it is padded; None if it has its real size.
    """

    value: Any
    axes: Axes

    def open(self) -> list[int]:
        """Return the axes that are padded."""
        return [axis for axis, one in enumerate(self.axes) if one is not None]

    def with_fill(self, fill: Any) -> Padded:
        """Return the value, with one fill stated for all of its open axes."""
        return Padded(self.value, tuple([one if one is None else one._replace(fill=fill) for one in self.axes]))


class Call(NamedTuple):
    """One operation of a graph on padded values.

    Attributes:
        op: the operation's record.
        xs: its inputs.
        attrs: its attributes, with open sizes.
        specs: the specs of its outputs, with open sizes.
    """

    op: Any
    xs: Sequence[Padded]
    attrs: dict[str, Any]
    specs: Sequence[TensorSpec]


class Bounds(Protocol):
    """What a rule can ask for."""

    F: Any
    """The public operations, as gradient rules use them."""

    def run(self, call: Call, *values: Any, **attrs: Any) -> list[Any]:
        """Run the operation on values of the bounds' sizes; `attrs` replace some of its attributes."""
        ...

    def bind(self, name: str, *values: Any, **attrs: Any) -> Any:
        """Add an operation with one result, without the checks that its public function makes."""
        ...

    def bound(self, size: Size) -> int:
        """Return the bound of a size."""
        ...

    def count(self, size: Size) -> Any:
        """Return a real size as an int32 tensor of shape ()."""
        ...

    def meet(self, x: Padded, axis: int) -> None:
        """Say that results depend on several elements along an axis, or on their places, within the real size.

        A rule says so where it needs to know nothing of what is beyond that size: its fill, or the size itself.
        """
        ...

    def number(self, value: Any, dtype: Any) -> Any:
        """Return an attribute's number, which may be computed from real sizes, as a tensor of shape ()."""
        ...

    def positions(self, length: int) -> Any:
        """Return 0, 1, ... as int32."""
        ...

    def inside(self, x: Padded, axis: int) -> Any:
        """Return where the elements are within the real size of an axis, in a shape that broadcasts against `x`."""
        ...

    def filled(self, x: Padded, axis: int, fill: Any) -> Padded:
        """Return the value with a fill beyond the real size of an axis; an axis that is not open stays as it is."""
        ...

    def axes_of(self, spec: TensorSpec, fill: Any = None) -> Axes:
        """Return the axes of a value whose open sizes are no folded ones."""
        ...


R = TypeVar("R", bound=Callable[..., Any])
Rule = Callable[[Bounds, Call], Sequence[Padded]]
"""The column `padded` of an operation: it returns the outputs, or raises `NoRule`."""


def separate(rule: R) -> R:
    """State that a rule tells where elements along an open axis meet.

    An element of a result then depends only on elements at the same place of each open axis, unless the rule asks for
    the axis's fill, for what is inside of it or for its size, or says `Bounds.meet`. So rows of a batch can be told
    apart from rows that mix.
    """
    cast(Any, rule).separate = True
    return rule


def is_separate(rule: Rule) -> bool:
    """Whether a rule was given to `separate`."""
    return getattr(rule, "separate", False)
