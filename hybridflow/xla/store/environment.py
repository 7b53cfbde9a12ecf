"""Everything besides the graph that determines a compilation: this package's code, jax, the machine, and settings."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any, cast

import jax
import jaxlib
import numpy as np

from hybridflow.backend.jax_shim import jax_settings
from hybridflow.core.settings import LOADED, SETTINGS

_PACKAGE = Path(__file__).resolve().parent.parent.parent

_NO_MATTER = ("cache", "eager", "full_tracebacks", "observers", "plain", "_can_run")
"""Prefixes of hybridflow's settings that do not affect compiled programs."""


@cache
def source_hash() -> str | None:
    """Return a hash of this package's source files, since another version may lower graphs differently.

    Returns None if a file was changed after this process had loaded the package, or if one cannot be read. The hash
    would then not be that of the code that runs.
    """
    digest = hashlib.sha256()
    paths = sorted(_PACKAGE.rglob("*.py"))
    try:
        for path in paths:
            digest.update(f"{path.relative_to(_PACKAGE)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        changed = max([path.stat().st_ctime for path in [*paths, *_libraries()]])
    except (OSError, ValueError):
        return None
    return digest.hexdigest() if paths and changed <= LOADED else None


def _libraries() -> list[Path]:
    return sorted(Path(jaxlib.__file__).parent.glob("*.so"))


def _build() -> list[str]:
    """Return the facts that distinguish builds of one version of jaxlib."""
    return [f"{path.name} {path.stat().st_size}" for path in _libraries()]


@cache
def processor() -> str:
    """Return the processor's model and features, since code compiled for another one may not run."""
    lines: list[str] = [platform.machine(), platform.processor(), sys.byteorder]
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        text = ""
    fields = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    lines += [line for line in text.splitlines() if line.partition(":")[0].strip() in fields]
    return "\n".join(lines)


@cache
def installation() -> str:
    """Return a hash of the versions of all software that takes part in a compilation, and of the processor."""
    packages = [f"jax {jax.__version__}", f"jaxlib {cast(Any, jaxlib).__version__}", *_build()]
    parts = [sys.version, sys.platform, np.__version__, *packages, str(source_hash()), processor()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def device_text(device: Any) -> str:
    """Return the kind of a device and the version of its runtime."""
    client = device.client
    return f"{device.platform} {device.id} {device.device_kind} {client.platform_version} of {len(client.devices())}"


def settings_text() -> str:
    """Return the present settings of hybridflow, jax and XLA that a compilation may depend on."""
    ours = [f"{name}={getattr(SETTINGS, name)}" for name in SETTINGS.__slots__ if not name.startswith(_NO_MATTER)]
    flags = [f"{name}={os.environ.get(name)}" for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS")]
    return "\n".join([*ours, *flags, *jax_settings(), f"{_cores()} cores"])


def _cores() -> int:
    """Return the number of cores this process may use, among which XLA splits work."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
