"""`hf.Session`: run graphs made by hand, pruned to what is fetched and compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

import jax

from hybridflow.autodiff.graph_gradients import gradients
from hybridflow.autodiff.jacobian import flatten
from hybridflow.core.context import context_of, current
from hybridflow.core.dims import Dim, substitute
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    TraceError,
)
from hybridflow.core.node import Edge, Node
from hybridflow.core.tensor import Tensor, as_tensor, asarray, make_tensor, require_value
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import Check, GraphBuilder
from hybridflow.ir.construction import Construction, construction_of, open_sizes
from hybridflow.ir.graph import Graph, on_gradients
from hybridflow.tracing.function import CompiledFunction

on_gradients(gradients)


class Session:
    """Runs parts of a graph that was made by hand.

    A run computes only what is fetched. Effects and checks (`hf.print`, `hf.debugging.check`, writers of summaries)
    happen if everything they read is computed or fed. A run reads every Variable at its start. At its end it assigns
    those whose assignment is fetched, all or none of them. Each combination of fetches, fed tensors and shapes is
    compiled once. Neither tapes nor `.backward()` record a run: gradients are part of the graph.

    Args:
        graph: the graph; it may still grow.

    Example:
        >>> import hybridflow as hf
        >>> w = hf.Variable(1.0)
        >>> with hf.Graph() as g:
        ...     x = hf.placeholder((), name="x")
        ...     loss = (w * x - 6.0) ** 2
        ...     (slope,) = g.gradients(loss, [w])
        ...     step = w.assign_sub(0.1 * slope)
        >>> with hf.Session(g) as s:
        ...     s.run([loss, step], feed={x: 2.0})
        [Tensor(16., dtype=float32), Tensor(2.6, dtype=float32)]
    """

    def __init__(self, graph: Graph) -> None:
        self._construction = construction_of(graph)
        self._programs: dict[Any, CompiledFunction[..., Any]] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what was compiled; the session cannot run any more."""
        self._programs.clear()
        self._closed = True

    @property
    def compile_count(self) -> int:
        """The number of XLA executables that were compiled: one per fetches, fed tensors and shapes."""
        return sum(program.compile_count for program in self._programs.values())

    def run(self, fetches: Any, feed: Mapping[Any, Any] | None = None) -> Any:
        """Compute tensors of the graph.

        Args:
            fetches: tensors (also of assignments) and Variables of the graph, in any nesting; for a Variable, its
                value after the run is returned.
            feed: values for placeholders, or for any other tensors of the graph, which are then not computed.

        Returns:
            The structure of the fetches, with tensors.

        Raises:
            ArgumentError: a needed placeholder is not fed, or one Variable is assigned twice.
            ArgumentTypeError: a fetch or a key of the feed is no tensor.
            ShapeError, DTypeError: a fed value has another shape or dtype than its tensor.
            LeakError: a tensor belongs to another graph.
            TraceError: the session was closed, or this is inside a compiled function or a graph.
        """
        if self._closed:
            raise TraceError("Session: it was closed", hint="Make a new hf.Session(graph).")
        if current().tracer is not None:
            raise TraceError("Session: run inside a compiled function or a graph", hint="Run it outside.")
        edges, values = self._fed(feed or {})
        tree, wanted = self._wanted(fetches)
        key = (tuple([id(one) if isinstance(one, Variable) else one for one in wanted]), edges)
        program = self._programs.get(key)
        if program is None:
            made = _Program.of(self._construction, wanted, edges)
            program = self._programs[key] = CompiledFunction(
                made.run, autograph=False, name=self._construction.name, dynamic=False, verify=False
            )
        self._check_sizes(edges, values)
        with context_of(None, (), current().device, grad=False):
            return jax.tree_util.tree_unflatten(tree, program(values))

    def function(self, fetches: Any, feed: Sequence[Any] = ()) -> Callable[..., Any]:
        """Return what a run computes as a function, which can be compiled, exported, and called by other functions.

        Args:
            fetches: as for `run`.
            feed: the tensors whose values are the function's arguments, in order.

        Returns:
            A function of the fed values that returns the structure of the fetches. In eager code a call is a run.

        Raises:
            ArgumentError, ArgumentTypeError, LeakError: as for `run`.

        Example:
            >>> import hybridflow as hf
            >>> with hf.Graph() as g:
            ...     x = hf.placeholder((None,), name="x")
            ...     y = x * 2
            >>> double = hf.Session(g).function(y, [x])
            >>> hf.compile(lambda v: double(v) + 1)(hf.asarray([1.0]))
            Tensor([3.], dtype=float32)
        """
        given = tuple([self._construction.own_edge(tensor) for tensor in feed])
        order = sorted(range(len(given)), key=lambda number: (given[number][0].sequence, given[number][1]))
        edges = tuple([given[number] for number in order])
        tree, wanted = self._wanted(fetches)
        program = _Program.of(self._construction, wanted, edges)

        def call(*values: Any) -> Any:
            if current().tracer is None:
                return self.run(fetches, dict(zip(feed, values, strict=True)))
            fed = [_fed_value(edge, values[number], traced=True) for edge, number in zip(edges, order, strict=True)]
            self._check_sizes(edges, fed)
            return jax.tree_util.tree_unflatten(tree, program.run(fed))

        return call

    def variables(self, fetches: Any, feed: Sequence[Any] = ()) -> tuple[Variable, ...]:
        """Return the Variables whose values a run reads.

        Args:
            fetches: as for `run`.
            feed: the tensors to be fed.
        """
        edges = tuple([self._construction.own_edge(tensor) for tensor in feed])
        return _Program.of(self._construction, self._wanted(fetches)[1], edges).variables

    def graph(self, fetches: Any, feed: Sequence[Any] = ()) -> Graph:
        """Return the part of the graph that a run of these fetches computes, as a graph of its own.

        Args:
            fetches: as for `run`.
            feed: the tensors to be fed, besides the placeholders.
        """
        leaves, _ = flatten(fetches)
        own = self._construction.own_edge
        return self._construction.pruned([own(leaf) for leaf in leaves], [own(tensor) for tensor in feed])

    def _wanted(self, fetches: Any) -> tuple[Any, tuple[Edge | Variable, ...]]:
        """Return the structure of the fetches, and their edges and Variables.

        Raises:
            ArgumentTypeError: a fetch is no tensor.
        """
        leaves, tree = flatten(fetches)
        for leaf in leaves:
            if not isinstance(leaf, Tensor | Variable):
                raise ArgumentTypeError(f"Session: a fetch is a {type(leaf).__name__}, not a tensor",
                                        got=repr(leaf)[:60], hint="Fetch tensors and Variables of the graph.")
        own = self._construction.own_edge
        return tree, tuple([leaf if isinstance(leaf, Variable) else own(leaf) for leaf in leaves])

    def _fed(self, feed: Mapping[Any, Any]) -> tuple[tuple[Edge, ...], list[Tensor]]:
        given: dict[Edge, Tensor] = {}
        for key, value in feed.items():
            if not isinstance(key, Tensor):
                raise ArgumentTypeError(f"Session: the feed has a {type(key).__name__} as a key", got=repr(key)[:60],
                                        hint="Keys are placeholders or other tensors of the graph; assign Variables.")
            edge = self._construction.own_edge(key)
            given[edge] = _fed_value(edge, value)
        order = sorted(given, key=lambda edge: (edge[0].sequence, edge[1]))
        return tuple(order), [given[edge] for edge in order]

    def _check_sizes(self, edges: Sequence[Edge], values: Sequence[Tensor]) -> None:
        """Raise if the fed sizes break a relation between open sizes that the graph relies on."""
        dims = self._construction.dims
        sizes = open_sizes(self._construction, edges, values)
        for guard in dims.guards:
            if _symbols(guard.left) | _symbols(guard.right) <= sizes.keys() and not guard.holds(sizes):
                shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
                raise ShapeError(f"Session: the graph was made for sizes where {guard.sentence()}, which is not so for "
                                 f"{shown}", hint="Feed sizes that agree, or give the placeholders their sizes.")


