"""The weights of the best epoch of `fit`: in its best checkpoint, or in memory if it has no directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from hybridflow.core.assignments import assign_all
from hybridflow.core.errors import ArgumentError
from hybridflow.core.variable import Variable
from hybridflow.saving.checkpoints import Checkpoints
from hybridflow.saving.values import flat, variables_of
from hybridflow.train.records import larger_is_better
from hybridflow.train.run import Run
from hybridflow.train.step import Step


class Best:
    """The weights of the best epoch so far.

    Args:
        name: the figure that says which epoch is best.
        run: the run.
        step: its step, whose model's weights are kept.
    """

    def __init__(self, name: str, run: Run, step: Step) -> None:
        self._name, self._run, self._step = name, run, step
        self._kept: Mapping[str, Any] = {}

    @classmethod
    def of(cls, wanted: bool | str, run: Run, step: Step, validated: bool) -> Self | None:
        """Return the best epoch by the argument ``restore_best`` of `fit`; None if it is false.

        Raises:
            ArgumentError: there is no such figure, or it is not known whether larger is better.
        """
        if not wanted:
            return None
        known = ["loss", *step.metrics]
        known += [f"val_{name}" for name in known] if validated else []
        name = wanted if isinstance(wanted, str) else "val_loss" if validated else "loss"
        if name not in known:
            raise ArgumentError(f"fit: restore_best: there is no figure {name!r}", got=", ".join(known))
        larger_is_better("fit: restore_best", name, None)
        return cls(name, run, step)

    def epoch_ends(self) -> None:
        """Write the epoch's checkpoint with its score, or keep the weights if they are the best so far."""
        if self._run.directory is not None:
            self._run.checkpoint(keep=2, best=self._name)
        elif not self._run.stalled(self._name, 1):
            self._kept = {path: one.read() for path, one in self._weights().items()}

    def restore(self) -> None:
        """Assign the weights of the best epoch."""
        kept = self._kept
        if self._run.directory is not None:
            found = Checkpoints(self._run.directory).best(self._structure())
            kept = {} if found is None else found.values
        weights = self._weights() if kept else {}
        assign_all(weights, {path: kept[path] for path in weights}, what="fit: restore_best")

    def _structure(self) -> dict[str, Any]:
        if hasattr(self._step.model, "named_parameters"):
            return {"model": self._step.model}
        return {"variables": self._step.parameters()}

    def _weights(self) -> Mapping[str, Variable]:
        return variables_of(flat(self._structure(), "fit"), "fit")
