"""Errors of NumPy, jax and Python for memory that ran out, as an `OutOfMemoryError`."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np

from hybridflow.backend.free_memory import free_memory
from hybridflow.core.errors import OutOfMemoryError
from hybridflow.core.units import format_bytes


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    return isinstance(error, MemoryError) or (
        isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    )


def explained(what: str, error: BaseException) -> OutOfMemoryError:
    """Return the error for something that ran out of memory, by the error that NumPy, jax or Python raised."""
    asked = re.search(r"allocating (\d+) bytes", str(error))  # XLA's words
    text = str(error).partition("\n")[0] if asked is None else f"{format_bytes(int(asked[1]))} were asked for"
    return not_enough(what, text or "Python ran out of memory", free_memory())


def not_enough(what: str, asked: str, free: int | None) -> OutOfMemoryError:
    """Return the error for something that needs more memory than is there.

    Args:
        what: what needs it.
        asked: how much it needs, as text.
        free: how many bytes are free; None if the system does not tell.
    """
    there = "" if free is None else f", and {format_bytes(free)} are free"
    advice = "MEMORY" if free is None else f'"{format_bytes(free)}"'
    return OutOfMemoryError(
        f"{what}: there is not enough memory", got=asked + there,
        hint=f"hf.advise(step, *arguments, memory={advice}) says what fits: smaller batches, recomputation, "
             "low precision."
    )


def read_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a `jax.Array` as a NumPy array, waiting for it first: NumPy would abort at the result of a failed program.

    Raises:
        OutOfMemoryError: the program that computes it ran out of memory.
    """
    try:
        value.block_until_ready()
    except Exception as error:
        if ran_out(error):
            raise explained("reading a result", error) from error
        raise
    return np.asarray(value)
