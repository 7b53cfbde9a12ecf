"""Variables in a trace: one state per Variable, and stand-ins for Variables among the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast

from hybridflow.core.context import CONTEXT
from hybridflow.core.device import device_string
from hybridflow.core.errors import LeakError
from hybridflow.core.node import Edge, Node
from hybridflow.core.notes import Notes
from hybridflow.core.variable import GradientCell, Variable


class NeedsIdentity(BaseException):
    """Raised when traced code asks which Variable an argument is.

    Not an `Exception`, so that users' handlers do not catch it.

    Attributes:
        slot: the argument's number among the distinct Variables.
    """

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.slot = slot


class ArgumentVariable(Variable):
    """A stand-in for a Variable among the arguments of a traced function.

    Calls with other Variables of the same spec use the same trace. So the trace must distinguish an argument from a
    Variable that the function reached in another way, even if both are the same Variable in the first call. To tapes
    and to the trace the two are one Variable: they share their leaf.
    """

    __slots__ = ("hooks", "of_gradient", "present", "slot")

    slot: int
    of_gradient: bool
    present: bool
    hooks: dict[int, Callable[[Any], Any]]

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Variable

    @classmethod
    def of(cls, variable: Variable, slot: int) -> ArgumentVariable:
        """Return a stand-in for a Variable that is argument number `slot` among the distinct Variables."""
        result = object.__new__(cls)
        result._value = None
        result._name = variable.name
        result._trainable = variable.trainable
        result._leaf = variable._leaf
        result._edge = variable._edge
        result._notes = None
        result._like = None
        result._placement = variable.placement
        if variable._notes is not None:
            result._notes = Notes(leaf=True, cell=cls._gradient_of(variable._notes.cell, slot))
        result.slot = slot
        result.of_gradient = False
        return result

    @classmethod
    def _gradient_of(cls, cell: GradientCell, slot: int) -> ArgumentVariable:
        result = cls.of(cell, slot)
        result.of_gradient = True
        result.present = cell.present
        result.hooks = cell.hooks
        return result

    def current(self) -> Any:
        """Raise an error: only the real Variable has a value."""
        raise LeakError(
            f"Variable {self._name!r}: what stood for this argument in a compiled function was used outside of it",
            got=f"{self._name}: {self.spec}", hint="Use the Variable that was passed to the function."
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

    def __hash__(self) -> int:
        self.needed()
        return id(self)

    def needed(self) -> None:
        """Ask for the Variable itself: the function is traced again for this one.

        Raises:
            NeedsIdentity: while the function is traced.
        """
        context = CONTEXT.get()
        if context is not None and context.tracer is not None:
            raise NeedsIdentity(self.slot)

    def __repr__(self) -> str:
        return f"Variable(traced {self.spec}, name={self._name!r})"


class VariableState:
    """The state of a Variable in a trace: its initial value and its current value.

    Attributes:
        original: the input that holds its initial value.
        edge: its current value.
        was_read: whether the function read it.
        assignments: the nodes that assigned it; empty if it keeps its value.
        slot: its number among the distinct Variables of the arguments, or None.
        captured: the Variable, if the function reached it in another way than through its arguments.
        of_gradient: whether this is the `GradientCell` of the Variable at that slot, not the Variable itself.
        asked: for a gradient cell, whether there was a gradient at first; None if the function did not ask.
        present: for a gradient cell, whether there is a gradient at the end; None if the function did not change that.
        hooks: the hooks that ran on the gradient, or None if none could.
    """

    __slots__ = (
        "asked", "assignments", "captured", "edge", "hooks", "of_gradient", "original", "present", "slot", "variable",
        "was_read",
    )

    def __init__(self, variable: Variable, original: Edge) -> None:
        self.variable = variable
        self.original = original
        self.edge = original
        self.was_read = False
        self.assignments: list[Node] = []
        self.slot: int | None = None
        self.captured: Variable | None = None
        self.of_gradient = isinstance(variable, GradientCell) or getattr(variable, "of_gradient", False)
        self.asked: bool | None = None
        self.present: bool | None = None
        self.hooks: tuple[Callable[[Any], Any], ...] | None = None
        self.touched(variable)

    def has_gradient(self) -> bool:
        """Whether there is a gradient at this point of the trace."""
        if self.present is None:
            self.asked = cast(GradientCell, self.variable).present
            return self.asked
        return self.present

    def holds(self, cell: GradientCell) -> bool:
        """Whether the trace is valid for a call with this cell."""
        asked = self.asked is None or self.asked is cell.present
        return asked and (self.hooks is None or self.hooks == tuple(cell.hooks.values()))

    def touched(self, variable: Variable) -> None:
        """Note how the function reached the Variable."""
        if isinstance(variable, ArgumentVariable):
            self.slot = variable.slot
        else:
            self.captured = variable
