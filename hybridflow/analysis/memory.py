"""Where a call's memory goes: parameters, optimizer state, activations, gradients, temporaries, and the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hybridflow.core.dims import Dim
from hybridflow.core.node import Edge, Node, short_place
from hybridflow.core.spec import TensorSpec
from hybridflow.core.units import format_bytes
from hybridflow.core.variable import GradientCell
from hybridflow.ir.costs import Sizes, concrete, moves_nothing
from hybridflow.ir.graph import Graph
from hybridflow.ir.liveness import roots
from hybridflow.tracing.costing import Costing
from hybridflow.xla.buffers import Buffers, buffers
from hybridflow.xla.partition import Partition
from hybridflow.xla.primitives import Parts


@dataclass(frozen=True)
class Held:
    """One array, and where it comes from.

    Attributes:
        name: the argument, the Variable, or the operation that computes it.
        bytes: its size.
        spec: its dtype and shape, as text.
        line: the user's line that computed it; None for inputs.
    """

    name: str
    bytes: Any
    spec: str
    line: str | None = None


@dataclass(frozen=True)
class Moment:
    """The memory in use while one kernel of a call runs, apart from inputs and results.

    Attributes:
        name: the operation that the kernel ends with; ``copy`` is the copy of a Variable's old value.
        line: the user's line of it.
        bytes: the number of bytes stored.
    """

    name: str
    line: str | None
    bytes: int


@dataclass(frozen=True)
class Memory:
    """A call's memory, split as the field splits it. Each array counts once; views count as what they view.

    On a mesh it is the memory of each device, apart from what devices send one another.

    Attributes:
        arguments: tensors given to the call or captured by it.
        parameters: Variables that the call reads and takes gradients of (all it reads, if it takes none).
        state: the other Variables: optimizer state, counters, running statistics.
        slots: the part of `state` that belongs to single parameters, such as Adam's moments; see `hf.Variable`.
        activations: values of the forward pass that the backward pass reads.
        gradients: values of the backward pass that the rest of the call reads, and the arrays of `Variable.grad`.
        results: what the call returns; the Variables' new values replace the old ones and do not count.
        temporaries: the predicted memory of XLA:CPU besides inputs and results, including the activations and gradients
            that it stores; None if sizes are open.
        timeline: the bytes stored, kernel by kernel.
        at_peak: the values stored at the peak.
    """

    arguments: tuple[Held, ...]
    parameters: tuple[Held, ...]
    state: tuple[Held, ...]
    slots: tuple[Held, ...]
    activations: tuple[Held, ...]
    gradients: tuple[Held, ...]
    results: tuple[Held, ...]
    temporaries: int | None
    timeline: tuple[Moment, ...]
    at_peak: tuple[Held, ...]

    @property
    def bytes(self) -> dict[str, Any]:
        """The bytes of each part, by its name."""
        return {what: count for what, count, _ in self.rows()}

    @property
    def peak(self) -> Any:
        """The bytes that are needed at once: all inputs, results and temporaries."""
        if self.temporaries is None:
            return None
        held = (self.arguments, self.parameters, self.state, self.results)
        return sum(bytes_of(one) for one in held) + self.temporaries

    @property
    def peak_at(self) -> Moment | None:
        """The moment at which most is stored; None if there is none, or sizes are open."""
        return max(self.timeline, key=lambda moment: moment.bytes, default=None)

    def rows(self) -> list[tuple[str, Any, str]]:
        """Return the split as ``(what, bytes, remark)``."""
        split = [
            ("arguments", self.arguments, ""),
            ("parameters", self.parameters, ""),
            ("optimizer state", self.state, "and other Variables that no gradient is taken of"),
            *([("slots", self.slots, "of these, what an optimizer keeps for its parameters")] if self.slots else []),
            ("activations", self.activations, "of the forward pass, read by the backward pass: their sum"),
            ("gradients", self.gradients, ""),
            ("results", self.results, ""),
        ]
        rows = [(what, bytes_of(held), remark) for what, held, remark in split]
        if self.temporaries is not None:
            remark = "the most stored at once, estimated for XLA:CPU, stored activations and gradients included"
            remark += self._gaps()
            rows.append(("temporaries", self.temporaries, remark))
            rows.append(("peak", self.peak, "all inputs, results and temporaries" + self._where()))
        return rows

    def _gaps(self) -> str:
        """Return how much of the temporaries is never in use: arrays do not fit between others without gaps."""
        at = self.peak_at
        gaps = 0 if at is None or self.temporaries is None else self.temporaries - at.bytes
        return f"; {format_bytes(gaps)} of it are gaps" if gaps else ""

    def _where(self) -> str:
        at = self.peak_at
        return "" if at is None else f"; at {at.name}" + (f", {short_place(at.line)}" if at.line else "")


def bytes_of(held: Iterable[Held]) -> Any:
    """Return the bytes of several arrays."""
    total: Any = 0
    for one in held:
        total = total + one.bytes
    return total


def format_size(count: Any) -> str:
    """Format a number of bytes with the unit that fits; a symbolic one as its formula."""
    return f"{count} B" if type(count) is Dim else format_bytes(count)


def memory_of(costing: Costing, partition: Partition | None = None) -> Memory:
    """Return where the memory of a call goes, on each device of a mesh if it is divided."""
    graph, sizes = costing.graph, costing.sizes
    roles = Roles(costing)
    parts = None if partition is None else partition.parts
    count = len(graph.inputs) - len(costing.variables)
    parameters = roles.parameters()
    variables = list(range(count, len(graph.inputs)))
    alive: Buffers | None = None
    if sizes is not None:
        alive = buffers(graph, sizes, costing.donated, parts)
    cells = {i for i, one in enumerate(costing.variables) if isinstance(one, GradientCell)}
    kept = {roles.stored(graph.outputs[output]) for output, position in costing.donated if position - count in cells}
    state = [i for i in variables if i - count not in parameters | cells]
    gradients = [edge for edge in roles.gradients() if edge not in kept]
    donated = {output for output, _ in costing.donated}
    returned = [edge for index, edge in enumerate(graph.outputs) if index not in donated]
    results = [edge for edge in dict.fromkeys(map(roles.stored, returned)) if edge[0] not in roles.given]

    def held(index: int) -> Held:
        return _input(graph.inputs[index], sizes, parts)

    return Memory(
        arguments=tuple(map(held, range(count))),
        parameters=tuple([held(i) for i in variables if i - count in parameters]),
        state=tuple(map(held, state)),
        slots=tuple([held(i) for i in state if costing.variables[i - count].like is not None]),
        activations=_held(roles.activations(), sizes, parts),
        gradients=(*_held(gradients, sizes, parts), *[held(count + i) for i in sorted(cells)]),
        results=_held(results, sizes, parts),
        temporaries=None if alive is None else alive.peak,
        timeline=() if alive is None else _timeline(alive),
        at_peak=() if alive is None else _alive(alive),
    )


class Roles:
    """Which nodes of a graph belong to the forward pass and which to the backward pass.

    Passes replace nodes. A new node keeps the position of the old one in the recording, and so its role. Nodes that a
    memory budget computes again during the backward pass belong to the backward pass.
    """

    def __init__(self, costing: Costing) -> None:
        self._costing = costing
        self._graph: Graph = costing.graph
        self._backward = {node.sequence for node in costing.gradient_of}
        self._differentiated = {node.sequence for node in costing.gradient_of.values()} - self._backward
        self._views = roots(costing.graph)
        self._later = self._in_backward()
        self.given = {*self._graph.inputs, *[node for node in self._graph.nodes if not node.inputs]}

    def stored(self, edge: Edge) -> Edge:
        """Return the value whose memory a value is in."""
        return self._views.get(edge, edge)

    def _is_backward(self, node: Node) -> bool:
        return node in self._later

    def _in_backward(self) -> set[Node]:
        """Return the nodes of the backward pass."""
        first = min(self._backward, default=0)
        recorded = {node.sequence for node in self._costing.traced.nodes}
        nodes: set[Node] = set()
        for node in self._graph.nodes if self._backward else ():
            again = node.sequence < first or node.sequence not in recorded
            if node.sequence in self._backward or (again and any(e and e[0] in nodes for e in node.inputs)):
                nodes.add(node)
        return nodes

    def parameters(self) -> set[int]:
        """Return which Variables are parameters, by their position."""
        costing = self._costing
        first = len(self._graph.inputs) - len(costing.variables)
        if not self._backward:
            return {i for i, one in enumerate(costing.variables) if i not in costing.assigned or one.trainable}
        traced = roots(costing.traced)
        numbers: set[int] = set()
        positions = {node: index - first for index, node in enumerate(costing.traced.inputs)}
        for node in costing.traced.nodes:
            if node.sequence not in self._differentiated:
                continue
            for edge in cast("Sequence[Edge]", node.inputs):
                position = positions.get(traced.get(edge, edge)[0], -1)
                if position >= 0 and costing.variables[position].trainable:
                    numbers.add(position)
        return numbers

    def activations(self) -> list[Edge]:
        """Return the computed values of the forward pass that the backward pass reads, each storage once."""
        edges: dict[Edge, None] = {}
        for node in self._graph.nodes:
            if not self._is_backward(node) or moves_nothing(node):
                continue
            for edge in cast("Sequence[Edge]", node.inputs):
                source = self.stored(edge)
                if source[0] not in self.given and not self._is_backward(source[0]):
                    edges[source] = None
        return list(edges)

    def gradients(self) -> list[Edge]:
        """Return the values of the backward pass that other nodes read or the call returns, each storage once."""
        storages: dict[Edge, None] = {}
        readers = [node.inputs for node in self._graph.nodes if not self._is_backward(node) and not moves_nothing(node)]
        for edges in (*readers, self._graph.outputs):
            for edge in cast("Sequence[Edge]", edges):
                source = self.stored(edge)
                if self._is_backward(source[0]) and source[0] not in self.given:
                    storages[source] = None
        return list(storages)


def _input(node: Node, sizes: Sizes | None, parts: Parts | None) -> Held:
    spec = concrete(node.spec(), sizes)
    return Held(node.attrs["name"], _bytes(node, spec, parts), str(spec))


def _held(edges: Iterable[Edge], sizes: Sizes | None, parts: Parts | None) -> tuple[Held, ...]:
    held: list[Held] = []
    for node, index in edges:
        spec = concrete(node.spec(index), sizes)
        held.append(Held(node.op.name, _bytes(node, spec, parts), str(spec), node.location))
    return tuple(held)


def _bytes(node: Node, spec: TensorSpec, parts: Parts | None) -> Any:
    """Return the bytes of a value of a node; of one of its parts, if a mesh divides it."""
    return spec.nbytes if parts is None else -(-spec.nbytes // parts(node, spec.shape))


def _timeline(report: Buffers) -> tuple[Moment, ...]:
    moments: list[Moment] = []
    for kernel, count in zip(report.kernels, report.bytes, strict=True):
        node = kernel.node
        moments.append(Moment("copy" if node is None else node.op.name, None if node is None else node.location, count))
    return tuple(moments)


def _alive(report: Buffers) -> tuple[Held, ...]:
    return tuple([
        Held(
            "copy" if node is None else node.op.name, value.nbytes, f"{value.itemsize} B x {list(value.shape)}",
            None if node is None else node.location,
        )
        for value, node in report.alive
    ])
