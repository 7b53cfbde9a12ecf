"""What the nodes of a graph cost: floating-point operations and the bytes they read and write.

Nothing runs: counts are made of specs. Sizes may be symbolic; then so are the counts, unless sizes are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from hybridflow.core.dims import Dim, substitute
from hybridflow.core.node import Node
from hybridflow.core.op import MultiplyAdds
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.graph import Graph

Sizes = Mapping[str, int]


class Body(NamedTuple):
    """A graph that a node carries and runs.

    Attributes:
        graph: the graph.
        times: how often one run of the node runs it, at most; None if nothing bounds that.
        exact: whether it runs exactly so often.
        alternative: whether it and the node's other alternatives exclude each other.
    """

    graph: Graph
    times: Any = 1
    exact: bool = True
    alternative: bool = False


class Bodies:
    """The ``flops`` column of an operation that carries graphs: what it runs, and how often.

    Args:
        of: from the attributes to the bodies.
    """

    __slots__ = ("of",)

    def __init__(self, of: Callable[..., tuple[Body, ...]]) -> None:
        self.of = of

    def __call__(self, outputs: Any, *specs: Any, **attrs: Any) -> Any:
        """Count every body as often as it may run (once, if nothing bounds that), and one of the alternatives."""
        del outputs, specs
        total: Any = 0
        choices: list[Any] = []
        for body in self.of(**attrs):
            count = (1 if body.times is None else body.times) * graph_flops(body.graph)
            if body.alternative:
                choices.append(count)
            else:
                total = total + count
        return total + largest(choices)


def largest(counts: list[Any]) -> Any:
    """Return the largest of some counts; their sum, where symbolic sizes do not say which that is."""
    if any(isinstance(count, Dim) for count in counts):
        total: Any = 0
        for count in counts:
            total = total + count
        return total
    return max(counts, default=0)


def graph_flops(graph: Graph) -> Any:
    """Return the floating-point operations of one run of a graph.

    A loop's body counts once per step: as many as there are, or may be at most, or one where no bound is known. Of
    two branches the one that costs more counts. A symbolic size makes the count symbolic.
    """
    total: Any = 0
    for node in graph.nodes:
        outputs = node.specs
        inputs = [edge[0].spec(edge[1]) for edge in node.inputs if edge is not None]
        total = total + node.op.flops(outputs if len(outputs) != 1 else outputs[0], *inputs, **node.attrs)
    return total


class Cost(NamedTuple):
    """What one or several nodes cost.

    Attributes:
        flops: floating-point operations, a multiplication and an addition each counting as one.
        macs: multiply-adds: pairs of them in products of matrices, convolutions and their like.
        read: bytes read, every input of every node once.
        written: bytes written.
    """

    flops: Any = 0
    macs: Any = 0
    read: Any = 0
    written: Any = 0

    def plus(self, other: Cost) -> Cost:
        """Return the sum of two costs."""
        return Cost(*[a + b for a, b in zip(self, other, strict=True)])

    def times(self, count: Any) -> Cost:
        """Return the cost of several runs."""
        return Cost(*[count * value for value in self])

    @property
    def moved(self) -> Any:
        """Bytes read and written."""
        return self.read + self.written


class NodeCost(NamedTuple):
    """What a node costs in one call of the outermost graph.

    Attributes:
        node: the node; one that carries graphs stands there through the nodes in them.
        cost: of all of its runs.
        runs: how often it runs; at most, if not `exact`.
        exact: whether it runs exactly so often. In a loop that nothing bounds it counts once.
        bounded: whether `runs` is a bound at all.
        taken: whether it is part of the total: of two branches only the one that costs more is.
        inside: the names of the graphs that it is in, from the outermost one on.
    """

    node: Node
    cost: Cost
    runs: Any = 1
    exact: bool = True
    bounded: bool = True
    taken: bool = True
    inside: tuple[str, ...] = ()


def concrete(spec: TensorSpec, sizes: Sizes | None) -> TensorSpec:
    """Return a spec at given sizes of the symbols."""
    if sizes is None or not any(isinstance(size, Dim) for size in spec.shape):
        return spec
    return make_spec(substitute(spec.shape, sizes), spec.dtype)


def input_specs(node: Node, sizes: Sizes | None = None) -> list[TensorSpec]:
    """Return the specs of a graph node's inputs."""
    return [concrete(edge[0].spec(edge[1]), sizes) for edge in node.inputs if edge is not None]


def moves_nothing(node: Node) -> bool:
    """Whether a node's output is (a view of) its first input, or there before the call."""
    traits = node.op.traits
    if "source" in traits:
        return True
    if not node.inputs or not traits & {"identity", "reshape", "conversion"}:
        return False
    edge = node.inputs[0]
    return edge is not None and edge[0].spec(edge[1]).dtype == node.spec().dtype


def bodies(node: Node, sizes: Sizes | None = None) -> tuple[Body, ...] | None:
    """Return what a node carries and runs, None if it carries no graphs (or does not run them)."""
    count = node.op.flops
    if not isinstance(count, Bodies):
        return None
    found = count.of(**node.attrs)
    if sizes is None:
        return found
    return tuple([body._replace(times=substitute(body.times, sizes)) for body in found])


