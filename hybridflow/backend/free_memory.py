"""How much memory can still be taken: of the machine, and within the limits of the process and its control groups."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")


def free_memory(enough: int = sys.maxsize) -> int | None:
    """Return the number of bytes that can still be taken; None if the system does not tell.

    Args:
        enough: a smaller number is exact. A larger one may be too small, but not smaller than this: that is quicker.
    """
    if sys.platform != "linux":
        return None
    return min([_of_machine(enough), *_of_limits(), *[group.free(enough) for group in _groups()]])


def _of_machine(enough: int) -> int:
    """Return the free memory of the machine, with what the system can free for new arrays."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free >= enough:
        return free
    rows = [line.split() for line in (_PROC / "meminfo").read_text(encoding="utf-8").splitlines()]
    return sum([int(row[1]) << 10 for row in rows if row[0] in ("MemAvailable:", "SwapFree:")])


def _of_limits() -> Iterator[int]:
    """Yield what the process's own limits leave (``ulimit -v``, ``ulimit -d``)."""
    import resource  # Windows has none

    for limit, column in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            pages = int((_PROC / "self/statm").read_text(encoding="utf-8").split()[column])
            yield max(most - pages * os.sysconf("SC_PAGE_SIZE"), 0)


class _Group(NamedTuple):
    """A control group that limits memory, as containers have one.

    Attributes:
        most: the limit in bytes.
        used: the file with the bytes in use, cached files included.
        details: the file that tells how much of that is cached files.
    """

    most: int
    used: Path
    details: Path

    def free(self, enough: int) -> int:
        """Return the number of bytes that the group can still take."""
        free = self.most - int(self.used.read_text(encoding="utf-8"))
        if free >= enough:
            return free
        rows = [line.split() for line in self.details.read_text(encoding="utf-8").splitlines()]
        cached = [int(row[1]) for row in rows if row[0] in ("inactive_file", "total_inactive_file")]
        return free + max(cached, default=0)


@cache
def _groups() -> tuple[_Group, ...]:
    """Return the control groups of the process that limit memory."""
    found: list[_Group] = []
    try:
        lines = (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    for _, controllers, path in [line.split(":", 2) for line in lines]:
        if controllers == "":
            root, names = _GROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inside = root / path.lstrip("/")
        for folder in [root, *[one for one in (inside, *inside.parents) if root in one.parents]]:
            try:
                most = int((folder / names[0]).read_text(encoding="utf-8"))
                group = _Group(most, folder / names[1], folder / "memory.stat")
                group.free(sys.maxsize)
            except (OSError, ValueError):  # no such file, or "max"
                continue
            if most < 1 << 62:  # version 1 writes a huge number for none
                found.append(group)
    return tuple(found)
