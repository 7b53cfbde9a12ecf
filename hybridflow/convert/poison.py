"""Variables that have no value after a branch or loop on tensors, and say why when they are read."""

from __future__ import annotations

from typing import Any

from hybridflow.core.errors import TraceError, message


class Unset:
    """The mark of a variable without a value."""

    def __repr__(self) -> str:
        return "nothing"


UNSET = Unset()


class Poison:
    """What a variable holds whose value cannot be known: reading it raises.

    Attributes:
        error: the class of the error.
        text: what to say.
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
):  # fmt: skip
    setattr(Poison, f"__{_name}__", Poison.fail)
    if _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
        setattr(Poison, f"__r{_name}__", Poison.fail)
Poison.__hash__ = object.__hash__


class Late:
    """A variable that a loop sets first: it has a value if the loop ran.

    Attributes:
        value: the value.
        ran: a bool tensor of shape (): whether there was a step.
        text: what to say if there was none.
    """

    __slots__ = ("ran", "text", "value")

    def __init__(self, value: Any, ran: Any, text: str) -> None:
        self.value = value
        self.ran = ran
        self.text = text


def spoken(name: str) -> str:
    """Return what messages call a variable."""
    known = {".result": "the function's result", "the expression": "the value of the expression"}
    return known.get(name) or f"variable {name!r}"


def set_in_one(name: str, when: str, place: str, value: str) -> Poison:
    """Return what a variable holds that only one branch sets."""
    other = "false" if when == "true" else "true"
    return Poison(
        TraceError,
        message(f"{spoken(name)} has a value if the condition at {place} is {when}, and none if it is {other}",
                got=f"{value} if {when}",
                hint="Give it a value before the branch, or in both."),
    )  # fmt: skip
