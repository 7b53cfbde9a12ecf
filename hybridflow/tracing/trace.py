"""`Trace`: one traced signature of a compiled function, its graph, and how it is called."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hybridflow.autodiff.graph_ops import graph_pullback
from hybridflow.autodiff.transform import Mask, SplitGradient, split_gradient, zero_cotangents
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.context import Context, context_of
from hybridflow.core.dispatch import record as record_node
from hybridflow.core.errors import ArgumentTypeError, MutationError, message
from hybridflow.core.node import Edge, format_where, user_place, where_file_line
from hybridflow.core.op import No, Op, Saves
from hybridflow.core.tensor import WRITES, Tensor, Variable, as_tensor, make_tensor
from hybridflow.ir.builder import Check, GraphBuilder
from hybridflow.ir.evaluate import bind_sizes, lower_graph
from hybridflow.ir.graph import Graph
from hybridflow.passes import run_passes
from hybridflow.tracing.explain import TraceRecord
from hybridflow.tracing.signature import (
    TENSOR,
    Signature,
    forget_values,
    unflatten_arguments,
)
from hybridflow.xla.executable import Executable, compile_graph, is_wide

next_use: Callable[[], int] = itertools.count(1).__next__


@dataclass(frozen=True)
class OutputPlan:
    """How the outputs of a graph become what the user's function returned."""

    tree: Any
    count: int

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """Return the user's structure."""
        return jax.tree_util.tree_unflatten(self.tree, tensors)


