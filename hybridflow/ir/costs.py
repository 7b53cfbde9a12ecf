"""The costs of a graph's nodes: floating-point operations, and bytes read and written.

Nothing runs: the counts follow from specs. If sizes are symbolic, so are the counts, unless sizes are given.
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
        times: the largest number of runs in one run of the node; None if there is no bound.
        exact: whether it runs exactly that often.
        alternative: whether only one of the node's alternatives runs.
    """

    graph: Graph
    times: Any = 1
    exact: bool = True
    alternative: bool = False


class Bodies:
    """The ``flops`` column of an operation that carries graphs: the graphs it runs, and how often.

    Args:
        of: a function of the attributes that returns the bodies.
    """

    __slots__ = ("of",)

    def __init__(self, of: Callable[..., tuple[Body, ...]]) -> None:
        self.of = of

    def __call__(self, outputs: Any, *specs: Any, **attrs: Any) -> Any:
        """Count every body as often as it may run (once if there is no bound), and only the largest alternative."""
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
    """Return the largest of some counts; if one is symbolic, return their sum, which is an upper bound."""
    if any(isinstance(count, Dim) for count in counts):
        total: Any = 0
        for count in counts:
            total = total + count
        return total
    return max(counts, default=0)


def graph_flops(graph: Graph) -> Any:
    """Return the floating-point operations of one run of a graph.

    A loop's body counts once per step: the exact number or its bound, or one step if there is no bound. Of two
    branches, only the more expensive one counts. A symbolic size makes the count symbolic.
    """
    total: Any = 0
    for node in graph.nodes:
        outputs = node.specs
        inputs = [edge[0].spec(edge[1]) for edge in node.inputs if edge is not None]
        total = total + node.op.flops(outputs if len(outputs) != 1 else outputs[0], *inputs, **node.attrs)
    return total


class Cost(NamedTuple):
    """The cost of one or several nodes.

    Attributes:
        flops: floating-point operations; a multiplication and an addition count as two.
        macs: multiply-adds in matrix products, convolutions and the like.
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
    """The cost of a node in one call of the outermost graph.

    Attributes:
        node: the node; a node that carries graphs is replaced by the nodes inside them.
        cost: the cost of all its runs.
        runs: the number of its runs; an upper bound if not `exact`. A loop without a bound counts one step.
        exact: whether it runs exactly that often.
        bounded: whether `runs` is a bound at all.
        taken: whether it is part of the total: of two branches, only the more expensive one is.
        inside: the names of the graphs that contain it, outermost first.
    """

    node: Node
    cost: Cost
    runs: Any = 1
    exact: bool = True
    bounded: bool = True
    taken: bool = True
    inside: tuple[str, ...] = ()


def concrete(spec: TensorSpec, sizes: Sizes | None) -> TensorSpec:
    """Return a spec with symbols replaced by given sizes."""
    if sizes is None or not any(isinstance(size, Dim) for size in spec.shape):
        return spec
    return make_spec(substitute(spec.shape, sizes), spec.dtype)


def input_specs(node: Node, sizes: Sizes | None = None) -> list[TensorSpec]:
    """Return the specs of a graph node's inputs."""
    return [concrete(edge[0].spec(edge[1]), sizes) for edge in node.inputs if edge is not None]


def moves_nothing(node: Node) -> bool:
    """Whether a node moves no data: its output is its first input or a view of it, or exists before the call."""
    traits = node.op.traits
    if "source" in traits:
        return True
    if not node.inputs or not traits & {"identity", "reshape", "conversion"}:
        return False
    edge = node.inputs[0]
    return edge is not None and edge[0].spec(edge[1]).dtype == node.spec().dtype


def bodies(node: Node, sizes: Sizes | None = None) -> tuple[Body, ...] | None:
    """Return the graphs that a node carries and runs, or None if there are none."""
    count = node.op.flops
    if not isinstance(count, Bodies):
        return None
    bodies = count.of(**node.attrs)
    if sizes is None:
        return bodies
    return tuple([body._replace(times=substitute(body.times, sizes)) for body in bodies])


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
"""The number of floating-point operations from which a matrix product is large."""
MOST_PRODUCTS = 200
"""The largest number of products for which XLA's library pays off: each costs time in its first call."""


