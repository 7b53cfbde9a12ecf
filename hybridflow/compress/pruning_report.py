"""`hf.prune.report`: zeros, sizes and multiply-adds of a pruned model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.text import Text

from hybridflow.analysis.memory import format_size
from hybridflow.analysis.report import titled_table
from hybridflow.compress.masks import Masked, weights_of
from hybridflow.compress.replacing import modules_of, require_module
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.report import Report
from hybridflow.nn.layers.module import Module
from hybridflow.nn.table import summary


@dataclass(frozen=True)
class PrunedLayer:
    """One layer of a pruned model.

    Attributes:
        path: where it is.
        shape, shape_before: the shape of its weight, now and before.
        zeros: how many weights are 0.
        weights: how many there are.
        macs, macs_before: the multiply-adds of a call, now and before.
    """

    path: str
    shape: tuple[int, ...]
    shape_before: tuple[int, ...]
    zeros: int
    weights: int
    macs: int
    macs_before: int


@dataclass(frozen=True, repr=False)
class PruningReport(Report):
    """The result of `report`.

    Attributes:
        layers: one per layer with weights.
        parameters, parameters_before: how many numbers the parameters have.
        macs, macs_before: the multiply-adds of a call.
        bytes, bytes_before: the size of parameters and buffers, without masks.
    """

    layers: tuple[PrunedLayer, ...]
    parameters: int
    parameters_before: int
    macs: int
    macs_before: int
    bytes: int
    bytes_before: int

    @property
    def sparsity(self) -> float:
        """The fraction of the weights that is 0."""
        return sum([one.zeros for one in self.layers]) / max(sum([one.weights for one in self.layers]), 1)

    def parts(self) -> list[Any]:
        """Return the table, and what it shows."""
        printed = titled_table("Pruned", ("layer", "weight before", "weight"), ("zeros", "MACs before", "MACs"))
        for one in self.layers:
            share = f"{one.zeros / max(one.weights, 1):.1%}"
            printed.add_row(Text(one.path), str(one.shape_before), str(one.shape), share, f"{one.macs_before:,}",
                         f"{one.macs:,}")
        printed.add_row("model", "", "", f"{self.sparsity:.1%}", f"{self.macs_before:,}", f"{self.macs:,}")
        return [printed, *self.notes()]

    def notes(self) -> list[str]:
        """Return what the table shows, one sentence each."""
        notes = [
            f"{self.parameters_before:,} parameters before, {self.parameters:,} now; "
            f"{format_size(self.bytes_before)} before, {format_size(self.bytes)} now."
        ]
        if self.sparsity > 0 and self.macs == self.macs_before:
            notes.append("Zeros are multiplied like other numbers: only smaller layers, hf.prune.channels, save time.")
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**super().to_dict(), "sparsity": self.sparsity}


@with_foreign_keywords
def report(before: Module, after: Module, *args: Any) -> PruningReport:
    """Compare a pruned model with the one it was made of.

    Args:
        before: the model.
        after: what a function of `hf.prune` made of it.
        args: what they are called with: tensors, or `hf.TensorSpec`. Nothing is run.

    Returns:
        Zeros, sizes and multiply-adds by layer, which print as a table; ``.to_dict()`` gives plain values.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(8, 16), hf.nn.relu, hf.nn.Linear(16, 3))
        >>> smaller = hf.prune.channels(model, hf.ones((1, 8)))
        >>> found = hf.prune.report(model, smaller, hf.TensorSpec([1, 8]))
        >>> found.macs_before, found.macs, found.parameters_before, found.parameters
        (176, 88, 195, 99)
    """
    require_module("report", before)
    require_module("report", after)
    first, second = summary(before, *args), summary(after, *args)
    macs = _by_layer(first, ()), _by_layer(second, _masked(after))
    old, new = weights_of(before), weights_of(after)
    layers = tuple([
        PrunedLayer(
            path, weight.shape, old[path].shape, int(weight.size - np.count_nonzero(weight)), weight.size,
            macs[1].get(path, 0), macs[0].get(path, 0),
        )
        for path, weight in new.items()
        if path in old
    ])
    return PruningReport(
        layers, second.parameters, first.parameters, int(second.macs), int(first.macs), _bytes(after), _bytes(before)
    )


def _masked(model: Any) -> tuple[str, ...]:
    return tuple([path for path, one in modules_of(model).items() if isinstance(one, Masked)])


def _by_layer(found: Any, masked: tuple[str, ...]) -> dict[str, int]:
    """Return the multiply-adds of each module, those of a masked layer at the mask's path."""
    sums: dict[str, int] = {}
    for row in found.rows:
        owner = row.path.rpartition(".")[0]
        path = owner if owner in masked else row.path
        sums[path] = sums.get(path, 0) + int(row.macs)
    return sums


def _bytes(model: Any) -> int:
    masks = {f"{path}.mask" if path else "mask" for path in _masked(model)}
    return sum([one.nbytes for path, one in model.state_dict().items() if path not in masks])
