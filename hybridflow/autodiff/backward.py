"""`.backward()`: gradients of values that require them, by the same walk over the same nodes as for tapes."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

from hybridflow.autodiff.backprop import BOUND, QUIET, RAW, backprop, conjugates
from hybridflow.autodiff.requires_grad import checked_like, detach, known_edge, read_gradient, write_gradient
from hybridflow.autodiff.seeds import ones
from hybridflow.autodiff.walk import Engine
from hybridflow.core.context import current
from hybridflow.core.dispatch import as_arrays
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import GradientError, NonScalarError
from hybridflow.core.functions import as_traced
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import FOREVER, Edge, Node
from hybridflow.core.notes import Notes, requires
from hybridflow.core.op import No, Op
from hybridflow.core.sources import INPUT
from hybridflow.core.tensor import Tensor, as_tensor, describe, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import GraphBuilder


@dataclass(frozen=True)
class _Freed(No):
    """The rule of an operation whose saved values an earlier `.backward()` freed."""

    op: Op


_AGAIN = "an earlier .backward() freed what its gradient needs; call that one with retain_graph=True"


@with_foreign_keywords
def backward(self: Tensor | Variable, gradient: Any = None, retain_graph: bool = False) -> None:
    """Compute the gradients of this value, and add them to ``.grad`` of the leaves that it was computed from.

    Args:
        gradient: the gradient of the value itself, of its shape and dtype; optional for one element, where it is 1.
        retain_graph: whether to keep the recording, so that another `.backward()` can go through it.

    Raises:
        GradientError: if nothing requires a gradient, or an earlier call freed the graph.
        NonScalarError: if `gradient` is missing for several elements; it is also a ValueError and a RuntimeError.
        ShapeError: if it has another shape.
        DTypeError: if `gradient` has another dtype.
    """
    target = as_tensor(self)
    edge = known_edge(target)
    if edge is None or not requires(edge) or not is_differentiable(target.dtype):
        raise GradientError("backward: the tensor does not require a gradient", got=describe(target),
                            hint="Compute it, outside of hf.no_grad(), from hf.tensor(x, requires_grad=True) or "
                                 "hf.Variable(x, requires_grad=True).")
    tracer = current().tracer
    walk = _Backward(edge, tracer if isinstance(tracer, GraphBuilder) else None)
    walk.run(edge, _seed(target, gradient))
    walk.accumulate()
    if not retain_graph:
        walk.free()


def recorded_nodes(edge: Edge) -> list[Node]:
    """Return the nodes that `.backward()` of a value walks, in recording order: back to the leaves and no further."""
    seen: set[Node] = set()
    stack = [edge[0]]
    while stack:
        node = stack.pop()
        if node in seen or node.stamp != FOREVER:
            continue
        seen.add(node)
        if not _is_leaf(node):
            stack.extend(one[0] for one in node.inputs if one is not None)
    return sorted(seen, key=attrgetter("sequence"))


def _is_leaf(node: Node) -> bool:
    notes: dict[int, Notes] = getattr(node, "notes", {})
    return any(one.leaf for one in notes.values())


def _serves_others(node: Node) -> bool:
    """Whether a node is a compiled call with several results: `.backward()` may be called on each of them."""
    return node.op.has("nested") and len(node.outputs) - node.op.hidden_outputs(node.attrs) > 1


def _specs_without_values(node: Node) -> list[Any]:
    """Return the specs of a node's inputs, which stay when the values are freed."""
    saved = [None if x is None else (x.shape, x.dtype, None if x.ndim else x) for x in (node.saved or ())[1:]]
    if node.input_specs is None:
        return saved
    return [spec if spec is not None else one for spec, one in zip(node.input_specs, saved, strict=True)]


def is_freed(node: Node, tracer: GraphBuilder | None) -> bool:
    """Whether an earlier `.backward()` freed an operation."""
    return isinstance(node.op.vjp, _Freed) or (tracer is not None and node in tracer.freed)


def _seed(target: Tensor, gradient: Any) -> Tensor:
    if gradient is not None:
        return checked_like(gradient, target, "backward")
    if target.size != 1:
        raise NonScalarError(f"backward: the tensor has shape {target.shape}, so its gradient must be given",
                             got=describe(target), hint="Reduce it first, or pass gradient= of its shape.")
    return ones(target)


