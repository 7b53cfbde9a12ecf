"""``hybridflow cache``: the store of executables on disk."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from hybridflow.cli.faults import UserError
from hybridflow.xla.store.directory import Directory, Unsafe, Use
from hybridflow.xla.store.location import place

HELP = "show the store of executables on disk, or empty it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="what to do (%(default)s)")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Print what the on-disk store of executables holds, or empty it."""
    if arguments.action == "clear":
        path = place().path
        if path is not None:
            removed = _require_safe(Directory(path).clear)
            console.print(f"Removed {removed.entries} executables, {removed.size:,} bytes", highlight=False)
            return True
    console.print(store_table())
    return True


def store_table() -> Table:
    """Return a table of what the on-disk store of executables holds, or of why it is not in use."""
    table = Table(title="Store of executables", title_justify="left", show_header=False)
    where = place()
    if where.path is None:
        table.add_row("off", where.why)
        return table
    table.add_row("directory", str(where.path))
    try:
        use = Directory(where.path).use()
    except Unsafe as error:
        table.add_row("not used", str(error))
        return table
    table.add_row("holds", f"{use.entries} executables, {use.size:,} of {where.most:,} bytes")
    table.add_row("loaded so far", f"{use.hits} times")
    return table


def _require_safe(run: Callable[[], Use]) -> Use:
    try:
        return run()
    except Unsafe as error:
        raise UserError(f"{error}\n") from None
