"""Tensors in terminals and notebooks: a summary at a glance, and the values of small tensors."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from rich.text import Text

from hybridflow.core.device import device_string
from hybridflow.core.mesh import is_elsewhere
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor, host_array
from hybridflow.core.units import format_bytes

SMALL = 60
"""Tensors of at most this many elements show their values beside the summary."""
BINS = 20
"""The number of bars in a histogram."""
_ELSEWHERE = " on the devices of several processes"
_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Summary:
    """Statistics of a tensor's elements.

    Attributes:
        low, high, mean, deviation: statistics of the finite elements, or None if there are none. Complex elements
            count by magnitude, and True counts as 1.
        nans, infinities, zeros: the number of such elements.
        bars: the number of finite elements in each of `BINS` equal parts of the range. Empty if all are equal, if
            there are fewer than `BINS` elements, or if they are bool.
    """

    low: float | None
    high: float | None
    mean: float | None
    deviation: float | None
    nans: int
    infinities: int
    zeros: int
    bars: tuple[int, ...]


def summary_of(array: np.ndarray[Any, Any]) -> Summary:
    """Return a summary of an array of numbers or truth values."""
    with np.errstate(all="ignore"):
        zeros = int(array.size - np.count_nonzero(array))
        numbers = _real(array)
        nans, infinities = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
        if nans or infinities:
            numbers = numbers[np.isfinite(numbers)]
        if not numbers.size:
            return Summary(None, None, None, None, nans, infinities, zeros, ())
        low, high = numbers.min().item(), numbers.max().item()
        mean, deviation = float(numbers.mean(dtype=np.float64)), float(numbers.std(dtype=np.float64))
        # Halve the numbers, since high - low may overflow float64.
        drawn = high > low and array.size >= BINS and array.dtype != bool
        halves = np.histogram(numbers / 2, BINS, (low / 2, high / 2))[0].tolist() if drawn else ()
    return Summary(low, high, mean, deviation, nans, infinities, zeros, tuple(halves))


def _real(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array in a dtype in which NumPy computes statistics."""
    if array.dtype == bool:
        return array.astype(np.uint8)
    if array.dtype.kind == "c":
        return np.abs(array)
    return array if array.dtype.kind in "iuf" else array.astype(np.float32)


def facts_of(array: np.ndarray[Any, Any], summary: Summary) -> list[str]:
    """Return the facts of a summary as short texts."""
    facts = [f"n={array.size:,}", format_bytes(array.nbytes)]
    if array.dtype == bool:
        return [*facts, f"{array.size - summary.zeros:,} True"]
    if summary.low is not None and array.size > 1:
        name = "|x|" if array.dtype.kind == "c" else "x"
        facts += [f"{name}∈[{_short(summary.low)}, {_short(summary.high)}]", f"mean={_short(summary.mean)}"]
        facts.append(f"sd={_short(summary.deviation)}")
    if summary.zeros and array.size > 1:
        facts.append("all zeros" if summary.zeros == array.size else f"zeros {summary.zeros / array.size:.2g}")
    return facts


def warnings_of(summary: Summary) -> list[str]:
    """Return short warnings about NaNs and infinities."""
    counts = ("NaN", summary.nans), ("Inf", summary.infinities)
    return [f"{count:,} {name}!" for name, count in counts if count]


def _short(number: float | None) -> str:
    return f"{number}" if isinstance(number, int) else f"{number:.4g}"


def rich_tensor(kind: str, tensor: Tensor, name: str | None = None) -> Text:
    """Return a tensor as colored text.

    Args:
        kind: ``Tensor`` or ``Variable``.
        tensor: the tensor.
        name: the Variable's name.
    """
    text = Text()
    text.append(_title(kind, tensor.spec, name), style="bold cyan")
    if tensor._value is None:
        return text.append(" traced: it has no values yet", style="dim")
    if is_elsewhere(tensor._value):
        return text.append(_ELSEWHERE, style="dim")
    array = host_array(tensor)
    summary = summary_of(array)
    text.append(f" {' '.join(facts_of(array, summary))}")
    for warning in warnings_of(summary):
        text.append(f" {warning}", style="bold red")
    if summary.bars:
        text.append(f" {blocks(summary.bars)}", style="green")
    text.append(_place(tensor), style="dim")
    if array.size <= SMALL:
        text.append(f"\n{_values(array)}")
    return text


def html_tensor(kind: str, tensor: Tensor, name: str | None = None) -> str:
    """Return a tensor as HTML: see `rich_tensor`."""
    title = f"<b>{escape(_title(kind, tensor.spec, name))}</b>"
    if tensor._value is None:
        return f"<div>{title} traced: it has no values yet</div>"
    if is_elsewhere(tensor._value):
        return f"<div>{title}{_ELSEWHERE}</div>"
    array = host_array(tensor)
    summary = summary_of(array)
    wrong = "".join(f' <b style="color: #a40000">{escape(text)}</b>' for text in warnings_of(summary))
    facts = escape(" ".join(facts_of(array, summary)))
    values = f"<pre>{escape(_values(array))}</pre>" if array.size <= SMALL else ""
    return f"<div>{title} {facts}{wrong} {_bars_svg(summary)}{escape(_place(tensor))}{values}</div>"


def blocks(bars: tuple[int, ...]) -> str:
    """Return a histogram as characters; a bar with at least one element is visible."""
    most = max(bars)
    return "".join(_BLOCKS[0 if not one else max(1, round(one / most * (len(_BLOCKS) - 1)))] for one in bars)


def _bars_svg(summary: Summary) -> str:
    if not summary.bars:
        return ""
    most = max(summary.bars)
    heights = [18 * one / most if not one else max(1.0, 18 * one / most) for one in summary.bars]
    drawn = "".join(
        f'<rect x="{5 * index}" y="{18 - height:.1f}" width="4" height="{height:.1f}"/>'
        for index, height in enumerate(heights)
    )
    size = f'width="{5 * len(heights)}" height="18"'
    label = f'role="img" aria-label="histogram from {_short(summary.low)} to {_short(summary.high)}"'
    return f'<svg {size} {label} fill="#1f5fa8" style="vertical-align: middle">{drawn}</svg>'


def _title(kind: str, spec: TensorSpec, name: str | None) -> str:
    return f"{kind} {name} {spec}" if name else f"{kind} {spec}"


def _place(tensor: Tensor) -> str:
    device = device_string(tensor._value)
    return "" if device == "cpu" else f" on {device}"


def _values(array: np.ndarray[Any, Any]) -> str:
    return np.array2string(array, separator=", ")
