"""Scales: how weights and ranges of inputs are stored in a format."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hybridflow.core.errors import ArgumentError
from hybridflow.ops.packing import packed
from hybridflow.ops.quantization import FORMATS, quantize_on_host
from hybridflow.ops.quantized_products import require_group

Array = np.ndarray[Any, Any]

WEIGHTS = tuple([name for name in FORMATS if name != "uint8"])
"""The formats of weights."""
_CLIPPED = np.linspace(0.6, 1.0, 21)
"""The fractions of the largest weight that are tried as the end of int4's range."""


class Stored(NamedTuple):
    """Weights in a format.

    Attributes:
        weight: ``(out, in)``, or ``(out, (in + 1) // 2)`` for int4.
        scale: ``(out,)`` or ``(out, groups)``.
    """

    weight: Array
    scale: Array


def require_format(what: str, dtype: str, group: Any) -> None:
    """Raise unless a format is one of weights, and a group is a number of weights.

    Raises:
        ArgumentError: the format or the group is not.
    """
    if dtype not in WEIGHTS:
        raise ArgumentError(f"{what}: dtype={dtype!r} is no format of weights",
                            hint=f"Use one of {', '.join(WEIGHTS)}.")
    require_group(what, group)
    if group is not None and FORMATS[dtype].float8 is not None:
        raise ArgumentError(f"{what}: {dtype} takes no groups", got=f"group={group}", hint="Leave it out.")


def stored_weights(weight: Any, dtype: str = "int8", *, group: int | None = None, bits: int = 8) -> Stored:
    """Store a matrix of weights with a scale for each row or group; the range is symmetric.

    Args:
        weight: ``(out, in)``.
        dtype: the format.
        group: how many neighbours have a scale in common.
        bits: how many bits of int8 are used: 7 keeps sums of two products in 16 bits.

    Returns:
        For int4, the scale of each group is the one of several with the smallest sum of squared errors.
    """
    matrix = np.asarray(weight, np.float32)
    rows, size = matrix.shape
    width = size if group is None else group
    count = -(-size // width) if size else 1
    padded = np.zeros((rows, count * width), np.float32)
    padded[:, :size] = matrix
    parts = padded.reshape(rows, count, width)
    format = FORMATS[dtype]
    largest = format.high if format.float8 is not None else float(2 ** ((4 if dtype == "int4" else bits) - 1) - 1)
    scale = np.max(np.abs(parts), -1, keepdims=True, initial=0) / np.float32(largest)
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    if dtype == "int4":
        scale = _best(parts, scale)
    q = quantize_on_host(parts, scale, dtype=dtype).reshape(rows, -1)[:, :size]
    scale = scale[..., 0] if group is not None else scale[:, 0, 0]
    return Stored(packed(q) if dtype == "int4" else q, np.ascontiguousarray(scale))


def _best(parts: Array, scale: Array) -> Array:
    """Return the scales with the smallest errors, among some that clip more or less."""
    best, least = scale, np.full(scale.shape, np.inf, np.float32)
    for part in _CLIPPED[::-1]:
        tried = scale * np.float32(part)
        error = np.sum((quantize_on_host(parts, tried, dtype="int4") * tried - parts) ** 2, -1, keepdims=True)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best


def input_scale(low: float, high: float) -> tuple[Array, Array]:
    """Return scale and zero point with which int8 covers a range and stores 0 exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.asarray((high - low) / 255 if high > low else 1.0, np.float32)
    zero = np.asarray(np.clip(np.rint(-128 - low / float(scale)), -128, 127), np.int8)
    return scale, zero
