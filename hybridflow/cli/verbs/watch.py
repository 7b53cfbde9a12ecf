"""``hybridflow watch``: a page with the curves of runs while they train."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from hybridflow.core.errors import FileMissingError
from hybridflow.train.watch import serve

HELP = "show the curves of runs, what they are doing and the machine's load, on a page at this machine"
_PORT = 8008


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIRECTORY", help="a run, or a directory of runs")
    parser.add_argument("--port", type=int, default=_PORT, help="0 takes a free one (default %(default)s)")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Serve until Ctrl-C."""
    for path in arguments.paths:
        if not path.is_dir():
            raise FileMissingError(f"watch: there is no directory {str(path)!r}")
    serve(arguments.paths, arguments.port, lambda text: console.print(text, markup=False, highlight=False))
    return True