def has_large_products(graph: Graph, sizes: Sizes) -> bool:
    """Whether the matrix products of a graph are large on average, all of float32, and not too many.

    XLA's library for them makes steps faster, but needs some milliseconds per product in the first call, whether the
    program was compiled or loaded. With many products, the first call would become much slower.
    """
    products = [node for node in graph.walk() if node.op.has("dot")]
    if len(products) > MOST_PRODUCTS:
        return False
    specs = {edge[0].spec(edge[1]).dtype for node in products for edge in node.inputs if edge is not None}
    if specs != {np.dtype(np.float32)}:
        return False
    costs = {node: own_cost(node, sizes).flops for node in set(products)}
    return sum([costs[node] for node in products]) >= LARGE_PRODUCT * len(products)


def has_many_small_values(graph: Graph, sizes: Sizes, most: int, least: int) -> bool:
    """Whether a graph has convolutions or large loops, and no value of more than `most` bytes.

    Args:
        graph: the graph.
        sizes: the size of each symbol.
        most: the bytes of the largest value.
        least: the bytes that a large loop returns at least.
    """
    nodes = list(graph.walk())
    if not any(node.op.has("convolution") or _returns_rows(node, sizes, least) for node in nodes):
        return False
    specs = {spec for node in nodes for spec in node.specs}
    return all(int(concrete(spec, sizes).nbytes) <= most for spec in {*specs, *graph.input_specs})


def _returns_rows(node: Node, sizes: Sizes, least: int) -> bool:
    """Whether a node is a loop that returns at least so many bytes, as loops do that keep values for a gradient."""
    if "nested" not in node.op.traits or sum([int(concrete(spec, sizes).nbytes) for spec in node.specs]) < least:
        return False
    return any([body.times != 1 for body in bodies(node, sizes) or ()])


def bytes_gathered_again(graph: Graph, sizes: Sizes) -> int:
    """Return the bytes of the Variables whose parts a graph gathers, and again for gradients."""
    gathers = [node for node in graph.walk() if node.op.has("gathers") and node.attrs["again"]]
    return sum([int(concrete(node.spec(0), sizes).nbytes) for node in gathers])


def node_costs(graph: Graph, sizes: Sizes | None = None) -> list[NodeCost]:
    """Return the cost of every node in one run of a graph; nodes that carry graphs are replaced by the nodes inside.

    Args:
        graph: the graph.
        sizes: the size of each symbol; without it, counts that depend on symbols are symbolic.
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
    """Return the most expensive alternative; None if there are none, or symbolic sizes leave it open."""
    costed: list[tuple[Any, Any, Body]] = []
    for body in carried:
        if body.alternative:
            cost = graph_cost(body.graph, sizes)
            if isinstance(cost.flops, Dim) or isinstance(cost.moved, Dim):
                return None
            costed.append((cost.flops, cost.moved, body))
    return max(costed, key=lambda one: one[:2])[2] if costed else None


def graph_cost(graph: Graph, sizes: Sizes | None = None) -> Cost:
    """Return the cost of one run of a graph: loops with all possible steps, and the more expensive branches."""
    return total(node_costs(graph, sizes))


_FLOPS, _BYTES = 5e10, 2e10
"""Rough speeds of a processor per second: floating-point operations, and bytes moved (summed over nodes)."""


def seconds_on_cpu(cost: Cost) -> float:
    """Return a rough time on a processor; operations that only change shapes take none."""
    return cost.flops / _FLOPS + cost.moved / _BYTES


def node_cost(node: Node, sizes: Sizes | None = None) -> Cost:
    """Return the cost of one run of a node, including the graphs it carries."""
    if bodies(node) is None:
        return own_cost(node, sizes)
    return graph_cost(Graph("node", (), (node,), ()), sizes)


def total(costs: list[NodeCost]) -> Cost:
    """Return the sum of the nodes' costs; of two branches, only the more expensive one counts."""
    result = Cost()
    for one in costs:
        if one.taken:
            result = result.plus(one.cost)
    return result
