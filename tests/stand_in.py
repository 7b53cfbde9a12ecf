"""A second CPU device in the part of an accelerator, so that what concerns accelerators is tested without one.

Values on it are `jax.Array` as they are on a GPU, new values are made there, and its name is ``cpu:1``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import jax


def use() -> None:
    """Let the second CPU device be the accelerator of this process. XLA must not have started."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    jax.config.update("jax_default_device", jax.devices()[1])
    from hybridflow.core import device  # imported when its place of values is about to be settled

    before = device.is_host

    def is_host(one: Any) -> bool:
        return before(one) and one.id == 0

    for module in [one for name, one in sys.modules.items() if name.startswith("hybridflow.")]:
        if getattr(module, "is_host", None) is before:
            vars(module)["is_host"] = is_host
    device.default_is_host.cache_clear()
