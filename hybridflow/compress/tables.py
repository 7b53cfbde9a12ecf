"""Results that print as a table with lines under it, in terminals and notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.layers import as_text, table_as_html
from hybridflow.analysis.report import titled_table

_WIDTH = 140


class Printed(ABC):
    """A result that prints as a table."""

    @abstractmethod
    def _table(self) -> Table:
        """Return the table."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return what the table shows, one sentence each."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table()
        for line in self.notes():
            yield Text(line)

    def __str__(self) -> str:
        return as_text(self, width=_WIDTH).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_as_html(self, _WIDTH)


def table(title: str, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    """Return a table with columns of words, then of numbers."""
    printed = titled_table(title)
    for name in words:
        printed.add_column(name)
    for name in numbers:
        printed.add_column(name, justify="right")
    return printed
