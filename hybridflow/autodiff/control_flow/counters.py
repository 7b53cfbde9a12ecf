"""Python integers that a loop carries: eagerly they never overflow, so in a trace overflowing is an error."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core.errors import NumberRangeError, message
from hybridflow.core.node import Edge, Node
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.ir.builder import GraphBuilder, add_check
from hybridflow.ir.graph import CONSTANT, Graph

_GROWING = frozenset({
    "add", "subtract", "multiply", "negative", "power", "abs", "square", "integer_power", "bitwise_left_shift",
})  # fmt: skip
_OTHERS = frozenset({"floor_divide", "remainder", "maximum", "minimum", "identity"})


def check_counters(
    builder: GraphBuilder, names: Sequence[str], positions: Collection[int], steps: Collection[int]
) -> None:
    """Check, in a step of a loop, that arithmetic among Python integers stays in the range of its dtype.

    Args:
        builder: the trace of the step, whose first arguments are the carried values.
        names: what the carried values are called.
        positions: those that began as Python integers.
        steps: those of them to which 1 can be added safely.
    """
    carried: dict[Edge, int] = {(builder.arguments[index], 0): index for index in positions}
    numbers: set[Edge] = set(carried)
    growing: list[Node] = []
    for node in tuple(builder.nodes):
        if len(node.outputs) != 1 or node.spec().shape != () or node.spec().dtype.kind != "i":
            continue
        inputs = cast("tuple[Edge, ...]", node.inputs)
        if node.op is CONSTANT:
            numbers.add((node, 0))
        elif inputs and all(edge in numbers for edge in inputs) and node.op.name in _GROWING | _OTHERS:
            numbers.add((node, 0))
            if node.op.name in _GROWING and not _counts(node, carried, steps):
                growing.append(node)
    if not growing:
        return
    what = ", ".join(dict.fromkeys([names[index].split("[")[0] for index in sorted(positions)]))
    ok: Any = None
    for node in growing:
        fits = _fits(node)
        ok = fits if ok is None else PUBLIC.logical_and(ok, fits)
    dtype = growing[0].spec().dtype
    add_check(ok, NumberRangeError, message(
        f"a loop's Python integers leave the range of {dtype}, which compiled loops carry them as", got=what,
        hint='Start with a tensor of the dtype that is wanted, such as hf.asarray(0, dtype="int64").',
    ))  # fmt: skip


def _counts(node: Node, carried: dict[Edge, int], steps: Collection[int]) -> bool:
    """Whether a node adds 1 to a value that is known to be below another."""
    if node.op.name != "add":
        return False
    for number, one in (node.inputs, node.inputs[::-1]):
        position = carried.get(cast(Edge, number))
        if position in steps and one is not None and one[0].op is CONSTANT:
            return int(one[0].attrs["value"].array) == 1
    return False


def _fits(node: Node) -> Tensor:
    """Compute once more in float64, which is exact as far as the range of the integers that are carried goes."""
    wide = [PUBLIC.astype(make_tensor(None, edge), np.dtype(np.float64)) for edge in node.inputs]
    if node.op.name == "bitwise_left_shift":
        result = wide[0] * 2.0 ** wide[1]
    else:
        result = getattr(PUBLIC, node.op.name)(*wide, **node.attrs)
    info = np.iinfo(node.spec().dtype)
    return PUBLIC.logical_and(result >= float(info.min), result <= float(info.max))


def counted_up(test: Graph, positions: Collection[int]) -> set[int]:
    """Return those carried values that a loop's condition requires to be less than another of their dtype."""
    inputs: dict[Edge, int] = {(test.inputs[index], 0): index for index in positions}
    found: set[int] = set()
    pending: list[Edge] = [test.outputs[0]]
    while pending:
        node, _ = pending.pop()
        if node.op.name == "logical_and":
            pending += cast("tuple[Edge, ...]", node.inputs)
        elif node.op.name in ("less", "greater"):
            edge = node.inputs[0 if node.op.name == "less" else 1]
            if edge in inputs:
                found.add(inputs[edge])
    return found
