"""The command line of benchmarks whose programs run in several ways, each in a process of its own."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.table import Table


def run_each_alone(
    module: str, about: str | None, programs: Iterable[str], ways: Iterable[str], run: Callable[[str, str], Any],
    columns: Mapping[str, Callable[[Any], str]], arguments: list[str] | None, needs: Mapping[str, str],
) -> int:
    """Run programs in ways, and print a table of their figures; the exit status is 1 if a process failed.

    Args:
        module: the benchmark, as ``python -m`` takes it.
        about: its description.
        programs, ways: the names to choose from; all if none is chosen.
        run: takes the names of a program and a way, in a process of their own, and returns figures for JSON.
        columns: the text of each column, of these figures.
        arguments: those of the command line.
        needs: the package that a way needs.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(programs))
    parser.add_argument("--way", action="append", choices=[*ways], help="the ways to run them; all if none")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    chosen = options.programs or [*programs]
    if options.one:
        print(json.dumps(run(chosen[0], options.way[0])))
        return 0
    table = Table("program", "way", *columns)
    status = 0
    for program, way in itertools.product(chosen, options.way or ways):
        if way in needs and find_spec(needs[way]) is None:
            print(f"{way}: {needs[way]} is not installed", file=sys.stderr)
            continue
        command = [sys.executable, "-m", module, program, "--way", way, "--one"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            status = 1
            print(f"{program}, {way}:\n{made.stderr}", file=sys.stderr)
            continue
        figures = json.loads(made.stdout.splitlines()[-1])
        table.add_row(program, way, *[text(figures) for text in columns.values()])
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    return status
