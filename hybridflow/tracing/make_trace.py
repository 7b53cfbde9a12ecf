"""`make_trace`: run a user's function once with traced tensors, and build a `Trace` from that."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, cast

import jax

from hybridflow.core.attached import attached
from hybridflow.core.context import Context, context_of
from hybridflow.core.errors import RetraceWarning, TraceError, first_line, message
from hybridflow.core.held import attributes_of
from hybridflow.core.node import format_where, user_place, warn_at
from hybridflow.core.recursion import RECURSION
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import TensorSpec
from hybridflow.core.traced_number import NeedsNumber, NumberSizes, SeenSizes
from hybridflow.core.traced_text import placeholder_of
from hybridflow.core.variable import Variable
from hybridflow.guards.access import ATTRIBUTE
from hybridflow.guards.dynamic import symbol_axes, symbolic_specs
from hybridflow.guards.leaves import TracedLeaves
from hybridflow.guards.needs import RESTARTS
from hybridflow.guards.noticed import noticing
from hybridflow.guards.numpy_rules import array_argument
from hybridflow.guards.objects import is_record, opened
from hybridflow.guards.observations import Observations
from hybridflow.guards.order import has_order, skeleton
from hybridflow.guards.outside_numbers import KnownNumbers, OutsideNumbers
from hybridflow.guards.parts import parts_of
from hybridflow.guards.shown import shown
from hybridflow.guards.signature import (
    NOTHING,
    NUMBER,
    STATIC,
    TENSOR,
    VARIABLE,
    BoundCall,
    Leaf,
    Signature,
    argument_variables,
    counts_by_value,
    unflatten_arguments,
)
from hybridflow.guards.storable import NeedsPython, require_numbers_in
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.effects import has_effect
from hybridflow.ir.printer import format_node
from hybridflow.ir.variables import ArgumentVariable
from hybridflow.tracing.again import Undone
from hybridflow.tracing.calls import check_unchanged, depth_explained
from hybridflow.tracing.layouts import Layouts
from hybridflow.tracing.outputs import OutputPlan, ReturnedNumbers, output_of
from hybridflow.tracing.records import TraceRecord
from hybridflow.tracing.trace import Trace
from hybridflow.xla.store.ahead import begin


def make_trace(
    function: Callable[..., Any],
    call: Callable[[dict[str, Any]], Any],
    signature: Signature,
    named: Sequence[Leaf],
    static: frozenset[str],
    record: TraceRecord,
    name: str,
    context: Context,
    roots: Sequence[tuple[Any, str]],
    seen: KnownNumbers,
    budget: int | None = None,
    layouts: Layouts | None = None,
    *,
    may_close: bool = False,
    as_given: bool = False,
    opens_sizes: bool = False,
) -> Trace:
    """Run the user's function once with traced tensors.

    Args:
        function: the user's function, for messages.
        call: calls it with named arguments.
        signature: the flattened arguments.
        named: the leaves of the signature with their paths.
        static: the names of static arguments.
        record: the record to fill in.
        name: the graph's name.
        context: the context of the call, such as its device.
        roots: further objects that the call passes in, such as a method's instance, with their names.
        seen: the numbers outside the arguments that earlier traces saw.
        budget: the bytes that the temporaries of its executables may take.
        layouts: the mesh that it runs on, and the layouts there; None for one device.
        may_close: whether `NeedsSizes` makes the caller trace again with this call's sizes.
        as_given: see `unflatten_arguments`.
        opens_sizes: whether sizes that numbers decide may be open.

    Raises:
        NeedsNumber, NeedsIdentity: the function needs the value of a Python number, or which Variable one is.
        NeedsSizes, NeedsGiven: it stores an open size, or a list or dict that is an argument.
        Undone: the function raised the exception that is its cause, after checks or prints.
        MutationError: it changed a structure among its arguments.
        ArgumentTypeError: it returned something that is no tensor.
    """
    start, note = time.perf_counter(), begin(function, record.signature)
    label = getattr(function, "__qualname__", name)
    builder = _new_builder(name, layouts, named, seen.sizes if opens_sizes else None)
    builder.tapes_around = bool(context.tapes)
    stand_ins = [ArgumentVariable.of(variable, i) for i, variable in enumerate(argument_variables(signature))]
    specs = symbolic_specs(list(named), builder.dims)
    given = [(leaf, spec) for leaf, spec in zip(named, specs, strict=True) if leaf.kind != NOTHING]
    values = [_traced_value(leaf, spec, builder, stand_ins) for leaf, spec in given]
    with depth_explained(name), RECURSION.deeper():
        arguments = unflatten_arguments(signature, values, static, as_given=as_given)
    builder.argument_values = [leaf.value._value for leaf in named if leaf.kind == TENSOR]
    numbers = OutsideNumbers(seen, builder.number_argument, lambda: len(builder.number_paths))
    observations = builder.observations = _observe(Observations(label, numbers, builder.checks), roots, named)
    observations.arguments(arguments, signature.arguments)
    observations.stand_ins = stand_ins
    observations.may_close = may_close and bool(symbol_axes(list(named), specs))
    ran = False
    try:
        with context_of(builder, (), context.device, context.grad, context.autocast), depth_explained(name):
            with RECURSION.deeper(), numbers.nothing_swallowed(), noticing():
                result = _run(call, arguments, builder, observations)
            ran = True
            observations.warn()
            check_unchanged(label, arguments, values, signature, static)
            observations.returned(result)
            observations.require_known_outside()
            orders = observations.orders_of(arguments)
            returned, tree = jax.tree_util.tree_flatten(opened(result, is_record))
            outputs = [output_of(label, leaf) for leaf in returned]
            leaves = TracedLeaves.of(builder, outputs, context.grad)
            graph = builder.finish(outputs)
            order = skeleton(result) if has_order(result) else None
            plan = OutputPlan(tree, len(outputs), ReturnedNumbers(returned, len(builder.number_paths)), order)
    except RESTARTS as need:
        observations.before.undo()  # the trace restarts
        if isinstance(need, NeedsNumber):
            need.paths = tuple([builder.number_paths[position] for position in need.arguments])
            numbers.keep_by_value(need.arguments)
        numbers.close()
        observations.forget()
        if isinstance(need, NeedsPython):
            raise _undone(builder, cast(Exception, need.__cause__)) from need.__cause__
        raise
    except Exception as error:
        numbers.close()
        _annotate(error, builder, name)
        if ran or _comes_from_tracing(error, builder):
            observations.before.undo()
        raise
    finally:
        builder.scope.alive = False
        builder.number_sizes = None
    record.trace_ms = (time.perf_counter() - start) * 1e3
    with depth_explained(name):
        trace = Trace(
            graph, builder, plan, named, signature.tree, signature.types, record, symbol_axes(list(named), specs),
            leaves, orders, budget, layouts,
        )
    trace.note = note
    numbers.close()
    builder.observations = None  # numbers of the trace keep the builder, and it would keep what the trace has read
    return trace


def _comes_from_tracing(error: Exception, builder: GraphBuilder) -> bool:
    """Whether an error comes from tracing and not from the user's code, so that the whole call is undone.

    Raises:
        Undone: it comes after checks, of which the first that fails counts, or after prints; the call is undone.
    """
    observations = builder.observations
    if isinstance(error, TraceError) or observations.numbers.refuses(error):
        return True
    if not observations.moved and (builder.checks or any(map(has_effect, builder.nodes))):
        observations.before.undo()
        raise _undone(builder, error) from error
    return False


def _undone(builder: GraphBuilder, error: Exception) -> Undone:
    """Return what lets Python decide a call whose trace raised an error."""
    where, name = user_place(3), builder.name

    def handled() -> None:
        text = message(
            f"{name}: the call ran as Python, on a way that its trace cannot take",
            got=f"{type(error).__name__} while it was traced: {first_line(error)}",
            hint="Choose by the tensor itself, with an `if` or hf.where, and leave out what fails on the other way.",
        )
        warn_at(where, text, RetraceWarning)

    return Undone(handled)


def _run(
    call: Callable[[dict[str, Any]], Any], arguments: dict[str, Any], builder: GraphBuilder, observations: Observations
) -> Any:
    """Call the user's function; what it stores in Python state are numbers when it ends, and no stand-ins for them."""
    builder.dims.open = True
    try:
        return _with_numbers(call, arguments, observations)
    except RESTARTS as need:
        observations.release(need)
        raise
    except Exception:  # what the call has stored stays
        _put_numbers(builder, observations)
        observations.require_known_outside()
        raise
    finally:
        builder.dims.open = False
        _put_numbers(builder, observations)


