"""Checks: conditions that must hold in a call of a graph, and the errors of calls where one fails."""

from __future__ import annotations

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
    error: type[Exception]
    text: str
    where: Where | None
    example: Exception | None = None
    python_state: Any = None

    def failure(self, name: str) -> Exception:
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


def again(error: Exception) -> Exception:
    """Return a copy of an exception: its class, arguments and attributes, without its traceback."""
    kind: Any = type(error)
    made = kind.__new__(kind, *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    return made
