"""Programs of an artifact's function that serve all open sizes up to some bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybridflow.core.padding import NoRule
from hybridflow.core.tensor import Tensor, new_tensor
from hybridflow.export.loaded import Function
from hybridflow.tracing.bounded import Compiled, compile_bounded, cutting_to, padding_to
from hybridflow.tracing.predicted import next_bound

Sizes = Mapping[str, int]


class Programs:
    """The programs of a function, each compiled for all sizes up to its bounds.

    Args:
        function: the function; it has open sizes.

    Attributes:
        why_not: which operation has no rule for padded values, so that there is no program; None if none is known.
    """

    def __init__(self, function: Function) -> None:
        self.why_not: str | None = None
        self._function = function
        self._made: list[tuple[dict[str, int], Compiled]] = []

    def __len__(self) -> int:
        return len(self._made)

    def compile(self, bounds: Sizes) -> bool:
        """Compile a program; return whether there is one now. Other threads may call programs meanwhile."""
        if self.why_not is None and not any([dict(bounds) == one for one, _ in self._made]):
            try:
                made = compile_bounded(self._function.graph(), bounds)
            except NoRule as why:
                self.why_not = str(why)
            else:
                self._made = sorted([*self._made, (dict(bounds), made)], key=lambda one: _volume(one[0]))
        return self.why_not is None

    def takes(self, sizes: Sizes) -> bool:
        """Whether a program takes some sizes."""
        return self._tightest(sizes) is not None

    def bounds_for(self, sizes: Sizes) -> dict[str, int]:
        """Return the tightest bounds for some sizes: powers of two, or what the function takes at most."""
        return self._function.graph().dims.within(sizes, {name: next_bound(size) for name, size in sizes.items()})

    def call(self, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        """Compute the results, by name, with the tightest program that takes the tensors.

        Raises:
            DTypeError, ShapeError: as the function's own call.
        """
        values, sizes = self._function.given(tensors)
        program = self._tightest(sizes)
        assert program is not None, "asked by takes()"
        bounds, (made, executable) = program
        outputs = executable.call(*padding_to(made, sizes)([one._value for one in values]))
        cut: Sequence[Any] = cutting_to(made.outputs, sizes, bounds)(outputs)
        return self._function.named([new_tensor(np.asarray(one)) for one in cut])

    def _tightest(self, sizes: Sizes) -> tuple[dict[str, int], Compiled] | None:
        return next((one for one in self._made if all([size <= one[0][name] for name, size in sizes.items()])), None)


def _volume(bounds: Sizes) -> float:
    return float(np.prod([*map(float, bounds.values())]))
