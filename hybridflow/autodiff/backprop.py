"""`backprop`: reverse-mode differentiation over nodes, the one walk behind every gradient.

Two engines run the same walk. `RawEngine` works on bare arrays (NumPy kernels, or one jitted function per rule);
`BoundEngine` works on tensors through `bind`, so that what it computes is traced, or recorded for a higher order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast

import jax
import numpy as np

from hybridflow.autodiff.host_walk import walk_on_host, wanted_inputs
from hybridflow.autodiff.namespaces import HOST, PUBLIC, XLA
from hybridflow.backend.host import LOCAL
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.attrs import attrs_key
from hybridflow.core.autocast import without_autocast
from hybridflow.core.context import current
from hybridflow.core.device import place
from hybridflow.core.dispatch import as_arrays, quick_to_compile, run_raw
from hybridflow.core.dtypes import LOW_PRECISION, is_differentiable
from hybridflow.core.errors import GradientError, message
from hybridflow.core.forked import require_xla
from hybridflow.core.node import Edge, Node, in_gradient
from hybridflow.core.op import REGISTRY, Flat, Joint, No, Op, Stops
from hybridflow.core.profiling import PROFILER
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.effects import silenced_in

Wanted = tuple[bool, ...]
T = TypeVar("T", bound="Tensor | None")
Visit = Callable[[Node, int, Any], Any]
EVER = (-1, 1 << 62)
"""An interval that every node is in."""


class Engine(Protocol):
    """How cotangents are added and rules are run."""

    def add(self, a: Any, b: Any) -> Any:
        """Add two contributions."""

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Return a gradient, a function computing it, or None, per input; `g` is a tuple for several outputs."""
        ...

    def walk(self, loop: Callable[[], None], nodes: Iterable[Node]) -> None:
        """Run the loop over nodes in the surroundings that the engine needs."""


_ONLY: Wanted = (True,)


class Contributions:
    """Several contributions to one value.

    The far one (a residual's) comes first, and is added last: what is made of the others stays among them. Those are
    added as they come, so that the gradients for weights that every step of a loop reads are not all kept.

    Attributes:
        far: the first one.
        near: the sum of the others.
    """

    __slots__ = ("far", "near")

    def __init__(self, far: Any, near: Any) -> None:
        self.far = far
        self.near = near


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


def connected(nodes: Iterable[Node], sources: Iterable[Edge], *, flat: bool = False) -> dict[Node, Wanted]:
    """Return the nodes that depend on the sources, each with which of its inputs do.

    The sources' own nodes are among them, without wanted inputs unless they depend on other sources. With `flat`,
    dependence through what is constant almost everywhere counts too.
    """
    found: dict[Node, Wanted] = {node: () for node, _ in sources}
    for node in nodes:
        kind = type(node.op.vjp)
        if kind is Stops or (kind is Flat and not flat):
            continue
        inputs = node.inputs
        if len(inputs) == 1:
            edge = inputs[0]
            if edge is not None and edge[0] in found:
                found[node] = _ONLY
            continue
        if len(inputs) == 2:
            a, b = inputs
            wanted = (a is not None and a[0] in found, b is not None and b[0] in found)
        else:
            wanted = tuple([edge is not None and edge[0] in found for edge in inputs])
        if True in wanted:
            found[node] = wanted
    return found


def backprop(
    targets: Sequence[tuple[Edge, Any]],
    sources: set[Edge],
    nodes: Sequence[Node],
    engine: Engine,
    visit: Visit | None = None,
) -> dict[Edge, Any]:
    """Walk back from targets to sources.

    Args:
        targets: edges with their cotangents.
        sources: the edges whose gradients are wanted.
        nodes: the nodes the targets depend on, in recording order (see `reachable`).
        engine: how to compute.
        visit: what is called with the whole gradient of each output of a node, and may return another.

    Returns:
        The gradient of each source that a path reaches; the others have none.
    """
    found = _walked(targets, sources, nodes, engine, visit)
    if len(found) < len(sources):
        found |= _zeros_behind_flat(targets, sources - found.keys(), nodes)
    return found


