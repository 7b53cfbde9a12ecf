"""`hf.compare`: functions run eagerly and compiled, their results judged and their calls timed."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast, overload

import jax
import numpy as np
from rich.console import Console

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
from hybridflow.analysis.compare.sizes import calls_of_sizes
from hybridflow.analysis.compare.sweep import Sweep
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
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.keywords import require_taken
from hybridflow.core.mesh import Axis, Mesh
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

SECONDS = 20.0
"""How long the calls are timed at most, by default."""
Functions = Sequence[Callable[..., Any]]
Peers = Mapping[str, Callable[..., Any]]


@overload
def compare(
    fn: Callable[..., Any],
    *args: Any,
    repeats: int | None = None,
    seconds: float = SECONDS,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    peers: Peers | None = None,
    agree: bool = False,
    mesh: Mesh | None = None,
    batch: Axis = None,
    sizes: None = None,
    inputs: None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Comparison: ...
@overload
def compare(
    fn: Functions,
    *args: Any,
    repeats: int | None = None,
    seconds: float = SECONDS,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    peers: Peers | None = None,
    agree: bool = False,
    mesh: Mesh | None = None,
    batch: Axis = None,
    sizes: None = None,
    inputs: None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Comparisons: ...
@overload
def compare(
    fn: Callable[..., Any] | Functions,
    *args: Any,
    repeats: int | None = None,
    seconds: float = SECONDS,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    peers: Peers | None = None,
    agree: bool = False,
    mesh: Mesh | None = None,
    batch: Axis = None,
    sizes: Sequence[int],
    inputs: Callable[[int], Any] | None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Sweep: ...
def compare(
    fn: Callable[..., Any] | Functions,
    *args: Any,
    repeats: int | None = None,
    seconds: float = SECONDS,
    rtol: float | None = None,
    atol: float | None = None,
    gradients: bool = False,
    peers: Peers | None = None,
    agree: bool = False,
    mesh: Mesh | None = None,
    batch: Axis = None,
    sizes: Sequence[int] | None = None,
    inputs: Callable[[int], Any] | None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Comparison | Comparisons | Sweep:
    """Run functions eagerly and compiled, judge whether the results are the same, and time both.

    Compiled functions are compiled again, so that the first call can be timed. Results are judged by the definition in
    `hybridflow.analysis.same`: integers, bools, shapes and dtypes must be identical, and floats as close to a float64
    run as rounding allows. Variables that the function assigns are compared too, and restored.

    Everything is timed in the same run, in turns. A difference in speed is reported only if the confidence intervals of
    the medians do not overlap (`hybridflow.analysis.statistics`).

    Args:
        fn: the function, compiled or not; or several, to compare side by side.
        args: its arguments.
        repeats: how many calls of each mode to time; about a second each if None. Fewer than 6 give no intervals.
        seconds: how long the calls are timed at most. If the time was over before all turns were made, the report says
            so, and what it could tell by then. Tracing, compiling, the first turn and judging take what they do.
        rtol, atol: judge floats by ``|eager - compiled| <= atol + rtol |compiled|`` instead, if one is given.
        gradients: also compare the gradients of the sum of the float results, with respect to every float tensor
            argument and every trainable Variable read, between the modes. Peers are judged by what they return: to
            judge their gradients, compare functions that return them, such as `hf.grad` of one with `jax.grad` of the
            other.
        peers: the same computation written with other packages, timed in the same turns, its results judged against
            the function's eager ones: callables by name. The name begins with the package, whose arrays they get
            copies of the arguments as: ``numpy``, ``torch`` or ``jax``, as in ``{"torch.compile": torch.compile(f)}``.
        agree: of several functions, also judge the results of the others against those of the first.
        mesh: also run the function compiled for this mesh, as a third column; "compiled" is then for one device. Its
            results are judged against the eager ones.
        batch: as in `hf.compile`, for the mesh; a function that is compiled for the mesh has its own layouts.
        sizes: compare at each of these sizes, to see where compiling starts to pay. Results of a program that serves
            several sizes, with padded inputs, are judged too.
        inputs: a function of a size that returns the arguments: a tuple, a dict by name, or a single one. Without it,
            the size replaces every None in the shape of a `TensorSpec` argument, which becomes a random tensor.
        progress: a function that is called with the current step and the fraction done, from 0 to 1. By default a
            terminal's error stream, or a notebook, shows both in a line, which disappears at the end.
        kwargs: arguments by name. Use `functools.partial` for a name that `compare` itself has.

    Returns:
        A `Comparison`; of several functions `Comparisons`; of several sizes a `Sweep`. Its ``same`` is the verdict.

    Raises:
        ArgumentError: `repeats` less than 1, `seconds` not above 0, a negative tolerance, no function, arguments that
            do not go together.
        ArgumentTypeError: peers that are not callables by name, or `mesh` is no mesh.
        LayoutError: `batch` without a mesh, or a function that is compiled for another one.
        MissingPackageError: a peer's package is not installed.

    Example:
        >>> import hybridflow as hf
        >>> found = hf.compare(lambda x: hf.tanh(x) * x, hf.asarray([1.0, 2.0]), repeats=5)
        >>> found.same, found.eager.calls
        (True, 5)
        >>> sweep = hf.compare(hf.tanh, hf.TensorSpec([None]), sizes=[8, 64], repeats=2)
        >>> sweep.same, sweep[64].name
        (True, 'tanh')
    """
    if repeats is not None and repeats < 1:
        raise ArgumentError(f"compare: repeats={repeats}, which is less than 1")
    if not seconds > 0:
        raise ArgumentError(f"compare: seconds={seconds}, which is not above 0")
    tolerance = None if rtol is None and atol is None else (rtol or 0.0, atol or 0.0)
    if tolerance is not None and min(tolerance) < 0:
        raise ArgumentError(f"compare: a negative tolerance: rtol={rtol}, atol={atol}")
    functions = _functions(fn)
    given = {
        "repeats": repeats, "seconds": None if seconds == SECONDS else seconds, "rtol": rtol, "atol": atol,
        "gradients": gradients or None, "peers": peers,
        "agree": agree or None, "mesh": mesh, "batch": batch, "sizes": sizes, "inputs": inputs, "progress": progress,
    }
    _refuse_theirs(functions, [name for name, value in given.items() if value is not None])
    for one in functions:
        require_taken("compare", given, kwargs, one)
    on_mesh = OnMesh.of(mesh, batch, len(functions))
    effort = Effort(repeats, seconds, tolerance, gradients, agree, on_mesh)
    with shown_progress(progress) as told:
        return _compared(fn, functions, (args, kwargs), peers or {}, effort, told, sizes, inputs)


def _compared(
    fn: Any, functions: Functions, given: Call, peers: Peers, effort: Effort, told: Progress,
    sizes: Sequence[int] | None, inputs: Callable[[int], Any] | None,
) -> Comparison | Comparisons | Sweep:
    """Return the result for the arguments as they are, or for sizes."""
    if sizes is None:
        if inputs is not None:
            raise ArgumentError("compare: inputs= makes the arguments of each of sizes=, which is not given",
                                hint="hf.compare(f, sizes=[100, 10_000], inputs=lambda size: (hf.ones((size,)),))")
        measured = measure(functions, given, peers, effort, told)
        told("done", 1.0)
        return measured[0] if callable(fn) else measured
    calls = calls_of_sizes(sizes, inputs, *given)
    at_sizes: list[Comparisons] = []
    for number, (size, call) in enumerate(calls.items()):

        def at_size(what: str, done: float, number: int = number, size: int = size) -> None:
            told(f"size {size:,}: {what}", (number + done) / len(calls))

        at_sizes.append(measure(functions, call, peers, effort, at_size))
    with silenced():
        judged = judge_within_bounds(functions, [*calls.values()], at_sizes, effort.tolerance)
    told("done", 1.0)
    return Sweep(tuple(calls), judged)


@contextmanager
def shown_progress(progress: Progress | None) -> Generator[Progress]:
    """Return a function that shows the present step where the caller looks, even while calls are silenced."""
    out, err = sys.stdout, sys.stderr
    show = progress or _line_for_steps()

    def told(what: str, done: float) -> None:
        with redirect_stdout(out), redirect_stderr(err):
            show(what, done)

    try:
        yield told
    finally:
        if progress is None:
            told("", 1.0)


def _line_for_steps() -> Progress:
    """Return a function that shows a step in a line, which an empty step removes; nothing if nobody looks."""
    handle: Any = None

    def in_terminal(what: str, done: float) -> None:
        sys.stderr.write(f"\r\x1b[2Kcompare: {what}, {done:.0%}" if what else "\r\x1b[2K")
        sys.stderr.flush()

    def in_notebook(what: str, done: float) -> None:
        handle.update({"text/plain": f"compare: {what}, {done:.0%}" if what else ""}, raw=True)

    if Console(stderr=True).is_jupyter:
        from IPython.display import DisplayHandle

        handle = DisplayHandle()
        handle.display({"text/plain": ""}, raw=True)
        return in_notebook
    return in_terminal if sys.stderr is not None and sys.stderr.isatty() else lambda what, done: None


def _functions(fn: Callable[..., Any] | Functions) -> Functions:
    """Return the functions to compare."""
    functions = [fn] if callable(fn) else list(fn) if isinstance(cast(Any, fn), list | tuple) else None
    if functions is None or not all(callable(cast(Any, one)) for one in functions):
        raise ArgumentTypeError("compare: takes a function, or a list of functions", got=repr(fn)[:80],
                                hint="Pass f itself, not the result f(x): hf.compare(f, x), or hf.compare([f, g], x).")
    if not functions:
        raise ArgumentError("compare: the list of functions is empty", got="[]", hint="Write hf.compare([f, g], x).")
    return functions


def _refuse_theirs(functions: Functions, given: Sequence[str]) -> None:
    """Raise if something that was given by name may be meant for a function."""
    for function in functions:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # some callables of C have none that Python knows
            continue
        settled = function.keywords if isinstance(function, functools.partial) else {}
        for name in given:
            if name in parameters and name not in settled:
                raise ArgumentError(
                    f"compare: {name}= is an option of hf.compare, and a parameter of the function too",
                    got=f"{getattr(function, '__name__', 'function')}{inspect.signature(function)}",
                    hint=f"Compare functools.partial(function, {name}=...), which settles the function's own."
                )


# -- judgements of functions that are compiled for bounds: one program for all sizes up to one ------------------------


def judge_within_bounds(
    functions: Sequence[Callable[..., Any]],
    calls: Sequence[Call],
    measured: Sequence[Comparisons],
    tolerance: tuple[float, float] | None,
) -> tuple[Comparisons, ...]:
    """Add, for each size that a program for a bound serves, a judgement of what it gives.

    The largest size comes first: with it the function is traced, and the next one opens the sizes.

    Args:
        functions: the functions.
        calls: the arguments at each size, ascending.
        measured: what was found with programs for exact sizes, at each size.
        tolerance: as in `check_parity`.
    """
    found = [*measured]
    for number, function in enumerate(functions):
        compiled = fresh_copy(function, bounded=True)
        for at in reversed(range(len(calls))):
            parity = check_parity(compiled, [calls[at]], "results of padded inputs", tolerance)
            if _bounds(compiled):
                found[at] = _with_parity(found[at], number, parity)
    return tuple(found)


def _bounds(compiled: CompiledFunction[Any, Any]) -> bool:
    """Whether the last call ran a program for a bound."""
    return any([one.bounded for one in compiled.explain()[-1].executables])


def _with_parity(found: Comparisons, number: int, parity: Parity) -> Comparisons:
    comparisons = [*found]
    comparisons[number] = comparisons[number].with_parity(parity)
    return replace(found, comparisons=tuple(comparisons))


# -- running functions in both modes, and peers beside them, for `hf.compare` -----------------------------------------

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
