"""Write a graph as an ONNX model: names, nodes, constants, symbolic sizes and nested graphs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from inspect import signature
from typing import Any, NoReturn, cast

import numpy as np

from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dtypes import LOW_PRECISION, DType, as_dtype, bfloat16, float32, float64, int32, int64, kind_of
from hybridflow.core.errors import ExportError, MissingPackageError, message
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import No
from hybridflow.core.spec import TensorSpec
from hybridflow.ir.evaluate import symbol_positions
from hybridflow.ir.graph import Graph, nested_graphs, plain_attrs
from hybridflow.ir.printer import format_value

# -- the optional `onnx` package, and its names of dtypes -------------------------------------------------------------

OPSET = 23
"""The default version of ONNX's operators: the newest that the common runtimes support."""
OPSETS = (21, 22, OPSET)
"""The supported versions of ONNX's operators."""

_FLOATS = {"float32": "float", "float64": "double"}


def onnx_module(name: str = "") -> Any:
    """Return the package, or its module of the given name.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        return import_module(f"onnx.{name}" if name else "onnx")
    except ImportError:
        raise MissingPackageError("to_onnx: needs onnx, which is not installed",
                                  hint="Run pip install 'hybridflow[onnx]'.") from None


def type_text(dtype: DType) -> str:
    """Return the name of tensors of a dtype in ONNX's schemas."""
    return f"tensor({_FLOATS.get(dtype.name, dtype.name)})"


def element_type(dtype: DType) -> int:
    """Return ONNX's number for a dtype."""
    return onnx_module("helper").np_dtype_to_tensor_dtype(dtype)


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


# -- the namespace of ONNX's operators on named values, for the builders in the `onnx` column of ops ------------------


class NoCounterpartError(Exception):
    """Raised by an operation's `onnx` function if ONNX has no operators for its attributes or dtypes."""


