"""Whether each row of a batch is computed from the same row of the inputs alone.

That is read off the rules for padded values: along the axis of the batch, no rule may ask what is beyond the real size,
or say that elements meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from hybridflow.core.dims import Dim, Opaque, SizeFloat
from hybridflow.core.padding import Call, NoRule, Open, Padded, Rule, Size, is_separate
from hybridflow.ir.graph import Graph
from hybridflow.nested.bounded import Engine, Names, bounded

MIXES = "it may mix the rows of a batch"


def why_rows_mix(graph: Graph, symbol: str) -> str | None:
    """Return what may mix rows of a graph's inputs, or None if each row of the outputs is of the same row alone.

    The answer is on the safe side: an operation without a rule for padded values may mix rows.

    Args:
        graph: the graph, of which every output must have the rows as its first axis.
        symbol: the size that is the number of rows.
    """
    batch = Names(graph.dims).value(Dim({(symbol,): 1}, graph.dims)).symbol
    if batch is None:
        return f"the number of rows is {symbol}, and no size of its own"
    try:
        made = bounded(_needed(graph), graph.dims.hints, {}, partial(_Rows, batch))
    except NoRule as why:
        return str(why)
    for spec, axes in zip(graph.output_specs, made.outputs, strict=True):
        first, *others = [() if one is None else one.sizes for one in axes] or [()]
        if [*map(str, first)] != [batch] or _mentions(others, batch):
            return f"a result {spec} has no row for each row of the inputs"
    return None


def _needed(graph: Graph) -> Graph:
    """Return a graph without the nodes that no output needs."""
    wanted = {edge[0] for edge in graph.outputs}
    for node in reversed(graph.nodes):
        if node in wanted:
            wanted |= {edge[0] for edge in node.inputs if edge is not None}
    nodes = type(graph.nodes)([node for node in graph.nodes if node in wanted])
    return Graph(graph.name, graph.inputs, nodes, graph.outputs, graph.dims)


class _Rows(Engine):
    """What the rules ask for, where it does not concern the rows.

    Args:
        batch: the name of their number.
        rest: those of `Engine`.
    """

    def __init__(self, batch: str, *rest: Any) -> None:
        super().__init__(*rest)
        self.batch = batch

    def _refuse(self, value: Any) -> None:
        if _mentions(value, self.batch):
            raise NoRule(MIXES)

    def rule(self, call: Call) -> Rule:
        """Return the rule of an operation, unless it does not say where elements meet."""
        rule = super().rule(call)
        ours = [one.sizes for x in call.xs for one in x.axes if one is not None]
        ours += [spec.shape for spec in call.specs]
        if not is_separate(rule):
            self._refuse([*ours, *call.attrs.values()])
        return rule

    def _refuse_axis(self, x: Padded, axis: int) -> None:
        one: Open | None = x.axes[axis] if len(x.axes) >= abs(axis) else None
        self._refuse(one.sizes if one is not None else ())

    def count(self, size: Size) -> Any:
        """Return a real size, unless it is computed from the number of rows."""
        self._refuse(size)
        return super().count(size)

    def number(self, value: Any, dtype: Any) -> Any:
        """Return an attribute's number, unless it is computed from the number of rows."""
        self._refuse(value)
        return super().number(value, dtype)

    def meet(self, x: Padded, axis: int) -> None:
        """Refuse that elements along the axis of the rows meet."""
        self._refuse_axis(x, axis)

    def inside(self, x: Padded, axis: int) -> Any:
        """Return where elements are within the real size, unless the axis is that of the rows."""
        self._refuse_axis(x, axis)
        return super().inside(x, axis)

    def filled(self, x: Padded, axis: int, fill: Any) -> Padded:
        """Return the value with a fill, unless the axis is that of the rows."""
        self._refuse_axis(x, axis)
        return super().filled(x, axis, fill)


def _mentions(value: Any, symbol: str) -> bool:
    """Whether a size, or what is made of sizes, is computed from a symbol."""
    if isinstance(value, str | bytes):
        return False
    if type(value) is Dim:
        return any([atom == symbol if isinstance(atom, str) else _mentions(atom, symbol)
                    for monomial in value.terms for atom in monomial])
    if isinstance(value, Opaque):
        return _mentions((value.left, value.right), symbol)
    if type(value) is SizeFloat:
        return _mentions(value.operands, symbol)
    if isinstance(value, slice):
        return _mentions((value.start, value.stop, value.step), symbol)
    if isinstance(value, Mapping):
        return _mentions([*cast("Mapping[Any, Any]", value).values()], symbol)
    return isinstance(value, Sequence) and any([_mentions(one, symbol) for one in cast("Sequence[Any]", value)])
