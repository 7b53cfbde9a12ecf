"""Shared code of branches and loops: users' functions as graphs, their Variables, and errors about values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, cast

import jax
import numpy as np

from hybridflow.autodiff.dependence import of_graph
from hybridflow.autodiff.functional import fresh
from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.autodiff.requires_grad import enable_grad
from hybridflow.core import structures
from hybridflow.core.context import current
from hybridflow.core.convert import common_dtype, is_number
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError, message, structure_text
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import No, Op
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, as_tensor, asarray, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import REREAD, Check, GraphBuilder, Traced, trace_with_variables
from hybridflow.ir.graph import Graph, input_node, nested_graphs, reading_from
from hybridflow.ir.invariants import hoist
from hybridflow.ir.variables import VariableState
from hybridflow.nested.tensor_array import begun_with, shapes_to_begin_with

TESTED = No("made by control flow; tested in tests/test_control_flow.py")
INT32 = make_spec((), np.dtype(np.int32))


def leaves_of(tree: Any) -> tuple[list[Tensor], Any]:
    """Return the leaves of a structure as tensors, and the structure."""
    leaves, treedef = structures.flatten(tree)
    return [as_tensor(leaf) for leaf in leaves], treedef


def leaves_like(op: str, words: tuple[str, str], result: Any, like: Sequence[Tensor], tree: Any) -> list[Tensor]:
    """Return the leaves of what a user's function returned, each of which belongs to one of other leaves.

    Args:
        op: the operation, for messages.
        words: what the function returns, and what it belongs to.
        result: what it returned.
        like: the leaves that it belongs to.
        tree: their structure.

    Raises:
        ArgumentError, ShapeError, DTypeError: their structure, shapes or dtypes are others.
    """
    what, other = words
    leaves, after = leaves_of(result)
    if after != tree:
        raise ArgumentError(f"{op}: the {what} is {after}, the {other} {tree}",
                            hint=f"Return the structure of the {other}.")
    for one, leaf in zip(leaves, like, strict=True):
        if one.shape != leaf.shape:
            raise ShapeError(f"{op}: the {what} has shape {one.shape}, the {other} {leaf.shape}",
                             hint=f"Return an element for each element of the {other}.")
        if one.dtype != leaf.dtype:
            raise DTypeError(f"{op}: the {what} is {one.dtype}, the {other} {leaf.dtype}",
                             hint=f"Compute in one dtype, or return the {what} with .astype({str(leaf.dtype)!r}).")
    return leaves


def own_leaves(tree: Any) -> tuple[list[Tensor], Any]:
    """Return fresh tensors as leaves, and the structure: values that enter or leave a body get their own tensors."""
    leaves, treedef = leaves_of(tree)
    return [fresh(leaf) for leaf in leaves], treedef


def handed_back(results: Any) -> Any:
    """Return the results of a public function of control flow: a structure of tensors of their own, as in eager code.

    That counts in a `hf.no_grad` block alone: what a body hands on from outside is a constant too.
    """
    tracer = current().tracer
    if not isinstance(tracer, GraphBuilder) or not tracer.silence:
        return results
    leaves, tree = own_leaves(results)
    return structures.unflatten(tree, leaves)


def predicate(name: str, pred: Any) -> Tensor:
    """Return a condition as a tensor.

    Raises:
        DTypeError: if it is not a bool of shape ().
    """
    tensor = as_tensor(pred)
    if tensor.dtype != np.bool_ or tensor.shape != ():
        raise DTypeError(f"{name}: the condition must be a bool of shape ()", got=str(tensor.spec),
                         hint="Reduce it with hf.all or hf.any, or compare.")
    return tensor


def several(made: Any) -> list[Tensor]:
    """Return the result of `bind` as a list."""
    return list(made) if isinstance(made, tuple) else [made]


def bind_all(op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any]) -> list[Tensor]:
    """Bind an op with any number of outputs, and return them as a list."""
    return several(bind(op, tuple(inputs), attrs))


def bind_parts(op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], *graphs: Graph) -> list[Tensor]:
    """Bind an op whose graphs are parts of the function that is traced, such as branches.

    In a `hf.no_grad` block, each operation in them stops the gradient of its results. The op itself does not where a
    graph hands on a value from outside: for Python, this is the same value as before. A tape that was entered in the
    block goes through the op and all of them.
    """
    tracer = tracer_now()
    followed = bool(current().tapes)
    hands_on = tracer.silence and not followed and any([reach for graph in graphs for reach, _ in of_graph(graph)])
    with enable_grad() if hands_on else nullcontext():
        made = bind_all(op, inputs, attrs)
    if tracer.silence and followed:
        for graph in graphs:
            own = made[len(made) - len(graph.outputs) :]  # a loop's own count of its steps comes first
            kept = [one for one, is_kept in zip(own, _hands_on(graph), strict=True) if is_kept]
            tracer.handed_on.update(map(tracer.edge_of, kept))
    return made


def _hands_on(graph: Graph) -> list[bool]:
    """Whether each result of a graph is, or may be, one of its inputs."""
    nodes = [node for node, _ in graph.outputs]
    return [node in graph.inputs or any([any(_hands_on(one)) for one in nested_graphs(node)]) for node in nodes]


def kept_without_steps(runs: Callable[[], Tensor], before: Sequence[Tensor], made: Sequence[Tensor]) -> list[Tensor]:
    """Return the state after a loop; in a `hf.no_grad` block, a loop without steps leaves its gradient as it is.

    Args:
        runs: returns whether there is a step.
        before, made: the state before and after the loop.
    """
    tracer = tracer_now()
    if not tracer.silence or not any([is_differentiable(one.dtype) for one in made]):
        return [*made]
    if current().tapes:
        tracer.handed_on.update(map(tracer.edge_of, made))
        return [*made]
    goes = runs()
    with enable_grad():
        return [
            PUBLIC.where(goes, after, now) if is_differentiable(after.dtype) else after
            for now, after in zip(before, made, strict=True)
        ]


def zeros(like: Any) -> Tensor:
    """Return zeros with the shape and dtype of a tensor or spec."""
    return PUBLIC.full(like.shape, 0, dtype=like.dtype)


def tracer_now() -> GraphBuilder:
    """Return the current trace."""
    return cast(GraphBuilder, current().tracer)


# -- Variables ----------------------------------------------------------------------------------------------------


def value_around(state: VariableState) -> Tensor:
    """Return a Variable's value in the outer trace; if the body reads the Variable, this counts as a read there."""
    return state.variable.read() if state.was_read else tracer_now().value_of(state.variable)


