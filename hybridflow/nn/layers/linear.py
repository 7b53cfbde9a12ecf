"""Products with weights: `Linear` and `Embedding`."""

from __future__ import annotations

import math
from typing import Any, ClassVar, overload

from hybridflow.core.errors import ArgumentError
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor, new_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn import init
from hybridflow.nn.layers.module import Module
from hybridflow.nn.sizes import along, in_and_out, layouts_for, make_parameters, require_size, whole_beside
from hybridflow.ops.choice import where
from hybridflow.ops.common import TensorLike
from hybridflow.ops.elementwise import stop_gradient
from hybridflow.ops.nn.dense import linear
from hybridflow.ops.nn.embeddings import embedding


def parameter(values: Any, name: str) -> Variable:
    """Return a trainable Variable with an array of its own."""
    if init.ABSTRACT.get():
        return Variable(make_tensor(values), name=name)
    return Variable(new_tensor(values), name=name, requires_grad=True)


class Linear(Module):
    """A linear layer: ``x @ weight.T + bias``.

    Args:
        sizes: the size of the input's last axis (if left out, the first call sets it), and that of the result's.
        bias: whether there is a bias.
        dtype: the dtype of the parameters.
        layouts: how `hf.distribute.shard` lays out the parameters: ``"column:AXIS"`` splits the result's last axis over
            a mesh axis, ``"row:AXIS"`` the input's; or a mapping of ``"weight"`` and ``"bias"`` to layouts.

    Attributes:
        weight: ``(out, in)``; uniform in ±1/sqrt(in) at first.
        bias: ``(out,)``, the same; None without one.

    Example:
        >>> import hybridflow as hf
        >>> layer = hf.nn.Linear(3, 2)
        >>> layer(hf.ones((5, 3))).shape
        (5, 2)
        >>> layer
        Linear(3, 2)
    """

    weight: Variable
    bias: Variable | None
    sized_by: ClassVar[str] = "in_features"
    """The attribute with the input size, which the first call sets if it was left out."""

    @overload
    def __init__(
        self, out_features: int, /, *, bias: bool = True, dtype: Any = "float32", layouts: Any = None
    ) -> None: ...
    @overload
    def __init__(
        self, in_features: int, out_features: int, /, *, bias: bool = True, dtype: Any = "float32", layouts: Any = None
    ) -> None: ...
    def __init__(self, *sizes: int, bias: bool = True, dtype: Any = "float32", layouts: Any = None) -> None:
        self.in_features, self.out_features = in_and_out("Linear", sizes)
        self.has_bias = bias
        self.dtype = dtype
        self.layouts = layouts_for("Linear", layouts, _LAYOUTS)
        self.weight = self.bias = None  # pyright: ignore[reportAttributeAccessIssue]
        if self.in_features is not None:
            make_parameters(self, self.in_features, _make_linear)

    def forward(self, x: TensorLike) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        x = as_tensor(x)
        require_size(self, "in_features", x, -1, _make_linear)
        out, into = (None, None) if self.layouts is None else self.layouts.get("weight", (None, None))
        return along(linear(along(x, self.weight, into, -1), self.weight, self.bias), self.weight, out, -1)

    def extra_repr(self) -> str:
        """Return the sizes."""
        size = "" if self.in_features is None else f"{self.in_features}, "
        return f"{size}{self.out_features}{'' if self.has_bias else ', bias=False'}"


_LAYOUTS = {"column": {"weight": ("*", None), "bias": ("*",)}, "row": {"weight": (None, "*"), "bias": (None,)}}


def _make_linear(layer: Linear, size: int) -> None:
    bound = 1 / math.sqrt(max(size, 1))
    values = init.uniform(-bound, bound)
    layer.weight = parameter(values((layer.out_features, size), layer.dtype), "weight")
    if layer.has_bias:
        layer.bias = parameter(values((layer.out_features,), layer.dtype), "bias")


class Embedding(Module):
    """A table of vectors that is read by integer ids.

    Args:
        count: the number of vectors.
        width: their length.
        padding_id: the id of padding: its vector is zeros at first, and has no gradient. A negative one counts from
            the end.
        dtype: the dtype of the table.
        layouts: how `hf.distribute.shard` lays out the table: ``"row:AXIS"`` splits the vectors' number over a mesh
            axis, ``"column:AXIS"`` their length; or a mapping of ``"weight"`` to a layout.

    Attributes:
        weight: ``(count, width)``; drawn from a standard normal distribution at first.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.Embedding(10, 4)(hf.asarray([[1, 2, 3]])).shape
        (1, 3, 4)
    """

    weight: Variable

    def __init__(
        self, count: int, width: int, *, padding_id: int | None = None, dtype: Any = "float32", layouts: Any = None
    ) -> None:
        self.count, self.width = in_and_out("Embedding", (count, width))
        if padding_id is not None and not -count <= padding_id < count:
            raise ArgumentError("Embedding: padding_id is no id of the table",
                                got=f"padding_id={padding_id}, count={count}")
        self.padding_id = None if padding_id is None else padding_id % count
        self.layouts = layouts_for("Embedding", layouts, _TABLES)
        values = init.normal()((count, width), dtype)
        if self.padding_id is not None:
            values[self.padding_id] = 0
        self.weight = parameter(values, "weight")

    def forward(self, ids: TensorLike) -> Tensor:
        """Replace every id by its vector."""
        made = embedding(ids, self.weight)
        if self.padding_id is not None:
            given = as_tensor(ids)
            padding = (given == self.padding_id) | (given == self.padding_id - self.count)
            made = where(padding[..., None], stop_gradient(made), made)
        rows = None if self.layouts is None else self.layouts["weight"][0]
        return made if rows is None else whole_beside(made, self.weight, rows)

    def extra_repr(self) -> str:
        """Return the sizes and the id of padding."""
        return f"{self.count}, {self.width}" + ("" if self.padding_id is None else f", padding_id={self.padding_id}")


_TABLES = {"row": {"weight": ("*", None)}, "column": {"weight": (None, "*")}}
