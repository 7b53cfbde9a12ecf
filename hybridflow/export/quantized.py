"""Quantize functions given as graphs and weights: those of artifacts, and those to be written as ONNX models."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybridflow.compress.calibration import Range, ranges_from
from hybridflow.compress.replacing import batches_of
from hybridflow.compress.scales import input_scale, require_format, stored_weights
from hybridflow.core.dtypes import float32
from hybridflow.core.errors import ArgumentError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import Edge, Node, make_node
from hybridflow.core.op import Op
from hybridflow.core.tensor import as_tensor
from hybridflow.core.variable import Variable
from hybridflow.export.artifact import Weights, write_functions
from hybridflow.export.limits import Limits
from hybridflow.export.loaded import RANDOM, Artifact, Function, load
from hybridflow.ir.evaluate import evaluate, run_eagerly
from hybridflow.ir.graph import Graph, input_node
from hybridflow.ops.arithmetic import add, multiply
from hybridflow.ops.common import one_of
from hybridflow.ops.elementwise import astype
from hybridflow.ops.indexing import gather
from hybridflow.ops.integer_products import integer_conv, integer_linear
from hybridflow.ops.matmul import matmul
from hybridflow.ops.nn.convolution import conv
from hybridflow.ops.nn.dense import linear
from hybridflow.ops.quantization import dequantize_linear, quantize_dynamic
from hybridflow.ops.quantized_products import quantized_conv, quantized_linear, weight_only_linear
from hybridflow.passes.dead_code import dead_code
from hybridflow.passes.dead_residuals import dead_residuals
from hybridflow.passes.lib.rewrite import Replacement, rewrite
from hybridflow.saving.reader import PathLike
from hybridflow.tracing.xla_inputs import raw_value

Array = np.ndarray[Any, Any]
INPUTS = ("float", "dynamic", "static")
PRODUCTS = (linear.op, matmul.op, conv.op)
_MATRICES = ("linear", "matmul")
"""The kinds of weights that take int4 and groups."""


class Plan(NamedTuple):
    """How products are quantized.

    Attributes:
        inputs: ``"float"``, ``"dynamic"`` or ``"static"``.
        dtype, group: the format of weights whose inputs stay floats.
        bits: how many of the 8 bits int8 weights use.
        batches: arguments on which the ranges of static inputs are measured.
        method: see `hf.quantize.static`.
        products: the operations that are quantized.
    """

    inputs: str
    dtype: str = "int8"
    group: int | None = None
    bits: int = 8
    batches: Any = None
    method: str = "minmax"
    products: tuple[str, ...] = ("linear", "matmul", "conv")


@with_foreign_keywords
def quantize(
    source: PathLike | Artifact, path: PathLike, *, inputs: str = "float", dtype: str = "int8",
    group: int | None = None, bits: int = 8, batches: Any = None, method: str = "minmax", overwrite: bool = False,
) -> None:
    """Write a quantized copy of an artifact, which is smaller and loads as any other.

    Linear layers, products with a matrix of weights and convolutions are quantized, and tables that are read by row
    get stored weights. Nothing of the program that wrote the artifact is needed.

    Args:
        source: the artifact, or its directory.
        path: the new directory.
        inputs: how the inputs of products are quantized: not at all (``"float"``), with their own range at each call
            (``"dynamic"``), or with a range found on `batches` (``"static"``); see `hf.quantize.weights`, ``dynamic``
            and ``static``.
        dtype, group: the format of the weights where the inputs are floats; int8 otherwise.
        bits: see `hf.quantize.dynamic`.
        batches, method: for ``"static"``: an array that each function is called with, or an iterable of such or of
            tuples of arguments; and how ranges are found.
        overwrite: whether to replace an existing artifact.

    Raises:
        ArgumentError: settings that do not fit, or an artifact without such weights.
        FileThereError: the path exists already.

    Example:
        >>> import hybridflow as hf
        >>> import os, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> large, small = [os.path.join(folder.name, name) for name in ("net.hf", "small.hf")]
        >>> hf.export.save(large, hf.nn.Linear(256, 128), hf.TensorSpec([None, 256]))
        >>> hf.export.quantize(large, small, dtype="int4", group=64)
        >>> hf.export.load(small, copy=True).predict(hf.ones((2, 256))).shape
        (2, 128)
        >>> folder.cleanup()
    """
    plan = Plan(inputs, dtype, group, bits, batches, method)
    artifact = load(source, copy=True) if isinstance(source, str | os.PathLike) else source
    quantized = {name: quantized_function("quantize", one, plan) for name, one in artifact.functions.items()}
    if all([quantized[name] is one for name, one in artifact.functions.items()]):
        raise ArgumentError("quantize: the artifact has no weights of products", got=", ".join(artifact.functions))
    weights = Weights()
    fields: dict[str, tuple[Graph, dict[str, Any]]] = {}
    for name, one in quantized.items():
        paths = [
            RANDOM if value is RANDOM else weights.path_of(value, known)
            for known, value in zip(one._fields["weights"], one._weights, strict=True)
        ]
        fields[name] = one.graph(), {**one._fields, "weights": paths}
    write_functions(Path(path), fields, weights, artifact.metadata, overwrite=overwrite)


def quantized_function(what: str, function: Function, plan: Plan) -> Function:
    """Return a function whose products are quantized; the function itself if it has none with weights.

    Args:
        what: the name of the caller, for messages.
        function: the function.
        plan: how to quantize it.

    Raises:
        ArgumentError: settings that do not fit.
    """
    one_of(what, "inputs", plan.inputs, INPUTS)
    require_format(what, plan.dtype, plan.group)
    if plan.inputs != "float" and (plan.dtype != "int8" or plan.group is not None):
        raise ArgumentError(f"{what}: products of integers take int8 without groups",
                            got=f"dtype={plan.dtype!r}, "
                                f"group={plan.group}", hint='Leave them out, or use inputs="float".')
    if (plan.inputs == "static") != (plan.batches is not None):
        raise ArgumentError(f"{what}: batches= give the ranges of static inputs, and only these",
                            got=f"inputs={plan.inputs!r}, batches={'None' if plan.batches is None else 'given'}")
    graph = dead_code(dead_residuals(function.graph()))
    return _Quantizing(function, graph, plan, _ranges(what, function, graph, plan)).result()


def _ranges(what: str, function: Function, graph: Graph, plan: Plan) -> Mapping[Edge, Range]:
    """Return the range of the inputs of each weight's products, over all batches."""
    if plan.inputs != "static":
        return {}
    weights = [raw_value(as_tensor(one)) for one in function._given()]
    given = [
        [raw_value(as_tensor(leaf)) for leaf in function._leaves(one, {})] for one in batches_of(what, plan.batches)
    ]

    def tell_all(tell: Callable[[Any, Any], None]) -> None:
        def run(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
            if node.op in PRODUCTS:
                tell(_source(node.inputs[1]), np.asarray(inputs[0]))
            return run_eagerly(node, inputs, attrs)

        for leaves in given:
            evaluate(graph, [*leaves, *weights], run)

    return ranges_from(what, tell_all, plan.method)


def _source(edge: Any) -> Edge:
    """Return where a value comes from: what reads a Variable returns it unchanged."""
    while edge[0].op.has("identity") and edge[0].inputs:
        edge = edge[0].inputs[0]
    return edge


class _Quantizing:
    """The rewriting of one function."""

    def __init__(self, function: Function, graph: Graph, plan: Plan, ranges: Mapping[Edge, Range]) -> None:
        self.function, self.graph, self.plan = function, graph, plan
        count = len(function.inputs)
        self.arguments = graph.inputs[:count]
        self.values: dict[Node, Any] = dict(zip(graph.inputs[count:], function._weights, strict=True))
        self.paths: dict[Node, str] = dict(zip(graph.inputs[count:], function._fields["weights"], strict=True))
        self.ranges = ranges
        self.made: dict[tuple[Node, str], tuple[Node, Node]] = {}
        self.scales: dict[Edge, tuple[Node, ...]] = {}

    def result(self) -> Function:
        """Return the function."""
        graph = rewrite(self.graph, self._visit)
        if graph is self.graph:
            return self.function
        graph = dead_code(graph)
        read = {edge[0] for node in graph.nodes for edge in node.inputs if edge is not None}
        read |= {edge[0] for edge in graph.outputs}
        read_values = [node for node in self.values if node in read or self.values[node] is RANDOM]
        whole = Graph(graph.name, (*self.arguments, *read_values), graph.nodes, graph.outputs, graph.dims)
        fields = {**self.function._fields, "weights": [self.paths[node] for node in read_values]}
        values = [self.values[node] for node in read_values]
        return Function(self.function.name, whole, fields, values, Limits())

    # -- weights --------------------------------------------------------------------------------------------------

    def _weight(self, edge: Edge) -> Array | None:
        """Return the value of an edge that is a weight of floats."""
        value = self.values.get(edge[0])
        if value is None or value is RANDOM:
            return None
        array = np.asarray(raw_value(value.read() if isinstance(value, Variable) else as_tensor(value)))
        return array if array.dtype == np.float32 else None

    def _stored(self, edge: Edge, rows: Array, kind: str, shape: Sequence[int], scales: Sequence[int]) -> list[Edge]:
        """Return new inputs with stored weights and their scales; those of one weight are stored once.

        Args:
            edge: the weight.
            rows: its numbers, with a row for each scale.
            kind: what it is: ``"linear"``, ``"matmul"``, ``"kernel"`` or ``"table"``.
            shape, scales: the shapes of both; empty for those of rows.
        """
        key = edge[0], kind
        if key not in self.made:
            group = self.plan.group if kind in _MATRICES else None
            stored = stored_weights(rows, self._dtype(kind), group=group, bits=self.plan.bits)
            path = self.paths[edge[0]]
            weight = self._input(path, stored.weight.reshape(shape) if shape else stored.weight)
            scale = self._input(f"{path}_scale", stored.scale.reshape(scales) if scales else stored.scale)
            self.made[key] = weight, scale
        return [(one, 0) for one in self.made[key]]

    def _dtype(self, kind: str) -> str:
        """Return the format of a weight; int4 is for matrices."""
        return self.plan.dtype if kind in _MATRICES or self.plan.dtype != "int4" else "int8"

    def _input(self, path: str, value: Any) -> Node:
        value = np.asarray(value, order="C")
        node = input_node(as_tensor(value).spec, path.replace(".", "_"))
        self.values[node], self.paths[node] = as_tensor(value), path
        return node

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _visit(self, node: Node) -> Replacement | None:
        if len(node.inputs) < 2 or node.inputs[0] is None or node.inputs[1] is None:
            return None
        x, other = node.inputs[0], _source(node.inputs[1])
        if node.op is gather.op and node.attrs["axes"] == (0,):
            table = _source(x)
            rows = self._weight(table)
            return None if rows is None or rows.ndim != 2 else self._table(node, table, rows)
        weight = self._weight(other) if node.op in PRODUCTS and node.op.name in self.plan.products else None
        if weight is None or x[0].spec(x[1]).dtype != float32:
            return None
        if node.op is conv.op:
            return None if node.attrs["channels_last"] else self._conv(node, x, other, weight)
        return None if weight.ndim != 2 else self._linear(node, x, other, weight)

    def _linear(self, node: Node, x: Edge, edge: Edge, values: Array) -> Replacement:
        kind = "linear" if node.op is linear.op else "matmul"
        weight, scale = self._stored(edge, values if kind == "linear" else values.T, kind, (), ())
        make, bias = _Nodes(node), node.inputs[2:]
        if self.plan.inputs == "float":
            attrs = {"dtype": self.plan.dtype, "group": self.plan.group}
            return make.replacement(make(weight_only_linear.op, x, weight, scale, *bias, **attrs))
        if self.plan.inputs == "static":
            return make.replacement(make(quantized_linear.op, x, *self._range(edge), weight, scale, *bias))
        q = make(quantize_dynamic.op, x)
        total = make(integer_linear.op, q, weight, (q[0], 2))
        y = make(multiply.op, make(astype.op, total, dtype=float32), make(multiply.op, (q[0], 1), scale))
        return make.replacement(make(add.op, y, *bias) if bias else y)

    def _conv(self, node: Node, x: Edge, edge: Edge, kernel: Array) -> Replacement:
        make = _Nodes(node)
        windows = {name: node.attrs[name] for name in ("stride", "padding", "dilation", "groups")}
        rows, column = kernel.reshape(kernel.shape[0], -1), (kernel.shape[0], *[1] * (kernel.ndim - 1))
        if self.plan.inputs == "static":
            stored = self._stored(edge, rows, "kernel", kernel.shape, ())
            return make.replacement(make(quantized_conv.op, x, *self._range(edge), *stored, **windows))
        if self.plan.inputs == "float":
            stored = self._stored(edge, rows, "kernel", kernel.shape, column)
            wide = make(dequantize_linear.op, *stored, dtype=self._dtype("kernel"))
            return make.replacement(make(conv.op, x, wide, **node.attrs))
        weight, scale = self._stored(edge, rows, "kernel", kernel.shape, column[:-1])
        q = make(quantize_dynamic.op, x)
        total = make(integer_conv.op, q, weight, (q[0], 2), **windows)
        factor = make(multiply.op, (q[0], 1), scale)
        return make.replacement(make(multiply.op, make(astype.op, total, dtype=float32), factor))

    def _table(self, node: Node, table: Edge, rows: Array) -> Replacement:
        weight, scale = self._stored(table, rows, "table", (), (len(rows), 1))
        make = _Nodes(node)
        picked, factor = [make(gather.op, one, *node.inputs[1:], **node.attrs) for one in (weight, scale)]
        return make.replacement(make(dequantize_linear.op, picked, factor, dtype=self._dtype("table")))

    def _range(self, edge: Edge) -> tuple[Edge, Edge]:
        """Return new inputs with scale and zero point of the inputs of a weight's products."""
        if edge not in self.scales:
            names = [f"{self.paths[edge[0]]}_input_{name}" for name in ("scale", "zero_point")]
            scale_and_zero = input_scale(*self.ranges[edge])
            self.scales[edge] = tuple([self._input(name, one) for name, one in zip(names, scale_and_zero, strict=True)])
        scale, zero = self.scales[edge]
        return (scale, 0), (zero, 0)


class _Nodes:
    """Makes the nodes that replace one node.

    Args:
        node: the node.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._nodes: list[Node] = []

    def __call__(self, op: Op, *inputs: Edge | None, **attrs: Any) -> Edge:
        """Add a node and return its first output."""
        specs = [one[0].spec(one[1]) for one in inputs if one is not None]
        outputs = op.infer(*specs, **attrs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        new = make_node(op, inputs, attrs, outputs, where=self._node.where)
        self._nodes.append(new)
        return new, 0

    def replacement(self, result: Edge) -> Replacement:
        """Return the nodes, and the value that replaces the node's."""
        return Replacement((result,), tuple(self._nodes))
