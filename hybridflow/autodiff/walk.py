"""The backward walk from targets to sources: the only code that passes gradients on and adds them up.

Every gradient is computed by this walk, in one order:

* Nodes are visited in reverse recording order, and a node passes gradients to its inputs in their order. So the
  contributions to a value come from its consumers, the last consumer first. A target's own cotangent comes before
  all others.
* The first contribution is added last, to the sum of the others, which are added as they come: ``g1, g2, g3, g4``
  gives ``((g2 + g3) + g4) + g1``. The first one often comes from a residual connection, far away in the graph; if it
  were added first, XLA would compute the sum again in every earlier layer. Adding the others as they come frees the
  contributions of each loop step to the gradients of weights.

An `Engine` decides how a rule is called and how two contributions are added; nothing else differs between gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from hybridflow.autodiff.dependence import of_node
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Flat, Op, Stops
from hybridflow.core.slice_gradient import whole

T = TypeVar("T")
Wanted = tuple[bool, ...]
Visit = Callable[[Node, int, Any], Any]
EVER = (-1, 1 << 62)
"""An interval that contains every node."""
_ndarray = np.ndarray
_NONE: Wanted = ()
_ONLY: Wanted = (True,)
_LEFT: Wanted = (True, False)
_RIGHT: Wanted = (False, True)
_BOTH: Wanted = (True, True)


class Engine(Protocol):
    """The way in which a walk calls rules and adds contributions."""

    def add(self, a: Any, b: Any, own: bool = False) -> Any:
        """Add two contributions; if `own`, nobody else holds `a`, so the sum may be written into it."""

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Return, per input, a gradient, a function that computes it, or None; `g` is a tuple for several outputs."""
        ...

    def walk(self, loop: Callable[[], T], users_rules: bool) -> T:
        """Run a walk in the context that the engine needs, and return its result.

        Args:
            loop: the walk.
            users_rules: whether it calls a user's rule, which may do anything.
        """
        ...


class Contributions:
    """Several contributions to one value.

    Attributes:
        far: the first one.
        near: the sum of the others.
        own: whether that sum is an array that nobody else holds.
    """

    __slots__ = ("far", "near", "own")

    def __init__(self, far: Any, near: Any) -> None:
        self.far = far
        self.near = near
        self.own = False


class Paths(NamedTuple):
    """The nodes between sources and targets.

    Attributes:
        order: the nodes that depend on sources, in recording order, each with flags of the inputs that do. It includes
            the sources' own nodes; these have no wanted inputs unless they depend on other sources.
        users_rules: whether one of them has a user's rule.
    """

    order: dict[Node, Wanted]
    users_rules: bool


def reachable(targets: Iterable[Edge], intervals: Sequence[tuple[int, int]]) -> list[Node]:
    """Return the nodes, recorded in one of the intervals, that targets depend on, in recording order."""
    seen: dict[Node, None] = {}
    stack = [node for node, _ in targets]
    several = len(intervals) != 1
    first, last = EVER if several else intervals[0]
    while stack:
        node = stack.pop()
        if node in seen or not first < node.sequence < last:
            continue
        if several and not any(a < node.sequence < b for a, b in intervals):
            continue
        seen[node] = None
        for edge in node.inputs:
            if edge is not None:
                stack.append(edge[0])  # noqa: PERF401 (a comprehension is a call, and most nodes have one input)
    return sorted(reversed(seen), key=attrgetter("sequence"))  # sorting is fast: the list is nearly in order


def paths(nodes: Iterable[Node], sources: set[Node], *, flat: bool = False) -> Paths:
    """Return the paths from sources through nodes, which are in recording order.

    With `flat`, a path may go through operations with a `Flat` rule.
    """
    reached = set(sources)
    order: dict[Node, Wanted] = {}
    users_rules = False
    for node in nodes:
        inputs = node.inputs
        count = len(inputs)
        if count == 1:
            edge = inputs[0]
            wanted = _ONLY if edge is not None and edge[0] in reached else _NONE
        elif count == 2:
            a, b = inputs
            if a is not None and a[0] in reached:
                wanted = _BOTH if b is not None and b[0] in reached else _LEFT
            else:
                wanted = _RIGHT if b is not None and b[0] in reached else _NONE
        else:
            wanted = tuple([edge is not None and edge[0] in reached for edge in inputs])
            if True not in wanted:
                wanted = _NONE
        if wanted is not _NONE and not node.op.plain:
            if not _passes(node.op, flat):
                wanted = _NONE
            elif node.op.saves.depends is not None:
                wanted = _that_reach(node, wanted)
            elif "tensor_rule" in node.op.traits:
                users_rules = True
        if wanted is not _NONE:
            reached.add(node)
            order[node] = wanted
        elif node in sources:
            order[node] = _NONE
    return Paths(order, users_rules)


