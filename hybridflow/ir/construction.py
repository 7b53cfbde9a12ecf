"""Hand-made graphs, to which the operations of a ``with hf.Graph()`` block are added."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from typing import Any, cast

from hybridflow.core.context import CONTEXT, Context, context_of, current
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import as_dtype, float32
from hybridflow.core.errors import CheckError, LeakError, ShapeError, TraceError
from hybridflow.core.node import Edge, Node, format_where, user_place
from hybridflow.core.op import Op
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import SizeName, TensorSpec, example_size, make_spec
from hybridflow.core.tensor import Tensor, leaked, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import ASSIGN, GraphBuilder, Scope
from hybridflow.ir.effects import has_effect
from hybridflow.ir.graph import Graph, clone_node, input_node

_HINT = 61
"""The value of every open size while the graph is made: the same for all, so that open sizes fit each other."""


class GraphScope(Scope):
    """The scope of a hand-made graph."""

    __slots__ = ()

    when = "while a graph is being made"
    where = "the graph"
    leaked = "a tensor has no value outside of the graph"
    hint = elsewhere = reading = "Run it: with hf.Session(graph) as s: s.run(tensor, feed={...})."


class Construction(GraphBuilder):
    """The builder behind a hand-made graph.

    Every read of a Variable gives its value at the start of a run. An assignment is an operation of its own, which a
    run performs at its end if it is fetched.
    """

    def __init__(self, graph: Graph) -> None:
        with context_of(None):
            super().__init__(graph.name)
        self.scope: Scope = GraphScope(graph.name, None)
        self.graph = graph
        self.assignments: dict[Node, Variable] = {}
        self._entered: list[Token[Context | None]] = []

    def enter(self) -> None:
        """Start the block in which operations are added."""
        if current().tracer is not None:
            raise TraceError("Graph: a graph is entered inside a compiled function or another graph",
                             hint="Make graphs outside of compiled functions, one at a time.")
        self._entered.append(CONTEXT.set(Context(self, (), current().device, autocast=current().autocast)))

    def leave(self) -> None:
        """End the block, and bring the graph up to date."""
        CONTEXT.reset(self._entered.pop())
        states = self.variables.values()
        self.graph.inputs = (
            *self.arguments,
            *[node for _, node in self.captures.values()],
            *[state.original[0] for state in states],
        )
        self.graph.nodes = tuple(self.nodes)
        self.graph.dims = self.dims

    def placeholder(self, shape: Sequence[int | str | None], dtype: Any, name: str | None) -> Tensor:
        """Add an input whose value is fed."""
        name = name or f"placeholder_{len(self.arguments)}"
        sizes = [
            self.dims.symbol(f"{name}_{axis}", _HINT) if size is None
            else self.dims.named(size, example_size(size, _HINT), size.max) if type(size) is SizeName else size
            for axis, size in enumerate(TensorSpec(tuple(shape)).shape)
        ]
        tensor = self.argument(make_spec(tuple(sizes), as_dtype(dtype)), name)
        cast(Edge, tensor._edge)[0].where = user_place(2)
        return tensor

    def eager_code(self, *, once: bool) -> AbstractContextManager[Any]:
        """Return a context manager for eager code: it is no part of the runs, and sees Variables as they are."""
        del once
        return nullcontext()

    def new_variable(self, name: str) -> None:
        """Allow creating a Variable: only its reads and assignments are part of the graph."""

    def assign_variable(self, variable: Variable, value: Tensor) -> Tensor | None:
        """Add the operation that assigns a Variable; random states advance by themselves in every run."""
        if variable.moves_on:
            super().assign_variable(variable, value)
            return None
        self._state(variable)
        made = cast(Tensor, self.bind(ASSIGN, (value,), {}))
        self.assignments[cast(Edge, made._edge)[0]] = variable
        return made

    def before_assignment(self, builder: GraphBuilder, variable: Variable) -> None:
        """Raise for an assignment that no run could fetch.

        Raises:
            TraceError: if the assignment is in a branch or loop body.
        """
        if builder is not self and not variable.moves_on:
            raise TraceError(
                f"assign: Variable {variable.name!r} is assigned in a branch or loop of graph {self.name!r}",
                got=f"{variable.spec} at {format_where(user_place(2))}",
                hint="Return the new value and assign it outside of it; then fetch that."
            )

    def has_gradient(self, cell: Variable) -> bool:
        """Raise an error, as `set_gradient` does."""
        self.set_gradient(cell, True)
        return True

    def set_gradient(self, cell: Variable, present: bool) -> None:
        """Raise an error: runs do not store gradients in Variables.

        Raises:
            TraceError: always.
        """
        del present
        raise TraceError(f"{cell.name}: asked for or written inside of graph {self.name!r}",
                         got=f"at {format_where(user_place(2))}",
                         hint="In a graph gradients are tensors: use graph.gradients(y, xs).")

    def bind(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Add a node, including the hidden outputs for its gradient rule, and return those that `bind` returns."""
        outputs = self.bind_all(op, inputs, attrs, residuals=bool(op.saves.hidden))
        asked = not op.saves.hidden or attrs.get("residuals")
        hidden = 0 if asked else op.hidden_outputs({**attrs, "residuals": True})
        visible = outputs[: len(outputs) - hidden]
        return visible[0] if len(visible) == 1 else visible

    def own_edge(self, value: Any) -> Edge:
        """Return the edge of a tensor or Variable of this graph.

        Raises:
            LeakError: if the tensor is not from this graph.
        """
        if isinstance(value, Variable):
            return self._state(value).original
        edge = value._edge
        if edge is None or edge[0].scope is not self.scope:
            if value._value is None:
                raise leaked(value)
            raise LeakError(f"Session: a tensor that graph {self.name!r} did not make", got=str(value.spec),
                            hint="Fetch and feed tensors that were made in `with graph:`.")
        return edge

    # -- pruning ----------------------------------------------------------------------------------------------

    def needed(self, outputs: Sequence[Edge], given: set[Edge]) -> set[Node]:
        """Return the nodes and inputs that outputs depend on; the search stops at given edges."""
        needed: set[Node] = set()
        stack = [edge for edge in outputs if edge not in given]
        while stack:
            node = stack.pop()[0]
            if node in needed:
                continue
            needed.add(node)
            stack.extend([edge for edge in node.inputs if edge is not None and edge not in given])
        return needed

    def side_roots(self, needed: set[Node], outputs: Sequence[Edge], given: set[Edge]) -> list[Edge]:
        """Return the checks and effects that only use values which a run computes or is fed anyway.

        A check that an operation brings along, such as that of an index, is that operation's: a fed index that is used
        for nothing is not checked.
        """
        known = needed | {node for node in self.nodes if node.op is CONSTANT}
        used = {edge for node in needed for edge in node.inputs if edge in given}.union(outputs)
        private = self._private({cast(Edge, check.ok._edge)[0] for check in self.checks})
        roots: list[Edge] = []
        for check in self.checks:
            end = cast(Edge, check.ok._edge)
            fed = given if issubclass(check.error, CheckError) else used
            if all([edge in fed or edge[0] in known for edge in self._looked_at(end, private, fed)]):
                roots.append(end)
        for node in self.nodes:
            if has_effect(node) and all([e is None or e in given or e[0] in known for e in node.inputs]):
                known.add(node)
                roots.append((node, 0))
        return roots

    @staticmethod
    def _looked_at(end: Edge, private: set[Node], given: set[Edge]) -> set[Edge]:
        """Return the values that a check uses: those that are fed, or that not only checks use."""
        reached: set[Edge] = set()
        stack = [end]
        while stack:
            edge = stack.pop()
            if edge[0] in private and edge not in given:
                stack.extend([before for before in edge[0].inputs if before is not None])
            else:
                reached.add(edge)
        return reached

    def _private(self, ends: set[Node]) -> set[Node]:
        """Return `ends` and the nodes that only they use, directly or indirectly."""
        users: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for edge in node.inputs:
                if edge is not None:
                    users.setdefault(edge[0], []).append(node)
        private = set(ends)
        for node in reversed(self.nodes):
            if node in users and all(user in private for user in users[node]):
                private.add(node)
        return private

    def pruned(self, outputs: Sequence[Edge], given: Sequence[Edge]) -> Graph:
        """Return the part of the graph that computes outputs, as a new graph; given edges become inputs."""
        needed = self.needed(outputs, set(given))
        inputs = [node for node in self.graph.inputs if node in needed]
        moved: dict[Edge, Edge] = {}
        for number, (node, index) in enumerate(given):
            made = input_node(node.spec(index), node.attrs.get("name", f"fed_{number}"), self.scope, node.where)
            inputs.append(made)
            moved[node, index] = (made, 0)
        nodes: list[Node] = []
        for node in self.nodes:
            if node in needed:
                edges = tuple([moved.get(edge, edge) for edge in node.inputs if edge is not None])
                kept = node if edges == node.inputs else clone_node(node, edges)
                nodes.append(kept)
                moved.update({(node, i): (kept, i) for i in range(len(node.outputs)) if (node, i) not in moved})
        return Graph(self.name, tuple(inputs), tuple(nodes), tuple([moved.get(e, e) for e in outputs]), self.dims)


