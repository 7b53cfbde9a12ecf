"""The memory that a process takes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


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
        text = Path(f"/proc/{'self' if pid is None else pid}/status").read_text()
    except OSError:
        return None
    fields = {name: rest.split() for name, _, rest in [line.partition(":") for line in text.splitlines()]}
    return ProcessMemory(*[int(fields.get(name, "0")[0]) * 1024 for name in ("VmRSS", "VmHWM")])
