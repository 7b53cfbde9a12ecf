"""Running functions in both modes, and peers beside them, for `hf.compare`."""

from __future__ import annotations

import logging
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import numpy as np

from hybridflow.analysis.compare.comparison import Comparison, FirstCall
from hybridflow.analysis.compare.kernels import (
    compiled_kernels,
    count_kernels,
    eager_kernels,
    is_free,
    program_of,
)
from hybridflow.analysis.compare.meshes import MeshRunner, OnMesh, on_one_device
from hybridflow.analysis.compare.peers import Peer, Runner, runners
from hybridflow.analysis.compare.several import Comparisons
from hybridflow.analysis.parity import (
    Call,
    Parity,
    check_against,
    check_gradients_parity,
    check_parity,
    fresh_copy,
)
from hybridflow.analysis.rehearsal import Rehearsal, rehearsed
from hybridflow.analysis.timing import Timed, Timing, interleave, seconds_of, wait_for
from hybridflow.core.context import current
from hybridflow.core.dtypes import is_floating
from hybridflow.core.tensor import as_tensor, host_array
from hybridflow.core.variable import Variable
from hybridflow.ir.costs import graph_cost, node_costs
from hybridflow.ir.graph import Graph
from hybridflow.tracing import config
from hybridflow.tracing.config import run_eagerly
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.method import CompiledMethod
from hybridflow.tracing.records import TraceRecord
from hybridflow.tracing.trace import Trace
from hybridflow.xla.scopes import Namer, naming

Progress = Callable[[str, float], None]
"""A function that is called with the present step and the fraction that is done, from 0 to 1."""


@dataclass(frozen=True)
class Effort:
    """How to measure and to judge: what `hf.compare` takes by name."""

    repeats: int | None
    seconds: float
    tolerance: tuple[float, float] | None
    gradients: bool
    agree: bool
    on_mesh: OnMesh | None = None


@dataclass
class _Subject:
    """A function under measurement, compiled anew."""

    name: str
    compiled: CompiledFunction[Any, Any]
    call: Call
    rehearsal: Rehearsal
    namer: Namer
    record: TraceRecord
    first: float = 0.0
    eager_first: float = 0.0
    eager_bytes: int = 0

    @property
    def trace(self) -> Trace:
        """The trace of the call."""
        return self.rehearsal.trace

    @property
    def assigned(self) -> list[Variable]:
        """The Variables that the call assigns."""
        return self.rehearsal.assigned

    def eagerly(self) -> Any:
        """Make an eager call."""
        args, kwargs = self.call
        with run_eagerly():
            return self.compiled.python_function(*args, **kwargs)

    def results(self) -> list[np.ndarray[Any, Any]]:
        """Return the arrays of an eager call's result; nothing else is to be seen of it."""
        with rehearsed(self.compiled, self.call):
            return [host_array(as_tensor(leaf)) for leaf in jax.tree_util.tree_leaves(self.eagerly())]

    def fast(self) -> Any:
        """Make a compiled call."""
        args, kwargs = self.call
        return self.compiled(*args, **kwargs)


