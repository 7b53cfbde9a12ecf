"""Python integers that a loop on tensors changes: they become int32; calls in which one leaves that range fail."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core.context import current
from hybridflow.core.errors import NumberRangeError, message
from hybridflow.core.node import Edge
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.ir.builder import GraphBuilder, add_check

_EXACT: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "negative": operator.neg,
}  # fmt: skip
_WIDE = np.dtype(np.int64)


def require_range(tensor: Tensor, what: str, place: str) -> None:
    """Make the calls fail in which integer arithmetic of a step leaves the range of its dtype.

    Args:
        tensor: the variable after the step; sums, differences and products that lead to it are computed once more in
            64 bits, in which one step cannot overflow.
        what: what to call the variable.
        place: where the loop is.
    """
    if tensor.dtype.kind not in "iu" or tensor.dtype.itemsize >= _WIDE.itemsize:
        return
    tracer = cast(GraphBuilder, current().tracer)
    known: dict[Edge, Any] = {}

    def exact(edge: Edge) -> Any:
        found = known.get(edge)
        if found is None:
            node = edge[0]
            function = _EXACT.get(node.op.name) if node.scope is tracer.scope else None
            inputs = [one for one in node.inputs if one is not None]
            if function is None or any(one[0].spec(one[1]).dtype != tensor.dtype for one in inputs):
                found = PUBLIC.astype(make_tensor(None, edge), _WIDE)
            else:
                found = function(*[exact(one) for one in inputs])
            known[edge] = found
        return found

    edge = tensor._edge
    if edge is None or edge[0].scope is not tracer.scope or edge[0].op.name not in _EXACT:
        return
    add_check(
        PUBLIC.equal(exact(edge), PUBLIC.astype(tensor, _WIDE)),
        NumberRangeError,
        message(f"{what} is a Python integer, and leaves the range of {tensor.dtype} in the loop at {place}",
                hint="Start with a tensor of a wider dtype, such as hf.asarray(0, dtype=hf.int64)."),
    )  # fmt: skip
