"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole: until everything is there, and if anything fails, the old file stays as it is."""
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(content)  # a terminal, a pipe: there is no old file to keep
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # A temporary file is its owner's alone; the finished one follows the usual permissions.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(path, text.encode())
