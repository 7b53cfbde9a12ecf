"""`hf.cond`: one of two graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jax import lax

from hybridflow.autodiff.dependence import joined, of_graph
from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.transform import SplitGradient, split_gradient
from hybridflow.backend.active_rows import ACTIVE, active_if
from hybridflow.core import structures
from hybridflow.core.context import current
from hybridflow.core.convert import common_dtype, is_number
from hybridflow.core.dtypes import DType
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError, structure_text
from hybridflow.core.functions import as_body, require_function
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import Edge, format_where
from hybridflow.core.op import No, Op, Reach, Saves, register
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor, asarray
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import Traced, trace_body
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.effects import has_effects
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Graph, constant_node, require_inputs
from hybridflow.nested.bodies import (
    TESTED,
    Shared,
    add_checks,
    assign_around,
    bind_all,
    bind_parts,
    handed_back,
    inputs_around,
    laid_out,
    leaves_of,
    own_leaves,
    predicate,
    trace_function,
    tracer_now,
    zeros,
)

R = TypeVar("R")


@with_foreign_keywords
def cond(pred: Any, true_fn: Callable[..., R], false_fn: Callable[..., R], *operands: Any) -> R:
    """Run one of two functions, chosen by a condition.

    Args:
        pred: a bool of shape ().
        true_fn, false_fn: functions of the operands. In a trace both are traced, and their results must have one
            structure, with equal shapes and dtypes (a Python number takes the dtype of the other's tensor). They may
            read outer tensors, and read and assign Variables. Only the assignments and checks of the chosen branch
            take effect.
        *operands: tensors in any nesting.

    Returns:
        The result of the chosen function.

    Raises:
        DTypeError: if the condition is not a bool of shape (), or the results have different dtypes.
        ShapeError: if the results have different shapes.
        ArgumentError: if the results have different structures.

    Example:
        >>> import hybridflow as hf
        >>> hf.cond(hf.asarray(True), lambda x: x + 1, lambda x: x - 1, hf.asarray(1.0))
        Tensor(2., dtype=float32)
    """
    for one in (true_fn, false_fn):
        require_function("cond", one)
    chosen = predicate("cond", pred)
    if current().tracer is None:
        leaves, tree = own_leaves(operands)
        leaves_, tree = own_leaves((true_fn if bool(chosen) else false_fn)(*structures.unflatten(tree, leaves)))
        return structures.unflatten(tree, leaves_)
    leaves, tree = leaves_of(operands)
    specs = [leaf.spec for leaf in leaves]

    def build(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        return structures.unflatten(tree, tensors)

    when_true, true_tree, true_leaves = trace_function("cond_true", as_body(true_fn), specs, build)
    when_false, false_tree, false_leaves = trace_function("cond_false", as_body(false_fn), specs, build)
    if true_tree != false_tree:
        raise ArgumentError("cond: the branches return different structures",
                            got=f"{structure_text(true_tree)} if true, {structure_text(false_tree)} if false",
                            hint="Return the same structure from both.")
    named = [f"result {index}" for index in range(len(true_leaves))]
    made = join(chosen, named, (when_true, true_leaves), (when_false, false_leaves), leaves)
    return handed_back(structures.unflatten(true_tree, made))


def join(
    chosen: Tensor,
    named: list[str],
    true: tuple[Traced, list[Any]],
    false: tuple[Traced, list[Any]],
    operands: Sequence[Tensor] = (),
    dtypes: Mapping[int, DType] = MappingProxyType({}),
) -> list[Tensor]:
    """Add the node of two traced branches and return its results.

    Args:
        chosen: the condition.
        named: the names of the results for messages.
        true, false: each branch's graph, and its results as Python returned them: numbers take the other's dtype.
        operands: the tensors that both branches take.
        dtypes: the required dtypes of some results, by index.
    """
    when_true, when_false = _of_one_dtype(named, true, false, dtypes)
    _require_same_shapes(named, when_true.graph, when_false.graph)
    return _bind(chosen, list(operands), when_true, when_false, len(named))


def _bind(chosen: Tensor, leaves: list[Tensor], true: Traced, false: Traced, count: int) -> list[Tensor]:
    """Add the node, pass assigned Variables and checks on to the outer trace, and return the visible results."""
    written = {state.variable._leaf: state.variable for state in (*true.assigned, *false.assigned)}
    variables = list(written.values())
    shared = Shared()
    positions = [shared.add(inputs_around(one)) for one in (true, false)]
    before = shared.add([tracer_now().value_of(variable) for variable in variables])
    around = shared.tensors()
    after = (len(true.checks), len(false.checks))
    graphs = [
        _branch(one, len(leaves), own, around, variables, before, count, padding)
        for one, own, padding in ((true, positions[0], (0, after[1])), (false, positions[1], (after[0], 0)))
    ]
    if not graphs[0].outputs and not any(map(has_effects, graphs)):
        return []
    made = bind_parts(COND, (chosen, *leaves, *around), {"true": graphs[0], "false": graphs[1]}, *graphs)
    end = count + len(variables)
    assign_around(variables, made[count:end])
    add_checks((*true.checks, *false.checks), made[end:])
    return made[:count]


def _branch(
    traced: Traced,
    arguments: int,
    positions: Sequence[int],
    around: Sequence[Tensor],
    variables: Sequence[Variable],
    before: Sequence[int],
    count: int,
    padding: tuple[int, int],
) -> Graph:
    """Return a branch's graph; its outputs are its results, all written Variables, and the checks of both branches.

    A Variable that only the other branch assigns keeps its value. A check of the other branch counts as passed.
    """
    graph = laid_out(traced.graph, arguments, positions, around)
    own = graph.outputs
    assigned = {state.variable._leaf: own[count + index] for index, state in enumerate(traced.assigned)}
    kept: list[Edge] = [(graph.inputs[arguments + position], 0) for position in before]
    values = [assigned.get(variable._leaf, edge) for variable, edge in zip(variables, kept, strict=True)]
    nodes = graph.nodes
    true: list[Edge] = []
    if any(padding):
        scope = graph.inputs[0].scope if graph.inputs else None
        holds = constant_node(np.asarray(True), scope)
        nodes, true = (holds, *nodes), [(holds, 0)]
    checks = [*true * padding[0], *own[count + len(assigned) :], *true * padding[1]]
    return Graph(graph.name, graph.inputs, nodes, (*own[:count], *values, *checks), graph.dims)


# -- the branches' results ----------------------------------------------------------------------------------------


def _of_one_dtype(
    named: list[str], true: tuple[Traced, list[Any]], false: tuple[Traced, list[Any]], dtypes: Mapping[int, DType]
) -> tuple[Traced, Traced]:
    """Give Python numbers among the results the dtype of the other branch's result.

    Raises:
        DTypeError: if two tensors have different dtypes.
    """
    targets: dict[int, Any] = dict(dtypes)
    (when_true, true_leaves), (when_false, false_leaves) = true, false
    for index, (name, a, b) in enumerate(zip(named, true_leaves, false_leaves, strict=True)):
        one, other = when_true.graph.output_specs[index], when_false.graph.output_specs[index]
        if index in targets or one.dtype == other.dtype:
            continue
        if not is_number(a) and not is_number(b):
            raise DTypeError(f"cond: {name} is {one.dtype} if true and {other.dtype} if false",
                             got=f"{_made(when_true.graph, index)}, {_made(when_false.graph, index)}",
                             hint="Cast one of them.")
        targets[index] = common_dtype([a if is_number(a) else one, b if is_number(b) else other])
    if not targets:
        return when_true, when_false
    return _in_dtypes(when_true, true_leaves, targets), _in_dtypes(when_false, false_leaves, targets)


def _in_dtypes(traced: Traced, leaves: Sequence[Any], targets: dict[int, Any]) -> Traced:
    def run(*tensors: Tensor) -> list[Tensor]:
        outputs = inline(traced.graph, tensors)
        for index, dtype in targets.items():
            value = leaves[index] if is_number(leaves[index]) else outputs[index]
            outputs[index] = asarray(value, dtype=dtype)
        return outputs

    made = trace_body(run, traced.graph.input_specs, traced.graph.name)
    inputs, end = made.graph.inputs, len(traced.graph.inputs)
    variables = end - len(traced.variables)
    ordered = (*inputs[:variables], *inputs[end:], *inputs[variables:end])
    graph = Graph(made.graph.name, ordered, made.graph.nodes, made.graph.outputs, made.graph.dims)
    return traced._replace(graph=graph, captures=(*traced.captures, *made.captures))


def _require_same_shapes(named: list[str], true: Graph, false: Graph) -> None:
    for index, name in enumerate(named):
        a, b = true.output_specs[index], false.output_specs[index]
        if a.shape != b.shape:
            raise ShapeError(f"cond: {name} has shape {a.shape} if true and {b.shape} if false",
                             got=f"{_made(true, index)}, {_made(false, index)}", hint="Give both the same shape.")


def _made(graph: Graph, index: int) -> str:
    """Return an output's spec and the line that made it, as text."""
    node, output = graph.outputs[index]
    return f"{node.spec(output)}" + (f" at {format_where(node.where)}" if node.where is not None else "")


# -- the op -------------------------------------------------------------------------------------------------------


class CondSplit(NamedTuple):
    """Both branches split; each forward graph returns the residuals of both, with zeros for the other branch's."""

    true: SplitGradient
    false: SplitGradient
    forward_true: Graph
    forward_false: Graph


def _split(true: Graph, false: Graph) -> CondSplit:
    key = ("cond", false)
    split = true.executables.get(key)
    if split is None:
        wanted = tuple([True] * len(true.inputs))
        a, b = split_gradient(true, wanted), split_gradient(false, wanted)
        specs_a, specs_b = a.forward.output_specs[len(true.outputs) :], b.forward.output_specs[len(false.outputs) :]
        visible = len(true.outputs)
        forward_true, forward_false = _padded(a.forward, visible, (), specs_b), _padded(b.forward, visible, specs_a, ())
        split = true.executables[key] = CondSplit(a, b, forward_true, forward_false)
    return split


def _padded(graph: Graph, visible: int, before: Sequence[TensorSpec], after: Sequence[TensorSpec]) -> Graph:
    def run(*xs: Tensor) -> list[Tensor]:
        outputs = inline(graph, xs)
        return [*outputs[:visible], *map(zeros, before), *outputs[visible:], *map(zeros, after)]

    return trace_body(run, graph.input_specs, graph.name).graph


def _graphs(true: Graph, false: Graph, residuals: bool) -> tuple[Graph, Graph]:
    if not residuals:
        return true, false
    split = _split(true, false)
    return split.forward_true, split.forward_false


def _lower(pred: Any, *xs: Any, true: Graph, false: Graph, residuals: bool = False) -> Any:
    run_true, run_false = map(lower_graph, _graphs(true, false, residuals))

    def taken(run: Callable[..., Any], holds: Callable[[Any], Any]) -> Callable[[], Any]:
        def branch() -> Any:
            with active_if(None if ACTIVE.get() is None else holds(pred)):
                return tuple(run(*xs))

        return branch

    outputs = lax.cond(pred, taken(run_true, lambda pred: pred), taken(run_false, lax.bitwise_not))
    return outputs[0] if len(outputs) == 1 else outputs


def _infer(pred: TensorSpec, *xs: TensorSpec, true: Graph, false: Graph, residuals: bool = False) -> Any:
    require_inputs("cond", true, xs)
    require_inputs("cond", false, xs)
    return _graphs(true, false, residuals)[0].output_specs


def _hidden(attrs: dict[str, Any]) -> int:
    split = _split(attrs["true"], attrs["false"])
    return split.true.residuals + split.false.residuals


def _exposed(attrs: dict[str, Any]) -> dict[str, Any]:
    true, false = _graphs(attrs["true"], attrs["false"], True)
    return {"true": true, "false": false}


def _bodies(true: Graph, false: Graph, residuals: bool = False) -> tuple[Body, ...]:
    """Return the branches as alternatives: only one of them runs."""
    return tuple([Body(graph, alternative=True) for graph in _graphs(true, false, residuals)])


def _vjp(F: Any, g: Any, y: Any, pred: Any, *xs: Any, true: Graph, false: Graph) -> list[Any]:
    """Add another `cond` that chooses between the branches' backward graphs; they read the forward pass's residuals."""
    del F
    split = _split(true, false)
    visible = len(true.outputs)
    gs = list(g) if isinstance(g, tuple) else [g]
    outputs = y if isinstance(y, tuple) else (y,)
    present = [a or b for a, b in zip(split.true.present, split.false.present, strict=True)]
    gradients: list[Any] = [None] * (len(xs) + 1)
    if not any(present):
        return gradients
    read = sorted({*split.true.reads, *split.false.reads})
    given = [zeros(outputs[i]) if gs[i] is None else gs[i] for i, has in enumerate(split.true.given) if has]
    inputs = [*[xs[i] for i in read], *outputs[visible:], *given]
    middle = len(read) + split.true.residuals

    def backward(one: SplitGradient, first: int) -> Graph:
        def run(*tensors: Tensor) -> list[Tensor]:
            kept = tensors[first : first + one.residuals]
            cotangents = tensors[len(tensors) - len(given) :]
            gradients = iter(inline(one.backward, [*[tensors[read.index(i)] for i in one.reads], *kept, *cotangents]))
            mine = [next(gradients) if has else None for has in one.present]
            return [
                zeros(xs[i]) if value is None else value for i, value in enumerate(mine) if present[i]
            ]

        return trace_body(run, [tensor.spec for tensor in inputs], one.backward.name).graph

    attrs = {"true": backward(split.true, len(read)), "false": backward(split.false, middle)}
    results = iter(bind_all(COND, (pred, *inputs), attrs))
    return [None, *[next(results) if has else None for has in present]]


def _onnx(o: Any, pred: Any, *xs: Any, true: Graph, false: Graph) -> Any:
    branches = [o.body(graph.name, (), lambda graph=graph: o.inline(graph, xs)) for graph in (true, false)]
    dtypes = [spec.dtype for spec in true.output_specs]
    return o.emit("If", pred, outputs=len(dtypes), dtypes=dtypes, then_branch=branches[0], else_branch=branches[1])


def _depends(true: Graph, false: Graph, **_: Any) -> list[Reach]:
    pairs = zip(of_graph(true), of_graph(false), strict=True)
    return [(reach << 1, flat << 1) for reach, flat in map(joined, pairs)]  # input 0 is the condition


COND = register(
    Op(
        "cond", No("Python chooses in eager mode"), _lower, _infer, _vjp, flops=Bodies(_bodies),
        saves=Saves(x="all", hidden=_hidden, expose=_exposed, depends=_depends), samples=TESTED,
        traits=frozenset({"nested"}), onnx=_onnx,
    )
)
