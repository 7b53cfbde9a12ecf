"""The table of the zoo: parameters, multiply-adds and memory of its models, beside the published figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybridflow.analysis.memory import format_size
from hybridflow.models.catalog import CATALOG, Entry

TITLES = (
    "model", "input", "parameters", "published", "MACs", "published", "kept for gradients", "stored in inference",
    "stored in training",
)
XLA_TITLES = ("XLA, inference", "XLA, training")


class Row(NamedTuple):
    """A row of the table: texts in the order of `TITLES`, then those of `XLA_TITLES` if XLA was asked."""

    cells: tuple[str, ...]


def row_of(entry: Entry, *, xla: bool = False) -> Row:
    """Return the row of a model; with `xla`, its two programs are compiled, which can take minutes."""
    figures, training = entry.figures(), entry.training()
    activations = sum(one.bytes for one in training.memory.activations)
    shape = "x".join(map(str, entry.specs[0].shape))
    cells = (
        entry.name, shape, f"{figures.parameters:,}", entry.parameters, f"{figures.macs:,}", entry.macs,
        format_size(activations), format_size(figures.temporaries), format_size(training.memory.temporaries),
    )
    if not xla:
        return Row(cells)
    reports = (figures.report, training)
    return Row((*cells, *[format_size(one.against_xla().xla_temporaries) for one in reports]))


def rows(entries: Sequence[Entry] = CATALOG, *, xla: bool = False) -> Iterator[Row]:
    """Yield the rows of models."""
    for entry in entries:
        yield row_of(entry, xla=xla)


def markdown(found: Sequence[Row], titles: Sequence[str] = TITLES) -> str:
    """Return the table in Markdown."""
    lines = [" | ".join(titles), " | ".join(["---", "---", *["--:"] * (len(titles) - 2)])]
    lines += [" | ".join(row.cells) for row in found]
    return "".join([f"| {line} |\n" for line in lines])


def _table(titles: Sequence[str]) -> Table:
    table = Table()
    for number, title in enumerate(titles):
        table.add_column(title, justify="left" if number < 2 else "right", no_wrap=number == 0)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table.

    Args:
        arguments: those of the command line, if not given.
    """
    parser = argparse.ArgumentParser(
        prog="python -m hybridflow.models",
        description="Parameters, multiply-adds and memory of the zoo's models, batch 1; nothing is allocated or run.",
    )
    parser.add_argument("names", nargs="*", help="only models whose names contain one of these texts")
    parser.add_argument("--xla", action="store_true", help="compile the models, for XLA's own memory figures")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    given = parser.parse_args(arguments)
    names = [name.lower() for name in given.names]
    entries = [one for one in CATALOG if not names or any(name in one.name.lower() for name in names)]
    titles = (*TITLES, *XLA_TITLES) if given.xla else TITLES
    if given.markdown:
        print(markdown([*rows(entries, xla=given.xla)], titles), end="")
        return
    table = _table(titles)
    for row in rows(entries, xla=given.xla):
        table.add_row(*map(Text, row.cells))
    Console().print(table)
