"""What other programs take of the machine while something is timed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""The columns of /proc/stat that count idle time: nothing ran, and nothing ran while a disk was waited for."""
_GUEST = 8
"""From here on times are counted a second time."""
_SHORTEST_S = 0.2
"""What the system counts has steps of 10 ms per core, so shorter times say little."""


class Usage(NamedTuple):
    """What was used of the cores that this process may run on, up to a moment, in seconds.

    Attributes:
        clock: by the wall clock.
        own: processor time of this process, all its threads together.
        cores: processor time of everything that ran on the cores, and what a hypervisor gave to others; None where the
            system does not tell.
    """

    clock: float
    own: float
    cores: float | None

    def others_since(self, before: Usage) -> float | None:
        """Return how many cores other programs took since an earlier moment, on average.

        Args:
            before: what was used up to then.

        Returns:
            Their number, 0 or more; None where the system does not tell, or the time is too short for what it counts.
        """
        clock = self.clock - before.clock
        if self.cores is None or before.cores is None or clock < _SHORTEST_S:
            return None
        return max(self.cores - before.cores - (self.own - before.own), 0.0) / clock


def usage() -> Usage:
    """Return what has been used up to now."""
    return Usage(time.perf_counter(), time.process_time(), _busy_seconds(_STAT, own_cores()))


def own_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def _busy_seconds(stat: Path, cores: frozenset[int]) -> float | None:
    """Return how long cores have computed, by Linux's ``/proc/stat``; None where there is none.

    Reference:
        Linux's documentation: "The /proc Filesystem", section 1.7.
    """
    try:
        lines = stat.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    ticks = 0
    for line in lines:
        name, *times = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores:
            counted = [int(ticks) for number, ticks in enumerate(times[:_GUEST]) if number not in _IDLE]
            ticks += sum(counted)
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None