def _zeros_behind_flat(
    targets: Sequence[tuple[Edge, Any]], sources: set[Edge], nodes: Sequence[Node]
) -> dict[Edge, Any]:
    """Return zeros for those sources that targets depend on through what is constant almost everywhere."""
    if not any(type(node.op.vjp) is Flat for node in nodes):
        return {}
    members = set(nodes)
    stack = [(edge, False) for edge, _ in targets]
    seen: set[tuple[Edge, bool]] = set()
    while stack:
        state = stack.pop()
        (node, index), flat = state
        if state in seen or not is_differentiable(node.spec(index).dtype):
            continue
        seen.add(state)
        kind = type(node.op.vjp)
        if node in members and kind is not Stops:
            stack += [(edge, flat or kind is Flat) for edge in node.inputs if edge is not None]
    traced = any(isinstance(cotangent, Tensor) for _, cotangent in targets)
    found: dict[Edge, Any] = {}
    for edge in sources:
        if (edge, True) in seen:
            spec = edge[0].spec(edge[1])
            found[edge] = (
                PUBLIC.full(spec.shape, 0, dtype=spec.dtype) if traced else np.zeros(spec.shape, spec.dtype)
            )
    return found


def _walked(
    targets: Sequence[tuple[Edge, Any]],
    sources: set[Edge],
    nodes: Sequence[Node],
    engine: Engine,
    visit: Visit | None,
) -> dict[Edge, Any]:
    """Return what a walk gives, which goes through no operation that is constant almost everywhere."""
    profiler = PROFILER.get()
    if profiler is not None and current().tracer is None:
        engine = profiler.engine(engine)
    if engine is RAW and visit is None:
        order = wanted_inputs(nodes, {node for node, _ in sources})
        if order is not None:
            return LOCAL.run(walk_on_host, targets, sources, order, RAW.arguments, RAW.run, RAW.add)
    walk = _Walk(sources, nodes, engine, visit)
    for edge, cotangent in targets:
        if edge[0] in walk.needed:
            walk.contribute(edge, cotangent)
    with without_autocast():  # a gradient is computed in the dtypes of what it is the gradient of
        engine.walk(walk.loop, nodes)
    return walk.finish()


_ARRAY = np.ndarray


class _Walk:
    """One walk: what is pending for each value, and what the sources got.

    A value is known by its node if that has one output, and by its edge otherwise.
    """

    def __init__(
        self, sources: set[Edge], nodes: Sequence[Node], engine: Engine, visit: Visit | None = None
    ) -> None:
        self.sources = sources
        self.visit = visit
        self.nodes = nodes
        self.engine = engine
        self.needed = connected(nodes, sources)
        self.pending: dict[Any, Any] = {}
        self.result: dict[Edge, Any] = {}

    def contribute(self, edge: Edge, gradient: Any) -> None:
        """Add a contribution to what is pending for a value."""
        key = edge[0] if len(edge[0].outputs) == 1 else edge
        before = self.pending.get(key)
        if before is None:
            self.pending[key] = gradient
        elif type(before) is Contributions:
            before.near = self.engine.add(before.near, gradient)
        else:
            self.pending[key] = Contributions(before, gradient)

    def total(self, found: Any) -> Any:
        """Return the sum of contributions; anything else is returned as it is."""
        return self.engine.add(found.near, found.far) if type(found) is Contributions else found

    def cotangents(self, node: Node) -> tuple[Any, ...] | None:
        """Return the cotangents of a node with several outputs, or None if it has none."""
        gs = tuple([self.total(self.pending.pop((node, index), None)) for index in range(len(node.outputs))])
        if self.visit is not None:
            gs = tuple([None if one is None else self.visit(node, index, one) for index, one in enumerate(gs)])
        for index, one in enumerate(gs):
            if one is not None and (node, index) in self.sources:
                self.result[node, index] = one
        return None if all(one is None for one in gs) else gs

    def loop(self) -> None:
        """Visit the needed nodes from the last to the first."""
        pending, needed, run, visit = self.pending, self.needed, self.engine.run, self.visit
        source_nodes = {node for node, _ in self.sources}
        for node in reversed(self.nodes):
            wanted = needed.get(node)
            if wanted is None:
                continue
            if len(node.outputs) == 1:
                g = pending.pop(node, None)
                if type(g) is Contributions:
                    g = self.total(g)
                if visit is not None and g is not None:
                    g = visit(node, 0, g)
                if node in source_nodes and g is not None:
                    self.result[node, 0] = g
            else:
                g = self.cotangents(node)
            if g is None or not wanted:
                continue
            gradients = run(node, g, wanted)
            for index, edge in enumerate(node.inputs):
                if wanted[index]:
                    key = edge[0]  # pyright: ignore[reportOptionalSubscript]  (a wanted input has a producer)
                    if type(gradients[index]) is _ARRAY and key not in pending and len(key.outputs) == 1:
                        pending[key] = gradients[index]
                    else:
                        self.hand_over(edge, gradients[index])

    def hand_over(self, edge: Edge | None, gradient: Any) -> None:
        """Contribute a gradient, computing it first if it is a function that does."""
        if type(gradient) is FunctionType:
            gradient = gradient()
        if gradient is not None and edge is not None:
            self.contribute(edge, gradient)

    def finish(self) -> dict[Edge, Any]:
        """Return the sources' gradients, those included that no walked node made."""
        for edge in self.sources:
            if edge not in self.result:
                left = self.total(self.pending.pop(edge[0] if len(edge[0].outputs) == 1 else edge, None))
                if left is not None:
                    self.result[edge] = left
        return self.result


