"""Where values live: NumPy arrays on the host, `jax.Array` on a device."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.context import context_of, current
from hybridflow.core.errors import DeviceError, message
from hybridflow.core.forked import require_xla


@cache
def default_is_host() -> bool:
    """Whether jax's default device is the CPU, so that values live in NumPy arrays."""
    if cast(Any, jax.config).jax_platforms == "cpu":
        return True  # answered without starting XLA, so that the process can still be forked
    return jax.default_backend() == "cpu"


@cache
def find_device(name: str) -> Any:
    """Return the jax device of a name such as ``cpu``, ``gpu`` or ``gpu:1``.

    Raises:
        DeviceError: if there is no such device.
    """
    platform, _, index = name.partition(":")
    try:
        return jax.devices({"cuda": "gpu"}.get(platform, platform))[int(index or 0)]
    except (RuntimeError, IndexError, ValueError):
        known = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise DeviceError(message(f"device: there is no {name!r}", hint=f"Devices here: cpu, {known}.")) from None


def device_of(value: Any) -> Any:
    """Return the jax device that holds a `jax.Array`."""
    return next(iter(value.devices()))


def device_string(value: Any) -> str:
    """Return the device of a raw value as a string."""
    if value is None:
        device = current().device
        return "cpu" if device is None and default_is_host() else device_name(device or jax.devices()[0])
    return "cpu" if isinstance(value, np.ndarray) else device_name(device_of(value))


def device_label(device: Any) -> str:
    """Return the name that reports use for the jax device the user chose; None means no choice."""
    return "default" if device is None else f"{device.platform}:{device.id}"


def device_name(device: Any) -> str:
    """Return the name of a jax device."""
    return "cpu" if device.platform == "cpu" else f"{device.platform}:{device.id}"


def place(value: Any, device: Any) -> Any:
    """Move a raw value to a device (None: the default one): a NumPy array on the host, a `jax.Array` elsewhere."""
    host = default_is_host() if device is None else device.platform == "cpu"
    if host:
        return value if isinstance(value, np.ndarray) else np.asarray(value)
    require_xla("moving a tensor to a device")

    with enable_x64():
        return jax.device_put(value, device or jax.devices()[0])


@contextmanager
def device(name: str) -> Generator[None, None, None]:
    """Use a device for new tensors and for operations without operands, inside a ``with`` block.

    Args:
        name: ``cpu``, ``gpu``, ``gpu:1`` or ``tpu:0``.

    Raises:
        DeviceError: if there is no such device.

    Example:
        >>> import hybridflow as hf
        >>> with hf.device("cpu"):
        ...     hf.asarray([1.0]).device
        'cpu'
    """
    chosen = find_device(name)
    context = current()
    if chosen is jax.devices()[0]:
        chosen = None  # the default device, named explicitly: calls still share their executables
    with context_of(context.tracer, context.tapes, chosen, context.grad, context.autocast):
        yield