def construction_of(graph: Graph) -> Construction:
    """Return the builder of a hand-made graph.

    Raises:
        TraceError: if the graph was traced or parsed.
    """
    construction = graph.construction
    if construction is None:
        if graph.nodes or graph.inputs or graph.outputs:
            raise TraceError(f"Graph: {graph.name!r} is finished: it was traced, or read from text",
                             hint="Make a new one with hf.Graph() and add to that.")
        construction = graph.construction = Construction(graph)
    return construction


def placeholder(shape: Sequence[int | str | None], dtype: Any = float32, name: str | None = None) -> Tensor:
    """Add an input to the graph of the current block; a `hf.Session` feeds it.

    Args:
        shape: its sizes. None means any size; a name means a size that is the same wherever the name occurs. Open
            sizes that must fit each other are assumed to be equal, which runs check.
        dtype: its dtype.
        name: a name for messages and prints.

    Returns:
        Its tensor.

    Raises:
        TraceError: outside a ``with graph:`` block.

    Example:
        >>> import hybridflow as hf
        >>> with hf.Graph() as g:
        ...     x = hf.placeholder((None,), name="x")
        ...     y = x * 2
        >>> hf.Session(g).run(y, feed={x: [1.0, 2.0]})
        Tensor([2., 4.], dtype=float32)
    """
    tracer = current().tracer
    if not isinstance(tracer, Construction):
        raise TraceError("placeholder: there is no graph to add it to", hint="Use it inside `with hf.Graph() as g:`.")
    return tracer.placeholder(shape, dtype, name)


def open_sizes(construction: Construction, edges: Sequence[Edge], values: Sequence[Any]) -> dict[str, int]:
    """Return the graph's open sizes, as fed values tell them.

    Raises:
        ShapeError: if two values disagree about a size.
    """
    sizes: dict[str, int] = {}
    for (node, index), value in zip(edges, values, strict=True):
        for size, actual in zip(node.spec(index).shape, value.shape, strict=True):
            symbol = size.symbol if isinstance(size, Dim) else None
            if symbol is None or symbol not in construction.dims.hints:
                continue
            if sizes.setdefault(symbol, actual) != actual:
                raise ShapeError(f"Session: the size {symbol} is {sizes[symbol]} in one tensor and {actual} in another",
                                 hint="Feed tensors of the same size where a name stands.")
    return sizes


def reached(construction: Construction, tensors: Sequence[Any]) -> list[Tensor]:
    """Return tensors and Variables of a graph as traced tensors of it."""
    return [make_tensor(None, construction.own_edge(tensor)) for tensor in tensors]
