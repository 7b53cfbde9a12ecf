"""The timeline of a profile: as a trace file for flame chart viewers, and as pictures in a page."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any

from hybridflow.analysis.profile.compiled import Call
from hybridflow.analysis.profile.events import Kernel
from hybridflow.analysis.profile.recorder import Run
from hybridflow.analysis.timing import format_seconds
from hybridflow.core.node import is_gradient, short_where
from hybridflow.core.units import format_bytes

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