class Trace:
    """One traced signature."""

    def __init__(
        self, graph: Graph, builder: GraphBuilder, plan: OutputPlan, signature: Signature, record: TraceRecord
    ) -> None:
        self.raw_graph = graph
        self.graph, passes = run_passes(graph, differentiable=False)
        self.plan = plan
        self.single = plan.count == 1 and jax.tree_util.treedef_is_leaf(plan.tree)
        self.captures: tuple[Tensor, ...] = tuple([tensor for tensor, _ in builder.captures.values()])
        self.variables: tuple[Variable, ...] = tuple([state.variable for state in builder.variables.values()])
        assigned = builder.assigned()
        self.assigned: tuple[Variable, ...] = tuple([state.variable for state in assigned])
        self.checks: tuple[Check, ...] = tuple(builder.checks)
        self.arguments = len(builder.arguments)
        self.record = record
        self.leaves = forget_values(signature.leaves)
        self.tree = signature.tree
        self.last_used = next_use()
        first = self.arguments + len(self.captures)
        positions = {id(variable): first + index for index, variable in enumerate(self.variables)}
        self.donated: tuple[int, ...] = tuple([positions[id(variable)] for variable in self.assigned])
        self.executables: dict[Any, Executable] = {}
        self.only: Executable | None = None
        self.wide = is_wide(self.graph)
        self.symbolic = bool(graph.dims.hints)
        self.gradient_ops: dict[Any, Op] = {}
        record.passes = tuple(passes)
        record.passes_ms = sum(one.milliseconds for one in passes)
        record.nodes = len(self.graph.nodes)
        record.captured = len(self.captures)
        record.variables = tuple([variable.name for variable in self.variables])
        record.assigned = tuple([variable.name for variable in self.assigned])

    # -- calling ----------------------------------------------------------------------------------------------

    def executable(self, values: Sequence[Any], device: Any) -> Executable:
        """Return the executable for the shapes of the inputs, compiling it if there is none yet."""
        if self.only is not None and device is None:
            return self.only
        sizes = bind_sizes(self.graph, values) if self.symbolic else {}
        key = (device, *sizes.items())
        found = self.executables.get(key)
        if found is None:
            found = compile_graph(self.graph, donate=self.donated, sizes=sizes, device=device)
            self.executables[key] = found
            self.record.compiles += 1
            self.record.lower_ms += found.lower_ms
            self.record.xla_ms += found.xla_ms
            if not self.symbolic and device is None:
                self.only = found
        return found

    def call(self, arrays: list[Any], device: Any = None) -> Any:
        """Run the trace on the raw values of its tensor arguments and return the user's structure."""
        self.last_used = next_use()
        for tensor in self.captures:
            arrays.append(raw_value(tensor))
        if self.assigned:
            outputs = self._call_assigning(arrays, device)
        else:
            for variable in self.variables:
                arrays.append(variable.current())
            outputs = self.executable(arrays, device).call(*arrays)
            if self.checks:
                self.raise_failed(outputs)
        if self.single:
            return make_tensor(outputs[0])
        return self.plan.build([make_tensor(value) for value in outputs[: self.plan.count]])

    def _call_assigning(self, arrays: list[Any], device: Any) -> Any:
        """Run a call that assigns Variables: all of its writes happen, or none."""
        with WRITES:
            before = [variable.current() for variable in self.variables]
            arrays.extend(before)
            executable = self.executable(arrays, device)
            claimed = list(self.assigned)
            for variable in claimed:
                variable._value = None  # readers in other threads wait for the new value
            try:
                outputs = self._run_donating(executable, arrays, before)
            except BaseException:
                for variable, value in zip(self.variables, before, strict=True):
                    variable._value = value
                raise
            first = self.plan.count
            for offset, variable in enumerate(claimed):
                variable._value = outputs[first + offset]
        if self.checks:
            self.raise_failed(outputs)
        return outputs

    def _run_donating(self, executable: Executable, arrays: list[Any], before: list[Any]) -> Any:
        """Call with the assigned Variables' buffers given away, each copied first if somebody else holds it."""
        for position in self.donated:
            value = arrays[position]
            if type(value) is not np.ndarray and sys.getrefcount(value) > _SOLE_OWNER:
                arrays[position] = value.copy()
        del value
        return executable.call(*arrays)

    def raise_failed(self, outputs: Sequence[Any]) -> None:
        """Raise the error of the first check that does not hold; the graph itself has kept the Variables' values."""
        first = self.plan.count + len(self.assigned)
        for check, ok in zip(self.checks, outputs[first:], strict=True):
            if not bool(ok):
                raise check.error(f"{check.text}\n  in {self.raw_graph.name}, at {format_where(check.where)}")

    # -- gradients --------------------------------------------------------------------------------------------

    def call_recorded(self, inputs: list[Tensor], edges: list[Edge | None]) -> Any:
        """Run the trace under a tape and record it as one node whose rule is a compiled backward graph."""
        self.last_used = next_use()
        wanted = tuple([edge is not None for edge in edges])
        gradient = self.gradient_ops.get(wanted)
        if gradient is None:
            gradient = self.gradient_ops[wanted] = self._gradient_op(wanted)
        visible = len(self.graph.outputs)
        with WRITES:
            values = [raw_value(tensor) for tensor in inputs]
            outputs = tuple(gradient.jitted["forward"](*values))
            first = self.plan.count
            for offset, variable in enumerate(self.assigned):
                variable._value = outputs[first + offset]
        if self.checks:
            self.raise_failed(outputs[:visible])
        attrs = {"graph": self.raw_graph, "residuals": True}
        made = record_node(gradient, tuple(edges), attrs, values, outputs, "xla")
        tensors = made if isinstance(made, tuple) else (made,)
        return self.plan.build(tensors[: self.plan.count])

    def _gradient_op(self, wanted: Mask) -> Op:
        graph = self.raw_graph
        split = split_gradient(graph, wanted)
        forward, _ = run_passes(split.forward, differentiable=False)
        backward, _ = run_passes(split.backward, differentiable=False)
        executable = compile_graph(forward, sizes={})
        op = Op(
            name=graph.name,
            kernel=No("compiled"),
            lower=lower_graph(forward),
            infer=_recorded_infer(graph),
            vjp=_recorded_rule(graph, split, lower_graph(backward)),
            saves=Saves(x="all", hidden=split.residuals),
            traits=frozenset({"nested"}),
        )
        op.jitted["forward"] = executable.call
        return op


def _recorded_infer(graph: Graph) -> Callable[..., Any]:
    def infer(*specs: Any, **attrs: Any) -> Any:
        del specs, attrs
        return graph.output_specs

    return infer


