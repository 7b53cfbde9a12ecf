"""A directory of files that only its owner can write: checked at every use, safe with many writers, bounded in size.

Whoever can write into the store can make its readers run any code. So a directory is used only if it is no link,
belongs to the user of this process, and is writable for nobody else. It stays open during a use, so that nobody can put
another directory in its place.

A file is trusted only if it starts with a keyed hash of its name and of the rest. The key lies in the directory, and
only its owner can read it. So a file that was cut, changed, renamed or copied from elsewhere is rejected.

A file is written under a temporary name and then renamed, which is atomic: readers see all of it or nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import shutil
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hybridflow.core.errors import message

try:
    import fcntl
except ImportError:  # not a POSIX system: `supported` returns False

    fcntl: Any = None

MAGIC = b"hybridflow store 1\n"
SUFFIX = ".xla"
NOTE = "note-"
"""The prefix of the names of notes (see `ahead`), which do not count as entries."""
_KEY = "key"
_HITS = "hits"
_TEMPORARY = "writing-"
_KEY_BYTES = 32
_MAC_BYTES = 32
_STARTED = 10.0
"""A temporary file that is older than this, in seconds, and not locked belongs to a process that was killed."""
_AHEAD = 86400.0
"""Seconds by which the clocks of writing processes may differ."""
_AFTER_EVICTION = 0.8
"""Eviction stops at this part of the size limit, so that not every write has to evict files."""


class Unsafe(Exception):
    """The path is no directory, or one that others could have written to."""


class Use(NamedTuple):
    """The number and size of the files in a directory."""

    entries: int
    size: int
    hits: int


def supported() -> bool:
    """Whether this system can say who owns a file and open files relative to a directory."""
    return fcntl is not None and {os.open, os.unlink, os.stat, os.rename} <= os.supports_dir_fd


class Directory:
    """The files of one directory: bytes under names.

    Args:
        path: the directory; the first write makes it, with access for its owner only.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- trust ------------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, *, make: bool = False) -> Generator[int]:
        """Open the directory.

        Raises:
            FileNotFoundError: there is none, and `make` is false.
            Unsafe: others could have written to it.
        """
        if make:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
        try:
            opened = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unsafe(
                message(f"{self.path} cannot be used: it is a link, no directory, or closed to this user ({error})",
                        hint="Remove what is there, or choose another directory.")
            ) from None
        try:
            self._require_own(opened)
            yield opened
        finally:
            os.close(opened)

    def _require_own(self, opened: int) -> None:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid():
            raise Unsafe(
                message(f"{self.path} belongs to user {status.st_uid}, not to the one who runs this ({os.geteuid()})",
                        hint="Choose another directory.")
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unsafe(
                message(f"{self.path} can be written by others (mode {stat.S_IMODE(status.st_mode):o})",
                        hint="Somebody may have put code there. Choose another directory, or close and empty this one: "
                        f"chmod go-w '{self.path}' && hybridflow cache clear")
            )

    def _own_bytes(self, opened: int, name: str, *, secret: bool = False) -> bytes | None:
        """Return a file's bytes, or None unless only its owner can write it (and read it, if it is secret)."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
        except OSError:
            return None
        try:
            status = os.fstat(file)
            forbidden = 0o077 if secret else 0o022
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & forbidden:
                return None
            if not secret:
                with contextlib.suppress(OSError):
                    os.utime(file)  # marks it as used now, for eviction
            with open(file, "rb", closefd=False) as stream:
                return stream.read()
        finally:
            os.close(file)

    # -- files ------------------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        """Return the bytes written under a name; None if there are none. Bytes that cannot be trusted are removed.

        Raises:
            Unsafe: others could have written to the directory.
        """
        try:
            with self._opened() as opened:
                content = self._own_bytes(opened, name + SUFFIX)
                if content is None:
                    return None
                key = self._secret(opened)
                start = len(MAGIC) + _MAC_BYTES
                if key is not None and content.startswith(MAGIC):
                    body = content[start:]
                    if hmac.compare_digest(_mac(key, name, body), content[len(MAGIC) : start]):
                        return body
                _remove(opened, name + SUFFIX)
        except OSError:
            pass  # there is no such file, or this process may not read it
        return None

    def write(self, name: str, body: bytes, most: int) -> None:
        """Write bytes under a name; beyond `most` bytes in all, remove the least recently used files.

        Raises:
            OSError: the disk is full, or the directory cannot be written.
            Unsafe: others could have written to the directory.
        """
        if len(body) > most:
            return
        with self._opened(make=True) as opened:
            key = self._key(opened)
            _write(opened, name + SUFFIX, MAGIC + _mac(key, name, body) + body)
            self._evict(opened, most)

    def remove(self, name: str) -> None:
        """Remove the file of a name."""
        with contextlib.suppress(OSError, Unsafe), self._opened() as opened:
            _remove(opened, name + SUFFIX)

    def _key(self, opened: int) -> bytes:
        """Return the directory's key, which the first process creates."""
        secret = self._secret(opened)
        for replace in (False, True):
            if secret is None:
                _write(opened, _KEY, secrets.token_bytes(_KEY_BYTES), replace=replace)
                secret = self._secret(opened)
        if secret is None:
            raise Unsafe(message(f"{self.path}/{_KEY} cannot be read back", hint="Choose another directory."))
        return secret

    def _secret(self, opened: int) -> bytes | None:
        body = self._own_bytes(opened, _KEY, secret=True)
        return body if body is not None and len(body) == _KEY_BYTES else None

    # -- size -------------------------------------------------------------------------------------------------

    def _evict(self, opened: int, most: int) -> None:
        files: list[tuple[float, int, str]] = []
        for name in os.listdir(opened):
            if name.startswith(_TEMPORARY):
                _remove_if_left(opened, name)
            elif name.endswith(SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, name))
        total = sum(size for _, size, _ in files)
        if total <= most:
            return
        latest = time.time() + _AHEAD  # files with later dates, from a wrong clock, go first: else they would stay
        for _, size, name in sorted(files, key=lambda file: (file[0] <= latest, file)):
            if total <= most * _AFTER_EVICTION:
                break
            _remove(opened, name)
            total -= size

    def count_hit(self) -> None:
        """Count a use by appending a byte to a file, so that no process needs to wait for another."""
        with contextlib.suppress(OSError, Unsafe), self._opened() as opened:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(_HITS, flags, 0o600, dir_fd=opened)
            try:
                os.write(file, b".")
            finally:
                os.close(file)

    def use(self) -> Use:
        """Return the number and size of the files.

        Raises:
            Unsafe: others could have written to it.
        """
        entries = size = hits = 0
        with contextlib.suppress(FileNotFoundError), self._opened() as opened:
            for name in os.listdir(opened):
                with contextlib.suppress(FileNotFoundError):
                    total = os.stat(name, dir_fd=opened, follow_symlinks=False).st_size
                    if name == _HITS:
                        hits = total
                    elif name.endswith(SUFFIX):
                        entries += not name.startswith(NOTE)
                        size += total
        return Use(entries, size, hits)

    def clear(self) -> Use:
        """Remove every file of the store, with the counts and the key, and return what `use` returned before.

        Raises:
            Unsafe: others could have written to the directory.
        """
        before = self.use()
        with contextlib.suppress(FileNotFoundError), self._opened() as opened:
            for name in os.listdir(opened):
                if name.endswith(SUFFIX) or name.startswith(_TEMPORARY) or name in (_KEY, _HITS):
                    _remove(opened, name)
        return before


