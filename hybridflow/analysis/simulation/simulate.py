"""`hf.simulate`: the time and memory of a step on a mesh that may not exist yet, estimated from its IR."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from hybridflow.analysis.communication import CollectiveRow
from hybridflow.analysis.cost import CostReport, cost
from hybridflow.analysis.memory import format_size
from hybridflow.analysis.simulation.hardware import Hardware, as_hardware
from hybridflow.analysis.simulation.links import collective_seconds, link_of
from hybridflow.core.errors import ArgumentError
from hybridflow.core.mesh import Mesh
from hybridflow.core.node import Edge, Node, short_place
from hybridflow.core.op import MultiplyAdds
from hybridflow.core.report import Report
from hybridflow.ir.costs import Sizes, bodies, concrete, moves_nothing, own_cost
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.nested.manual import MANUAL
from hybridflow.nested.pipelines import schedule_of
from hybridflow.xla.partition import Partition, Predicted, partition

_SHOWN = 12
"""The largest number of collectives that the table shows."""


@dataclass(frozen=True)
class TimedCollective:
    """A collective with its time.

    Attributes:
        row: what is sent, as in `hf.cost`'s report.
        seconds: the time of all its runs in a call.
        is_inside: whether the devices that take part are in one node.
    """

    row: CollectiveRow
    seconds: float
    is_inside: bool


@dataclass(frozen=True, repr=False)
class Simulation(Report):
    """The result of `hf.simulate`, an estimate; it prints as a table, in notebooks too.

    Attributes:
        name: the function's name.
        mesh: the size of each mesh axis.
        hardware: what the devices are.
        compute: the seconds of a call that a device computes.
        communication: the seconds in which it sends and receives.
        bubble: the seconds in which it waits for other stages of a pipeline, on average over the stages.
        memory: the bytes that each device needs at once: all inputs, results and temporaries.
        collectives: the collectives, the slowest first.
        assumptions: what the estimate assumes.
        cost: the report of `hf.cost` that it is made from.
    """

    name: str
    mesh: dict[str, int]
    hardware: Hardware
    compute: float
    communication: float
    bubble: float
    memory: int
    collectives: tuple[TimedCollective, ...]
    assumptions: tuple[str, ...]
    cost: CostReport = field(repr=False, compare=False)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return Mesh.without_devices(self.mesh).size if self.mesh else 1

    @property
    def seconds(self) -> float:
        """The estimated time of a call."""
        return self.compute + self.communication + self.bubble

    @property
    def fits(self) -> bool:
        """Whether `memory` is within the memory of a device."""
        return self.memory <= self.hardware.memory_bytes

    def share(self, part: str) -> float:
        """Return the share of the time of ``"compute"``, ``"communication"`` or ``"bubble"``, from 0 to 1."""
        return getattr(self, part) / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        """The FLOPs of a call per second and device, computations that are made again included."""
        return self.cost.flops / self.devices / self.seconds if self.seconds else 0.0

    def tables(self) -> list[Table]:
        """Return the tables for a `rich` console."""
        sizes = ", ".join([f"{name}={size}" for name, size in self.mesh.items()]) or "one device"
        title = Text(f"Estimate of one call of {self.name} on {sizes}: {self.hardware.name}")
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_row("time", format_seconds(self.seconds), f"{self.flops_per_second / 1e12:.3g} TFLOP/s per device")
        for part in ("compute", "communication", "bubble"):
            table.add_row(part, format_seconds(getattr(self, part)), f"{self.share(part):.1%}")
        room = "fits" if self.fits else "does not fit"
        table.add_row("memory per device", format_size(self.memory),
                      f"{room} into {format_size(self.hardware.memory_bytes)}")
        return [table, *([self._collective_table()] if self.collectives else [])]

    def _collective_table(self) -> Table:
        groups: dict[tuple[str, ...], list[float]] = {}
        for one in self.collectives:
            row = one.row
            line = "" if row.line is None else short_place(row.line)
            where = "in a node" if one.is_inside else "between nodes"
            group = groups.setdefault((row.kind, ", ".join(row.axes), where, line), [0, 0, 0.0])
            for index, more in enumerate((row.runs, row.bytes * row.runs, one.seconds)):
                group[index] += more
        table = Table(title="Sent between devices", title_justify="left")
        for title in ("collective", "along", "", "times", "bytes", "time", "line"):
            table.add_column(title, justify="right" if title in ("times", "bytes", "time") else "left")
        order = sorted(groups.items(), key=lambda one: -one[1][2])
        for (kind, along, where, line), (times, count, seconds) in order[:_SHOWN]:
            table.add_row(kind, along, where, f"{times:,}", format_size(count), format_seconds(seconds), Text(line))
        if order[_SHOWN:]:
            rest = [sum(column) for column in zip(*[one for _, one in order[_SHOWN:]], strict=True)]
            table.add_row(f"and {len(order) - _SHOWN} more", "", "", f"{rest[0]:,}", format_size(rest[1]),
                          format_seconds(rest[2]), "")
        return table

    def parts(self) -> list[Any]:
        """Return the tables, and what the estimate assumes."""
        return [*self.tables(), "\n".join(["Assumed:", *[f"- {one}" for one in self.assumptions]])]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; times in seconds, sizes in bytes."""
        return {
            "name": self.name, "mesh": self.mesh, "hardware": self.hardware.name, "seconds": self.seconds,
            "compute": self.compute, "communication": self.communication, "bubble": self.bubble,
            "memory": self.memory, "fits": self.fits, "assumptions": list(self.assumptions),
            "collectives": [
                {**vars(one.row), "seconds": one.seconds, "is_inside": one.is_inside} for one in self.collectives
            ],
        }


