"""`Graph`: nodes in order from inputs to outputs, the form of every traced computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self, cast

import numpy as np

from hybridflow.core.attached import attached
from hybridflow.core.dims import DimScope, same_size
from hybridflow.core.errors import ShapeError
from hybridflow.core.mesh import Layout
from hybridflow.core.node import Edge, Node, Where, make_node
from hybridflow.core.sources import CONSTANT, INPUT, Constant
from hybridflow.core.spec import TensorSpec, make_spec

_GRADIENTS: list[Callable[[Graph, Any, Any, Any], Any]] = []


def on_gradients(function: Callable[[Graph, Any, Any, Any], Any]) -> None:
    """Set the function behind `Graph.gradients`: differentiation is imported later than the graph."""
    _GRADIENTS[:] = [function]


@dataclass(eq=False)
class Graph:
    """A computation: `outputs` as a function of `inputs`.

    Most graphs are traced and never change. A graph that is made empty can grow: inside ``with graph:``, operations
    are added to it instead of being executed. A `hf.Session` then runs the parts that are fetched.

    Attributes:
        name: the traced function's name.
        inputs: the input nodes, in calling order.
        nodes: every other node, each after the nodes it reads.
        outputs: the edges returned.
        dims: the symbolic sizes of the inputs.
        executables: a cache of executables and derived graphs, freed with this graph.
        construction: the builder, if the graph is hand-made.
        captured: for a compiled function's graph, the tensors and Variables that give some inputs their values.
        output_names: for a compiled function's graph, the names of its outputs.
        assigned: for a compiled function's graph, the positions of the outputs that Variables are assigned, each with
            the input that is the Variable.
        layouts: for the graph of a function that is compiled for a mesh, a function from a value to how it lies there.

    Example:
        >>> import hybridflow as hf
        >>> with hf.Graph("square") as g:
        ...     x = hf.placeholder((2,), name="x")
        ...     y = x * x
        ...     (dx,) = g.gradients(y, [x])
        >>> hf.Session(g).run([y, dx], feed={x: [1.0, 3.0]})
        [Tensor([1., 9.], dtype=float32), Tensor([2., 6.], dtype=float32)]
    """

    name: str = "graph"
    inputs: tuple[Node, ...] = ()
    nodes: tuple[Node, ...] = ()
    outputs: tuple[Edge, ...] = ()
    dims: DimScope = field(default_factory=DimScope)
    executables: dict[Any, Any] = field(default_factory=dict[Any, Any], repr=False)
    construction: Any = field(default=None, repr=False)
    captured: dict[Node, Any] = field(default_factory=dict[Node, Any], repr=False)
    output_names: tuple[str, ...] = ()
    assigned: dict[int, Node] = field(default_factory=dict[int, Node], repr=False)
    layouts: Callable[[Edge], Layout | None] | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        attached("construction_of")(self).enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.construction.leave()

    def gradients(self, ys: Any, xs: Any, output_gradients: Any = None) -> Any:
        """Add the gradients of tensors to the graph, inside its block.

        Args:
            ys: a tensor of the graph, or a pytree of them, which are summed.
            xs: tensors and Variables of the graph, in any nesting.
            output_gradients: gradients of `ys` to start from, in the structure of `ys`; ones if None.

        Returns:
            The structure of `xs`, with tensors of the graph; None where `ys` do not depend on a tensor.

        Raises:
            TraceError: outside the graph's block.
            ArgumentTypeError: if something is not a tensor.
            ArgumentError: if `output_gradients` do not match `ys`.
        """
        return _GRADIENTS[0](self, ys, xs, output_gradients)

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the inputs."""
        return tuple([node.spec() for node in self.inputs])

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the outputs."""
        return tuple([node.spec(index) for node, index in self.outputs])

    def to_dot(self, *, color: Any = None) -> str:
        """Return the graph in the DOT language of Graphviz.

        Args:
            color: the meaning of the boxes' colors: ``"flops"``, ``"bytes"``, or a dict with a number per node.

        Raises:
            ArgumentError: if `color` is another word.
        """
        return attached("to_dot")(self, color)

    def to_mermaid(self, *, color: Any = None) -> str:
        """Return the graph as a Mermaid flowchart: Markdown on GitHub and GitLab, and notebooks, draw it.

        Name scopes, functions and lines are subgraphs. If the graph has more than Mermaid draws (500 arrows), the
        innermost of them are folded into one box each.

        Args:
            color: as for `to_dot`.

        Raises:
            ArgumentError: if `color` is another word, or the graph is too large with everything folded.

        Example:
            >>> import hybridflow as hf
            >>> f = hf.compile(lambda x: hf.sin(x))
            >>> print(f.graph(hf.asarray([1.0])).to_mermaid())
            flowchart TB
              n1(["x"]):::input
              n2["sin"]:::op
              n3(["output"]):::output
              n1 -->|"f32[1]"| n2
              n2 -->|"f32[1]"| n3
            ...
        """
        return attached("to_mermaid")(self, color)

    def to_svg(self, path: str | PathLike[str], *, color: Any = None) -> None:
        """Write a picture of the graph as SVG: every operation, grouped by name scope and line.

        Args:
            path: the file.
            color: as for `to_dot`.
        """
        attached("to_svg")(self, path, color)

    def to_html(self, path: str | PathLike[str], *, color: Any = None) -> None:
        """Write a page with a picture of the graph, with folding, search and zoom; it needs no network.

        Args:
            path: the file.
            color: as for `to_dot`.
        """
        attached("to_html")(self, path, color)

    def to_model_explorer(self, path: str | PathLike[str]) -> None:
        """Write the graph as JSON that Model Explorer (github.com/google-ai-edge/model-explorer) opens.

        Args:
            path: the file.
        """
        attached("to_model_explorer")(self, path)

    def to_onnx(self, path: str | PathLike[str], *, as_inputs: bool = False) -> None:
        """Write the graph as an ONNX model, which Netron shows and ONNX's runtimes run.

        Every operation names its line in the user's code. Open sizes stay open in the model; its metadata has the
        guards on them. Some behavior is left to ONNX's runtimes: the order of sums, which of 0.0 and -0.0 is larger,
        and the result of `hf.nn.max_pool` for NaN. float16 and bfloat16 are computed in float32 where an operation
        takes several operators. If constants take more than 1 GiB, they are written to a second file, ``<path>.data``.

        Args:
            path: the file.
            as_inputs: whether outer tensors and Variables that a compiled function reads become inputs of the model;
                if not, their current values are part of it.

        Raises:
            ExportError: if ONNX lacks operations (the message names them all, with their lines), or the graph has no
                results. Nothing is written then.
            MissingPackageError: if the `onnx` package is not installed.
        """
        attached("to_onnx")(self, path, as_inputs=as_inputs)

    def show(self, *, color: Any = None) -> Any:
        """Show the picture of the graph: in a notebook as a cell's result, elsewhere in the web browser.

        Args:
            color: as for `to_dot`.

        Returns:
            In a notebook, the object to display; elsewhere, the path of the page, which exists until the process ends.
        """
        return attached("show")(self, color)

    def _repr_html_(self) -> str:
        return attached("in_notebook_html")(self, None)

    def walk(self) -> Iterator[Node]:
        """Yield every node, including those of nested graphs."""
        for node in self.nodes:
            yield node
            for graph in nested_graphs(node):
                yield from graph.walk()

    def __str__(self) -> str:
        return attached("print_graph")(self)

    __repr__ = __str__

    def __rich__(self) -> Any:
        return attached("highlighted")(str(self))

    def __hash__(self) -> int:
        return id(self)


def nested_graphs(node: Node) -> list[Graph]:
    """Return the graphs among a node's attributes, including those in tuples."""
    return [graph for value in node.attrs.values() for graph in graphs_in(value)] if node.op.has("nested") else []


