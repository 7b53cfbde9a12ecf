"""`Trace`: one traced signature of a compiled function, its graph, and how it is called."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from sys import getrefcount
from threading import get_ident
from typing import Any, cast

import jax
import numpy as np

from hybridflow.autodiff.dependence import dependence
from hybridflow.backend.host import run_quietly
from hybridflow.backend.jax_shim import looks_at_results
from hybridflow.core.context import Context, context_of, current
from hybridflow.core.device import require_on
from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import record as record_node
from hybridflow.core.errors import GradientError, RetraceWarning, TraceError, first_line, message
from hybridflow.core.mesh import SEVERAL
from hybridflow.core.node import Edge, format_where, user_place, warn_at
from hybridflow.core.notes import requires
from hybridflow.core.op import Op
from hybridflow.core.pending import LOCAL as PENDING
from hybridflow.core.pending import PendingChecks, settle_known
from hybridflow.core.profiling import PROFILER
from hybridflow.core.settings import SETTINGS
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.traced_number import text_of
from hybridflow.core.variable import WRITES, GradientCell, Variable, current_values
from hybridflow.core.variable_log import OPEN_LOGS
from hybridflow.guards.effects import Effects
from hybridflow.guards.journal import Journal
from hybridflow.guards.leaves import TracedLeaves, cut
from hybridflow.guards.numbers import Numbers
from hybridflow.guards.observations import Observations
from hybridflow.guards.reached import shown_names
from hybridflow.guards.signature import LEAF, TENSOR, Leaf, Signature, forget_values, numbers_of
from hybridflow.ir.builder import Check, GraphBuilder
from hybridflow.ir.costs import concrete
from hybridflow.ir.effects import has_effects
from hybridflow.ir.evaluate import symbol_positions
from hybridflow.ir.graph import Graph
from hybridflow.ops.effects import held_prints, messages_of
from hybridflow.passes import ON_A_MESH, PassRecord, run_passes
from hybridflow.passes.lib.outcomes import outlined_in, pipelines_in, recomputed_in, rolled_in
from hybridflow.tracing.again import Undone
from hybridflow.tracing.bounded import BoundedSizes
from hybridflow.tracing.budget import WITHIN_BUDGET, compile_within
from hybridflow.tracing.calls import depth_explained
from hybridflow.tracing.choice import make_room
from hybridflow.tracing.executables import ExecutableRecord, Padding
from hybridflow.tracing.fit import Fit
from hybridflow.tracing.layouts import Layouts, call_with_several, gathered, keep_on_mesh
from hybridflow.tracing.outputs import OutputPlan, numbers_for
from hybridflow.tracing.recorded import Note, gradient_op, graph_to_record
from hybridflow.tracing.recorded_bounded import BoundedGradients
from hybridflow.tracing.records import TraceRecord
from hybridflow.tracing.xla_inputs import move_to_xla, raw_value, value_for_mesh
from hybridflow.xla.executable import Executable, compile_graph, is_wide
from hybridflow.xla.placing import Placing
from hybridflow.xla.store.fingerprint import NotPlain, fingerprint

_LEFT = 3
"""The number of calls that leave a trace by an exception, until a warning tells."""
next_use: Callable[[], int] = itertools.count(1).__next__


class Trace(Fit):
    """One trace of a compiled function: the graph for one signature, with its guards and executables."""

    def __init__(
        self,
        graph: Graph,
        builder: GraphBuilder,
        plan: OutputPlan,
        named: Sequence[Leaf],
        tree: Any,
        types: tuple[Any, ...],
        record: TraceRecord,
        size_names: dict[tuple[int, int], str],
        leaves: TracedLeaves,
        orders: dict[tuple[Any, ...], list[Any]],
        budget: int | None = None,
        layouts: Layouts | None = None,
    ) -> None:
        super().__init__(graph, builder, leaves, size_names, orders)
        self.raw_graph = graph
        pipeline = ON_A_MESH if layouts is not None else None if budget is None else WITHIN_BUDGET
        self.graph, passes = run_passes(graph, pipeline=pipeline, differentiable=False)
        self.plan = plan
        self.single = plan.tree == LEAF and not plan.numbers
        self.returns_none = plan.tree == jax.tree_util.tree_structure(None)
        self.assigned: tuple[int, ...] = tuple([i for i, state in enumerate(self.states) if state.assignments])
        self.assigns_all = len(self.assigned) == len(self.states)
        self.asks_leaves = leaves.asked
        self.unfollowed = leaves.unfollowed
        self.trained = () if leaves.recorded else leaves.trained  # if one output is recorded, all can be followed
        self.reads_leaves = leaves.recorded
        self.checks: tuple[Check, ...] = tuple(builder.checks)
        self.arguments = len(builder.arguments)
        self.wide = is_wide(self.graph)
        self.numbers = numbers_for(builder, wide=self.wide)
        self.placing: Placing | None = None
        self.raw = raw_value if layouts is None else value_for_mesh
        if layouts is not None:
            of_states = [state.variable for state in self.states]
            others = len(graph.inputs) - self.arguments - len(self.states)
            self.placing = layouts.placing(graph, named, others, of_states, self.assigned, plan.tree)
            self.expect_placements([one.placement for one in of_states])
        self.record = record
        self.leaves = forget_values(named)
        self.tree = tree
        self.types = types
        self.last_used = next_use()
        first = self.arguments + len(builder.numbers) + len(self.captures)
        self.calls_host = has_effects(self.graph)
        # A Python function that fails must leave the Variables unchanged, so their buffers are not donated.
        self.donated: tuple[int, ...] = () if self.calls_host else tuple([first + index for index in self.assigned])
        self.executables: dict[Any, Executable] = {}
        self.only: Executable | None = None
        self.short_way: Any = None  # generated by `short_call.short_way`
        self.note: str | None = None
        self.budget = budget
        self.precision = SETTINGS.matmul_precision
        self.bounds: BoundedSizes | None = None
        self.gradient_of = builder.gradient_of
        self.created = tuple(builder.created)
        self.first_numbers: tuple[float, ...] = builder.observations.numbers.values
        self.takes_numbers = bool(self.first_numbers)
        self.before: Journal | None = builder.observations.before
        self._observe_checks(builder.observations)
        # If a trace changed what it reads, it would read another value next time, so it can serve only its own call.
        self.changed = self._has_changed(builder.observations)
        self.again = record.again = builder.observations.again
        self.once = record.once = self.changed or self.again is not None
        self.effects = None if self.once or not builder.observations.repeated else builder.observations.repeated.alone()
        self.symbols = symbol_positions(graph)
        self.lock = threading.Lock()
        self.recorded: Graph | None = None
        self._asked = threading.Event()
        self.gradient_ops: dict[Any, Op] = {}
        self.bounded_gradients: dict[tuple[bool, ...], BoundedGradients] = {}
        self._nothing_follows: bool | None = None
        self._apart: dict[tuple[bool, ...], tuple[int, ...]] = {}
        self._fill_record(builder, passes)

    def _fill_record(self, builder: GraphBuilder, passes: Sequence[PassRecord]) -> None:
        """Fill in the record that `explain` shows."""
        record = self.record
        record.autocast = self.autocast
        record.created = tuple([f"Variable {name!r} at {format_where(place)}" for name, place in self.created])
        asked = () if self.conditions is None else self.conditions.texts()
        sizes = [number for number, node in builder.numbers.values() if node.spec().shape]
        opened = [f"{text_of(number, builder.number_paths)} is an open size" for number in sizes]
        record.guards = (*(() if self.guards is None else self.guards.texts()), *asked, *opened)
        record.effects = tuple(builder.observations.effects)
        record.passes = tuple(passes)
        record.passes_ms = sum(one.milliseconds for one in passes)
        record.nodes = len(self.graph.nodes)
        record.outlined, record.rolled = outlined_in(self.graph), rolled_in(self.graph)
        record.recomputed = recomputed_in(self.graph)
        record.pipelines = pipelines_in(self.graph)
        record.captured = len(self.captures)
        record.variables = shown_names(self.states, self.leaves, builder.observations.variable_paths())
        record.assigned = tuple([record.variables[index] for index in self.assigned])

    def _observe_checks(self, found: Observations) -> None:
        """Find out what comes of a failed check; if code that the trace does not know runs then, Python decides."""
        self._changes: dict[int, Journal] = {}  # by thread
        self._left = 0
        checked = bool(self.checks)
        self._handles = checked and (found.acts_on_errors or found.runs_unseen)
        self._python_decides = self._handles or (checked and found.before.after_check)
        self.handles_errors = checked and found.handles_errors
        self.prints = messages_of(self.graph) if self._python_decides and self.calls_host else []

    def settle(self, *, called: bool) -> bool:
        """Keep or undo the changes that the trace made to Python's state.

        Args:
            called: whether the trace is the run of a call. If not, its changes are undone.

        Returns:
            Whether the trace may serve calls. It may not if changes were undone and it changed what it read or created
            Variables. Other changes are repeated by every call that it serves.
        """
        before, self.before = self.before, None
        if called and before:
            self._expect_failure(before)
        if called or not before or not before.has_changed():
            return True
        before.undo()
        return not self.once and not self.created

    def repeat_effects(self, effects: Effects, numbers: Sequence[float]) -> None:
        """Repeat the changes to Python's state that the traced call made, with the numbers of this call."""
        journal = effects.repeat(numbers, noted=self._python_decides)
        if journal is not None:
            self._expect_failure(journal)

    def _expect_failure(self, journal: Journal) -> None:
        """Take a journal whose changes are undone if one of the call's checks fails."""
        if self._python_decides:
            journal.mark()
            self._changes[get_ident()] = journal

    def _has_changed(self, observations: Observations) -> bool:
        """Whether the trace changed something that it read."""
        if observations.repeated.serve_one_call:
            return True
        if self.guards is None:
            return False
        if not self.guards.untouched():
            return True
        if not observations.repeated:
            return False
        with observations.journal.undone():
            return not self.guards.untouched()

    # -- calling ----------------------------------------------------------------------------------------------

    def call_now(self, signature: Signature, context: Context) -> Any:
        """Run the trace for a call.

        Raises:
            Undone: a check failed, and Python decides what comes of that.
        """
        with held_prints(self.prints) if self.prints else nullcontext():
            if context.tapes or self.requires_grad(signature):
                return self.call_under_tapes(signature, context)
            numbers = numbers_of(signature) if self.plan.numbers.computes else ()
            return self.call(self.arrays(signature), self.variables(signature), context.device, numbers)

    def graph_for(self, signature: Signature) -> Graph:
        """Return the graph, annotated with a call's captured tensors and Variables and with names of the outputs."""
        values = (*self.captures, *self.variables(signature))
        nodes = self.graph.inputs[len(self.graph.inputs) - len(values) :]
        names = ["output"] if self.plan.tree == LEAF else [f"output_{index}" for index in range(self.plan.count)]
        names += [f"{self.states[index].variable.name}_assigned" for index in self.assigned]
        names += ["checks"] if self.checks else []
        states = nodes[len(self.captures) :]
        assigned = {self.plan.count + number: states[index] for number, index in enumerate(self.assigned)}
        captured = dict(zip(nodes, values, strict=True))
        return replace(self.graph, captured=captured, output_names=tuple(names), assigned=assigned)

    def arrays(self, signature: Signature) -> list[Any]:
        """Return the raw inputs for the arguments of a call: first tensors, then Python numbers."""
        arrays = [self.raw(leaf.value) for leaf in signature.leaves if leaf.kind == TENSOR]
        if self.numbers is not None:
            arrays += self.numbers(numbers_of(signature))
        return arrays

    def executable(self, values: Sequence[Any], device: Any) -> Executable:
        """Return the executable for the shapes of the inputs, compiling it if there is none yet."""
        profiler = PROFILER.get()
        if profiler is not None and profiler.records():
            return profiler.executable(self, values, device)
        if self.only is not None and device is None:
            return self.only
        if device is not None:
            require_on(device, values)
        sizes = {name: values[i].shape[axis] for i, axis, name in self.symbols}
        key = (device, *sizes.items())
        executable = self.executables.get(key)
        if executable is None:
            with self.lock:
                executable = self.executables.get(key)
                if executable is None:
                    make_room(self.executables)
                    executable = self.executables[key] = self._compile(sizes, device)
        return executable

    def executable_for(self, sizes: dict[str, int], device: Any) -> Executable:
        """Return the executable for exact sizes of the symbols, compiling it if there is none yet."""
        if self.bounds is not None and sizes and device is None:
            with self.lock:
                return self.bounds.exact(sizes)
        return self.executable([concrete(spec, sizes) for spec in self.graph.input_specs], device)

    def compiled(self, sizes: dict[str, int], device: Any) -> tuple[Executable, Graph]:
        """Compile the trace for given sizes of its symbols; return the executable and the graph that it runs."""
        graph = self.graph
        if self.budget is None:
            executable = compile_graph(
                graph, donate=self.donated, sizes=sizes, device=device, note=self.note, placing=self.placing
            )
            return executable, graph
        executable, graph, self.record.memory = compile_within(
            graph, self.budget, donate=self.donated, sizes=sizes, device=device
        )
        return executable, graph

    def take_executables(self, other: Trace) -> None:
        """Reuse the executables of another trace if it has the same graph."""
        alike = self.donated == other.donated and self.wide == other.wide and self.budget == other.budget is None
        alike = alike and self.placing == other.placing and self.precision == other.precision
        if alike and other.executables and not self.calls_host:
            with suppress(NotPlain):
                if fingerprint(self.graph, {}) == fingerprint(other.graph, {}):
                    self.executables, self.bounds = other.executables, other.bounds
                    self.only = other.only
                    if self.bounds is not None:
                        self.bounds.serve(self)

    def _compile(self, sizes: dict[str, int], device: Any) -> Executable:
        with depth_explained(self.raw_graph.name):
            if self.bounds is None or not sizes or device is not None:
                return self.compile_exact(sizes, device)
            executable = self.bounds.executable(sizes)
            self.record.unbounded = self.bounds.why_not
            return executable

    def compile_exact(self, sizes: dict[str, int], device: Any) -> Executable:
        """Compile the trace for given sizes of its symbols, and add the executable to its record."""
        executable, graph = self.compiled(sizes, device)
        self.record.add(ExecutableRecord.of(executable, sizes, device, self.donated_names(executable)))
        if not self.symbolic and device is None:
            self.only = executable
            self.graph = graph
        return executable

    def donated_names(self, made: Executable) -> dict[int, str]:
        """Return the names of the Variables whose buffers an executable reuses, by the positions of its inputs."""
        first = len(self.graph.inputs) - len(self.states)
        return {index: self.record.variables[index - first] for index in made.donated}

    def call(
        self, arrays: list[Any], variables: Sequence[Variable], device: Any = None, numbers: Sequence[float] = ()
    ) -> Any:
        """Run the trace and return the user's structure.

        Args:
            arrays: the result of `arrays` for the call; the list is extended.
            variables: the result of `variables` for the call.
            device: the device of the call; None for the default one.
            numbers: the Python numbers of the call, if `plan.numbers` are computed from these.
        """
        self.last_used = next_use()
        if PENDING.calls:
            settle_known(self)
        if self.captures:
            arrays += [raw_value(tensor) for tensor in self.captures]
        if self.assigned:
            outputs = self._call_assigning(arrays, variables, device)
        else:
            values = [variable.current() for variable in variables]
            if SEVERAL.used:
                executable = self.executable([*arrays, *values], device)
                outputs = call_with_several(executable, arrays, values, variables)
            else:
                if device is None:
                    move_to_xla(variables, values)
                arrays += values
                outputs = self.executable(arrays, device).call(*arrays)
        if self.single:
            results = [make_tensor(outputs[0])]
        else:
            results = [make_tensor(value) for value in outputs[: self.plan.count]]
        pending = self.check_later(outputs, results) if self.checks else None
        if self.gradients or self.unfollowed or self.trained:
            self._finish(results, variables, pending)
            if self.trained and current().grad:
                cut(results, self.trained)
        if self.single:
            return results[0]
        return None if self.returns_none else self.plan.build(results, numbers)

    def _finish(
        self, tensors: Sequence[Tensor], variables: Sequence[Variable], pending: PendingChecks | None
    ) -> None:
        """Set which Variables have gradients now, and mark the results that `.backward()` cannot follow."""
        for index in self.gradients:
            present, cell = self.states[index].present, cast(GradientCell, variables[index])
            if present is not None and present is not cell.present:
                if pending is not None:
                    pending.settle()  # Python code can ask at once whether there is a gradient, so wait for the checks
                cell.present = present
        cut(tensors, self.unfollowed)

    def _call_assigning(self, arrays: list[Any], variables: Sequence[Variable], device: Any) -> Any:
        """Run a call that assigns Variables; all of its writes happen, or none."""
        with WRITES:
            before = current_values(variables)
            if device is None and self.placing is None:
                move_to_xla(variables, before)
            given = len(arrays)
            arrays += before
            executable = self.executable(arrays, device)
            if self.placing is not None:
                keep_on_mesh(executable, variables, before, given)
                arrays[given:] = before
            bare = executable.bare
            if bare is not None and (np.ndarray in {*map(type, before)} or (given and not self._fit(arrays[:given]))):
                bare = None
            written = self._written(variables)
            # Python functions in the graph read the old values, and logs (`hf.checkpoint`) may need them.
            donated = () if self.calls_host or OPEN_LOGS.count else written
            held: list[Any] = []
            try:
                for variable in donated:
                    variable._value = None  # readers in other threads wait for the new value
                if self.donated:
                    self._keep_shared(arrays, before)
                if SEVERAL.used and self.placing is None:
                    arrays = gathered(arrays)
                (bare or executable.into)(arrays, held)
                self._write(written, held[0])
            except BaseException:
                if held:  # an interrupt came after the old values were donated and the new ones returned
                    self._write(written, held[0])
                else:
                    for variable, value in zip(donated, self._of_written(before), strict=False):
                        variable._value = value
                raise
        return held[0]

    def _fit(self, values: Sequence[Any]) -> bool:
        """Whether the inputs before the Variables are jax arrays of the compiled shapes and dtypes.

        Open sizes are those of the executable, which was chosen by them: the trace would rely on one that is compared.
        """
        for value, spec in zip(values, self.graph.input_specs, strict=False):
            if not isinstance(value, jax.Array) or value.dtype != spec.dtype or value.ndim != spec.ndim:
                return False
            if any([type(size) is not Dim and size != now for size, now in zip(spec.shape, value.shape, strict=True)]):
                return False
        return True

    def _written(self, variables: Sequence[Variable]) -> Sequence[Variable]:
        """Return those Variables that a call assigns, given all that it reads or assigns."""
        return variables if self.assigns_all else [variables[index] for index in self.assigned]

    def _of_written(self, before: list[Any]) -> list[Any]:
        return before[:] if self.assigns_all else [before[index] for index in self.assigned]

    def _keep_shared(self, arrays: list[Any], before: list[Any]) -> None:
        """Copy those donated buffers of Variables that other code holds too.

        Copy all of them if jax may reject the results after the old values are gone.
        """
        counts = self._of_written(before)
        everything = looks_at_results()
        if not everything and sum(map(getrefcount, counts)) == len(counts) * _SOLE_OWNER:
            return
        for position, value, count in zip(self.donated, counts, [*map(getrefcount, counts)], strict=True):
            if (everything or count > _SOLE_OWNER) and type(value) is not np.ndarray:
                arrays[position] = value.copy()

    def _write(self, written: Sequence[Variable], outputs: Sequence[Any]) -> None:
        values = outputs[self.plan.count :] if self.plan.count else outputs
        if OPEN_LOGS.count or (SEVERAL.used and self.placing is None):
            for variable, value in zip(written, values, strict=False):
                variable.store(value)
        else:
            for variable, value in zip(written, values, strict=False):
                variable._value = value

    def check_later(self, outputs: Sequence[Any], results: Sequence[Tensor]) -> PendingChecks:
        """Arrange that a failed check is raised; the graph itself keeps the Variables' old values in that case.

        Args:
            outputs: the graph's outputs.
            results: the tensors that the user receives.
        """
        pending = PendingChecks(outputs[self.plan.count + len(self.assigned)], self, self._raise_failed)
        if self._python_decides:  # before the call returns
            pending.settle()
            self._changes.pop(get_ident(), None)
            return pending
        if any([type(one._value) is np.ndarray for one in results]):  # it was waited for, to cut it to its real size
            pending.settle()
            return pending
        pending.later()
        for tensor in results:
            tensor._alt = pending
        return pending

    def _raise_failed(self, flags: Any) -> None:
        failed = int(np.argmin(flags))
        changes = self._changes.pop(get_ident(), None)
        error = self.checks[failed].failure(self.raw_graph.name)
        if self._python_decides and (changes is None or changes.is_as_marked()):
            if changes is not None:
                changes.undo()
            if isinstance(error, TraceError):  # the call cannot be made as it is, whatever Python would do
                raise error
            if self.handles_errors:
                self._warn_of_python(failed)
            raise Undone from error
        if self._handles:
            raise TraceError(
                f"{self.raw_graph.name}: a check failed where the code may handle that, and what the call has "
                "changed in Python's state was changed again meanwhile, by another thread or a host function",
                got=f"{type(error).__name__}: {first_line(error)}",
                hint="Hold a lock around the call, or change that state outside of the compiled function."
            ) from error
        raise error

    def _warn_of_python(self, failed: int) -> None:
        """Count a call whose code may handle a failed check: it runs twice, the second time as Python."""
        self._left += 1
        if self._left == _LEFT:
            place = format_where(self.checks[failed].where)
            text = message(
                f"{self.raw_graph.name}: {_LEFT} calls have left the trace by an exception that the code may handle, "
                "and run as Python",
                got=f"{self.checks[failed].error.__name__} at {place}",
                hint="Choose by the tensor itself, with an `if` or hf.where: that stays compiled.",
            )
            warn_at(user_place(3), text, RetraceWarning)

    # -- gradients --------------------------------------------------------------------------------------------

    def requires_grad(self, signature: Signature) -> bool:
        """Whether a call reads anything that requires a gradient."""
        for leaf in signature.leaves:
            if leaf.kind == TENSOR and requires(leaf.value._edge):
                return not self._is_apart()
        return (self.reads_leaves or any(requires(tensor._edge) for tensor in self.captures)) and not self._is_apart()

    def _is_apart(self) -> bool:
        """Whether no output depends on an input that may require a gradient, so that the call need not be recorded."""
        if self._nothing_follows is None:
            wanted = (True,) * len(self.graph.input_specs)
            apart = not self.asks_leaves and len(self._unconnected(wanted)) == self.plan.count
            self._nothing_follows = apart
        return self._nothing_follows

    def call_under_tapes(self, signature: Signature, context: Context) -> Any:
        """Run the trace; if an input is followed, record the call as one node whose gradient rule is compiled."""
        if self.asks_leaves:
            self._require_no_leaves(signature)
        variables = self.variables(signature)
        if context.device is None and self.placing is None:
            move_to_xla(variables, [variable.current() for variable in variables])
        with WRITES if self.assigned else nullcontext():
            inputs = [leaf.value for leaf in signature.leaves if leaf.kind == TENSOR]
            if self.numbers is not None:
                inputs += self._number_tensors(signature)
            count = len(inputs)
            inputs += self.captures
            for state, variable in zip(self.states, variables, strict=True):
                inputs.append(variable.read() if state.was_read else make_tensor(variable.current()))
            edges = [
                tensor._edge if tensor._edge is not None and tensor._edge[0].stamp >= context.start else None
                for tensor in inputs
            ]
            if any(edge is not None for edge in edges):
                return self._call_recorded(inputs, edges, variables, context.device, numbers_of(signature))
            arrays = [raw_value(tensor) for tensor in inputs[:count]]
            del inputs, edges  # a tensor that holds a Variable's buffer would keep it from being donated
            with context_of(None):
                return self.call(arrays, variables, context.device, numbers_of(signature))

    def _number_tensors(self, signature: Signature) -> list[Tensor]:
        numbers = cast(Numbers, self.numbers)(numbers_of(signature))
        specs = self.graph.input_specs[self.arguments :]
        return [
            make_tensor(run_quietly(np.asarray, value, spec.dtype))
            for value, spec in zip(numbers, specs, strict=False)
        ]
    def _require_no_leaves(self, signature: Signature) -> None:
        """Raise if a tensor requires a gradient: the trace assumes that none from outside does."""
        for leaf in (*[one.value for one in signature.leaves if one.kind == TENSOR], *self.captures):
            if requires(leaf._edge):
                raise GradientError(
                    f"{self.raw_graph.name}: a tensor that requires a gradient reaches a compiled function "
                    "that calls .backward() or asks what requires one", got=str(leaf.spec),
                    hint="Pass x.detach(), or make it a hf.Variable(x, requires_grad=True)."
                )

    def _call_recorded(
        self, inputs: list[Tensor], edges: list[Edge | None], variables: Sequence[Variable], device: Any,
        numbers: Sequence[float],
    ) -> Any:
        self.last_used = next_use()
        if PENDING.calls:
            settle_known(self)
        values = [raw_value(tensor) for tensor in inputs]
        if SEVERAL.used and self.placing is None:
            values = gathered(values)
        sizes = {name: values[i].shape[axis] for i, axis, name in self.symbols}
        gradient = self._gradient_op(tuple([edge is not None for edge in edges]), device, sizes)
        outputs = tuple(gradient.jitted["forward"](*values))
        self._write(self._written(variables), outputs)
        attrs: dict[str, Any] = {"graph": self.recorded, "residuals": True}
        if sizes:
            attrs["sizes"] = tuple(sizes.items())  # the rule is compiled for these sizes
        made = record_node(gradient, tuple(edges), attrs, values, outputs, "xla")
        tensors = (made if isinstance(made, tuple) else (made,))[: self.plan.count]
        for index in self._unconnected(tuple([edge is not None for edge in edges])):
            for tape in current().tapes:
                tape.value_cut(cast(Edge, tensors[index]._edge))
            tensors[index]._edge = None  # as in eager mode, it is not followed
        pending = self.check_later(outputs, tensors) if self.checks else None
        self._finish(tensors, variables, pending)
        return self.plan.build(tensors, numbers)

    def _unconnected(self, wanted: tuple[bool, ...]) -> tuple[int, ...]:
        """Return the outputs that depend on no input that is followed."""
        outputs = self._apart.get(wanted)
        if outputs is None:
            graph = self._to_record()
            reached = dependence(graph.inputs, graph.nodes, graph.outputs[: self.plan.count])
            mask = sum(1 << number for number, one in enumerate(wanted) if one)
            outputs = tuple([i for i, (through, behind) in enumerate(reached) if not (through | behind) & mask])
            self._apart[wanted] = outputs
        return outputs

    def _gradient_op(self, wanted: tuple[bool, ...], device: Any, sizes: dict[str, int]) -> Op:
        exact = self.bounds is None or not sizes or device is not None or PROFILER.get() is not None
        # Who takes gradients in a function hardly asks for those of its results, unless a tape is there.
        seldom = exact and bool(self.gradient_of) and not (self._asked.is_set() or current().tapes)
        key = (wanted, device, exact, seldom, *sizes.items())
        op = self.gradient_ops.get(key)
        if op is None:
            with self.lock:
                op = self.gradient_ops.get(key)
                if op is None:
                    make_room(self.gradient_ops)
                    self.graph.dims.hints.update(sizes)  # the gradient sees this call's sizes
                    if exact:
                        note = self._note(device)(sizes, None)
                        asked = self._asked if seldom else None
                        op = gradient_op(self._to_record(), wanted, device, sizes, note, self.placing, asked)
                    else:
                        gradients = self._gradients_for_bounds(wanted)
                        op = gradients.op(sizes)
                        self.record.unbounded = gradients.why_not
                    self.gradient_ops[key] = op
        return op

    def _gradients_for_bounds(self, wanted: tuple[bool, ...]) -> BoundedGradients:
        gradients = self.bounded_gradients.get(wanted)
        if gradients is None:
            assert self.bounds is not None
            gradients = self.bounded_gradients[wanted] = BoundedGradients(
                self._to_record(), wanted, len(self.states), self.bounds.first, self.bounds.always,
                self.gradient_ops.clear, self._note(None),
            )
        return gradients

    def _note(self, device: Any) -> Callable[[Mapping[str, int], Padding | None], Note]:
        """Return a function that makes the `Note` for given sizes: it adds programs of recorded calls to the record."""
        record = self.record  # not the trace, which is freed as soon as it is dropped

        def of(sizes: Mapping[str, int], padding: Padding | None) -> Note:
            return lambda part, made: record.add(ExecutableRecord.of(made, sizes, device, {}, padding, part))

        return of

    def _to_record(self) -> Graph:
        """Return the graph that is recorded; the values that calls assign are among its outputs."""
        if self.recorded is None:
            assignments = {node: state.original[0] for state in self.states for node in state.assignments}
            self.recorded = graph_to_record(self.raw_graph, assignments, self.plan.count)
        return self.recorded


def _sole_owner_count() -> int:
    """Return the reference count that `_keep_shared` sees for an array that only a Variable held."""
    before = [object()]
    arrays = [*before]
    held = before[:]
    return sum(map(getrefcount, held)) * len(arrays)


_SOLE_OWNER = _sole_owner_count()