def _put_numbers(builder: GraphBuilder, observations: Observations) -> None:
    """Put numbers in the place of the stand-ins that the trace has stored in Python state."""
    observations.repeated.finish(len(builder.number_paths))
    observations.numbers.put_back()


def _with_numbers(
    call: Callable[[dict[str, Any]], Any], arguments: dict[str, Any], observations: Observations
) -> Any:
    """Call the user's function; an error that leaves it holds numbers and texts, and no stand-ins for them."""
    try:
        return _ungrouped(call, arguments)
    except NameError as error:
        local = attached("handled_name")(error)
        if local is None:
            raise
        raise local from None
    except RESTARTS:
        raise
    except BaseException as error:
        if type(error) is TypeError:
            observations.settle()  # Python may have refused what stands for a number
        require_numbers_in(error)
        error.args = tuple(map(placeholder_of, error.args))
        if hasattr(error, "__notes__"):
            error.__notes__ = [str.__str__(one) for one in error.__notes__]
        raise


def _ungrouped(call: Callable[[dict[str, Any]], Any], arguments: dict[str, Any]) -> Any:
    """Call the user's function; what restarts the trace from `except*` clauses, which all run, comes in a group."""
    try:
        return call(arguments)
    except BaseExceptionGroup as group:
        need = group.subgroup(RESTARTS)
        while isinstance(need, BaseExceptionGroup):
            need = need.exceptions[0]
        if need is None:
            raise
        raise need from None


