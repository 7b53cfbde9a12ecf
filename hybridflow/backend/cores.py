"""The number of cores that the process may use, by its affinity, its container's quota, and the user's settings."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def usable_cores(*names: str) -> int:
    """Return the number of cores that the process may use; an environment variable can lower it.

    Args:
        names: environment variables such as ``OMP_NUM_THREADS``; the first one that is set counts.
    """
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = quota_of_group()
    if quota is not None:
        cores = min(cores, max(1, math.ceil(quota)))
    for name in names:
        asked = os.environ.get(name, "").partition(",")[0].strip()
        if asked.isdecimal() and int(asked):
            return min(int(asked), cores)
    return cores


def quota_of_group(root: str = "/") -> float | None:
    """Return the CPU quota of the process's control group in cores: the smallest limit up to the root group.

    Containers are limited in this way: the affinity shows all cores of the host, but a process that uses more than its
    quota is stopped until the next period begins.

    Args:
        root: the root of the file system; tests use their own.

    Returns:
        The cores, such as 1.5; None if there is no limit, or no such group.

    Reference:
        Linux's documentation: "Control Group v2", section "CPU Interface Files", and "CFS Bandwidth Control" for v1.
    """
    return min(_limits(Path(root)), default=None)


def _limits(root: Path) -> Iterator[float]:
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # another system than Linux
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, read = root / "sys/fs/cgroup", _limit_v2
        elif "cpu" in controllers.split(","):
            top, read = root / "sys/fs/cgroup/cpu", _limit_v1
        else:
            continue
        # Inside a container the path may be that of the host, which does not exist here: then only the top does.
        group = top / path.lstrip("/")
        for directory in {top, group, *[one for one in group.parents if one.is_relative_to(top)]}:
            limit = read(directory)
            if limit is not None:
                yield limit


def _limit_v2(directory: Path) -> float | None:
    text = _text(directory / "cpu.max").split()
    return int(text[0]) / int(text[1]) if len(text) == 2 and text[0] != "max" else None


def _limit_v1(directory: Path) -> float | None:
    quota, period = _text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