def measure(
    functions: Sequence[Callable[..., Any]],
    call: Call,
    peers: Mapping[str, Callable[..., Any]],
    effort: Effort,
    progress: Progress,
) -> Comparisons:
    """Run functions and peers with the same arguments, all in turns.

    Args:
        functions: the functions.
        call: the arguments.
        peers: functions of other packages, by name.
        effort: how to measure and to judge.
        progress: called with the present step.
    """
    beside = runners(peers, call)
    if effort.on_mesh is not None:
        beside.insert(0, MeshRunner(functions[0], call, effort.on_mesh))
    _start_backend()
    subjects: list[_Subject] = []
    with ExitStack() as stack:
        for function, name in zip(functions, _names(functions), strict=True):
            progress(f"tracing {name}", 0.0)
            copy = fresh_copy(function) if effort.on_mesh is None else on_one_device(function)
            subjects.append(_subject(copy, name, call, stack))

        def restore() -> None:
            for subject in reversed(subjects):
                subject.rehearsal.restore()

        for number, subject in enumerate(subjects):
            progress(f"compiling {subject.name}", 0.2 * number / len(subjects))
            _first_calls(subject, restore)
        firsts = _peers_first(beside)
        stack.enter_context(silenced())
        restore()
        timed = [
            timed
            for subject in subjects
            for timed in (Timed(subject.eagerly, subject.assigned), Timed(subject.fast, subject.assigned))
        ]
        timings = interleave(
            [*timed, *[Timed(_without_result(runner)) for runner in beside]],
            repeats=effort.repeats,
            budget=effort.seconds,
            before_turn=restore,
            progress=lambda done: progress("timing", 0.2 + 0.5 * done),
        )
        progress("looking into the calls", 0.7)
        measured = [
            _described(subject, timings[2 * number], timings[2 * number + 1], restore)
            for number, subject in enumerate(subjects)
        ]
        restore()
        progress("judging", 0.85)
        judged = [_judged(subject, comparison, effort) for subject, comparison in zip(subjects, measured, strict=True)]
        agreements, parities = _against_first(subjects, beside, effort)
    for number, (function, subject) in enumerate(zip(functions, subjects, strict=True)):
        own = function.__func__ if isinstance(function, CompiledMethod) else function
        if isinstance(own, CompiledFunction):
            found = [f"{one.text}. {one.hint}" for one in own.explain().advice if one.kind == "retrace"]
            judged[number] = replace(judged[number], retraces=tuple(found))
            own.note_compared(subject.record)
    of_peers = tuple([
        Peer(runner.name, timing, first, parities[runner.name])
        for runner, timing, first in zip(beside, timings[2 * len(subjects) :], firsts, strict=True)
    ])
    if len(judged) == 1:
        judged, of_peers = [replace(judged[0], peers=of_peers)], ()
    return Comparisons(tuple(judged), agreements, of_peers)


def _names(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """Return names that differ: several of one name are numbered."""
    names: list[str] = []
    for function in functions:
        name = base = fresh_copy(function)._name
        while name in names:
            name = f"{base} ({sum(1 for one in names if one.partition(' (')[0] == base) + 1})"
        names.append(name)
    return names


def _subject(compiled: CompiledFunction[Any, Any], name: str, call: Call, stack: ExitStack) -> _Subject:
    namer = Namer("_compared")
    with _compiling(namer):
        rehearsal = stack.enter_context(rehearsed(compiled, call))
    return _Subject(name, compiled, call, rehearsal, namer, rehearsal.trace.record)


@contextmanager
def _compiling(namer: Namer) -> Generator[None]:
    """Compile without the store in a ``with`` block, since XLA's time is part of the result.

    Nodes are named, so that kernels can be matched with the user's lines. Names change neither the kernels nor XLA's
    time.
    """
    with config.cache(False), naming(namer):
        yield


def _first_calls(subject: _Subject, restore: Callable[[], None]) -> None:
    """Make the first compiled call and the first eager one."""
    restore()
    with _compiling(subject.namer):
        subject.first = subject.rehearsal.traced + seconds_of(subject.fast, subject.assigned)
    if not subject.rehearsal.traced:
        subject.record = subject.compiled.explain()[-1]
    restore()
    start = time.perf_counter()
    wait_for(subject.eagerly())
    subject.eager_first = time.perf_counter() - start
    with silenced():
        subject.eager_bytes = _eager_memory(subject.eagerly)
    restore()


@contextmanager
def silenced() -> Generator[None]:
    """Show nothing of what calls print, or log to the standard streams, in a ``with`` block.

    It was seen when they were made for the first time.
    """
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {handler for logger in loggers for handler in getattr(logger, "handlers", ())}
    shown = [one for one in handlers if type(one) is logging.StreamHandler]
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere),
        ExitStack() as stack,
    ):
        for handler in shown:
            stack.callback(handler.setStream, handler.stream)
            handler.setStream(nowhere)
        yield
        jax.effects_barrier()


def _peers_first(beside: Sequence[Runner]) -> list[float]:
    ratios: list[float] = []
    for runner in beside:
        start = time.perf_counter()
        runner()
        ratios.append(time.perf_counter() - start)
    return ratios


def _without_result(runner: Runner) -> Callable[[], None]:
    """Return a call of a peer, which has waited for its results itself."""

    def call() -> None:
        runner()

    return call


