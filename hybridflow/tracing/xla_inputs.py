"""The arrays that compiled calls hand to XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.errors import LeakError
from hybridflow.core.observer import OBSERVED
from hybridflow.core.tensor import Tensor, leak_text
from hybridflow.core.variable import WRITES, Variable

WORTH_KEEPING = 1 << 16
"""Bytes from which a value on the host keeps its XLA form: copying it again at every call would cost more."""


def raw_value(tensor: Tensor) -> Any:
    """Return the array to hand to XLA: jax's own, where the tensor has one.

    Raises:
        LeakError: a traced tensor that outlived its trace.
    """
    value = tensor._value
    if type(value) is not np.ndarray:
        if value is None:
            raise LeakError(leak_text(tensor))
        return value
    if tensor._alt is None and value.nbytes >= WORTH_KEEPING:
        with enable_x64():
            tensor._alt = jax.device_put(value)
    return value if tensor._alt is None else tensor._alt


def move_to_xla(variables: Sequence[Variable], values: list[Any], but: Sequence[int] = ()) -> None:
    """Have large values of Variables where XLA reads them, from now on: it would copy them at every call.

    Args:
        variables: the Variables.
        values: what they are, which is changed here.
        but: positions of those that stay as they are.
    """
    if np.ndarray not in {*map(type, values)} or OBSERVED.count:
        return
    for index, value in enumerate(values):
        if type(value) is np.ndarray and value.nbytes >= WORTH_KEEPING and index not in but:
            with enable_x64():
                values[index] = jax.device_put(value.copy())  # others may hold the array, and XLA be given this one
            with WRITES:
                if variables[index]._value is value:
                    variables[index]._value = values[index]
