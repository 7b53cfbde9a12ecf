"""The time of a graph's operations on one device of a mesh, with what devices send one another and wait for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from hybridflow.analysis.simulation.hardware import Hardware
from hybridflow.analysis.simulation.links import collective_seconds, link_of
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import MultiplyAdds
from hybridflow.ir.costs import Sizes, bodies, concrete, moves_nothing, own_cost
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.nested.manual import MANUAL
from hybridflow.nested.pipelines import schedule_of
from hybridflow.xla.partition import Partition, Predicted


class Seconds(NamedTuple):
    """Where the time of a device goes, in seconds.

    Attributes:
        compute: in operations.
        communication: in collectives.
        bubble: waiting for other stages of a pipeline, on average over its devices.
    """

    compute: float = 0.0
    communication: float = 0.0
    bubble: float = 0.0

    @property
    def total(self) -> float:
        """The whole time."""
        return self.compute + self.communication + self.bubble

    def plus(self, other: Seconds, times: float = 1.0) -> Seconds:
        """Return the sum with some runs of another one."""
        return Seconds(*[own + times * more for own, more in zip(self, other, strict=True)])


class Clock:
    """Tells the time of graphs on one device.

    An operation takes the longer one of its FLOPs at the attainable peak and its bytes at the attainable bandwidth.
    Pointwise operations and changes of layout run inside of what reads them where compilers for accelerators fuse them,
    so that their results are not stored; each other value is written once and read once by each reader.

    Args:
        graph: the whole graph, for what several of its bodies share.
        sizes: the size of each symbol.
        divided: how the graph is divided on a mesh; None for one device.
        hardware: what the devices are.

    Reference:
        Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
    """

    def __init__(self, graph: Graph, sizes: Sizes, divided: Partition | None, hardware: Hardware) -> None:
        self._sizes = sizes
        self._divided = divided
        self._hardware = hardware
        self._known: dict[Graph, Seconds] = {}
        self._visits: Counter[Node] = Counter()
        self._twins: dict[Any, Graph] = {}
        self._visit(graph)
        self._sent: dict[Node | None, float] = defaultdict(float)
        for one in () if divided is None else divided.collectives:
            runs = one.runs if one.node is not None and one.node.op.has("stages") else 1
            self._sent[one.node] += runs * self.of_collective(one) / max(1, self._visits[one.node])  # pyright: ignore

    def _visit(self, graph: Graph) -> None:
        for node in graph.nodes:
            self._visits[node] += 1
            for body in bodies(node, self._sizes) or ():
                self._visit(body.graph)
                if self._is_seen(body.graph):
                    self._twins.setdefault(_shape_of(body.graph), body.graph)

    def _is_seen(self, graph: Graph) -> bool:
        """Whether the program has a graph's operations: equal bodies, such as a pipeline's stages, are in it once."""
        return self._divided is None or any([node in self._divided.work for node in graph.walk()])

    def of_collective(self, one: Predicted) -> float:
        """Return the time of one run of a collective, in seconds."""
        assert self._divided is not None
        return collective_seconds(one.kind, one.bytes, link_of(self._divided.mesh.shape, one.axes, self._hardware))

    def of_whole(self, graph: Graph) -> Seconds:
        """Return the time of the whole graph, with the collectives that belong to no operation."""
        return self.of(graph).plus(Seconds(communication=self._sent[None]))

    def of(self, graph: Graph) -> Seconds:
        """Return the time of one run of a graph."""
        if not self._is_seen(graph):
            graph = self._twins.get(_shape_of(graph), graph)
        if graph in self._known:
            return self._known[graph]
        seconds = _own_seconds(graph, self)
        total = Seconds(sum(seconds.values()), sum([self._sent.get(node, 0.0) for node in graph.nodes]))
        for node in graph.nodes:
            total = total.plus(self._carried(node))
        self._known[graph] = total
        return total

    def _carried(self, node: Node) -> Seconds:
        """Return the time of the graphs that a node carries: loops with all steps, the slowest branch."""
        carried = bodies(node, self._sizes)
        if carried is None:
            return Seconds()
        if node.op.has("stages"):
            return self._pipeline(node, [self.of(body.graph) for body in carried])
        total = Seconds()
        choices: list[Seconds] = []
        for body in carried:
            times = 1 if body.times is None or node.op is MANUAL else body.times  # its times are the devices
            one = Seconds().plus(self.of(body.graph), times)
            if body.alternative:
                choices.append(one)
            else:
                total = total.plus(one)
        return total.plus(max(choices, key=lambda one: one.total)) if choices else total

    def _pipeline(self, node: Node, passes: list[Seconds]) -> Seconds:
        """Return the time of a pipeline: each tick takes as long as its longest pass, since results are then sent."""
        schedule = schedule_of(node)
        whole, busy = 0.0, Seconds()
        for row in schedule.table:
            tick = [passes[one.stage + schedule.stages * one.backward] for one in row if one is not None]
            whole += max([one.total for one in tick])
            for one in tick:
                busy = busy.plus(one, 1 / schedule.devices)
        return busy._replace(bubble=whole - busy.compute - busy.communication)

    # -- single operations ----------------------------------------------------------------------------------------

    def bytes_of(self, edge: Edge) -> float:
        """Return the bytes of a value on one device."""
        spec = concrete(edge[0].spec(edge[1]), self._sizes)
        return spec.nbytes / (1 if self._divided is None else self._divided.parts(edge[0], spec.shape))

    def is_carrier(self, node: Node) -> bool:
        """Whether a node runs graphs, whose time is counted instead of its own."""
        return bodies(node, self._sizes) is not None

    def computing(self, node: Node) -> float:
        """Return how long a device computes for a node, in seconds."""
        cost = own_cost(node, self._sizes)
        if not cost.flops:
            return 0.0
        read = next((edge[0].spec(edge[1]).dtype for edge in node.inputs if edge is not None), node.specs[0].dtype)
        products, others = [self._hardware.peak(read, product=one) for one in (True, False)]
        return (2 * cost.macs / products + (cost.flops - 2 * cost.macs) / others) / self._parts(node)

    def _parts(self, node: Node) -> int:
        if self._divided is None:
            return 1
        found = self._divided.work.get(node)
        return self._divided.parts(node, concrete(node.specs[0], self._sizes).shape) if found is None else found

    def moving(self, count: float) -> float:
        """Return how long a device reads or writes some bytes, in seconds."""
        return count / (self._hardware.memory_bandwidth * self._hardware.attainable["memory"])


def _shape_of(graph: Graph) -> Any:
    """Return what is equal for graphs of the same operations."""
    return tuple([(node.op.name, node.specs) for node in graph.walk()])


def is_product(node: Node) -> bool:
    """Whether an operation multiplies and adds, as matrix products and convolutions do."""
    return isinstance(node.op.flops, MultiplyAdds)


def _own_seconds(graph: Graph, clock: Clock) -> Mapping[Node, float]:
    """Return the time of each operation of a graph, without the graphs that it carries."""
    readers: dict[Node, dict[Node, None]] = defaultdict(dict)
    for node in graph.nodes:
        for edge in edges_of(node):
            readers[edge[0]][node] = None
    kept = {edge[0] for edge in graph.outputs}
    sources: dict[Edge, dict[Edge, float]] = {}
    computing: dict[Node, float] = defaultdict(float)
    seconds: dict[Node, float] = {}
    for node in graph.nodes:
        if clock.is_carrier(node):
            continue
        reads: dict[Edge, float] = {}
        for edge in edges_of(node):
            for source, count in sources.get(edge, {edge: clock.bytes_of(edge)}).items():
                reads[source] = max(reads.get(source, 0.0), count)
        if moves_nothing(node):
            if node.inputs and not node.op.has("source"):
                sources[node, 0] = reads
            continue
        made = [clock.bytes_of((node, index)) for index in range(len(node.specs))]
        own = computing[node] + clock.computing(node)
        to = [] if node in kept else list(readers[node])
        if _is_inside(node, to, reads, made[0], clock):
            computing[to[0]] += own
            sources[node, 0] = {
                source: min(count, made[0]) if node.op.has("layout") else count for source, count in reads.items()
            }
            continue
        seconds[node] = max(own, clock.moving(sum(reads.values()) + sum(made)))
    return seconds


def _is_inside(node: Node, readers: list[Node], reads: Mapping[Edge, float], made: float, clock: Clock) -> bool:
    """Whether an operation runs inside of its readers, so that its result is not stored.

    Args:
        node: the operation.
        readers: what reads it; none if the graph returns it.
        reads: the stored values that it reads, and their bytes.
        made: the bytes of its result.
        clock: tells which nodes carry graphs.
    """
    traits: Any = node.op.traits
    if len(node.specs) != 1 or not readers or not traits & {"pointwise", "layout"}:
        return False
    if any([clock.is_carrier(one) or (is_product(one) and "layout" not in traits) for one in readers]):
        return False
    large = [count for count in reads.values() if 2 * count >= made]
    return len(readers) == 1 or len(large) <= 1