def _symbols(size: Any) -> set[str]:
    if not isinstance(size, Dim):
        return set()
    symbols: set[str] = set()
    for monomial in size.terms:
        for atom in monomial:
            symbols |= {atom} if isinstance(atom, str) else _symbols(atom.left) | _symbols(atom.right)
    return symbols


def _named(node: Node, index: int = 0) -> str:
    name = node.attrs.get("name") or node.op.name
    shape = make_tensor(None, (node, index)).spec
    open_shape = ",".join("?" if isinstance(size, Dim) else str(size) for size in shape.shape)
    where = "" if node.location is None else f" (made at {node.location})"
    return f"{name}: {str(shape).split('[')[0]}[{open_shape}]{where}"


def _fed_value(edge: Edge, value: Any, *, traced: bool = False) -> Tensor:
    """Return a fed value as a tensor; raise unless it has the dtype and shape of the graph's tensor."""
    node, index = edge
    spec = node.spec(index)
    tensor = as_tensor(value) if hasattr(value, "dtype") else asarray(value, dtype=spec.dtype)
    if not traced:
        require_value(tensor, "Session")
    if tensor.dtype != spec.dtype:
        raise DTypeError(f"Session: {tensor.dtype} was fed for {spec.dtype}",
                         got=f"{tensor.spec} for {_named(node, index)}", hint=f"Cast it to {spec.dtype}.")
    fits = len(tensor.shape) == len(spec.shape) and all(
        isinstance(size, Dim) or size == actual for size, actual in zip(spec.shape, tensor.shape, strict=True)
    )
    if not fits:
        raise ShapeError("Session: a value of another shape was fed", got=f"{tensor.spec} for {_named(node, index)}",
                         hint="Feed its shape; ? is any size.")
    return tensor if traced else make_tensor(tensor._value)


