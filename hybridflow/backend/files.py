"""Write files completely or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_PART = ".part"
"""The suffix of unfinished files."""
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EACCES}
"""The errors that file systems without hard links give when asked for one."""


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file completely or not at all: the old file stays until the new one is complete."""
    target = Path(path)
    if is_device(target):
        target.write_bytes(content)  # there is no old file to keep
        return
    with whole_file(target) as file:
        file.write(content)


def is_device(path: Path) -> bool:
    """Whether a name belongs to a device, a terminal, a pipe or a socket, which no file may replace."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as `write_bytes` does, in UTF-8."""
    write_bytes(path, text.encode())


@contextmanager
def whole_file(
    path: str | os.PathLike[str], *, replace: bool = True, durable: bool = False
) -> Generator[IO[bytes]]:
    """Return a context with a file to write to; it gets its name when it is complete.

    Until then it has another name in the same folder. If anything fails, it is removed. Its permissions follow the
    umask.

    Args:
        path: the name.
        replace: whether it may replace an existing file.
        durable: whether to wait until the file and its name are on the disk, not only in the system's memory.

    Raises:
        FileExistsError: if the file exists and may not be replaced, or is a device, a pipe or a socket.
        OSError: for any other error of the system; it names the file.
    """
    target = Path(path)
    if is_device(target):
        raise FileExistsError(errno.EEXIST, "is no regular file", str(target))
    part, handle = _part_of(target)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(handle)
            if fcntl is not None:  # rename it while it is locked
                _name(part, target, replace)
        if fcntl is None:  # Windows cannot rename an open file
            _name(part, target, replace)
        if durable:
            sync_directory(target.parent)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            # The system names none where a disk is full, and the unfinished file where it cannot be renamed. No
            # system takes a name longer than 4,096 bytes.
            error.filename, error.filename2 = str(target)[:4096], None
        raise


def remove_leftovers(target: Path) -> None:
    """Remove the unfinished files of `whole_file` with similar names that no process is writing any longer.

    Args:
        target: a file name; similar names have the same beginning, up to its first digit.
    """
    if fcntl is None:
        return
    start = re.split(r"\d", target.name)[0]
    for part in target.parent.glob(f".{start}*{_PART}"):
        try:
            handle = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # it has been finished meanwhile, or belongs to another user
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink(missing_ok=True)
        except OSError:
            continue  # a process is writing it, or the file system has no locks
        finally:
            os.close(handle)


def _part_of(target: Path) -> tuple[Path, int]:
    """Return a new file in the folder of `target`, open for writing and locked until it is closed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}{_PART}")
        handle = os.open(part, flags, 0o666)
        if fcntl is None:
            return part, handle
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return part, handle
        os.close(handle)  # another process removed it as a leftover before it was locked


def _name(part: Path, target: Path, replace: bool) -> None:
    if replace:
        part.replace(target)
    else:
        _name_anew(part, target)


def _name_anew(part: Path, target: Path) -> None:
    """Rename a file, unless the new name is taken."""
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
    """Write the names in a directory to the disk, where the system supports that."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
