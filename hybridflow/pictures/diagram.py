"""The content of a graph's picture: boxes in groups, and arrows between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from hybridflow.core.errors import ArgumentError
from hybridflow.core.mesh import Layout, names_of
from hybridflow.core.node import Edge, Node, is_gradient, short_where
from hybridflow.core.sources import CONSTANT
from hybridflow.ir.costs import Cost, node_costs
from hybridflow.ir.graph import Graph, nested_graphs
from hybridflow.ir.printer import format_value

Colour = str | Mapping[Node, float] | None
"""The quantity that colours show: ``flops``, ``bytes``, a number per node (such as seconds), or None for nothing."""


@dataclass(eq=False)
class Box:
    """An operation, an input or an output of a graph.

    Attributes:
        number: its number, unique among boxes and groups.
        title: the name of the operation or the input.
        kind: ``op``, ``gradient``, ``input`` or ``output``.
        lines: the lines of text below its title.
        label: dtype and shape of its result, and its layout on a mesh, written at the beginning of its arrows.
        parent: the group it is in.
        weight: the cost that its colour shows.
        where: the line of user code as ``file:line``, None if there is none.
        mark: ``removed`` or ``added`` in a picture of a difference.
    """

    number: int
    title: str
    kind: str
    lines: tuple[str, ...]
    label: str
    parent: Group = field(repr=False)
    weight: float = 0.0
    where: str | None = None
    mark: str = ""


@dataclass(eq=False)
class Group:
    """Boxes and groups that are drawn inside one frame and can be folded into one box.

    Attributes:
        number: its number, unique among boxes and groups.
        title: the name of a scope, a function, a line, or an operation that carries graphs.
        kind: ``graph``, ``scope``, ``function``, ``line``, ``op`` or ``body``.
        parent: the group it is in; None for the outermost.
        children: the items inside it, in the order of execution.
    """

    number: int
    title: str
    kind: str
    parent: Group | None = field(default=None, repr=False)
    children: list[Box | Group] = field(default_factory=list["Box | Group"])

    @property
    def weight(self) -> float:
        """The sum of the weights inside."""
        return sum(child.weight for child in self.children)

    @property
    def count(self) -> int:
        """The number of operations inside."""
        inside = (c.count if isinstance(c, Group) else c.kind in ("op", "gradient") for c in self.children)
        return sum(inside) + (self.kind == "op")


Item = Box | Group


@dataclass(frozen=True, eq=False)
class Arrow:
    """A value from the item that makes it to one that reads it; its label is the value's."""

    source: Item
    target: Item
    label: str


@dataclass(eq=False)
class Diagram:
    """A picture before it has a layout.

    Attributes:
        root: the outermost group.
        arrows: the arrows.
        colour: the quantity that colours show: ``flops``, ``bytes``, ``value``, or empty for nothing.
    """

    root: Group
    arrows: list[Arrow]
    colour: str


def diagram_of(graph: Graph, colour: Colour = None, marks: Mapping[Node, str] | None = None) -> Diagram:
    """Return the content of a graph's picture.

    Consecutive operations that share a name scope, a function or a line are grouped. So two groups never need each
    other's results.

    Args:
        graph: the graph.
        colour: the quantity that colours show.
        marks: ``removed`` or ``added`` for nodes of a difference.

    Raises:
        ArgumentError: `colour` is an unknown word.
    """
    return _Maker(colour, marks or {}).make(graph)


