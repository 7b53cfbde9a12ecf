"""The result of `hf.profile`."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import accumulate
from os import PathLike
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.profile.compiled import Call
from hybridflow.analysis.profile.events import Kernel, covered
from hybridflow.analysis.profile.recorder import Recorder, Run
from hybridflow.analysis.report import page, titled_table
from hybridflow.analysis.timing import format_seconds
from hybridflow.backend.files import write_text
from hybridflow.core.context import CONTEXT
from hybridflow.core.dispatch import bind_eagerly
from hybridflow.core.html import paragraphs_html, table_html
from hybridflow.core.node import Node, Where, is_gradient, short_where
from hybridflow.core.op import REGISTRY
from hybridflow.core.report import Report
from hybridflow.core.tensor import make_tensor
from hybridflow.core.units import format_bytes
from hybridflow.ir.graph import Graph

SHOWN = 20
"""How many rows a printed table has."""


@dataclass(frozen=True)
class Row:
    """Runs of one kind, or of one line, together.

    Attributes:
        name: the operation; the operations that XLA fused into one kernel, joined by `` + ``; or the line.
        phase: ``forward`` or ``gradient``; both for a line that has both.
        mode: ``eager`` or ``compiled``.
        calls: the number of runs.
        seconds: their time, without other runs inside them.
        bytes: the size of the results of eager operations; 0 for compiled ones.
        line: ``FILE:LINE`` of the user's code; several, joined by ``, ``, for a fusion of several; empty if unknown.
    """

    name: str
    phase: str
    mode: str
    calls: int
    seconds: float
    bytes: int
    line: str


@dataclass(frozen=True)
class CompiledCall:
    """One call of a compiled function.

    Attributes:
        name: the function's.
        seconds: the time from the call of XLA, or from the end of the previous call if that was later, until the
            results were computed.
        kernels: the number of kernels that ran.
        attributed: the share of the time, from 0 to 1, in which kernels of the graph's nodes ran; simultaneous ones
            count once.
        starting: the share of the time before the first kernel, from 0 to 1.
        temporary_bytes: the memory of the executable besides its arguments and results.
    """

    name: str
    seconds: float
    kernels: int
    attributed: float
    starting: float
    temporary_bytes: int


class _Timed(NamedTuple):
    """One thing that ran, with the columns that a `Row` adds up."""

    name: str
    phase: str
    mode: str
    line: str
    seconds: float
    bytes: int = 0


class Profile(Report):
    """Where the time of a block went: see `hf.profile`."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self._runs: list[Run] = []
        self._calls: list[Call] = []
        self._kernels: list[Kernel] = []
        self._memory: list[tuple[int, int]] = []

    def fill(self, recorder: Recorder, kernels: list[Kernel]) -> None:
        """Store what was recorded."""
        self._runs, self._calls, self._kernels = recorder.runs, recorder.calls, kernels
        self._memory = sorted(recorder.memory)
        for call, run in recorder.within.items():
            run.inside += max(0, int(min(call.end, run.end) - call.since))

    # -- what is known ----------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """How long the block took, in seconds."""
        return (self.end - self.start) / 1e9

    @property
    def compiling(self) -> float:
        """How many of the block's seconds were spent on compiling functions for this profile."""
        return sum(run.end - run.start for run in self._runs if run.kind == "compile") / 1e9

    @property
    def operations(self) -> list[Row]:
        """One row per operation, phase and mode, the longest first."""
        return self._rows(by_line=False)

    @property
    def lines(self) -> list[Row]:
        """One row per line of the user's code, the longest first."""
        return self._rows(by_line=True)

    @property
    def calls(self) -> list[CompiledCall]:
        """The calls of compiled functions, in order."""
        by_call: defaultdict[Call, list[Kernel]] = defaultdict(list)
        for kernel in self._kernels:
            by_call[kernel.call].append(kernel)
        return [_compiled_call(call, by_call[call]) for call in self._calls]

    @property
    def overhead(self) -> float:
        """An estimate of the seconds that profiling itself took.

        For eager operations it is measured once on a small operation; for compiled calls, at each call. The time that
        XLA takes to record kernels is unknown and not included.
        """
        count = sum(1 for run in self._runs if run.kind != "compile")
        calls = sum(call.cost for call in self._calls) / 1e9
        return calls + (count * overhead_per_operation() if count else 0.0)

    @property
    def memory(self) -> list[tuple[float, int]]:
        """The bytes of arrays that the block made and that were alive, over time.

        A pair ``(seconds since the block began, bytes)`` for every change. Results of a compiled call count from the
        call on, unless they replace other arrays of the block. Temporaries count while the call runs.
        """
        changes: list[tuple[float, int]] = list(self._memory)
        for call, made in zip(self._calls, self.calls, strict=True):
            if call.since < self.end:  # XLA may report the end of the last calls late, after the end of the block
                changes += [(call.since, made.temporary_bytes), (min(call.end, self.end), -made.temporary_bytes)]
        alive, result = 0, list[tuple[float, int]]()
        for when, size in sorted(changes):
            if self.start <= when <= self.end:
                alive += size
                result.append(((when - self.start) / 1e9, alive))
        return result

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes in `memory`."""
        return max((size for _, size in self.memory), default=0)

    def node_seconds(self, graph: Graph) -> dict[Node, float]:
        """Return how long each node of a compiled function's graph ran, in all calls together.

        The time of a fusion is divided evenly among its nodes. It colours pictures:
        ``graph.to_html(path, color=p.node_seconds(graph))``.

        Args:
            graph: what ``fn.graph(*args)`` returned.
        """
        inside = set(graph.walk())
        seconds: defaultdict[Node, float] = defaultdict(float)
        for kernel in self._kernels:
            for node in inside.intersection(kernel.nodes):
                seconds[node] += kernel.own / len(kernel.nodes) / 1e9
        return dict(seconds)

    def _rows(self, *, by_line: bool) -> list[Row]:
        groups: defaultdict[tuple[str, ...], list[_Timed]] = defaultdict(list)
        for one in self._timed():
            groups[(one.line or one.name,) if by_line else (one.name, one.phase, one.mode)].append(one)
        rows = [
            Row(
                name=key[0],
                phase=" and ".join(sorted({one.phase for one in members})),
                mode=" and ".join(sorted({one.mode for one in members})),
                calls=len(members),
                seconds=sum(one.seconds for one in members),
                bytes=sum(one.bytes for one in members),
                line=members[0].line if by_line else _few(Counter(one.line for one in members)),
            )
            for key, members in groups.items()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    def _timed(self) -> Iterable[_Timed]:
        """Yield everything that ran, except compilations."""
        for run in self._runs:
            if run.kind != "compile":
                phase = "gradient" if run.kind == "gradient" else _phase(run.where)
                own = (run.end - run.start - run.inside) / 1e9
                yield _Timed(run.name, phase, "eager", short_where(run.where), own, run.bytes)
        for kernel in self._kernels:
            if kernel.nodes and not (kernel.serves and len(kernel.nodes) > 1):
                counts = Counter(node.op.name for node in kernel.nodes)
                name = " + ".join(f"{count} {one}" if count > 1 else one for one, count in counts.items())
            else:
                name = f"XLA's own {kernel.name.partition('.')[0]}"
            phases = sorted({_phase(node.where) for node in kernel.nodes}) or ["forward"]
            line = ", ".join(sorted({short_where(node.where) for node in kernel.nodes} - {""}))
            yield _Timed(name, " and ".join(phases), "compiled", line, kernel.own / 1e9)

    # -- showing ----------------------------------------------------------------------------------------------

    def table(self, rows: Sequence[Row] | None = None) -> list[tuple[str, ...]]:
        """Return rows as text: name, phase, mode, calls, time, share of the block, bytes, line."""
        working = max(self.seconds - self.compiling, 1e-12)
        return [
            (
                row.name, row.phase, row.mode, str(row.calls), format_seconds(row.seconds),
                f"{row.seconds / working:.1%}", f"{row.bytes:,}" if row.bytes else "", row.line,
            )
            for row in (self.operations if rows is None else rows)
        ]

    def summary(self) -> str:
        """Return in words how long the block took, and which part of that is in no row of the table."""
        working = self.seconds - self.compiling
        timed = sum(row.seconds for row in self.operations)
        parts = [f"{format_seconds(working)} in the block"]
        if self.compiling:
            parts[0] += f", besides {format_seconds(self.compiling)} of compiling for this profile"
        if timed < working:
            parts.append(f"{format_seconds(working - timed)} of it between operations: Python, dispatch, waiting")
        if self.overhead:
            parts.append(f"taking times cost about {format_seconds(self.overhead)} of that")
        if self.peak_bytes:
            parts.append(f"at most {self.peak_bytes:,} bytes were alive that the block had made")
        for name, calls in _by_name(self.calls).items():
            ours, before = _share(calls, "attributed"), _share(calls, "starting")
            parts.append(
                f"{name}: {len(calls)} compiled calls, {ours:.1%} of their time in kernels of the graph, {before:.1%} "
                "before the first kernel"
            )
        if timed > working:
            parts.append("kernels ran side by side: their times and shares add up to more than that of the block")
        return ";\n".join(parts) + "."

    def parts(self) -> list[Any]:
        """Return the table, and the summary."""
        return [self._printed(), self.summary()]

    def _printed(self) -> Table:
        """Return a table of the operations that took longest; columns without information are left out."""
        rows = self.table()
        modes = len({row[_COLUMNS.index("mode")] for row in rows})
        told = [
            column for column, name in enumerate(_COLUMNS)
            if not rows or (any(row[column] for row in rows) and (name != "mode" or modes > 1))
        ]
        table = titled_table("Where the time went")
        for column in told:
            whole = _COLUMNS[column] in ("calls", "time", "share")
            table.add_column(_COLUMNS[column], overflow="fold", no_wrap=whole)
        for row in rows[:SHOWN]:
            table.add_row(*[Text(row[column]) for column in told])
        if len(rows) > SHOWN:
            rest = sum(row.seconds for row in self.operations[SHOWN:])
            last = {"operation": f"{len(rows) - SHOWN} more", "time": format_seconds(rest)}
            table.add_row(*[last.get(_COLUMNS[column], "") for column in told])
        return table

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write pictures of what ran over time, and tables by function, operation and line, as one page.

        Args:
            path: the file.
        """
        parts = ["<h1>Where the time went</h1>", paragraphs_html(self.summary())]
        if self._runs or self._calls:
            spans = self._spans()
            axis = Axis(self.start, self.end, spans)
            without = ", without compilations" if self.compiling else ""
            parts += ["<h2>Over time</h2>", f"<p>{format_seconds(axis.length / 1e9)}{without}; hover for more.</p>",
                      legend_svg(), flame_svg(spans, axis)]
            if self.memory:
                parts += ["<h2>Bytes alive</h2>", memory_svg(self.memory, axis, self.start)]
        if self._calls:
            parts += ["<h2>Compiled calls</h2>", table_html(_CALL_COLUMNS, self._call_rows())]
        for title, rows in (("By operation", self.operations), ("By line", self.lines)):
            parts += [f"<h2>{title}</h2>", table_html(_COLUMNS, _unbroken(self.table(rows)))]
        body = "\n".join(parts)
        write_text(path, page("Where the time went", body))

    def _call_rows(self) -> list[tuple[str, ...]]:
        """Return a row per compiled function: calls, median, kernels, shares of the time, memory."""
        return [
            (
                name, str(len(calls)), format_seconds(median(one.seconds for one in calls)),
                str(max(one.kernels for one in calls)), f"{_share(calls, 'attributed'):.1%}",
                f"{_share(calls, 'starting'):.1%}", format_bytes(max(one.temporary_bytes for one in calls)),
            )
            for name, calls in _by_name(self.calls).items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain Python values."""
        return {
            "seconds": self.seconds,
            "compiling": self.compiling,
            "overhead": self.overhead,
            "peak_bytes": self.peak_bytes,
            "operations": [vars(row) for row in self.operations],
            "lines": [vars(row) for row in self.lines],
            "calls": [vars(call) for call in self.calls],
            "memory": self.memory,
        }

    def to_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write a flame chart in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

        Args:
            path: the file.

        Reference:
            "Trace Event Format", Chromium project.
        """
        write_text(path, json.dumps(trace_events(self._spans(), self.memory, self.start)))

    def _spans(self) -> list[Span]:
        return spans_of(self._runs, self._calls, self._kernels)


_CALL_COLUMNS = ("function", "calls", "median", "kernels", "in kernels of the graph", "before the first", "temporaries")
_COLUMNS = ("operation", "phase", "mode", "calls", "time", "share", "bytes made", "line")


def _compiled_call(call: Call, kernels: Sequence[Kernel]) -> CompiledCall:
    ours = covered([kernel for kernel in kernels if kernel.nodes], call.since, call.end)
    memory: Any = call.program.executable.compiled.memory_analysis()
    temporary = 0 if memory is None else int(memory.temp_size_in_bytes)
    first = min([kernel.start for kernel in kernels], default=call.end)
    length = call.end - call.since
    starting = min(max(first - call.since, 0), length)
    whole = max(length, 1)
    return CompiledCall(call.program.name, length / 1e9, len(kernels), ours / whole, starting / whole, temporary)


def _by_name(calls: Iterable[CompiledCall]) -> dict[str, list[CompiledCall]]:
    calls_of: defaultdict[str, list[CompiledCall]] = defaultdict(list)
    for call in calls:
        calls_of[call.name].append(call)
    return calls_of


def _share(calls: Sequence[CompiledCall], name: str) -> float:
    """Return the mean of a share over calls, weighted by their times."""
    return sum(getattr(one, name) * one.seconds for one in calls) / max(sum(one.seconds for one in calls), 1e-12)


def _unbroken(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return rows of `Profile.table` for pages, with spaces at which no browser breaks the line."""
    return [(row[0], *[cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in row[1:-1]], row[-1]) for row in rows]


def _phase(where: Where | None) -> str:
    return "gradient" if is_gradient(where) else "forward"


def _few(lines: Counter[str]) -> str:
    """Return the most common line, and how many other lines there are."""
    named = [line for line, _ in lines.most_common() if line]
    if not named:
        return ""
    return named[0] if len(named) == 1 else f"{named[0]} and {len(named) - 1} more"


# -- how much time it costs to profile one operation ------------------------------------------------------------------

_TIMES = 200


@cache
def overhead_per_operation() -> float:
    """Return how many seconds longer an operation takes when it is profiled, measured once on a small addition."""
    op, x = REGISTRY["add"], make_tensor(np.ones(8, np.float32))
    recorder, taken = Recorder(), [0.0, 0.0]
    for index, run in enumerate((
        lambda: bind_eagerly(op, (x, x), {}, CONTEXT.get()),
        lambda: recorder.bind(op, (x, x), {}),
    )):
        run()
        best = float("inf")
        for _ in range(_TIMES):
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
        taken[index] = best
    return max(taken[1] - taken[0], 0.0)


# -- the timeline of a profile: as a trace file for flame chart viewers, and as pictures in a page --------------------

_THREADS = {0: "Python", 1: "Compiled calls"}
_COLOURS = {
    "op": "#7aa6c2", "gradient": "#d9895b", "dispatch": "#b9b9b9", "call": "#dfe5ea", "kernel": "#5b9a68",
    "kernel of a gradient": "#c2a14a",
}
"""The colour of each kind of span in the picture. Compilations are not drawn, so they have none."""
_WIDTH, _LEFT, _ROW, _LETTER = 1120, 120, 18, 6.6
_LEAST = 0.4
"""The smallest width in pixels; narrower spans are drawn together with their neighbours."""


@dataclass(frozen=True, slots=True)
class Span:
    """One interval in which an operation, a function or a kernel ran.

    Attributes:
        name: the operation, the function or the kernel.
        kind: ``op``, ``gradient``, ``compile``, ``dispatch``, ``call`` or ``kernel``.
        lane: 0 for Python, 1 for compiled calls, 2 and more for XLA's threads.
        start, end: nanoseconds.
        args: further values for viewers to show.
        gradient: whether it is a kernel that computes gradients only.
    """

    name: str
    kind: str
    lane: int
    start: float
    end: float
    args: dict[str, Any]
    gradient: bool = False


def spans_of(runs: Iterable[Run], calls: Iterable[Call], kernels: Iterable[Kernel]) -> list[Span]:
    """Return the spans of what ran; two spans of a lane never overlap in part, as a flame chart requires."""
    spans = [Span(run.name, run.kind, 0, run.start, run.end, {"line": short_where(run.where)}) for run in runs]
    for call in calls:
        line = {"line": short_where(call.where)}
        spans.append(Span(call.program.name, "dispatch", 0, call.start, call.returned, line))
        spans.append(Span(call.program.name, "call", 1, call.since, call.end, line))
    for kernel, lane in _lanes(kernels):
        names = {"operations": [node.op.name for node in kernel.nodes],
                 "lines": sorted({short_where(node.where) for node in kernel.nodes})}
        gradient = bool(kernel.nodes) and all(is_gradient(node.where) for node in kernel.nodes)
        spans.append(Span(kernel.name, "kernel", lane, kernel.start, kernel.end, names, gradient))
    return spans


def _lanes(kernels: Iterable[Kernel]) -> Iterable[tuple[Kernel, int]]:
    lanes: list[list[float]] = []
    for kernel in sorted(kernels, key=lambda one: (one.start, -one.end)):
        for number, ends in enumerate(lanes, 2):
            while ends and ends[-1] <= kernel.start:
                ends.pop()
            if not ends or kernel.end <= ends[-1]:
                ends.append(kernel.end)
                yield kernel, number
                break
        else:
            lanes.append([kernel.end])
            yield kernel, len(lanes) + 1


def _thread(lane: int) -> str:
    return _THREADS.get(lane) or f"XLA {lane - 1}"


def trace_events(spans: Sequence[Span], memory: Iterable[tuple[float, int]], start: float) -> dict[str, Any]:
    """Return spans and memory in the Trace Event Format.

    Args:
        spans: what ran.
        memory: seconds since the start, bytes.
        start: when the profile began, nanoseconds.
    """
    events: list[dict[str, Any]] = [
        {
            "ph": "X", "name": span.name, "cat": span.kind, "pid": 1, "tid": span.lane,
            "ts": (span.start - start) / 1e3, "dur": (span.end - span.start) / 1e3, "args": span.args,
        }
        for span in spans
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": lane, "args": {"name": _thread(lane)}}
        for lane in sorted({span.lane for span in spans})
    ]
    events += [
        {"ph": "C", "name": "bytes", "pid": 1, "ts": seconds * 1e6, "args": {"bytes": size}}
        for seconds, size in memory
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


class Axis:
    """Converts times to pixels; the time spent on compilations is left out.

    Args:
        start, end: of the block, nanoseconds.
        spans: what ran.
    """

    def __init__(self, start: float, end: float, spans: Iterable[Span]) -> None:
        cuts = sorted([(span.start, span.end) for span in spans if span.kind == "compile"])
        self._ends = [last for _, last in cuts]
        self._cuts = cuts
        self._lost = [0.0, *accumulate(last - first for first, last in cuts)]
        self._start = start
        self.length = max(end - start - self._lost[-1], 1.0)

    def at(self, time: float) -> float:
        """Return the pixel of a time."""
        passed = bisect_right(self._ends, time)
        lost = self._lost[passed]
        if passed < len(self._cuts):
            lost += max(0.0, time - self._cuts[passed][0])
        return _LEFT + (time - self._start - lost) / self.length * (_WIDTH - _LEFT)


def flame_svg(spans: Iterable[Span], axis: Axis) -> str:
    """Return a flame chart: a lane per thread, inner calls below their callers, details shown on hovering."""
    rows: defaultdict[int, list[list[tuple[float, Span]]]] = defaultdict(list)
    drawn: list[tuple[int, int, Span]] = []
    open_spans: defaultdict[int, list[float]] = defaultdict(list)
    for span in sorted([one for one in spans if one.kind != "compile"], key=lambda one: (one.start, -one.end)):
        ends = open_spans[span.lane]
        while ends and ends[-1] <= span.start:
            ends.pop()
        depth = len(ends)
        ends.append(span.end)
        lane = rows[span.lane]
        while len(lane) <= depth:
            lane.append([])
        if lane[depth] and axis.at(span.end) - lane[depth][-1][0] < _LEAST:
            continue
        lane[depth].append((axis.at(span.end), span))
        drawn.append((span.lane, depth, span))
    first, height = dict[int, int](), 0
    for lane in sorted(rows):
        first[lane] = height
        height += len(rows[lane]) * (_ROW + 2) + 10
    parts = [_text(0, top + _ROW - 5, _thread(lane)) for lane, top in first.items()]
    parts += [_bar(span, first[lane] + depth * (_ROW + 2), axis) for lane, depth, span in drawn]
    return _svg(height, parts)


def _bar(span: Span, top: float, axis: Axis) -> str:
    left, right = axis.at(span.start), axis.at(span.end)
    width = max(right - left, _LEAST)
    more = "; ".join(f"{name}: {', '.join(value) if isinstance(value, list) else value}"
                     for name, value in span.args.items() if value)
    hint = f"{span.name}, {format_seconds((span.end - span.start) / 1e9)}" + (f"\n{more}" if more else "")
    colour = _COLOURS["kernel of a gradient" if span.gradient else span.kind]
    fits = int((width - 4) / _LETTER)
    label = span.name if len(span.name) <= fits else span.name[: fits - 1] + "…" if fits > 3 else ""
    shape = f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_ROW}" fill="{colour}"/>'
    return f"<g><title>{escape(hint)}</title>{shape}{_text(left + 3, top + _ROW - 5, label) if label else ''}</g>"


def memory_svg(memory: Sequence[tuple[float, int]], axis: Axis, start: float) -> str:
    """Return a picture of the bytes alive over time."""
    height, peak = 90, max([size for _, size in memory], default=0)
    x, y = float(_LEFT), float(height)
    path = [f"M{x:.1f},{y:.1f}"]
    for seconds, size in memory:
        before, x, y = x, axis.at(start + seconds * 1e9), height - size / max(peak, 1) * (height - 10)
        path.append(f"H{x:.1f}V{y:.1f}" if x - before >= _LEAST or size == peak else f"V{y:.1f}")
    path.append(f"H{_WIDTH}V{height}Z")
    shape = f'<path d="{"".join(path)}" fill="#9db7d5" stroke="#3b6ea5"/>'
    return _svg(height + 4, [shape, _text(0, 20, format_bytes(peak)), _text(0, height, "0 B")])


def legend_svg() -> str:
    """Return what the colours of a flame chart mean."""
    names = {"op": "operation", "gradient": "gradient rule", "dispatch": "call of XLA", "call": "compiled call",
             "kernel": "kernel, forward", "kernel of a gradient": "kernel, gradient"}
    parts: list[str] = []
    for index, (kind, name) in enumerate(names.items()):
        left = _LEFT + index * 150
        parts.append(f'<rect x="{left}" y="2" width="14" height="14" fill="{_COLOURS[kind]}"/>')
        parts.append(_text(left + 20, 14, name))
    return _svg(20, parts)


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(height: float, parts: Iterable[str]) -> str:
    head = f'<svg viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" font-size="12" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>"])