def rule_of(op: Op) -> Callable[..., Any]:
    """Return an op's gradient rule.

    Raises:
        GradientError: if it has none.
    """
    if isinstance(op.vjp, No):
        raise GradientError(
            message(f"{op.name}: has no gradient: {op.vjp.why}", hint="Use hf.stop_gradient if none is wanted.")
        )
    return op.vjp


def _visible(node: Node, g: Any) -> tuple[Any, bool]:
    """Return the visible cotangents as a rule takes them, and whether a hidden output has one too."""
    hidden = node.op.hidden_outputs(node.attrs)
    if not hidden:
        return g, False
    visible = len(node.outputs) - hidden
    through_hidden = any(one is not None for one in g[visible:])
    return (g[0] if visible == 1 else g[:visible]), through_hidden


def apply_rule(
    rule: Callable[..., Any], F: Any, g: Any, args: Sequence[Any], attrs: dict[str, Any], wanted: Wanted
) -> list[Any]:
    """Call a rule and compute those of its results that are wanted."""
    if isinstance(rule, Joint):
        gradients = rule.rule(F, g, *args, wanted=wanted, **attrs)
    else:
        gradients = rule(F, g, *args, **attrs)
    return [
        (gradient() if type(gradient) is FunctionType else gradient) if want and gradient is not None else None
        for gradient, want in zip(gradients, wanted, strict=True)
    ]


def _computed(gradients: Iterable[Any], wanted: Wanted) -> list[Any]:
    """Compute the wanted results of a rule that ran on NumPy arrays, as arrays."""
    found: list[Any] = []
    for gradient, want in zip(gradients, wanted, strict=True):
        if not want or gradient is None:
            found.append(None)
            continue
        value = gradient() if type(gradient) is FunctionType else gradient
        found.append(value if type(value) is np.ndarray or value is None else np.asarray(value))
    return found


def input_spec(node: Node, index: int) -> TensorSpec:
    """Return the spec of a node's input."""
    edge = node.inputs[index]
    if edge is not None:
        return edge[0].spec(edge[1])
    assert node.input_specs is not None
    found = node.input_specs[index]
    assert found is not None
    return make_spec(found[0], found[1])


def _output_specs(node: Node) -> Any:
    return node.spec() if len(node.outputs) == 1 else node.specs


def _rule_attrs(node: Node) -> dict[str, Any]:
    if "residuals" not in node.attrs:
        return node.attrs
    return {name: value for name, value in node.attrs.items() if name != "residuals"}


_HOST_VALUES = (np.ndarray, np.generic)


