"""Checks: conditions that must hold in a call of a graph, and the errors of calls where one fails."""

from __future__ import annotations

from contextlib import suppress
from types import MemberDescriptorType
from typing import Any, NamedTuple

from hybridflow.core.node import Where, format_where
from hybridflow.core.tensor import Tensor


class Check(NamedTuple):
    """A condition that must hold in a call; otherwise the call fails.

    Attributes:
        ok: the condition, bool of shape ().
        error: the class of the error.
        text: the text of the error.
        where: the place in the user's code.
        example: the error itself, if the user's code made it; calls raise a copy, including its attributes.
        python_state: the changes of Python's state up to the check, as `Journal.now` returns them.
    """

    ok: Tensor
    error: type[BaseException]
    text: str
    where: Where | None
    example: BaseException | None = None
    python_state: Any = None

    def failure(self, name: str) -> BaseException:
        """Return the error of a call in which the condition does not hold.

        Args:
            name: the name of the called function.
        """
        place = f"in {name}, at {format_where(self.where)}"
        if self.example is None:
            return self.error(f"{self.text}\n  {place}")
        made = again(self.example)
        made.add_note(place)
        return made


def state_of(error: BaseException) -> dict[str, Any]:
    """Return what an exception holds besides its arguments: in its ``__dict__``, in slots, and in its C class."""
    state: dict[str, Any] = {}
    for kind in type(error).__mro__:
        for name, slot in vars(kind).items():
            if type(slot) is MemberDescriptorType:
                with suppress(AttributeError):  # it may be empty
                    state[name] = slot.__get__(error)
    return {**state, **vars(error)}


def again(error: BaseException) -> BaseException:
    """Return a copy of an exception, and of its cause: class, arguments and attributes, without the traceback."""
    kind: Any = type(error)
    made = kind.__new__(kind, *error.args)
    made.args = error.args
    if error.__cause__ is not None:
        made.__cause__ = again(error.__cause__)
    for name, value in state_of(error).items():
        if getattr(made, name, state_of) is not value:
            with suppress(AttributeError, TypeError):  # what the class itself does not let be set
                setattr(made, name, list(value) if name == "__notes__" else value)
    return made