def _new_builder(
    name: str, layouts: Layouts | None, named: Sequence[Leaf], seen: SeenSizes | None
) -> GraphBuilder:
    """Return the builder of a graph, which knows the mesh that the graph runs on, and the open sizes seen so far."""
    with context_of(None):
        builder = GraphBuilder(name)
    if seen is not None:
        seen.opened.clear()
        builder.number_sizes = NumberSizes(builder.dims, seen, builder.number_paths, builder.open_size)
    if layouts is not None:
        builder.mesh, builder.row_axes = layouts.mesh, layouts.row_axes(named)
    return builder


def _observe(
    observations: Observations, roots: Sequence[tuple[Any, str]], named: Sequence[Leaf]
) -> Observations:
    """Make the trace's observations, and register the objects that the call passes in."""
    for value, path in roots:
        if isinstance(value, functools.partial):  # its keywords are arguments of the call
            for name in ("func", "args"):
                observations.read(observations.root(value, path), ATTRIBUTE, name, getattr(cast(Any, value), name))
        else:
            observations.object(value, path)
    for leaf in named:
        if leaf.kind == STATIC:
            _observe_static(observations, leaf.value, leaf.path, ())
    return observations


def _observe_static(observations: Observations, value: Any, path: str, around: tuple[Any, ...]) -> None:
    """Register a Python value among the arguments.

    Args:
        observations: the trace's observations.
        value: the value.
        path: what it is, for messages.
        around: the values that it is part of, which count by what they hold.
    """
    if any([value is one for one in around]):
        return
    if counts_by_value(value):
        observations.made_here(value)  # guarded by its value, not by identity
        for name, part in attributes_of(value).items():
            _observe_static(observations, part, f"{path}.{name}", (*around, value))
    elif around and isinstance(value, list | tuple | dict | set | frozenset):
        for part in parts_of(value):
            _observe_static(observations, part.value, f"{path}[{shown(part.name)}]", (*around, value))
    else:
        bound = isinstance(value, MethodType | BoundCall)  # a new object every time it is read
        for one in (value.__func__, value.__self__) if bound else (value,):
            observations.object(one, path, lasting=True)


def _traced_value(
    leaf: Leaf, spec: TensorSpec | None, builder: GraphBuilder, stand_ins: Sequence[Variable]
) -> Any:
    """Return the value that the function receives for an argument's leaf while it is traced."""
    if spec is not None:
        value = builder.argument(spec, leaf.path)
        return value if leaf.array is None else array_argument(value, leaf)
    if leaf.kind == NUMBER:
        return builder.number_argument(leaf.value, leaf.path)
    return stand_ins[leaf.key[1]] if leaf.kind == VARIABLE else leaf.value


def require_kept(trace: Trace, name: str) -> None:
    """Raise if a trace created Variables but changed nothing that it read: every call would create them again.

    Raises:
        TraceError: it did; the text names the Variables and their lines.
    """
    if trace.created and not trace.changed:
        created = ", ".join(trace.record.created)
        raise TraceError(
            f"the compiled function {name!r} creates Variables again at every call: {created}",
            hint="Keep each, and create it only if there is none: if self.w is None: self.w = hf.Variable(...)."
        )


def _annotate(error: Exception, builder: GraphBuilder, name: str) -> None:
    """Add a note to an error raised while tracing, with the call and the last operations traced."""
    place = format_where(user_place(2))
    tail = [node for node in builder.nodes if node.op is not CONSTANT][-3:]
    lines = [f"while compiling {name!r}" + (f", called at {place}" if place else "")]
    if tail:
        lines.append("the last operations traced:")
    for node in tail:
        first, *inner = format_node(node).splitlines()
        lines.append(f"  {first}" + (f" ... {inner[-1].strip()}" if inner else ""))
    error.add_note("\n".join(lines))
