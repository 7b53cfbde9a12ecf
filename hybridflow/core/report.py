"""Objects that show themselves: the same text everywhere, one HTML form in notebooks, and their figures as values."""

from __future__ import annotations

import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hybridflow.core.html import rich_table_html, text_html

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

WIDTH = 120
"""The width of texts: that of the stream would make them differ between a terminal, a pipe and a notebook."""


class Report(ABC):
    """An object that shows itself. A subclass says what is shown, in `parts`.

    ``str()`` and ``repr()`` return the same text, which does not depend on where it is printed; a notebook shows the
    HTML; a `rich` console prints with colors, in its own width. A subclass that is a dataclass has ``repr=False``.
    """

    __slots__ = ()

    @abstractmethod
    def parts(self) -> Iterable[Any]:
        """Return what is shown, in order: tables and texts of `rich`, and texts without style."""

    def __str__(self) -> str:
        return as_text(*self.parts())

    def __repr__(self) -> str:
        return str(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text  # it takes long to import

        yield from [Text(part) if isinstance(part, str) else part for part in self.parts()]

    def _repr_html_(self) -> str:
        return "".join([text_html(str(part)) if _is_text(part) else rich_table_html(part) for part in self.parts()])

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, ready for JSON; formulas and specs are text."""
        if isinstance(self, Sequence):
            return {"rows": [plain(row) for row in cast("Sequence[Any]", self)]}
        return _fields(self)


def plain(value: Any) -> Any:
    """Return a value as Python's numbers, texts, lists and dicts; other objects are text."""
    if isinstance(value, Report):
        return value.to_dict()
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(cast(Any, value)._asdict())
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, str):
        return [plain(one) for one in cast("Iterable[Any]", value)]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _fields(record: Any) -> dict[str, Any]:
    return {one.name: plain(getattr(record, one.name)) for one in fields(record) if one.repr}


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or hasattr(part, "plain")


class _Stream(io.StringIO):
    """A stream in whose place the standard output will be: it has the same characters."""

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return getattr(sys.stdout, "encoding", None) or "utf-8"


def as_text(*parts: Any) -> str:
    """Return parts of a report as text, without spaces at the ends of lines.

    Characters that the standard output does not have are replaced.
    """
    stream = _Stream()
    if all(isinstance(part, str) for part in parts):
        stream.write("\n".join(parts))
    else:
        from rich.console import Console  # it takes long to import

        console = Console(file=stream, width=WIDTH, color_system=None, force_jupyter=False)
        for part in parts:
            console.print(part, markup=False, highlight=False, soft_wrap=_is_text(part))
    lines = stream.getvalue().encode(stream.encoding, "replace").decode(stream.encoding).split("\n")
    return "\n".join([line.rstrip() for line in lines]).rstrip()
