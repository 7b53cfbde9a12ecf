"""Running a function in both modes from one state, and judging whether the results are the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any, Literal

import jax
import numpy as np

from hybridflow.analysis.rehearsal import Call, Rehearsal, rehearsed
from hybridflow.analysis.same import Judgement, judge
from hybridflow.analysis.subnormals import first_subnormal
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core.dtypes import is_differentiable, kind_of
from hybridflow.core.errors import ArgumentError, ParityError
from hybridflow.core.functions import require_function
from hybridflow.core.node import Edge, Node
from hybridflow.core.tensor import Tensor, as_tensor, host_array
from hybridflow.core.variable import Variable
from hybridflow.guards.signature import Signature
from hybridflow.ir.graph import Graph, clone_node, input_node
from hybridflow.tracing.calls import is_number
from hybridflow.tracing.config import run_eagerly
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.method import CompiledMethod
from hybridflow.tracing.trace import Trace

Array = np.ndarray[Any, Any]
STRUCTURE = "structure"
"""How the text of results of different structures begins."""


@dataclass(frozen=True)
class Parity:
    """The judgements of every output of a comparison, and of every Variable it assigned.

    Attributes:
        name: the name of the compared value.
        judgements: one per output.
        subnormals: where the program computes with subnormal numbers, if its results are not equal to the bit.
    """

    name: str
    judgements: tuple[Judgement, ...]
    subnormals: str = ""

    @property
    def same(self) -> bool:
        """Whether everything agrees."""
        return all(judgement.same for judgement in self.judgements)

    @property
    def largest(self) -> float:
        """The largest difference between the two modes."""
        return max((judgement.largest for judgement in self.judgements), default=0.0)

    @property
    def used(self) -> float:
        """The largest part of its allowance that any value uses."""
        return max((judgement.used for judgement in self.judgements), default=0.0)

    def differences(self) -> list[str]:
        """Return one line per output that differs."""
        return [f"{judgement.name}: {judgement.text}" for judgement in self.judgements if not judgement.same]


def fresh_copy(function: Any, *, bounded: bool = False) -> CompiledFunction[Any, Any]:
    """Return a function compiled anew, with an empty cache; a compiled one keeps its options.

    Args:
        function: a function, compiled or not.
        bounded: whether it is compiled for bounds as soon as sizes are open, unless all sizes are to be exact.
    """
    if isinstance(function, CompiledMethod):
        like, python = function.__func__, MethodType(function.__func__.python_function, function.__self__)
    elif isinstance(function, CompiledFunction):
        like, python = function, function.python_function
    else:
        like, python = CompiledFunction(function), function
    made = like._like(python, verify=False)
    if bounded and made._options["sizes"] == "auto":
        made._options["sizes"] = "bounded"
    made._warns = False  # that one call is repeated is no fault of the user's
    return made


def check_parity(
    compiled: CompiledFunction[Any, Any],
    calls: Sequence[Call],
    name: str,
    tolerance: tuple[float, float] | None = None,
    *,
    part: Literal["all", "result", "Variables"] = "all",
) -> Parity:
    """Make the same calls eagerly and compiled, from one state; judge the last result and the Variables.

    Variables and Python state that the function changes are restored.

    Args:
        compiled: the function.
        calls: arguments of one call or of several in a row, all of one signature.
        name: the name of the compared value, for tables.
        tolerance: ``(relative, absolute)`` to judge floats by, instead of the float64 run.
        part: what to judge: the result, the Variables that the calls assigned, or both.

    Raises:
        ArgumentError: several calls of a function that changes Python state which it reads: each computes something
            else, or a function that creates Variables at every call.
    """
    with rehearsed(compiled, calls[0]) as rehearsal:
        trace, assigned = rehearsal.trace, rehearsal.assigned
        if trace.once and len(calls) > 1:
            raise ArgumentError(
                f"{compiled._name}: calls in a row cannot be compared, for each computes something else",
                got="; ".join(trace.record.effects), hint="Compare one call."
            )
        signatures = [rehearsal.signature, *[compiled._trace_for(*call)[1] for call in calls[1:]]]
        inputs = _inputs(rehearsal, signatures)
        with run_eagerly():
            eager, eager_tree = _run(compiled, calls, assigned)
        rehearsal.restore()
        results, tree = _run(compiled, calls, assigned)
    if tree != eager_tree:
        return Parity(name, (_other_structure(f"{eager_tree} eager, {tree} compiled"),))
    names = [*names_of_leaves(tree, trace.plan.count), *[f"Variable {variable.name!r}" for variable in assigned]]
    graph = chained(trace, len(calls))
    chosen = {"all": slice(None), "result": slice(trace.plan.count), "Variables": slice(trace.plan.count, None)}[part]
    graph.outputs = graph.outputs[chosen]
    judged = judge(graph, inputs, eager[chosen], results[chosen], names=names[chosen], tolerance=tolerance)
    subnormals = first_subnormal(graph, inputs) if any(judgement.largest for judgement in judged) else ""
    return Parity(name, tuple(judged), subnormals)


def check_against(
    compiled: CompiledFunction[Any, Any],
    call: Call,
    name: str,
    others: Mapping[str, Sequence[Array]],
    tolerance: tuple[float, float] | None = None,
) -> dict[str, Parity]:
    """Judge other results of the same computation against a function's eager results, by a float64 run of the function.

    Variables are left as they were, and so is what the function changes of Python's state.

    Args:
        compiled: the function.
        call: the arguments.
        name: what texts call the function.
        others: per name, the arrays of a result, leaf by leaf. How they are nested does not matter; a number of
            another width of its kind is brought to the dtype of the function's if it fits.
        tolerance: as in `check_parity`.
    """
    with rehearsed(compiled, call) as rehearsal:
        trace, inputs = rehearsal.trace, _inputs(rehearsal, [rehearsal.signature])
        with run_eagerly():
            eager, tree = _run(compiled, [call], [])
    graph = chained(trace, 1)
    graph.outputs = graph.outputs[: trace.plan.count]
    parities: dict[str, Parity] = {}
    for other, arrays in others.items():
        if len(arrays) != len(eager):
            text = f"{len(eager)} arrays of {name}, {len(arrays)} of {other}"
            parities[other] = Parity(f"results of {other}", (_other_structure(text),))
            continue
        given = [_in_dtype(array, ours.dtype) for array, ours in zip(arrays, eager, strict=True)]
        names = names_of_leaves(tree, trace.plan.count)
        judged = judge(graph, inputs, eager, given, names=names, tolerance=tolerance, sides=(name, other))
        parities[other] = Parity(f"results of {other}", tuple(judged))
    return parities


def _inputs(rehearsal: Rehearsal, signatures: Sequence[Signature]) -> list[Array]:
    """Return the values of the inputs of `chained`, for calls in a row."""
    trace = rehearsal.trace
    with np.errstate(over="ignore"):  # Python numbers are rounded to the dtype of their input, as the executable does
        inputs = [
            np.asarray(value, node.spec().dtype)
            for signature in signatures
            for value, node in zip(trace.arrays(signature), trace.graph.inputs, strict=False)
        ]
    inputs += [host_array(tensor) for tensor in trace.captures]
    return inputs + [np.array(variable.current()) for variable in rehearsal.variables]


def _other_structure(text: str) -> Judgement:
    return Judgement("result", False, np.inf, 0.0, np.inf, f"{STRUCTURE} {text}")


def _in_dtype(array: Array, dtype: Any) -> Array:
    """Return an array in a dtype of its kind if that holds its numbers, or as it is."""
    if array.dtype == dtype or kind_of(array.dtype) != kind_of(dtype):
        return array
    with np.errstate(all="ignore"):
        other = array.astype(dtype)
    return other if kind_of(dtype) in ("float", "complex") or np.array_equal(other, array) else array


def _run(
    compiled: CompiledFunction[Any, Any], calls: Sequence[Call], assigned: Sequence[Variable]
) -> tuple[list[Array], Any]:
    """Make the calls and return the last result's arrays, the assigned Variables' behind them, and its structure."""
    result: Any = None
    for args, kwargs in calls:
        result = compiled(*args, **kwargs)
    arrays, tree = arrays_of(result)
    return arrays + [np.array(variable.current()) for variable in assigned], tree


def arrays_of(result: Any) -> tuple[list[Array], Any]:
    """Return the values of a call's result as new arrays, Python numbers with all digits, and its structure."""
    leaves, tree = jax.tree_util.tree_flatten(result)
    return [np.array(leaf if is_number(leaf) else host_array(as_tensor(leaf))) for leaf in leaves], tree


