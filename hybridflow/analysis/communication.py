"""What the devices of a mesh send one another in a call: rows of a cost report, beside XLA's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from hybridflow.analysis.memory import format_size
from hybridflow.core.node import short_place
from hybridflow.tracing.costing import Costing
from hybridflow.xla.communication import collectives
from hybridflow.xla.executable import Executable
from hybridflow.xla.partition import Partition, Predicted, partition

_SHOWN = 12
"""The largest number of rows that the table shows."""


@dataclass(frozen=True)
class CollectiveRow:
    """What devices send one another for one operation.

    Attributes:
        kind: ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all`` or ``collective-permute``.
        axes: the mesh axes along which they do.
        devices: the number of devices that do so together.
        bytes: the size of the result on each device.
        shape: the shape of the result on each device.
        runs: how often it runs in a call.
        line: the user's line, ``file:line``; None if unknown.
        operation: the operation that needs it.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    bytes: int
    shape: tuple[int, ...]
    runs: int
    line: str | None
    operation: str

    @classmethod
    def of(cls, one: Predicted) -> CollectiveRow:
        """Return the row of a predicted collective."""
        name = "" if one.node is None else one.node.op.name
        return cls(one.kind, one.axes, one.devices, one.bytes, one.shape, one.runs, one.line, name)


@dataclass(frozen=True)
class Communication:
    """What the devices of a mesh send one another in a call, predicted without devices; it prints as a table.

    Attributes:
        mesh: the size of each mesh axis.
        rows: a row for each collective, in the program's order.
        partition: how the graph is divided, for further analyses.
    """

    mesh: dict[str, int]
    rows: tuple[CollectiveRow, ...]
    partition: Partition = field(repr=False, compare=False)

    @property
    def bytes(self) -> dict[str, int]:
        """The bytes of a call's collectives on each device, by kind."""
        return self.partition.bytes()

    def table(self) -> Table:
        """Return the table for a `rich` console: a line for each line of the user's code, the most bytes first."""
        groups: dict[tuple[str, tuple[str, ...], str], list[int]] = {}
        for row in self.rows:
            line = "" if row.line is None else short_place(row.line)
            group = groups.setdefault((row.kind, row.axes, line), [0, 0])
            group[0] += row.runs
            group[1] += row.bytes * row.runs
        order = sorted(groups.items(), key=lambda one: -one[1][1])
        sizes = ", ".join([f"{name}={size}" for name, size in self.mesh.items()])
        table = Table(title=Text(f"Sent between devices, {sizes}; bytes of results on each"), title_justify="left")
        for title in ("collective", "along", "times", "bytes", "line"):
            table.add_column(title, justify="right" if title in ("times", "bytes") else "left", no_wrap=True)
        for (kind, axes, line), (times, count) in order[:_SHOWN]:
            table.add_row(kind, ", ".join(axes), f"{times:,}", format_size(count), Text(line))
        rest = order[_SHOWN:]
        if rest:
            more = f"{sum([one[0] for _, one in rest]):,}", format_size(sum([one[1] for _, one in rest]))
            table.add_row(f"and {len(rest)} more", "", *more, "")
        return table


def communication_of(costing: Costing) -> Communication | None:
    """Return what devices send in a call; None for one device, or if sizes are open."""
    placing = costing.placing
    if placing is None or costing.sizes is None:
        return None
    planned = placing.mesh.is_planned
    platform = None if planned else placing.mesh.devices[0].platform
    divided = partition(costing.graph, costing.sizes, placing, platform)
    return Communication(placing.mesh.shape, tuple([CollectiveRow.of(one) for one in divided.collectives]), divided)


def sent_once(communication: Communication | None) -> Mapping[str, int]:
    """Return the bytes of collectives by kind, as a program's text has them: those of a loop's body once."""
    total: dict[str, int] = {}
    for row in () if communication is None else communication.rows:
        total[row.kind] = total.get(row.kind, 0) + row.bytes
    return total


def sent_by(executable: Executable) -> dict[str, int]:
    """Return the bytes of the collectives in XLA's program, by kind."""
    total: dict[str, int] = {}
    found: Any = () if executable.placing is None else collectives(executable.compiled.as_text(), executable.namer)
    for one in found:
        total[one.kind] = total.get(one.kind, 0) + one.bytes
    return total