def format_seconds(seconds: float) -> str:
    """Format a time with a suitable unit, such as ``1.5 ms``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def simulate(
    fn: Callable[..., Any],
    *args: Any,
    mesh: Mesh | Mapping[str, int] | None = None,
    hardware: Hardware | str | os.PathLike[str],
    **kwargs: Any,
) -> Simulation:
    """Return an estimate of the time and memory of a call on devices that need not exist.

    Nothing runs and nothing is compiled: the function is traced, its program divided as XLA would divide it, and its
    operations and collectives are timed by what the hardware can do. A step on a mesh takes the sum over operations of
    the longer one of computing and moving bytes, plus each collective in a ring, plus the wait in pipelines.

    Args:
        fn: the function, compiled or not; on a mesh, compiled with ``mesh=`` (one of any sizes) and its layouts.
        *args, **kwargs: what to call it with; a `TensorSpec` may stand for any tensor.
        mesh: a mesh, or its sizes by axis; the one that `fn` is compiled for if not given. Devices along the last axis
            are neighbours, in one node as far as it has room.
        hardware: a shipped name (``"a100-80gb"``, ``"h100-sxm"``, ``"tpu-v4"``, ``"tpu-v5e"``), the path of a TOML file
            in the same form, or `hf.Hardware`.

    Returns:
        The estimate.

    Raises:
        ArgumentError: there is no such hardware, its file is wrong, or an argument leaves a size open.
        ArgumentTypeError: `hardware` or `mesh` is none.
        LayoutError: a layout does not suit the mesh.

    Example:
        >>> import hybridflow as hf
        >>> step = hf.compile(lambda x: hf.mean(x), mesh=hf.Mesh({"data": 1}), batch="data")
        >>> found = hf.simulate(step, hf.TensorSpec([2**20, 64]), mesh={"data": 16}, hardware="a100-80gb")
        >>> [one.row.kind for one in found.collectives], found.fits, found.bubble
        (['all-reduce'], True, 0.0)

    Reference:
        Williams, Waterman and Patterson, "Roofline", 2009; Thakur, Rabenseifner and Gropp, "Optimization of collective
        communication operations in MPICH", 2005; Huang et al., "GPipe", 2019.
    """
    there = as_hardware(hardware)
    report = cost(fn, *args, mesh=mesh, **kwargs)
    if report.sizes is None:
        raise ArgumentError("simulate: an argument leaves a size open",
                            got=str(sorted(report._costing.graph.dims.hints)), hint="Give specs with numbers only.")
    return simulation_of(report, there)


def simulation_of(report: CostReport, hardware: Hardware) -> Simulation:
    """Return the estimate for a call whose cost is known."""
    costing = report._costing
    sizes: dict[str, int] = report.sizes or {}
    divided = _divided(report, hardware)
    clock = Clock(costing.graph, sizes, divided, hardware)
    seconds = clock.of_whole(costing.graph)
    found = [] if divided is None else [
        TimedCollective(
            CollectiveRow.of(one), one.runs * clock.of_collective(one),
            link_of(divided.mesh.shape, one.axes, hardware).is_inside,
        )
        for one in divided.collectives
    ]
    found.sort(key=lambda one: -one.seconds)
    return Simulation(
        report.name, {} if divided is None else divided.mesh.shape, hardware, *seconds, int(report.memory.peak),
        tuple(found), tuple(_assumptions(hardware, seconds, report)), report,
    )


def _divided(report: CostReport, hardware: Hardware) -> Partition | None:
    """Return how the program is divided on the hardware's platform, which may choose other collectives."""
    sent, costing = report.communication, report._costing
    if sent is None or costing.placing is None or costing.sizes is None:
        return None
    if "all-reduce" not in sent.bytes and hardware.platform != "cpu":
        return sent.partition
    return partition(costing.graph, costing.sizes, costing.placing, hardware.platform)


def _assumptions(hardware: Hardware, seconds: Seconds, report: CostReport) -> Iterator[str]:
    share = hardware.attainable
    yield (
        f"Programs reach {share['products']:.0%} of the peak in products, {share['others']:.0%} in other operations, "
        f"{share['memory']:.0%} of the memory's bandwidth and {share['links']:.0%} of the links'."
    )
    yield "Pointwise operations are fused with what reads them; other results are written once and read by each reader."
    yield "Memory is XLA:CPU's plan, with each device's share of every value; other platforms may need less or more."
    yield "Starting kernels, input and output of data, and checkpoints take no time."
    if seconds.communication:
        yield "Collectives are rings, one after the other, and no device computes meanwhile."
        yield f"Nodes have {hardware.devices_per_node} devices; neighbours along the mesh's last axis are in one node."
    if seconds.bubble:
        yield "In a pipeline each tick takes as long as its longest pass."
    if any(row.runs is not None and row.note for row in report.nodes):
        yield "Loops of unknown length count one step, others all their steps; of two branches, the slower one counts."


# -- the time of a graph's operations on one device of a mesh, with what devices send one another and wait for --------


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
