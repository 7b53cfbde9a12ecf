"""The ranges of layers' inputs, found by running a model on batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hybridflow.autodiff.requires_grad import no_grad
from hybridflow.compress.replacing import watched
from hybridflow.core.errors import ArgumentError
from hybridflow.core.tensor import as_tensor
from hybridflow.ops.common import one_of

METHODS = ("minmax", "percentile", "entropy")
_BINS = 4096
_FEWEST = 128
"""The fewest bins of a range that `entropy` tries."""
_LEVELS = 256
"""How many numbers int8 has."""
_FRACTIONS = np.linspace(0.02, 1.0, 99)
"""The fractions of the whole range that `entropy` tries."""

Range = tuple[float, float]
Array = np.ndarray[Any, Any]


Inputs = Callable[[Callable[[Any, Any], None]], None]
"""A function that runs a model and calls its argument with a key and an input of each layer."""


def ranges_of(
    what: str, model: Any, paths: Iterable[str], batches: Sequence[tuple[Any, ...]], *, method: str = "minmax",
    percentile: float = 99.99,
) -> dict[str, Range]:
    """Return the range of the inputs of each layer, over all batches.

    Args:
        what: the name of the caller, for messages.
        model: the model; a copy runs in evaluation mode.
        paths: the layers.
        batches: arguments of the model.
        method, percentile: see `hf.quantize.static`.

    Raises:
        ArgumentError: an unknown method, or a layer that the model does not call.
    """
    paths = [*paths]

    def run(tell: Callable[[Any, Any], None]) -> None:
        watched_model = watched(model, paths, lambda path: lambda x, y: tell(path, as_tensor(x).numpy()))
        with no_grad():
            for one in batches:
                watched_model(*one)

    ranges = ranges_from(what, run, method, percentile)
    for path in paths:
        if path not in ranges:
            raise ArgumentError(f"{what}: the batches do not reach {path!r}", got=f"{len(batches)} batches",
                                hint="Leave the layer out with skip=.")
    return ranges


def ranges_from(what: str, run: Inputs, method: str, percentile: float = 99.99) -> dict[Any, Range]:
    """Return the range of all inputs with the same key.

    Args:
        what: the name of the caller, for messages.
        run: passes each input to its argument, once per call.
        method, percentile: see `hf.quantize.static`.

    Raises:
        ArgumentError: an unknown method, or an invalid percentile.
    """
    one_of(what, "method", method, METHODS)
    if not 50 < percentile <= 100:
        raise ArgumentError(f"{what}: percentile={percentile} is not above 50 and up to 100", hint="Use 99.9 or 99.99.")
    ranges: dict[Any, Range] = {}

    def widen(key: Any, x: Any) -> None:
        values = _finite(x)
        if values.size:
            low, high = ranges.get(key, (np.inf, -np.inf))
            ranges[key] = min(low, float(values.min())), max(high, float(values.max()))

    run(widen)
    if method == "minmax":
        return ranges
    counts = {key: np.zeros(_BINS, np.int64) for key in ranges}

    def count(key: Any, x: Any) -> None:
        values = _finite(x)
        if method == "entropy":
            values = values[values != 0]  # which are stored exactly whatever the range, and would outweigh the rest
        if key in counts:
            counts[key] += np.histogram(values, _BINS, ranges[key])[0]

    run(count)
    if method == "percentile":
        return {key: by_percentile(counts[key], ranges[key], percentile) for key in ranges}
    return {key: by_entropy(counts[key], ranges[key]) for key in ranges}


def _finite(x: Any) -> Array:
    values = np.asarray(x, np.float32)
    return values[np.isfinite(values)]


def by_percentile(counts: Array, full_range: Range, percentile: float) -> Range:
    """Return the range without the outermost elements of a histogram, some percent at each end."""
    edges = np.linspace(*full_range, len(counts) + 1)
    below = np.cumsum(counts) / max(counts.sum(), 1)
    share = 1 - percentile / 100
    first = int(np.searchsorted(below, share, side="right"))
    last = int(np.searchsorted(below, 1 - share, side="left"))
    return float(edges[min(first, len(counts) - 1)]), float(edges[min(last, len(counts) - 1) + 1])


def by_entropy(counts: Array, full_range: Range) -> Range:
    """Return the part of a range which, stored in 256 steps, loses the least information about a histogram.

    Reference:
        Migacz, "8-bit inference with TensorRT", 2017.
    """
    low, high = min(full_range[0], 0.0), max(full_range[1], 0.0)
    edges = np.linspace(*full_range, len(counts) + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    best, least = (low, high), np.inf
    for part in _FRACTIONS:
        end = part * max(-low, high)
        tried = max(low, -end), min(high, end)
        inside = (middles >= tried[0]) & (middles <= tried[1])
        if inside.sum() < _FEWEST or not counts[inside].sum():
            continue
        lost = _divergence(counts, inside)
        if lost < least:
            best, least = tried, lost
    return best


def _divergence(counts: Array, inside: Array) -> float:
    """Return the Kullback-Leibler divergence of a histogram, clipped to the inside, from its form in 256 steps."""
    inside_counts = counts[inside].astype(np.float64)
    where = np.flatnonzero(inside)
    clipped = inside_counts.copy()
    clipped[0] += counts[: where[0]].sum()
    clipped[-1] += counts[where[-1] + 1 :].sum()
    levels = np.arange(len(inside_counts)) * _LEVELS // max(len(inside_counts), _LEVELS)
    filled = inside_counts > 0
    sums = np.bincount(levels, inside_counts)
    sizes = np.bincount(levels, filled)
    coarse = np.where(filled, sums[levels] / np.maximum(sizes[levels], 1), 0)
    p, q = clipped / clipped.sum(), np.maximum(coarse / coarse.sum(), 1e-10)
    is_positive = p > 0
    return float(np.sum(p[is_positive] * np.log(p[is_positive] / q[is_positive])))
