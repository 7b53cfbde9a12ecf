"""Find out from a graph whether each row of a batch is computed from the same row of the inputs alone.

Only then may requests share a batch, and a batch be padded. The analysis is sound and small: an operation that it does
not know, or that may mix rows, makes the function one that runs each request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, cast

from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.node import Node, format_where
from hybridflow.core.spec import TensorSpec
from hybridflow.export.loaded import Function
from hybridflow.ir.graph import Graph


class Mixes(Exception):
    """Rows are mixed, or may be; the text says by what."""


def why_alone(function: Function) -> str | None:
    """Return why requests for a function cannot share a batch, or None if they can."""
    graph, count = function.graph(), len(function.inputs)
    firsts = [spec.shape[0] if spec.shape else None for spec in graph.input_specs[:count]]
    symbols = {str(size) for size in firsts if isinstance(size, Dim)}
    if not firsts or len(symbols) != 1 or not all([isinstance(size, Dim) for size in firsts]):
        return "its inputs have no common open size as their first axis"
    (symbol,) = symbols
    if symbol not in graph.dims.hints:
        return f"its batch size is {symbol}, and no size of its own"
    try:
        for spec in graph.output_specs[: len(function.outputs)]:
            if _axis(spec, symbol) != 0:
                return f"a result {spec} has no row for each row of the inputs"
        for node in _needed(graph, len(function.outputs)):
            _require_rowwise(node, symbol)
    except Mixes as why:
        return str(why)
    return None


def batch_symbol(function: Function) -> str:
    """Return the name of the size that is the batch of a function, of which `why_alone` is None."""
    return str(next(iter(function.inputs.values())).shape[0])


def _needed(graph: Graph, count: int) -> list[Node]:
    """Return the nodes that the first outputs need: the graph's checks may look at all rows."""
    wanted = {edge[0] for edge in graph.outputs[:count]}
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if node in wanted:
            nodes.append(node)
            wanted |= {edge[0] for edge in node.inputs if edge is not None}
    for one in graph.inputs:
        if one in wanted and one.specs[0].dtype == "uint32" and str(one.attrs.get("name")) == "random":
            raise Mixes("it draws random numbers")
    return nodes


def _mentions(value: Any, symbol: str) -> bool:
    """Whether an attribute or a size depends on the batch size."""
    if isinstance(value, tuple | list):
        return any([_mentions(one, symbol) for one in cast("Sequence[Any]", value)])
    if isinstance(value, Mapping):
        return any([_mentions(one, symbol) for one in cast("Mapping[Any, Any]", value).values()])
    if isinstance(value, slice):
        return _mentions((value.start, value.stop, value.step), symbol)
    return type(value) is SizeFloat or (type(value) not in _PLAIN and symbol in str(value))


_PLAIN = {int, float, bool, complex, str, type(None)}


def _axis(spec: TensorSpec, symbol: str) -> int | None:
    """Return the axis of a value that is the batch; None if the value is the same for all rows.

    Raises:
        Mixes: the size occurs otherwise than as the whole size of one axis.
    """
    found = [axis for axis, size in enumerate(spec.shape) if _mentions(size, symbol)]
    if len(found) > 1 or (found and str(spec.shape[found[0]]) != symbol):
        raise Mixes(f"a value has the shape {spec}")
    return found[0] if found else None


def _require_rowwise(node: Node, symbol: str) -> None:
    """Raise unless a node computes each row from the same row of its inputs."""
    where = f"{node.op.name} at {format_where(node.where) or 'an unknown line'}"
    try:
        ins = [_axis(edge[0].specs[edge[1]], symbol) for edge in node.inputs if edge is not None]
        outs = [_axis(spec, symbol) for spec in node.specs]
        if all([one is None for one in (*ins, *outs)]) and not _mentions(node.attrs, symbol):
            if node.op.has("random") or node.op.name.startswith("random_"):
                raise Mixes("it draws random numbers")
            return
        rule = _RULES.get(node.op.name)
        if rule is None and node.op.traits & {"pointwise", "identity"}:
            rule = _no_sizes
        if rule is None or not rule(node, ins, outs, symbol):
            raise Mixes("it may mix the rows of a batch")
    except Mixes as why:
        raise Mixes(f"{where}: {why}") from None


