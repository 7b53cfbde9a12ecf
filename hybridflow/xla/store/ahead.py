"""Loading an executable before it is known to be needed: in a thread, while the function is traced.

A program that runs again nearly always needs the same executable for the same function and arguments. So the store
keeps a note that names the executable of the last time. A thread loads this executable while the function is traced.
The executable is used only if the traced graph turns out to have its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import marshal
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from hybridflow.backend.jax_shim import enable_x64, load_executable
from hybridflow.xla.store.directory import NOTE, Directory, Unsafe
from hybridflow.xla.store.environment import installation, settings_text
from hybridflow.xla.store.location import place

_WORTH_A_NOTE = 1 << 18
"""Executables with fewer bytes are not loaded ahead: loading them takes hardly any time."""
_MOST = 8
"""The number of loaded executables that may wait for their use; beyond it, the oldest ones are dropped.

An executable is never used if its trace failed or turned out to need another one.
"""


class Head(NamedTuple):
    """The header of a file: facts about the executable in it.

    Attributes:
        calls: whether it calls libraries; jax registers these when the graph is lowered.
        platform, device: the platform and the number of the device that it runs on.
        wide: whether jax kept 64-bit dtypes.
        inputs, outputs: the numbers of arrays that it takes and returns.
    """

    calls: bool
    platform: str
    device: int
    wide: bool
    inputs: int
    outputs: int


def with_head(head: Head, saved: bytes) -> bytes:
    """Return a file's contents."""
    return json.dumps(head).encode() + b"\n" + saved


def without_head(body: bytes) -> tuple[Head, bytes]:
    """Return the content of a file behind its header."""
    head, _, saved = body.partition(b"\n")
    return Head(*json.loads(head)), saved


class _Loading:
    """An executable that a thread is loading."""

    def __init__(self, directory: Directory, key: str) -> None:
        self.found: Any = None
        self.thread = threading.Thread(target=self._load, args=(directory, key), name="hybridflow store")
        self.thread.start()

    def _load(self, directory: Directory, key: str) -> None:
        # An error that is suppressed here comes again when the executable is needed, and is handled there.
        with contextlib.suppress(Exception):
            body = directory.read(key)
            if body is not None:
                head, saved = without_head(body)
                if not head.calls:
                    device = next(one for one in jax.local_devices(backend=head.platform) if one.id == head.device)
                    with enable_x64(head.wide):
                        self.found = load_executable(saved, head.inputs, head.outputs, device)


_LOADING: dict[str, _Loading] = {}


def begin(function: Callable[..., Any], signature: dict[str, str]) -> str | None:
    """Start loading the executable that a function needed last time. Return the name of the note that remembers it.

    Args:
        function: the user's function, which is about to be traced.
        signature: its arguments, as text.
    """
    code = getattr(function, "__code__", None)
    where = place()
    if code is None or where.path is None:
        return None
    parts = [marshal.dumps(code), repr(signature).encode(), installation().encode(), settings_text().encode()]
    note = NOTE + hashlib.sha256(b"\0".join([hashlib.sha256(part).digest() for part in parts])).hexdigest()
    directory = Directory(where.path)
    with contextlib.suppress(Unsafe):  # the code that uses the store warns of it
        note_ = directory.read(note)
        if note_ is not None:
            while len(_LOADING) >= _MOST:
                _LOADING.pop(next(iter(_LOADING)), None)
            key = note_.decode()
            _LOADING[key] = _Loading(directory, key)
    return note


def taken(key: str) -> Any:
    """Return the executable of a key if it is being loaded ahead, after waiting for it; None otherwise."""
    loading = _LOADING.pop(key, None)
    if loading is None:
        return None
    loading.thread.join()
    return loading.found


def remember(directory: Directory, note: str | None, key: str, body: bytes, most: int) -> None:
    """Note which executable a function needed, if it is large.

    Raises:
        OSError: the disk is full, or the directory cannot be written.
        Unsafe: others could have written to the directory.
    """
    if note is not None and len(body) >= _WORTH_A_NOTE and directory.read(note) != key.encode():
        directory.write(note, key.encode(), most)
