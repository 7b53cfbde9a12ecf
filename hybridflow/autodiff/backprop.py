"""`backprop`: reverse-mode differentiation over nodes, the one walk behind every gradient.

Two engines run the same walk. `RawEngine` works on bare arrays (NumPy kernels, or one jitted function per rule);
`BoundEngine` works on tensors through `bind`, so that what it computes is traced, or recorded for a higher order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from types import FunctionType
from typing import Any, Protocol, cast

import jax
import numpy as np

from hybridflow.autodiff.namespaces import HOST, PUBLIC, XLA
from hybridflow.backend.host import LOCAL
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.backend.options import compiler_options
from hybridflow.core.context import current
from hybridflow.core.device import place
from hybridflow.core.dispatch import as_arrays
from hybridflow.core.errors import GradientError, message
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import REGISTRY, No, Op, Stops
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.ir.builder import GraphBuilder

Wanted = tuple[bool, ...]
InScope = Callable[[Node], bool]


class Engine(Protocol):
    """How cotangents are added and rules are run."""

    def add(self, a: Any, b: Any) -> Any:
        """Add two contributions."""

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Return one gradient, or None, per input of a node; `g` is a tuple if the node has several outputs."""

    def walk(self, loop: Callable[[], None], nodes: Iterable[Node]) -> None:
        """Run the loop over nodes in the surroundings that the engine needs."""


class _Sum(list[Any]):
    """Contributions to one value, before they are added."""


def reachable(targets: Iterable[Edge], in_scope: InScope) -> list[Node]:
    """Return the nodes that targets depend on, in recording order."""
    seen: set[Node] = set()
    stack = [node for node, _ in targets]
    while stack:
        node = stack.pop()
        if node in seen or not in_scope(node):
            continue
        seen.add(node)
        for edge in node.inputs:
            if edge is not None:
                stack.append(edge[0])
    return sorted(seen, key=attrgetter("sequence"))


def connected(nodes: Iterable[Node], sources: Iterable[Edge]) -> dict[Node, Wanted]:
    """Return the nodes that depend on the sources, each with which of its inputs do.

    The sources' own nodes are among them, without wanted inputs unless they depend on other sources.
    """
    found: dict[Node, Wanted] = {node: () for node, _ in sources}
    for node in nodes:
        if type(node.op.vjp) is Stops:
            continue
        wanted = [edge is not None and edge[0] in found for edge in node.inputs]
        if True in wanted:
            found[node] = tuple(wanted)
    return found


def backprop(
    targets: Sequence[tuple[Edge, Any]], sources: set[Edge], nodes: Sequence[Node], engine: Engine
) -> dict[Edge, Any]:
    """Walk back from targets to sources.

    Args:
        targets: edges with their cotangents.
        sources: the edges whose gradients are wanted.
        nodes: the nodes the targets depend on, in recording order (see `reachable`).
        engine: how to compute.

    Returns:
        The gradient of each source that a path reaches; the others have none.
    """
    needed = connected(nodes, sources)
    source_nodes = {node for node, _ in sources}
    pending: dict[Any, Any] = {}
    result: dict[Edge, Any] = {}

    def contribute(edge: Edge, gradient: Any) -> None:
        key = edge[0] if len(edge[0].outputs) == 1 else edge
        before = pending.get(key)
        if before is None:
            pending[key] = gradient
        elif type(before) is _Sum:
            before.append(gradient)
        else:
            pending[key] = _Sum((before, gradient))

    def total(key: Any) -> Any:
        found = pending.pop(key, None)
        if type(found) is not _Sum:
            return found
        # The far contribution (a residual's) came first: sum the local ones before it is added.
        added = found[-1]
        for index in range(len(found) - 2, -1, -1):
            added = engine.add(added, found[index])
        return added

    def loop() -> None:
        for node in reversed(nodes):
            wanted = needed.get(node)
            if wanted is None:
                continue
            count = len(node.outputs)
            if count == 1:
                g = total(node)
                if g is None:
                    continue
                if node in source_nodes:
                    result[node, 0] = g
            else:
                g = tuple([total((node, index)) for index in range(count)])
                some = False
                for index, one in enumerate(g):
                    if one is not None:
                        some = True
                        if (node, index) in sources:
                            result[node, index] = one
                if not some:
                    continue
            if wanted:
                for edge, want, gradient in zip(node.inputs, wanted, engine.run(node, g, wanted), strict=True):
                    if want and gradient is not None:
                        contribute(cast(Edge, edge), gradient)

    for edge, cotangent in targets:
        if edge[0] in needed:
            contribute(edge, cotangent)
    engine.walk(loop, nodes)
    for edge in sources:  # those that no walked node made
        if edge not in result:
            left = total(edge[0] if len(edge[0].outputs) == 1 else edge)
            if left is not None:
                result[edge] = left
    return result


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
    gradients = rule(F, g, *args, **attrs)
    return [
        (gradient() if type(gradient) is FunctionType else gradient) if want and gradient is not None else None
        for gradient, want in zip(gradients, wanted, strict=True)
    ]


