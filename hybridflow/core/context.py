"""The current tracer, tapes and device: one immutable `Context` in a contextvar, None in plain eager code."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

from hybridflow.backend.host import runner, runner_now
from hybridflow.core.node import FOREVER, Edge, Node, next_sequence
from hybridflow.core.profiling import PROFILER
from hybridflow.core.variable_log import binder_now

NEVER = 1 << 63
"""The `start` of a context in which nothing is recorded: larger than the number of any node."""


class Recorder(Protocol):
    """The part of a gradient tape that the core uses."""

    first_sequence: int

    def variable_read(self, variable: Any, edge: Edge) -> None:
        """Note that a Variable was read as the value on `edge`."""

    def pause(self) -> None:
        """Stop recording until `resume`."""

    def resume(self) -> None:
        """Continue recording."""

    def recorded_here(self) -> bool:
        """Whether the recorder was entered in the current trace, or in eager code if there is none."""
        ...

    def has_recorded(self, node: Node) -> bool:
        """Whether a node was made while the recorder recorded."""
        ...

    def value_left(self, edge: Edge) -> None:
        """Note that a recorded value was turned into NumPy or a Python number."""

    def value_cut(self, edge: Edge) -> None:
        """Note that an output of a compiled call has no gradient: nothing computed from it is recorded."""

    def value_assigned(self, variable: Any, edge: Edge) -> None:
        """Note that a recorded value was assigned to a Variable."""

    def watches(self, edge: Edge) -> bool:
        """Whether a value was watched by the recorder's user."""
        ...


class TracerProtocol(Protocol):
    """The part of a tracer that the core uses."""

    changing: Any
    """What knows the numbers that change from call to call of a function that each call traces; None for others."""

    def bind(self, op: Any, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """Add a node to the graph and return its traced output or outputs."""

    def constant(self, array: Any) -> Any:
        """Return a traced constant."""

    def read_variable(self, variable: Any) -> Any:
        """Return a Variable's traced value."""

    def assign_variable(self, variable: Any, value: Any) -> Any:
        """Make a traced value the Variable's value; return what represents the assignment as an operation, or None."""

    def gathered(self, variable: Any, tensor: Any) -> Any:
        """Return a Variable's value as functions on a mesh read it."""

    def value_read(self, tensor: Any) -> None:
        """Note that a concrete tensor was turned into NumPy or a Python number."""

    def refused(self, error: Exception, cause: Exception | None = None) -> None:
        """Make the trace end with an error, or with its cause, whatever the user's code does with it."""

    def new_variable(self, name: str) -> None:
        """Note that a Variable is created during the trace, or raise if that is not allowed."""

    def eager_code(self, *, once: bool) -> AbstractContextManager[Any]:
        """Return a context manager for code that runs eagerly during the trace: it sees what the call has assigned."""
        ...

    def value_now(self, tensor: Any) -> Any:
        """Return a concrete tensor with the value that a traced one has in the call being traced."""


class AutocastProtocol(Protocol):
    """The part of `hf.autocast` that the core uses."""

    dtype: Any

    def __call__(self, op: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the operands, cast to the dtypes in which the operation runs."""
        ...

    def variable_read(self, tensor: Any) -> None:
        """Note that a tensor is a Variable's value."""


class Context:
    """The surroundings in which operations run.

    Attributes:
        tracer: the tracer that turns operations into nodes, or None.
        binder: the object that receives operations instead of running their kernels: the tracer, the keeper of a
            checkpoint, or the profiler; None if there is none.
        tapes: the active tapes, outermost first.
        grad: whether operations on tensors that require a gradient are recorded; tapes record what they watch anyway.
        start: operations on recorded values with a smaller stamp are not recorded; tapes and `.backward()` do not reach
            them.
        device: the jax device chosen by `hf.device`, or None for the default.
        autocast: the object that casts the operands of operations, or None.
        indirect: whether an operation does more than run its kernel: it has a binder, its operands are cast, or only
            tapes record it.
        epoch: a number unique to this context; tapes may differ from one epoch to the next.
        run: the thread's kernel runner (see `RUNNER`), kept here so that recording need not look it up.
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
        self.indirect = self.binder is not None or autocast is not None or bool(tapes and not grad)
        self.epoch = next_sequence()
        self.run = runner_now() or runner()

    def plain(self) -> bool:
        """Whether this context is equivalent to None, plain eager code."""
        return not self.indirect and not self.tapes and self.device is None and self.grad


CONTEXT: ContextVar[Context | None] = ContextVar("hybridflow", default=None)
context_now = CONTEXT.get
"""``CONTEXT.get``, bound once: otherwise CPython makes a bound method at every call, which costs more than the call."""
HOST_FUNCTION: ContextVar[str | None] = ContextVar("hybridflow host function", default=None)
"""The name of the Python function that a compiled call is running on the host, or None. Meanwhile the call may own
the Variables' buffers."""
_EMPTY = Context()


def current() -> Context:
    """Return the current context; in plain eager code, an empty one."""
    return CONTEXT.get() or _EMPTY


def set_tapes(tapes: tuple[Recorder, ...]) -> None:
    """Replace the active tapes and keep the rest of the context."""
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
    """Run a block eagerly, even inside a compiled function: during tracing, and recorded by no tape.

    It sees what the call has done before it, as all eager code does: Variables that were assigned, draws of random
    numbers. The function is traced again when what the block read has changed: a Variable, or a value of Python. If the
    block assigns Variables or draws random numbers, each call is traced, so that it does so at every call.

    `hf.autocast` has no effect inside it.

    Raises:
        TraceError: in a branch or loop on tensors, the block assigns a Variable, draws random numbers or reads a
            Variable that was assigned there.

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
    with eager_code(once=False):
        yield


@contextmanager
def made_once() -> Generator[None]:
    """Run a block as in `init_scope` that makes what the package keeps for later calls, which then do not run it."""
    with eager_code(once=True):
        yield


@contextmanager
def eager_code(*, once: bool, tapes: tuple[Recorder, ...] = ()) -> Generator[None]:
    """Run a block eagerly.

    Args:
        once: whether later calls of a compiled function do not run the block; if they do, the trace depends on the
            Variables that the block reads and assigns.
        tapes: the tapes that record the block.
    """
    context = current()
    around = nullcontext() if context.tracer is None else context.tracer.eager_code(once=once)
    with around, context_of(None, tapes, context.device):
        yield


def is_tracing() -> bool:
    """Return whether operations are being traced into a graph instead of executed.

    Example:
        >>> import hybridflow as hf
        >>> hf.is_tracing()
        False
        >>> hf.compile(lambda x: x + 1 if hf.is_tracing() else x)(1.0)
        2.0
    """
    context = CONTEXT.get()
    return context is not None and context.tracer is not None
