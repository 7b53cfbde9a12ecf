"""The inspection functions of the Array API standard, which tell a library the namespace's devices and dtypes."""

from __future__ import annotations

from typing import Any

import jax

from hybridflow.core import dtypes
from hybridflow.core.device import device_name, device_string, find_device, is_host
from hybridflow.core.dtypes import DType
from hybridflow.ops.dtype_functions import isdtype

_STANDARD = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "complex64", "complex128",
)


class NamespaceInfo:
    """The Array API standard's inspection functions, as ``hf.__array_namespace_info__()`` returns them.

    Example:
        >>> import hybridflow as hf
        >>> hf.__array_namespace_info__().default_dtypes()["real floating"]
        dtype('float32')
    """

    def capabilities(self) -> dict[str, Any]:
        """Return the namespace's optional capabilities; shapes that depend on data work in eager code only."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return the device on which new tensors are made."""
        return device_string(None)

    def devices(self) -> list[str]:
        """Return the available devices."""
        names = [device_name(device) for device in jax.devices() if not is_host(device)]
        return ["cpu", *names]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """Return the default dtypes, which Python numbers and index results get.

        Args:
            device: a device; the dtypes are the same on all.
        """
        _existing(device)
        return {
            "real floating": dtypes.float32,
            "complex floating": dtypes.complex64,
            "integral": dtypes.int32,
            "indexing": dtypes.int32,
        }

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes by name; float16 and bfloat16 exist besides these.

        Args:
            device: a device; the dtypes are the same on all.
            kind: a kind that `hf.isdtype` accepts, or a tuple of kinds; all if None.
        """
        _existing(device)
        by_name: dict[str, DType] = {"bool": dtypes.bool_, **{name: getattr(dtypes, name) for name in _STANDARD}}
        return by_name if kind is None else {name: dtype for name, dtype in by_name.items() if isdtype(dtype, kind)}


def _existing(device: str | None) -> None:
    if device is not None:
        find_device(device)


def array_namespace_info() -> NamespaceInfo:
    """Return the Array API standard's inspection functions, as ``hf.__array_namespace_info__()``."""
    return NamespaceInfo()


__all__ = ["NamespaceInfo", "array_namespace_info"]
