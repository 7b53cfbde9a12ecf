"""`hf.simulate`: the time and memory of a step on a mesh that may not exist yet, estimated from its IR."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from hybridflow.analysis.communication import CollectiveRow
from hybridflow.analysis.cost import CostReport, cost
from hybridflow.analysis.memory import format_size
from hybridflow.analysis.simulation.hardware import Hardware, as_hardware
from hybridflow.analysis.simulation.links import link_of
from hybridflow.analysis.simulation.operations import Clock, Seconds
from hybridflow.core.errors import ArgumentError
from hybridflow.core.mesh import Mesh
from hybridflow.core.node import short_place
from hybridflow.core.report import Report
from hybridflow.xla.partition import Partition, partition

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
