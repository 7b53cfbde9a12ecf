"""The arrays that compiled calls pass to XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridflow.backend.host import ALIGNED
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.process_memory import return_file
from hybridflow.core.context import context_now
from hybridflow.core.tensor import Tensor, leaked
from hybridflow.core.variable import WRITES, Variable
from hybridflow.core.variable_log import OPEN_LOGS

WORTH_KEEPING = 1 << 16
"""A value on the host with at least this many bytes keeps its copy for XLA; copying it at every call would be slow."""


def raw_value(tensor: Tensor) -> Any:
    """Return the array to pass to XLA: a jax array if the tensor has one.

    Raises:
        LeakError: the tensor is traced and outlived its trace.
    """
    value = tensor._value
    if type(value) is not np.ndarray:
        if value is None:
            raise leaked(tensor)
        return value
    if tensor._alt is None and value.nbytes < WORTH_KEEPING:
        return value
    context = context_now()
    if context is not None and context.device is not None:
        return value  # the copy is for the default device
    if tensor._alt is None:
        with enable_x64():
            tensor._alt = jax.device_put(value)
    return tensor._alt


def value_for_mesh(tensor: Tensor) -> Any:
    """Return the array to pass to a program on a mesh: one on the host goes from there to each device, in parts."""
    value = tensor._value
    return value if type(value) is np.ndarray and tensor._alt is None else raw_value(tensor)


def move_to_xla(variables: Sequence[Variable], values: list[Any]) -> None:
    """Move large values of Variables to XLA for good: otherwise XLA would copy them at every call.

    Each is freed on the host before the next is moved, so that not all are in memory twice.

    Args:
        variables: the Variables.
        values: their values; changed in place.
    """
    if np.ndarray not in {*map(type, values)} or OPEN_LOGS.count:
        return
    for index, value in enumerate(values):
        if type(value) is np.ndarray and value.nbytes >= WORTH_KEEPING:
            with enable_x64():  # XLA would take an aligned array as its own, and others may hold it
                values[index] = jax.device_put(value if value.ctypes.data % ALIGNED else value.copy())
            with WRITES:
                if variables[index]._value is value:
                    variables[index]._value = values[index]
            return_file(value)
