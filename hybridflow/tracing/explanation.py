"""`fn.explain()`: one record per trace, printable."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from hybridflow.backend.files import write_text
from hybridflow.core.attached import attached
from hybridflow.core.html import page
from hybridflow.core.report import Report
from hybridflow.tracing.records import TraceRecord

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree


class Explanation(Report, Sequence[TraceRecord]):
    """The records of a compiled function's traces: a sequence that can be shown as text, table, tree or page.

    Attributes:
        name: the function's name.
        advice: what the user could change; see `hybridflow.explain.advice.Advice`.
        verified: what became of the calls that were to be verified; see `hf.config.verify`.
        needed: the lines that need the value of a Python number, so that it is no input of the traces.
    """

    def __init__(
        self, name: str, records: Sequence[TraceRecord], advice: Sequence[Any] = (), verified: Sequence[str] = (),
        needed: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.verified = tuple(verified)
        self.needed = tuple(needed)
        self.advice = tuple(advice)
        self._records = tuple(records)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The lines about the function as a whole: `needed` and `verified`."""
        return (*self.needed, *self.verified)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def parts(self) -> list[str]:
        """Return the records, the advice and what was verified, as texts."""
        count = len(self._records)
        head = f"{self.name}: {count} trace{'' if count == 1 else 's'}"
        return [head, *map(str, self._records), *map(str, self.advice), *self.remarks]

    def table(self) -> Table:
        """Return one row per trace, for a `rich` console."""
        return attached("table_of")(self)

    def tree(self) -> Tree:
        """Return everything as a tree for a `rich` console: traces, their reasons, passes and executables, and advice.

        Example:
            >>> import hybridflow as hf
            >>> f = hf.compile(lambda x: hf.tanh(x) * 2)
            >>> _ = f(hf.asarray([1.0]))
            >>> [str(branch.label) for branch in f.explain().tree().children[0].children][0]
            'why: first call'
        """
        return attached("tree_of")(self)

    def __rich__(self) -> Tree:
        return self.tree()

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write everything to one HTML page that needs no network.

        Args:
            path: the file.
        """
        write_text(path, page(f"Why {self.name} was traced", self._repr_html_()))

    def _repr_html_(self) -> str:
        return attached("html_of")(self)