def input_spec(node: Node, index: int) -> TensorSpec:
    """Return the spec of a node's input."""
    edge = node.inputs[index]
    if edge is not None:
        return edge[0].spec(edge[1])
    assert node.input_specs is not None
    pair = node.input_specs[index]
    assert pair is not None
    return make_spec(*pair)


def _rule_attrs(node: Node) -> dict[str, Any]:
    if "residuals" not in node.attrs:
        return node.attrs
    return {name: value for name, value in node.attrs.items() if name != "residuals"}


class RawEngine:
    """Computes on bare arrays; nothing it does is recorded."""

    def add(self, a: Any, b: Any) -> Any:
        """Add two contributions where the first one lives."""
        if type(a) is np.ndarray and type(b) is np.ndarray and a.dtype.itemsize > 2:
            return as_arrays(np.add(a, b))
        from hybridflow.core.dispatch import run_raw

        return run_raw(REGISTRY["add"], [a, b], {})

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
        attrs = node.attrs
        if op.saves.hidden:
            attrs = _rule_attrs(node)
            g, through_hidden = _visible(node, g)
            if through_hidden:
                raise GradientError(f"{op.name}: a hidden output has a gradient outside a recording")
        args = self._arguments(node)
        if node.backend != "host":
            return self._run_jitted(op, rule, g, args, attrs, wanted)
        if type(g) is not np.ndarray:
            g = tuple([None if x is None else np.asarray(x) for x in g]) if type(g) is tuple else np.asarray(g)
        gradients = rule(HOST, g, *args, **attrs)
        found: list[Any] = []
        for gradient, want in zip(gradients, wanted, strict=True):
            if not want:
                found.append(None)
                continue
            if type(gradient) is FunctionType:
                gradient = gradient()
            found.append(gradient if type(gradient) is np.ndarray or gradient is None else np.asarray(gradient))
        return found

    def _arguments(self, node: Node) -> Sequence[Any]:
        """Return ``(y, *xs)``: what was saved, and specs in the places of the rest that the rule looks at."""
        saved = node.saved
        assert saved is not None
        args: list[Any] | None = None
        for index in node.op.spec_arguments(len(saved)):
            value = saved[index]
            if value is None:
                filled: Any = input_spec(node, index - 1) if index else node.specs if len(node.outputs) > 1 else node.spec()
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
        key = ("vjp", op.name, *attrs.items(), wanted, fixed, tree)
        found = cache.get(key)
        if found is None:

            def run(arrays: list[Any]) -> list[Any]:
                given = iter(arrays)
                full = [next(given) if spec is None else spec for spec in fixed]
                cotangent, rest = jax.tree_util.tree_unflatten(tree, full)
                return apply_rule(rule, XLA, cotangent, rest, attrs, wanted)

            found = cache[key] = jax.jit(run, compiler_options=compiler_options(eager=not op.has("nested")))
        arrays = [leaf for leaf in leaves if not isinstance(leaf, TensorSpec)]
        with enable_x64():
            return found(arrays)

    def _run_tensor_rule(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        def tensor(value: Any) -> Any:
            return None if value is None else make_tensor(_home(value))

        tensors = BOUND.run(node, tuple(map(tensor, g)) if type(g) is tuple else tensor(g), wanted)
        return [None if tensor is None else tensor._value for tensor in tensors]


def _home(value: Any) -> Any:
    """Return a raw gradient as a tensor may hold it."""
    if isinstance(value, np.ndarray):
        return cast(Any, value)
    return place(value, next(iter(value.devices())))


class BoundEngine:
    """Computes on tensors through `bind`."""

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Add two contributions."""
        return PUBLIC.add(a, b)

    def walk(self, loop: Callable[[], None], nodes: Iterable[Node]) -> None:
        """Run the loop as it is."""
        del nodes
        loop()

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule on tensors that are connected to the node's own inputs and outputs."""
        tracer = current().tracer
        if not isinstance(tracer, GraphBuilder):
            return self._apply(node, g, wanted)
        outer, tracer.place = tracer.place, node.where
        try:
            return self._apply(node, g, wanted)
        finally:
            tracer.place = outer

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
            return make_tensor(saved[index + 1], node.inputs[index])

        count = len(node.outputs)
        y = output(0) if count == 1 else tuple([output(index) for index in range(count)])
        return [y, *[source(index) for index in range(len(node.inputs))]]

    def _through_hidden(self, node: Node, cotangents: Sequence[Any], wanted: Wanted) -> Sequence[Any]:
        """Differentiate a hidden output too: only a second order asks, and jax's own rule answers."""
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
        return vjp_of_lowering(node.op, xs, cotangents, node.attrs, wanted)


RAW = RawEngine()
BOUND = BoundEngine()
