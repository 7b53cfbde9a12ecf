"""XLA's own events of compiled calls, joined to the nodes of the graphs that they compute."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hybridflow.analysis.profile.compiled import ANNOTATION, Call
from hybridflow.backend.jax_shim import read_profile
from hybridflow.core.node import Node
from hybridflow.xla.scopes import Instruction, instructions


@dataclass(eq=False, slots=True)
class Kernel:
    """One run of a kernel.

    Attributes:
        name: the name of its instruction in the optimised program.
        call: the compiled call that it belongs to.
        nodes: the nodes that it computes: several if XLA fused them, none if XLA added the kernel.
        start, end: nanoseconds on the clock of the calls.
        own: nanoseconds without the kernels that run inside it, such as those of a loop's body.
        serves: whether it computes no node itself but is a copy that XLA added for the nodes.
    """

    name: str
    call: Call
    nodes: tuple[Node, ...]
    start: float
    end: float
    own: float = 0.0
    serves: bool = False


class _Event(NamedTuple):
    """A kernel's event as XLA recorded it; `run` is the number of the program's run, None where XLA has none."""

    name: str
    start: float
    end: float
    module: str
    run: int | None


def read_kernels(folder: Path, calls: Sequence[Call]) -> list[Kernel]:
    """Return the kernels of compiled calls, in the order in which they began, and tell the calls when they ended.

    Args:
        folder: where jax's profiler wrote.
        calls: the calls, in order.
    """
    if not calls:
        return []
    events, windows = _read(folder)
    # Each call began on our clock a little before its annotation began on XLA's: the call with the shortest delay says
    # best how far apart the clocks are.
    offset = max((call.start - windows[call.number][0] for call in calls if call.number in windows), default=0.0)
    programs = {call.program.module: call.program for call in calls}
    known = {module: instructions(program.executable.compiled.as_text(), program.namer)
             for module, program in programs.items()}
    events = sorted([one for one in events if one.name in known.get(one.module, ())], key=lambda one: one.start)
    owner = _owners(events, calls, windows)
    kernels: defaultdict[Call, list[tuple[Kernel, Instruction]]] = defaultdict(list)
    for event in events:
        call = owner(event)
        if call is not None:
            known_kernel = known[event.module][event.name]
            start, end = event.start + offset, event.end + offset
            kernel = Kernel(event.name, call, known_kernel.nodes, start, end, serves=known_kernel.serves)
            kernels[call].append((kernel, known_kernel))
    for members in kernels.values():
        _find_own_times(members)
    _find_ends(calls, {call: max(kernel.end for kernel, _ in members) for call, members in kernels.items()})
    return [kernel for members in kernels.values() for kernel, _ in members]


def _owners(
    events: Sequence[_Event], calls: Sequence[Call], windows: Mapping[int, tuple[float, float]]
) -> Callable[[_Event], Call | None]:
    """Return a function that finds the call of a kernel: by the number of the run, else by the time at which it ran."""
    by_module: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_module[call.program.module].append(call)
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for event in events:
        if event.run is not None:
            numbers[event.module].append(event.run)
    by_run: dict[tuple[str, int | None], Call] = {}
    for module, runs in numbers.items():
        by_run.update({(module, run): call for run, call in zip(_in_order(runs), by_module[module], strict=False)})
    within = sorted([(*windows[call.number], call.number, call) for call in calls if call.number in windows])
    starts = [start for start, _, _, _ in within]

    def owner(event: _Event) -> Call | None:
        if event.run is not None:
            return by_run.get((event.module, event.run))
        index = bisect_right(starts, event.start) - 1
        return within[index][3] if index >= 0 and event.start <= within[index][1] else None

    return owner


def _in_order(runs: Iterable[int]) -> list[int]:
    """Return the numbers of a program's runs in order; XLA counts in 32 bits, so they may wrap around."""
    different = list(dict.fromkeys(runs))
    return sorted(different, key=lambda run: (run - different[0] + (1 << 31)) % (1 << 32))


def _find_ends(calls: Sequence[Call], last: Mapping[Call, float]) -> None:
    """Set `end`, when a call's results were there, and `since`, when XLA had finished the call before it."""
    for call in calls:
        call.end = max(call.returned, last.get(call, 0.0))
    before = 0.0
    for call in sorted(calls, key=lambda one: one.end):
        call.since = min(max(call.start, before), call.end)
        before = call.end


def _find_own_times(members: Sequence[tuple[Kernel, Instruction]]) -> None:
    """Set how long each kernel took without the kernels that ran inside it."""
    for kernel, known in members:
        kernel.own = kernel.end - kernel.start
        if known.runs_others:
            inside = [one for one, other in members if one is not kernel and other.computation != known.computation
                      and kernel.start <= one.start and one.end <= kernel.end]
            kernel.own -= covered(inside, kernel.start, kernel.end)


def _read(folder: Path) -> tuple[list[_Event], dict[int, tuple[float, float]]]:
    """Return the kernels that ran, and when each call began and ended, on XLA's clock.

    A kernel may continue on other threads after the thread that started it has left it. Then another event, on any
    thread, marks its end.
    """
    events: list[tuple[Any, _Event]] = []
    windows: dict[int, tuple[float, float]] = {}
    ends: dict[Any, float] = {}
    for path in folder.rglob("*.xplane.pb"):
        data = read_profile(path)
        for event in [event for plane in data.planes for line in plane.lines for event in line.events]:
            start, end = event.start_ns, event.start_ns + event.duration_ns
            if event.name.startswith(ANNOTATION):
                windows[int(event.name.removeprefix(ANNOTATION))] = start, end
            elif event.name.startswith("end: "):
                ends[dict(event.stats).get("_c")] = start
            else:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    made = _Event(
                        str(stats["hlo_op"]), start, end, str(stats.get("hlo_module", "")), stats.get("run_id")
                    )
                    events.append((stats.get("_p"), made))
    return [one._replace(end=max(one.end, ends.get(number, 0.0))) for number, one in events], windows


def covered(kernels: Iterable[Kernel], start: float, end: float) -> float:
    """Return how much of an interval the kernels cover together, whatever threads they ran on, in nanoseconds."""
    total, reached = 0.0, start
    for kernel in sorted(kernels, key=lambda one: one.start):
        first, last = max(kernel.start, reached), min(kernel.end, end)
        if last > first:
            total += last - first
            reached = last
    return total
