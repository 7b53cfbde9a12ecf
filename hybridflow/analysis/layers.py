"""The cost of a call by module, as rows and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from hybridflow.analysis.memory import format_size
from hybridflow.core.dims import Dim
from hybridflow.core.report import Report


@dataclass(frozen=True)
class LayerRow:
    """The cost of one module of a call, without the modules in it.

    Attributes:
        path: its path; empty for the model itself. If a call calls several models, the class of its model comes first.
        type: its class; empty for what is in no module.
        shape: the shape of its result, as text; empty if it is not called.
        parameters: the number of elements of its parameters.
        macs: multiply-adds of its operations, those of its gradients included.
        flops: their floating-point operations.
        integer_operations: operations of which neither inputs nor results are floating-point, such as those on indices.
        activations: the size of the results of its operations, in bytes, without those of gradients.
    """

    path: str
    type: str
    shape: str
    parameters: int
    macs: Any = 0
    flops: Any = 0
    integer_operations: Any = 0
    activations: Any = 0


_COLUMNS = ("parameters", "macs", "flops", "integer_operations", "activations")
_TITLES = {"macs": "MACs", "flops": "FLOPs", "integer_operations": "integer ops"}


class Layers(Report, tuple[LayerRow, ...]):
    """Rows, which print as a table, in notebooks too."""

    __slots__ = ()

    def table(self) -> Table:
        """Return the table for a `rich` console."""
        return layer_table(self, _COLUMNS)

    def parts(self) -> list[Table]:
        """Return the table."""
        return [self.table()]


def layer_table(rows: Sequence[LayerRow], columns: Sequence[str]) -> Table:
    """Return a table of rows with some of their figures, and the sums of these."""
    table = Table(show_footer=True)
    for title, footer in (("module", "total"), ("", ""), ("result", "")):
        table.add_column(title, Text(footer), overflow="fold")
    for column in columns:
        total: Any = sum([getattr(row, column) for row in rows])
        table.add_column(_TITLES.get(column, column), Text(_shown(column, total)), justify="right")
    for row in rows:
        name = row.path or ("." if row.type else "(no module)")
        figures = [_shown(column, getattr(row, column)) for column in columns]
        table.add_row(Text(name), Text(row.type), Text(row.shape), *figures)
    return table


def _shown(column: str, count: Any) -> str:
    if column == "activations":
        return format_size(count)
    return format_count(count)


def format_count(count: Any) -> str:
    """Return a count with commas between its thousands; one that depends on an open size as a polynomial."""
    return str(count) if type(count) is Dim else f"{int(count):,}"
