"""`backprop`: reverse-mode differentiation over nodes, the one walk behind every gradient.

Two engines run the same walk. `RawEngine` works on bare arrays (NumPy kernels, or one jitted function per rule);
`BoundEngine` works on tensors through `bind`, so that what it computes is traced, or recorded for a higher order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
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
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.ir.builder import GraphBuilder

Wanted = tuple[bool, ...]
InScope = Callable[[Node], bool]


class Engine(Protocol):
    """How cotangents are added and rules are run."""

    def add(self, a: Any, b: Any) -> Any:
        """Add two contributions."""

    def run(self, node: Node, cotangents: list[Any], wanted: Wanted) -> Sequence[Any]:
        """Return one gradient, or None, per input of a node."""


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


def connected(nodes: Iterable[Node], sources: set[Edge]) -> set[Edge]:
    """Return the edges that depend on the sources, the sources included."""
    found = set(sources)
    for node in nodes:
        if type(node.op.vjp) is Stops:
            continue
        for edge in node.inputs:
            if edge is not None and edge in found:
                for index in range(len(node.outputs)):
                    found.add((node, index))
                break
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
    pending: dict[Edge, list[Any]] = {}
    for edge, cotangent in targets:
        if edge in needed:
            pending.setdefault(edge, []).append(cotangent)
    result: dict[Edge, Any] = {}
    for node in reversed(nodes):
        cotangents: list[Any] = []
        some = False
        for index in range(len(node.outputs)):
            edge = (node, index)
            contributions = pending.pop(edge, None)
            total = None
            if contributions is not None:
                some = True
                # The far contribution (a residual's) came first: sum the local ones before it is added.
                total = contributions[-1]
                for other in reversed(contributions[:-1]):
                    total = engine.add(total, other)
                if edge in sources:
                    result[edge] = total
            cotangents.append(total)
        if not some:
            continue
        wanted = tuple([edge is not None and edge in needed for edge in node.inputs])
        if True not in wanted:
            continue
        for edge, gradient in zip(node.inputs, engine.run(node, cotangents, wanted), strict=True):
            if gradient is not None and edge is not None and edge in needed:
                contributions = pending.get(edge)
                if contributions is None:
                    pending[edge] = [gradient]
                else:
                    contributions.append(gradient)
    for edge, contributions in pending.items():  # sources that no walked node made
        if edge in sources:
            total = contributions[-1]
            for other in reversed(contributions[:-1]):
                total = engine.add(total, other)
            result[edge] = total
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


def _split(op: Op, node: Node, cotangents: list[Any]) -> tuple[Any, bool]:
    """Return the visible cotangents as a rule takes them, and whether a hidden output has one too."""
    visible = len(node.outputs) - op.hidden_outputs(node.attrs)
    through_hidden = any(g is not None for g in cotangents[visible:])
    return (cotangents[0] if visible == 1 else tuple(cotangents[:visible])), through_hidden


def apply_rule(
    rule: Callable[..., Any], F: Any, g: Any, args: Sequence[Any], attrs: dict[str, Any], wanted: Wanted
) -> list[Any]:
    """Call a rule and compute those of its results that are wanted."""
    gradients = rule(F, g, *args, **attrs)
    return [
        (gradient() if callable(gradient) else gradient) if want and gradient is not None else None
        for gradient, want in zip(gradients, wanted, strict=True)
    ]


def input_spec(node: Node, index: int) -> TensorSpec:
    """Return the spec of a node's input."""
    edge = node.inputs[index]
    if edge is not None:
        return edge[0].spec(edge[1])
    assert node.input_specs is not None
    spec = node.input_specs[index]
    assert spec is not None
    return spec


def _rule_attrs(node: Node) -> dict[str, Any]:
    if "residuals" not in node.attrs:
        return node.attrs
    return {name: value for name, value in node.attrs.items() if name != "residuals"}


class RawEngine:
    """Computes on bare arrays; nothing it does is recorded."""

    def add(self, a: Any, b: Any) -> Any:
        """Add two contributions where the first one lives."""
        if type(a) is np.ndarray and type(b) is np.ndarray and a.dtype.itemsize > 2:
            return as_arrays(LOCAL.run(np.add, a, b))
        from hybridflow.core.dispatch import run_raw

        return run_raw(REGISTRY["add"], [a, b], {})

    def run(self, node: Node, cotangents: list[Any], wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule on its backend."""
        op = node.op
        if "tensor_rule" in op.traits:
            return self._run_tensor_rule(node, cotangents, wanted)
        args = self._arguments(node)
        g, through_hidden = _split(op, node, cotangents)
        rule = rule_of(op)
        if through_hidden:
            raise GradientError(f"{op.name}: a hidden output has a gradient outside a recording")
        attrs = _rule_attrs(node)
        if node.backend != "host":
            return self._run_jitted(op, rule, g, args, attrs, wanted)
        if type(g) is not np.ndarray:
            g = tuple([None if x is None else np.asarray(x) for x in g]) if type(g) is tuple else np.asarray(g)
        gradients = LOCAL.run(apply_rule, rule, HOST, g, args, attrs, wanted)
        return [None if x is None else x if type(x) is np.ndarray else np.asarray(x) for x in gradients]

    def _arguments(self, node: Node) -> list[Any]:
        saved = node.saved
        assert saved is not None
        args = list(saved)
        y = args[0]
        if y is None:
            args[0] = node.spec() if len(node.outputs) == 1 else node.specs
        elif type(y) is tuple and None in y:
            args[0] = tuple([node.spec(i) if value is None else value for i, value in enumerate(y)])
        for index in range(1, len(args)):
            if args[index] is None:
                args[index] = input_spec(node, index - 1)
        return args

    def _run_jitted(
        self, op: Op, rule: Callable[..., Any], g: Any, args: list[Any], attrs: dict[str, Any], wanted: Wanted
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

    def _run_tensor_rule(self, node: Node, cotangents: list[Any], wanted: Wanted) -> Sequence[Any]:
        tensors = BoundEngine().run(node, [None if g is None else make_tensor(_home(g)) for g in cotangents], wanted)
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

    def run(self, node: Node, cotangents: list[Any], wanted: Wanted) -> Sequence[Any]:
        """Run a node's rule on tensors that are connected to the node's own inputs and outputs."""
        op = node.op
        args = self._arguments(node)
        g, through_hidden = _split(op, node, cotangents)
        tracer = current().tracer
        if not isinstance(tracer, GraphBuilder):
            return self._apply(node, g, args, cotangents, wanted, through_hidden)
        outer, tracer.place = tracer.place, node.where
        try:
            return self._apply(node, g, args, cotangents, wanted, through_hidden)
        finally:
            tracer.place = outer

    def _apply(
        self, node: Node, g: Any, args: list[Any], cotangents: list[Any], wanted: Wanted, through_hidden: bool
    ) -> Sequence[Any]:
        if through_hidden:
            return self._through_hidden(node, cotangents, wanted)
        return apply_rule(rule_of(node.op), PUBLIC, g, args, _rule_attrs(node), wanted)

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

    def _through_hidden(self, node: Node, cotangents: list[Any], wanted: Wanted) -> Sequence[Any]:
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
