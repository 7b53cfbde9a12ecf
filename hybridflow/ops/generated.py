"""How files that are made of the program are written, or checked to be current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def write_or_check(path: Path, text: str, command: str, about: str | None, arguments: Sequence[str] | None) -> int:
    """Write a generated file, or with ``--check`` only say whether it is current.

    Args:
        path: the file.
        text: what it must be.
        command: what writes it.
        about: what the command does, for its ``--help``.
        arguments: the command line without the program's name.

    Returns:
        The exit status: 1 if the file is not current.
    """
    parser = argparse.ArgumentParser(prog=command, description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not current")
    if not parser.parse_args(arguments).check:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{path} is not current: run {command}\n")
    return 1