Axes = Sequence["int | None"]
Rule = Callable[[Node, Axes, Axes, str], bool]


def _specs(node: Node) -> list[TensorSpec]:
    return [edge[0].specs[edge[1]] for edge in node.inputs if edge is not None]


def _no_sizes(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """Element by element: the operands' batch axes meet in the only one of the result."""
    return not _mentions(node.attrs, symbol) and all([one is not None for one in outs])


def _moves(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """Elements move, and the whole batch axis with them."""
    return ins[0] is not None and outs[0] is not None


def _spreads(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    return outs[0] is not None


def _fills(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    return outs[0] is not None and not _mentions(node.attrs.get("fill_value"), symbol)


def _reshapes(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """In row-major order, a row keeps its elements if as many elements come before it as before."""
    before, after = _specs(node)[0].shape, node.specs[0].shape
    if ins[0] is None or outs[0] is None:
        return False
    sizes = (*before[: ins[0]], *after[: outs[0]])
    return all([type(size) is int for size in sizes]) and prod(before[: ins[0]]) == prod(after[: outs[0]])


def _along(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """Along axes, of which none is the batch; other inputs are parameters."""
    axes, spec = node.attrs.get("axis"), _specs(node)[0]
    if axes is None or ins[0] is None or any([one is not None for one in ins[1:]]):
        return False
    numbers = [axes] if isinstance(axes, int) else [*axes]
    own = {number % len(spec.shape) for number in numbers}
    return ins[0] not in own and outs[0] is not None and not _mentions(node.attrs, symbol)


def _product(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """No operand is summed over its batch axis."""
    left, right = [len(spec.shape) for spec in _specs(node)]
    summed = (left - 1, max(right - 2, 0))
    return outs[0] is not None and all([one is None or one != axis for one, axis in zip(ins, summed, strict=True)])


def _dense(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    x = _specs(node)[0]
    return ins[0] is not None and ins[0] < len(x.shape) - 1 and all([one is None for one in ins[1:]])


def _examples(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """Each example of the first axis by itself; other inputs are parameters."""
    return ins[0] == 0 and all([one is None for one in ins[1:]]) and all([one in (0, None) for one in outs])


def _joins(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """Values are joined along another axis than the batch; all of them have one."""
    return outs[0] is not None and outs[0] != node.attrs["axis"] and all([one is not None for one in ins])


def _indexes(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """The batch axis is taken whole and in order."""
    axis, number = ins[0], 0
    if axis is None or outs[0] is None:
        return False
    for item in node.attrs["index"]:
        if item is None:
            continue
        if number == axis:
            return isinstance(item, tuple) and item[0] == 0 and str(item[1]) == symbol and item[2] == 1
        if _mentions(item, symbol):
            return False
        number += 1
    return True


def _looks_up(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """A table that is the same for all rows."""
    return ins[0] is None and outs[0] is not None and not _mentions(node.attrs, symbol)


def _attends(node: Node, ins: Axes, outs: Axes, symbol: str) -> bool:
    """Queries, keys and values of the same example."""
    axes = [(one, len(spec.shape)) for one, spec in zip(ins, _specs(node), strict=True)]
    return all([one == 0 and ndim > 2 for one, ndim in axes[:3]]) and all([one in (0, None) for one, _ in axes[3:]])


_RULES: dict[str, Rule] = {
    "reshape": _reshapes, "permute_dims": _moves, "expand_dims": _moves, "squeeze": _moves, "broadcast_to": _spreads,
    "full": _fills, "matmul": _product, "linear": _dense, "concat": _joins, "stack": _joins, "getitem": _indexes,
    "gather": _looks_up, "scaled_dot_product_attention": _attends,
    "read": _no_sizes, "batch_norm": _examples, "lstm_update": _no_sizes,
    **dict.fromkeys(("sum", "max", "min", "prod", "all", "any", "logsumexp", "layer_norm", "rms_norm", "l2_normalize",
                     "softmax", "log_softmax", "mean", "argmax", "argmin"), _along),
    **dict.fromkeys(("conv", "max_pool", "avg_pool", "group_norm"), _examples),
}  # fmt: skip