def graphs_of(graph: Graph) -> list[Graph]:
    """Return a graph and all graphs nested in it, each once."""
    graphs = {graph: None}
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes:
            for inner in nested_graphs(node) if "nested" in node.op.traits else ():
                if inner not in graphs:
                    graphs[inner] = None
                    waiting.append(inner)
    return list(graphs)


def plain_attrs(node: Node) -> dict[str, Any]:
    """Return the attributes of a node that contain no graphs."""
    return {name: value for name, value in node.attrs.items() if not any(True for _ in graphs_in(value))}


def graphs_in(value: Any) -> Iterator[Graph]:
    """Yield the graphs in an attribute value, including those in tuples."""
    if isinstance(value, Graph):
        yield value
    elif isinstance(value, tuple):
        for item in cast("tuple[Any, ...]", value):
            yield from graphs_in(item)


def reading_from(graph: Graph, moved: dict[Edge, Edge]) -> Graph:
    """Return a graph in which the reads of some edges are replaced by other edges."""
    nodes: list[Node] = []
    moved = dict(moved)
    for node in graph.nodes:
        inputs = tuple([moved.get(edge, edge) for edge in edges_of(node)])
        copy = node if inputs == node.inputs else clone_node(node, inputs)
        if copy is not node:
            copy.sequence, copy.stamp = node.sequence, node.stamp
            moved.update({(node, index): (copy, index) for index in range(len(node.outputs))})
        nodes.append(copy)
    outputs = tuple([moved.get(edge, edge) for edge in graph.outputs])
    return Graph(graph.name, graph.inputs, tuple(nodes), outputs, graph.dims)


def _takes(own: TensorSpec, given: TensorSpec) -> bool:
    return own.dtype == given.dtype and own.ndim == given.ndim and all([
        same_size(size, one) or type(size) is not type(one) for size, one in zip(own.shape, given.shape, strict=True)
    ])


def require_inputs(op: str, graph: Graph, specs: Sequence[TensorSpec]) -> None:
    """Raise unless a graph that an operation carries takes values of these specs; an open size takes any number.

    Raises:
        ShapeError: naming the operation, the graph, what it takes and what it is given.
    """
    takes = graph.input_specs
    if len(takes) != len(specs) or not all(map(_takes, takes, specs)):
        wanted, got = [", ".join(map(str, some)) or "nothing" for some in (takes, specs)]
        raise ShapeError(f"{op}: its graph {graph.name} takes {wanted}"[:800], got=got[:800])


def input_node(spec: TensorSpec, name: str, scope: Any = None, where: Where | None = None) -> Node:
    """Make an input node."""
    return make_node(INPUT, (), {"name": name}, (spec,), scope=scope, where=where)


def edges_of(node: Node) -> tuple[Edge, ...]:
    """Return the inputs of a graph's node, which are all edges."""
    return cast("tuple[Edge, ...]", node.inputs)


def constant_node(array: np.ndarray[Any, Any], scope: Any = None, where: Where | None = None) -> Node:
    """Make a constant node."""
    spec = make_spec(array.shape, array.dtype)
    return make_node(CONSTANT, (), {"value": Constant(array)}, (spec,), scope=scope, where=where)


def clone_node(node: Node, inputs: tuple[Edge, ...], **changes: Any) -> Node:
    """Return a copy of a graph's node with other inputs (and other attrs or outputs, if given)."""
    return make_node(
        changes.get("op", node.op),
        inputs,
        changes.get("attrs", node.attrs),
        changes.get("outputs", node.outputs),
        where=node.where,
        scope=node.scope,
    )
