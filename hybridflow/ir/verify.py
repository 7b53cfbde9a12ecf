"""Check a graph against the rules of the IR."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from hybridflow.core.dims import same_shape
from hybridflow.core.errors import VerifyError
from hybridflow.core.node import Edge, Node, where_file_line
from hybridflow.core.op import REGISTRY, No
from hybridflow.core.sources import CONSTANT, INPUT, Constant
from hybridflow.core.spec import TensorSpec
from hybridflow.ir.graph import Graph, graphs_in
from hybridflow.ir.printer import format_node, value_names

AROUND = 2
"""The number of nodes that an error shows before and after the wrong one."""


def verify(graph: Graph) -> None:
    """Raise if a graph breaks a rule of the IR.

    The rules: every value is defined once, in the same graph, before it is read. Every op is registered, and its shape
    rule accepts the inputs and attributes and returns the specs that the node records. The outputs exist. No node
    belongs to another trace. The same holds for every nested graph.

    Args:
        graph: the graph.

    Raises:
        VerifyError: if a rule is broken; the message says which, with the IR around the node and the user's line.

    Example:
        >>> import hybridflow as hf
        >>> text = "graph f(%x: f32[2]) -> (f32[3]) { %y = tanh(%x) : f32[3] return %y }"
        >>> hf.ir.verify(hf.ir.parse(text))
        Traceback (most recent call last):
        ...
        hybridflow.core.errors.VerifyError: verify: f: the node records f32[3], but tanh gives f32[2]
        > %0 = tanh(%x) : f32[3]
          return %0
    """
    count = len(graph.dims.guards)
    try:
        _Verifier(graph).run()
    finally:
        graph.dims.forget_guards(count)  # shape rules compare sizes, which must not add guards to the trace


def same_spec(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two specs are the same; sizes are compared as expressions, so no guard is added."""
    return a.dtype == b.dtype and same_shape(a.shape, b.shape)


