"""`TracedArray`: in a trace, an array argument of NumPy or another library.

In eager code the function gets the array itself, which follows its own rules until it meets a tensor or is passed to a
function of hybridflow. In a trace, a `TracedArray` takes its place. It supports what NumPy and hybridflow do alike,
and raises an error where they differ. The operators and methods are in `hybridflow.tracing.numpy_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hybridflow.core.tensor import Tensor


class TracedArray:
    """An array whose value each call decides; `isinstance` takes it for an array of its library.

    Attributes:
        tensor: the traced tensor that holds it; functions of hybridflow use this.
        kind: its type: ``np.ndarray``, a type of NumPy's scalars, or that of another library.
        origin: the argument that it comes from, for messages.
        certain: whether it is an array in every call; if not, a branch or loop on tensors makes it a tensor in some.
        foreign: its dtype, if that is not the tensor's: in another byte order or with metadata; else None.
    """

    __slots__ = ("__weakref__", "certain", "foreign", "kind", "origin", "tensor")

    __array_priority__ = 1000

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __iter__(self) -> Iterator[Any]: ...

    def __init__(
        self, tensor: Tensor, kind: type, origin: str, certain: bool = True, foreign: np.dtype[Any] | None = None
    ) -> None:
        self.tensor = tensor
        self.kind = kind
        self.origin = origin
        self.certain = certain
        self.foreign = foreign

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The array's type, for `isinstance`."""
        return self.kind

    def like(self, tensor: Tensor, *, moved: bool = False) -> TracedArray:
        """Return a result as an array of the same library; for NumPy, a 0-d array becomes a scalar.

        Args:
            tensor: the result.
            moved: whether it holds only elements of this array: such a NumPy array keeps the dtype.
        """
        kind = self.kind
        if kind is np.ndarray or issubclass(kind, np.generic):
            kind = np.ndarray if tensor.shape else tensor.dtype.type
        return TracedArray(tensor, kind, self.origin, self.certain, self.foreign if moved and tensor.shape else None)

    def __copy__(self) -> TracedArray:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedArray:
        return self

    def __repr__(self) -> str:
        return f"{self.kind.__name__}(traced {self.tensor.spec})"


def without_array(value: Any) -> Any:
    """Return the tensor of a `TracedArray`, and any other value as it is."""
    return value.tensor if type(value) is TracedArray else value
