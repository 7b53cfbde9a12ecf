"""Where the store is and how large it may be, or why there is none."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

from hybridflow.core.errors import CacheWarning, message
from hybridflow.core.settings import SETTINGS
from hybridflow.core.units import BYTE_UNITS, format_bytes, parse_bytes
from hybridflow.xla.store.directory import supported
from hybridflow.xla.store.environment import source_hash

DIRECTORY = "HYBRIDFLOW_CACHE_DIR"
"""The environment variable for the store's directory; ``off`` means that there is no store."""
BYTES = "HYBRIDFLOW_CACHE_BYTES"
"""The environment variable for the largest size of the store."""
DEFAULT_BYTES = 2 << 30
_OFF = frozenset({"off", "0", "no", "false", "none"})


class Place(NamedTuple):
    """The location of the store (None if there is none, with the reason) and its largest size in bytes."""

    path: Path | None
    most: int
    why: str = ""


def place() -> Place:
    """Return the store's location: by `hf.config.cache`, else the environment, else the platform's convention."""
    chosen = SETTINGS.cache_dir
    if chosen is False:
        return Place(None, 0, "hf.config.cache(False)")
    if not supported():
        return Place(None, 0, "this system does not tell who may write to a directory")
    if source_hash() is None:
        return Place(None, 0, "by their files' times, hybridflow or jaxlib was changed after this process loaded it")
    if chosen is not True:
        return Place(chosen, _most())
    named = os.environ.get(DIRECTORY)
    if named is not None and named.strip().lower() in _OFF:
        return Place(None, 0, f"{DIRECTORY}={named}")
    try:
        return Place(Path(named).expanduser().absolute() if named else _conventional(), _most())
    except RuntimeError:
        return Place(None, 0, "this user has no home directory")
    except FileNotFoundError:
        return Place(None, 0, f"{DIRECTORY}={named} is in the current directory, which was removed")


def _conventional() -> Path:
    """Return the platform's conventional directory for caches.

    Raises:
        RuntimeError: there is no home directory.
    """
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hybridflow"
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "hybridflow"


def _most() -> int:
    if SETTINGS.cache_bytes is not None:
        return SETTINGS.cache_bytes
    named = os.environ.get(BYTES, "")
    if not named:
        return DEFAULT_BYTES
    size = parse_bytes(named)
    if size is None:
        warn_once(
            f"{BYTES}={named} is no number of bytes: the store of executables may have {format_bytes(DEFAULT_BYTES)}",
            f"Write digits, with a unit if you like ({BYTE_UNITS}), or unset it.",
        )
        return DEFAULT_BYTES
    return size


_WARNED: set[str] = set()


def warn_once(what: str, hint: str) -> None:
    """Warn of something about the store, the first time in this process."""
    text = message(what, hint=hint)
    if text not in _WARNED:
        _WARNED.add(text)
        warnings.warn(CacheWarning(text), stacklevel=2)