def _recorded_rule(graph: Graph, split: SplitGradient, backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a recorded call: the compiled backward graph on bare arrays, a graph call on tensors."""

    def rule(F: Any, g: Any, y: Any, *xs: Any, **attrs: Any) -> list[Any]:
        del attrs
        visible = len(graph.outputs)
        gs = list(g) if isinstance(g, tuple) else [g]
        if any(isinstance(value, Tensor) for value in (*xs, *gs)):
            return graph_pullback(F, graph, xs, gs, split.present)
        cotangents = zero_cotangents(split.given, gs, graph.output_specs, F.full)
        residuals = y[visible:] if isinstance(y, tuple) else ()
        found = iter(backward(*[xs[i] for i in split.reads], *residuals, *cotangents))
        return [next(found) if present else None for present in split.present]

    return rule


def raw_value(tensor: Tensor) -> Any:
    """Return the array to hand to XLA: jax's own, where the tensor has one."""
    value = tensor._value
    if type(value) is not np.ndarray:
        return value
    if tensor._alt is None and value.nbytes >= _WORTH_KEEPING:
        with enable_x64():
            tensor._alt = jax.device_put(value)
    return value if tensor._alt is None else tensor._alt


_WORTH_KEEPING = 1 << 16
"""Bytes from which a host tensor keeps its XLA form: copying it again at every call would cost more."""


def _sole_owner_count() -> int:
    """Return what `sys.getrefcount` says in `_run_donating` of an array that only a Variable held."""
    before = [object()]
    arrays = [before[0]]
    value = arrays[0]
    return sys.getrefcount(value)


_SOLE_OWNER = _sole_owner_count()


# -- tracing ------------------------------------------------------------------------------------------------------


def make_trace(
    function: Callable[..., Any],
    call: Callable[[dict[str, Any]], Any],
    signature: Signature,
    static: frozenset[str],
    record: TraceRecord,
    name: str,
    context: Context,
) -> Trace:
    """Run the user's function once with traced tensors.

    Args:
        function: the user's function, for messages.
        call: calls it with named arguments.
        signature: the flattened arguments.
        static: names of static arguments.
        record: the record to fill in.
        name: the graph's name.
        context: the context of the call (its device).

    Raises:
        MutationError: the function changed a structure it was given.
        ArgumentTypeError: it returned something that is no tensor.
    """
    start = time.perf_counter()
    with context_of(None):
        builder = GraphBuilder(name)
    values: list[Any] = [
        builder.argument(leaf.value.spec, leaf.path) if leaf.kind == TENSOR else leaf.value for leaf in signature.leaves
    ]
    arguments = unflatten_arguments(signature, values, static)
    try:
        with context_of(builder, (), context.device):
            result = call(arguments)
            _check_unchanged(function, arguments, values, signature, static)
            leaves, tree = jax.tree_util.tree_flatten(result)
            outputs = [_output(function, leaf) for leaf in leaves]
            graph = builder.finish(outputs)
    except Exception as error:
        _annotate(error, builder, name)
        raise
    finally:
        builder.scope.alive = False
    record.trace_ms = (time.perf_counter() - start) * 1e3
    return Trace(graph, builder, OutputPlan(tree, len(outputs)), signature, record)


def _output(function: Callable[..., Any], leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor | Variable | bool | int | float | complex | np.ndarray | np.generic | jax.Array):
        return as_tensor(leaf)
    raise ArgumentTypeError(
        message(
            f"compile: {function.__qualname__} returned a {type(leaf).__name__}, which is no tensor",
            got=repr(leaf)[:80],
            hint="Return tensors, numbers, None and structures of them; compute the rest outside.",
        )
    )


def _check_unchanged(
    function: Callable[..., Any], arguments: dict[str, Any], values: list[Any], signature: Signature,
    static: frozenset[str],
) -> None:  # fmt: skip
    """Raise if the function changed a list or dict it was given: the caller's would stay as it was."""
    names, trees, _ = signature.key
    position = 0
    for name, tree in zip(names, trees, strict=True):
        if name in static:
            position += 1
            continue
        leaves, now = jax.tree_util.tree_flatten(arguments[name], is_leaf=lambda x: x is None)
        before = values[position : position + tree.num_leaves]
        position += tree.num_leaves
        if now != tree or any(a is not b for a, b in zip(leaves, before, strict=True)):
            raise MutationError(
                message(
                    f"compile: {function.__qualname__} changed its argument {name!r}, which a compiled call cannot do",
                    got=f"{tree} before, {now} after",
                    hint="Build a new structure and return it.",
                )
            )


def _annotate(error: Exception, builder: GraphBuilder, name: str) -> None:
    """Note on an error raised while tracing where the trace was, with the last operations."""
    from hybridflow.ir.printer import format_node

    place = where_file_line(user_place(2))
    tail = builder.nodes[-3:]
    lines = [f"while compiling {name!r}" + (f", called at {place[0]}:{place[1]}" if place else "")]
    if tail:
        lines.append("the last operations traced:")
        lines.extend(f"  {format_node(node)}" for node in tail)
    error.add_note("\n".join(lines))


def gradient_inputs(trace: Trace, signature: Signature) -> list[Tensor]:
    """Return the tensors that are the graph's inputs in a recorded call, Variables read under the tapes."""
    inputs = [leaf.value for leaf in signature.leaves if leaf.kind == TENSOR]
    inputs += trace.captures
    inputs += [variable.read() for variable in trace.variables]
    return inputs




