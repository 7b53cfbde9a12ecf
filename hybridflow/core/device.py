"""Where values live: NumPy arrays on the host, `jax.Array` on a device."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from functools import cache
from typing import Any, TypeAlias, cast

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.context import context_of, current
from hybridflow.core.errors import DeviceError
from hybridflow.core.forked import require_xla

_PLATFORMS = {"cuda": "gpu"}
"""The names of platforms that are spelled otherwise here."""
_INSTALLED_BY = {"gpu": "pip install 'jax[cuda13]' (for NVIDIA's)", "tpu": "pip install 'jax[tpu]'"}
"""What installs jax's part for a platform."""


@cache
def default_is_host() -> bool:
    """Whether jax's default device is the CPU, so that values live in NumPy arrays."""
    if cast(Any, jax.config).jax_platforms == "cpu":
        return True  # answered without starting XLA, so that the process can still be forked
    return is_host(default_device())


def is_host(device: Any) -> bool:
    """Whether values on a jax device are NumPy arrays on the host."""
    return device.platform == "cpu"


def holds_arrays(device: Any) -> bool:
    """Whether values on a jax device (None: the default one) are NumPy arrays on the host."""
    return default_is_host() if device is None else is_host(device)


def makes_on_host() -> bool:
    """Whether operations without operands make NumPy arrays here: as `hf.device` says, or the default device."""
    return holds_arrays(current().device)


def default_device() -> Any:
    """Return the jax device of new values, where the code names none."""
    chosen = cast(Any, jax.config).jax_default_device
    if chosen is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=chosen)[0] if isinstance(chosen, str) else chosen


def find_device(name: str | device) -> Any:
    """Return the jax device of a name such as ``cpu``, ``gpu`` or ``gpu:1``.

    Raises:
        DeviceError: if there is no such device.
    """
    return _found(name.name if isinstance(name, device) else name)


@cache
def _found(name: str) -> Any:
    platform, _, index = name.partition(":")
    try:
        return jax.local_devices(backend=_PLATFORMS.get(platform, platform))[int(index or 0)]
    except (RuntimeError, IndexError, ValueError):
        known = ", ".join(dict.fromkeys(["cpu", *[f"{d.platform}:{d.id}" for d in jax.local_devices()]]))
        hint = f"Devices here: {known}.{_way_to(platform)}"
        raise DeviceError(f"device: there is no {name!r}", hint=hint) from None


def _way_to(platform: str) -> str:
    """Return the sentence that says how to get a device of a platform that jax has not found."""
    ours = _PLATFORMS.get(platform, platform)
    if ours not in _INSTALLED_BY or any(one.platform == ours for one in jax.devices()):
        return ""
    name = "" if platform == ours else f" Write {ours!r} for {platform!r}."
    return f"{name} jax finds no {ours}; it may need {_INSTALLED_BY[ours]}."


def device_of(value: Any) -> Any:
    """Return the jax device that holds a `jax.Array`."""
    return next(iter(value.devices()))


def device_like(tensor: Any) -> device | None:
    """Return the device of a tensor for what is made beside it; None if new values are there anyway."""
    value = tensor._value
    if current().tracer is not None or value is None:
        return None
    if isinstance(value, np.ndarray):
        return None if makes_on_host() else device("cpu")
    if len(value.devices()) > 1:
        return None
    return device(device_string(value))


def device_string(value: Any) -> str:
    """Return the device of a raw value as a string."""
    if value is None:
        device = current().device
        return "cpu" if device is None and default_is_host() else device_name(device or default_device())
    return "cpu" if isinstance(value, np.ndarray) else device_name(device_of(value))


def device_label(device: Any) -> str:
    """Return the name that reports use for the jax device the user chose; None means no choice."""
    return "default" if device is None else f"{device.platform}:{device.id}"


def device_name(device: Any) -> str:
    """Return the name of a jax device."""
    return "cpu" if is_host(device) else f"{device.platform}:{device.id}"


def place(value: Any, device: Any) -> Any:
    """Move a raw value to a device (None: the default one): a NumPy array on the host, a `jax.Array` elsewhere."""
    if holds_arrays(device):
        return value if isinstance(value, np.ndarray) else np.asarray(value)
    require_xla("moving a tensor to a device")

    with enable_x64():
        return jax.device_put(value, device or default_device())


def require_on(device: Any, values: Iterable[Any]) -> None:
    """Raise if a value lies on another device than the program that takes it.

    Raises:
        DeviceError: the text names both devices.
    """
    for value in values:
        if isinstance(value, jax.Array) and len(value.devices()) == 1 and device_of(value) != device:
            here, there = device_name(device), device_name(device_of(value))
            raise DeviceError(f"a compiled call in the block of hf.device({here!r}) takes a value on {there}",
                              got=f"{value.dtype}{[*value.shape]}",
                              hint=f"Move it with .to({here!r}), or make the call outside of the block.")


class device(ContextDecorator):  # noqa: N801 (used like a function)
    """Use a device for new tensors and for operations without operands, inside a ``with`` block.

    What takes ``device=`` takes it too, and ``x.to``: ``hf.zeros(3, device=hf.device("cpu"))``.

    Args:
        name: ``cpu``, ``gpu``, ``gpu:1`` or ``tpu:0``.

    Raises:
        DeviceError: at the start of the block, if there is no such device.

    Example:
        >>> import hybridflow as hf
        >>> with hf.device("cpu"):
        ...     hf.asarray([1.0]).device
        'cpu'
    """

    def __init__(self, name: str | device) -> None:
        self.name: str = name.name if isinstance(name, device) else name
        self._entered: list[Any] = []

    def __enter__(self) -> None:
        chosen = find_device(self.name)
        context = current()
        if chosen is default_device():
            chosen = None  # the default device, named explicitly: calls still share their executables
        block = context_of(context.tracer, context.tapes, chosen, context.grad, context.autocast)
        block.__enter__()
        self._entered.append(block)

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)

    def __repr__(self) -> str:
        return f"device({self.name!r})"

    def __str__(self) -> str:
        return self.name


DeviceLike: TypeAlias = str | device | None
"""A device as functions take it: its name, or what `hf.device` returns; None is that of the context."""


def placed(where: DeviceLike) -> AbstractContextManager[None]:
    """Return the block of a function with ``device=``: that of the device, or one without effect for None."""
    return nullcontext() if where is None else device(where)
