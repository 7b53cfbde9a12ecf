"""Time every operation, gradient rule and compiled call of a block."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Any, TypeVar

import jax
import numpy as np

from hybridflow.analysis.profile.compiled import (
    Call,
    Make,
    Unfinished,
    compile_program,
    known_program,
    run_program,
    wait_for,
)
from hybridflow.autodiff.walk import Engine
from hybridflow.backend.jax_shim import call_into
from hybridflow.core.context import CONTEXT
from hybridflow.core.dispatch import bind_eagerly
from hybridflow.core.node import Node, Where, in_gradient, user_place
from hybridflow.core.op import Op
from hybridflow.core.profiling import PROFILER
from hybridflow.core.tensor import Tensor
from hybridflow.tracing.trace import Trace
from hybridflow.xla.executable import Executable

T = TypeVar("T")

_NOTHING = slice(0, 0)


@dataclass(eq=False, slots=True)
class Run:
    """One run of an operation or gradient rule, or one compilation.

    Attributes:
        name: the name of the operation or of the compiled function.
        kind: ``op``, ``gradient`` or ``compile``.
        where: the user's line.
        start, end: nanoseconds of `time.perf_counter_ns`.
        bytes: the size of its results, in bytes.
        inside: nanoseconds of other runs inside it.
    """

    name: str
    kind: str
    where: Where | None
    start: int
    end: int = 0
    bytes: int = 0
    inside: int = 0


@dataclass(eq=False)
class Recorder:
    """Records what runs; the profiler of the block's context."""

    runs: list[Run] = field(default_factory=list[Run])
    calls: list[Call] = field(default_factory=list[Call])
    memory: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    open: list[Run] = field(default_factory=list[Run])
    within: dict[Call, Run] = field(default_factory=dict[Call, Run])
    unfinished: Unfinished = field(default_factory=Unfinished)
    closed: bool = False
    _thread: int = field(default_factory=get_ident)
    _kept: dict[int, Any] = field(default_factory=dict[int, Any])

    def records(self) -> bool:
        """Whether the block is open and this is its thread: contexts outlive blocks and are copied to other threads."""
        return not self.closed and get_ident() == self._thread

    # -- operations -------------------------------------------------------------------------------------------

    def bind(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Execute an operation and record its time, without the time of waiting for results of compiled calls."""
        if not self.records():
            return bind_eagerly(op, inputs, attrs, CONTEXT.get())
        self.unfinished.let_go()
        wait_for([tensor._value for tensor in inputs])
        run = self.begin(op.name, "op", user_place(3))
        try:
            result = bind_eagerly(op, inputs, attrs, CONTEXT.get())
            outputs = result if type(result) is tuple else (result,)
            values = [output._value for output in outputs]
            wait_for(values)
        finally:
            self.finish(run)
        self.made(run, values, inputs)
        return result

    def begin(self, name: str, kind: str, where: Where | None) -> Run:
        """Start timing something."""
        run = Run(name, kind, where, time.perf_counter_ns())
        self.open.append(run)
        return run

    def finish(self, run: Run) -> None:
        """Stop timing, and record the run."""
        run.end = time.perf_counter_ns()
        self.open.pop()
        if self.open:
            self.open[-1].inside += run.end - run.start
        self.runs.append(run)

    def made(self, run: Run, values: Iterable[Any], inputs: Iterable[Tensor] = ()) -> None:
        """Record the arrays that something made, and when they are freed; a view of an input is no new array."""
        known = {id(_storage(tensor._value)) for tensor in inputs}
        for value in values:
            storage = _storage(value)
            if storage is not None and id(storage) not in known:
                run.bytes += self._keep(storage, run.end)

    def _keep(self, storage: Any, time_made: int) -> int:
        """Record an array and return its bytes, or 0 if it is recorded already."""
        key = id(storage)
        if key in self._kept:
            return 0
        size = int(storage.nbytes)
        self.memory.append((time_made, size))
        self._kept[key] = weakref.ref(storage, self._freed(key, size))
        return size

    def _freed(self, key: int, size: int) -> Callable[[Any], None]:
        def freed(_: Any) -> None:
            self._kept.pop(key, None)
            self.memory.append((time.perf_counter_ns(), -size))

        return freed

    def _exchanged(self, arrays: Iterable[Any], outputs: Iterable[Any], when: int) -> None:
        """Record a call's results; some of them reuse the memory of its arguments."""
        for array in arrays:
            if isinstance(array, jax.Array) and array.is_deleted() and self._kept.pop(id(array), None) is not None:
                self.memory.append((when, -int(array.nbytes)))
        for output in outputs:
            self._keep(output, when)

    # -- gradients --------------------------------------------------------------------------------------------

    def engine(self, engine: Engine) -> Engine:
        """Return a gradient engine that times every rule of another engine."""
        return engine if isinstance(engine, _TimedEngine) or not self.records() else _TimedEngine(engine, self)

    # -- compiled calls ---------------------------------------------------------------------------------------

    def executable(self, trace: Trace, values: Sequence[Any], device: Any) -> Executable:
        """Return an executable that records its runs, compiled for this purpose once per trace and shapes."""
        sizes = {name: values[i].shape[axis] for i, axis, name in trace.symbols}
        count = trace.plan.count
        return self.compiled(
            trace, (device, *sizes.items()), trace.graph.name, device, lambda: trace.compiled(sizes, device)[0],
            slice(count, count + len(trace.assigned)),
        )

    def compiled(
        self, owner: Any, key: Hashable, name: str, device: Any, make: Make, given_away: slice = _NOTHING
    ) -> Executable:
        """Return an executable that records its runs.

        Args:
            owner: the compiled function.
            key: which part of it, for which device and sizes.
            name: the function's name.
            device: the jax device to run on; jax's default one if None.
            make: a function that compiles it.
            given_away: the outputs that become values of Variables; only the Variables may hold them.
        """
        begun = time.perf_counter_ns()
        executable = known_program(owner, key)
        if executable is None:
            run = self.begin(f"compile {name}", "compile", user_place(4))
            try:
                executable = compile_program(owner, key, name, device, make)
            finally:
                self.finish(run)
            begun = time.perf_counter_ns()
        program = executable

        def call(*arrays: Any) -> Any:
            self.unfinished.let_go()
            outputs, made = run_program(program, arrays, user_place(3))
            self.unfinished.add(outputs, given_away)
            self._exchanged(arrays, outputs, made.start)
            self.calls.append(made)
            if self.open:
                self.within[made] = self.open[-1]
            made.cost = time.perf_counter_ns() - begun - (made.returned - made.start)
            return outputs

        return replace(program.executable, call=call, into=call_into(call), bare=None)


class _TimedEngine:
    """Computes gradients as another engine does, and times every rule."""

    def __init__(self, inner: Engine, recorder: Recorder) -> None:
        self.inner = inner
        self.recorder = recorder

    def add(self, a: Any, b: Any, own: bool = False) -> Any:
        """Add two contributions."""
        run = self.recorder.begin("add", "gradient", user_place(2))
        try:
            result = self.inner.add(a, b, own)
        finally:
            self.recorder.finish(run)
        self.recorder.made(run, [getattr(result, "_value", result)])
        return result

    def walk(self, loop: Callable[[], T], users_rules: bool) -> T:
        """Run the backward loop as the other engine does."""
        return self.inner.walk(loop, users_rules)

    def run(self, node: Node, g: Any, wanted: Any) -> Sequence[Any]:
        """Run a node's gradient rule, and record its time."""
        wait_for((g, node.saved))
        run = self.recorder.begin(node.op.name, "gradient", in_gradient(node.where))
        token = PROFILER.set(self.recorder)  # the backward walk runs in a context of its own
        try:
            result = self.inner.run(node, g, wanted)
            values = [getattr(one, "_value", one) for one in result if one is not None and not callable(one)]
            wait_for(values)
        finally:
            PROFILER.reset(token)
            self.recorder.finish(run)
        self.recorder.made(run, values)
        return result


def _storage(value: Any) -> Any:
    """Return the array that owns a value's memory, or None if the value has no memory."""
    while type(value) is np.ndarray and type(value.base) is np.ndarray:
        value = value.base
    return value if isinstance(value, np.ndarray | jax.Array) else None