def names_of_leaves(tree: Any, count: int) -> list[str]:
    """Return the names of the results of a call, which are nested like a tree."""
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree_util.tree_unflatten(tree, range(count)))
    return [f"result{jax.tree_util.keystr(path)}" for path, _ in paths]


def check_gradients_parity(
    compiled: CompiledFunction[Any, Any], call: Call, tolerance: tuple[float, float] | None = None
) -> Parity:
    """Judge whether the gradients of a call's float results are the same in both modes (see `with_gradients`).

    If only a branch that is not taken reads a Variable, its gradient is None eagerly and zeros compiled; this is no
    difference.
    """

    def check(function: Callable[..., Any]) -> Parity:
        backward = CompiledFunction(function, static_argnames=compiled._static, verify=False)
        return check_parity(backward, [call], "gradients", tolerance, part="result")

    parity = check(with_gradients(compiled.python_function))
    if any(one.text.startswith(STRUCTURE) for one in parity.judgements):
        with rehearsed(compiled, call) as rehearsal:
            parity = check(with_gradients(compiled.python_function, rehearsal.variables))
    named = [replace(one, name=one.name.removeprefix("result['").removesuffix("']")) for one in parity.judgements]
    return Parity(parity.name, tuple(named))


def chained(trace: Trace, count: int) -> Graph:
    """Return the graph of several calls in a row; each starts with the Variables of the previous one.

    Its inputs are the tensors and Python numbers of every call, then captured tensors, then Variables; its outputs
    those of the last call, then the assigned Variables.
    """
    graph = trace.raw_graph
    own = len(graph.inputs) - len(trace.captures) - len(trace.states)
    shared = graph.inputs[own:]
    first = own + len(trace.captures)
    state: dict[Node, Edge] = {node: (node, 0) for node in shared}
    arguments: list[Node] = []
    nodes: list[Node] = []
    outputs: list[Edge] = []
    for _ in range(count):
        edges: dict[Edge, Edge] = {(node, 0): edge for node, edge in state.items()}
        for node in graph.inputs[:own]:
            arguments.append(input_node(node.spec(), node.attrs["name"]))
            edges[node, 0] = (arguments[-1], 0)
        for node in graph.nodes:
            copy = clone_node(node, tuple([edges[edge] for edge in node.inputs if edge is not None]))
            nodes.append(copy)
            for index in range(len(node.outputs)):
                edges[node, index] = (copy, index)
        outputs = [edges[edge] for edge in graph.outputs[: trace.plan.count + len(trace.assigned)]]
        for index, edge in zip(trace.assigned, outputs[trace.plan.count :], strict=True):
            state[graph.inputs[first + index]] = edge
    return Graph(graph.name, (*arguments, *shared), tuple(nodes), tuple(outputs), graph.dims)