def _that_reach(node: Node, wanted: Wanted, gs: Sequence[Any] | None = None) -> Wanted:
    """Return which of the wanted inputs the outputs depend on, for an operation that carries graphs.

    Args:
        node: the node.
        wanted: the wanted inputs.
        gs: the outputs' gradients; an output counts only if its gradient is not None. None counts all outputs.
    """
    depends = of_node(node)
    if depends is None:
        return wanted
    reach = 0
    for index, (through, behind) in enumerate(depends):
        if gs is None or gs[index] is not None:
            reach |= through | behind  # the rule returns the zeros
    reaching = tuple([one and bool(reach >> number & 1) for number, one in enumerate(wanted)])
    return reaching if True in reaching else _NONE


def _passes(op: Op, flat: bool) -> bool:
    kind = type(op.vjp)
    return kind is not Stops and (flat or kind is not Flat)


def connected(nodes: Iterable[Node], sources: Iterable[Edge], *, flat: bool = False) -> dict[Node, Wanted]:
    """Return the nodes of the sources and those that depend on them, as `paths` does, in no particular order."""
    of_sources = dict.fromkeys([node for node, _ in sources], _NONE)
    return of_sources | paths(nodes, set(of_sources), flat=flat).order


def _whole(terms: Any, add: Callable[[Any, Any, bool], Any]) -> Any:
    """Return the sum of the contributions to a value so far."""
    return whole(add(terms.near, terms.far, terms.own) if type(terms) is Contributions else terms)


def _cotangents(
    node: Node, pending: dict[Any, Any], add: Callable[[Any, Any, bool], Any], visit: Visit | None
) -> tuple[Any, ...] | None:
    """Pop the pending gradients of a node with several outputs; return None if there are none."""
    gs: list[Any] = []
    reached = False
    for index in range(len(node.outputs)):
        one = pending.pop((node, index), None)
        if one is not None:
            one = _whole(one, add)
            if visit is not None:
                one = visit(node, index, one)
            reached = True
        gs.append(one)
    return tuple(gs) if reached else None


def walk(  # noqa: C901 (every call would cost)
    targets: Sequence[tuple[Edge, Any]],
    sources: set[Edge],
    order: dict[Node, Wanted],
    engine: Engine,
    visit: Visit | None = None,
    *,
    pull: bool = False,
) -> dict[Edge, Any]:
    """Walk back from targets to sources.

    The key of a value is its node if that has one output, else its edge.

    Args:
        targets: edges with their cotangents.
        sources: the edges whose gradients are wanted.
        order: the nodes to walk; see `Paths`.
        engine: how to compute.
        visit: a function that is called with the complete gradient of each output of a node and returns the gradient
            to use.
        pull: whether to call `Op.pullback` directly for host operations; `engine.run` would do the same, with one
            more call per node.

    Returns:
        The gradient of each source that a path reaches.
    """
    pending: dict[Any, Any] = {}
    result: dict[Edge, Any] = {}
    source_nodes = {node for node, _ in sources}
    run, add = engine.run, engine.add

    def contribute(edge: Edge, gradient: Any) -> None:
        if type(gradient) is FunctionType:
            gradient = gradient()
        if gradient is None:
            return
        key = edge[0] if len(edge[0].outputs) == 1 else edge
        before = pending.get(key)
        if before is None:
            pending[key] = gradient
        elif type(before) is Contributions:
            before.near = add(before.near, gradient, before.own)
            before.own = True
        else:
            pending[key] = Contributions(before, gradient)

    for edge, cotangent in targets:
        if edge[0] in order or edge[0] in source_nodes:
            contribute(edge, cotangent)
    for node, wanted in reversed(order.items()):
        if len(node.outputs) == 1:
            g = pending.pop(node, None)
            if g is None:
                continue
            if type(g) is not _ndarray:
                g = _whole(g, add)
            if visit is not None:
                g = visit(node, 0, g)
            if node in source_nodes:
                result[node, 0] = g
        else:
            g = _cotangents(node, pending, add, visit)
            if g is None:
                continue
            if node in source_nodes:
                result.update({(node, i): one for i, one in enumerate(g) if one is not None and (node, i) in sources})
            wanted = wanted and _that_reach(node, wanted, g)
        if wanted is _NONE:
            continue
        pullback = node.op.pullback if pull and type(g) is _ndarray and node.backend == "host" else None
        gradients = run(node, g, wanted) if pullback is None else pullback(node, g, wanted)
        if wanted is _ONLY or wanted is _LEFT:  # the same as below, without the loop
            gradient, edge = gradients[0], node.inputs[0]
            key = edge[0]  # pyright: ignore[reportOptionalSubscript]
            if type(gradient) is _ndarray and key not in pending and len(key.outputs) == 1:
                pending[key] = gradient
            else:
                contribute(edge, gradient)  # pyright: ignore[reportArgumentType]
            continue
        for index, edge in enumerate(node.inputs):
            if wanted[index]:
                gradient = gradients[index]
                key = edge[0]  # pyright: ignore[reportOptionalSubscript]  (a wanted input has a producer)
                if type(gradient) is _ndarray and key not in pending and len(key.outputs) == 1:
                    pending[key] = gradient
                else:
                    contribute(edge, gradient)  # pyright: ignore[reportArgumentType]
    for edge in sources:
        if edge not in result:
            left = _whole(pending.pop(edge[0] if len(edge[0].outputs) == 1 else edge, None), add)
            if left is not None:
                result[edge] = left
    return result