class RawEngine:
    """Computes on bare arrays; nothing it does is recorded."""

    def add(self, a: Any, b: Any) -> Any:
        """Add two contributions where the first one lives."""
        if isinstance(a, _HOST_VALUES) and isinstance(b, _HOST_VALUES) and a.dtype.num not in LOW_PRECISION:
            return np.add(a, b)
        return run_raw(REGISTRY["add"], [as_arrays(a), as_arrays(b)], {})

    def walk(self, loop: Callable[[], None], nodes: Iterable[Node]) -> None:
        """Run the loop where NumPy is quiet; user's rules, which may do anything, keep it outside."""
        if any("tensor_rule" in node.op.traits for node in nodes):
            loop()
        else:
            LOCAL.run(loop)

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule on its backend."""
        op = node.op
        if "tensor_rule" in op.traits:
            return self._run_tensor_rule(node, g, wanted)
        rule = rule_of(op)
        visible, through_hidden = _visible(node, g)
        if through_hidden:
            return self._run_tensor_rule(node, g, wanted)
        g = visible
        args, attrs = self.arguments(node), _rule_attrs(node)
        if node.backend != "host":
            require_xla(f"the gradient of {op.name}")
            own = op.jitted.get("rule")  # a compiled call's is compiled already
            if own is not None:
                return own(g, args, wanted)
            return self._run_jitted(op, rule, g, args, attrs, wanted)
        g = tuple([None if x is None else np.asarray(x) for x in g]) if type(g) is tuple else np.asarray(g)
        found = None if op.host_rule is None else op.host_rule(g, *args, **attrs)
        return _computed(rule(HOST, g, *args, **attrs) if found is None else found, wanted)

    def arguments(self, node: Node) -> Sequence[Any]:
        """Return ``(y, *xs)``: what was saved, and specs in the places of the rest that the rule looks at."""
        saved = node.saved
        assert saved is not None
        args: list[Any] | None = None
        for index in node.op.spec_arguments(len(saved)):
            value = saved[index]
            if value is None:
                filled: Any = input_spec(node, index - 1) if index else _output_specs(node)
            elif index == 0 and type(value) is tuple and None in value:
                filled = tuple([node.spec(i) if one is None else one for i, one in enumerate(value)])
            else:
                continue
            if args is None:
                args = list(saved)
            args[index] = filled
        return saved if args is None else args

    def _run_jitted(
        self, op: Op, rule: Callable[..., Any], g: Any, args: Sequence[Any], attrs: dict[str, Any], wanted: Wanted
    ) -> Sequence[Any]:
        leaves, tree = jax.tree_util.tree_flatten((g, args), is_leaf=lambda x: isinstance(x, TensorSpec))
        fixed = tuple([leaf if isinstance(leaf, TensorSpec) else None for leaf in leaves])
        cache = op.jitted
        for value in attrs.values():
            if hasattr(value, "executables"):
                cache = value.executables
        arrays = [leaf for leaf in leaves if not isinstance(leaf, TensorSpec)]
        quick = quick_to_compile(op, arrays)
        key = ("vjp", op.name, quick, attrs_key(attrs), wanted, fixed, tree)
        found = cache.get(key)
        if found is None:

            def run(arrays: list[Any]) -> list[Any]:
                given = iter(arrays)
                full = [next(given) if spec is None else spec for spec in fixed]
                cotangent, rest = jax.tree_util.tree_unflatten(tree, full)
                return apply_rule(rule, XLA, cotangent, rest, attrs, wanted)

            found = cache[key] = jax.jit(run, compiler_options=compiler_options(eager=quick))
        with enable_x64():
            return found(arrays)

    def _run_tensor_rule(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        def tensor(value: Any) -> Any:
            return None if value is None else make_tensor(_home(value))

        tensors = BOUND.run(node, tuple(map(tensor, g)) if type(g) is tuple else tensor(g), wanted)
        return [None if tensor is None else tensor._value for tensor in tensors]


def _home(value: Any) -> Any:
    """Return a raw gradient as a tensor may hold it."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    return place(value, next(iter(value.devices())))