class _Backward:
    """One call of `.backward()`: it computes all gradients first, and only then writes them to the leaves."""

    def __init__(self, edge: Edge, tracer: GraphBuilder | None) -> None:
        self.tracer = tracer
        self.leaves: dict[Edge, Notes] = {}
        self.leaf_nodes: set[Node] = set()
        self.noted: dict[Node, dict[int, Notes]] = {}
        self.retained: list[tuple[Notes, Tensor]] = []
        self.totals: list[tuple[Notes, Tensor]] = []
        self.nodes = self._collect(edge)

    def _collect(self, edge: Edge) -> list[Node]:
        """Return the nodes to walk, in recording order; collect leaves and hooks, and raise for freed nodes."""
        seen: set[Node] = set()
        stack = [edge[0]]
        while stack:
            node = stack.pop()
            if node in seen or node.stamp != FOREVER:
                continue
            seen.add(node)
            notes: dict[int, Notes] | None = getattr(node, "notes", None)
            if notes is not None and self._take(node, notes):
                continue
            if type(node.op.vjp) is _Freed or node.op is INPUT or self.tracer is not None:
                self._check(node)
            for one in node.inputs:
                if one is not None:
                    stack.append(one[0])  # noqa: PERF401 (a comprehension is a call, and most nodes have one input)
        return sorted(seen, key=attrgetter("sequence"))

    def _take(self, node: Node, notes: dict[int, Notes]) -> bool:
        """Collect the notes of a node, and return whether it is a leaf."""
        for index, one in notes.items():
            if one.leaf:
                self.leaves[node, index] = one
                self.leaf_nodes.add(node)
            elif one.hooks or one.retains:
                self.noted.setdefault(node, {})[index] = one
        return node in self.leaf_nodes

    def _check(self, node: Node) -> None:
        if is_freed(node, self.tracer):
            rule = node.op.vjp
            why = rule.why if isinstance(rule, _Freed) else _AGAIN
            raise GradientError(f"backward: the graph goes through {node.op.name}: {why}")
        if node.op is INPUT:
            raise GradientError(
                "backward: the gradient would be written to a tensor made outside of this trace",
                got=f"{node.attrs['name']}: {node.spec()}",
                hint="Use hf.Variable(x, requires_grad=True), or call backward where the tensor was made."
            )

    def run(self, edge: Edge, seed: Tensor) -> None:
        """Walk back, and compute the new gradient of every leaf."""
        bound = self.tracer is not None
        engine: Engine = BOUND if bound else RAW
        (seed,) = conjugates([seed])
        start = seed if bound else seed._value
        gradients = backprop([(edge, start)], set(self.leaves), self.nodes, engine, self._visit if self.noted else None)
        several: dict[Any, tuple[Notes, list[Tensor]]] = {}
        for leaf, notes in self.leaves.items():
            if leaf in gradients:
                key = notes if notes.cell is None else notes.cell._leaf
                several.setdefault(key, (notes, []))[1].append(_wrapped(gradients[leaf]))
        for notes, parts in several.values():
            total = parts[0]
            for part in parts[1:]:
                total = self._add(total, part)
            if self.tracer is not None:
                self.tracer.run_hooks(notes)
            total = _hooked(notes, self._value(total))
            before = read_gradient(notes)
            self.totals.append((notes, total if before is None else self._add(before, total)))

    def _add(self, a: Tensor, b: Tensor) -> Tensor:
        return BOUND.add(a, b) if self.tracer is not None else _wrapped(QUIET.add(a._value, b._value))

    def _visit(self, node: Node, index: int, gradient: Any) -> Any:
        """Run the hooks of a value that is not a leaf, and keep its gradient if that is wanted."""
        notes = self.noted.get(node, {}).get(index)
        if notes is None:
            return gradient
        total = _hooked(notes, self._value(_wrapped(gradient)))
        if notes.retains:
            self.retained.append((notes, total))
        (total,) = conjugates([total])
        return total if isinstance(gradient, Tensor) else total._value

    def _value(self, gradient: Tensor) -> Tensor:
        """Return a gradient as users get it: a value without a history, as in eager code, where it is not recorded."""
        (gradient,) = conjugates([gradient])
        return gradient if self.tracer is None else detach(gradient)

    def accumulate(self) -> None:
        """Write the results: the totals of the leaves, and the retained gradients."""
        for notes, total in (*self.totals, *self.retained):
            write_gradient(notes, total)

    def free(self) -> None:
        """Free the values that the rules read; another walk is an error from now on."""
        for node in self.nodes:
            if node in self.leaf_nodes or (len(node.outputs) > 1 and _serves_others(node)):
                continue
            if self.tracer is not None:
                self.tracer.freed.add(node)
            else:
                node.op = freed(node.op)
                if None in node.inputs:
                    node.input_specs = _specs_without_values(node)
                node.saved = None


def _wrapped(gradient: Any) -> Tensor:
    return gradient if isinstance(gradient, Tensor) else make_tensor(as_arrays(gradient))


def _hooked(notes: Notes, gradient: Tensor) -> Tensor:
    for hook in tuple(notes.hooks.values()):
        answer = as_traced(hook)(gradient)
        if answer is not None:
            gradient = checked_like(answer, gradient, "register_hook: what the hook returned")
    return gradient


def freed(op: Op, why: str = _AGAIN) -> Op:
    """Return the op that replaces an operation whose values were freed, or not kept for another reason.

    Args:
        op: the operation.
        why: the reason, for the error of a walk through it.
    """
    freed_op = op.jitted.get("freed")
    if freed_op is None:
        rule = _Freed(why, op)
        freed_op = Op(op.name, op.kernel, op.lower, op.infer, rule, traits=op.traits)
        cast("dict[str, Any]", op.jitted)["freed"] = freed_op
    return cast(Op, freed_op)


def original(op: Op) -> Op:
    """Return the operation that a `freed` op replaced, and any other op as it is."""
    rule = op.vjp
    return rule.op if isinstance(rule, _Freed) else op