class _Maker:
    def __init__(self, colour: Colour, marks: Mapping[Node, str]) -> None:
        if isinstance(colour, str) and colour not in _MEASURES:
            raise ArgumentError(f"picture: color={colour!r} is not known",
                                hint=f"Choose one of {sorted(_MEASURES)}, or pass a dict with a number per node.")
        self.colour: Colour = colour
        self.weights: Mapping[Node, float] = {}
        self.marks = marks
        self.count = 0
        self.arrows: list[Arrow] = []
        self.layouts: Callable[[Edge], Layout | None] | None = None

    def make(self, graph: Graph) -> Diagram:
        colour = self.colour
        if isinstance(colour, str):
            self.weights = _weights(graph, colour)
        elif colour is not None:
            self.weights, colour = colour, "value"
        self.layouts = graph.layouts
        root = Group(self._number(), graph.name, "graph")
        self._fill(root, graph)
        return Diagram(root, self.arrows, colour or "")

    def _number(self) -> int:
        self.count += 1
        return self.count - 1

    def _fill(self, inside: Group, graph: Graph) -> None:
        """Draw a graph's inputs, nodes and outputs inside a group."""
        producers: dict[Edge, Item] = {}
        for node in graph.inputs:
            name, label = str(node.attrs.get("name") or "input"), self._label((node, 0))
            box = Box(self._number(), name, "input", (), label, inside)
            inside.children.append(box)
            producers[node, 0] = box
        members = [(node, _path(node, graph.name)) for node in graph.nodes if not _is_small_constant(node)]
        self._split(inside, members, 0, producers)
        for position, edge in enumerate(graph.outputs):
            title = "output" if len(graph.outputs) == 1 else f"output {position}"
            box = Box(self._number(), title, "output", (), "", inside)
            inside.children.append(box)
            self._arrows((edge,), box, producers)

    def _arrows(self, edges: Sequence[Edge | None], item: Item, producers: Mapping[Edge, Item]) -> None:
        for edge in dict.fromkeys(edges):
            if edge is not None and edge in producers:
                self.arrows.append(Arrow(producers[edge], item, self._label(edge)))

    def _labels(self, node: Node) -> list[str]:
        return [self._label((node, index)) for index in range(len(node.outputs))]

    def _label(self, edge: Edge) -> str:
        """Return dtype and shape of a value, and how it lies on a mesh, if that is known."""
        layout = None if self.layouts is None else self.layouts(edge)
        if not layout:
            return str(edge[0].spec(edge[1]))
        axes = ", ".join(["+".join(names_of(axis)) or "-" for axis in layout])
        return f"{edge[0].spec(edge[1])} {f'({axes})' if any(layout) else 'whole'}"

    def _split(
        self, inside: Group, members: list[tuple[Node, _Path]], depth: int, producers: dict[Edge, Item]
    ) -> None:
        """Draw nodes inside a group; runs of nodes with the same next part of their paths get groups of their own."""

        def part(member: tuple[Node, _Path]) -> tuple[str, str] | None:
            return member[1][depth] if depth < len(member[1]) else None

        runs = [(name, list(run)) for name, run in groupby(members, part)]
        for name, run in runs:
            if name is None:
                for node, _ in run:
                    self._add(node, inside, producers)
            elif len(run) == 1 or len(runs) == 1:
                self._split(inside, run, depth + 1, producers)  # a frame around one item would be useless
            else:
                group = Group(self._number(), name[1], name[0], inside)
                inside.children.append(group)
                self._split(group, run, depth + 1, producers)

    def _add(self, node: Node, inside: Group, producers: dict[Edge, Item]) -> None:
        item = self._node(node, inside)
        inside.children.append(item)
        producers.update({(node, index): item for index in range(len(node.outputs))})
        self._arrows(node.inputs, item, producers)

    def _node(self, node: Node, parent: Group) -> Item:
        graphs = nested_graphs(node)
        if not graphs:
            kind = "gradient" if is_gradient(node.where) else "op"
            return Box(
                self._number(), node.op.name, kind, _lines(node), _cut(", ".join(self._labels(node))), parent,
                float(self.weights.get(node, 0.0)), node.location, self.marks.get(node, ""),
            )
        group = Group(self._number(), node.op.name, "op", parent)
        for graph in graphs:
            body = Group(self._number(), graph.name, "body", group)
            group.children.append(body)
            self._fill(body, graph)
        return group


_Path = tuple[tuple[str, str], ...]


def _path(node: Node, function: str) -> _Path:
    """Return ``(kind, title)`` of the groups that a node is in, outermost first."""
    parts = [("scope", part) for part in node.scope_name.split("/") if part]
    where, place = node.where, short_where(node.where)
    if where is None or not place:
        return tuple(parts)
    name = where[0].co_name
    if name not in (function, "<module>"):
        parts.append(("function", f"{name}()" if name.isidentifier() else name))
    parts.append(("line", place))
    return tuple(parts)


def _is_small_constant(node: Node) -> bool:
    return node.op is CONSTANT and node.spec().size == 1


def _lines(node: Node) -> tuple[str, ...]:
    """Return the lines of a node's box: its operands that are numbers, and its attributes."""
    if node.op is CONSTANT:
        return ()
    numbers = [_operand(edge) for edge in node.inputs if edge is not None]
    operands = ", ".join(number or "·" for number in numbers) if any(numbers) else ""
    attrs = ", ".join(f"{name}={format_value(value)}" for name, value in node.attrs.items() if name != "residuals")
    return tuple([_cut(text) for text in (operands, attrs) if text])


def _operand(edge: Edge) -> str:
    node = edge[0]
    return f"{node.attrs['value'].array.item():.6g}" if _is_small_constant(node) else ""


def _cut(text: str, limit: int = 36) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _weights(graph: Graph, what: str) -> dict[Node, float]:
    """Return the cost of each node in a run of the graph; the mean if a node occurs several times."""
    weights: defaultdict[Node, list[float]] = defaultdict(list)
    for one in node_costs(graph, graph.dims.hints):
        weights[one.node].append(float(_MEASURES[what](one.cost)))
    return {node: sum(values) / len(values) for node, values in weights.items()}


_MEASURES: dict[str, Callable[[Cost], Any]] = {"flops": lambda cost: cost.flops, "bytes": lambda cost: cost.moved}
