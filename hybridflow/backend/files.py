"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EACCES}
"""What file systems without hard links say when they are asked for one."""


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole: until everything is there, and if anything fails, the old file stays as it is."""
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_bytes(content)  # a terminal, a pipe: there is no old file to keep
        return
    with whole_file(target) as file:
        file.write(content)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(path, text.encode())


@contextmanager
def whole_file(
    path: str | os.PathLike[str], *, replace: bool = True, durable: bool = False
) -> Generator[IO[bytes]]:
    """Return a context with a file to write to, which has its name when everything is there.

    Until then it has another name beside it, and if anything fails there is nothing new. Its permissions follow the
    umask.

    Args:
        path: the name.
        replace: whether it may take the place of a file of this name.
        durable: whether the file and its name are on the disk, and not only in the system's memory, afterwards.

    Raises:
        FileExistsError: a file of this name, if it may not be replaced.
        OSError: what else the system says.
    """
    target = Path(path)
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(part, flags, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
        if replace:
            part.replace(target)
        else:
            _name_anew(part, target)
        if durable:
            sync_directory(target.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _name_anew(part: Path, target: Path) -> None:
    """Give a file a name that no other one has."""
    try:
        os.link(part, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        part.replace(target)
    else:
        part.unlink()


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk, where the system knows how."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
