"""The commands that write the files generated from the program, or check that they are up to date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

Main = Callable[..., int]
"""A command: a function from the command line, without the program's name, to the exit status."""


def writer(path: Path, text: Callable[[], str], command: str, about: str | None) -> Main:
    """Return the command that writes a generated file, or with ``--check`` only says whether it is current.

    Args:
        path: the file.
        text: a function that returns what the file must contain.
        command: how users call the command.
        about: what the command does, for its ``--help``.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        parser = argparse.ArgumentParser(prog=command, description=about)
        parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not current")
        if not parser.parse_args(arguments).check:
            path.write_text(text(), encoding="utf-8")
            return 0
        if path.exists() and path.read_text(encoding="utf-8") == text():
            return 0
        sys.stderr.write(f"{path} is not current: run {command}\n")
        return 1

    return main