class _Program(NamedTuple):
    """The part of a graph that one set of fetches and fed tensors needs."""

    construction: Construction
    wanted: tuple[Edge | Variable, ...]
    edges: tuple[Edge, ...]
    nodes: tuple[Node, ...]
    checks: tuple[Check, ...]
    variables: tuple[Variable, ...]
    captures: tuple[tuple[Tensor, Node], ...]
    assignments: tuple[tuple[Variable, Edge], ...]

    @classmethod
    def of(cls, construction: Construction, wanted: tuple[Edge | Variable, ...], edges: tuple[Edge, ...]) -> _Program:
        """Reduce the graph to what a run needs.

        Raises:
            ArgumentError: a needed placeholder is not fed, or one Variable is assigned twice.
        """
        given = set(edges)
        outputs = [one for one in wanted if not isinstance(one, Variable)]
        needed = construction.needed(outputs, given)
        states = construction.variables.values()
        moving = [state for state in states if state.variable.moves_on and state.original[0] in needed]
        outputs += [state.edge for state in moving]
        needed = construction.needed(outputs, given)
        side = construction.side_roots(needed, outputs, given)
        needed = construction.needed([*outputs, *side], given)
        for node in construction.arguments:
            if node in needed:
                raise ArgumentError(f"Session: the placeholder {node.attrs['name']!r} was not fed", got=_named(node),
                                    hint="Add it to the feed.")
        fetched = dict.fromkeys([one[0] for one in wanted if not isinstance(one, Variable)])
        performed = [(variable, node) for node, variable in construction.assignments.items() if node in fetched]
        for number, (variable, node) in enumerate(performed):
            for other, before in performed[:number]:
                if other is variable:
                    raise ArgumentError(f"Session: Variable {variable.name!r} is assigned twice in one run",
                                        got=f"at {before.location} and at {node.location}", hint="Fetch one of them.")
        return cls(
            construction,
            wanted,
            edges,
            tuple([node for node in construction.nodes if node in needed]),
            tuple([check for check in construction.checks if check.ok._edge in side]),
            tuple([state.variable for state in states if state.original[0] in needed]),
            tuple([capture for capture in construction.captures.values() if capture[1] in needed]),
            (*[(variable, (node, 0)) for variable, node in performed],
             *[(state.variable, state.edge) for state in moving]),
        )

    def run(self, values: list[Tensor]) -> list[Any]:
        """Compute the fetches; this is the function that is traced."""
        tracer = cast(GraphBuilder, current().tracer)
        environment: dict[Edge, Tensor] = dict(zip(self.edges, values, strict=True))
        sizes = open_sizes(self.construction, self.edges, values)
        environment.update({(node, 0): tensor for tensor, node in self.captures})
        for variable in self.variables:
            environment[self.construction.own_edge(variable)] = variable.read()
        for node in self.nodes:
            self._add(tracer, node, environment, sizes)
        for check in self.checks:
            tracer.add_check(check._replace(ok=environment[cast(Edge, check.ok._edge)]))
        for variable, edge in self.assignments:
            variable.assign(environment[edge])
        return [one.read() if isinstance(one, Variable) else environment[one] for one in self.wanted]

    @staticmethod
    def _add(tracer: GraphBuilder, node: Node, environment: dict[Edge, Tensor], sizes: dict[str, int]) -> None:
        attrs = {name: substitute(value, sizes) for name, value in node.attrs.items() if name != "residuals"}
        inputs = [environment[edge] for edge in node.inputs if edge is not None]
        tracer.place = node.where
        try:
            outputs = tracer.bind_all(node.op, inputs, attrs, residuals=bool(node.attrs.get("residuals")))
        finally:
            tracer.place = None
        for index, output in enumerate(outputs):
            environment.setdefault((node, index), output)
