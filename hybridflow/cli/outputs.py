"""Check that a command can write its output files, before it runs anything."""

from __future__ import annotations

import os
from pathlib import Path

from hybridflow.analysis.report import empty_figure
from hybridflow.core.errors import ArgumentError


def require_files(command: str, *paths: Path | None) -> None:
    """Raise unless a file can be written to each path.

    Raises:
        ArgumentError: the parent folder does not exist or is not writable, or the path is a folder.
    """
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise ArgumentError(f"{command}: {str(path)!r} is a folder", hint="Name a file in it, or another file.")
        _require_folder(command, path)


def require_folder(command: str, path: Path | None) -> None:
    """Raise unless the path is a folder or one can be created there.

    Raises:
        ArgumentError: the parent folder does not exist or is not writable, or the path is a file.
    """
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise ArgumentError(f"{command}: {str(path)!r} is a file, not a folder to write",
                            hint="Name a page, NAME.html.")
    _require_folder(command, path)


def _require_folder(command: str, path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise ArgumentError(f"{command}: there is no folder {str(folder)!r} to write to")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ArgumentError(f"{command}: {str(path)!r} cannot be written by this user")


def require_ending(command: str, path: Path | None, *endings: str) -> None:
    """Raise if a file's ending is not one of those given.

    Raises:
        ArgumentError: the ending is another one; the text lists the valid ones.
    """
    if path is not None and path.suffix not in endings:
        raise ArgumentError(f"{command}: {str(path)!r} does not say what to write",
                            hint=f"End it in {' or '.join(endings)}.")


def require_picture(command: str, path: Path | None) -> None:
    """Raise if a plot cannot be written in the format that the file's ending names.

    Raises:
        ArgumentError: the format is unknown; the text lists the known ones.
        MissingPackageError: matplotlib is not installed.
    """
    if path is None or not path.suffix:
        return
    known = sorted(empty_figure(1, 1).canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise ArgumentError(f"{command}: {str(path)!r} names no format of plots",
                            hint=f"End it in one of {', '.join(known)}.")
