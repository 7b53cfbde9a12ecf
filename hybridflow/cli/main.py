"""Parsing the command line and turning every outcome into an exit code.

0: done, and the results are the same. 1: eager and compiled results differ. 2: the command line, the target file, the
user's function or the machine is at fault. 3: hybridflow is, as its traceback says. 130: interrupted. 141: nobody
reads what is printed any more.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from hybridflow.cli import checkup, commands, comparing, demo, inspection, storing
from hybridflow.cli.faults import UserError, machine_errors
from hybridflow.core.errors import HybridflowError

SAME, DIFFERENT, BAD_INPUT, OUR_FAULT, INTERRUPTED, NO_READER = 0, 1, 2, 3, 130, 141
Command = Callable[[argparse.Namespace, Console], bool]

_TARGET_HELP = (
    "a function in a Python file, such as model.py:train_step. Its arguments come from --shapes, or from "
    "FUNCTION_args or example_args in the file: a tuple of arguments, a dict of named ones, or a function "
    "that returns either"
)
_SEVERAL_HELP = "Several, or FILE.py:f,g, are compared side by side, with the arguments of the first"
_SIZES_HELP = "compare at each of these sizes: FUNCTION_inputs in the file makes its arguments, or n stands in --shapes"
_PEERS_HELP = (
    "the same computation with other packages: torch=FILE.py:FUNCTION, jax=... or numpy=..., which get their arrays"
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hybridflow", description="Eager tensors with a gradient tape, and the same functions compiled."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        added = subparsers.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    added = command("demo", demo.run, "train a classifier of handwritten digits eagerly and compiled, and compare")
    added.add_argument("--out", type=Path, default=Path("report.html"), help="the report to write (%(default)s)")
    added.add_argument("--epochs", type=_positive, default=demo.EPOCHS, help="passes over the data (%(default)s)")
    added.add_argument("--seed", type=_seed, default=0, help="of the split, the weights and the order (%(default)s)")

    for name, run, text in (
        ("compare", comparing.compare, "run a function eagerly and compiled, judge the results and time both"),
        ("inspect", inspection.inspect, "show a function's graphs, cost and memory, and why it was traced"),
        ("profile", commands.profile, "show where the time of a function goes, eagerly and compiled"),
    ):
        added = command(name, run, text)
        if name == "compare":
            added.add_argument("target", nargs="+", metavar="FILE.py:FUNCTION", help=f"{_TARGET_HELP}. {_SEVERAL_HELP}")
        else:
            added.add_argument("target", metavar="FILE.py:FUNCTION", help=_TARGET_HELP)
        added.add_argument("--shapes", nargs="+", metavar="SPEC", help="random arguments, such as f32[4,3] i32[4]")
        if name == "inspect":
            added.add_argument("--as", dest="stage", choices=inspection.STAGES, help="print this text alone")
            added.add_argument(
                "--out", "--html", type=Path, help="a page to write (.html), or a folder of pages and texts"
            )
        if name == "profile":
            added.add_argument("--repeats", type=_positive, default=10, help="calls of each mode (%(default)s)")
            added.add_argument("--out", type=Path, help="a page (.html) or a flame chart (.json) of the compiled calls")
        if name == "compare":
            added.add_argument("--repeats", type=_positive, help="calls of each mode to time; default: about a second")
            added.add_argument("--gradients", action="store_true", help="compare gradients too")
            added.add_argument("--agree", action="store_true", help="judge the functions' results against the first's")
            added.add_argument("--sizes", nargs="+", type=_positive, metavar="N", help=_SIZES_HELP)
            added.add_argument("--peers", nargs="+", metavar="NAME=FILE.py:FUNCTION", help=_PEERS_HELP)
            added.add_argument("--out", type=Path, help="a page to write: the tables and the plot")
            added.add_argument("--json", type=Path, help="write all figures as JSON")
            added.add_argument("--plot", type=Path, help="write the plot, in the format of the file's ending")

    command("doctor", checkup.doctor, "show versions, devices and known problems of this installation, and try it")
    added = command("cache", storing.cache, "show the store of executables on disk, or empty it")
    added.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="what to do (%(default)s)")
    return parser


def _positive(text: str) -> int:
    return _whole(text, 1)


def _seed(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments behind the program's name; those of the process if None.
    """
    arguments = _parser().parse_args(argv)
    errors = Console(stderr=True)

    def say(what: str) -> None:
        errors.print(f"hybridflow {arguments.command}: {what}", style="red", markup=False, highlight=False)

    try:
        with machine_errors(arguments.command):
            return SAME if arguments.run(arguments, Console()) else DIFFERENT
    except UserError as error:
        sys.stderr.write(error.text)
    except HybridflowError as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted; no report was written")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # what rich makes of a broken pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor is anything printed at the end
        return NO_READER
    except Exception:
        say("this is a fault of hybridflow's own; please report it, with the text below")
        traceback.print_exc()
        return OUR_FAULT
    return BAD_INPUT
