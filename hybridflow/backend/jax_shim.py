"""Every use of jax that differs between versions or is only semi-public."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax

JAX_VERSION: tuple[int, ...] = tuple(int(part) for part in jax.__version__.split(".")[:3] if part.isdigit())


def enable_x64(flag: bool = True) -> AbstractContextManager[Any]:
    """Return a context in which jax keeps (or not) 64-bit dtypes, leaving the process default alone."""
    return jax.enable_x64(flag)
