"""Conditions that must hold for a call of a graph to count, and the errors of calls in which one does not."""

from __future__ import annotations

from typing import Any, NamedTuple

from hybridflow.core.node import Where, format_where
from hybridflow.core.tensor import Tensor


class Check(NamedTuple):
    """A condition that must hold for a call to count.

    Attributes:
        ok: bool, shape ().
        error: the class of the error otherwise.
        text: its text.
        where: the user's place.
        example: the error itself, if the user's code made it; calls raise its like, attributes included.
        python_state: what was changed of Python's state so far when the check was met, as `Journal.now` returns it.
    """

    ok: Tensor
    error: type[Exception]
    text: str
    where: Where | None
    example: Exception | None = None
    python_state: Any = None

    def failure(self, name: str) -> Exception:
        """Return the error of a call in which it does not hold.

        Args:
            name: what the call is one of.
        """
        place = f"in {name}, at {format_where(self.where)}"
        if self.example is None:
            return self.error(f"{self.text}\n  {place}")
        made = again(self.example)
        made.add_note(place)
        return made


def again(error: Exception) -> Exception:
    """Return an exception like another: its class, arguments and attributes, without where it was raised."""
    kind: Any = type(error)
    made = kind.__new__(kind, *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    return made
