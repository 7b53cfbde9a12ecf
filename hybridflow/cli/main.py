"""Parse the command line, run the command, and turn every outcome into an exit code.

0: done; compared results are the same. 1: eager and compiled results differ. 2: the command line, the target file, the
user's function or the machine is at fault. 3: hybridflow itself is at fault; it prints a traceback. 130: interrupted.
141: the reader of the output is gone. ``launch`` hands on the exit code of its processes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from rich.console import Console

from hybridflow import __version__
from hybridflow.cli import verbs
from hybridflow.cli.faults import UserError, machine_errors
from hybridflow.core.errors import HybridflowError

SAME, DIFFERENT, BAD_INPUT, OUR_FAULT, INTERRUPTED, NO_READER = 0, 1, 2, 3, 130, 141


class Verb(Protocol):
    """The interface of a module in `verbs`."""

    HELP: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], bool | int]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hybridflow", description="Eager tensors with a gradient tape, and the same functions compiled."
    )
    parser.add_argument("--version", action="version", version=f"hybridflow {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in pkgutil.iter_modules(verbs.__path__):
        verb = cast(Verb, importlib.import_module(f"{verbs.__name__}.{module.name}"))
        added = subparsers.add_parser(module.name.replace("_", "-"), help=verb.HELP, description=verb.HELP)
        verb.add_arguments(added)
        added.set_defaults(run=verb.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: the arguments after the program's name; None means those of the process.
    """
    arguments = _parser().parse_args(argv)
    errors = Console(stderr=True)

    def say(what: str) -> None:
        errors.print(f"hybridflow {arguments.command}: {what}", style="red", markup=False, highlight=False)

    try:
        with machine_errors(arguments.command):
            outcome = arguments.run(arguments, Console())
            return outcome if type(outcome) is int else SAME if outcome else DIFFERENT
    except UserError as error:
        sys.stderr.write(error.text)
    except HybridflowError as error:
        say(str(error))
    except KeyboardInterrupt:
        say("interrupted; no report was written")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):  # rich raises SystemExit for a broken pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so the final flush does not fail
        return NO_READER
    except Exception:
        say("this is a fault of hybridflow's own; please report it, with the text below")
        traceback.print_exc()
        return OUR_FAULT
    return BAD_INPUT
