"""The history of what each pass changed in a graph, as text and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

from hybridflow.backend.files import write_text
from hybridflow.core.report import Report
from hybridflow.ir.graph import Graph
from hybridflow.passes.pipeline import PassRecord, run_passes
from hybridflow.pictures import difference_page, framed
from hybridflow.pictures.difference import difference


class Step(NamedTuple):
    """A run of a pass that changed the graph.

    Attributes:
        record: the pass, its time and node counts.
        before, after: the graph before and after the run.
    """

    record: PassRecord
    before: Graph
    after: Graph

    def __str__(self) -> str:
        removed, added = difference(self.before, self.after)
        names = [f"{sign}{node.op.name}" for sign, nodes in (("-", removed), ("+", added)) for node in nodes]
        return f"{self.record}: {' '.join(sorted(names))}" if names else str(self.record)


class PassHistory(Report, Sequence[Step]):
    """The passes that changed a graph, in order; prints as text, and as a page with pictures."""

    def __init__(self, graph: Graph) -> None:
        self._name = graph.name
        self._steps: list[Step] = []
        run_passes(graph, differentiable=False, on_change=lambda *step: self._steps.append(Step(*step)))

    def __getitem__(self, index: Any) -> Any:
        return self._steps[index]

    def __len__(self) -> int:
        return len(self._steps)

    def parts(self) -> list[str]:
        """Return a line per pass."""
        return [f"{self._name}: {len(self)} passes changed the graph", *map(str, self._steps)]

    def to_html(self, path: str | PathLike[str]) -> None:
        """Write a page with the graph before and after each pass: removed nodes are red, added nodes are green.

        Args:
            path: the file; the page needs no network.
        """
        write_text(path, self.page())

    def page(self) -> str:
        """Return the page that `to_html` writes."""
        steps = [(str(step.record), step.before, step.after) for step in self._steps]
        return difference_page(f"{self._name}: what the passes changed", steps)

    def _repr_html_(self) -> str:
        return framed(self.page())
