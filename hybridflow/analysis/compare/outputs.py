"""What all results of `hf.compare` have in common: the ways to show and to keep them."""

from __future__ import annotations

import json
import math
import os
from abc import abstractmethod
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.report import figure_svg, hand_to_pyplot, save_figure, titled_table
from hybridflow.backend.files import write_text
from hybridflow.core.html import page, table_html
from hybridflow.core.report import Report

SHOWN = 12
"""How many rows of a long table are printed; pages have all of them."""
_LEGEND = {
    "not told apart": "the times vary from turn to turn by more than the two differ; more repeats may tell.",
    "too few turns": "an interval needs 6: give repeats=6 or more, or more seconds=.",
    "of what rounding explains": "the largest difference, as a share of what rounding alone may make of these results.",
    "95 %": "the interval holds the true median, or ratio, in 95 of 100 measurements.",
    "in kernels": "the time in which NumPy or XLA computes; dispatch is the rest of a call.",
}
"""The words of tables that need an explanation."""
_NARROW = 76
"""Headings of tables up to this many characters wide are not broken, so that the table fits the usual terminal."""


class Grid(NamedTuple):
    """A table: its title, the heads of its columns, its rows, whether it may be cut, and which rows are alarming."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    long: bool = False
    alarming: frozenset[int] = frozenset()


class Shown(Report):
    """A result that prints as tables, and can be drawn and written to files."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What was compared."""

    @property
    @abstractmethod
    def same(self) -> bool:
        """Whether everything that was compared is the same but for rounding."""

    @abstractmethod
    def grids(self) -> list[Grid]:
        """Return the tables, the most important first."""

    @abstractmethod
    def findings(self) -> list[str]:
        """Return what the timings show, one sentence each: a difference only where one can be told."""

    @abstractmethod
    def differences(self) -> list[str]:
        """Return one line per output that differs."""

    @abstractmethod
    def caution(self) -> str:
        """Return why the timings should be read with care; empty if they are steady."""

    @abstractmethod
    def figure(self) -> Any:
        """Return the plot as a matplotlib figure."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, seconds and bytes."""

    def verdict(self) -> str:
        """Return one line that says whether the results are the same, and one per output that differs."""
        if self.same:
            return self._agreement()
        return "\n".join(["DIFFERENT: results differ by more than rounding.", *self.differences()])

    def _agreement(self) -> str:
        return "SAME: eager and compiled results agree but for rounding."

    # -- in a terminal or a notebook --------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        """Return the tables for a `rich` console."""
        tables: list[Table] = []
        for grid in self.grids():
            table = titled_table(grid.title)
            rows = grid.rows[:SHOWN] if grid.long else grid.rows
            words = [max(map(len, name.split()), default=0) for name in grid.head]
            if sum(words) + 2 * len(words) > _NARROW:
                words = [0] * len(words)
            for name, longest in zip(grid.head, words, strict=True):
                table.add_column(name, overflow="fold", min_width=longest)
            for number, row in enumerate(rows):
                table.add_row(*map(Text, row), style="bold red" if number in grid.alarming else None)
            if len(rows) < len(grid.rows):
                table.add_row(f"{len(grid.rows) - len(rows)} more")
            tables.append(table)
        return tables

    def print(self, console: Console | None = None) -> None:
        """Print the tables and the verdicts, in colour if the console has colours.

        Args:
            console: where to print; the terminal if None.
        """
        (console or Console()).print(self)

    def parts(self) -> list[Any]:
        """Return the tables, what their words mean, what they show, and the verdict."""
        caution = [Text(self.caution(), "yellow")] if self.caution() else []
        findings = [Text(line, "bold") for line in self.findings()]
        verdict = Text(self.verdict(), "green" if self.same else "bold red")
        return [*self.tables(), *self.legend(), *findings, *caution, verdict]

    def legend(self) -> list[str]:
        """Return what the words in the tables mean, a sentence each."""
        cells = " ".join([cell for grid in self.grids() for row in grid.rows for cell in row])
        return [f"{word}: {meaning}" for word, meaning in _LEGEND.items() if word in cells]

    def _repr_html_(self) -> str:
        grids = [self._grid_html(grid) for grid in self.grids()]
        return "\n".join([f"<h2>{escape(self.title)}</h2>", self._summary_html(), *grids])

    def _summary_html(self) -> str:
        kind = "same" if self.same else "different"
        lines = [f'<p class="{kind}">{escape(self.verdict())}</p>']
        lines += ["<ul>", *[f"<li>{escape(line)}</li>" for line in self.findings()], "</ul>"]
        if self.caution():
            lines.append(f'<p class="caution">{escape(self.caution())}</p>')
        lines += [f"<p>{escape(line)}</p>" for line in self.legend()]
        return "\n".join(lines)

    def _grid_html(self, grid: Grid) -> str:
        title = "" if grid.title == self.title else f"<h3>{escape(grid.title)}</h3>"
        body = table_html(grid.head, grid.rows[:SHOWN] if grid.long else grid.rows)
        rest = grid.rows[SHOWN:] if grid.long else ()
        if rest:
            body += f"<details><summary>{len(rest)} more</summary>{table_html(grid.head, rest)}</details>"
        return title + body

    # -- files ------------------------------------------------------------------------------------------------

    def plot(self, path: str | os.PathLike[str] | None = None) -> None:
        """Draw the plot as one of pyplot's figures, which notebooks show and ``plt.show()`` opens; or write it.

        `figure` returns it instead. Needs matplotlib.

        Args:
            path: a file to write; its ending chooses the format, such as ``.svg`` or ``.png``. None draws.
        """
        if path is None:
            hand_to_pyplot(self.figure())
        else:
            save_figure(self.figure(), path)

    def page_html(self) -> str:
        """Return the body of the page: the verdicts, the plot and the tables. Needs matplotlib."""
        first, *others = [self._grid_html(grid) for grid in self.grids()]
        parts = [f"<h1>{escape(self.title)}</h1>", self._summary_html(), first, figure_svg(self.figure()), *others]
        return "\n".join(parts)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs no other file and no network: the verdicts, the plot and the tables.

        Args:
            path: the file, replaced at once when the page is complete. Needs matplotlib.
        """
        write_text(path, page(self.title, self.page_html()))

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON: `to_dict`, with null for numbers that are not finite.

        Args:
            path: the file, replaced at once when it is complete.
        """
        write_text(path, json.dumps(_finite(self.to_dict()), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """Return plain values with None in place of infinities and NaN, which JSON has no words for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_finite(one) for one in cast("list[Any]", value)]
    return value
