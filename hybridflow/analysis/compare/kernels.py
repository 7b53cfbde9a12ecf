"""How much of a call is spent in kernels, and which kernels a compiled call runs, by the user's lines."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import jax

from hybridflow.analysis.profile.compiled import ANNOTATION, Call, Program, wait_for
from hybridflow.analysis.profile.events import Kernel, covered, read_kernels
from hybridflow.analysis.profile.recorder import Recorder
from hybridflow.analysis.timing import wait_for as wait_for_result
from hybridflow.autodiff.walk import Engine, Wanted
from hybridflow.backend.host import run_quietly
from hybridflow.core.context import CONTEXT, Context, current
from hybridflow.core.dispatch import bind_eagerly, execute
from hybridflow.core.node import Node, is_gradient, short_where
from hybridflow.core.op import Op
from hybridflow.core.profiling import PROFILER
from hybridflow.core.tensor import Tensor
from hybridflow.xla.executable import Executable
from hybridflow.xla.scopes import Namer, instructions

T = TypeVar("T")

LOOK_S = 0.3
"""About how long calls are looked into."""
_FREE = frozenset({"source", "identity"})
_ONCE = frozenset({"effect", "nested"})
"""Traits of operations whose kernels may do more than to compute."""


def is_free(op: Op) -> bool:
    """Whether an operation computes nothing."""
    return not op.traits.isdisjoint(_FREE)


def calls_of(seconds: float, most: int) -> int:
    """Return how many calls to look into that take so long each."""
    return max(2, min(most, int(LOOK_S / seconds)))


@dataclass(frozen=True)
class KernelRun:
    """One kernel that a compiled call launches.

    Attributes:
        name: XLA's name of the instruction.
        operations: the operations that it computes, as in ``2 add + tanh``; more than one means that XLA fused them.
            What XLA added itself, a copy for example, has those that it serves: ``for 2 add + tanh``.
        lines: the user's lines that they come from, as ``FILE:LINE``.
        fused: how many operations it computes; 1 for what serves several, 0 for what serves none.
        seconds: how long it runs in one call, all its runs together, without the kernels that it runs itself; None
            if XLA gave no time for it.
        runs: how often it runs in one call: more than once inside of loops.
    """

    name: str
    operations: str
    lines: tuple[str, ...]
    fused: int
    seconds: float | None
    runs: int


# -- eager --------------------------------------------------------------------------------------------------------


def eager_kernels(call: Callable[[], Any], restore: Callable[[], None], seconds: float) -> tuple[float, int] | None:
    """Return how long the kernels of one eager call run, without what finds and feeds them, and how many operations.

    Every operation's NumPy kernel is run a second time on the same bare arrays, and that is timed; an operation that
    runs through XLA is timed with the call of its executable, a gradient rule, which runs on bare arrays, as a whole.
    A plain call runs beside each call that is looked into, so that a machine that is busy for a while slows both: what
    counts is the share.

    Args:
        call: makes the call.
        restore: sets the Variables back.
        seconds: what a call takes.

    Returns:
        The median share of several calls, of `seconds`, but no more than that, and the operations of a call, a gradient
        rule being one; None inside of `hf.profile`, which takes the times of operations itself.
    """
    if PROFILER.get() is not None:
        return None
    shares: list[float] = []
    operations = 0
    for _ in range(calls_of(2 * seconds, 50)):
        restore()
        start = time.perf_counter()
        wait_for_result(call())
        plain = time.perf_counter() - start
        restore()
        timer = _KernelTimer()
        profiler = PROFILER.set(timer)
        context = current()
        outer = CONTEXT.set(Context(None, context.tapes, context.device, context.grad, context.autocast))
        try:
            wait_for_result(call())
        finally:
            PROFILER.reset(profiler)
            CONTEXT.reset(outer)
        shares.append(timer.seconds / plain)
        operations = timer.operations
    restore()
    return min(median(shares), 1.0) * seconds, operations


class _KernelTimer(Recorder):
    """Adds up what the kernels of eager operations take; stands where the profiler would."""

    seconds = 0.0
    operations = 0

    def records(self) -> bool:
        """Compiled functions run as ever."""
        return False

    def bind(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Execute an operation and take its kernel's time."""
        self.operations += not is_free(op)
        return bind_eagerly(op, inputs, attrs, CONTEXT.get(), self._execute)

    def _execute(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> tuple[Any, list[Any], str]:
        start = time.perf_counter()
        results = execute(op, inputs, attrs)
        outputs, values, backend = results
        if backend == "host" and op.traits.isdisjoint(_ONCE):
            kernel: Any = op.kernel
            start = time.perf_counter()
            run_quietly(kernel, *values, **attrs)
        else:
            wait_for(outputs)
        self.seconds += time.perf_counter() - start
        return results

    def engine(self, engine: Engine) -> Engine:
        """Return an engine that takes the time of another's rules."""
        return engine if isinstance(engine, _TimedEngine) else _TimedEngine(engine, self)


class _TimedEngine:
    """Computes gradients as another engine does, and takes the time of every rule."""

    def __init__(self, inner: Engine, timer: _KernelTimer) -> None:
        self.inner = inner
        self.timer = timer

    def add(self, a: Any, b: Any, own: bool = False) -> Any:
        """Add two contributions."""
        return self._timed(lambda: self.inner.add(a, b, own))

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule."""
        return self._timed(lambda: self.inner.run(node, g, wanted))

    def walk(self, loop: Callable[[], T], users_rules: bool) -> T:
        """Run the loop as the other engine does."""
        return self.inner.walk(loop, users_rules)

    def _timed(self, run: Callable[[], Any]) -> Any:
        """Return what something returns; operations that it binds are part of it."""
        counted, before, start = self.timer.operations, self.timer.seconds, time.perf_counter()
        result = run()
        wait_for([getattr(one, "_value", one) for one in (result if isinstance(result, tuple | list) else [result])])
        self.timer.seconds = before + time.perf_counter() - start
        self.timer.operations = counted + 1
        return result


# -- compiled -----------------------------------------------------------------------------------------------------


def compiled_kernels(
    call: Callable[[], Any], restore: Callable[[], None], program: Program, seconds: float
) -> tuple[float | None, tuple[KernelRun, ...]]:
    """Return how long XLA's kernels run in one call, and the kernels, the longest first.

    Calls are made under jax's profiler. What counts is the quickest, and in it the kernels that run at the same time
    on several threads count once. Profiling takes time for every kernel, so a call that it made longer is scaled back
    to what calls take without it, its kernels with it.

    Args:
        call: makes one compiled call and waits for its results.
        restore: sets the Variables back.
        program: what the call runs, its nodes named.
        seconds: what a call takes without a profiler.

    Returns:
        Seconds, and the kernels; None, and no times of kernels, if jax's profiler is at work already; nothing at all
        inside of `hf.profile`, which compiles what it runs itself.
    """
    if PROFILER.get() is not None:
        return None, ()
    kernels = launched(program)
    folder = Path(tempfile.mkdtemp(prefix="hybridflow-compare-"))
    try:
        calls = _profiled(call, restore, program, folder, calls_of(seconds, 20))
        events = read_kernels(folder, calls)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not events:
        return None, kernels
    quickest = min(calls, key=lambda one: one.returned - one.start)
    window = quickest.returned - quickest.start
    scale = min(1.0, seconds * 1e9 / window) / 1e9
    inside = [event for event in events if event.call is quickest]
    first = min([event.start for event in inside], default=0.0)
    # A kernel's end may be noted late, by the last thread that leaves it; the call was over by then.
    return min(covered(inside, first, first + window) * scale, seconds), _timed(kernels, events, scale)


def _timed(kernels: Sequence[KernelRun], events: Sequence[Kernel], scale: float) -> tuple[KernelRun, ...]:
    """Return kernels with their times, and those besides that loops run, the longest first; medians of the calls."""
    own: defaultdict[str, Counter[Call]] = defaultdict(Counter)
    runs: defaultdict[str, Counter[Call]] = defaultdict(Counter)
    known = {one.name: one for one in kernels}
    for event in events:
        own[event.name][event.call] += round(event.own)
        runs[event.name][event.call] += 1
        if event.name not in known:
            known[event.name] = _kernel(event.name, event.nodes, event.serves)
    timed = [
        replace(one, seconds=median(own[name].values()) * scale, runs=round(median(runs[name].values())))
        if name in own else one
        for name, one in known.items()
    ]
    return tuple(sorted(timed, key=lambda one: -(one.seconds or 0.0)))


def _profiled(
    call: Callable[[], Any], restore: Callable[[], None], program: Program, folder: Path, count: int
) -> list[Call]:
    """Make calls under jax's profiler; none if it is at work already."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError:  # there is one profiler in a process, and it is somebody else's
        return []
    calls: list[Call] = []
    try:
        for number in range(count):
            restore()
            made = Call(number, program, None, time.perf_counter_ns())
            with jax.profiler.TraceAnnotation(f"{ANNOTATION}{number}"):
                call()
            made.returned = time.perf_counter_ns()
            calls.append(made)
    finally:
        jax.profiler.stop_trace()
    restore()
    return calls


def program_of(name: str, executable: Executable, namer: Namer, device: Any) -> Program:
    """Return an executable whose nodes were named, as the profiler knows it."""
    text = executable.compiled.as_text()
    module = text.split(",", 1)[0].removeprefix("HloModule ").strip()
    platform = jax.default_backend() if device is None else device.platform
    return Program(name, executable, namer, module, platform)


def launched(program: Program) -> tuple[KernelRun, ...]:
    """Return the kernels that a call launches, without their times, in the order of the program."""
    text = program.executable.compiled.as_text()
    known = instructions(text, program.namer)
    kernels = [(name, known.get(name)) for name in entry_kernels(text)]
    return tuple([_kernel(name, *((one.nodes, one.serves) if one else ((), False))) for name, one in kernels])


def _kernel(name: str, nodes: Sequence[Node], serves: bool) -> KernelRun:
    counts = Counter(node.op.name + (" (gradient)" if is_gradient(node.where) else "") for node in nodes)
    operations = " + ".join(f"{count} {op}" if count > 1 else op for op, count in counts.items())
    lines = tuple(sorted({short_where(node.where) for node in nodes} - {""}, key=_by_number))
    if serves and len(nodes) > 1:
        return KernelRun(name, f"for {operations}", lines, 1, None, 1)
    return KernelRun(name, operations or "XLA's own", lines, len(nodes), None, 1)


def _by_number(line: str) -> tuple[str, int]:
    file, _, number = line.rpartition(":")
    return file, int(number)


_NO_KERNEL = ("parameter(", "constant(", "tuple(", "get-tuple-element(", "bitcast(", "copy-done(", "after-all(")


def entry_kernels(hlo: str) -> list[str]:
    """Return the names of the instructions of optimised HLO's entry computation that do work."""
    names: list[str] = []
    inside = False
    for line in hlo.splitlines():
        if line.startswith("ENTRY "):
            inside = True
        elif inside and line.startswith("}"):
            break
        elif inside and " = " in line:
            name, call = line.split(" = ", 1)
            if not any(f" {kind}" in call for kind in _NO_KERNEL):
                names.append(name.split()[-1].lstrip("%"))
    return names


def count_kernels(hlo: str) -> int:
    """Return how many instructions of optimised HLO's entry computation do work."""
    return len(entry_kernels(hlo))


