"""Reading safetensors files: a file is mapped into memory, or copied into it."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from hybridflow.backend.host import ALIGNED
from hybridflow.core.dtypes import bool_, float32
from hybridflow.core.errors import ArgumentTypeError, FileError, FileFormatError, FileMissingError, message
from hybridflow.saving.format import FLOAT8, LONGEST_HEADER, Entry, parsed, shown, wrong

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
PathLike = str | os.PathLike[str]


def require_path(what: str, path: Any, form: str) -> None:
    """Raise unless a caller's first argument is a path.

    Args:
        what: the caller.
        path: the argument.
        form: how to write the call.

    Raises:
        ArgumentTypeError: it is none.
        FileError: no file can have it.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        got = type(path).__name__
        raise ArgumentTypeError(f"{what}: the path comes first", got=got, hint=f"Write {form}.")
    try:
        named = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        named = False
    if not named:
        raise FileError(f"{what}: {repr(path)[:120]} is no name of a file",
                        hint="Leave out null characters, and what the system's encoding lacks.")


class Contents(NamedTuple):
    """The content of a file.

    Attributes:
        arrays: the arrays by path, read-only.
        metadata: the texts that were saved with them.
    """

    arrays: dict[str, np.ndarray[Any, Any]]
    metadata: Mapping[str, str]


def read(path: PathLike, *, what: str = "load", copy: bool = False, follow: bool = True) -> Contents:
    """Read a safetensors file.

    Args:
        path: the file.
        what: the caller, for messages.
        copy: whether to copy the file into memory instead of mapping it.
        follow: whether it may be a link.

    Raises:
        FileError: the file cannot be read, or is no regular file.
        FileFormatError: it does not follow the format.
    """
    with opened(path, what, follow=follow) as handle, named(path, what):
        size = os.fstat(handle).st_size
        entries, metadata, start = _header(handle, size)
        data = _copied(handle, start, size) if copy else _mapped(handle, start, size)
        arrays = {one.path: _array(one, data) for one in entries}
    return Contents(arrays, metadata)


def _mapped(handle: int, start: int, size: int) -> Bytes:
    return np.frombuffer(mmap.mmap(handle, size, access=mmap.ACCESS_READ), np.uint8)[start:]


def _copied(handle: int, start: int, size: int) -> Bytes:
    """Return the bytes of a file from an offset on, in memory that is aligned so that XLA needs no further copy."""
    memory = np.empty(size - start + ALIGNED, np.uint8)
    data = memory[-memory.ctypes.data % ALIGNED :][: size - start]
    _fill(handle, start, data.data)
    data.flags.writeable = False
    return data


def read_metadata(path: PathLike, what: str) -> Mapping[str, str]:
    """Return a safetensors file's metadata, after checking its header and size as `read` does."""
    with opened(path, what) as handle, named(path, what):
        return _header(handle, os.fstat(handle).st_size)[1]


@contextmanager
def opened(path: PathLike, what: str, *, follow: bool = True) -> Generator[int]:
    """Return a context with a regular file, open for reading; `follow` says whether it may be a link.

    Raises:
        FileMissingError: the file does not exist.
        FileError: it cannot be read, or is a directory, a pipe or a device.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    flags |= 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)  # a pipe must not be waited for
    try:
        handle = os.open(path, flags)
    except FileNotFoundError as error:
        raise file_error(FileMissingError, what, path, "is not there", error) from None
    except OSError as error:
        raise file_error(FileError, what, path, "cannot be read", error) from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileError(f"{what}: {os.fspath(path)!r} is no regular file")
        yield handle
    finally:
        os.close(handle)


def file_error(kind: type[FileError], what: str, path: PathLike, said: str, error: OSError) -> FileError:
    """Return an error with the system's reason for a file."""
    made = kind(message(f"{what}: {os.fspath(path)!r} {said}", got=os.strerror(error.errno or errno.EIO)))
    made.errno = error.errno
    return made


@contextmanager
def named(path: PathLike, what: str) -> Generator[None]:
    """Return a context whose errors name the file."""
    try:
        yield
    except FileFormatError as error:
        raise FileFormatError(f"{what}: {shown(os.fspath(path))}: {error}") from None
    except FileError:
        raise
    except OSError as error:
        raise file_error(FileError, what, path, "cannot be read", error) from error


def _header(handle: int, size: int) -> tuple[list[Entry], dict[str, str], int]:
    """Return the tensors and metadata of a file's header, and the offset at which the tensors' bytes begin."""
    if size < 8:
        raise wrong(f"it has {size} bytes", cut=True)
    prefix = bytearray(8)
    _fill(handle, 0, memoryview(prefix))
    length = int.from_bytes(prefix, "little")
    if length > LONGEST_HEADER:
        raise wrong(f"its header would have {length} bytes, more than {LONGEST_HEADER}")
    if length > size - 8:
        raise wrong(f"its header has {length} bytes, and {size - 8} are there", cut=True)
    header = bytearray(length)
    _fill(handle, 8, memoryview(header))
    entries, metadata = parsed(bytes(header), size - 8 - length)
    return entries, metadata, 8 + length


def _fill(handle: int, at: int, target: memoryview) -> None:
    """Fill some memory with the bytes of a file from an offset on."""
    os.lseek(handle, at, os.SEEK_SET)
    while target:
        count = _read_into(handle, target[: 1 << 30])  # some systems read at most 2 GB at once
        if count == 0:
            raise wrong("it became shorter while it was read", cut=True)
        target = target[count:]


def _read_into(handle: int, target: memoryview) -> int:
    if hasattr(os, "readv"):
        return os.readv(handle, [target])
    count = os.read(handle, len(target))
    target[: len(count)] = count
    return len(count)


def _array(entry: Entry, data: Bytes) -> np.ndarray[Any, Any]:
    """Return a tensor as a view of a file's bytes, or as a copy if they are not aligned for its dtype or are float8."""
    raw = data[entry.begin : entry.end]
    if entry.dtype == bool_ and raw.size and int(raw.max()) > 1:
        raise wrong(f"{shown(entry.path)} is BOOL, and has other bytes than 0 and 1")
    if entry.dtype in FLOAT8.values():
        return raw.view(entry.dtype).astype(float32).reshape(entry.shape)
    if raw.size == 0:
        return np.empty(entry.shape, entry.dtype)
    if raw.ctypes.data % entry.dtype.alignment:
        raw = raw.copy()
    return raw.view(entry.dtype).reshape(entry.shape)
