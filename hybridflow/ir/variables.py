"""Variables as a trace sees them: one state per Variable, and what stands for those among the arguments."""

from __future__ import annotations

from typing import Any, Self

from hybridflow.core.context import CONTEXT
from hybridflow.core.device import device_string
from hybridflow.core.errors import LeakError, message
from hybridflow.core.node import Edge, Node
from hybridflow.core.variable import Variable


class ArgumentVariable(Variable):
    """Stands for a Variable among the arguments of a traced function.

    Calls with other Variables of the same spec use the same trace, so the trace must tell an argument from a Variable
    that the function reached in another way, even where the first call passed the same one twice. To tapes and to the
    trace both are one Variable: they share their leaf.
    """

    __slots__ = ("slot",)

    slot: int

    @classmethod
    def of(cls, variable: Variable, slot: int) -> ArgumentVariable:
        """Return what stands for a Variable that is the argument number `slot` (of the distinct Variables)."""
        result = object.__new__(cls)
        result._value = None
        result._name = variable.name
        result._trainable = variable.trainable
        result._leaf = variable._leaf
        result.slot = slot
        return result

    def current(self) -> Any:
        """Raise: only the Variable that it stood for has a value."""
        raise LeakError(
            message(
                f"Variable {self._name!r}: what stood for this argument in a compiled function was used outside of it",
                got=f"{self._name}: {self.spec}",
                hint="Use the Variable that was passed to the function.",
            )
        )

    @property
    def device(self) -> str:
        """Where the compiled function runs."""
        return device_string(None)

    def assign(self, value: Any) -> Self:
        """Replace the value; see `Variable.assign`."""
        context = CONTEXT.get()
        if context is None or context.tracer is None:
            self.current()
        return super().assign(value)

    def __repr__(self) -> str:
        return f"Variable(traced {self.spec}, name={self._name!r})"


class VariableState:
    """A Variable in a trace: the value it came with and the value it has now.

    Attributes:
        original: the input that holds the value it came with.
        edge: the value it has now.
        was_read: whether the function read it.
        assignments: the nodes that assigned it; none if it keeps its value.
        slot: which of the distinct Variables among the arguments it is, if it is one.
        captured: the Variable, if the function reached it otherwise than through its arguments.
    """

    __slots__ = ("assignments", "captured", "edge", "original", "slot", "variable", "was_read")

    def __init__(self, variable: Variable, original: Edge) -> None:
        self.variable = variable
        self.original = original
        self.edge = original
        self.was_read = False
        self.assignments: list[Node] = []
        self.slot: int | None = None
        self.captured: Variable | None = None
        self.touched(variable)

    def touched(self, variable: Variable) -> None:
        """Take note of the way in which the function reached the Variable."""
        if isinstance(variable, ArgumentVariable):
            self.slot = variable.slot
        else:
            self.captured = variable
