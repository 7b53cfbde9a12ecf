"""Texts that a traced function makes: those that show a tensor are made by each call."""

from __future__ import annotations

import operator
import re
import sys
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, cast

import numpy as np

from hybridflow.convert.staged import shown
from hybridflow.convert.values import is_staged, is_tensor, is_traced
from hybridflow.core.attached import attached
from hybridflow.core.errors import TracedValueError
from hybridflow.core.held import attributes_of, made_of, shows_fields
from hybridflow.core.staged_number import StagedNumber, text_for_messages, tried
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.traced_text import TEXT_METHODS, TracedText, placeholder_of, traced_text
from hybridflow.guards import observe
from hybridflow.guards.guards import CONTAINERS, PLAIN
from hybridflow.guards.users import is_hybridflows
from hybridflow.ops import effects
from hybridflow.ops.host_values import as_text

_TRACED = re.compile(r"\(traced [a-z]+[0-9]*\[")
"""What is in a text that a library or a dataclass made of a traced tensor."""
_BUILTIN = type(len)
MAKERS = frozenset({str, repr, ascii, format})
_SHOWN_BY_ITEMS = frozenset({list, tuple, dict, OrderedDict, defaultdict})
"""Types of containers that each call can make again with its own tensors."""
_LOGS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_LOOKS_AT_NO_TEXT = frozenset({isinstance, issubclass, callable, id, list, tuple, iter, effects.print})


class Spoken(str):
    """The text that stands for a value in the message of an error, in any format."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str.__str__(self)

    def __repr__(self) -> str:
        return str.__str__(self)


def told(value: Any) -> Any:
    """Return what an f-string shows in the message of an error: for a value that only each call knows, what it is."""
    if type(value) not in PLAIN:
        observe.special(value, "__format__", "__str__", "__repr__")
    if type(value) is StagedNumber:
        return Spoken(shown(value))
    return Spoken(repr(value)) if is_tensor(value) else value


def plain(value: Any) -> Any:
    """Return what the error of a call has in the place of a value that only the trace has: a text of it."""
    return str.__str__(told(value)) if is_traced(value) else placeholder_of(value)


def formatted(value: Any, conversion: int, spec: str) -> str:
    """Return the text of the braces of an f-string."""
    observe.special(value, "__format__", "__str__", "__repr__")
    if type(value) in PLAIN or _shows_tensors((value, spec)):
        return made(_formatted, value, conversion, spec)
    call = attached("callee")
    if conversion in _CONVERSIONS:
        value = call(_CONVERSIONS[conversion])(value)
    return call(format)(value, spec)


_CONVERSIONS: dict[int, Callable[..., str]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}


def printed(value: Any) -> str:
    """Return the text that ``print`` shows of a value."""
    return value if type(value) is str else attached("callee")(str)(value)


def joined(*parts: str) -> str:
    """Return an f-string, of its texts and those of its braces."""
    return made(_joined, *parts)


def made(make: Callable[..., str], *args: Any, **kwargs: Any) -> str:
    """Return the text that a function makes; a `TracedText` if the text shows a tensor."""
    if not _shows_tensors(args, kwargs):
        try:
            return seen(make(*args, **kwargs))
        except TypeError as error:
            if TracedNumber.__name__ in str(error):
                observe.settle()  # C takes only numbers of its own
            raise
    args, kwargs = tuple(map(_as_now, args)), {name: _as_now(one) for name, one in kwargs.items()}
    try:
        with tried():
            text = make(*_told_within(args), **_told_within(kwargs))
    except (TypeError, ValueError, LookupError, AttributeError, TracedValueError):  # a format of what only calls know
        text = " ".join(map(text_for_messages, _told_within(args)))
    return traced_text(text, make, *args, **kwargs)


def _as_now(value: Any) -> Any:
    """Return a value as a text shows it now: what may change is copied, objects are their texts."""
    kind = type(value)
    if is_tensor(value) or isinstance(value, bool | int | float | complex | bytes | str | None | np.generic):
        return value
    if kind in (list, tuple):
        return kind(map(_as_now, value))
    if kind in _SHOWN_BY_ITEMS:
        copied = value.copy()
        copied.update({key: _as_now(one) for key, one in value.items()})
        return copied
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return cast("Any", value)._make(map(_as_now, value))
    if shows_fields(value):
        held = attributes_of(value)
        return made_of(kind, held, map(_as_now, held.values()))
    shown_now = as_text(value)
    for text in (str(shown_now), repr(shown_now)):
        if type(seen(text)) is TracedText:
            raise seen(text).unknown()
    return shown_now


def _told_within(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_told_within, value))
    return {key: _told_within(one) for key, one in value.items()} if type(value) is dict else told(value)


def _formatted(value: Any, conversion: int, spec: str) -> str:
    return format(_CONVERSIONS[conversion](value) if conversion in _CONVERSIONS else value, spec)


def _joined(*parts: str) -> str:
    return "".join(parts)


def _shows_tensors(*values: Any) -> bool:
    pending: list[Any] = list(values)
    looked_at: set[int] = set()
    while pending:
        one = pending.pop()
        known = type(one) is Tensor and one._value is not None
        if type(one) is TracedText or (is_staged(one) and not known):
            return True
        if id(one) in looked_at:
            continue
        looked_at.add(id(one))
        if type(one) in _SHOWN_BY_ITEMS or (isinstance(one, tuple) and hasattr(one, "_make")):
            pending += [*one, *one.values()] if isinstance(one, dict) else one
        elif shows_fields(one):
            pending += attributes_of(one).values()
    return False


def seen(result: Any) -> Any:
    """Return what a call returned; a text that shows traced tensors is one that cannot be looked at."""
    return traced_text(result, None) if type(result) is str and _TRACED.search(result) else result


def of_text(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the operator ``%``, which may format a text."""
    return lambda a, b: made(operation, a, b) if isinstance(a, str) else operation(a, b)