class Value:
    """A named value of an ONNX graph; arithmetic with other values and with numbers adds operators.

    Attributes:
        name: its name.
        dtype: its dtype.
        shape: its sizes; None for an intermediate value of a builder.
    """

    __slots__ = ("_operators", "dtype", "name", "shape")

    def __init__(self, operators: Operators, name: str, dtype: DType, shape: tuple[Any, ...] | None) -> None:
        self._operators = operators
        self.name = name
        self.dtype = dtype
        self.shape: Any = shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __add__(self, other: Any) -> Value:
        return self._operators.Add(self, other)

    def __radd__(self, other: Any) -> Value:
        return self._operators.Add(other, self)

    def __sub__(self, other: Any) -> Value:
        return self._operators.Sub(self, other)

    def __rsub__(self, other: Any) -> Value:
        return self._operators.Sub(other, self)

    def __mul__(self, other: Any) -> Value:
        return self._operators.Mul(self, other)

    def __rmul__(self, other: Any) -> Value:
        return self._operators.Mul(other, self)

    def __truediv__(self, other: Any) -> Value:
        return self._operators.Div(self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._operators.Div(other, self)

    def __neg__(self) -> Value:
        return self._operators.Neg(self)


class Operators:
    """ONNX's operators as methods: ``o.MatMul(a, b)``, ``o.Softmax(x, axis=1)``.

    Inputs are values, arrays, numbers, or None for an input that is left out. A number takes the dtype of the first
    value of the same type in the schema. If the operator does not accept a dtype, its operands are cast to a wider one
    and its result is cast back.
    """

    def __init__(self, writer: Writer, opset: int) -> None:
        self._writer = writer
        self._opset = opset

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self.emit, name)

    def emit(
        self, name: str, *inputs: Any, outputs: int = 1, dtypes: Sequence[Any] = (), **attributes: Any
    ) -> Any:
        """Add an operator and return its result, or a tuple of its results.

        Args:
            name: its name.
            *inputs: its inputs.
            outputs: the number of results.
            dtypes: the results' dtypes, if the operator's schema does not determine them.
            **attributes: its attributes.
        """
        if any(is_open(one) for value in attributes.values() if isinstance(value, list | tuple) for one in value):
            self.no(f"its {name} takes no sizes that are left open")
        schema, opset = _schema(name, self._opset), self._opset
        formals = _formals(schema.inputs, len(inputs))
        values = [
            x if x is None or isinstance(x, Value) else self.value(x, _like(name, opset, formal, formals, inputs))
            for x, formal in zip(inputs, formals, strict=True)
        ]
        cast_back: dict[str, tuple[DType, DType]] = {}
        dtypes_by_type: dict[str, DType] = {}
        for position, (value, formal) in enumerate(zip(values, formals, strict=True)):
            if value is None:
                continue
            wide = _accepted(name, opset, formal, value.dtype)
            if wide != value.dtype:
                cast_back[formal.type_str] = value.dtype, wide
                values[position] = self.cast(value, wide)
            dtypes_by_type[formal.type_str] = wide
        results: list[Value] = []
        names = self._writer.add(name, ["" if v is None else v.name for v in values], outputs, attributes)
        for index, (made, formal) in enumerate(zip(names, _formals(schema.outputs, outputs), strict=True)):
            dtype = dtypes[index] if dtypes else _fixed(name, opset, formal.type_str) or dtypes_by_type[formal.type_str]
            result = Value(self, made, dtype, None)
            narrow = cast_back.get(formal.type_str)
            results.append(result if narrow is None else self.cast(result, narrow[0]))
        return results[0] if outputs == 1 else tuple(results)

    # -- constants ----------------------------------------------------------------------------------------------

    def value(self, x: Any, dtype: Any = None) -> Value:
        """Return a value unchanged, a number or array as a constant (of a dtype), an open size as it is computed."""
        if isinstance(x, Value):
            return x
        if is_open(x):
            return self.cast(self.reshape(self.size(x), ()), dtype)
        if type(x) is SizeFloat:
            return self.cast(self._size_float(x), dtype)
        array = np.asarray(x) if dtype is None or isinstance(x, np.ndarray) else np.asarray(x, as_dtype(dtype))
        return Value(self, self._writer.constant(array), as_dtype(array.dtype), array.shape)

    def ints(self, sizes: Iterable[Any]) -> Value:
        """Return integers as a 1-d tensor of int64; symbolic sizes are computed from the inputs' shapes."""
        sizes = tuple(sizes)
        if not any(is_open(size) for size in sizes):
            return self.value(np.array(sizes, np.int64))
        return self.Concat(*[self.size(size) for size in sizes], axis=0)

    def size(self, size: Any) -> Value:
        """Return a size, which may be symbolic, as an int64 tensor of shape (1,)."""
        if not is_open(size):
            return self.value(np.array([size], np.int64))
        total: Any = None
        for monomial, factor in size.terms.items():
            term: Any = None
            for atom in monomial:
                one = self._atom(atom)
                term = one if term is None else term * one
            term = self.value(np.array([factor], np.int64)) if term is None else term if factor == 1 else term * factor
            total = term if total is None else total + term
        return total

    def _size_float(self, x: SizeFloat) -> Value:
        name = _OF_SIZES.get(x.function)
        if name is None:
            self.no(f"{getattr(x.function, '__name__', x.function)} of open sizes has none")
        return self.emit(name, *[self.value(one, float64) for one in x.operands])

    def _atom(self, atom: Any) -> Value:
        if isinstance(atom, str):
            return Value(self, self._writer.symbol(atom), int64, (1,))
        left, right = self.size(atom.left), self.size(atom.right)
        rest = self.Mod(left, right)  # it has the divisor's sign
        return rest if atom.kind == "%" else (left - rest) / right

    # -- shapes and dtypes ----------------------------------------------------------------------------------------

    def cast(self, x: Value, dtype: Any) -> Value:
        """Convert a value to a dtype, unless it has that dtype already."""
        dtype = as_dtype(dtype)
        return x if x.dtype == dtype else self.Cast(x, to=element_type(dtype), dtypes=[dtype])

    def reshape(self, x: Value, shape: Sequence[Any]) -> Value:
        """Reshape a value; a single symbolic size among plain ones is left to the operator."""
        open_sizes = [is_open(size) for size in shape]
        if sum(open_sizes) == 1 and all(opened or size > 0 for opened, size in zip(open_sizes, shape, strict=True)):
            shape = [-1 if opened else size for opened, size in zip(open_sizes, shape, strict=True)]
        return self.Reshape(x, self.ints(shape), allowzero=int(not all(open_sizes) and 0 in list(map(_plain, shape))))

    # -- graphs ---------------------------------------------------------------------------------------------------

    def inline(self, graph: Graph, values: Sequence[Value]) -> list[Value]:
        """Add a graph's operators and return its outputs."""
        return self._writer.inline(graph, values)

    def body(
        self, name: str, specs: Sequence[tuple[str, Any]], build: Callable[..., Sequence[Value]]
    ) -> Any:
        """Return a nested graph, which may read every value around it.

        Args:
            name: its name.
            specs: name and spec of each input.
            build: a function from the inputs to the outputs.
        """
        return self._writer.body(name, specs, build)

    def no(self, why: str) -> NoReturn:
        """Raise `NoCounterpartError`: ONNX has no counterpart of this node."""
        raise NoCounterpartError(why)