def _mac(key: bytes, name: str, body: bytes) -> bytes:
    mac = hmac.new(key, name.encode() + b"\0", "sha256")
    mac.update(body)
    return mac.digest()


def _write(opened: int, name: str, data: bytes, *, replace: bool = True) -> None:
    """Write a file atomically; an existing one stays unless it is to be replaced."""
    temporary = f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=opened)
    try:
        with open(file, "wb") as stream:
            fcntl.flock(file, fcntl.LOCK_EX)
            stream.write(data)
        if replace:
            try:
                os.rename(temporary, name, src_dir_fd=opened, dst_dir_fd=opened)
            except IsADirectoryError:
                shutil.rmtree(name, dir_fd=opened)
                os.rename(temporary, name, src_dir_fd=opened, dst_dir_fd=opened)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, name, src_dir_fd=opened, dst_dir_fd=opened)
            os.unlink(temporary, dir_fd=opened)
    except BaseException:
        _remove(opened, temporary)
        raise


def _remove_if_left(opened: int, name: str) -> None:
    """Remove the temporary file of a process that was killed: it is old, and nobody holds its lock."""
    with contextlib.suppress(OSError):
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=opened)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(file).st_mtime > _STARTED:
                os.unlink(name, dir_fd=opened)
        finally:
            os.close(file)


def _remove(opened: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=opened)
