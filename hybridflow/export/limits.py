"""Limits on what loading an artifact reads, and on what calls of its functions take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hybridflow.core.dims import evaluate
from hybridflow.core.errors import FileFormatError
from hybridflow.ir.costs import bodies, concrete, graph_cost
from hybridflow.ir.graph import Graph
from hybridflow.ir.liveness import liveness
from hybridflow.ir.parser import DEEPEST, MOST_TOKENS

Sizes = Mapping[str, int]


class Limits(NamedTuple):
    """Limits on what `hf.export.load` reads, and on what calls may take: for artifacts from strangers.

    What a call takes may depend on sizes that were left open: it is checked when the artifact is loaded, and again at
    the first call with other sizes.

    Attributes:
        text: the largest size, in bytes, of the manifest and of each graph's text.
        nodes: the largest number of nodes in all graphs together.
        tokens: the largest number of words, numbers and signs in a graph's text.
        depth: the deepest nesting of graphs and tuples in a graph's text.
        bytes: the largest size, in bytes, of the weights.
        elements: the largest number of elements of a value.
        memory: the largest number of bytes alive at once in a call, estimated; None for no limit.
        flops: the largest number of floating-point operations of a call; None for no limit.
        steps: the largest number of steps of all loops together; those of nested loops are multiplied, and a ``while``
            without a bound exceeds it. None for no limit.
    """

    text: int = 16 << 20
    nodes: int = 50_000
    tokens: int = MOST_TOKENS
    depth: int = DEEPEST
    bytes: int = 1 << 40
    elements: int = 1 << 36
    memory: int | None = None
    flops: int | None = None
    steps: int | None = None

    def require(self, name: str, graph: Graph, sizes: Sizes | None = None) -> None:
        """Raise if a call of a function would take more than this.

        Args:
            name: the function.
            graph: its graph.
            sizes: the open sizes; by default, those with which it was traced, for the memory and the operations alone.

        Raises:
            FileFormatError: naming the operation, what it takes and the limit.
        """
        for node in (*graph.inputs, *graph.walk()):
            for spec in node.specs:
                exact = concrete(spec, sizes)
                if max([size for size in (exact.size, *exact.shape) if type(size) is int], default=0) > self.elements:
                    raise FileFormatError(f"{name}: {node.op.name} has {exact}, of more than {self.elements} elements")
        if self.steps is not None:
            _require_steps(name, graph, sizes, 0, 1, self.steps)
        if self.memory is not None and (peak := liveness(graph, sizes).peak) > self.memory:
            raise FileFormatError(f"{name}: a call takes about {peak} bytes at once, more than {self.memory}")
        if self.flops is not None and (flops := graph_cost(graph, sizes or graph.dims.hints).flops) > self.flops:
            raise FileFormatError(f"{name}: a call takes {flops} floating-point operations, more than {self.flops}")


def _require_steps(name: str, graph: Graph, sizes: Sizes | None, before: int, runs: int, most: int) -> int:
    """Return the number of a function's steps up to the end of a graph, and raise if there are too many.

    Args:
        name: the function.
        graph: its graph, or one that a loop runs.
        sizes: the open sizes; None if loops over them do not count.
        before: the number of steps before the graph.
        runs: how often the graph runs.
        most: the largest number of steps.
    """
    for node in graph.nodes:
        for body in bodies(node) or ():
            times = body.times
            if times is not None and type(times) is not int:
                times = 1 if sizes is None else evaluate(times, sizes)
            before += 0 if times is None or times == 1 else runs * times
            if times is None or before > most:
                steps = "any number of steps" if times is None else f"{before} steps"
                raise FileFormatError(f"{name}: {node.op.name} may take {steps}, more than {most}")
            if times:
                before = _require_steps(name, body.graph, sizes, before, runs * times, most)
    return before
