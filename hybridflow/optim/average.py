"""`EMA`: a running mean of a model's parameters."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from hybridflow.core.context import made_once
from hybridflow.core.errors import ArgumentError
from hybridflow.core.functions import as_traced
from hybridflow.core.variable import Variable
from hybridflow.optim.groups import collected
from hybridflow.optim.writes import assign_all


class EMA:
    """A running mean of parameters, ``mean = decay * mean + (1 - decay) * parameter`` at every `update`.

    Args:
        target: a model, or Variables in any nesting of lists, tuples and dicts.
        decay: the weight of the old mean in the new one.

    Example:
        >>> import hybridflow as hf
        >>> w = hf.Variable([0.0], name="w")
        >>> mean = hf.optim.EMA([w], 0.5)
        >>> _ = w.assign([1.0])
        >>> mean.update()
        >>> with mean.applied():
        ...     w.item()
        0.5
        >>> w.item()
        1.0
    """

    def __init__(self, target: Any, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ArgumentError("EMA: decay must be from 0 up to, not including, 1", got=f"decay={decay!r}")
        self._decay = float(decay)
        self._target = target if hasattr(target, "named_parameters") else collected("EMA", target)
        self._means: dict[str, Variable] = {}
        self._found()

    def _found(self) -> list[tuple[Variable, Variable]]:
        target = self._target
        named = cast("dict[str, Any]", target if isinstance(target, dict) else as_traced(target.named_parameters)())
        for name, one in named.items():
            if isinstance(one, Variable) and name not in self._means:
                with made_once():
                    start = np.array(one.numpy())
                    self._means[name] = Variable(start, name=f"{name}.mean", trainable=False, like=one)
        return [(named[name], mean) for name, mean in self._means.items()]

    def __repr__(self) -> str:
        return f"EMA({len(self._means)} parameters, decay={self._decay})"

    def update(self) -> None:
        """Update the means with the current values of the parameters."""
        pairs = [(mean, cast(Any, mean.read()), variable) for variable, mean in self._found()]
        assign_all([(mean, now + (variable.read() - now) * (1 - self._decay)) for mean, now, variable in pairs])

    def variables(self) -> list[Variable]:
        """Return the means."""
        return [mean for _, mean in self._found()]

    def named_variables(self) -> dict[str, Variable]:
        """Return the means by the parameters' names."""
        self._found()
        return {**self._means}

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return a copy of the means by name."""
        self._found()
        return {name: np.array(mean.numpy()) for name, mean in self._means.items()}

    @contextmanager
    def applied(self) -> Generator[None]:
        """Return a context manager: in its block, the parameters have the values of their means."""
        pairs = self._found()
        before = [variable.read() for variable, _ in pairs]
        try:
            assign_all([(variable, mean.read()) for variable, mean in pairs])
            yield
        finally:
            assign_all([(variable, value) for (variable, _), value in zip(pairs, before, strict=True)])