def made_by(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the text that a function or a text's method makes, if it may show a tensor; else None."""
    if type(function) is _BUILTIN and type(function.__self__) is str and function.__name__ in TEXT_METHODS:
        if function.__name__ == "join" and len(args) == 1 and isinstance(args[0], Iterator):
            return made(function, attached("callee")(list)(args[0]))
    elif function not in MAKERS:
        return None
    return made(function, *args, **kwargs) if _shows_tensors(args, kwargs) else None


def handed_on(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call of Python's or a library's function.

    Errors, logging and warnings are told at the trace, and say what is traced, from the user's line.

    Raises:
        TracedValueError: the function would look at a text that shows a tensor.
    """
    if _logs(function) and args:
        first = 1 if function.__name__ == "log" else 0
        if args[first + 1 :] and _shows_tensors(args):
            args = (*args[:first], made(operator.mod, args[first], args[first + 1 :]))
        kwargs = {**kwargs, "stacklevel": _frames(kwargs.get("stacklevel", 1))}
    elif function is warnings.warn:
        kwargs = {**dict(zip(("stacklevel", "source"), args[2:], strict=False)), **kwargs}
        args, kwargs = args[:2], {**kwargs, "stacklevel": _frames(kwargs.get("stacklevel", 1))}
    if _keeps_texts(function):
        return args, kwargs
    if not _logs(function) and function is not warnings.warn:
        require_known(*args, *kwargs.values())
    return tuple(map(placeholder_of, args)), {name: placeholder_of(one) for name, one in kwargs.items()}


def require_known(*values: Any) -> None:
    """Raise if a value is a text that only each call knows."""
    for one in values:
        if type(one) is TracedText:
            raise one.unknown()


def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of an object and a name, which must be known."""

    def call(*args: Any) -> Any:
        require_known(*args)
        return function(*args)

    return call


def _logs(function: Any) -> bool:
    return getattr(function, "__module__", None) == "logging" and getattr(function, "__name__", None) in _LOGS


def _frames(level: Any) -> Any:
    """Return the level of a frame of the user's for a function that counts hybridflow's frames too."""
    frame, count = sys._getframe(2), 1
    while type(level) is int and level > 0 and frame is not None:
        count += 1
        level -= not is_hybridflows(frame.f_code)
        frame = frame.f_back
    return count if level == 0 else level


def _keeps_texts(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(function, type) and issubclass(function, BaseException):
        return True
    if type(function) is _BUILTIN and isinstance(owner, (*CONTAINERS, set, frozenset, BaseException)):
        return True
    return type(function) in (_BUILTIN, type, FunctionType) and function in _LOOKS_AT_NO_TEXT
