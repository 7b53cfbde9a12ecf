"""The optional `onnx` package, and its names of dtypes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hybridflow.core.dtypes import DType
from hybridflow.core.errors import MissingPackageError

OPSET = 23
"""The default version of ONNX's operators: the newest that the common runtimes support."""
OPSETS = (21, 22, OPSET)
"""The supported versions of ONNX's operators."""

_FLOATS = {"float32": "float", "float64": "double"}


def onnx_module(name: str = "") -> Any:
    """Return the package, or its module of the given name.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        return import_module(f"onnx.{name}" if name else "onnx")
    except ImportError:
        raise MissingPackageError("to_onnx: needs onnx, which is not installed",
                                  hint="Run pip install 'hybridflow[onnx]'.") from None


def type_text(dtype: DType) -> str:
    """Return the name of tensors of a dtype in ONNX's schemas."""
    return f"tensor({_FLOATS.get(dtype.name, dtype.name)})"


def element_type(dtype: DType) -> int:
    """Return ONNX's number for a dtype."""
    return onnx_module("helper").np_dtype_to_tensor_dtype(dtype)