def with_gradients(function: Callable[..., Any], variables: Sequence[Variable] | None = None) -> Callable[..., Any]:
    """Return a function of the same arguments that returns the gradients of the sum of the float outputs.

    They are taken with respect to every float tensor among the arguments and every trainable Variable read, as a
    dict by name; a gradient that no path reaches is left out.

    Args:
        function: the function.
        variables: take these Variables instead of those that were read, and zeros where no path reaches.
    """

    def gradients(*args: Any, **kwargs: Any) -> dict[str, Any]:
        paths, tree = jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=lambda x: x is None)
        sources: dict[str, Any] = {}
        leaves: list[Any] = []
        for path, leaf in paths:
            value = as_tensor(leaf) if isinstance(leaf, Tensor | np.ndarray | np.generic | jax.Array) else leaf
            leaves.append(value)
            if isinstance(value, Tensor) and is_differentiable(value.dtype):
                sources[f"gradient of argument {jax.tree_util.keystr(path[1:])}"] = value
        with GradientTape() as tape:
            tape.watch(list(sources.values()))
            args, kwargs = jax.tree_util.tree_unflatten(tree, leaves)
            result = function(*args, **kwargs)
        targets = [as_tensor(leaf) for leaf in jax.tree_util.tree_leaves(result)]
        targets = [target for target in targets if is_differentiable(target.dtype)]
        for variable in tape.watched_variables() if variables is None else _trained(variables):
            name = f"gradient of {variable.name}"
            sources[name if name not in sources else f"{name} ({len(sources)})"] = variable
        if not targets:
            return {}
        gradients = tape.gradient(targets, sources, unconnected_gradients="none" if variables is None else "zero")
        return {name: gradient for name, gradient in gradients.items() if gradient is not None}

    gradients.__name__ = f"{getattr(function, '__name__', 'function')}_gradients"
    gradients.__signature__ = inspect.signature(function)  # pyright: ignore[reportFunctionMemberAccess]
    return gradients


def _trained(variables: Sequence[Variable]) -> list[Variable]:
    return [variable for variable in variables if variable.trainable and is_differentiable(variable.dtype)]


def assert_same(function: Any, /, *args: Any, gradients: bool = False, **kwargs: Any) -> None:
    """Raise unless a function gives the same result eager and compiled.

    Variables that it assigns are compared too. Variables and Python state are restored.

    Args:
        function: a function, compiled or not.
        args: what to call it with.
        gradients: also compare the gradients of the sum of the float results, with respect to every float tensor
            argument and every trainable Variable read.
        kwargs: what to call it with, by name.

    Raises:
        ParityError: naming every output that differs, with both values, the float64 value and what rounding allows.

    Example:
        >>> import hybridflow as hf
        >>> hf.testing.assert_same(lambda x: hf.tanh(x) * x, hf.asarray([1.0, 2.0]), gradients=True)
    """
    require_function("assert_same", function)
    compiled = fresh_copy(function)
    call = (args, kwargs)
    checks = [check_parity(compiled, [call], "results")]
    if gradients:
        checks.append(check_gradients_parity(compiled, call))
    lines = [line for parity in checks for line in parity.differences()]
    if lines:
        raise ParityError(f"{compiled._name}: eager and compiled results differ by more than rounding",
                          got="\n       ".join(lines),
                          hint="hf.compare(fn, ...) shows every output; fn.graph(...) shows what was compiled.")
