"""XLA's own events of compiled calls, joined to the nodes of the graphs that they compute."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from hybridflow.analysis.profile.recorder import ANNOTATION, Call
from hybridflow.core.node import Node
from hybridflow.xla.scopes import Instruction, instructions


@dataclass(eq=False, slots=True)
class Kernel:
    """One run of a kernel.

    Attributes:
        name: the instruction of the optimised program.
        call: the compiled call that it belongs to.
        nodes: the nodes that it computes: several, if XLA fused them; none, if it is XLA's own.
        start, end: nanoseconds on the clock of the calls.
        own: nanoseconds without the kernels that it runs: those of a loop's body for example.
    """

    name: str
    call: Call
    nodes: tuple[Node, ...]
    start: float
    end: float
    own: float = 0.0


class _Event(NamedTuple):
    name: str
    start: float
    end: float
    module: str


def read_kernels(folder: Path, calls: Sequence[Call]) -> list[Kernel]:
    """Return the kernels of compiled calls, in the order in which they began.

    Args:
        folder: where jax's profiler wrote.
        calls: the calls.
    """
    if not calls:
        return []
    events, windows = _read(folder)
    by_number = {call.number: call for call in calls}
    offset = min((by_number[number].start - start for number, (start, _) in windows.items()), default=0.0)
    within = sorted([(start, end, number) for number, (start, end) in windows.items()])
    starts = [start for start, _, _ in within]
    programs = {call.program.module: instructions(_hlo(call), call.program.namer) for call in calls}
    kernels: defaultdict[Call, list[tuple[Kernel, Instruction]]] = defaultdict(list)
    for event in sorted(events, key=lambda one: one.start):
        place = bisect_right(starts, event.start) - 1  # a call waits for its kernels, so they run while it does
        known = programs.get(event.module, {}).get(event.name)
        if known is None or place < 0 or event.start > within[place][1]:
            continue
        call = by_number[within[place][2]]
        kernel = Kernel(event.name, call, known.nodes, event.start + offset, event.end + offset)
        kernels[call].append((kernel, known))
    for members in kernels.values():
        _find_own_times(members)
    return [kernel for members in kernels.values() for kernel, _ in members]


def _find_own_times(members: Sequence[tuple[Kernel, Instruction]]) -> None:
    """Find out how long each kernel took without those that it ran."""
    for kernel, known in members:
        kernel.own = kernel.end - kernel.start
        if known.runs_others:
            inside = [one for one, other in members if one is not kernel and other.computation != known.computation
                      and kernel.start <= one.start and one.end <= kernel.end]  # fmt: skip
            kernel.own -= covered(inside, kernel.start, kernel.end)


def _read(folder: Path) -> tuple[list[_Event], dict[int, tuple[float, float]]]:
    """Return the kernels that ran, and when each call began and ended, on XLA's clock.

    A kernel may go on on other threads after the thread that began it has left it: then another event, on whatever
    thread, says that it ended.
    """
    events: list[tuple[Any, _Event]] = []
    windows: dict[int, tuple[float, float]] = {}
    ends: dict[Any, float] = {}
    for path in folder.rglob("*.xplane.pb"):
        data: Any = jax.profiler.ProfileData.from_file(str(path))
        for event in [event for plane in data.planes for line in plane.lines for event in line.events]:
            start, end = event.start_ns, event.start_ns + event.duration_ns
            if event.name.startswith(ANNOTATION):
                windows[int(event.name.removeprefix(ANNOTATION))] = start, end
            elif event.name.startswith("end: "):
                ends[dict(event.stats).get("_c")] = start
            else:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    made = _Event(str(stats["hlo_op"]), start, end, str(stats.get("hlo_module", "")))
                    events.append((stats.get("_p"), made))
    return [one._replace(end=max(one.end, ends.get(number, 0.0))) for number, one in events], windows


def _hlo(call: Call) -> str:
    return call.program.executable.compiled.as_text()


def covered(kernels: Iterable[Kernel], start: float, end: float) -> float:
    """Return how much of an interval the kernels cover together, whatever threads they ran on, in nanoseconds."""
    total, reached = 0.0, start
    for kernel in sorted(kernels, key=lambda one: one.start):
        first, last = max(kernel.start, reached), min(kernel.end, end)
        if last > first:
            total += last - first
            reached = last
    return total
