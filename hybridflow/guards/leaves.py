"""Which outputs of a trace require a gradient, and through which of them `.backward()` cannot go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hybridflow.autodiff.backward import freed, is_freed, recorded_nodes
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import FOREVER, Node, make_node
from hybridflow.core.notes import requires
from hybridflow.core.op import No, Op
from hybridflow.core.tensor import Tensor, no_value
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.variables import VariableState


class TracedLeaves(NamedTuple):
    """How a trace relates to `.backward()`.

    Attributes:
        asked: whether the function read which values require a gradient.
        grad_mode: the gradient mode of the trace; None if the trace is right in either mode.
        unfollowed: the outputs that `.backward()` cannot follow, each with an operation that stands for its own. A
            `.backward()` inside the function already went through what they were computed from.
        trained: further such outputs, if the call is not recorded. They were computed from values of Variables that
            are not kept, since the function assigned new values, computed from gradients, to these Variables.
        recorded: whether another output was computed from a Variable that requires a gradient.
    """

    asked: bool
    grad_mode: bool | None
    unfollowed: tuple[tuple[int, Op], ...]
    trained: tuple[tuple[int, Op], ...]
    recorded: bool

    @classmethod
    def of(cls, builder: GraphBuilder, outputs: Sequence[Tensor], grad: bool) -> TracedLeaves:
        """Inspect a trace's outputs."""
        unfollowed: list[tuple[int, Op]] = []
        trained: list[tuple[int, Op]] = []
        recorded = False
        trained_states = _trained(builder)
        for index, tensor in enumerate(outputs):
            edge = tensor._edge
            if edge is None or not requires(edge) or not is_differentiable(tensor.dtype):
                continue
            nodes = recorded_nodes(edge)
            gone = _gone(nodes, trained_states)
            if any(is_freed(node, builder) for node in nodes):
                unfollowed.append((index, _RETURNED))
            elif gone:
                trained.append((index, _trained_op(builder.name, gone)))
            else:
                recorded = True
        reads_leaves = any(state.variable.active_notes is not None for state in builder.variables.values())
        depends = builder.asks_mode or (not grad and reads_leaves)
        return cls(builder.asks_leaves, grad if depends else None, tuple(unfollowed), tuple(trained), recorded)


def _trained(builder: GraphBuilder) -> dict[Node, VariableState]:
    """Return the Variables that require a gradient and were assigned a value computed from gradients.

    The keys are the nodes of their leaves.
    """
    states: dict[Node, VariableState] = {}
    for state in builder.assigned():
        notes = state.variable.active_notes
        if notes is not None and _is_of_gradients(state.edge[0], builder):
            states[notes.cell._leaf] = state
    return states


def _gone(nodes: Iterable[Node], trained: Mapping[Node, VariableState]) -> list[str]:
    """Return the names of the trained Variables whose earlier values are read by `nodes`."""
    names: dict[str, None] = {}
    for node in nodes:
        for notes in getattr(node, "notes", {}).values():
            state = trained.get(notes.cell._leaf) if notes.leaf and notes.cell is not None else None
            if state is not None and node.inputs != (state.edge,):
                names[state.variable.name] = None
    return [*names]


def _is_of_gradients(node: Node, builder: GraphBuilder) -> bool:
    """Whether a value was computed from a gradient that the trace computed."""
    stack, seen = [node], set[Node]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in builder.gradient_of:
            return True
        stack.extend(edge[0] for edge in node.inputs if edge is not None)
    return False


def _call_op(name: str) -> Op:
    """Return an operation that stands for a compiled call."""
    return Op(name, No("it was run already"), no_value, no_value, No("freed"), samples=No("made by compiled calls"))


_RETURNED = freed(_call_op("returned"))


def _trained_op(name: str, variables: Sequence[str]) -> Op:
    names = ", ".join(map(repr, variables[:_NAMED])) + (" and others" if len(variables) > _NAMED else "")
    return freed(
        _call_op(name),
        f"the compiled call took gradients itself and assigned Variable {names}, whose values before it are not "
        "kept. Take this gradient in the function too, or make the call in the block of a hf.GradientTape",
    )


_NAMED = 3
"""The most Variables that a message names."""


def cut(results: Sequence[Tensor], unfollowed: Sequence[tuple[int, Op]]) -> None:
    """Mark results of a compiled call so that `.backward()` through them raises an error.

    Args:
        results: the call's results.
        unfollowed: see `TracedLeaves`.
    """
    for index, op in unfollowed:
        tensor = results[index]
        node = make_node(op, (), {}, (tensor.spec,), backend="host")
        node.stamp = FOREVER
        tensor._edge = node, 0
