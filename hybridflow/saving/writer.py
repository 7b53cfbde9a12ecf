"""Writing safetensors files: the same values make the same bytes, and a file is written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hybridflow.backend.files import is_device, whole_file
from hybridflow.core.dtypes import complex128
from hybridflow.core.errors import ArgumentError, DTypeError, FileError, FileThereError
from hybridflow.saving.format import METADATA, NAMES, header_of, planned, shown
from hybridflow.saving.reader import PathLike, file_error

_COPIED = 16 << 20
"""About how many bytes of an array that is not in C order are copied at once."""


def check(arrays: Mapping[str, Any], what: str) -> None:
    """Raise if the format cannot hold some arrays, named by path.

    Raises:
        DTypeError: the format does not have one of their dtypes.
        ArgumentError: one of their names cannot be a name in a file.
    """
    for path in arrays:
        if path == METADATA or not is_text(path):
            raise ArgumentError(f"{what}: {shown(path)} cannot be a name in a safetensors file",
                                hint="Choose another one.")
    wrong = {path: one.dtype for path, one in arrays.items() if one.dtype not in NAMES}
    if wrong:
        path, dtype = next(iter(wrong.items()))
        others = f", as are {len(wrong) - 1} others" if len(wrong) > 1 else ""
        hint = "Save its parts, hf.real(x) and hf.imag(x), under two names." if dtype == complex128 else None
        raise DTypeError(f"{what}: {shown(path)} is {dtype}{others}, which safetensors files cannot hold", hint=hint)


def write(
    path: PathLike,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    metadata: Mapping[str, str],
    *,
    what: str,
    replace: bool,
) -> None:
    """Write a safetensors file, which is on the disk when this returns.

    Args:
        path: the file.
        arrays: arrays of the format's dtypes, in any order and with any strides; see `check`.
        metadata: texts by name.
        what: the caller, for messages.
        replace: whether to replace an existing file.

    Raises:
        FileThereError: the file exists and may not be replaced.
        FileError: the system reports another error. An existing file is unchanged.
    """
    entries = planned({name: (one.dtype, one.shape) for name, one in arrays.items()})
    try:
        with whole_file(path, replace=replace, durable=True) as file:
            file.write(header_of(entries, metadata))
            for one in entries:
                for part in _parts(arrays[one.path]):
                    file.write(part)
    except FileExistsError:
        raise there(what, path) from None
    except OSError as error:
        raise file_error(FileError, what, path, "cannot be written", error) from error


def there(what: str, path: PathLike) -> FileError:
    """Return the error for a file that already exists, or for what no file replaces."""
    said, hint = "is there already", "overwrite=True replaces it."
    if is_device(Path(path)):
        said, hint = "is a device, a pipe or a socket", "Give the name of a file."
    made = FileThereError(f"{what}: {os.fspath(path)!r} {said}", hint=hint)
    made.errno = errno.EEXIST
    return made


def digest_of(arrays: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str]) -> str:
    """Return the sha256, in hexadecimal, of the file that `write` would write."""
    entries = planned({name: (one.dtype, one.shape) for name, one in arrays.items()})
    digest = hashlib.sha256(header_of(entries, metadata))
    for one in entries:
        for part in _parts(arrays[one.path]):
            digest.update(part)
    return digest.hexdigest()


def _parts(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Yield an array's bytes in C order, without a copy if they are in this order, else copied piece by piece."""
    if array.size == 0:
        return
    if array.flags.c_contiguous:
        yield _bytes(array)
        return
    rows = max(1, _COPIED * len(array) // array.nbytes)
    for first in range(0, len(array), rows):
        yield _bytes(np.ascontiguousarray(array[first : first + rows]))


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def is_text(text: str) -> bool:
    """Whether a file can hold a string; it cannot if the string has half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
