"""``hybridflow launch``: run a program as several processes of this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from hybridflow.cli.arguments import positive, seed_number
from hybridflow.cli.launcher import Launcher
from hybridflow.core.errors import ArgumentError, FileMissingError

HELP = "run a program that calls hf.distribute.initialize() as several processes of this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("-n", "--processes", type=positive, required=True, metavar="N", help="the number of processes")
    parser.add_argument("--devices", type=positive, metavar="K", help="CPU devices of each process (default 1)")
    parser.add_argument(
        "--restarts", type=seed_number, default=0, metavar="R",
        help="how often the run is started again, from its newest checkpoint, when a process is lost (default 0)",
    )
    parser.add_argument(
        "--min", type=positive, metavar="M", dest="least",
        help="restart without lost processes, with M processes at least; by default with all of them",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as for python -m")
    parser.add_argument("program", metavar="PROGRAM.py", help="the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the processes, and return the exit code of the first that failed."""
    if not arguments.module and not Path(arguments.program).is_file():
        raise FileMissingError(f"launch: there is no file {arguments.program!r}")
    if arguments.least is not None and arguments.least > arguments.processes:
        raise ArgumentError(f"launch: --min {arguments.least} is more than -n {arguments.processes}")

    def say(what: str) -> None:
        sys.stderr.write(f"hybridflow launch: {what}\n")
        sys.stderr.flush()

    command = ["-m"] if arguments.module else []
    launcher = Launcher([*command, arguments.program, *arguments.arguments], arguments.devices, say)
    return launcher.run(arguments.processes, arguments.restarts, arguments.least)
