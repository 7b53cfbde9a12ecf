"""`GraphBuilder`: the tracer that turns operations into the nodes of a graph."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any, NamedTuple, NoReturn, Protocol, cast

import numpy as np

from hybridflow.core.autocast import without_autocast
from hybridflow.core.context import Context, context_now, context_of, current, is_tracing
from hybridflow.core.dims import Dim, DimScope
from hybridflow.core.dispatch import run_raw, visible_outputs
from hybridflow.core.dtypes import DType, bool_, is_differentiable
from hybridflow.core.errors import DTypeError, TraceError
from hybridflow.core.mesh import Mesh
from hybridflow.core.node import FOREVER, Edge, Node, Where, format_where, make_node, user_place
from hybridflow.core.notes import Notes, make_leaf, requires
from hybridflow.core.op import REGISTRY, Op, Saves, Stops, register
from hybridflow.core.settings import SETTINGS
from hybridflow.core.sources import INPUT
from hybridflow.core.spec import TensorSpec, make_spec, spec_of
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.tensor import Tensor, as_tensor, leaked, make_tensor
from hybridflow.core.traced_number import NeedsNumber, NumberSizes, TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.core.variable_log import VariableLog, binder_now, logging_variables, without_log
from hybridflow.ir.checks import Check
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, constant_node, input_node
from hybridflow.ir.variables import VariableState

_UNKNOWN = frozenset({TracedNumber, StagedNumber})
_MOST_AT_A_LINE = 16
"""How many numbers of the call one place in the code may ask for before the trace takes their inputs by value."""


class Scope:
    """The identity of one trace, shared by its nodes.

    Attributes:
        alive: False once the trace has ended.
        thread: the thread that traces.
        tracer: returns the tracer, or None if it is gone; None if it does not say.
    """

    __slots__ = ("alive", "name", "parent", "thread", "tracer")

    when = "while the function is being compiled"
    """When traced tensors have no value, for messages."""
    where = "the compiled function"
    leaked = "a traced tensor leaked out of the compiled function"
    """For messages: what is wrong with a tensor that is used outside the trace; `hint` says what to do."""
    hint = "Return the value from the function instead of storing it."
    elsewhere = (
        "The function is still being traced, and this is outside of the trace: in another thread, in a context of "
        "contextvars, in hf.init_scope or in a function of the host. Use the value in the function itself."
    )
    """What to do if the trace goes on."""

    def __init__(self, name: str, parent: Scope | None) -> None:
        self.name = name
        self.parent = parent
        self.alive = True
        self.thread = get_ident()
        self.tracer: Callable[[], GraphBuilder | None] | None = None

    def is_within(self, outer: object) -> bool:
        """Whether the trace is another one, or a part of it."""
        scope: Scope | None = self
        while scope is not None and scope is not outer:
            scope = scope.parent
        return scope is not None


def _same(x: Any) -> Any:
    return x


READ = register(
    Op(
        "read",
        _same,
        _same,
        lambda x: x,  # pyright: ignore[reportUnknownLambdaType]
        lambda F, g, y, x: (g,),  # pyright: ignore[reportUnknownLambdaType]
        traits=frozenset({"identity", "layout"}),
        onnx="Identity",
    )
)
ASSIGN = register(
    Op(
        "assign",
        _same,
        _same,
        lambda x: x,  # pyright: ignore[reportUnknownLambdaType]
        Stops("no gradient flows through an assignment"),
        traits=frozenset({"identity", "layout"}),
        onnx="Identity",
    )
)
REREAD = register(
    Op(
        "reread",
        lambda value, variable: value,  # pyright: ignore[reportUnknownLambdaType]
        lambda value, variable: value,  # pyright: ignore[reportUnknownLambdaType]
        lambda value, variable: value,  # pyright: ignore[reportUnknownLambdaType]
        lambda F, g, y, value, variable: (None, g),  # pyright: ignore[reportUnknownLambdaType]
        traits=frozenset({"layout"}),
        saves=Saves(depends=lambda: [(0b10, 0)]),
        onnx=lambda o, value, variable: value,  # pyright: ignore[reportUnknownLambdaType]
    )
)
"""An operation that takes ``(assigned value, Variable)`` and returns the value, but passes the gradient to the
Variable: reading a Variable counts for its gradient after an assignment too."""


class ChangingNumbers(Protocol):
    """The numbers of a function that is traced at every call, whose program is kept."""

    def tensor(self, array: np.ndarray[Any, Any], where: Where | None) -> Tensor | None:
        """Return a number as a tensor from outside the trace if it has changed since an earlier call, else None."""
        ...


class GraphBuilder:
    """The tracer that collects the nodes of one trace.

    Tensors made outside become inputs of the graph (`captures`), and so do Variables (`variables`). A nested builder,
    for a branch or a loop body, captures the traced tensors of outer builders in the same way. While `place` is set,
    new nodes get that place in the user's code; nodes of a gradient get the place of their forward node.

    Variables that the traced code creates (`created`: name and place) exist at once. `streams` are the standard output
    and error as they were when the trace began.

    Args:
        name: the graph's name.
        writes: whether Variables may be assigned: the graph's user passes assignments on to the outer trace.
    """

    def __init__(self, name: str, writes: bool = False) -> None:
        self.context: Context = current()
        outer = self.context.tracer
        self.outer: GraphBuilder | None = cast("GraphBuilder | None", outer)
        self.scope = Scope(name, self.outer.scope if self.outer is not None else None)
        self.scope.tracer = weakref.ref(self)
        self.name = name
        self.writes = writes or self.outer is None
        self.arguments: list[Node] = []
        self.number_paths: list[str] = []
        self.number_sizes: NumberSizes | None = None
        self.computed: dict[Any, TracedNumber] = {}
        self.fallible: dict[int, TracedNumber] = {}
        self.relied_on: dict[int, tuple[TracedNumber, Where | None]] = {}
        self.numbers: dict[tuple[int, DType], tuple[TracedNumber, Node]] = {}
        self.nodes: list[Node] = []
        self.captures: dict[Any, tuple[Tensor, Node]] = {}
        self.variables: dict[Node, VariableState] = {}
        self.readings: dict[tuple[Edge, int], Edge] = {}
        self.checks: list[Check] = []
        self.gradient_of: dict[Node, Node] = {}  # from a gradient's node to its forward node
        self.created: list[tuple[str, Where | None]] = []
        self.argument_values: list[Any] = []
        self.freed: set[Node] = set()
        self.asks_mode = False  # whether the gradient mode was read, here or in what is traced within
        self.asks_leaves = False  # whether it was read which values require a gradient
        self.tapes_around = bool(self.context.tapes) or (  # whether tapes record what is around
            self.outer is not None and self.outer.tapes_around and not self.outer.silence
        )
        self.silence = 0  # the number of `hf.no_grad` blocks of this trace that are open
        self.silent: dict[Node, int] = {}  # the nodes made in such blocks, with that number
        self.stopped: dict[Edge, Edge] = {}  # from a value of a silent node to what is used of it outside
        self.handed_on: set[Edge] = set()  # values of silent nodes that may be others' values, as they were
        self.observations: Any = None if self.outer is None else self.outer.observations
        self.place: Where | None = None
        self.changing: ChangingNumbers | None = None if self.outer is None else self.outer.changing
        self.dims = self.outer.dims if self.outer is not None else DimScope()
        self.streams: tuple[Any, Any] = (sys.stdout, sys.stderr) if self.outer is None else self.outer.streams
        self.mesh: Mesh | None = None if self.outer is None else self.outer.mesh
        self.manual: Mesh | None = None if self.outer is None else self.outer.manual  # the mesh of a `hf.shard_map`
        self.row_axes: dict[int, tuple[str, ...]] = {} if self.outer is None else self.outer.row_axes

    # -- inputs -----------------------------------------------------------------------------------------------

    def argument(self, spec: TensorSpec, name: str) -> Tensor:
        """Add an argument and return its traced tensor."""
        node = input_node(spec, name, self.scope)
        self.arguments.append(node)
        return make_tensor(None, (node, 0))

    def number_argument(self, value: float, path: str) -> TracedNumber:
        """Add a Python float or int whose value each call decides, and return its stand-in.

        Args:
            value: its value in the call that is traced.
            path: where it is read, for messages.
        """
        self.number_paths.append(path)
        position = len(self.number_paths) - 1
        return TracedNumber(self, position, frozenset([position]), value)

    @property
    def alive(self) -> bool:
        """Whether the trace is still being made, and its code runs: not that of another trace, thread or context."""
        context = context_now()
        now: Scope | None = getattr(None if context is None else context.tracer, "scope", None)
        return self.scope.alive and now is not None and now.is_within(self.scope)

    def needs_numbers(self, arguments: frozenset[int]) -> NoReturn:
        """Raise `NeedsNumber` for inputs; the trace is discarded even if user code catches that."""
        if self.observations is not None:
            self.observations.numbers.require_numbers(arguments)
        raise NeedsNumber(arguments)

    def left(self, arguments: frozenset[int]) -> None:
        """Note that code outside of the trace uses numbers, which it has read where the trace has stored them."""
        if self.scope.alive and self.observations is not None:
            self.observations.numbers.need(arguments)

    def refused(self, error: Exception, cause: Exception | None = None) -> None:
        """Make the trace end with an error, or with its cause, whatever the user's code does with it."""
        if self.observations is not None:
            self.observations.numbers.refuse(error, cause)

    def number_tensor(self, number: TracedNumber, dtype: DType) -> Tensor:
        """Return the tensor of shape () that holds a Python number in each call."""
        known = self.numbers.get((id(number), dtype))
        if known is None:
            node = input_node(make_spec((), dtype), f"number_{len(self.numbers)}", self.scope, user_place(2))
            known = self.numbers[id(number), dtype] = (number, node)
        return make_tensor(None, (known[1], 0))

    def value_read(self, tensor: Tensor) -> None:
        """Note that a concrete tensor was turned into NumPy or a Python number."""
        if self.observations is not None:
            self.observations.value_read(tensor)

    def open_size(self, number: TracedNumber, symbol: Dim) -> None:
        """Make a Python number the value of an open size in each call.

        The size is that of a tensor which nothing reads, so that it is handled as the sizes of arguments are.
        """
        node = input_node(make_spec((symbol,), bool_), f"number_{len(self.numbers)}", self.scope, user_place(2))
        self.numbers[id(number), bool_] = (number, node)
        self.observations.may_close = True

    def may_fail(self, number: TracedNumber) -> None:
        """Make each call compute a Python number even if nothing uses it."""
        self.fallible[id(number)] = number

    def rely_on(self, number: TracedNumber) -> None:
        """Let the trace serve only calls in which a Python number is what it is in this one.

        Raises:
            NeedsNumber: the line has asked for many numbers; a trace for each of their inputs' values is found faster.
        """
        if id(number) in self.relied_on:
            return
        where = user_place(3)
        if sum(other == where for _, other in self.relied_on.values()) >= _MOST_AT_A_LINE:
            number.needed()
        self.relied_on[id(number)] = number, where

    def constant(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Add a constant and return its traced tensor; one that changes from call to call is captured."""
        where = user_place(2)
        if self.changing is not None and array.ndim == 0:
            tensor = self.changing.tensor(array, where)
            if tensor is not None:
                return make_tensor(None, self.edge_of(tensor))
        node = constant_node(array, self.scope, where)
        self.nodes.append(node)
        return make_tensor(None, (node, 0))

    def edge_of(self, tensor: Tensor) -> Edge:
        """Return a tensor's edge in this graph, capturing it if it comes from outside.

        Raises:
            LeakError: for a tensor of a trace that is not an outer one.
        """
        edge = tensor._edge
        if tensor._value is None:
            assert edge is not None
            owner = edge[0].scope
            if owner is self.scope:
                return edge
            if not self.scope.is_within(owner) or not owner.alive:
                raise leaked(tensor)
            key: Any = edge
        else:
            key = id(tensor)
        captured = self.captures.get(key)
        if captured is None:
            node = input_node(tensor.spec, f"captured_{len(self.captures)}", self.scope, user_place(2))
            if requires(edge):
                node.stamp = FOREVER
            captured = self.captures[key] = (tensor, node)
        return captured[1], 0

    def knows(self, tensor: Tensor) -> bool:
        """Whether a tensor was made in this trace or outside it, not in a branch or loop body inside it."""
        owner = None if tensor._edge is None else tensor._edge[0].scope
        return owner is None or self.scope.is_within(owner)

    # -- Variables --------------------------------------------------------------------------------------------

    def read_variable(self, variable: Variable) -> Tensor:
        """Return a Variable's traced value."""
        state = self._state(variable)
        state.was_read = True
        edge = state.edge
        if self.observations is not None and (variable._notes is not None or current().tapes):
            self.observations.asks_trainable = True
        if self.outer is not None:
            if variable.active_notes is not None:
                state.original[0].stamp = FOREVER
            if state.assignments:
                both = make_tensor(None, edge), make_tensor(None, state.original)
                edge = cast(Edge, self.bind(REREAD, both, {})._edge)
            return make_tensor(None, self._reading(edge, None))
        return make_tensor(None, self._reading(edge, variable.active_notes if current().grad else None))

    def gathered(self, variable: Variable, tensor: Tensor) -> Tensor:
        """Return the whole of a Variable's value, if it lies in parts and its placement says so."""
        placement = variable.placement
        if self.mesh is None or placement is None or placement.read_as is None:
            return tensor
        placement = placement.on(self.mesh, variable.shape, variable.name)
        if placement.read_as is None:
            return tensor
        attrs = {"layout": placement.read_as, "gradient": placement.layout, "again": placement.again}
        return self.bind(REGISTRY["gathered"], (tensor,), attrs)

    def value_of(self, variable: Variable) -> Tensor:
        """Return a Variable's traced value without counting as a read for tapes and gradients."""
        return make_tensor(None, self._state(variable).edge)

    def _reading(self, value: Edge, notes: Notes | None) -> Edge:
        """Return the edge of a Variable's value for the current tapes: tapes must not share the node of a read."""
        context = current()
        if not context.tapes and notes is None and not self.silence:
            return value
        edge = self.readings.get((value, context.epoch))
        if edge is None:
            edge = cast(Edge, self.bind(READ, (make_tensor(None, value),), {})._edge)
            self.readings[value, context.epoch] = edge
            if notes is not None:
                make_leaf(edge[0], notes)
        return edge

    def _state(self, variable: Variable) -> VariableState:
        if self.outer is not None:
            self.outer._state(variable)
        state = self.variables.get(variable._leaf)
        if state is None:
            node = input_node(variable.spec, variable.name, self.scope)
            state = self.variables[variable._leaf] = VariableState(variable, (node, 0))
        else:
            state.touched(variable)
        return state

    def assign_variable(self, variable: Variable, value: Tensor) -> Tensor | None:
        """Make a traced value the Variable's value from here on in the trace."""
        if not self.writes:
            raise TraceError(
                f"assign: Variable {variable.name!r} is assigned in {self.name!r}, which may run more than once",
                got=f"{variable.spec} at {format_where(user_place(2))}",
                hint="Return the new value and assign it outside; draw random numbers outside and pass them in."
            )
        root = self
        while root.outer is not None:
            root = root.outer
        root.before_assignment(self, variable)
        state = self._state(variable)
        state.edge = cast(Edge, self.bind(ASSIGN, (value,), {})._edge)
        state.assignments.append(state.edge[0])
        return None

    def before_assignment(self, builder: GraphBuilder, variable: Variable) -> None:
        """Note that a Variable is assigned, here or in a branch or loop body."""

    def has_gradient(self, cell: Variable) -> bool:
        """Whether a Variable has a gradient at this point of the trace."""
        return self.outer.has_gradient(cell) if self.outer is not None else self._state(cell).has_gradient()

    def set_gradient(self, cell: Variable, present: bool) -> None:
        """Note whether a Variable has a gradient from here on in the trace.

        Raises:
            TraceError: in a branch or loop body, which other calls may not run.
        """
        if self.outer is not None:
            raise TraceError(f"{cell.name}: changed inside a branch or loop on tensors",
                             got=format_where(user_place(2)), hint="Call .backward() and .zero_grad() outside of it.")
        self._state(cell).present = present

    def run_hooks(self, notes: Notes) -> None:
        """Note that a Variable's hooks run in this trace."""
        if notes.cell is not None:
            self._state(notes.cell).hooks = tuple(notes.hooks.values())

    def new_variable(self, name: str) -> None:
        """Note that a Variable is created during the trace.

        Raises:
            TraceError: in a branch or loop on tensors, which is traced whatever its condition is.
        """
        place = user_place(2)
        if self.outer is not None:
            raise TraceError(f"Variable {name!r}: created in a branch or loop on tensors, at {format_where(place)}",
                             hint="Create it before the branch or loop, or outside the compiled function.")
        self.created.append((name, place))

    def eager_code(self, *, once: bool) -> AbstractContextManager[Any]:
        """Return a context manager for code that runs eagerly during the trace; see `EagerCode`."""
        return logging_variables(EagerCode(self, once=once))

    def value_now(self, tensor: Tensor) -> Tensor:
        """Return a concrete tensor with the value that a traced one has in the call being traced."""
        edge = self.edge_of(tensor)
        given: dict[Node, Any] = dict(zip(self.arguments, self.argument_values, strict=False))
        given.update({node: captured._value for captured, node in self.captures.values()})
        given.update({node: number for number, node in self.numbers.values()})
        needed = needed_for(edge)
        for state in self.variables.values():
            if state.original[0] in needed:
                given[state.original[0]] = state.variable.current()
        for node in needed:
            if type(given.get(node)) is TracedNumber:
                given[node].needed()
            if node.op is INPUT and given.get(node) is None:
                raise TraceError(
                    f"Variable: its initial value depends on {node.attrs['name']!r}, which has no value yet",
                    got=str(tensor.spec), hint="Give it a value that is known now."
                )
        return make_tensor(value_now(edge, self.nodes, given, self.dims))

    def add_check(self, check: Check) -> None:
        """Add a check. It is decided at once if the trace has done what cannot be undone: its code must not go on.

        Raises:
            Exception: the error of the check, which does not hold in this call.
        """
        self.checks.append(check)
        if self.outer is None and self.observations is not None and self.observations.moved:
            error = self.failure_now(len(self.checks) - 1)
            if error is not None:
                self.checks.pop()  # the code goes on from here as it does in this call
                raise error

    def failure_now(self, first: int = 0) -> BaseException | None:
        """Return the error of the first check, from a number on, that does not hold in the call that is traced."""
        if any([value is None for value in self.argument_values]):
            return None  # it is traced for arguments without values
        for check in self.checks[first:]:
            if not self.value_now(check.ok).item():
                return check.failure(self.name)
        return None

    # -- operations -------------------------------------------------------------------------------------------

    def bind(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Add a node and return its visible outputs, or all if the attributes ask for the hidden ones."""
        whole = bool(op.saves.hidden) and bool(attrs.get("residuals"))
        residuals = whole or (
            bool(op.saves.hidden) and (bool(current().tapes) or any(requires(t._edge) for t in inputs))
        )
        outputs = self.bind_all(op, inputs, attrs, residuals=residuals)
        if len(outputs) == 1:
            return outputs[0]
        return visible_outputs(0 if whole else op.hidden_outputs({**attrs, "residuals": residuals}), outputs)

    def bind_all(
        self, op: Op, inputs: Sequence[Tensor], attrs: dict[str, Any], *, residuals: bool
    ) -> tuple[Tensor, ...]:
        """Add a node and return all its outputs, the hidden ones included if `residuals`."""
        edges = tuple([self.edge_of(tensor) for tensor in inputs])
        if self.silent:
            edges = tuple(map(self.used, edges))
        for value in attrs.values():
            if type(value) in _UNKNOWN or (type(value) is tuple and not _UNKNOWN.isdisjoint(map(type, value))):
                hash(value)  # asks for the number itself, since attributes are part of the graph
        if op.saves.hidden:
            attrs = {**attrs, "residuals": residuals}
        outputs = op.infer(*[node.spec(index) for node, index in edges], **attrs)
        if not isinstance(outputs, tuple):
            outputs = (outputs,)
        node = make_node(op, edges, attrs, outputs, where=self.place or user_place(3), scope=self.scope)
        if any(map(requires, edges)) and current().grad and type(op.vjp) is not Stops:
            node.stamp = FOREVER if any(is_differentiable(spec.dtype) for spec in outputs) else node.stamp
        self.nodes.append(node)
        if self.silence and op is not ASSIGN:  # no gradient flows through an assignment, and it ends no block
            self.silent[node] = self.silence
        return tuple([make_tensor(None, (node, index)) for index in range(len(outputs))])

    # -- the gradient mode ------------------------------------------------------------------------------------

    def asked(self, *, leaves: bool) -> None:
        """Note that the gradient mode is read and, with `leaves`, which values require a gradient."""
        tracer: GraphBuilder | None = self
        while tracer is not None:
            tracer.asks_mode = True
            tracer.asks_leaves = tracer.asks_leaves or leaves
            tracer = tracer.outer

    def switched(self, on: bool) -> Callable[[], None]:
        """Begin a block that turns recording on or off, and return a function that ends it.

        Whoever differentiates the graph as a whole finds no path through what a `hf.no_grad` block computed: it passes
        `stop_gradient` where it leaves the block.
        """
        before = self.silence
        self.silence = 0 if on else before + 1

        def end() -> None:
            self.silence = before

        return end

    def used(self, edge: Edge) -> Edge:
        """Return the edge of a value as it is used here: without its gradient if a block ended in which it was made."""
        if self.silent.get(edge[0], 0) <= self.silence or not is_differentiable(edge[0].spec(edge[1]).dtype):
            return edge
        if any([tape.has_recorded(edge[0]) for tape in current().tapes]):
            raise TraceError(
                f"{self.name}: hf.enable_grad inside of a tape that was entered in hf.no_grad uses what the "
                "tape recorded before, which is a constant for others",
                got=f"{edge[0].spec(edge[1])} at {format_where(edge[0].where)}",
                hint="Enter the tape inside of hf.enable_grad, or leave hf.enable_grad out: the tape records."
            )
        if edge in self.handed_on:
            raise TraceError(
                f"{self.name}: what a branch or loop leaves as it was, in a tape's block in hf.no_grad, is "
                "used after it", got=f"{edge[0].spec(edge[1])} at {format_where(edge[0].where)}",
                hint="Take y = y.detach() inside of the block."
            )
        return self._stopped(edge)

    def source(self, tensor: Tensor) -> Edge:
        """Return the edge of a tensor with respect to which gradients are wanted from here on.

        What a `hf.no_grad` block computed is one like any other, as in eager code.
        """
        edge = self.edge_of(tensor)
        if edge[0] in self.silent:
            tensor._edge = edge = self._stopped(edge)
        return edge

    def watched(self, tensor: Tensor) -> tuple[Edge, ...]:
        """Return the edges that stand for a tensor which a tape watches from here on.

        What a `hf.no_grad` block computed has one inside of the block, where the tapes that are open in it follow how
        it was computed, and one outside.
        """
        edge = self.edge_of(tensor)
        return (edge, self._stopped(edge)) if edge[0] in self.silent else (edge,)

    def _stopped(self, edge: Edge) -> Edge:
        """Return the edge of a value without its gradient."""
        stopped = self.stopped.get(edge)
        if stopped is None:
            spec = edge[0].spec(edge[1])
            node = make_node(REGISTRY["stop_gradient"], (edge,), {}, (spec,), where=edge[0].where, scope=self.scope)
            self.nodes.append(node)
            stopped = self.stopped[edge] = node, 0
        return stopped

    # -- the end ----------------------------------------------------------------------------------------------

    def finish(self, outputs: Sequence[Tensor]) -> Graph:
        """Return the graph.

        The inputs are arguments, numbers, captures, Variables; the outputs are results, assigned Variables, checks.
        """
        self.silence = 0
        edges = [self.used(self.edge_of(tensor)) for tensor in outputs]
        edges += [state.edge if self.outer is not None else self._guarded(state) for state in self.assigned()]
        edges += self._flags()
        inputs = (
            *self.arguments,
            *[node for _, node in self.numbers.values()],
            *[node for _, node in self.captures.values()],
            *[state.original[0] for state in self.variables.values()],
        )
        return Graph(self.name, inputs, tuple(self.nodes), tuple(edges), self.dims)

    def _flags(self) -> list[Edge]:
        """Return the outcomes of the checks; stacked into one output if possible, since every output costs time."""
        if self.outer is not None or len(self.checks) < 2:
            return [self.edge_of(check.ok) for check in self.checks]
        stack = cast(Any, REGISTRY["stack"].public)
        return [cast(Edge, stack([check.ok for check in self.checks])._edge)]

    def _guarded(self, state: VariableState) -> Edge:
        """Return the value to write to a Variable: the old value if a check of the call fails."""
        if not self.checks:
            return state.edge
        choose, both = REGISTRY["where"], REGISTRY["logical_and"]
        ok = self.checks[0].ok
        for check in self.checks[1:]:
            ok = self.bind(both, (ok, check.ok), {})
        values = make_tensor(None, state.edge), make_tensor(None, state.original)
        return cast(Edge, self.bind(choose, (ok, *values), {})._edge)

    def assigned(self) -> list[VariableState]:
        """Return the states of the Variables that the trace assigned."""
        return [state for state in self.variables.values() if state.assignments]


class Traced(NamedTuple):
    """A graph with its captures, checks and Variables.

    Its last inputs are the captured tensors, then the Variables. Its last outputs are the assigned Variables, then the
    checks.
    """

    graph: Graph
    captures: tuple[Tensor, ...]
    checks: tuple[Check, ...]
    variables: tuple[VariableState, ...] = ()

    @property
    def assigned(self) -> list[VariableState]:
        """The states of the Variables that the graph assigns."""
        return [state for state in self.variables if state.assignments]


def trace_body(
    function: Callable[..., Sequence[Any]], specs: Sequence[TensorSpec], name: str, names: Sequence[str] = ()
) -> Traced:
    """Trace a function of tensors that returns a list of tensors; it captures the Variables that it reads.

    Args:
        function: a function of one tensor per spec that returns tensors, or values that `as_tensor` takes.
        specs: the specs of the arguments.
        name: the graph's name.
        names: the arguments' names.

    Raises:
        TraceError: if the function assigns a Variable, or reads one without an outer trace.
    """
    with without_autocast():  # the operations traced here were cast already
        traced = trace_with_variables(function, specs, name, names, writes=False)
    if not traced.variables:
        return traced
    if current().tracer is None:
        raise TraceError(f"{name}: a graph without a trace around it cannot read Variables")
    read = [state.variable.read() for state in traced.variables]
    return Traced(traced.graph, (*traced.captures, *read), traced.checks)


def trace_with_variables(
    function: Callable[..., Sequence[Any]],
    specs: Sequence[TensorSpec],
    name: str,
    names: Sequence[str] = (),
    *,
    writes: bool = True,
    part: bool = False,
) -> Traced:
    """Trace a function of tensors that returns a list of tensors; the caller handles its Variables.

    Args:
        function, specs, name, names: as for `trace_body`.
        writes: whether it may assign Variables.
        part: whether the function is a part of the one that is traced, as a branch or a loop's body is: its numbers may
            be inputs, and a `hf.no_grad` block around counts for each of its operations. It does not where a tape
            records that was entered in the block.
    """
    builder = GraphBuilder(name, writes)
    builder.silence = int(part and not current().tapes and builder.outer is not None and builder.outer.silence > 0)
    builder.changing = builder.changing if part else None
    arguments = [
        builder.argument(spec, names[i] if i < len(names) else f"x{i}") for i, spec in enumerate(specs)
    ]
    try:
        with context_of(builder, grad=current().grad, autocast=current().autocast):
            graph = builder.finish([as_tensor(output) for output in function(*arguments)])
    finally:
        builder.scope.alive = False
    captures = tuple([tensor for tensor, _ in builder.captures.values()])
    return Traced(graph, captures, tuple(builder.checks), tuple(builder.variables.values()))


def add_check(ok: Tensor, error: type[BaseException], text: str, example: BaseException | None = None) -> None:
    """Make calls of the current trace fail unless `ok` (bool, shape ()) holds: with `error`, or one like `example`."""
    tracer = current().tracer
    assert isinstance(tracer, GraphBuilder)
    if ok.dtype != np.bool_:
        raise DTypeError(f"check: the condition must be bool, not {ok.dtype}", got=str(spec_of(ok)))
    if SETTINGS.checks:
        tracer.add_check(Check(ok, error, text, user_place(2), example))


def require(ok: Tensor, error: type[Exception], text: str, got: Callable[[], str] | None = None) -> None:
    """Raise an error unless `ok` (bool) holds: eagerly here, with what `got` returns; in a trace, in its calls."""
    if is_tracing():
        add_check(ok, error, text)
    elif not np.asarray(ok).all():
        raise error(text if got is None else f"{text}\n  got: {got()}")


# -- initial values of Variables that a compiled function creates, computed during the trace --------------------------


def needed_for(edge: Edge) -> set[Node]:
    """Return the nodes, including inputs, that a value is computed from."""
    needed: set[Node] = set()
    stack = [edge[0]]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += [source[0] for source in node.inputs if source is not None]
    return needed


def value_now(edge: Edge, nodes: Iterable[Node], given: Mapping[Node, Any], dims: Any) -> Any:
    """Compute a traced value as eager code would.

    Args:
        edge: the value.
        nodes: the nodes of the trace so far, in order.
        given: the values of the inputs that it is computed from.
        dims: the trace's symbolic sizes.
    """
    needed = needed_for(edge)
    inputs = tuple([node for node in needed if node.op is INPUT])
    graph = Graph("initial_value", inputs, tuple([node for node in nodes if node in needed]), (edge,), dims)

    def run(node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
        return run_raw(node.op, values, attrs)

    with context_of(None):
        return evaluate(graph, [given[node] for node in inputs], run, sizes=dims.hints)[0]


# -- `EagerCode`: the Variables as eager code sees them that runs while a function is traced, as in `hf.init_scope` ---


class EagerCode(VariableLog):
    """The log of eager code in a trace: it sees the values that the call has assigned so far, as all eager code does.

    Its assignments come where it stands among those of the call. A trace that was told what the eager code reads and
    assigns serves other calls only as long as those find the same.

    Args:
        tracer: the `GraphBuilder` of the trace.
        once: whether the code runs once for all calls, as the initializer of a Variable does; else at every call.
    """

    def __init__(self, tracer: Any, *, once: bool) -> None:
        super().__init__(None, binder_now())
        self.tracer = tracer
        self.once = once

    def value_of(self, variable: Any, value: Any) -> Any:
        """Return the raw value that the code sees in a Variable."""
        if self._outer is not None:
            value = self._outer.value_of(variable, value)
        observations = self.tracer.observations
        assigned_in = self._assigned_in(variable)
        if assigned_in is not None:
            if assigned_in.outer is not None:
                raise _in_body(variable, "read, after an assignment there,")
            if not self.once and observations is not None:
                observations.repeated.only_once()  # the value may depend on the arguments
            with without_log(self):
                return assigned_in.value_now(assigned_in.value_of(variable))._value
        if not self.once and observations is not None:
            observations.reads_value(variable, value)
        return value

    def assigned(self, variable: Any, value: Any) -> bool:
        """Note that a Variable is assigned; return whether the Variable itself must stay unchanged."""
        tracer = self.tracer
        if tracer.outer is not None:
            raise _in_body(variable, "assigned, or drawn from,")
        observations = tracer.observations
        if variable._leaf in tracer.variables:
            if observations is not None:
                observations.numbers.only_numbers()  # a restart would lose the assignment
                observations.repeated.only_once()
            with context_of(tracer):
                tracer.assign_variable(variable, make_tensor(value))
            return True
        if not self.once and observations is not None:
            observations.writes_value(variable)
        return self._outer is not None and self._outer.assigned(variable, value)

    def _assigned_in(self, variable: Variable) -> Any:
        """Return the innermost tracer in which the call has assigned a Variable, or None."""
        tracer = self.tracer
        while tracer is not None:
            state = tracer.variables.get(variable._leaf)
            if state is not None and state.assignments:
                return tracer
            tracer = tracer.outer
        return None


def _in_body(variable: Variable, how: str) -> TraceError:
    return TraceError(f"Variable {variable.name!r}: {how} by code that runs eagerly in a branch or loop on tensors",
                      got=f"{variable.spec} at {format_where(user_place(3))}",
                      hint="Move that code before the branch or loop, or out of hf.init_scope.")
