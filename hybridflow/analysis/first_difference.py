"""The first operation by which a compiled call differs from the same call run eagerly.

Three runs are compared: the graph node by node, which is the traced program without a compiler; the compiled program,
with every value as an output; and the eager call, of which every operation is recorded. If the compiled program differs
from the graph, the compiler, a pass or a lowering is at fault. Else the eager code did something that was not traced.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.analysis.locate import place_of
from hybridflow.analysis.node_by_node import NodeByNode
from hybridflow.analysis.parity import chained
from hybridflow.analysis.same import judge
from hybridflow.core.context import CONTEXT
from hybridflow.core.dispatch import bind_eagerly
from hybridflow.core.dtypes import as_dtype, kind_of
from hybridflow.core.errors import HybridflowError
from hybridflow.core.node import Edge, Node, Where, in_gradient, is_gradient, user_place, where_file_line
from hybridflow.core.op import Op
from hybridflow.core.sources import CONSTANT
from hybridflow.core.tensor import Tensor, host_array
from hybridflow.ir.evaluate import bind_sizes
from hybridflow.ir.graph import Graph
from hybridflow.passes import run_passes
from hybridflow.tracing.trace import Trace
from hybridflow.xla.executable import compile_graph

Array = np.ndarray[Any, Any]
_ROUNDING = 1e-3
"""The relative difference up to which the values of one operation in two runs, after a branch or loop, are the same."""
_NONE = "no operation differs by itself"


class _Made(NamedTuple):
    """The values that an operation gave, and where it was called."""

    op: str
    where: Where | None
    values: tuple[Array, ...]

    @property
    def line(self) -> tuple[str, int] | None:
        return where_file_line(self.where)


class Eager:
    """A binder that runs operations and keeps their values.

    Attributes:
        made: the operations, in order.
    """

    def __init__(self) -> None:
        self.made: list[_Made] = []

    def bind(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Apply an op."""
        result = bind_eagerly(op, inputs, attrs, CONTEXT.get())
        tensors = cast("tuple[Tensor, ...]", result if isinstance(result, tuple) else (result,))
        self.made.append(_Made(op.name, user_place(3), tuple([host_array(one) for one in tensors])))
        return result


class _Traced(NodeByNode):
    """Runs a graph node by node and keeps the values of every node.

    Attributes:
        made: the nodes that ran, in order, those in branches and loops included.
        values: the values of each node that is in no branch or loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[_Made] = []
        self.values: dict[Edge, Array] = {}

    def node(self, node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
        """Run a node."""
        outputs = super().node(node, values, attrs)
        several = tuple([np.asarray(one) for one in (outputs if isinstance(outputs, tuple | list) else (outputs,))])
        self.made.append(_Made(node.op.name, node.where, several))
        if not self.around:
            self.values.update({(node, index): value for index, value in enumerate(several)})
        return outputs


def first_difference(trace: Trace, given: Sequence[Array], compiled: Sequence[Array] | None, eager: Eager) -> str:
    """Return a text that names the first operation that differs, its line and both values.

    Args:
        trace: the trace of the call.
        given: the values of the inputs of its graph.
        compiled: the results of the compiled call and the values of the Variables that it assigned; None if it failed.
        eager: the operations of the eager call.
    """
    graph, traced = chained(trace, 1), _Traced()
    try:
        outputs = [np.asarray(one) for one in traced.evaluate(graph, given)]
    except HybridflowError as error:
        return f"{_NONE}; run by itself, one fails: {str(error).splitlines()[0]}"
    if compiled is None or trace.placing is not None:
        return _of_python(traced, eager)
    if not all(one.same for one in judge(graph, given, outputs, compiled)):
        return _of_compiler(graph, given, traced)
    return _of_python(traced, eager)


def _of_compiler(graph: Graph, given: Sequence[Array], traced: _Traced) -> str:
    """Return the first operation whose compiled value is not its own, given the same inputs."""
    edges = [
        (node, index) for node in graph.nodes if node.op is not CONSTANT for index in range(len(node.outputs))
    ]
    whole = replace(graph, outputs=tuple(edges))
    passed, _ = run_passes(whole, differentiable=False)
    sizes = bind_sizes(graph, given) if graph.dims.hints else {}
    values = [np.asarray(one) for one in compile_graph(passed, sizes=sizes).call(*given)]
    judged = judge(whole, given, [traced.values[edge] for edge in edges], values)
    for (node, _), one in zip(edges, judged, strict=True):
        if not one.same:
            return _first(node.op.name, node.where, one.text)
    return f"{_NONE}: the compiler's passes or XLA change what they give together"


def _of_python(traced: _Traced, eager: Eager) -> str:
    """Return the first eager operation that gave another value than the traced one at its line, or is not in the trace.

    An operation of an eager call has its counterpart in the operation of its name at its line, the first with the
    first, and so on. Numbers that are constants of the trace, and gradients, have none.
    """
    waiting: dict[Any, deque[_Made]] = defaultdict(deque)
    lines = {one.line for one in traced.made}
    for one in traced.made:
        waiting[one.op, one.line].append(one)
    rounds = any(one.op in _nested_ops(traced) for one in traced.made)
    for one in eager.made:
        if one.line is None or one.op == CONSTANT.name or is_gradient(one.where):
            continue
        others = waiting[one.op, one.line]
        if others:
            text = _difference(one.values, others.popleft().values, rounds=rounds)
            if text is not None:
                return _first(one.op, one.where, text)
        elif one.line not in lines:
            return _first(one.op, one.where, f"eager {_short(one.values[0])}, compiled nothing: it was not traced")
    return f"{_NONE}: what differs is what Python did with their values"


def _nested_ops(traced: _Traced) -> frozenset[str]:
    return frozenset({node.op.name for node, _ in traced.values if "nested" in node.op.traits})


def _first(op: str, where: Where | None, text: str) -> str:
    place, source = place_of(where)
    at = "" if place is None else f" at {place}: {source}"
    gradient = ", of a gradient," if where is not None and where == in_gradient(where) else ""
    return f"the first operation that differs: {op}{gradient}{at}\n    {text}"


def _difference(eager: Sequence[Array], compiled: Sequence[Array], *, rounds: bool) -> str | None:
    """Return how the values of an operation in two runs differ, or None."""
    for a, b in zip(eager, compiled, strict=False):
        kind = kind_of(as_dtype(a.dtype))
        if a.shape != b.shape or kind != kind_of(as_dtype(b.dtype)):
            return f"eager {a.dtype}{list(a.shape)}, compiled {b.dtype}{list(b.shape)}"
        same = (a == b) | ((a != a) & (b != b))
        if (rounds or a.dtype != b.dtype) and kind in ("float", "complex"):  # rules compute with Python's floats too
            with np.errstate(all="ignore"):
                wide = [one.astype(np.complex128 if kind == "complex" else np.float64) for one in (a, b)]
                same |= np.abs(wide[0] - wide[1]) <= _ROUNDING * np.maximum(*map(np.abs, wide))
        if not np.all(same):
            index = tuple([int(one) for one in np.argwhere(~np.asarray(same))[0]])
            return f"at {list(index)}: eager {a[index]!s}, compiled {b[index]!s}"
    return None
