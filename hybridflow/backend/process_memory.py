"""The memory that a process takes, and how it is given back."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class ProcessMemory(NamedTuple):
    """The memory of a process, in bytes.

    Attributes:
        resident: its memory now, without what is swapped out.
        peak: the most that was resident since it began.
    """

    resident: int
    peak: int


def process_memory(pid: int | None = None) -> ProcessMemory | None:
    """Return the memory of a process, this one if no other is given; None where the system does not tell it.

    A process that has ended and that its parent has not waited for takes none.
    """
    try:
        text = Path(f"/proc/{'self' if pid is None else pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = {name: rest.split() for name, _, rest in [line.partition(":") for line in text.splitlines()]}
    return ProcessMemory(*[int(fields.get(name, "0")[0]) * 1024 for name in ("VmRSS", "VmHWM")])


def return_free_memory() -> None:
    """Give back to the system the memory that the C library keeps after it was freed.

    Compiling a model, and moving its weights from the host to XLA, leave as much as the weights and moments take
    together, in gaps that nothing larger fits into. Where the library is not glibc, nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def return_file(array: np.ndarray[Any, Any]) -> None:
    """Give back the memory of a file that is mapped into memory, if an array is a view of it.

    What is used again is read again. Where the system cannot do that, nothing happens.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
