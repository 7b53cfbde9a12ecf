"""``hybridflow profile``: show where the time of a function goes, eagerly and compiled."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

import hybridflow as hf
from hybridflow.analysis.parity import fresh_copy
from hybridflow.cli.arguments import add_target, positive
from hybridflow.cli.faults import users_errors
from hybridflow.cli.outputs import require_ending, require_files
from hybridflow.cli.targets import load_target

HELP = "show where the time of a function goes, eagerly and compiled"
_ENDINGS = (".html", ".htm", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_target(parser)
    parser.add_argument("--repeats", type=positive, default=10, help="calls of each mode (%(default)s)")
    parser.add_argument("--out", type=Path, help="a page (.html) or a flame chart (.json) of the compiled calls")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Print where the time goes, eagerly and compiled, and write a page or a flame chart."""
    require_files("profile", arguments.out)
    require_ending("profile", arguments.out, *_ENDINGS)
    target = load_target(arguments.target, arguments.shapes)
    compiled = fresh_copy(target.function)
    with users_errors():
        for title, eager in (("Eager", True), ("Compiled", False)):
            with hf.config.run_eagerly(eager):
                compiled(*target.args, **target.kwargs)  # leave out what happens only in a first call,
                with hf.profile():  # and only in a first profiled call
                    compiled(*target.args, **target.kwargs)
                with hf.profile() as recorded:
                    for _ in range(arguments.repeats):
                        compiled(*target.args, **target.kwargs)
            console.rule(f"{title}, {arguments.repeats} calls", align="left")
            console.print(recorded)
            if arguments.out is not None and not eager:
                write = recorded.to_chrome_trace if arguments.out.suffix == ".json" else recorded.to_html
                write(arguments.out)
                console.print(f"Profile: {arguments.out}", markup=False, highlight=False)
    return True
