"""Write a graph as an ONNX model: names, nodes, constants, symbolic sizes and nested graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, cast

import numpy as np

from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import LOW_PRECISION, as_dtype, float32, kind_of
from hybridflow.core.errors import ExportError, message
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import No
from hybridflow.core.spec import TensorSpec
from hybridflow.export.onnx_format.operators import NoCounterpartError, Operators, Value
from hybridflow.export.onnx_format.package import OPSET, element_type, onnx_module
from hybridflow.ir.evaluate import symbol_positions
from hybridflow.ir.graph import Graph, nested_graphs, plain_attrs
from hybridflow.ir.printer import format_value

_IR_VERSION = 10
"""The version of the file format: the oldest with metadata of nodes, so that as many runtimes as possible read it."""

Missing = dict[tuple[str, str | None, str], int]
"""``(op, line, why)`` of each node without a counterpart, and how often it occurred."""


@dataclass
class _Level:
    """The nodes of one ONNX graph while it is written."""

    nodes: list[Any] = field(default_factory=list[Any])


class Writer:
    """A writer of one model.

    Args:
        graph: the graph.
        values: arrays for the inputs that become constants of the model.
        outputs: names of the outputs; the others are numbered.
        inputs: names of the inputs; by default, the graph's names.
        opset: the version of ONNX's operators.
    """

    def __init__(
        self, graph: Graph, values: Mapping[Node, Any], outputs: Sequence[str] = (), inputs: Sequence[str] = (),
        opset: int = OPSET,
    ) -> None:
        self.helper = onnx_module("helper")
        self.operators = Operators(self, opset)
        self.opset = opset
        self.graph = graph
        self.taken: dict[str, int] = {}
        self.initializers: list[Any] = []
        self.constants: dict[Any, str] = {}
        self.prelude: list[Any] = []
        self.symbols: dict[str, str] = {}
        self.levels = [_Level()]
        self.node: Node | None = None
        self.label = ""
        self.missing: Missing = {}
        self.inputs: list[Any] = []
        self.values = values
        self.output_names = outputs
        self.input_names = inputs

    # -- the model ------------------------------------------------------------------------------------------------

    def model(self) -> Any:
        """Return the model.

        Raises:
            ExportError: some ops have no counterpart; the error names all of them.
        """
        environment: dict[Edge, Value] = {}
        for position, node in enumerate(self.graph.inputs):
            environment[node, 0] = self._input(node, position)
        self._nodes(self.graph, environment)
        if self.missing:
            raise ExportError(_missing_text(self.graph, self.missing))
        outputs = self._outputs([environment[edge] for edge in self.graph.outputs])
        graph_proto = self.helper.make_graph(
            [*self.prelude, *self.levels[0].nodes], self.graph.name, self.inputs, outputs, self.initializers
        )
        model = self.helper.make_model(
            graph_proto, producer_name="hybridflow", ir_version=_IR_VERSION,
            opset_imports=[self.helper.make_opsetid("", self.opset)],
        )
        if self.graph.dims.guards:
            model.metadata_props.add(key="sizes", value="; ".join(map(str, self.graph.dims.guards)))
        return model

    def _input(self, node: Node, position: int) -> Value:
        given = self.input_names[position] if self.input_names else node.attrs.get("name")
        name = self.unique(str(given or f"input_{position}"))
        spec = node.spec()
        if node in self.values:
            self.initializers.append(_tensor(np.asarray(self.values[node]), name))
        else:
            self.inputs.append(self.info(name, spec))
        return Value(self.operators, name, spec.dtype, spec.shape)

    def _outputs(self, values: Sequence[Value]) -> list[Any]:
        """Name and declare the results; a result that is an input or another result is copied."""
        nodes = self.levels[0].nodes
        produced = {name for proto in nodes for name in proto.output}
        renamed: dict[str, str] = {}
        names: list[str] = []
        for index, value in enumerate(values):
            known, alone = self.output_names, len(values) == 1
            names.append(self.unique(known[index] if index < len(known) else "output" if alone else f"output_{index}"))
            if value.name in produced and value.name not in renamed:
                renamed[value.name] = names[-1]
        for proto in nodes:
            _rename(proto, renamed)
        for name, value in zip(names, values, strict=True):
            if renamed.get(value.name) != name:
                source = renamed.get(value.name, value.name)
                nodes.append(self.helper.make_node("Identity", [source], [name], name=name))
        return [self.info(name, _spec_of(value)) for name, value in zip(names, values, strict=True)]

    def info(self, name: str, spec: TensorSpec) -> Any:
        """Return the declaration of a value, with symbolic sizes by name."""
        shape = [str(size) if type(size) is Dim else size for size in spec.shape]
        return self.helper.make_tensor_value_info(name, element_type(spec.dtype), shape)

    def unique(self, name: str) -> str:
        """Return a name that is not taken yet."""
        unique = name
        while unique in self.taken:
            self.taken[name] += 1
            unique = f"{name}_{self.taken[name]}"
        self.taken[unique] = 0
        return unique

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _nodes(self, graph: Graph, environment: dict[Edge, Value]) -> None:
        """Write a graph's nodes, given the values of its inputs.

        A node that reads the output of a node without a counterpart is only checked.
        """
        for node in graph.nodes:
            edges = cast("tuple[Edge, ...]", node.inputs)
            xs = [environment.get(edge) or self._unknown(edge) for edge in edges]
            for index, value in enumerate(self._node(node, xs)):
                environment[node, index] = value

    def _unknown(self, edge: Edge) -> Value:
        spec = edge[0].spec(edge[1])
        return Value(self.operators, "", spec.dtype, spec.shape)

    def _node(self, node: Node, xs: list[Value]) -> Sequence[Value]:
        """Write one node, or record why it cannot be written."""
        outer = self.node, self.label
        scope = f"{node.scope_name}/" if node.scope_name else ""
        self.node, self.label = node, self.unique(f"{scope}{node.op.name}")
        guards = len(self.graph.dims.guards)
        nodes = self.levels[-1].nodes
        first = len(nodes)
        try:
            results = self._built(node, xs)
            if len(self.graph.dims.guards) > guards:
                self.operators.no("it needs the number of a size that is left open")
            return self._named(node, results, nodes, first)
        except NoCounterpartError as why:
            if len(self.graph.dims.guards) > guards:  # drop the guards of the failed attempt
                self.graph.dims.forget_guards(guards)
            key = (node.op.name, node.location, str(why))
            self.missing[key] = self.missing.get(key, 0) + 1
            return [self._unknown((node, index)) for index in range(len(node.outputs))]
        finally:
            self.node, self.label = outer

    def _built(self, node: Node, xs: list[Value]) -> list[Value]:
        column, attrs = node.op.onnx, node.attrs
        specs = node.specs
        if isinstance(column, No):
            raise NoCounterpartError(column.why)
        if any(kind_of(dtype) == "complex" for dtype in [*[x.dtype for x in xs], *[s.dtype for s in specs]]):
            raise NoCounterpartError("its operators take no complex numbers")
        residuals: dict[str, Any] = {}
        if attrs.get("residuals"):
            if node.op.saves.expose is not None:
                attrs = node.op.saves.expose(attrs)
            elif isinstance(column, str) or "residuals" not in signature(column).parameters:
                raise NoCounterpartError("what it keeps for a gradient has no counterpart")
            else:
                residuals = {"residuals": True}
        attrs = {**{name: value for name, value in attrs.items() if name != "residuals"}, **residuals}
        if column == "Identity":
            built = xs[0]
        elif isinstance(column, str):
            built = self.operators.emit(column, *xs)
        else:
            narrow = not node.op.has("layout") and not node.op.has("nested")
            widened = [self._wide(x) if narrow else x for x in xs]
            built = column(self.operators, *widened, **attrs)
        results = list(built) if isinstance(built, tuple | list) else [built]
        return [self.operators.cast(value, spec.dtype) for value, spec in zip(results, specs, strict=True)]

    def _wide(self, x: Value) -> Value:
        """Return a low-precision value in float32, the dtype in which ops of several steps compute."""
        if x.dtype.num not in LOW_PRECISION:
            return x
        wide = self.operators.cast(x, float32)
        wide.shape = x.shape
        return wide

    def _named(self, node: Node, built: list[Value], nodes: list[Any], first: int) -> list[Value]:
        """Give the results the node's name and spec, and name a single operator after the node."""
        new_nodes = nodes[first:]
        names = {name for proto in new_nodes for name in proto.output}
        results: list[Value] = []
        for index, (value, spec) in enumerate(zip(built, node.specs, strict=True)):
            name = value.name
            if name in names and name.startswith(f"{self.label}/"):
                name = self.label if len(built) == 1 else self.unique(f"{self.label}:{index}")
                for other in new_nodes:
                    _rename(other, {value.name: name})
            results.append(Value(self.operators, name, spec.dtype, spec.shape))
        if len(new_nodes) == 1:
            new_nodes[0].name = self.label
        return results

    def add(self, operator: str, inputs: list[str], outputs: int, attributes: Mapping[str, Any]) -> list[str]:
        """Add an operator and return the names of its results."""
        name = self.unique(f"{self.label}/{operator}")
        names = [name, *[self.unique(f"{name}:{index}") for index in range(1, outputs)]]
        attributes = {key: value for key, value in attributes.items() if value is not None}
        proto = self.helper.make_node(operator, inputs, names, name=name, **attributes)
        node = self.node
        if node is not None:
            _annotate(proto, node)
        self.levels[-1].nodes.append(proto)
        return names

    def constant(self, array: np.ndarray[Any, Any]) -> str:
        """Return the name of a constant of the model; equal constants are stored once."""
        key = (array.dtype.num, array.shape, array.tobytes())
        constant = self.constants.get(key)
        if constant is None:
            constant = self.constants[key] = self.unique(f"{self.label}/constant")
            self.initializers.append(_tensor(array, constant))
        return constant

    def symbol(self, name: str) -> str:
        """Return the name of a tensor of shape (1,) that holds a symbolic size."""
        if name not in self.symbols:
            axes = {symbol: (position, axis) for position, axis, symbol in symbol_positions(self.graph)}
            if name not in axes:
                raise NoCounterpartError(f"no input tells the size {name}")
            position, axis = axes[name]
            output = self.unique(name)
            shape = self.helper.make_node(
                "Shape", [self._input_name(position)], [output], name=output, start=axis, end=axis + 1
            )
            self.prelude.append(shape)
            self.symbols[name] = output
        return self.symbols[name]

    def _input_name(self, position: int) -> str:
        node = self.graph.inputs[position]
        if node in self.values:
            return self.initializers[[n for n in self.graph.inputs if n in self.values].index(node)].name
        return self.inputs[[n for n in self.graph.inputs if n not in self.values].index(node)].name

    # -- nested graphs --------------------------------------------------------------------------------------------

    def inline(self, graph: Graph, values: Sequence[Value]) -> list[Value]:
        """Write a nested graph's nodes into the current graph and return its outputs."""
        environment: dict[Edge, Value] = {
            (node, 0): Value(self.operators, value.name, node.spec().dtype, node.spec().shape)
            for node, value in zip(graph.inputs, values, strict=True)
        }
        self._nodes(graph, environment)
        return [environment[edge] for edge in graph.outputs]

    def body(
        self, name: str, specs: Sequence[tuple[str, TensorSpec]], build: Callable[..., Sequence[Value]]
    ) -> Any:
        """Return a graph to be an attribute of an operator."""
        self.levels.append(_Level())
        try:
            inputs = [(self.unique(f"{self.label}/{text}"), spec) for text, spec in specs]
            values = [Value(self.operators, text, spec.dtype, spec.shape) for text, spec in inputs]
            results = build(*values)
            outputs: list[Any] = []
            for value in results:
                (out,) = self.add("Identity", [value.name], 1, {})
                known = value.shape is not None
                outputs.append(
                    self.info(out, _spec_of(value)) if known
                    else self.helper.make_tensor_value_info(out, element_type(value.dtype), None)
                )
            infos = [self.info(text, spec) for text, spec in inputs]
            return self.helper.make_graph(self.levels[-1].nodes, name, infos, outputs)
        finally:
            self.levels.pop()


