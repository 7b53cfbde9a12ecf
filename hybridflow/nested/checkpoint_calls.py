"""Calls and results, each split into its tensors and the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hybridflow.core import structures
from hybridflow.core.functions import as_traced
from hybridflow.core.tensor import Tensor


class Call:
    """A call whose tensor arguments can be replaced.

    A tensor that is given several times is one argument: its gradient is then added up as it is without a checkpoint.

    Attributes:
        name: the function's name.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        self._fn = fn
        self._leaves, self._tree = structures.flatten((args, kwargs))
        self._places = [index for index, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        self._numbers: list[int] = []

    def take(self) -> list[Tensor]:
        """Return the distinct tensors among the arguments, and drop the call's references to them."""
        distinct: dict[Any, tuple[int, Tensor]] = {}
        for index in self._places:
            tensor, self._leaves[index] = self._leaves[index], None
            key = id(tensor) if tensor._edge is None else tensor._edge
            if key not in distinct:
                distinct[key] = len(distinct), tensor
            self._numbers.append(distinct[key][0])
        return [tensor for _, tensor in distinct.values()]

    def run(self, tensors: Sequence[Tensor]) -> Outcome:
        """Call the function with other tensors."""
        leaves = list(self._leaves)
        for position, number in zip(self._places, self._numbers, strict=True):
            leaves[position] = tensors[number]
        args, kwargs = structures.unflatten(self._tree, leaves)
        return Outcome(as_traced(self._fn)(*args, **kwargs))


class Outcome:
    """A result whose tensors can be replaced."""

    def __init__(self, result: Any) -> None:
        self._leaves, self._tree = structures.flatten(result)
        self._places = [index for index, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        self.tensors: list[Tensor] = [self._leaves[index] for index in self._places]

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """Return the result with other tensors."""
        leaves = list(self._leaves)
        for position, tensor in zip(self._places, tensors, strict=True):
            leaves[position] = tensor
        return structures.unflatten(self._tree, leaves)
