"""Checks: conditions that must hold in a call of a graph, and the errors of calls where one fails."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from hybridflow.core.held import attributes_of
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
    """

    ok: Tensor
    error: type[BaseException]
    text: str
    where: Where | None
    example: BaseException | None = None

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


def again(error: BaseException) -> BaseException:
    """Return a copy of an exception, and of its cause: class, arguments and attributes, without the traceback."""
    kind: Any = type(error)
    made = kind.__new__(kind, *error.args)
    made.args = error.args
    if error.__cause__ is not None:
        made.__cause__ = again(error.__cause__)
    for name, value in attributes_of(error, in_c=True).items():
        if getattr(made, name, attributes_of) is not value:
            with suppress(AttributeError, TypeError):  # what the class itself does not let be set
                setattr(made, name, list(value) if name == "__notes__" else value)
    return made