class _Verifier:
    """The check of one graph; it keeps the nodes defined so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.defined: set[Node] = set()
        self.scope: Any = None

    def run(self) -> None:
        """Check the whole graph."""
        for node in self.graph.inputs:
            self.input(node)
            self.owned(node)
            self.defined.add(node)
        for node in self.graph.nodes:
            self.node(node)
            self.defined.add(node)
        for position, edge in enumerate(self.graph.outputs):
            self.edge(None, edge, f"output {position}")

    def fail(self, node: Node | None, what: str, hint: str | None = None) -> NoReturn:
        """Raise the error for a node, or for the graph's outputs."""
        lines = [f"verify: {self.graph.name}: {what}", *self.around(node)]
        place = where_file_line(node.where) if node is not None else None
        if place is not None:
            source = linecache.getline(*place).strip()
            lines.append(f"  at {place[0]}:{place[1]}" + (f": {source}" if source else ""))
        raise VerifyError("\n".join(lines), hint=hint)

    def around(self, node: Node | None) -> list[str]:
        """Return the IR lines around a node, marked."""
        graph = self.graph
        names = value_names(graph)
        nodes = graph.nodes
        if node is not None and node in graph.inputs:
            return [f"> {names.get((node, 0), '%?')}: {node.op.name}"]
        position = len(nodes) if node is None else nodes.index(node)
        lines: list[str] = []
        for index in range(max(position - AROUND, 0), min(position + AROUND + 1, len(nodes))):
            mark = "> " if index == position else "  "
            lines += [mark + line for line in format_node(nodes[index], names).splitlines()]
        if position + AROUND >= len(nodes):
            mark = "> " if node is None else "  "
            lines.append(f"{mark}return {', '.join(names.get(edge, '%?') for edge in graph.outputs)}".rstrip())
        return lines

    def input(self, node: Node) -> None:
        """Check an input."""
        if node in self.defined:
            self.fail(node, "the same node is two inputs", "Make one input node per position.")
        if not node.op.has("source") or node.op is CONSTANT or node.inputs or len(node.outputs) != 1:
            self.fail(node, f"{node.op.name} is not an input", "Inputs are made with input_node.")

    def owned(self, node: Node) -> None:
        """Check that a node belongs to the same trace as the others; parsed nodes belong to none."""
        if node.scope is None or node.scope is self.scope:
            return
        if self.scope is not None:
            self.fail(node, f"{node.op.name} belongs to another trace: {_name(node.scope)}, not {_name(self.scope)}",
                      "Pass the value into this graph as an input.")
        self.scope = node.scope

    def node(self, node: Node) -> None:
        """Check a node."""
        op = node.op
        if node in self.defined:
            self.fail(node, f"{op.name} is in the graph twice", "Every value is defined once.")
        if op is INPUT:
            self.fail(node, "an input is among the nodes", "Inputs belong to Graph.inputs.")
        if REGISTRY.get(op.name) is not op:
            self.fail(node, f"{op.name} is not a registered operation", "Make it with @op, or register(Op(...)).")
        self.owned(node)
        for position, edge in enumerate(node.inputs):
            self.edge(node, edge, f"input {position} of {op.name}")
        for name, value in node.attrs.items():
            self.attribute(node, name, value)
        self.specs(node)

    def edge(self, node: Node | None, edge: Edge | None, what: str) -> None:
        """Check that a value is defined above."""
        if edge is None:
            self.fail(node, f"{what} has no producer", "Only an eager recording may leave inputs out.")
        source, index = edge
        if source not in self.defined:
            if source in self.graph.nodes or source in self.graph.inputs:
                self.fail(node, f"{what} is read before it is defined", "Order the nodes so that producers come first.")
            self.fail(node, f"{what} comes from a node ({source.op.name}) that is not in this graph",
                      "Pass the value into this graph as an input.")
        if not 0 <= index < len(source.outputs):
            self.fail(node, f"{what} is output {index} of {source.op.name}, which has {len(source.outputs)}")

    def attribute(self, node: Node, name: str, value: Any) -> None:
        """Check that an attribute is hashable and that its graphs are valid."""
        for nested in graphs_in(value):
            verify(nested)
        if isinstance(value, Constant):
            return
        try:
            hash(value)
        except TypeError:
            self.fail(node, f"attribute {name} of {node.op.name} is a {type(value).__name__}, which is not hashable",
                      "Use tuples, numbers, strings, dtypes, Constant or Graph.")

    def specs(self, node: Node) -> None:
        """Check that the op's shape rule gives the specs that the node records."""
        inputs = [edge[0].spec(edge[1]) for edge in node.inputs if edge is not None]
        for function in (node.op.kernel, node.op.lower):
            if not accepts(function, len(inputs), tuple(node.attrs)):
                self.fail(node, f"{node.op.name} does not take {len(inputs)} inputs with the attributes "
                          f"{', '.join(node.attrs) or 'none'}")
        try:
            specs = node.op.infer(*inputs, **node.attrs)
        except Exception as error:
            try:
                self.fail(node, f"{node.op.name} does not accept its inputs or attributes: {error}")
            except VerifyError as wrong:
                raise wrong from error
        outputs: tuple[TensorSpec, ...] = specs if isinstance(specs, tuple) else (specs,)
        if len(outputs) != len(node.outputs):
            self.fail(node, f"the node records {len(node.outputs)} outputs, but {node.op.name} gives {len(outputs)}")
        for recorded, inferred in zip(node.specs, outputs, strict=True):
            if not same_spec(recorded, inferred):
                self.fail(node, f"the node records {recorded}, but {node.op.name} gives {inferred}")


@lru_cache(4096)
def accepts(function: Callable[..., Any] | No, inputs: int, attrs: tuple[str, ...]) -> bool:
    """Whether a kernel or lowering can be called with this many arrays and these attributes."""
    if isinstance(function, No):
        return True
    if isinstance(function, np.ufunc):
        return function.nin == inputs and not attrs
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a C function without a signature; only its shape rule checks the call
    try:
        signature.bind(*[None] * inputs, **dict.fromkeys(attrs))
    except TypeError:
        return False
    return True


def _name(scope: Any) -> str:
    return repr(getattr(scope, "name", scope))
