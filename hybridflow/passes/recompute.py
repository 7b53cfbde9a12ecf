"""Computing values again instead of keeping them: plans of ever less memory, made of what nodes cost.

A value that is read long after it was computed is alive in between. Where that is at the peak of a graph's memory, it
can be computed again shortly before it is read, from what is alive then anyway. One such step after the other, the
cheapest first, gives a sequence of plans, each of which needs less memory and more operations than the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


from hybridflow.backend.fusion import after
from hybridflow.core.dims import SIZES
from hybridflow.core.node import Edge, Node, Where, make_node
from hybridflow.core.op import No, Op, register
from hybridflow.ir.costs import moves_nothing, node_cost
from hybridflow.ir.effects import has_effect, has_effects
from hybridflow.ir.graph import Graph, clone_node, nested_graphs
from hybridflow.ir.liveness import bytes_of

_FLOPS_PER_BYTE = 4
"""How many floating-point operations cost as much time as moving a byte; only ratios of costs matter."""
_TOO_MANY = 400
"""Operations that one value is computed again from at most."""
_AT_ONCE = 8
"""Values that are given up between two looks at what giving up the others costs."""


def _first(x: Any, then: Any) -> Any:
    del then
    return x


TIED = register(
    Op(
        "tied",
        _first,
        after,
        _first,
        No("put into graphs that nobody differentiates any more"),
        samples=No("made by passes; tested with them"),
        traits=frozenset({"layout", "reads_never"}),
        ulp=0,
    )
)
"""``(x, then)`` to x, for XLA only there once `then` is computed: what is computed of it is not what was before."""


@dataclass(eq=False)
class _Value:
    """One output of a step.

    Attributes:
        edge: the value in the graph that the plan is of.
        size: its bytes; 0 for views, and for what is there before and after.
        step: what computes it, None for inputs.
        root: the value whose memory it is.
    """

    edge: Edge
    size: int
    step: _Step | None
    root: _Value | None = None

    @property
    def memory(self) -> _Value:
        """What is alive where this value is."""
        return self if self.root is None else self.root.memory


@dataclass(eq=False)
class _Step:
    """A node of the graph, or a second run of one.

    Attributes:
        node: the node.
        inputs: what it reads.
        outputs: what it computes.
        cost: what computing it costs, in bytes moved.
        after: of a second run: what must be computed before, None where it reads a second run's results anyway.
        again: whether it is a second run.
        position: where it stands.
    """

    node: Node
    inputs: list[_Value]
    outputs: list[_Value]
    cost: float
    after: _Value | None = None
    again: bool = False
    position: int = 0


class Recomputed(NamedTuple):
    """What a plan computes again of one place of the user's code.

    Attributes:
        where: the place.
        operations: the operations there that run again, and how often.
        flops: what that costs per call, floating-point operations.
    """

    where: Where | None
    operations: dict[str, int]
    flops: int


@dataclass(frozen=True)
class Plan:
    """An order of first and second runs.

    Attributes:
        peak: the bytes of computed values that are alive at its peak, as far as the graph tells.
        steps: the runs.
    """

    peak: int
    steps: tuple[tuple[_Step, tuple[_Value, ...]], ...] = field(repr=False)

    def graph(self, graph: Graph) -> Graph:
        """Return the graph that runs the plan."""
        return _built(graph, self.steps)

    @property
    def recomputed(self) -> tuple[Recomputed, ...]:
        """What is computed again, per place, the most expensive first."""
        counts: dict[Where | None, Counter[str]] = {}
        flops: Counter[Where | None] = Counter()
        for step, _ in self.steps:
            if step.again and not moves_nothing(step.node):
                counts.setdefault(step.node.where, Counter())[step.node.op.name] += 1
                flops[step.node.where] += node_cost(step.node).flops
        found = [Recomputed(where, dict(names), flops[where]) for where, names in counts.items()]
        return tuple(sorted(found, key=lambda one: -one.flops))

    @property
    def flops(self) -> int:
        """What computing again costs per call."""
        return sum(one.flops for one in self.recomputed)


def plans(graph: Graph, sizes: dict[str, int] | None = None) -> list[Plan]:
    """Return plans of ever less memory; the first computes nothing again.

    Args:
        graph: the graph, after its passes.
        sizes: the size of each symbol.
    """
    token = SIZES.set((graph.dims, sizes or {}))
    try:
        return list(_Planner(graph, graph.dims.hints if sizes is None else sizes).plans())
    finally:
        SIZES.reset(token)


class _Planner:
    def __init__(self, graph: Graph, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.values: dict[Edge, _Value] = {(node, 0): _Value((node, 0), 0, None) for node in graph.inputs}
        self.steps = [self._step(node) for node in graph.nodes]
        self.results = [self.values[edge] for edge in graph.outputs]
        self.last: dict[_Value, int] = {}
        self.uses: dict[_Value, list[_Step]] = {}
        self.rejected: set[_Value] = set()

    def _step(self, node: Node) -> _Step:
        inputs = [self.values[edge] for edge in node.inputs if edge is not None]
        view = bool(inputs) and moves_nothing(node)
        found = node_cost(node)
        cost = 0.0 if view else float(found.moved + found.flops / _FLOPS_PER_BYTE)
        step = _Step(node, inputs, [], cost)
        free = view or (not node.inputs and node.op.has("source"))
        for index in range(len(node.outputs)):
            edge = (node, index)
            value = _Value(edge, 0 if free else bytes_of(edge, self.sizes), step, inputs[0] if view else None)
            step.outputs.append(value)
            self.values[edge] = value
        return step

    # -- the sequence of plans --------------------------------------------------------------------------------

    def plans(self) -> Iterator[Plan]:
        """Yield plans, each of less memory than the one before."""
        profile = self._profile()
        best = max(profile, default=0)
        yield self._plan(best)
        while True:
            found = self._candidates(profile.index(best)) if profile else []
            progress = False
            for _, value in found[:_AT_ONCE]:
                changed = self._give_up(value, profile)
                if changed is None:
                    self.rejected.add(value)
                    continue
                progress, profile = True, changed
                if max(profile) < best:
                    best = max(profile)
                    yield self._plan(best)
                    break
            if not progress and len(found) <= _AT_ONCE:
                return

    def _plan(self, peak: int) -> Plan:
        return Plan(peak, tuple([(step, tuple(step.inputs)) for step in self.steps]))

    def _profile(self) -> list[int]:
        """Return the bytes that are alive at every step; positions and uses are brought up to date."""
        last: dict[_Value, int] = {}
        uses: dict[_Value, list[_Step]] = {}
        for position, step in enumerate(self.steps):
            step.position = position
            for value in step.inputs:
                last[value.memory] = position
                last[value] = position
                uses.setdefault(value, []).append(step)
            if step.after is not None:
                last[step.after.memory] = position
                last[step.after] = position
        end = len(self.steps)
        for value in self.results:
            last[value.memory] = last[value] = end
        self.last, self.uses = last, uses
        dying = [0] * (end + 1)
        now, profile = 0, list[int]()
        for position, step in enumerate(self.steps):
            for value in step.outputs:
                now += value.size
                dying[last.get(value, position)] += value.size
            profile.append(now)
            now -= dying[position]
        return profile

    def _candidates(self, peak: int) -> list[tuple[float, _Value]]:
        """Return what is alive at a position but not read there, cheapest to compute again per byte first."""
        reads = {value.memory for value in self.steps[peak].inputs}
        found: list[tuple[float, _Value]] = []
        for step in self.steps[:peak]:
            for value in step.outputs:
                if value.size and self.last.get(value, -1) > peak and value not in reads and value not in self.rejected:
                    needed = self._needed(value, peak)
                    if needed is not None:
                        found.append((sum(one.cost for one in needed) / value.size, value))
        found.sort(key=lambda one: (one[0], one[1].step.position if one[1].step is not None else 0))
        return found

    def _late_uses(self, value: _Value, peak: int) -> list[tuple[_Value, _Step]]:
        """Return who reads a value, or a view of it, after a position."""
        found: list[tuple[_Value, _Step]] = []
        stack = [value]
        while stack:
            one = stack.pop()
            for step in self.uses.get(one, ()):
                if step.position > peak:
                    found.append((one, step))
                elif step.outputs and step.outputs[0].root is one:
                    stack.append(step.outputs[0])
        return found

    def _needed(self, value: _Value, peak: int) -> list[_Step] | None:
        """Return the steps that compute a value again from what is alive when it is read after a position.

        Returns:
            The steps, None if the value is a result or cannot be computed again.
        """
        late = self._late_uses(value, peak)
        if not late or value in self.results or any(one in self.results for one, _ in late):
            return None
        first = min(step.position for _, step in late)
        return self._again([one for one, _ in late], value, first)

    def _again(self, wanted: Sequence[_Value], lost: _Value, first: int) -> list[_Step] | None:
        steps: set[_Step] = set()
        stack = [one.step for one in wanted]
        while stack:
            step = stack.pop()
            if step in steps:
                continue
            if step is None or len(steps) > _TOO_MANY or has_effect(step.node) or any(
                map(has_effects, nested_graphs(step.node))
            ):  # fmt: skip
                return None
            steps.add(step)
            for one in step.inputs:
                there = one.memory is not lost and (one.memory.step is None or self._is_there(one, first))
                if not there:
                    stack.append(one.step)
        return sorted(steps, key=lambda one: one.position)

    def _is_there(self, value: _Value, position: int) -> bool:
        """Whether a value is alive at a position anyway."""
        memory = value.memory
        if memory.step is None or not memory.size:
            return True
        return memory.step.position < position <= self.last.get(memory, -1)

    def _give_up(self, value: _Value, before: list[int]) -> list[int] | None:
        """Compute a value again where it is read after the peak; return what is alive then, None if it does not help.

        Then nothing has changed.
        """
        peak = before.index(max(before))
        late = self._late_uses(value, peak)
        needed = self._needed(value, peak)
        if needed is None:
            return None
        first = min((step for _, step in late), key=lambda one: one.position)
        then = self._latest(first, value)
        if then is None:
            return None
        copies = self._copies(needed, then)
        kept_steps, kept_inputs = self.steps, [(step, list(step.inputs)) for _, step in late]
        self.steps = [*kept_steps[: first.position], *copies[1], *kept_steps[first.position :]]
        for _, step in late:
            step.inputs = [copies[0].get(one, one) for one in step.inputs]
        profile = self._profile()
        top, old = max(profile), max(before)
        if top < old or (top == old and profile.count(top) < before.count(old)):
            return profile
        self.steps = kept_steps
        for step, inputs in kept_inputs:
            step.inputs = inputs
        self._profile()
        return None

    def _latest(self, first: _Step, value: _Value) -> _Value | None:
        """Return what is computed last of what is there before a step, by which its inputs are tied to that time."""
        mine = [one for one in first.inputs if one.memory is not value and one.step is not None and one.memory.size]
        late = [one for one in mine if one.step is not None and one.step.position > 0]
        if late:
            return max(late, key=lambda one: one.step.position if one.step is not None else -1)
        for step in reversed(self.steps[: first.position]):
            for one in step.outputs:
                if one.size:
                    return one
        return None

    @staticmethod
    def _copies(needed: Sequence[_Step], then: _Value) -> tuple[dict[_Value, _Value], list[_Step]]:
        """Return second runs of steps, and what they compute by what the first ones do."""
        moved: dict[_Value, _Value] = {}
        copies: list[_Step] = []
        for step in needed:
            inputs = [moved.get(one, one) for one in step.inputs]
            depends = any(one in moved for one in step.inputs)
            copy = _Step(step.node, inputs, [], step.cost, None if depends else then, again=True)
            for one in step.outputs:
                root = None if one.root is None else moved.get(one.root, one.root)
                moved[one] = _Value(one.edge, one.size, copy, root)
                copy.outputs.append(moved[one])
            copies.append(copy)
        return moved, copies


# -- the graph of a plan ------------------------------------------------------------------------------------------


def _built(graph: Graph, steps: Sequence[tuple[_Step, tuple[_Value, ...]]]) -> Graph:
    """Return a graph that runs steps in their order."""
    if not any(step.again for step, _ in steps):
        return graph
    edges: dict[_Value, Edge] = {}
    nodes: list[Node] = []
    moved: dict[Edge, Edge] = {}

    def edge_of(value: _Value) -> Edge:
        return edges.get(value, value.edge)

    for step, values in steps:
        inputs = [edge_of(value) for value in values]
        if step.after is not None and inputs:
            tied = min(range(len(inputs)), key=lambda index: _size(inputs[index]))
            nodes.append(make_node(TIED, (inputs[tied], edge_of(step.after)), {}, (_spec(inputs[tied]),),
                                   where=step.node.where, scope=step.node.scope))  # fmt: skip
            inputs[tied] = (nodes[-1], 0)
        made = step.node
        if step.again or tuple(inputs) != step.node.inputs:
            made = clone_node(step.node, tuple(inputs))
        nodes.append(made)
        for index, value in enumerate(step.outputs):
            edges[value] = (made, index)
            if not step.again:
                moved[step.node, index] = (made, index)
    outputs = tuple([moved.get(edge, edge) for edge in graph.outputs])
    return Graph(graph.name, graph.inputs, tuple(nodes), outputs, graph.dims)


def _spec(edge: Edge) -> Any:
    return edge[0].spec(edge[1])


def _size(edge: Edge) -> Any:
    return _spec(edge).nbytes if _spec(edge).size else 1 << 60
