"""Checks: conditions that must hold in a call of a graph, and the errors of calls where one fails."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from hybridflow.core.held import attributes_of
from hybridflow.core.node import Where, format_where
from hybridflow.core.tensor import Tensor
from hybridflow.core.tracebacks import is_hidden


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


def again(error: BaseException, around: tuple[BaseException, ...] = ()) -> BaseException:
    """Return a copy of an exception: class, arguments and attributes, without the traceback.

    So are its cause, the exceptions in a group, and what the user's code handled when it was raised.

    Args:
        error: the exception.
        around: the exceptions that it was found in.
    """
    kind: Any = type(error)
    around = (*around, error)
    args = error.args
    if isinstance(error, BaseExceptionGroup):
        args = error.message, [again(one, around) for one in error.exceptions]
    made = kind.__new__(kind, *args)
    made.args = args
    handled = error.__context__
    if handled is not None and not is_hidden(handled) and not any([handled is one for one in around]):
        with suppress(Exception):  # its class may have another constructor
            made.__context__ = again(handled, around)
    if error.__cause__ is not None and not any([error.__cause__ is one for one in around]):
        made.__cause__ = again(error.__cause__, around)
    for name, value in attributes_of(error, in_c=True).items():
        if getattr(made, name, attributes_of) is not value:
            with suppress(AttributeError, TypeError):  # what the class itself does not let be set
                setattr(made, name, list(value) if name == "__notes__" else value)
    return made
