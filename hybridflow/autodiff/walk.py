"""The walk back from targets to sources: the one place where gradients are handed on and added up.

However a gradient is asked for, it is this walk that makes it, with one order of everything:

* Nodes are visited in the reverse of the order in which they were recorded, and a node hands its contributions to its
  inputs in their order. So contributions to a value come from its consumers, the last one first; what a target starts
  from comes before all others.
* The first contribution is added last, to the sum of the others, which are added as they come: ``g1, g2, g3, g4`` is
  ``((g2 + g3) + g4) + g1``. The first one is a residual's, from far away, and what is made of the others stays among
  them; were it added first, XLA would compute it again in every layer before. Added as they come, the gradients for
  weights that every step of a loop reads are not all kept.

Ways of asking differ in how a node's rule is called and two contributions are added (an `Engine`), in nothing else.
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

T = TypeVar("T")
Wanted = tuple[bool, ...]
Visit = Callable[[Node, int, Any], Any]
EVER = (-1, 1 << 62)
"""An interval that every node is in."""
_ndarray = np.ndarray
_NONE: Wanted = ()
_ONLY: Wanted = (True,)
_LEFT: Wanted = (True, False)
_RIGHT: Wanted = (False, True)
_BOTH: Wanted = (True, True)


class Engine(Protocol):
    """How contributions are added and rules are called."""

    def add(self, a: Any, b: Any, own: bool = False) -> Any:
        """Add two contributions; if `own`, nobody else has `a`, so the sum may be written there."""

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Return a gradient, a function computing it, or None, per input; `g` is a tuple for several outputs."""
        ...

    def walk(self, loop: Callable[[], T], users_rules: bool) -> T:
        """Run a walk in the surroundings that the engine needs, and return what it does.

        Args:
            loop: the walk.
            users_rules: whether a rule of the user's, which may do anything, is among those that it calls.
        """
        ...


class Contributions:
    """Several contributions to one value.

    Attributes:
        far: the first one.
        near: the sum of the others.
        own: whether that sum is an array that nobody else has.
    """

    __slots__ = ("far", "near", "own")

    def __init__(self, far: Any, near: Any) -> None:
        self.far = far
        self.near = near
        self.own = False


class Paths(NamedTuple):
    """What is between sources and targets.

    Attributes:
        order: the nodes that depend on sources, in recording order, each with which of its inputs do; a source's own
            node is among them, without wanted inputs unless it depends on other sources.
        users_rules: whether the rule of one of them is the user's.
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
    return sorted(reversed(seen), key=attrgetter("sequence"))  # of what is nearly in order already


def paths(nodes: Iterable[Node], sources: set[Node], *, flat: bool = False) -> Paths:
    """Return the paths from sources through nodes in recording order.

    With `flat`, a path may go through what is constant almost everywhere.
    """
    found = set(sources)
    order: dict[Node, Wanted] = {}
    users_rules = False
    for node in nodes:
        inputs = node.inputs
        count = len(inputs)
        if count == 1:
            edge = inputs[0]
            wanted = _ONLY if edge is not None and edge[0] in found else _NONE
        elif count == 2:
            a, b = inputs
            if a is not None and a[0] in found:
                wanted = _BOTH if b is not None and b[0] in found else _LEFT
            else:
                wanted = _RIGHT if b is not None and b[0] in found else _NONE
        else:
            wanted = tuple([edge is not None and edge[0] in found for edge in inputs])
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
            found.add(node)
            order[node] = wanted
        elif node in sources:
            order[node] = _NONE
    return Paths(order, users_rules)


def _that_reach(node: Node, wanted: Wanted, gs: Sequence[Any] | None = None) -> Wanted:
    """Return which of the wanted inputs of an operation that carries graphs its outputs depend on.

    Args:
        node: the node.
        wanted: the wanted inputs.
        gs: the outputs' gradients: only those that are not None count.
    """
    depends = of_node(node)
    if depends is None:
        return wanted
    reach = 0
    for index, (through, behind) in enumerate(depends):
        if gs is None or gs[index] is not None:
            reach |= through | behind  # zeros are for the rule to give
    found = tuple([one and bool(reach >> number & 1) for number, one in enumerate(wanted)])
    return found if True in found else _NONE


def _passes(op: Op, flat: bool) -> bool:
    kind = type(op.vjp)
    return kind is not Stops and (flat or kind is not Flat)


def connected(nodes: Iterable[Node], sources: Iterable[Edge], *, flat: bool = False) -> dict[Node, Wanted]:
    """Return the nodes that depend on sources as `paths` does, and all nodes of the sources, not in recording order."""
    of_sources = dict.fromkeys([node for node, _ in sources], _NONE)
    return of_sources | paths(nodes, set(of_sources), flat=flat).order


def _whole(found: Any, add: Callable[[Any, Any, bool], Any]) -> Any:
    """Return the sum of what came to a value so far."""
    return add(found.near, found.far, found.own) if type(found) is Contributions else found


def _cotangents(
    node: Node, pending: dict[Any, Any], add: Callable[[Any, Any, bool], Any], visit: Visit | None
) -> tuple[Any, ...] | None:
    """Take the gradients of a node of several outputs from those that are pending; None if there are none."""
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

    A value is known by its node if that has one output, and by its edge otherwise.

    Args:
        targets: edges with their cotangents.
        sources: the edges whose gradients are wanted.
        order: what is walked: see `Paths`.
        engine: how to compute.
        visit: what is called with the whole gradient of each output of a node, and may return another.
        pull: whether the rule of an operation on the host may be called as `Op.pullback`, which is what `engine.run`
            would do: a call for every node is spared.

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
            if type(g) is Contributions:
                g = add(g.near, g.far, g.own)
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
        if wanted is _ONLY:  # as below, without a loop
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
