"""`TracedText`: in a trace, a text that shows a tensor or a number that a tensor decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from hybridflow.core.context import current
from hybridflow.core.errors import LeakError, TracedValueError
from hybridflow.core.node import Where, format_where, user_place


class TracedText(str):
    """A text that each call makes of other values, so that a trace can print it, and not look at it.

    As a `str` it says what is traced, for errors and for what Python logs at the time of the trace.

    Attributes:
        make: the function that makes the text; None for a text that others made of a traced tensor.
        given: its arguments: a tuple, and a dict of those by name.
        where: the line.
    """

    __slots__ = ("given", "make", "scope", "where")

    make: Callable[..., str] | None
    given: tuple[tuple[Any, ...], dict[str, Any]]
    where: Where | None
    scope: Any

    @property
    def __class__(self) -> type[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return str

    def placeholder(self) -> str:
        """Return the text that says what is traced."""
        return str.__str__(self)

    def unknown(self) -> TracedValueError:
        """Return the error of code that looks at the text."""
        return TracedValueError(
            "str: the text of a traced tensor is not known while the function is being compiled, only each "
            f"call knows it. It was made at {format_where(self.where)}", got=repr(self.placeholder()),
            hint="Print it, which each call does; or return the tensor and make the text of it outside."
        )

    def __str__(self) -> str:
        if self.scope is not None and not self.scope.alive:
            raise LeakError(
                "str: the text of a traced tensor was kept while the function was traced, and used outside of "
                f"it. It was made at {format_where(self.where)}", got=repr(self.placeholder()),
                hint="Return the tensor, and make the text of it outside."
            )
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self.unknown()


def traced_text(text: str, make: Callable[..., str] | None, *args: Any, **kwargs: Any) -> TracedText:
    """Return the text that a function makes of these arguments, which is ``text`` while the function is traced."""
    made = TracedText(text)
    made.make = make
    made.given = args, kwargs
    made.where = user_place(2)
    made.scope = getattr(current().tracer, "scope", None)
    return made


def placeholder_of(value: Any) -> Any:
    """Return the text that says what is traced, for a `TracedText`; other values are themselves."""
    return value.placeholder() if type(value) is TracedText else value


def _derived(name: str) -> Callable[..., TracedText]:
    make = getattr(str, name)

    def method(self: TracedText, *args: Any, **kwargs: Any) -> TracedText:
        return traced_text(make(self.placeholder(), *args, **kwargs), make, self, *args, **kwargs)

    return method


def _added_to(self: TracedText, other: Any) -> Any:
    if not isinstance(other, str):
        return NotImplemented
    return traced_text(str.__add__(other, self.placeholder()), str.__add__, other, self)


def _unknown(self: TracedText, *_: Any, **__: Any) -> NoReturn:
    raise self.unknown()


TEXT_METHODS = frozenset(
    {"capitalize", "casefold", "center", "expandtabs", "format", "format_map", "join", "ljust", "lower", "lstrip",
     "removeprefix", "removesuffix", "replace", "rjust", "rstrip", "strip", "swapcase", "title", "upper", "zfill"}
)
"""Methods of `str` that return another text."""
_LOOKS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__format__"}
for _name in set(vars(str)) - (set(dir(object)) - _LOOKS) - {"__getnewargs__", "maketrans"}:
    _derives = _name in TEXT_METHODS or _name in ("__add__", "__mul__", "__rmul__", "__mod__", "__format__")
    setattr(TracedText, _name, _derived(_name) if _derives else _unknown)
setattr(TracedText, "__radd__", _added_to)  # noqa: B010 - type checkers know none of `str`

__all__ = ["TEXT_METHODS", "TracedText", "placeholder_of", "traced_text"]