def _described(subject: _Subject, eager: Timing, fast: Timing, restore: Callable[[], None]) -> Comparison:
    """Return a comparison with everything but the judgements."""
    restore()
    trace, record = subject.trace, subject.record
    args, kwargs = subject.call
    executable = subject.compiled.lower(*args, **kwargs).executable
    program = program_of(subject.name, executable, subject.namer, current().device)

    def call() -> None:
        wait_for(subject.fast(), subject.assigned)

    compiled_seconds, kernels = compiled_kernels(call, restore, program, fast.median)
    inside = eager_kernels(subject.eagerly, restore, eager.median)
    eager_seconds, operations = inside or (None, _operations(trace.raw_graph))
    precisions, casts = _precisions(trace.raw_graph)
    return Comparison(
        name=subject.name,
        eager=eager,
        compiled=fast,
        eager_first=subject.eager_first,
        first_call=FirstCall(
            subject.first, record.trace_ms / 1e3, record.passes_ms / 1e3, record.lower_ms / 1e3, record.xla_ms / 1e3
        ),
        parities=(),
        flops=int(graph_cost(trace.graph, trace.sizes(subject.rehearsal.signature)).flops),
        operations=operations,
        kernels=count_kernels(program.executable.compiled.as_text()),
        eager_bytes=subject.eager_bytes,
        compiled_bytes=_compiled_memory(program.executable.compiled),
        precisions=precisions,
        casts=casts,
        eager_kernels=eager_seconds,
        compiled_kernels=compiled_seconds,
        kernel_runs=kernels,
    )


def _judged(subject: _Subject, parity: Comparison, effort: Effort) -> Comparison:
    parities = [check_parity(subject.compiled, [subject.call], "results", effort.tolerance)]
    if effort.gradients:
        parities.append(check_gradients_parity(subject.compiled, subject.call, effort.tolerance))
    return replace(parity, parities=tuple(parities))


def _against_first(
    subjects: Sequence[_Subject], beside: Sequence[Runner], effort: Effort
) -> tuple[tuple[Parity, ...], dict[str, Parity]]:
    """Judge the results of the other functions, if asked, and of the peers against those of the first function."""
    first, *others = subjects

    def judged(arrays: dict[str, Sequence[Any]]) -> dict[str, Parity]:
        return check_against(first.compiled, first.call, first.name, arrays, effort.tolerance) if arrays else {}

    agreements = judged({subject.name: subject.results() for subject in others} if effort.agree else {})
    return tuple(agreements.values()), judged({runner.name: runner.results() for runner in beside})


@cache
def _start_backend() -> None:
    """Make XLA compile something, so that its start-up is not counted as the function's first call."""
    jax.jit(lambda x: x + 1)(np.float32(0)).block_until_ready()


def _eager_memory(call: Callable[[], Any]) -> int:
    """Return the peak of the memory that an eager call allocates; it is not the first call."""
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        wait_for(call())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not already:
            tracemalloc.stop()
    return max(peak - before, 0)


def _compiled_memory(executable: Any) -> int | None:
    """Return the bytes of temporaries and results, where the backend tells."""
    memory = None
    with suppress(NotImplementedError, RuntimeError):
        memory = executable.memory_analysis()
    if memory is None:
        return None
    return int(memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes)


def _precisions(graph: Graph) -> tuple[dict[str, int], int]:
    """Return how many operations of a graph compute in each floating-point dtype, and how many are casts."""
    computing: Counter[str] = Counter()
    casts = 0
    for node in graph.walk():
        if is_free(node.op) or not node.specs or not is_floating(node.spec().dtype):
            continue
        edge = node.inputs[0] if node.inputs else None
        if node.op.has("conversion") and edge is not None:
            casts += edge[0].spec(edge[1]).dtype != node.spec().dtype and is_floating(edge[0].spec(edge[1]).dtype)
        elif not node.op.has("nested"):
            computing[str(node.spec().dtype)] += 1
    return dict(computing.most_common()), casts


def _operations(graph: Graph) -> int:
    """Return how many operations a call of a traced graph has, of bodies as many as they may run."""
    return int(sum(one.runs for one in node_costs(graph) if one.taken and not is_free(one.node.op)))
