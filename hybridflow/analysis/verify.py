"""Verified calls of compiled functions: see `hf.config.verify`."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from hybridflow.analysis.locate import place_of
from hybridflow.analysis.node_by_node import NodeByNode
from hybridflow.analysis.parity import STRUCTURE, arrays_of, chained, names_of_leaves
from hybridflow.analysis.same import judge
from hybridflow.core.context import CONTEXT, context_of, current
from hybridflow.core.dispatch import bind_eagerly
from hybridflow.core.dtypes import as_dtype, kind_of
from hybridflow.core.errors import HybridflowError, ParityError, TraceError, first_line
from hybridflow.core.node import (
    Edge,
    Node,
    Where,
    format_where,
    in_gradient,
    is_gradient,
    next_sequence,
    user_place,
    where_file_line,
)
from hybridflow.core.op import Op
from hybridflow.core.pending import settle_calls
from hybridflow.core.profiling import PROFILER
from hybridflow.core.settings import SETTINGS
from hybridflow.core.sources import CONSTANT
from hybridflow.core.tensor import Tensor, host_array
from hybridflow.core.variable import WRITES, GradientCell, Variable
from hybridflow.core.variable_log import VariableLog, logging_variables
from hybridflow.guards.journal import Journal, python_state_noted
from hybridflow.guards.reachable import Reachable, alike, text_of
from hybridflow.ir.effects import has_effect
from hybridflow.ir.evaluate import bind_sizes
from hybridflow.ir.graph import Graph
from hybridflow.passes import run_passes
from hybridflow.tracing.again import Undone
from hybridflow.tracing.function import CompiledFunction
from hybridflow.tracing.replay import inputs_of
from hybridflow.tracing.trace import Trace
from hybridflow.tracing.verification import rerunning
from hybridflow.xla.executable import compile_graph

Array = np.ndarray[Any, Any]
_OF_MACHINE = (MemoryError, jax.errors.JaxRuntimeError)
"""Errors that say nothing of the program."""
_COMMON = frozenset({object, BaseException, Exception, HybridflowError})


class _Outcome(NamedTuple):
    """What a run of a call gave: its result, with the arrays in it, or the error that it raised."""

    result: Any = None
    arrays: Sequence[Array] = ()
    tree: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, run: Callable[[], Any]) -> _Outcome:
        try:
            result = run()
            arrays, tree = arrays_of(result)
            settle_calls()
        except Exception as error:
            return cls(error=error)
        return cls(result, arrays, tree)

    def text(self) -> str:
        if self.error is None:
            return "returned"
        return f"raised {type(self.error).__name__}: {first_line(self.error)}"


class _Overlay(VariableLog):
    """Keeps what an eager run assigns from the Variables themselves, and remembers the lines of the assignments."""

    def __init__(self, values: dict[Any, Any], binder: Any = None) -> None:
        super().__init__(values, binder)
        self.written: dict[Any, Where | None] = {}

    def assigned(self, variable: Any, value: Any) -> bool:
        """Note that a Variable is assigned, and where."""
        self.written[variable._leaf] = user_place(3)
        return super().assigned(variable, value)


class _State:
    """Python's state and the Variables around a call, to go back to."""

    def __init__(self, journal: Journal, reachable: Reachable, variables: Sequence[Variable]) -> None:
        self._journal = journal
        self.variables = variables
        self.values = [variable.current() for variable in variables]  # held here, so that no call reuses the buffers
        cells = [*reachable.cells, *[one for one in variables if isinstance(one, GradientCell)]]
        self._cells = list({id(cell): cell for cell in cells}.values())
        self.present = self.gradients()

    def gradients(self) -> list[tuple[GradientCell, bool]]:
        """Return which gradients are there now."""
        return [(cell, cell.present) for cell in self._cells]

    def put_gradients(self, present: Sequence[tuple[GradientCell, bool]]) -> None:
        """Set which gradients are there."""
        for cell, is_there in present:
            cell.present = is_there

    def restore(self) -> None:
        """Set everything back to the state before the call."""
        self._journal.undo()
        self.put_gradients(self.present)
        with WRITES:
            for variable, value in zip(self.variables, self.values, strict=True):
                cast(Any, variable)._value = value


def verified_call(
    function: CompiledFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Any, number: int
) -> Any:
    """Make a call of a compiled function, and make it eagerly too, from the same state; raise if they differ.

    Args:
        function: the compiled function.
        args, kwargs: the arguments.
        inputs: the specs that arguments are cast to, if the call has its own.
        number: the number of the call.

    Returns:
        The compiled call's result. The state is what that call left.

    Raises:
        ParityError: the calls differ; the state is that before the call.
    """
    return _Call(function, args, kwargs, inputs, number).run()


