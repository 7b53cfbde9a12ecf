"""The `onnx` package, which is an extra, and its names of dtypes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hybridflow.core.dtypes import DType
from hybridflow.core.errors import MissingPackageError, message

OPSET = 23
"""The version of ONNX's operators that graphs are written in: the newest that the common runtimes take."""
OPSETS = (21, 22, OPSET)
"""The versions that graphs can be written in."""

_FLOATS = {"float32": "float", "float64": "double"}


def onnx_module(name: str = "") -> Any:
    """Return the package or, given a name, a module of it.

    Raises:
        MissingPackageError: without the package.
    """
    try:
        return import_module(f"onnx.{name}" if name else "onnx")
    except ImportError:
        raise MissingPackageError(
            message("to_onnx: needs onnx, which is not installed", hint="Run pip install 'hybridflow[onnx]'.")
        ) from None


def type_text(dtype: DType) -> str:
    """Return what ONNX's schemas call tensors of a dtype."""
    return f"tensor({_FLOATS.get(dtype.name, dtype.name)})"


def element_type(dtype: DType) -> int:
    """Return ONNX's number of a dtype."""
    return onnx_module("helper").np_dtype_to_tensor_dtype(dtype)
