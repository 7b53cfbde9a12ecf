"""Products with weights: `Linear` and `Embedding`."""

from __future__ import annotations

import math
from typing import Any, ClassVar, overload

from hybridflow.core.tensor import Tensor, as_tensor, make_tensor, new_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn import init
from hybridflow.nn.layers.module import Module
from hybridflow.nn.sizes import along, in_and_out, layouts_for, make_parameters, require_size, whole_beside
from hybridflow.ops.common import TensorLike
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

    def __init__(self, count: int, width: int, *, dtype: Any = "float32", layouts: Any = None) -> None:
        self.count, self.width = in_and_out("Embedding", (count, width))
        self.layouts = layouts_for("Embedding", layouts, _TABLES)
        self.weight = parameter(init.normal()((count, width), dtype), "weight")

    def forward(self, ids: TensorLike) -> Tensor:
        """Replace every id by its vector."""
        made = embedding(ids, self.weight)
        rows = None if self.layouts is None else self.layouts["weight"][0]
        return made if rows is None else whole_beside(made, self.weight, rows)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"{self.count}, {self.width}"


_TABLES = {"row": {"weight": ("*", None)}, "column": {"weight": (None, "*")}}