def own_cost(node: Node, sizes: Sizes | None = None) -> Cost:
    """Return the cost of one run of a node that carries no graphs."""
    if moves_nothing(node):
        return Cost()
    inputs = input_specs(node, sizes)
    outputs = tuple([concrete(spec, sizes) for spec in node.specs])
    attrs = node.attrs if sizes is None else {name: substitute(value, sizes) for name, value in node.attrs.items()}
    count, made = node.op.flops, outputs if len(outputs) != 1 else outputs[0]
    flops = count(made, *inputs, **attrs)
    macs = count.macs(made, *inputs, **attrs) if isinstance(count, MultiplyAdds) else 0
    distinct = dict.fromkeys([edge for edge in node.inputs if edge is not None])
    read: Any = 0
    for edge in distinct:
        read = read + concrete(edge[0].spec(edge[1]), sizes).nbytes
    written: Any = 0
    for spec in outputs:
        written = written + spec.nbytes
    return Cost(flops, macs, read, written)


LARGE_PRODUCT = 10_000_000
"""A matrix product is large if it has at least this many floating-point operations."""
MOST_PRODUCTS = 200
"""In graphs of more products than that what they gain is not worth their first calls: see `has_large_products`."""


def has_large_products(graph: Graph, sizes: Sizes) -> bool:
    """Whether the matrix products of a graph are large on average, all of float32, and not too many.

    XLA's library for them needs 2 to 7 ms of a first call for each, whether it is compiled or loaded. Measured with
    jaxlib 0.10.2 on a CPU: a pre-norm transformer of 24 layers, 432 products, would take 2.1 s for a first call that
    loads, instead of 1.3, for a step of 0.95; dense layers with residuals, 143 products, take a step of 0.87.
    """
    products = [node for node in graph.walk() if node.op.has("dot")]
    if len(products) > MOST_PRODUCTS:
        return False
    specs = {edge[0].spec(edge[1]).dtype for node in products for edge in node.inputs if edge is not None}
    if specs != {np.dtype(np.float32)}:
        return False
    costs = {node: own_cost(node, sizes).flops for node in set(products)}
    return sum([costs[node] for node in products]) >= LARGE_PRODUCT * len(products)


def node_costs(graph: Graph, sizes: Sizes | None = None) -> list[NodeCost]:
    """Return what every node costs in one run of a graph, those of nested graphs in the place of who carries them.

    Args:
        graph: the graph.
        sizes: the size of each symbol; without them counts that depend on symbols are symbolic.
    """
    return list(_walk(graph, sizes, NodeCost(None, Cost())))  # pyright: ignore[reportArgumentType]


def _walk(graph: Graph, sizes: Sizes | None, around: NodeCost) -> Iterator[NodeCost]:
    for node in graph.nodes:
        carried = bodies(node, sizes)
        if carried is None:
            yield around._replace(node=node, cost=own_cost(node, sizes).times(around.runs))
            continue
        chosen = _chosen(carried, sizes)
        for body in carried:
            times = 1 if body.times is None else body.times
            inner = around._replace(
                runs=around.runs * times,
                exact=around.exact and body.exact and body.times is not None,
                bounded=around.bounded and body.times is not None,
                taken=around.taken and (not body.alternative or chosen is None or body is chosen),
                inside=(*around.inside, body.graph.name),
            )
            yield from _walk(body.graph, sizes, inner)


def _chosen(carried: tuple[Body, ...], sizes: Sizes | None) -> Body | None:
    """Return the alternative that costs most; None if there are none, or symbolic sizes do not say."""
    found: list[tuple[Any, Any, Body]] = []
    for body in carried:
        if body.alternative:
            cost = graph_cost(body.graph, sizes)
            if isinstance(cost.flops, Dim) or isinstance(cost.moved, Dim):
                return None
            found.append((cost.flops, cost.moved, body))
    return max(found, key=lambda one: one[:2])[2] if found else None


def graph_cost(graph: Graph, sizes: Sizes | None = None) -> Cost:
    """Return the cost of one run of a graph: loops as often as they may run, of branches the one that costs more."""
    return total(node_costs(graph, sizes))


_FLOPS, _BYTES = 5e10, 2e10
"""What a processor does in a second, about: floating-point operations, and bytes moved, each node's counted."""


def seconds_on_cpu(cost: Cost) -> float:
    """Return how long something takes on a processor, about; what only gives new shapes takes no time."""
    return cost.flops / _FLOPS + cost.moved / _BYTES


def node_cost(node: Node, sizes: Sizes | None = None) -> Cost:
    """Return the cost of one run of a node, that of the graphs it carries included."""
    if bodies(node) is None:
        return own_cost(node, sizes)
    return graph_cost(Graph("node", (), (node,), ()), sizes)


def total(costs: list[NodeCost]) -> Cost:
    """Return the sum of what nodes cost, of branches only the one that costs more."""
    result = Cost()
    for one in costs:
        if one.taken:
            result = result.plus(one.cost)
    return result
