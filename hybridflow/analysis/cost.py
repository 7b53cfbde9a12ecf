"""`hf.cost`: what a call of a function costs, by operation, by line and in total, without running it."""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.communication import Communication, communication_of, sent_by, sent_once
from hybridflow.analysis.layers import Layers, format_count
from hybridflow.analysis.memory import Memory, Moment, bytes_of, format_size, memory_of
from hybridflow.backend.files import write_text
from hybridflow.backend.process_memory import ProcessMemory, process_memory
from hybridflow.core.attached import attached
from hybridflow.core.dims import Dim
from hybridflow.core.errors import ArgumentError
from hybridflow.core.functions import require_function
from hybridflow.core.html import page, paragraphs_html, rich_table_html, table_html
from hybridflow.core.mesh import Mesh
from hybridflow.core.node import short_place, where_file_line
from hybridflow.core.report import Report
from hybridflow.core.units import format_bytes
from hybridflow.ir.costs import Cost, NodeCost, Sizes, node_costs, total
from hybridflow.tracing.costing import Costing
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.method import CompiledMethod
from hybridflow.xla.chain import counts_of

_SHOWN = 12
"""The largest number of lines and of operations that a table shows."""
_TEXT = 50
"""The largest number of characters of a line of code that a table shows."""


@dataclass(frozen=True)
class NodeRow:
    """The cost of one operation of a call, all its runs together.

    Attributes:
        name: the operation.
        result: its result, as text.
        line: the user's line, ``file:line``; None if unknown.
        flops, macs: floating-point operations, and multiply-adds among them (each is two FLOPs).
        read, written: the bytes that it reads and writes.
        runs: the number of its runs in a call.
        note: why the count is not exact, or not part of the total; else empty.
        inside: the loop bodies and branches around it.
        counted: whether it is part of the total.
    """

    name: str
    result: str
    line: str | None
    flops: Any
    macs: Any
    read: Any
    written: Any
    runs: Any
    note: str
    inside: tuple[str, ...]
    counted: bool


@dataclass(frozen=True)
class LineRow:
    """The cost of a line of the user's code: its operations and those of their gradients.

    Attributes:
        line: ``file:line``.
        text: the line itself, if it can be read.
        flops, macs, read, written: as in `NodeRow`.
        activations: the size of its results that the backward pass reads, in bytes.
        operations: the number of its operations.
    """

    line: str
    text: str
    flops: Any
    macs: Any
    read: Any
    written: Any
    activations: Any
    operations: int