class BoundEngine:
    """Computes on tensors through `bind`."""

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Add two contributions; in a graph the sum is where one of them is."""
        tracer = current().tracer
        if not isinstance(tracer, GraphBuilder) or b._edge is None:
            return PUBLIC.add(a, b)
        outer, tracer.place = tracer.place, b._edge[0].where
        first = len(tracer.nodes)
        try:
            return PUBLIC.add(a, b)
        finally:
            tracer.place = outer
            of = tracer.gradient_of.get(b._edge[0])
            if of is not None:
                tracer.gradient_of.update(dict.fromkeys(tracer.nodes[first:], of))

    def walk(self, loop: Callable[[], None], nodes: Iterable[Node]) -> None:
        """Run the loop as it is."""
        del nodes
        loop()

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule on tensors that are connected to the node's own inputs and outputs."""
        tracer = current().tracer
        if not isinstance(tracer, GraphBuilder):
            return self._apply(node, g, wanted)
        outer, tracer.place = tracer.place, in_gradient(node.where)
        first = len(tracer.nodes)
        try:
            return self._apply(node, g, wanted)
        finally:
            tracer.place = outer
            for made in tracer.nodes[first:]:
                tracer.gradient_of.setdefault(made, node)

    def _apply(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        rule = rule_of(node.op)
        visible, through_hidden = _visible(node, g)
        if through_hidden:
            return self._through_hidden(node, g, wanted)
        return apply_rule(rule, PUBLIC, visible, self._arguments(node), _rule_attrs(node), wanted)

    def _arguments(self, node: Node) -> list[Any]:
        saves = node.op.saves
        traced = node.scope is not None
        saved = node.saved
        hidden_from = len(node.outputs) - node.op.hidden_outputs(node.attrs)

        def output(index: int) -> Any:
            if not saves.y and index < hidden_from:
                return node.spec(index)
            if not traced and node.saved is not None and node.saved[0] is None:
                return node.spec(index)
            if traced:
                return make_tensor(None, (node, index))
            assert saved is not None
            value = saved[0][index] if type(saved[0]) is tuple else saved[0]
            return make_tensor(value, (node, index))

        def source(index: int) -> Any:
            if not saves.keeps(index):
                return input_spec(node, index)
            if traced:
                return make_tensor(None, node.inputs[index])
            assert saved is not None
            value = saved[index + 1]
            return input_spec(node, index) if value is None else make_tensor(value, node.inputs[index])

        count = len(node.outputs)
        y = output(0) if count == 1 else tuple([output(index) for index in range(count)])
        return [y, *[source(index) for index in range(len(node.inputs))]]

    def _through_hidden(self, node: Node, cotangents: Sequence[Any], wanted: Wanted) -> Sequence[Any]:
        """Differentiate a hidden output too: only a second order asks.

        An op that carries graphs runs again with them exposed, and has its own rule; for others jax's rule answers.
        """
        from hybridflow.ops.jax_rule import vjp_of_lowering

        xs: list[Any] = []
        for index, edge in enumerate(node.inputs):
            if node.scope is not None:
                xs.append(make_tensor(None, edge))
                continue
            assert node.saved is not None
            value = node.saved[index + 1]
            if value is None:
                raise GradientError(
                    message(f"{node.op.name}: its second-order gradient needs an input that was not saved")
                )
            xs.append(make_tensor(value, edge))
        expose = node.op.saves.expose
        if expose is not None:
            return self._through_exposed(node.op, xs, cotangents, silenced_in(expose(_rule_attrs(node))), wanted)
        return vjp_of_lowering(node.op, xs, cotangents, node.attrs, wanted)

    def _through_exposed(
        self, op: Op, xs: list[Any], cotangents: Sequence[Any], attrs: dict[str, Any], wanted: Wanted
    ) -> Sequence[Any]:
        tracer = cast(GraphBuilder, current().tracer)
        outputs = tracer.bind_all(op, xs, attrs, residuals=True)
        hidden = op.hidden_outputs({**attrs, "residuals": True})
        y = outputs if op.saves.y else tuple([
            output if index >= len(outputs) - hidden else output.spec for index, output in enumerate(outputs)
        ])  # fmt: skip
        g = tuple(cotangents)
        return apply_rule(
            rule_of(op), PUBLIC, g[0] if len(g) == 1 else g, [y[0] if len(y) == 1 else y, *xs], attrs, wanted
        )


def conjugates(gradients: list[T]) -> list[T]:
    """Turn gradients from the walk's convention for complex numbers into the users', or back.

    Rules and the walk keep jax's: the change of a real target is the real part of ``gradient * change``, summed, so
    rules of holomorphic functions conjugate nothing. Users get and give the conjugate, ``d/dx + i d/dy``, the
    direction of steepest ascent. Whatever hands gradients to users, or takes them, comes by here.

    Reference:
        K. Kreutz-Delgado, "The complex gradient operator and the CR-calculus", 2009, section 4.
    """
    for index, gradient in enumerate(gradients):
        if gradient is not None and gradient.dtype.kind == "c":
            gradients[index] = PUBLIC.conj(gradient)
    return gradients


RAW = RawEngine()
BOUND = BoundEngine()
