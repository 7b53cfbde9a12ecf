"""The predicted costs of a graph with open sizes: what a call takes, and what compiling takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybridflow.core.dims import evaluate
from hybridflow.ir.costs import Cost, graph_cost, seconds_on_cpu
from hybridflow.ir.graph import Graph

Sizes = Mapping[str, int]

_SMALLEST = 8
"""The smallest bound of a size."""
_DOUBLINGS = 6
"""How often a bound may be doubled beyond what a call needs, if that is cheap."""
_START, _PER_NODE = 0.04, 0.003
"""A rough time to compile: seconds for any program, and for each node."""


def next_bound(size: int) -> int:
    """Return the smallest bound for a size: a power of two."""
    return max(_SMALLEST, 1 << (size - 1).bit_length() if size > 1 else 1)


class Predicted:
    """The predicted costs of some graphs with open sizes.

    They are rough. But they depend on nothing but the graph, so what is chosen by them does not depend on how busy a
    machine is.

    Attributes:
        compiling: seconds to compile them.
    """

    def __init__(self, *graphs: Graph) -> None:
        self.compiling = sum([_START + _PER_NODE * sum(1 for _ in graph.walk()) for graph in graphs])
        self._cost = Cost()
        for graph in graphs:
            self._cost = self._cost.plus(graph_cost(graph))

    def seconds(self, sizes: Sizes) -> float:
        """Return the seconds of a call."""
        return seconds_on_cpu(Cost(*[evaluate(count, sizes) for count in self._cost]))

    def bounds(self, sizes: Sizes, least: Sizes, taken: Callable[[Sizes], dict[str, int]]) -> dict[str, int]:
        """Return the bounds of the program to compile for given sizes.

        They are as large as padding is cheaper than compiling again, if sizes grow by one from call to call.

        Args:
            sizes: the sizes of a call that no program takes.
            least: the smallest bounds to choose.
            taken: returns the largest bounds up to given ones that a program can have.
        """
        chosen, seconds = dict(least), self.seconds(sizes)
        for _ in range(_DOUBLINGS):
            larger = taken({name: 2 * bound for name, bound in chosen.items()})
            calls = max([bound - sizes[name] for name, bound in larger.items()])
            if larger == chosen or calls * (self.seconds(larger) - seconds) / 2 > self.compiling:
                return chosen
            chosen = larger
        return chosen