@dataclass(frozen=True, repr=False)
class XlaCheck(Report):
    """hybridflow's figures beside those of XLA.

    Attributes:
        flops: the FLOPs of one call, as the operations' records count them.
        flops_once: the same, but as XLA counts: the body of each loop once, and both sides of each branch.
        xla_flops: the FLOPs that XLA counts in its program.
        xla_transcendentals: the number of exponentials, tanh and the like, which XLA counts separately.
        temporaries: the predicted bytes of temporaries.
        xla_temporaries: the bytes of temporaries that XLA allocated.
        xla_peak: the bytes of all inputs, results and temporaries of XLA's program; results that take the memory of
            inputs do not count.
        remarks: why the figures may differ.
        sent: on a mesh, the predicted bytes of collectives on each device, by kind; those in a loop's body once.
        xla_sent: the same of XLA's program.
        peak: the predicted bytes of all inputs, results and temporaries.
        process: the memory of this process, with Python, jax and all else that it holds, now and at most; None where
            the system does not tell it.
    """

    flops: int
    flops_once: int
    xla_flops: int
    xla_transcendentals: int
    temporaries: int
    xla_temporaries: int
    xla_peak: int
    remarks: tuple[str, ...]
    sent: Mapping[str, int] = field(default_factory=dict[str, int])
    xla_sent: Mapping[str, int] = field(default_factory=dict[str, int])
    peak: int = 0
    process: ProcessMemory | None = None

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table as ``(what, hybridflow, XLA)``."""
        return [
            ("FLOPs of a call", f"{self.flops:,}", ""),
            ("FLOPs, loop bodies once", f"{self.flops_once:,}", f"{self.xla_flops + self.xla_transcendentals:,}"),
            ("of those, exponentials and the like", "", f"{self.xla_transcendentals:,}"),
            ("temporaries", f"{format_size(self.temporaries)} (estimate)", format_size(self.xla_temporaries)),
            ("peak", f"{format_size(self.peak)} (estimate)", format_size(self.xla_peak)),
            *[
                (f"this process, {when}", "", format_size(count))
                for when, count in zip(("now", "at most"), self.process or (), strict=False)
            ],
            *[
                (f"{kind}, bytes", f"{self.sent.get(kind, 0):,}", f"{self.xla_sent.get(kind, 0):,}")
                for kind in sorted({*self.sent, *self.xla_sent})
            ],
        ]

    def parts(self) -> list[Any]:
        """Return the table, and why the figures may differ."""
        table = Table()
        for title in ("", "hybridflow", "XLA"):
            table.add_column(title, justify="left" if not title else "right")
        for row in self.rows():
            table.add_row(*row)
        return [table, *self.remarks]


@dataclass(frozen=True, repr=False)
class CostReport(Report):
    """The cost of one call of a function; ``print(report)`` shows a table.

    FLOPs, bytes and the split of memory are exact for the operations as written; `notes` says what is an upper bound or
    not counted. Bytes are those of operations that run one by one: fused ones move less. Temporaries and the peak are
    estimates for XLA:CPU.

    Attributes:
        name: the function's name.
        nodes: one row per operation, in order.
        lines: one row per line of the user's code, the most FLOPs first.
        total: the sums: ``flops``, ``macs``, ``read``, ``written``, ``moved``.
        memory: where the memory goes.
        notes: texts on what is not exact.
        sizes: the sizes that the figures are for; None if they are formulas.
        bounds: if the call runs a program that was compiled for all sizes up to some bounds, with padded inputs: the
            bounds; else None.
        padded: as `total`, for that program at its bounds, without the operations that tell padding from real elements;
            None if there is no such program.
        communication: what the devices of a mesh send one another; None for one device, or if sizes are open. On a mesh
            `memory` is that of each device, and the other figures are those of all devices together.
    """

    name: str
    nodes: tuple[NodeRow, ...]
    lines: tuple[LineRow, ...]
    total: Cost
    memory: Memory
    notes: tuple[str, ...]
    sizes: dict[str, int] | None
    bounds: dict[str, int] | None
    padded: Cost | None
    communication: Communication | None
    _costing: Costing = field(repr=False, compare=False)

    @property
    def flops(self) -> Any:
        """Floating-point operations of a call; a formula if sizes are open."""
        return self.total.flops

    @property
    def macs(self) -> Any:
        """Multiply-adds of a call, each two of its FLOPs."""
        return self.total.macs

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte read or written; None if sizes are open or nothing moves."""
        if self.sizes is None or not self.total.moved:
            return None
        return self.total.flops / self.total.moved

    @property
    def layers(self) -> Layers:
        """A row for each module that the call calls, and one for what is in no module; it prints as a table.

        The sums of the rows are those of the report, apart from its split of `flops` into floating-point and integer
        operations. The function is traced once more, with the modules noted.

        Example:
            >>> import hybridflow as hf
            >>> model = hf.nn.Sequential(hf.nn.Linear(4, 8), hf.nn.relu, hf.nn.Linear(8, 2))
            >>> report = hf.cost(model, hf.TensorSpec([3, 4]))
            >>> [(row.path, row.type, row.macs) for row in report.layers]
            [('', 'Sequential', 0), ('0', 'Linear', 96), ('2', 'Linear', 48)]
        """
        return Layers(attached("layers_of")(self._costing))

    def at(self, **sizes: int) -> CostReport:
        """Return the report for given values of the open sizes, by their names in the formulas.

        Raises:
            ArgumentError: a name belongs to no open size, or an open size is missing.
        """
        known = self._costing.graph.dims.hints
        if sizes.keys() != known.keys():
            raise ArgumentError(f"at: the open sizes are {sorted(known)}", got=f"{sorted(sizes)}",
                                hint="Give one number each.")
        return report_of(replace(self._costing, sizes=dict(sizes)))

    def against_xla(self) -> XlaCheck:
        """Return hybridflow's figures beside XLA's. This compiles the call, but does not run it.

        Raises:
            ArgumentError: if sizes are open.
        """
        sizes = self.sizes
        if sizes is None:
            raise ArgumentError("against_xla: XLA compiles for sizes", hint="Choose some with .at(...).")
        executable = self._costing.compile(sizes)
        counted = counts_of(executable.lower())
        needed: Any = executable.compiled.memory_analysis()
        once = _once(node_costs(self._costing.graph, sizes))
        return XlaCheck(
            flops=int(self.flops),
            flops_once=int(once),
            xla_flops=int(counted.get("flops", 0)),
            xla_transcendentals=int(counted.get("transcendentals", 0)),
            temporaries=cast(int, self.memory.temporaries),
            xla_temporaries=int(needed.temp_size_in_bytes),
            xla_peak=int(
                needed.argument_size_in_bytes + needed.output_size_in_bytes - needed.alias_size_in_bytes
                + needed.temp_size_in_bytes
            ),
            remarks=_REMARKS,
            sent=sent_once(self.communication),
            xla_sent=sent_by(executable),
            peak=cast(int, self.memory.peak),
            process=process_memory(),
        )

    # -- showing ----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; formulas are text."""

        def plain(value: Any) -> Any:
            return str(value) if type(value) is Dim else value

        def rows(kinds: Iterable[Any]) -> list[dict[str, Any]]:
            return [{key: plain(value) for key, value in vars(row).items()} for row in kinds]

        memory = {what: plain(count) for what, count in self.memory.bytes.items()}
        return {
            "name": self.name,
            "total": {key: plain(value) for key, value in self.total._asdict().items()},
            "intensity": self.intensity,
            "memory": memory,
            "nodes": rows(self.nodes),
            "lines": rows(self.lines),
            "activations": rows(self.memory.activations),
            "at_peak": rows(self.memory.at_peak),
            "notes": list(self.notes),
            "sizes": self.sizes,
            "bounds": self.bounds,
            "padded": self.padded and self.padded._asdict(),
            "collectives": rows(() if self.communication is None else self.communication.rows),
        }

    def tables(self) -> list[Table]:
        """Return the tables for a `rich` console: the total, the lines, and the memory."""
        sent = [] if self.communication is None else [self.communication.table()]
        return [self._total_table(), self._line_table(), *sent, self._memory_table(), *self._activation_table()]

    def _total_table(self) -> Table:
        table = Table(title=Text(f"Cost of one call of {self.name}"), title_justify="left", show_header=False)
        cost = self.total
        table.add_row("FLOPs", format_count(cost.flops), f"{format_count(cost.macs)} multiply-adds")
        remark = "operations run one by one; fused ones move less"
        table.add_row("bytes read and written", format_size(cost.moved), remark)
        if self.intensity is not None:
            table.add_row("FLOPs per byte", f"{self.intensity:.3g}", "")
        if self.padded is not None and self.bounds is not None:
            upto = ", ".join([f"{name}<={bound}" for name, bound in self.bounds.items()])
            remark = f"{format_size(self.padded.moved)} moved by the program for {upto}, which such a call runs"
            table.add_row("FLOPs with padding", format_count(self.padded.flops), remark)
        return table

    def _line_table(self) -> Table:
        rows: list[tuple[str, ...]] = []
        for row in self.lines[:_SHOWN]:
            moved = format_size(row.read + row.written)
            share = "" if self.sizes is None or not self.flops else f"{row.flops / self.flops:.1%}"
            kept = format_size(row.activations)
            rows.append((_short(row.line), format_count(row.flops), share, moved, kept, row.text[:_TEXT]))
        if len(self.lines) > _SHOWN:
            rows.append((f"and {len(self.lines) - _SHOWN} more", *[""] * 5))
        titles = ("line", "FLOPs", "share", "moved", "kept", "")
        return _wide(_table("By line, gradients with what they are the gradients of"), titles, rows)

    def _memory_table(self) -> Table:
        each = "" if self.communication is None else " of each device"
        table = Table(title=f"Memory{each}", title_justify="left", show_header=False)
        for what, count, remark in self.memory.rows():
            table.add_row(what, format_size(count), remark)
        return table

    def _activation_table(self) -> list[Table]:
        kept = self.memory.activations
        if not kept:
            return []
        order = sorted(kept, key=lambda one: 0 if self.sizes is None else -one.bytes)
        rows = [(format_size(one.bytes), one.spec, one.name, _short(one.line)) for one in order[:_SHOWN]]
        if len(kept) > _SHOWN:
            rows.append((format_size(bytes_of(order[_SHOWN:])), "", f"and {len(kept) - _SHOWN} more", ""))
        table = _table(f"Activations kept for the backward pass: {len(kept)}")
        return [_wide(table, ("bytes", "array", "operation", "line"), rows)]

    def parts(self) -> list[Any]:
        """Return the tables, and the notes."""
        return [*self.tables(), *self.notes]

    def print(self, console: Console | None = None) -> None:
        """Print the tables, in colour if the console has colours.

        Args:
            console: where to print; the terminal if None.
        """
        (console or Console()).print(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the tables, memory over the call, what is stored at the peak, and every operation as one page.

        Args:
            path: the file; the page needs no network.
        """
        write_text(path, page(f"Cost of one call of {self.name}", cost_body(self)))

    def to_svg(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the temporaries that are stored while the call runs, kernel by kernel.

        Args:
            path: the file.

        Raises:
            ArgumentError: if sizes are open, or nothing is stored.
        """
        picture = timeline_svg(self.memory, self.name)
        if not picture:
            why = "its sizes are open" if self.sizes is None else "it stores nothing beside its inputs and results"
            raise ArgumentError(f"to_svg: there is nothing to draw for {self.name}: {why}")
        write_text(path, picture)


_REMARKS = (
    "XLA counts the body of a loop once whatever its number of steps, and both sides of a branch. On few cores, some "
    "convolutions are loops over their images.",
    "XLA leaves out multiplications by padding; the operations' counts, like the closed forms, do not.",
    "XLA counts every step of a composite operation (a softmax, a norm); hybridflow counts a few per element.",
)


def cost(
    fn: Callable[..., Any], *args: Any, mesh: Mesh | Mapping[str, int] | None = None, **kwargs: Any
) -> CostReport:
    """Return what a call of a function costs: FLOPs, bytes and memory, by operation, by line and in total.

    Nothing runs: the function is only traced. A loop counts as often as it runs; of two branches, the more expensive
    one counts. Memory is split into parameters, optimizer state, activations, gradients and temporaries.

    Args:
        fn: the function, compiled or not. Its tapes and assignments belong to the call.
        *args, **kwargs: what to call it with; a `TensorSpec` may stand for any tensor, None for a size left open.
        mesh: a mesh to run on, or its sizes by axis, for which no devices are needed; the one that `fn` is compiled for
            if not given. The layouts are those that `fn` is compiled with and those of its Variables, which may be for
            a mesh of other sizes.

    Returns:
        The report.

    Raises:
        LayoutError: a layout does not suit the mesh.
        ArgumentTypeError: `mesh` is no mesh.

    Example:
        >>> import hybridflow as hf
        >>> report = hf.cost(lambda x, w: hf.nn.relu(x @ w), hf.TensorSpec([8, 4]), hf.TensorSpec([4, 2]))
        >>> report.flops, report.macs
        (144, 64)
        >>> open_report = hf.cost(lambda x, w: x @ w, hf.TensorSpec([None, 4]), hf.TensorSpec([4, 2]))
        >>> open_report.flops, open_report.at(x_0=8).flops
        (16*x_0, 128)
        >>> step = hf.compile(lambda x: hf.mean(x), mesh=hf.Mesh({"data": 1}), batch="data")
        >>> hf.cost(step, hf.TensorSpec([1024, 4]), mesh={"data": 256}).communication.bytes
        {'all-reduce': 4}
    """
    require_function("cost", fn)
    compiled = fn if isinstance(fn, CompiledFunction | CompiledMethod) else CompiledFunction(fn)
    return cast(Any, compiled).cost(*args, mesh=mesh, **kwargs)


def report_of(costing: Costing) -> CostReport:
    """Return the report of a call."""
    costs = node_costs(costing.graph, costing.sizes)
    sent = communication_of(costing)
    memory = memory_of(costing, None if sent is None else sent.partition)
    nodes = tuple([_row(one) for one in costs])
    bounds = costing.bounds_for(costing.sizes) if costing.sizes else None
    return CostReport(
        costing.name, nodes, tuple(_lines(costs, memory, costing.sizes)), total(costs), memory,
        tuple(_notes(costs, costing)), costing.sizes, bounds,
        None if bounds is None else total(node_costs(costing.graph, bounds)), sent, costing,
    )


def cost_body(report: CostReport) -> str:
    """Return a report as the body of a page: its tables, memory over the call, the peak, and every operation."""
    first, *others = [rich_table_html(table) for table in report.tables()]
    parts = [first, paragraphs_html("\n".join(report.notes))]
    picture = timeline_svg(report.memory, report.name)
    if picture:
        parts.append(f"<figure>{picture}</figure>")
    parts += others
    if report.memory.at_peak:
        rows = [(format_size(one.bytes), one.spec, one.name, _short(one.line)) for one in report.memory.at_peak]
        parts.append("<p><b>Stored at the peak</b></p>" + table_html(("bytes", "array", "operation", "line"), rows))
    nodes = [
        (one.name, one.result, format_count(one.flops), format_size(one.read + one.written), format_count(one.runs),
         _short(one.line), one.note)
        for one in report.nodes
    ]
    table = table_html(("operation", "result", "FLOPs", "moved", "runs", "line", ""), nodes)
    parts.append(f"<details><summary><b>Every operation: {len(nodes)}</b></summary>{table}</details>")
    return "\n".join(parts)


def _row(one: NodeCost) -> NodeRow:
    results = ", ".join([str(spec) for spec in one.node.specs])
    cost = one.cost
    return NodeRow(
        one.node.op.name, results, one.node.location, cost.flops, cost.macs, cost.read, cost.written, one.runs,
        _note(one), one.inside, one.taken,
    )


def _note(one: NodeCost) -> str:
    notes: list[str] = []
    if not one.taken:
        notes.append("in the cheaper branch: not counted")
    if not one.bounded:
        notes.append("number of steps unknown: counted once")
    elif not one.exact:
        notes.append("at most")
    return ", ".join(notes)


def _notes(report: list[NodeCost], costing: Costing) -> list[str]:
    notes: list[str] = []
    if costing.placing is not None:
        notes.append("FLOPs and bytes read and written are those of all devices together.")
    if costing.undecided:
        notes.append("The memory budget chooses at the first call what is computed again: the figures are without.")
    if any(not one.bounded for one in report):
        notes.append("A loop whose number of steps nothing bounds is counted once.")
    if any(one.bounded and not one.exact for one in report):
        notes.append("A loop that may end early is counted with all of its steps.")
    left = [one for one in report if not one.taken]
    if left:
        flops = _flops_text(left)
        notes.append(f"Of two branches the one that costs more is counted; the others have {flops} FLOPs.")
    if any(one.node.op.has("foreign") for one in report):
        notes.append("Functions that are not hybridflow's count as 0 FLOPs.")
    return notes


def _flops_text(left: list[NodeCost]) -> str:
    """Return the FLOPs of operations that the total leaves out, as text."""
    flops: Any = 0
    for one in left:
        flops = flops + one.cost.flops
    return format_count(flops)


def _lines(report: list[NodeCost], memory: Memory, sizes: Sizes | None) -> list[LineRow]:
    """Return a row per line of code: the most FLOPs first, or in the order of the code if FLOPs are formulas."""
    kept: dict[str, Any] = {}
    for held in memory.activations:
        if held.line is not None:
            kept[held.line] = kept.get(held.line, 0) + held.bytes
    rows: dict[str, LineRow] = {}
    for one in report:
        place = where_file_line(one.node.where)
        if place is None or not one.taken or one.node.op.has("source"):
            continue
        line = f"{place[0]}:{place[1]}"
        row = rows.get(line)
        if row is None:
            row = LineRow(line, _source(*place), 0, 0, 0, 0, kept.get(line, 0), 0)
        cost = one.cost
        rows[line] = replace(
            row, flops=row.flops + cost.flops, macs=row.macs + cost.macs, read=row.read + cost.read,
            written=row.written + cost.written, operations=row.operations + 1,
        )
    result = list(rows.values())
    if sizes is not None:
        result.sort(key=lambda row: (-row.flops, -(row.read + row.written)))
    return result


def _source(file: str, line: int) -> str:
    try:
        return linecache.getline(file, line).strip()
    except IndexError:  # doctest replaces linecache: it knows only the examples that run at the moment
        return ""


def _short(line: str | None) -> str:
    return "" if line is None else short_place(line)


def _once(report: list[NodeCost]) -> int:
    """Return the FLOPs counted as XLA counts them: every loop's body once, and both sides of every branch."""
    flops = 0
    for one in report:
        runs = one.runs if isinstance(one.runs, int) else 1
        flops += one.cost.flops // max(1, runs)
    return flops


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left")


def _wide(table: Table, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Add columns and rows to a table; in a narrow terminal, only the last column is cut off."""
    for index, title in enumerate(titles):
        needed = max(len(cells[index]) for cells in (titles, *rows))
        last = index == len(titles) - 1
        numbers = title in ("FLOPs", "share", "moved", "kept", "bytes")
        table.add_column(title, justify="right" if numbers else "left", no_wrap=True, min_width=0 if last else needed)
    for cells in rows:
        table.add_row(*map(Text, cells))  # code may look like markup
    return table


# -- memory over the kernels of a call, as SVG ------------------------------------------------------------------------

_WIDTH, _HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 12, 46, 34
_FILL, _LINE, _PEAK, _INK, _GRID = "#c9dcf0", "#1f5fa8", "#c1440e", "#1c2733", "#d5dce2"


def timeline_svg(memory: Memory, name: str) -> str:
    """Return a picture of what is stored kernel by kernel, the peak marked; empty if there is nothing to show.

    Args:
        memory: the call's.
        name: the function's, for the title.
    """
    peak = memory.peak_at
    if peak is None or not peak.bytes:
        return ""
    moments = memory.timeline
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    top = peak.bytes * 1.05

    def x(index: float) -> float:
        return _LEFT + wide * index / len(moments)

    def y(count: float) -> float:
        return _TOP + high * (1 - count / top)

    steps = " ".join(f"V{y(one.bytes):.1f}H{x(index + 1):.1f}" for index, one in enumerate(moments))
    area = f'<path d="M{_LEFT} {y(0):.1f}{steps}V{y(0):.1f}z" fill="{_FILL}" stroke="{_LINE}"/>'
    at = moments.index(peak)
    middle = x(at + 0.5)
    side, anchor = (-8, "end") if middle > _WIDTH / 2 else (8, "start")
    title = f"Temporaries of one call of {escape(name)}, kernel by kernel"
    parts = [
        f'<text x="{_LEFT}" y="16" font-weight="600">{title}</text>',
        *[_grid(y(peak.bytes * share), peak.bytes * share) for share in (0, 0.5, 1)],
        area,
        f'<circle cx="{middle:.1f}" cy="{y(peak.bytes):.1f}" r="4" fill="{_PEAK}"/>',
        f'<text x="{middle + side:.1f}" y="{_TOP - 8}" text-anchor="{anchor}" fill="{_PEAK}">{_said(peak)}</text>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 10}">first kernel</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 10}" text-anchor="end">kernel {len(moments)}</text>',
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{_INK}" role="img">'
        f'<title>Memory of {escape(name)}</title><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _grid(height: float, count: float) -> str:
    label = f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{format_bytes(count)}</text>'
    return f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - _RIGHT}" stroke="{_GRID}"/>{label}'


def _said(peak: Moment) -> str:
    line = f", {short_place(peak.line)}" if peak.line else ""
    return escape(f"peak {format_bytes(peak.bytes)} at {peak.name}{line}")
