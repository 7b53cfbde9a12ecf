"""Saving executables in the store and loading them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hybridflow.backend.jax_shim import load_executable, save_executable, x64_enabled
from hybridflow.core.device import default_device
from hybridflow.ir.graph import Graph
from hybridflow.xla.store.ahead import Head, remember, taken, with_head, without_head
from hybridflow.xla.store.directory import Directory, Unsafe
from hybridflow.xla.store.environment import device_text, installation, settings_text
from hybridflow.xla.store.fingerprint import NotPlain, fingerprint, text_fingerprint
from hybridflow.xla.store.location import place, warn_once

_WORTH_KEEPING = 0.05
"""Compilations of fewer seconds are not stored: they are about as fast as finding and loading a file."""
_CALLBACK = re.compile(r"custom_call @\w*callback\w*")
_ON_SEVERAL = re.compile(r"mhlo\.num_(?:partitions|replicas) = (?!1 )")
_CUSTOM_CALL = re.compile(r"custom_call @(?!Sharding|SPMD|annotate|LayoutConstraint)")
"""Matches custom calls that call a library; the excluded ones are only annotations for XLA."""


class Entry:
    """The entry of one compilation in the store, whether it exists yet or not.

    Args:
        directory: the store's directory.
        most: the number of bytes that the directory may have.
        key: the compilation's key, which is also the name of its file.
        device: the jax device to run on.
        arrays: the numbers of arrays that the executable takes and returns.
        note: the name of the note about the executable that the function needs, as `ahead.begin` returned it.
    """

    def __init__(
        self, directory: Directory, most: int, key: str, device: Any, arrays: tuple[int, int], note: str | None
    ) -> None:
        self.note = note
        self.directory = directory
        self.most = most
        self.key = key
        self.device = device
        self.arrays = arrays

    def load(self, prepare: Callable[[], Any]) -> Any:
        """Return the executable if there is one that works here; None otherwise.

        Args:
            prepare: lowers the graph. If the executable calls libraries, this makes jax register them.
        """
        executable = taken(self.key)
        if executable is None:
            body = _tried(self.directory.path, lambda: self.directory.read(self.key))
            executable = None if body is None else self._loaded(body, prepare)
            if body is not None and executable is not None:
                _tried(self.directory.path, lambda: remember(self.directory, self.note, self.key, body, self.most))
        if executable is not None:
            self.directory.count_hit()
        return executable

    def _loaded(self, body: bytes, prepare: Callable[[], Any]) -> Any:
        head, saved = without_head(body)
        if head.calls:
            prepare()
        try:
            return load_executable(saved, *self.arrays, self.device)
        except Exception as error:  # jax and XLA raise any kind of error for a file that they cannot load
            self.directory.remove(self.key)
            if not _loads_at_all(self.device):
                _REFUSED.add(_device_key(self.device))
                warn_once(
                    f"{self.directory.path}: this jaxlib cannot load on this machine what it compiled here ({error})",
                    "The store is not used. Turn it off with hf.config.cache(False).",
                )
            return None

    def save(self, compiled: Any, text: Callable[[], str], seconds: float) -> str:
        """Save an executable and return the outcome.

        Args:
            compiled: jax's object.
            text: returns the lowered program.
            seconds: the time that it took to compile.
        """
        if seconds < _WORTH_KEEPING:
            return f"not stored: made in less than {_WORTH_KEEPING * 1e3:.0f} ms"
        program = text()
        if _CALLBACK.search(program):
            return "not stored: it calls Python functions"
        if _ON_SEVERAL.search(program):
            return "not stored: it runs on several devices"
        try:
            saved = save_executable(compiled)
        except Exception as error:  # pickling fails in many ways
            return f"not stored: {type(error).__name__}: {error}"
        calls = _CUSTOM_CALL.search(program) is not None
        head = Head(calls, self.device.platform, self.device.id, x64_enabled(), *self.arrays)
        body = with_head(head, saved)
        if len(body) > self.most:
            return "not stored: larger than the store may be"

        def write() -> bool:
            self.directory.write(self.key, body, self.most)
            remember(self.directory, self.note, self.key, body, self.most)
            return True

        return "stored" if _tried(self.directory.path, write) else "not stored: the directory cannot be used"


def entry_for(
    graph: Graph,
    arguments: Sequence[Any],
    *,
    donate: Sequence[int],
    sizes: Mapping[str, int],
    device: Any,
    options: Mapping[str, Any],
    text: Callable[[], str],
    note: str | None,
) -> Entry | str:
    """Return the entry of a compilation in the store, or the reason why it has none.

    Args:
        graph: the graph, after its passes, without calls of Python functions.
        arguments: the shapes and dtypes of what the executable takes, in calling order.
        donate: the positions of the inputs that are given away.
        sizes: the size of each symbol.
        device: the jax device to run on; jax's default one if None.
        options: the XLA options.
        text: returns the lowered program; it is called for a graph without a fingerprint (`NotPlain`).
        note: the name that `ahead.begin` returned, if the graph was traced from a function.
    """
    where = place()
    if where.path is None:
        return f"off: {where.why}"
    if jax.process_count() > 1:
        return "off: several processes run one program"
    chosen = default_device() if device is None else device
    if _device_key(chosen) in _REFUSED:
        return "off: this jaxlib cannot load what it saved"
    try:
        of_graph = fingerprint(graph, sizes)
    except NotPlain:
        of_graph = text_fingerprint(text())
    argument_specs = [(one.shape, one.dtype.name) for one in arguments]
    call = (device is None, x64_enabled(), tuple(donate), argument_specs, sorted(options.items()))
    parts = [installation(), settings_text(), device_text(chosen), repr(call), of_graph.hex()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return Entry(Directory(where.path), where.most, key, chosen, (len(arguments), len(graph.outputs)), note)


# -- what goes wrong ----------------------------------------------------------------------------------------------

_REFUSED: set[str] = set()
"""The devices whose jaxlib turned out not to load what it saved."""


def _device_key(device: Any) -> str:
    return f"{device.platform}:{device.id}"


def _loads_at_all(device: Any) -> bool:
    """Whether a small program, saved and loaded, runs on a device."""
    try:
        given = jax.ShapeDtypeStruct((2,), "float32", sharding=jax.sharding.SingleDeviceSharding(device))
        compiled = jax.jit(lambda x: (x + x,)).lower(given).compile()
        loaded = load_executable(save_executable(compiled), 1, 1, device)
        return loaded(jax.device_put(np.array([1, 2], np.float32), device))[0].tolist() == [2.0, 4.0]
    except Exception:  # whatever the error, loading does not work
        return False


def _tried(path: Path, use: Callable[[], Any]) -> Any:
    """Use the directory and return the result; warn and return None if it cannot be used."""
    try:
        return use()
    except Unsafe as error:
        warn_once(f"{path}: the store of executables is not used", str(error))
    except OSError as error:
        warn_once(  # without file names: these differ every time, so the warning would be repeated
            f"{path}: nothing is stored: {error.strerror or error}",
            "Free space or choose another directory, by HYBRIDFLOW_CACHE_DIR or hf.config.cache(PATH).",
        )
    return None