def inputs_around(traced: Traced) -> list[Tensor]:
    """Return a graph's inputs after its arguments: captured tensors and the values of its Variables."""
    return [*traced.captures, *map(value_around, traced.variables)]


def assign_around(variables: Sequence[Variable], values: Sequence[Tensor]) -> None:
    """Assign the final values of a body's Variables in the outer trace."""
    for variable, value in zip(variables, values, strict=True):
        tracer_now().assign_variable(variable, value)


def add_checks(checks: Iterable[Check], oks: Iterable[Tensor]) -> None:
    """Add the checks of a body to the outer trace."""
    tracer = tracer_now()
    for check, ok in zip(checks, oks, strict=True):
        tracer.add_check(check._replace(ok=ok))


class Written:
    """The Variables that the graphs of a loop assign, which the loop carries.

    If a body reads such a Variable, it gets the carried value, but the gradient goes to the Variable itself, which is
    one more input of the loop. This is as in eager code: to a tape, every read is the Variable, whatever was assigned.
    """

    def __init__(self, *graphs: Traced) -> None:
        states = {state.variable._leaf: state for graph in graphs for state in graph.assigned}
        self.variables: list[Variable] = [state.variable for state in states.values()]
        read = {state.variable._leaf for graph in graphs for state in graph.variables if state.was_read}
        self.anchors: dict[Node, Tensor] = {
            variable._leaf: variable.read() for variable in self.variables if variable._leaf in read
        }
        self.outside: dict[Node, Tensor] = {
            state.variable._leaf: value_around(state)
            for graph in graphs
            for state in graph.variables
            if state.variable._leaf not in states
        }

    def values(self) -> list[Tensor]:
        """Return the initial values."""
        return [tracer_now().value_of(variable) for variable in self.variables]

    def run(self, traced: Traced, args: Sequence[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Add a graph's nodes to the current trace.

        Args:
            traced: the graph.
            args: its arguments.
            now: the values of `variables`, which are replaced by the graph's new values.

        Returns:
            The graph's own outputs, and its checks.
        """
        positions = {variable._leaf: index for index, variable in enumerate(self.variables)}
        inputs = [*args, *traced.captures]
        for state in traced.variables:
            leaf = state.variable._leaf
            if leaf not in positions:
                inputs.append(self.outside[leaf])
                continue
            value = now[positions[leaf]]
            inputs.append(bind(REREAD, (value, self.anchors[leaf])) if state.was_read else value)
        outputs = inline(traced.graph, inputs)
        assigned = traced.assigned
        first = len(outputs) - len(assigned) - len(traced.checks)
        for state, value in zip(assigned, outputs[first:], strict=False):
            now[positions[state.variable._leaf]] = value
        return outputs[:first], outputs[first + len(assigned) :]


# -- graphs -------------------------------------------------------------------------------------------------------


class Shared:
    """The outer values that the graphs of one node read, each once."""

    def __init__(self) -> None:
        self.positions: dict[Edge, int] = {}

    def add(self, tensors: Iterable[Tensor]) -> list[int]:
        """Add tensors and return their positions."""
        tracer = tracer_now()
        return [self.positions.setdefault(tracer.edge_of(tensor), len(self.positions)) for tensor in tensors]

    def tensors(self) -> list[Tensor]:
        """Return all the tensors."""
        return [make_tensor(None, edge) for edge in self.positions]


def laid_out(graph: Graph, arguments: int, positions: Sequence[int], shared: Sequence[Tensor]) -> Graph:
    """Return a graph that takes its arguments and then all shared values, although it reads only some of them.

    Args:
        graph: a graph that takes its arguments and then the shared values at `positions`.
        arguments: the number of arguments.
        positions: the positions of the shared values that it reads.
        shared: the values that all graphs of the node take.
    """
    inputs: list[Node | None] = [None] * len(shared)
    moved: dict[Edge, Edge] = {}
    for node, position in zip(graph.inputs[arguments:], positions, strict=True):
        first = inputs[position]
        if first is None:
            inputs[position] = node
        else:
            moved[node, 0] = (first, 0)
    full = [
        input_node(tensor.spec, f"unread_{index}") if node is None else node
        for index, (node, tensor) in enumerate(zip(inputs, shared, strict=True))
    ]
    result = Graph(graph.name, (*graph.inputs[:arguments], *full), graph.nodes, graph.outputs, graph.dims)
    return reading_from(result, moved) if moved else result


def hoisted(graph: Graph, first: int, constants: Sequence[Tensor]) -> tuple[Graph, list[Tensor]]:
    """Move loop-invariant operations from a body into the current trace.

    This happens before the loop is differentiated, so that its backward pass needs no copy of such a value per step.

    Args:
        graph: the body.
        first: the number of inputs that differ between steps; the inputs after them are constants.
        constants: the values of those constants.

    Returns:
        The new body, and the values that it takes as additional inputs.
    """
    hoisted = hoist(graph, first)
    if hoisted is None:
        return graph, []
    tracer = tracer_now()
    values: dict[Edge, Tensor] = {}
    values.update({(node, 0): tensor for node, tensor in zip(graph.inputs[first:], constants, strict=True)})
    for node in hoisted.nodes:
        attrs = {name: value for name, value in node.attrs.items() if name != "residuals"}
        residuals = bool(node.op.saves.hidden) and (bool(node.attrs.get("residuals")) or bool(current().tapes))
        outer, tracer.place = tracer.place, node.where
        try:
            inputs = [values[edge] for edge in cast("tuple[Edge, ...]", node.inputs)]
            outputs = tracer.bind_all(node.op, inputs, attrs, residuals=residuals)
        finally:
            tracer.place = outer
        values.update({(node, index): tensor for index, tensor in enumerate(outputs)})
    return hoisted.graph, [values[edge] for edge in hoisted.values]


def trace_function(
    name: str, fn: Callable[..., Any], specs: Sequence[TensorSpec], build: Callable[[Sequence[Tensor]], tuple[Any, ...]]
) -> tuple[Traced, Any, list[Any]]:
    """Trace a user's function of structures; return its graph, the result's structure, and the leaves as returned."""
    structure: dict[str, Any] = {}

    def flat(*tensors: Tensor) -> list[Tensor]:
        structure["leaves"], structure["tree"] = structures.flatten(fn(*build(tensors)))
        return [as_tensor(leaf) for leaf in structure["leaves"]]

    traced = trace_with_variables(flat, specs, name, part=True)
    return traced, structure["tree"], structure["leaves"]


# -- errors -------------------------------------------------------------------------------------------------------


def value_names(tree: Any, names: Sequence[str] | None, noun: str) -> list[str]:
    """Return the names of a structure's leaves for messages.

    Args:
        tree: the structure.
        names: the names of its items, if it is a tuple of named variables.
        noun: the word for an item without a name.
    """
    result: list[str] = []
    count = tree.num_leaves
    for path, _ in structures.with_paths(structures.unflatten(tree, [0] * count))[0]:
        if names is not None and isinstance(path[0], jax.tree_util.SequenceKey) and path[0].idx < len(names):
            result.append(f"variable {names[path[0].idx]!r}{jax.tree_util.keystr(path[1:])}")
        else:
            result.append(f"{noun}{jax.tree_util.keystr(path)}")
    return result


class BeginsOtherwise(Exception):
    """Raised to trace a loop again: a step made the first write to its arrays, which decides their elements' shape.

    Attributes:
        shapes: the result of `shapes_to_begin_with`.
    """

    def __init__(self, shapes: dict[int, Any]) -> None:
        super().__init__(shapes)
        self.shapes = shapes


class Carry:
    """The values that a loop carries; every step must keep their structure, shapes and dtypes.

    Args:
        op: the loop's name, for messages.
        state: the initial values, in a structure.
        names: the names of the loop variables for messages, if the structure is a tuple of them.
    """

    def __init__(self, op: str, state: Any, names: Sequence[str] | None = None) -> None:
        self.op = op
        self.names = names
        self._begin(state)

    def _begin(self, state: Any) -> None:
        values, self.tree = structures.flatten(state)
        self.leaves = [as_tensor(value) for value in values]

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """Return values in the structure."""
        return structures.unflatten(self.tree, tensors)

    def traced(self, trace: Callable[[], Any]) -> Any:
        """Trace the loop; trace it again if only the steps tell the element shape of an array."""
        while True:
            try:
                return trace()
            except BeginsOtherwise as found:
                self._begin(begun_with(self.build(self.leaves), found.shapes))

    def after(self, result: Any) -> list[Tensor]:
        """Return a step's result as tensors; Python numbers take the dtype of the previous value.

        Raises:
            ArgumentError, DTypeError, ShapeError: if the structure, a dtype or a shape has changed.
            BeginsOtherwise: if the step was the first to write to an array that the loop began with.
        """
        values, tree = structures.flatten(result)
        if tree != self.tree:
            before = self.build(self.leaves)
            shapes = shapes_to_begin_with(before, result)
            if shapes and current().tracer is not None:
                raise BeginsOtherwise(shapes)
            self._begin(begun_with(before, shapes))
        if tree != self.tree:
            raise ArgumentError(_structure_text(self.op, self.tree, tree, self.names))
        after = [self._like(value, leaf) for value, leaf in zip(values, self.leaves, strict=True)]
        self._require_same(after)
        return after

    @staticmethod
    def _like(value: Any, leaf: Tensor) -> Tensor:
        fits = is_number(value) and common_dtype([value, leaf]) == leaf.dtype
        return asarray(value, dtype=leaf.dtype) if fits else as_tensor(value)

    def _require_same(self, after: Sequence[Tensor]) -> None:
        for index, (a, b) in enumerate(zip(self.leaves, after, strict=True)):
            if a.dtype == b.dtype and a.shape == b.shape:
                continue
            name = value_names(self.tree, self.names, "carried value")[index]
            if a.dtype != b.dtype:
                raise DTypeError(f"{self.op}: {name} is {a.dtype} before and {b.dtype} after a step",
                                 got=f"{a.spec}, {b.spec}", hint="Cast it, or start with the other dtype.")
            raise ShapeError(f"{self.op}: {name} has shape {a.shape} before and {b.shape} after a step",
                             got=f"{a.spec}, {b.spec}", hint="Keep the shape, or start with the other one.")


def _structure_text(op: str, before: Any, after: Any, names: Sequence[str] | None) -> str:
    """Return the error text for a changed structure; it names the loop variable if that can be told."""
    a, b = before.children(), after.children()
    if names is not None and len(a) == len(b) == len(names):
        for name, one, other in zip(names, a, b, strict=True):
            if one != other:
                return message(
                    f"{op}: variable {name!r} changes its structure in a step",
                    got=f"{structure_text(one)} before, {structure_text(other)} after",
                    hint="Start with a value of the structure that the loop gives it.",
                )
    return message(
        f"{op}: the carried values change their structure",
        got=f"{structure_text(before)} before, {structure_text(after)} after",
        hint="Return the structure that came in.",
    )
