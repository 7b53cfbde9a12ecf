"""The current tracer, tapes and device: one immutable `Context` in a contextvar, None in plain eager code."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from hybridflow.backend.host import runner, runner_now
from hybridflow.core.node import FOREVER, Edge, next_sequence
from hybridflow.core.observer import binder_now
from hybridflow.core.profiling import PROFILER

NEVER = 1 << 63
"""The `start` of a context in which nothing is recorded: no node is that young."""


class Recorder(Protocol):
    """What a gradient tape offers to the core."""

    first_sequence: int

    def variable_read(self, variable: Any, edge: Edge) -> None:
        """Take note that a Variable was read as the value on `edge`."""

    def pause(self) -> None:
        """Stop recording for a while."""

    def resume(self) -> None:
        """Go on recording."""

    def value_left(self, edge: Edge) -> None:
        """Take note that a recorded value was turned into NumPy or a Python number."""

    def value_cut(self, edge: Edge) -> None:
        """Note that an output of a compiled call has no gradient, so that what is computed from it is not recorded."""

    def value_assigned(self, variable: Any, edge: Edge) -> None:
        """Take note that a recorded value was assigned to a Variable."""


class TracerProtocol(Protocol):
    """What a tracer offers to the core."""

    def bind(self, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Add a node to the graph and return its traced output or outputs."""

    def constant(self, array: Any) -> Any:
        """Return a traced constant."""

    def read_variable(self, variable: Any) -> Any:
        """Return a Variable's traced value."""

    def assign_variable(self, variable: Any, value: Any) -> Any:
        """Make a traced value the Variable's value; return what stands for that as an operation, or None."""

    def value_read(self, tensor: Any) -> None:
        """Take note that a concrete tensor was turned into NumPy or a Python number."""

    def new_variable(self, name: str) -> None:
        """Take note that a Variable is made during the trace, or refuse it."""

    def value_now(self, tensor: Any) -> Any:
        """Return a traced tensor with the value that it has in the call that is being traced."""


class AutocastProtocol(Protocol):
    """What `hf.autocast` offers to the core."""

    dtype: Any

    def __call__(self, op: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return an operation's operands in the dtypes in which it is to run."""
        ...

    def variable_read(self, tensor: Any) -> None:
        """Take note that a tensor is what a Variable holds."""


class Context:
    """What surrounds the code that runs now.

    Attributes:
        tracer: the tracer that turns operations into nodes, or None.
        binder: what operations are handed to instead of being executed: the tracer, who keeps results for a function
            that is run again, or who takes their time.
        tapes: the active tapes, outermost first.
        grad: whether what requires a gradient is recorded; a tape records what it watches in any case.
        start: recordings older than this are followed by no active tape, nor forever.
        device: the jax device chosen by `hf.device`, or None for the default.
        autocast: what casts the operands of operations, or None.
        indirect: whether an operation is more than its kernel: it is traced, or its operands are cast.
        epoch: a number of its own; a Variable read in another epoch is watched by other tapes.
        run: the thread's runner of kernels, as `RUNNER` names it: what is recorded need not look it up.
    """

    __slots__ = ("autocast", "binder", "device", "epoch", "grad", "indirect", "run", "start", "tapes", "tracer")

    def __init__(
        self,
        tracer: TracerProtocol | None = None,
        tapes: tuple[Recorder, ...] = (),
        device: Any = None,
        grad: bool = True,
        autocast: AutocastProtocol | None = None,
    ) -> None:
        self.tracer = tracer
        self.binder: Any = tracer
        if tracer is None:
            self.binder = binder_now() or PROFILER.get()
        self.tapes = tapes
        self.grad = grad
        self.start = min([tape.first_sequence for tape in tapes]) if tapes else FOREVER if grad else NEVER
        self.device = device
        self.autocast = autocast
        self.indirect = self.binder is not None or autocast is not None
        self.epoch = next_sequence()
        self.run = runner_now() or runner()

    def plain(self) -> bool:
        """Whether this says nothing that None would not."""
        return not self.indirect and not self.tapes and self.device is None and self.grad


CONTEXT: ContextVar[Context | None] = ContextVar("hybridflow", default=None)
context_now = CONTEXT.get
"""``CONTEXT.get``, bound once: through an imported name CPython makes a bound method per call, which costs more than
the call."""
HOST_FUNCTION: ContextVar[str | None] = ContextVar("hybridflow host function", default=None)
"""The name of the Python function that runs for a compiled call, which may hold the Variables; None outside."""
_EMPTY = Context()


def current() -> Context:
    """Return the current context, an empty one in plain eager code."""
    return CONTEXT.get() or _EMPTY


def set_tapes(tapes: tuple[Recorder, ...]) -> None:
    """Replace the active tapes, keeping the rest."""
    context = current()
    if not tapes and not context.indirect and context.device is None and context.grad:
        CONTEXT.set(None)
        return
    CONTEXT.set(Context(context.tracer, tapes, context.device, context.grad, context.autocast))


@contextmanager
def context_of(
    tracer: TracerProtocol | None,
    tapes: tuple[Recorder, ...] = (),
    device: Any = None,
    grad: bool = True,
    autocast: AutocastProtocol | None = None,
) -> Generator[None, None, None]:
    """Run a block in a context of its own."""
    changed = Context(tracer, tapes, device, grad, autocast)
    token = CONTEXT.set(None if changed.plain() else changed)
    try:
        yield
    finally:
        CONTEXT.reset(token)


@contextmanager
def init_scope() -> Generator[None, None, None]:
    """Run a block eagerly, also while a compiled function is traced: once, when it is traced, and on no tape.

    `hf.autocast` does not reach into it.

    Example:
        >>> import hybridflow as hf
        >>> @hf.compile
        ... def f(x):
        ...     with hf.init_scope():
        ...         table = hf.arange(3) * 2  # computed now; the graph has it as it is
        ...         assert not hf.is_tracing()
        ...     return x + table
        >>> f(1)
        Tensor([1, 3, 5], dtype=int32)
    """
    with context_of(None, (), current().device):
        yield


def is_tracing() -> bool:
    """Return whether operations are being traced into a graph instead of executed.

    Example:
        >>> import hybridflow as hf
        >>> hf.is_tracing()
        False
        >>> hf.compile(lambda x: x + 1 if hf.is_tracing() else x)(1.0).item()
        2.0
    """
    context = CONTEXT.get()
    return context is not None and context.tracer is not None
