"""The backward walk of a tape, whose sources may have been read several times, or watched only after a first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridflow.autodiff.backprop import backprop
from hybridflow.autodiff.walk import Engine, Wanted
from hybridflow.core.dispatch import as_arrays
from hybridflow.core.node import Edge, Node
from hybridflow.core.tensor import Tensor, make_tensor


class SinceWatched:
    """An engine that passes no gradient through uses of a value before it was watched."""

    def __init__(self, engine: Engine, live: Mapping[Node, Wanted]) -> None:
        self._engine = engine
        self._live = live
        self.add = engine.add
        self.walk = engine.walk

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Return the gradients of the wanted inputs that count as recorded, None for the others."""
        recorded = self._live.get(node, ())
        both = tuple([want and i < len(recorded) and recorded[i] for i, want in enumerate(wanted)])
        gradients = self._engine.run(node, g, both) if any(both) else [None] * len(both)
        return [one if want else None for one, want in zip(gradients, both, strict=True)]


def walked(
    starts: Sequence[tuple[Edge, Tensor]],
    nodes: Sequence[Node],
    wanted: Sequence[Sequence[Edge]],
    live: Mapping[Node, Wanted] | None,
    engine: Engine,
    *,
    bound: bool,
) -> list[Tensor | None]:
    """Walk back, and return a gradient for each source, which may have been read several times.

    Args:
        starts: targets with their cotangents.
        nodes, wanted, live: the results of `GradientTape._paths`.
        engine: how to compute.
        bound: whether the engine records operations on tensors.
    """
    if live is not None:
        engine = SinceWatched(engine, live)
    seeds = list(starts) if bound else [(edge, seed._value) for edge, seed in starts]
    result = backprop(seeds, {edge for edges in wanted for edge in edges}, nodes, engine)
    gradients: list[Tensor | None] = []
    for edges in wanted:
        total: Any = None
        for edge in edges:
            one = result.get(edge)
            if one is not None:
                total = one if total is None else engine.add(total, one)
        gradients.append(total if total is None or bound else make_tensor(as_arrays(total)))
    return gradients