_OF_SIZES: dict[Any, str] = {
    operator.add: "Add", operator.sub: "Sub", operator.mul: "Mul", operator.truediv: "Div", operator.pow: "Pow",
    operator.neg: "Neg", operator.abs: "Abs", math.sqrt: "Sqrt",
}
"""The Python functions that traces apply to sizes, each with ONNX's operator."""


def is_open(size: Any) -> bool:
    """Return whether a size is symbolic; `isinstance` cannot tell, because a symbolic size passes as an int."""
    return type(size) is Dim


def _plain(size: Any) -> Any:
    return -1 if is_open(size) else size


# -- schemas ------------------------------------------------------------------------------------------------------

_WIDER: dict[str, tuple[DType, ...]] = {
    "bfloat16": (float32,), "float16": (float32,), "uint32": (int64,),
    **dict.fromkeys(("bool", "int8", "int16", "uint8", "uint16"), (int32, int64, float32)), "int32": (int64,),
}
"""For each dtype, the wider dtypes that hold all its numbers, narrowest first."""


_MOVES = frozenset([
    "Cast", "Concat", "Gather", "GatherElements", "GatherND", "Identity", "If", "Loop", "Pad", "Reshape", "Scan",
    "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
])
"""Operators that run on bfloat16: runtimes can move it, but not compute with it, whatever the schemas say."""


@lru_cache(None)
def _schema(operator: str, opset: int) -> Any:
    return onnx_module("defs").get_schema(operator, opset, "")


@lru_cache(None)
def _allowed(operator: str, opset: int, type_text: str) -> frozenset[str]:
    for constraint in _schema(operator, opset).type_constraints:
        if constraint.type_param_str == type_text:
            return frozenset(constraint.allowed_type_strs)
    return frozenset([type_text])


def _accepted(operator: str, opset: int, formal: Any, dtype: DType) -> DType:
    """Return the narrowest dtype, the given one or wider, that an operator accepts at an input."""
    allowed = _allowed(operator, opset, formal.type_str)
    if dtype == bfloat16 and operator not in _MOVES and type_text(float32) in allowed:
        return float32
    for one in (dtype, *_WIDER.get(dtype.name, ())):
        if type_text(one) in allowed:
            return one
    raise NoCounterpartError(f"its {operator} takes no {dtype}")


def _like(operator: str, opset: int, formal: Any, formals: Sequence[Any], inputs: Sequence[Any]) -> DType:
    """Return the dtype for a number among an operator's inputs: the only one allowed, or that of inputs of its type."""
    alike = [x.dtype for x, other in zip(inputs, formals, strict=True)
             if isinstance(x, Value) and other.type_str == formal.type_str]
    return _fixed(operator, opset, formal.type_str) or (alike[0] if alike else float32)


def _formals(formals: Sequence[Any], count: int) -> list[Any]:
    """Return the formal parameter of each of `count` arguments; the last formal may repeat."""
    return [formals[min(index, len(formals) - 1)] for index in range(count)]


@lru_cache(None)
def _fixed(operator: str, opset: int, type_text: str) -> DType | None:
    """Return the dtype of a parameter that allows only one; None if it allows several."""
    allowed = _allowed(operator, opset, type_text)
    (text,) = allowed if len(allowed) == 1 else ("",)
    names = {"tensor(float)": "float32", "tensor(double)": "float64"}
    return as_dtype(names.get(text, text[7:-1])) if text.startswith("tensor(") else None
