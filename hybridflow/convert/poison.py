"""Variables that have no value after a branch or loop on tensors: reading one raises an error that says why."""

from __future__ import annotations

from typing import Any

from hybridflow.core.errors import TraceError, message


class Unset:
    """Marks a variable without a value."""

    def __repr__(self) -> str:
        return "nothing"


UNSET = Unset()


class Poison:
    """The content of a variable whose value cannot be known: reading it raises.

    Attributes:
        error: the class of the error.
        text: the error's message.
    """

    def __init__(self, error: type[Exception], text: str) -> None:
        self.__dict__["error"] = error
        self.__dict__["text"] = text

    def fail(self, *_: Any, **__: Any) -> Any:
        """Raise the error."""
        raise self.error(self.text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.fail()


for _name in (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift", "neg",
    "pos", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "index", "len", "iter",
    "getitem", "setitem", "call", "contains", "array",
):
    setattr(Poison, f"__{_name}__", Poison.fail)
    if _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
        setattr(Poison, f"__r{_name}__", Poison.fail)
Poison.__hash__ = object.__hash__


class Late:
    """A variable that has a value only in some calls: if a loop ran that sets it, or a branch was taken that does.

    Attributes:
        value: the value.
        ran: a bool tensor of shape (): whether the variable has a value.
        text: the error's message if it has none.
    """

    __slots__ = ("ran", "text", "value")

    def __init__(self, value: Any, ran: Any, text: str) -> None:
        self.value = value
        self.ran = ran
        self.text = text


def spoken(name: str) -> str:
    """Return the name of a variable in messages."""
    known = {".result": "the function's result", "the expression": "the value of the expression"}
    return known.get(name) or f"variable {name!r}"


def set_in_one(name: str, when: str, place: str, value: str) -> Poison:
    """Return the content of a variable that only one branch sets."""
    other = "false" if when == "true" else "true"
    return Poison(
        TraceError,
        message(f"{spoken(name)} has a value if the condition at {place} is {when}, and none if it is {other}",
                got=f"{value} if {when}",
                hint="Give it a value before the branch, or in both."),
    )
