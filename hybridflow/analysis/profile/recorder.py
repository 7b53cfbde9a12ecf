"""Taking the time of every operation, gradient and compiled call of a block."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hybridflow.autodiff.backprop import Engine
from hybridflow.core.context import CONTEXT
from hybridflow.core.dispatch import bind_eagerly
from hybridflow.core.node import Node, Where, in_gradient, user_place
from hybridflow.core.op import Op
from hybridflow.core.tensor import Tensor
from hybridflow.ir.graph import Graph
from hybridflow.tracing.trace import Trace
from hybridflow.xla.executable import Executable
from hybridflow.xla.scopes import Namer, naming

ANNOTATION = "hybridflow call "
_number: Callable[[], int] = itertools.count(1).__next__
_programs: weakref.WeakKeyDictionary[Trace, dict[Any, Program]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


@dataclass(eq=False)
class Program:
    """A compiled function's executable with named nodes.

    Attributes:
        graph: the graph.
        executable: what runs it.
        namer: what named its nodes.
        module: the program's name.
    """

    graph: Graph
    executable: Executable
    namer: Namer
    module: str


@dataclass(eq=False, slots=True)
class Run:
    """An operation, a gradient rule or a compilation that ran.

    Attributes:
        name: of the operation, or of what was compiled.
        kind: ``op``, ``gradient`` or ``compile``.
        where: the user's place.
        start, end: nanoseconds of `time.perf_counter_ns`.
        bytes: what its results take, bytes.
        inside: nanoseconds of other runs within it.
    """

    name: str
    kind: str
    where: Where | None
    start: int
    end: int = 0
    bytes: int = 0
    inside: int = 0


@dataclass(eq=False, slots=True)
class Call:
    """A compiled call that ran.

    Attributes:
        number: its number, which its annotation has too.
        name: the function's.
        program: what ran.
        where: the user's place.
        start, end: nanoseconds of `time.perf_counter_ns`, results awaited.
    """

    number: int
    name: str
    program: Program
    where: Where | None
    start: int
    end: int = 0


@dataclass(eq=False)
class Recorder:
    """Records what runs; the profiler of the block's context."""

    runs: list[Run] = field(default_factory=list[Run])
    calls: list[Call] = field(default_factory=list[Call])
    memory: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    open: list[Run] = field(default_factory=list[Run])
    _kept: dict[int, Any] = field(default_factory=dict[int, Any])

    # -- operations -------------------------------------------------------------------------------------------

    def bind(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Execute an operation and take its time."""
        run = self.begin(op.name, "op", user_place(3))
        try:
            result = bind_eagerly(op, inputs, attrs, CONTEXT.get())
            outputs = result if type(result) is tuple else (result,)
            values = [output._value for output in outputs]
            _wait(values)
        finally:
            self.finish(run)
        self.made(run, values, inputs)
        return result

    def begin(self, name: str, kind: str, where: Where | None) -> Run:
        """Start the clock of something."""
        run = Run(name, kind, where, time.perf_counter_ns())
        self.open.append(run)
        return run

    def finish(self, run: Run) -> None:
        """Stop its clock."""
        run.end = time.perf_counter_ns()
        self.open.pop()
        if self.open:
            self.open[-1].inside += run.end - run.start
        self.runs.append(run)

    def made(self, run: Run, values: Iterable[Any], inputs: Iterable[Tensor] = ()) -> None:
        """Take note of arrays that something made, and of when they are freed; views of inputs are no new arrays."""
        known = {id(_storage(tensor._value)) for tensor in inputs}
        for value in values:
            storage = _storage(value)
            if storage is None or id(storage) in known or id(storage) in self._kept:
                continue
            size = int(storage.nbytes)
            run.bytes += size
            self.memory.append((run.end, size))
            self._kept[id(storage)] = weakref.ref(storage, self._freed(id(storage), size))

    def _freed(self, key: int, size: int) -> Callable[[Any], None]:
        def freed(_: Any) -> None:
            self._kept.pop(key, None)
            self.memory.append((time.perf_counter_ns(), -size))

        return freed

    # -- gradients --------------------------------------------------------------------------------------------

    def engine(self, engine: Engine) -> Engine:
        """Return an engine that takes the time of another's rules."""
        return engine if isinstance(engine, _TimedEngine) else _TimedEngine(engine, self)

    # -- compiled calls ---------------------------------------------------------------------------------------

    def executable(self, trace: Trace, values: Sequence[Any], device: Any) -> Executable:
        """Return an executable that says when it runs; it is compiled for that, once per trace and shapes."""
        sizes = {name: values[i].shape[axis] for i, axis, name in trace.symbols}
        key = (device, *sizes.items())
        with _lock:
            programs = _programs.setdefault(trace, {})
            program = programs.get(key)
        if program is None:
            program = self._compile(trace, sizes, device)
            with _lock:
                programs[key] = program
        found = program

        def call(*arrays: Any) -> Any:
            made = Call(_number(), trace.graph.name, found, user_place(2), time.perf_counter_ns())
            self.calls.append(made)
            with jax.profiler.TraceAnnotation(f"{ANNOTATION}{made.number}"):
                outputs = found.executable.call(*arrays)
                _wait(outputs)
            made.end = time.perf_counter_ns()
            if self.open:
                self.open[-1].inside += made.end - made.start
            return outputs

        inner = found.executable
        return Executable(call, inner.compiled, inner.lower, inner.lower_ms, inner.xla_ms, inner.load_ms, inner.store)

    def _compile(self, trace: Trace, sizes: dict[str, int], device: Any) -> Program:
        run = self.begin(f"compile {trace.graph.name}", "compile", user_place(3))
        try:
            namer = Namer(f"_profiled_{_number()}")
            with naming(namer):
                made, graph = trace.compiled(sizes, device)
        finally:
            self.finish(run)
        text = made.compiled.as_text()
        module = text.split(",", 1)[0].removeprefix("HloModule ").strip()
        return Program(graph, made, namer, module)


class _TimedEngine:
    """Computes gradients as another engine does, and takes the time of every rule."""

    def __init__(self, inner: Engine, recorder: Recorder) -> None:
        self.inner = inner
        self.recorder = recorder

    def add(self, a: Any, b: Any) -> Any:
        """Add two contributions."""
        run = self.recorder.begin("add", "gradient", user_place(2))
        try:
            result = self.inner.add(a, b)
        finally:
            self.recorder.finish(run)
        self.recorder.made(run, [getattr(result, "_value", result)])
        return result

    def walk(self, loop: Callable[[], None], nodes: Iterable[Node]) -> None:
        """Run the loop as the other engine does."""
        self.inner.walk(loop, nodes)

    def run(self, node: Node, g: Any, wanted: Any) -> Sequence[Any]:
        """Run a node's rule."""
        run = self.recorder.begin(node.op.name, "gradient", in_gradient(node.where))
        try:
            result = self.inner.run(node, g, wanted)
            values = [getattr(one, "_value", one) for one in result if one is not None and not callable(one)]
            _wait(values)
        finally:
            self.recorder.finish(run)
        self.recorder.made(run, values)
        return result


def _storage(value: Any) -> Any:
    """Return the array that owns a value's memory, None for what owns none."""
    while type(value) is np.ndarray and type(value.base) is np.ndarray:
        value = value.base
    return value if isinstance(value, np.ndarray | jax.Array) else None


def _wait(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, jax.Array):
            value.block_until_ready()
