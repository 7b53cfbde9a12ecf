"""Plans that recompute values instead of keeping them, to use less memory.

A value that is read long after it was computed occupies memory in between. If it does so at the peak of a graph's
memory, it can be computed again shortly before it is read, from values that are alive then anyway. A planner gives up
such values one by one, the cheapest first. This gives a sequence of plans. Each plan needs less memory and more
operations than the one before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hybridflow.core.node import Edge, Node, Where, make_node
from hybridflow.ir.costs import Cost, bodies, graph_cost, moves_nothing, own_cost
from hybridflow.ir.effects import has_effect, has_effects
from hybridflow.ir.fusion import TIED
from hybridflow.ir.graph import Graph, clone_node, nested_graphs
from hybridflow.ir.liveness import bytes_of, roots
from hybridflow.passes.lib.stored import is_kept
from hybridflow.passes.lib.ties import Ties

_FLOPS_PER_BYTE = 4
"""The number of floating-point operations that take as long as moving a byte; only ratios of costs matter."""
_TOO_MANY = 400
"""The most operations that may run again for one value."""
_AT_ONCE = 8
"""The most candidates to try before their costs are computed again."""


@dataclass(eq=False)
class _Value:
    """One output of a step.

    Attributes:
        edge: the value in the planned graph.
        size: its bytes; 0 for values that are not stored, and for inputs and results.
        step: the step that computes it; None for inputs.
        roots: the values that must be alive when it is read: itself, or those from which XLA recomputes it.
    """

    edge: Edge
    size: int
    step: _Step | None
    roots: tuple[_Value, ...] = ()

    def stored(self, size: int) -> _Value:
        """Give the value memory of its own, and return it."""
        self.size, self.roots = size, (self,)
        return self


@dataclass(eq=False)
class _Step:
    """A node of the graph, or a second run of one.

    Attributes:
        node: the node.
        inputs: the values it reads.
        outputs: the values it computes.
        cost: the cost of computing it, in bytes moved.
        flops: its floating-point operations.
        after: for a second run, the value that must be computed before it; None if it reads a second run's results.
        again: whether it is a second run.
        tied: the position of the input that is tied to `after`.
        position: its position in the order of steps.
    """

    node: Node
    inputs: list[_Value]
    outputs: list[_Value]
    cost: float
    flops: int
    after: _Value | None = None
    again: bool = False
    tied: int = 0
    position: int = 0

    def roots(self) -> tuple[_Value, ...]:
        """Return the values that must be alive when its results are computed."""
        return tuple(dict.fromkeys([root for one in self.inputs for root in one.roots]))


class _Needed(NamedTuple):
    """The steps that compute a value again.

    Attributes:
        steps: the steps that run again.
        there: the results of earlier second runs that replace those of first runs.
    """

    steps: list[_Step]
    there: dict[_Value, _Value]


class Recomputed(NamedTuple):
    """What a plan computes again for one line of user code.

    Attributes:
        where: the line.
        operations: the names of its operations that run again, with the number of second runs.
        flops: the cost per call, in floating-point operations.
    """

    where: Where | None
    operations: dict[str, int]
    flops: int


@dataclass(frozen=True)
class Plan:
    """The order in which a graph's nodes run, with nodes that run a second time to save memory.

    Attributes:
        peak: the largest number of bytes of computed values that are alive at once, estimated from the graph.
        steps: the runs.
    """

    peak: int
    steps: tuple[tuple[_Step, tuple[_Value, ...]], ...] = field(repr=False)

    @classmethod
    def of(cls, graph: Graph) -> Plan:
        """Return the plan that runs a graph as it is."""
        del graph
        return cls(0, ())

    def graph(self, graph: Graph) -> Graph:
        """Return the graph that runs the plan."""
        return _built(graph, self.steps)

    @property
    def recomputed(self) -> tuple[Recomputed, ...]:
        """What is computed again per line of user code, the most expensive first."""
        counts: dict[Where | None, Counter[str]] = {}
        flops: Counter[Where | None] = Counter()
        for step, _ in self.steps:
            if step.again and not moves_nothing(step.node):
                counts.setdefault(step.node.where, Counter())[step.node.op.name] += 1
                flops[step.node.where] += step.flops
        recomputed = [Recomputed(where, dict(names), flops[where]) for where, names in counts.items()]
        return tuple(sorted(recomputed, key=lambda one: -one.flops))

    @property
    def flops(self) -> int:
        """The floating-point operations that recomputing costs per call."""
        return sum(one.flops for one in self.recomputed)


def plans(graph: Graph, sizes: dict[str, int] | None = None) -> list[Plan]:
    """Return plans, each of less memory than the one before; the first computes nothing again.

    Args:
        graph: the graph, after its passes.
        sizes: the size of each symbol.
    """
    return list(_Planner(graph, graph.dims.hints if sizes is None else sizes).plans())


def _cost(node: Node, sizes: dict[str, int]) -> Cost:
    """Return the cost of a node, including the graphs it carries."""
    return own_cost(node, sizes) if bodies(node) is None else graph_cost(Graph("node", (), (node,), ()), sizes)


class _Planner:
    def __init__(self, graph: Graph, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self._ties = Ties(sizes)
        self.values: dict[Edge, _Value] = {(node, 0): _Value((node, 0), 0, None).stored(0) for node in graph.inputs}
        self.outputs = frozenset(graph.outputs)
        self.materialized = _materialized(graph)
        self.steps = [self._step(node) for node in graph.nodes]
        self.results = frozenset([self.values[edge] for edge in graph.outputs])
        self.last: dict[_Value, int] = {}
        self.uses: dict[_Value, list[_Step]] = {}
        self.rejected: set[_Value] = set()
        self.seconds: dict[Node, list[_Step]] = {}
        self.steps = self._early()

    def _early(self) -> list[_Step]:
        """Return the steps ordered so that those that free more memory than they take run as early as possible."""
        readers: dict[_Value, list[_Step]] = {}
        left: dict[_Step, int] = {}
        unread: dict[_Value, int] = {}
        for step in self.steps:
            inputs = dict.fromkeys(step.inputs)
            left[step] = sum(one.step is not None for one in inputs)
            for one in inputs:
                readers.setdefault(one, []).append(step)
                for root in one.roots:
                    unread[root] = unread.get(root, 0) + 1
        order: dict[_Step, None] = {}

        def run(step: _Step) -> None:
            order[step] = None
            ready: list[_Step] = []
            for one in dict.fromkeys(step.inputs):
                for root in one.roots:
                    unread[root] -= 1
            for value in step.outputs:
                for reader in readers.get(value, ()):
                    left[reader] -= 1
                    if not left[reader] and reader not in order:
                        ready.append(reader)
            for reader in ready:
                taken = sum(value.size for value in reader.outputs)
                read = Counter([root for one in dict.fromkeys(reader.inputs) for root in one.roots])
                freed = sum(root.size for root, times in read.items() if unread[root] == times)
                if reader not in order and taken <= freed and reader.node.inputs:
                    run(reader)

        for step in sorted(self.steps, key=lambda one: bool(one.inputs)):  # steps without inputs come first
            if step not in order:
                run(step)
        return list(order)

    def _step(self, node: Node) -> _Step:
        inputs = [self.values[edge] for edge in node.inputs if edge is not None]
        costs = _cost(node, self.sizes)
        stored = any((node, index) in self.materialized for index in range(len(node.outputs)))
        cost = costs.flops / _FLOPS_PER_BYTE + (costs.moved if stored else 0)
        step = _Step(node, inputs, [], float(cost), int(costs.flops))
        for index in range(len(node.outputs)):
            self.values[node, index] = self._output(step, index)
        return step

    def _output(self, step: _Step, index: int) -> _Value:
        """Add an output to a step."""
        edge = (step.node, index)
        value = _Value(edge, 0, step)
        if edge in self.materialized or not step.inputs:
            # Graph results and values without inputs do not count; a second run's result does.
            free = not step.inputs or (edge in self.outputs and not step.again)
            value.stored(0 if free else bytes_of(edge, self.sizes))
        else:
            value.roots = step.roots()
        step.outputs.append(value)
        return value

    # -- the sequence of plans --------------------------------------------------------------------------------

    def plans(self) -> Iterator[Plan]:
        """Yield plans, each of less memory than the one before."""
        profile = self._profile()
        best = max(profile, default=0)
        yield self._plan(best)
        while True:
            candidates = self._candidates(profile.index(best)) if profile else []
            progress = False
            for _, value in candidates[:_AT_ONCE]:
                changed = self._give_up(value, profile)
                if changed is None:
                    self.rejected.add(value)
                    continue
                progress, profile = True, changed
                if max(profile) < best:
                    best = max(profile)
                    self.rejected.clear()
                    yield self._plan(best)
                    break
            if not progress and len(candidates) <= _AT_ONCE:
                return

    def _plan(self, peak: int) -> Plan:
        return Plan(peak, tuple([(step, tuple(step.inputs)) for step in self.steps]))

    def _profile(self) -> list[int]:
        """Return the bytes that are alive at every step, and update positions, last uses and readers."""
        last: dict[_Value, int] = {}
        uses: dict[_Value, list[_Step]] = {}
        self.seconds = {}
        for position, step in enumerate(self.steps):
            step.position = position
            if step.again:
                self.seconds.setdefault(step.node, []).append(step)
            for value in step.outputs:
                if value.size == 0 and value.roots != (value,):
                    value.roots = step.roots()
            for value in step.inputs:
                for root in value.roots:
                    last[root] = position
                uses.setdefault(value, []).append(step)
            if step.after is not None:
                for root in step.after.roots:
                    last[root] = position
        end = len(self.steps)
        for value in self.results:
            for root in value.roots:
                last[root] = end
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
        """Return the values that are alive at a position but not read there, each with its cost per byte.

        The cost is that of computing the value again; the cheapest comes first.
        """
        reads = {root for value in self.steps[peak].inputs for root in value.roots}
        candidates: list[tuple[float, _Value]] = []
        for step in self.steps[:peak]:
            for value in () if step.again else step.outputs:
                if value.size and self.last.get(value, -1) > peak and value not in reads and value not in self.rejected:
                    needed = self._needed(value, peak)
                    if needed is not None:
                        cost = sum(one.cost for one in needed.steps if one.node not in self.seconds)
                        candidates.append((cost / value.size, value))
        candidates.sort(key=lambda one: (one[0], one[1].step.position if one[1].step is not None else 0))
        return candidates

    def _late_uses(self, value: _Value, peak: int) -> list[tuple[_Value, _Step]]:
        """Return the readers of a value after a position, including readers of values that XLA recomputes from it."""
        uses: list[tuple[_Value, _Step]] = []
        stack, seen = [value], {value}
        while stack:
            one = stack.pop()
            for step in self.uses.get(one, ()):
                if step.position > peak:
                    uses.append((one, step))
                    continue
                derived = [each for each in step.outputs if value in each.roots and each not in seen]
                seen.update(derived)
                stack.extend(derived)
        return uses

    def _needed(self, value: _Value, peak: int) -> _Needed | None:
        """Return the steps that compute a value again from the values alive at its first read after a position.

        Returns:
            The steps, None if the value is a result of the graph or cannot be computed again.
        """
        late = self._late_uses(value, peak)
        if not late or any(value in one.roots for one in self.results):
            return None
        first = min(step.position for _, step in late)
        return self._again([one for one, _ in late], value, first)

    def _again(self, wanted: Sequence[_Value], lost: _Value, first: int) -> _Needed | None:
        steps: set[_Step] = set()
        there: dict[_Value, _Value] = {}
        stack = [one.step for one in wanted]
        while stack:
            step = stack.pop()
            if step in steps:
                continue
            if step is None or len(steps) > _TOO_MANY or has_effect(step.node) or any(
                map(has_effects, nested_graphs(step.node))
            ):
                return None
            steps.add(step)
            for one in step.inputs:
                if lost not in one.roots and self._is_there(one, first):
                    continue
                second = self._second(one, first)
                if second is None:
                    stack.append(one.step)
                else:
                    there[one] = second
        return _Needed(sorted(steps, key=lambda one: one.position), there)

    def _second(self, value: _Value, position: int) -> _Value | None:
        """Return a second run's result that equals this value and is alive at a position, or None."""
        if value.step is None:
            return None
        for step in self.seconds.get(value.step.node, ()):
            result = step.outputs[value.edge[1]]
            if step.position < position and self._is_there(result, position):
                return result
        return None

    def _is_there(self, value: _Value, position: int) -> bool:
        """Whether a value is alive at a position, or can be computed from values that are."""
        return all(
            root.step is None or not root.size or root.step.position < position <= self.last.get(root, -1)
            for root in value.roots
        )

    def _give_up(self, value: _Value, before: list[int]) -> list[int] | None:
        """Compute a value again for its readers after the peak.

        Returns:
            The new profile of bytes alive. None if this does not help; the steps are then as before.
        """
        peak = before.index(max(before))
        late = self._late_uses(value, peak)
        needed = self._needed(value, peak)
        if needed is None:
            return None
        first = min((step for _, step in late), key=lambda one: one.position)
        then = self._latest(first, value, peak)
        if then is None:
            return None
        steps, inputs = self.steps, [list(step.inputs) for step in self.steps]
        for merge in (True, False):
            moved, copies = self._copies(needed, then)
            self.steps = [*steps[: first.position], *copies, *steps[first.position :]]
            for _, step in late:
                step.inputs = [moved.get(one, one) for one in step.inputs]
            if merge:
                self._merge(copies, first.position)
            profile = self._profile()
            top, old = max(profile), max(before)
            if top < old or (top == old and profile.count(top) < before.count(old)):
                return profile
            self.steps = steps
            for step, values in zip(steps, inputs, strict=True):
                step.inputs = list(values)
            self._profile()
        return None

    def _merge(self, copies: Sequence[_Step], position: int) -> None:
        """Drop the later copies of nodes that were copied now, and let the readers of those use the new copies."""
        moved: dict[_Value, _Value] = {}
        gone: set[_Step] = set()
        for copy in copies:
            for other in self.seconds.get(copy.node, ()):
                if other not in gone and other.position >= position:
                    gone.add(other)
                    moved.update(zip(other.outputs, copy.outputs, strict=True))
        if not gone:
            return
        self.steps = [step for step in self.steps if step not in gone]
        for step in self.steps:
            step.inputs = [moved.get(one, one) for one in step.inputs]
            if step.after in moved:
                step.after = moved[step.after]
        read = {one for step in self.steps for one in (*step.inputs, step.after)}
        kept: list[_Step] = []
        for step in reversed(self.steps):
            if step.again and not any(one in read for one in step.outputs):
                continue
            kept.append(step)
        self.steps = kept[::-1]

    def _latest(self, first: _Step, value: _Value, peak: int) -> _Value | None:
        """Return the value that is computed last before a step.

        Second runs are tied to it, so that they do not start earlier.
        """
        roots = [root for one in first.inputs for root in one.roots if root.size and root is not value]
        late = [root for root in roots if root.step is not None and root.step.position > peak]
        if late:
            return max(late, key=lambda one: one.step.position if one.step is not None else -1)
        for step in reversed(self.steps[: first.position]):
            for one in step.outputs:
                if one.size:
                    return one
        return None

    def _copies(self, needed: _Needed, then: _Value) -> tuple[dict[_Value, _Value], list[_Step]]:
        """Return a map from the first runs' values to the second runs' values, and the steps of the second runs."""
        moved: dict[_Value, _Value] = dict(needed.there)
        copies: list[_Step] = []
        for step in needed.steps:
            inputs = [moved.get(one, one) for one in step.inputs]
            depends = any(one in moved for one in step.inputs)
            copy = _Step(step.node, inputs, [], step.cost, step.flops, None if depends else then, again=True)
            copy.tied = self._ties.position(step.node, [one.edge for one in inputs]) or 0
            for index, one in enumerate(step.outputs):
                moved[one] = self._output(copy, index)
            copies.append(copy)
        return moved, copies


def _materialized(graph: Graph) -> set[Edge]:
    """Return the values that XLA stores: results, expensive values, and the inputs of expensive nodes."""
    stored: set[Edge] = set(graph.outputs)
    for node in graph.nodes:
        if not node.op.has("source") and is_kept(node, graph, 1):
            stored.update([(node, index) for index in range(len(node.outputs))])
            stored.update([edge for edge in node.inputs if edge is not None])
    views = roots(graph)
    return {views.get(edge, edge) for edge in stored}


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
            node, index = inputs[step.tied]
            both = (inputs[step.tied], edge_of(step.after))
            nodes.append(
                make_node(TIED, both, {}, (node.spec(index),), where=step.node.where, scope=step.node.scope)
            )
            inputs[step.tied] = (nodes[-1], 0)
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