class _Call:
    """One verified call."""

    def __init__(
        self, function: CompiledFunction[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Any,
        number: int,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.inputs = inputs
        self.number = number
        self.context = current()

    def run(self) -> Any:
        settle_calls()  # what earlier calls raise is not this call's
        function, start = self.function, next_sequence()
        with python_state_noted() as journal:
            reachable = Reachable(journal)
            roots = [*function._roots(self.args), (function.python_function, function._name)]
            names = function._parameters.names
            given_by_position = self.args[1:] if function._bound else self.args
            for number, one in enumerate(given_by_position):
                roots.append((one, names[number] if number < len(names) else f"args[{number}]"))
            reachable.note([*roots, *[(one, name) for name, one in self.kwargs.items()]])
            try:
                trace, signature = function._find(function._signature(self.args, self.kwargs, self.inputs), self.args)
            except (HybridflowError, Undone):
                raise  # it is refused, and the error says why; or it is made as Python anyway
            except Exception as error:
                state = _State(journal, reachable, ())
                compiled = _Outcome(error=error)
                return self._judged(None, None, state, compiled, [], journal, reachable)
            reason = _why_not(trace, [one for one in trace.variables(signature) if one._leaf.sequence > start])
            if reason is not None:
                function._verification.leave_out(reason)
                return trace.call_now(signature, self.context)
            with WRITES:
                state = _State(journal, reachable, trace.variables(signature))
                raw = inputs_of(trace, signature)
                compiled = _Outcome.of(lambda: trace.call_now(signature, self.context))
                after = [variable.current() for variable in state.variables]
            if compiled.error is not None and isinstance(compiled.error, (*_OF_MACHINE, TraceError, Undone)):
                raise compiled.error  # it says nothing of the program, or why it is refused
            given = [np.array(value) for value in raw]
            return self._judged(trace, given, state, compiled, after, journal, reachable)

    def _judged(
        self, trace: Trace | None, given: list[Array] | None, state: _State, compiled: _Outcome,
        after: list[Any], journal: Journal, reachable: Reachable,
    ) -> Any:
        """Run the call eagerly, and return the compiled result if that is the same."""
        stored, present = journal.now(), state.gradients()
        try:
            eager, overlay = self._eagerly(state, journal, None)
            now, gradients = journal.now(), state.gradients()
            lines: list[str] = []
            if not isinstance(eager.error, _OF_MACHINE):
                lines += self._differences(trace, given, state, compiled, after, eager, overlay)
            if compiled.error is None and eager.error is None:
                lines += _python_differences(journal, stored, now, reachable)
                lines += [
                    f"{cell.name}: {_gradient(there)} eager, {_gradient(was)} compiled"
                    for (cell, there), (_, was) in zip(gradients, present, strict=True)
                    if there is not was
                ]
            operation = self._first(trace, given, state, compiled, after, journal) if lines else ""
        except BaseException:
            state.restore()
            raise
        if not lines:
            journal.back_to(stored)
            state.put_gradients(present)
            if isinstance(eager.error, _OF_MACHINE):
                self.function._verification.leave_out(f"the eager run {eager.text()}")
            else:
                self.function._verification.passed()
            if compiled.error is not None:
                raise compiled.error
            return compiled.result
        state.restore()
        raise ParityError(
            f"{self.function._name}: call {self.number} is not the same eager and compiled\n  {operation}",
            got="\n       ".join(lines),
            hint="The call changed nothing. fn.explain() says what the trace relies on; hf.compare shows more."
        ) from (eager.error or compiled.error)

    def _eagerly(self, state: _State, journal: Journal, binder: Any) -> tuple[_Outcome, _Overlay]:
        """Run the call as Python, from the state before the call; Variables keep their values."""
        journal.undo()
        state.put_gradients(state.present)
        overlay = _Overlay({v._leaf: value for v, value in zip(state.variables, state.values, strict=True)}, binder)
        context = self.context
        eager = context_of(None, (), context.device, context.grad, context.autocast)
        with logging_variables(overlay), rerunning(), eager:
            function = self.function
            outcome = _Outcome.of(
                lambda: function._call_python(self.args, self.kwargs, self.inputs or function._inputs)
            )
        return outcome, overlay

    def _differences(
        self, trace: Trace | None, given: list[Array] | None, state: _State, compiled: _Outcome, after: list[Any],
        eager: _Outcome, overlay: _Overlay,
    ) -> Iterator[str]:
        """Yield a line for each result and Variable that differs."""
        if compiled.error is not None or eager.error is not None:
            if not _same_error(compiled.error, eager.error):
                yield f"eager {eager.text()}, compiled {compiled.text()}"
            return
        assert trace is not None
        assert given is not None
        if compiled.tree != eager.tree:
            yield f"result: {STRUCTURE} {eager.tree} eager, {compiled.tree} compiled"
            return
        count, assigned = trace.plan.count, [state.variables[index] for index in trace.assigned]
        names = [*names_of_leaves(compiled.tree, count), *[f"Variable {one.name!r}" for one in assigned]]
        ours = [*eager.arrays, *[np.array(overlay.values[one._leaf]) for one in assigned]]
        theirs = [*compiled.arrays, *[np.array(after[index]) for index in trace.assigned]]
        judged = judge(chained(trace, 1), given, ours, theirs, names=names)
        places = [None] * count + [overlay.written.get(one._leaf) for one in assigned]
        for one, place in zip(judged, places, strict=True):
            if not one.same:
                yield f"{one.name}: {one.text}{_at(place)}"
        known = {one._leaf for one in assigned}
        for leaf, place in overlay.written.items():
            variable = leaf.attrs["variable"]()
            if leaf in known or variable is None:
                continue
            eager_value, value = np.array(overlay.values[leaf]), np.array(variable.current())
            if not np.array_equal(eager_value, value, equal_nan=eager_value.dtype.kind in "fc"):
                text = f"eager {_short(eager_value)}, compiled {_short(value)}, which does not assign it"
                yield f"Variable {variable.name!r}: {text}{_at(place)}"

    def _first(
        self, trace: Trace | None, given: list[Array] | None, state: _State, compiled: _Outcome, after: list[Any],
        journal: Journal,
    ) -> str:
        """Return the text about the first operation that differs."""
        if trace is None or given is None:
            return "no operation: tracing it failed"
        recorder = Eager()
        self._eagerly(state, journal, recorder)
        results: list[Array] | None = None
        if compiled.error is None:
            results = [*compiled.arrays, *[np.array(after[index]) for index in trace.assigned]]
        return first_difference(trace, given, results, recorder)


def _why_not(trace: Trace, created: Sequence[Variable]) -> str | None:
    """Return why a call cannot be made twice without being seen, or why it cannot be compared; None if it can."""
    for node in trace.raw_graph.nodes:
        if has_effect(node):
            place = format_where(node.where)
            return f"{node.op.name}{f' at {place}' if place else ''} runs Python at every call"
    if created:
        return f"it created {len(created)} Variables, such as {created[0].name!r}"
    if trace.again is not None:
        return f"it reads what cannot be watched: {trace.again}"
    if SETTINGS.observers:
        return f"modules are observed: {', '.join([one.name for one in SETTINGS.observers])}"
    if PROFILER.get() is not None:
        return "it is being profiled"
    if trace.placing is not None and jax.process_count() > 1:
        return "it runs on the devices of several processes"
    return None


def _same_error(first: Exception | None, second: Exception | None) -> bool:
    """Whether a compiled and an eager run failed in the same way.

    Their errors share a class that says more than that it is an error, or the compiled one is our own text for it.
    """
    if first is None or second is None:
        return first is second
    return isinstance(first, HybridflowError) or bool({*type(first).__mro__} & {*type(second).__mro__} - _COMMON)


def _python_differences(journal: Journal, stored: Any, now: Any, reachable: Reachable) -> Iterator[str]:
    """Yield a line for each piece of Python's state that the two runs left differently."""
    for (kind, _, name), spot, compiled, eager in journal.between(stored, now):
        if kind == "random":
            if repr(compiled) != repr(eager):
                yield f"the state of {spot.holder!r}: other numbers were drawn"
        elif not alike(compiled, eager):
            path = reachable.path_of(spot.holder)
            where = path or name or f"a {type(spot.holder).__name__}"
            if kind == "content" and isinstance(eager, dict) and isinstance(compiled, dict):
                for key in [*eager, *[one for one in compiled if one not in eager]]:
                    a, b = eager.get(key, "nothing"), compiled.get(key, "nothing")
                    if not alike(a, b):
                        yield f"{where}: {key!r} is {text_of(a)} eager, {text_of(b)} compiled"
                continue
            label = where if path is None or name is None else f"{where}: {name!r}"
            yield f"{label}: {text_of(eager)} eager, {text_of(compiled)} compiled"


def _gradient(present: bool) -> str:
    return "a gradient" if present else "none"


def _at(place: Where | None) -> str:
    text = format_where(place)
    return f" (assigned at {text})" if text else ""


def _short(array: Array) -> str:
    with suppress(ValueError):
        return str(array.item())
    return str(array.ravel()[:4].tolist())[:60]


# -- the first operation by which a compiled call differs from the same call run eagerly ------------------------------
# Three runs are compared: the graph node by node, which is the traced program without a compiler; the compiled
# program, with every value as an output; and the eager call, of which every operation is recorded. If the compiled
# program differs from the graph, the compiler, a pass or a lowering is at fault. Else the eager code did something
# that was not traced.

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