def _rename(proto: Any, names: Mapping[str, str]) -> None:
    """Rename the inputs and outputs of an operator and of all operators in its nested graphs."""
    for fields in (proto.input, proto.output):
        for index, name in enumerate(fields):
            if name in names:
                fields[index] = names[name]
    for attribute in proto.attribute:
        if attribute.HasField("g"):
            for other in attribute.g.node:
                _rename(other, names)


def _spec_of(value: Value) -> TensorSpec:
    """Return the spec of a value that a node made."""
    return TensorSpec(value.shape, value.dtype)


def _tensor(array: np.ndarray[Any, Any], name: str) -> Any:
    """Return an array as a tensor of the model."""
    tensor = onnx_module().TensorProto(name=name, data_type=element_type(as_dtype(array.dtype)), dims=array.shape)
    little = array.dtype if array.dtype.kind == "V" else array.dtype.newbyteorder("<")
    tensor.raw_data = np.ascontiguousarray(array, little).tobytes()
    return tensor


def _annotate(proto: Any, node: Node) -> None:
    """Record the op and the user's line that an operator comes from, where viewers show them."""
    attrs = {} if nested_graphs(node) else plain_attrs(node)
    text = ", ".join(f"{name}={format_value(value)}" for name, value in attrs.items())
    metadata = {"hybridflow.op": f"{node.op.name}({text})", "hybridflow.scope": node.scope_name, "line": node.location}
    for key, value in metadata.items():
        if value:
            proto.metadata_props.add(key=key, value=value)
    if node.location:
        proto.doc_string = node.location


def _missing_text(graph: Graph, missing: Missing) -> str:
    lines = [
        f"  {op}{f' ({count} times)' if count > 1 else ''}{f' at {line}' if line else ''}: {why}"
        for (op, line, why), count in missing.items()
    ]
    kinds = len({op for op, _, _ in missing})
    return message(
        f"to_onnx: {graph.name}: {kinds} kind{'s' if kinds > 1 else ''} of operations have no counterpart in ONNX:\n"
        + "\n".join(lines),
        hint="Export a part without them, such as the model's forward pass for inference.",
    )
