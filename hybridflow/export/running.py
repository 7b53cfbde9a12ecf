"""Run a loaded graph on tensors, node by node: eagerly, in a trace, or under a tape."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import jax

from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.attrs import attr_key
from hybridflow.core.context import current
from hybridflow.core.dims import DimScope, substitute
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import FileFormatError, HybridflowError
from hybridflow.core.node import Edge, Node, make_node
from hybridflow.core.op import Op
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, edges_of, input_node
from hybridflow.ir.printer import format_node
from hybridflow.nested.branches import COND
from hybridflow.nested.loops import WHILE
from hybridflow.nested.scans import SCAN
from hybridflow.ops.joining import stack
from hybridflow.saving.format import shown


def run(graph: Graph, tensors: Sequence[Tensor], sizes: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """Compute a graph's outputs.

    Args:
        graph: the graph.
        tensors: one per input; in a trace, their sizes may be open.
        sizes: the size of each of the graph's symbols, as `hybridflow.ir.evaluate.bind_sizes` returns them.
    """
    tracer = cast(Any, current().tracer)
    scope = DimScope() if tracer is None else tracer.dims
    tried: set[Any] = set()

    def rebind(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
        with _hybridflows_errors(lambda: format_node(node)):
            sized = {name: _sized_in(value, sizes, scope) for name, value in attrs.items()}
            if tracer is None:
                step = None if attrs.get("residuals") else _STEP_BY_STEP.get(node.op)
                computed = None if step is None else step(inputs, node.attrs, sizes)
                if computed is None:
                    return bind(node.op, tuple(inputs), sized)
                return computed[0] if len(computed) == 1 else computed
            outer, tracer.place = tracer.place, node.where
            try:
                _try_lowering(node.op, inputs, sized, tried)
                return bind(node.op, tuple(inputs), sized)
            finally:
                tracer.place = outer

    with _hybridflows_errors(lambda: graph.name):
        return evaluate(graph, tensors, rebind, sizes=sizes)


def _try_lowering(op: Op, inputs: list[Any], attrs: dict[str, Any], tried: set[Any]) -> None:
    """Lower an operation whose sizes are known, without running it: JAX rejects some attributes that NumPy takes.

    Args:
        op, inputs, attrs: the operation.
        tried: the operations that were lowered already; this one is added.
    """
    specs = tuple([one.spec for one in inputs])
    key = op.name, attr_key(tuple(sorted(attrs.items()))), specs
    if key in tried or op.has("nested") or not all([type(size) is int for one in specs for size in one.shape]):
        return
    tried.add(key)
    with enable_x64(True):
        shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in specs]
        jax.eval_shape(lambda *xs: op.lower(*xs, **attrs), *shapes)


@contextmanager
def _hybridflows_errors(what: Callable[[], str]) -> Generator[None]:
    """Raise `FileFormatError` for errors of Python and JAX in a ``with`` block.

    A traced graph raises none of these. A changed artifact may: it can have attributes that no trace makes and that
    shape rules do not check.
    """
    try:
        yield
    except HybridflowError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise FileFormatError(f"a graph of an artifact cannot run: {shown(repr(error))}", got=shown(what())) from error


def _branch(inputs: list[Any], attrs: dict[str, Any], sizes: Mapping[str, Any]) -> Any:
    """Run one of two graphs."""
    return run(attrs["true" if bool(inputs[0]) else "false"], inputs[1:], sizes)


def _loop(inputs: list[Any], attrs: dict[str, Any], sizes: Mapping[str, Any]) -> Any:
    """Run a loop's body graph while its condition graph returns true."""
    if attrs["bound"] is not None:
        return None
    carry, rest = inputs[: attrs["carry"]], inputs[attrs["carry"] :]
    while bool(run(attrs["cond"], [*carry, *rest], sizes)[0]):
        carry = [*run(attrs["body"], [*carry, *rest], sizes)]
    return tuple(carry)


def _scan(inputs: list[Any], attrs: dict[str, Any], sizes: Mapping[str, Any]) -> Any:
    """Run a scan's body graph on each row of its sequences."""
    count, end = attrs["carry"], attrs["carry"] + attrs["sequences"]
    length = substitute(attrs["length"], sizes)
    if attrs.get("counted") or length == 0:
        return None
    carry, sequences, rest = inputs[:count], inputs[count:end], inputs[end:]
    rows: list[tuple[Tensor, ...]] = []
    for number in reversed(range(length)) if attrs["reverse"] else range(length):
        results = run(attrs["body"], [*carry, *[one[number] for one in sequences], *rest], sizes)
        carry = [*results[:count]]
        rows.append(results[count:])
    columns = zip(*(rows[::-1] if attrs["reverse"] else rows), strict=True)
    return (*carry, *[stack(list(column)) for column in columns])


_STEP_BY_STEP = {COND: _branch, WHILE: _loop, SCAN: _scan}
"""Functions that run ops with nested graphs step by step, as eager code runs the original functions.

Each returns None for a case that it does not handle; that case runs as one op.
"""


def sized(graph: Graph, sizes: Mapping[str, Any], scope: DimScope) -> Graph:
    """Return a graph with its symbols replaced by the given sizes, which may be symbols of another scope."""
    moved: dict[Edge, Edge] = {}
    inputs: list[Node] = []
    for node in graph.inputs:
        copy = input_node(_spec(node.spec(), sizes), str(node.attrs["name"]), where=node.where)
        moved[node, 0] = (copy, 0)
        inputs.append(copy)
    nodes: list[Node] = []
    for node in graph.nodes:
        attrs = {name: _sized_in(substitute(value, sizes), sizes, scope) for name, value in node.attrs.items()}
        outputs = tuple([_spec(spec, sizes) for spec in node.specs])
        copy = make_node(node.op, tuple([moved[edge] for edge in edges_of(node)]), attrs, outputs, where=node.where)
        moved.update({(node, index): (copy, index) for index in range(len(outputs))})
        nodes.append(copy)
    return Graph(graph.name, tuple(inputs), tuple(nodes), tuple([moved[edge] for edge in graph.outputs]), scope)


def _sized_in(value: Any, sizes: Mapping[str, Any], scope: DimScope) -> Any:
    """Return an attribute's value with `sized` applied to every graph in it."""
    if isinstance(value, Graph):
        return sized(value, sizes, scope)
    if type(value) is tuple:
        return tuple([_sized_in(item, sizes, scope) for item in cast("tuple[Any, ...]", value)])
    return value


def _spec(spec: TensorSpec, sizes: Mapping[str, Any]) -> TensorSpec:
    return make_spec(tuple([substitute(size, sizes) for size in spec.shape]), spec.dtype)
