"""`GradientTape`: records operations in an interval of the program and computes gradients from them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from tracemalloc import is_tracing as is_tracing_memory
from typing import Any, NoReturn, Self

import numpy as np

from hybridflow.autodiff.backprop import BOUND, RAW, backprop, conjugates
from hybridflow.autodiff.gradients_on_demand import differentiable_on_demand
from hybridflow.autodiff.jacobian import LEAF, Jacobians, Pullback, flatten, require_choice
from hybridflow.autodiff.recorded_graph import recorded_graph
from hybridflow.autodiff.recorded_memory import Peak, RecordedMemory, live_nodes, recorded_memory
from hybridflow.autodiff.seeds import ones, seeds_of, zeros
from hybridflow.autodiff.vectorize import InnerBuilder
from hybridflow.autodiff.walk import Engine, Wanted, connected, reachable
from hybridflow.autodiff.why import Exits, Noting, independent
from hybridflow.core import structures
from hybridflow.core.context import context_now, current, set_tapes
from hybridflow.core.dispatch import as_arrays
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import (
    ArgumentTypeError,
    DTypeError,
    TapeError,
    TapeStateError,
)
from hybridflow.core.node import FOREVER, Edge, Node, Position, next_sequence, renew, user_place
from hybridflow.core.notes import requires
from hybridflow.core.op import Stops
from hybridflow.core.settings import SETTINGS
from hybridflow.core.tensor import Tensor, describe, make_tensor, watch_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.graph import Graph

_FOREVER = 1 << 62
_NOWHERE = object()
"""The scope of a tape that has not been entered yet."""


class GradientTape(Jacobians):
    """A recorder of the operations in a ``with`` block, which then computes gradients.

    Trainable Variables are watched when they are read; tensors only after `watch`.

    Args:
        persistent: whether it may compute gradients more than once.
        watch_accessed_variables: whether to watch trainable Variables that are read.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.Variable(3.0)
        >>> with hf.GradientTape() as tape:
        ...     y = x * x
        >>> tape.gradient(y, x)
        Tensor(6., dtype=float32)
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._accessed = watch_accessed_variables
        self._active = self._entered = False
        self._clear()

    def _clear(self) -> None:
        self.first_sequence = next_sequence()
        self._intervals: list[tuple[int, int]] = []
        self._began = self.first_sequence
        self._watched: dict[Edge, int] = {}
        self._variables: dict[Node, tuple[Variable, dict[Edge, None]]] = {}
        self._exits = Exits()
        self._scope: Any = _NOWHERE
        self._used = False
        self._peak: Peak | None = None

    # -- recording --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._active:
            raise TapeStateError("GradientTape: this tape is already recording", hint="Use a second tape for nesting.")
        if self._used and not self._persistent:
            self._clear()
        if is_tracing_memory() and not self._intervals:
            self._peak = Peak.begin(_peaks())
        self._push()
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            self._pop()

    def _push(self) -> None:
        self._active = self._entered = True
        self._began = next_sequence()
        self._scope = _scope()
        set_tapes((*current().tapes, self))

    def _pop(self) -> None:
        self._active = False
        self._intervals.append((self._began, next_sequence()))
        tapes = current().tapes
        set_tapes(tapes[:-1] if tapes[-1] is self else tuple([tape for tape in tapes if tape is not self]))

    def pause(self) -> None:
        """Stop recording until `resume` (`hf.no_grad` does this).

        Raises:
            TapeError: if the tape was entered outside the compiled function, branch or loop that is being traced.
            TapeStateError: if the tape is not recording.
        """
        self._require_here("pause")
        if not self._active:
            raise TapeStateError("pause: this tape is not recording", hint="Use it inside the tape's `with` block.")
        self._pop()

    def resume(self) -> None:
        """Continue recording after `pause`.

        Raises:
            TapeError: if the tape was entered outside the compiled function, branch or loop that is being traced.
            TapeStateError: if the tape is recording.
        """
        self._require_here("resume")
        if self._active:
            raise TapeStateError("resume: this tape is already recording", hint="Call pause first.")
        self._push()

    @contextmanager
    def stop_recording(self) -> Generator[None, None, None]:
        """Stop recording inside a ``with`` block.

        Raises:
            TapeStateError: if the tape is not recording.
        """
        self._require_here("stop_recording")
        if not self._active:
            raise TapeStateError("stop_recording: this tape is not recording",
                                 hint="Use it inside the tape's `with` block.")
        self._pop()
        try:
            yield
        finally:
            self._push()

    def reset(self) -> None:
        """Forget everything recorded and watched so far."""
        self._require_here("reset")
        active = self._active
        if active:
            self._pop()
        self._clear()
        if active:
            self._push()

    def watch(self, tensors: Any) -> None:
        """Record operations on tensors from here on.

        Args:
            tensors: a tensor or Variable, or a pytree of them.

        Raises:
            ArgumentTypeError: if something is not a tensor.
            DTypeError: if a tensor is of an integer or bool dtype.
            TapeError: if the tape was entered outside the compiled function, branch or loop that is being traced.
        """
        self._require_here("watch")
        leaves, _ = flatten(tensors)
        for leaf in leaves:
            if not isinstance(leaf, Tensor | Variable):
                raise ArgumentTypeError(f"watch: a {type(leaf).__name__} cannot be watched, only tensors and Variables",
                                        got=repr(leaf)[:60], hint="Convert it first: x = hf.asarray(x); tape.watch(x).")
            if not is_differentiable(leaf.dtype):
                raise DTypeError(f"watch: {leaf.dtype} has no gradient", got=describe(leaf),
                                 hint="Cast to a float first, for example .astype(hf.float32).")
        for leaf in leaves:
            if isinstance(leaf, Variable):
                self._variables.setdefault(leaf._leaf, (leaf, {}))
            else:
                for edge in _tracked_edges(leaf):
                    self._watched.setdefault(edge, next_sequence())

    def has_recorded(self, node: Node) -> bool:
        """Whether a node was made while the tape recorded."""
        return any(begin <= node.sequence < end for begin, end in self._recorded())

    def recorded_here(self) -> bool:
        """Whether the tape was entered in the current trace, or in eager code if there is none."""
        return self._scope is _scope() or self._scope is _NOWHERE

    def _require_here(self, what: str) -> None:
        """Raise if the tape was entered in another trace or outside this one: it does not know this one's values."""
        if self.recorded_here():
            return
        here = _scope()
        around = self._home() is not None or self._around_slices()
        if what == "gradient" and around and (self._persistent or not self._active):
            return  # a branch, a loop body or what hf.vmap runs may ask for gradients of the recording around it
        if here is None:
            misuse = f"was entered inside {self._scope.name!r} while it was compiled, and is used outside of it"
        else:
            misuse = f"is used inside {here.name!r} while it is compiled, and was entered outside of it"
        self._refuse(what, misuse)

    @staticmethod
    def _refuse(what: str, misuse: str) -> NoReturn:
        raise TapeError(f"{what}: the tape {misuse}",
                        hint="Enter a tape and ask it on the same side of a compiled function, branch or loop.")

    def _home(self) -> GraphBuilder | None:
        """Return the trace that the tape recorded, if it is the current one or an outer one."""
        tracer = current().tracer
        while isinstance(tracer, GraphBuilder) and tracer.scope is not self._scope and self._scope is not _NOWHERE:
            tracer = tracer.outer
        return tracer if isinstance(tracer, GraphBuilder) else None

    def _around_slices(self) -> bool:
        """Whether eager code recorded and maps a function over slices now, which reads recorded values as they are."""
        tracer = current().tracer
        while isinstance(tracer, InnerBuilder):
            tracer = tracer.outer
        return tracer is None and self._scope is None

    def _known_edge(self, tensor: Tensor) -> Edge | None:
        """Return a tensor's edge in the tape's trace, or None if it has none.

        Raises:
            TapeError: if a branch or loop body made the tensor while the tape recorded outside that body.
        """
        home = self._home()
        eager_in_slices = self._scope is None and current().tracer is not None
        if tensor._value is None and (eager_in_slices if home is None else not home.knows(tensor)):
            if self._active:
                self._refuse("gradient", f"records outside of {_scope().name!r}, and is asked about what it made")
            return None
        return tensor._edge if home is None else home.edge_of(tensor)

    def variable_read(self, variable: Variable, edge: Edge) -> None:
        """Watch a Variable's value; called when the Variable is read."""
        entry = self._variables.get(variable._leaf)
        if entry is None:
            if not (self._accessed and variable.trainable) or not is_differentiable(variable.dtype):
                return
            entry = self._variables[variable._leaf] = (variable, {})
        entry[1][edge] = None
        renew(edge[0])

    def value_left(self, edge: Edge) -> None:
        """Remember where a recorded value became NumPy or a Python number, for `why_none`."""
        if is_differentiable(edge[0].spec(edge[1]).dtype):
            self._exits.left(edge[0], user_place(3))

    def value_cut(self, edge: Edge) -> None:
        """Remember which output of a compiled call has no gradient, for `why_none`."""
        self._exits.cut(edge[0])

    def value_assigned(self, variable: Variable, edge: Edge) -> None:
        """Remember which recorded value was assigned to a Variable, for `why_none`."""
        if is_differentiable(variable.dtype):
            self._exits.assigned(variable, edge[0], user_place(3))

    def watches(self, edge: Edge) -> bool:
        """Whether the value on an edge was watched by `watch`."""
        return edge in self._watched

    def watched_variables(self) -> tuple[Variable, ...]:
        """Return the watched Variables, each once, in order of creation."""
        variables = [variable for variable, _ in self._variables.values()]
        return tuple(sorted(variables, key=lambda variable: variable._leaf.sequence))

    # -- gradients --------------------------------------------------------------------------------------------

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, unconnected_gradients: str = "none"
    ) -> Any:
        """Return the gradients of a target with respect to each source; several tensors or elements are summed.

        For a real target and a complex source ``z = x + iy``, the gradient is ``d/dx + i d/dy``, the direction of
        steepest ascent, as in PyTorch and TensorFlow (jax returns its conjugate). A complex target counts as its real
        part unless it has an output gradient.

        Args:
            target: a tensor, or a pytree of them.
            sources: tensors and Variables in any nesting.
            output_gradients: gradients of the target's tensors to start from, in the target's structure; ones if None.
            unconnected_gradients: the result for a source that the target does not depend on: ``"none"`` or ``"zero"``.

        Returns:
            The sources' structure, each source replaced by a tensor of its shape and dtype, or None.

        Raises:
            TapeError: on a second call of a tape that is not persistent, or across the border of a compiled function.
            ArgumentTypeError: if a target or source is not a tensor.
            ArgumentError: if `unconnected_gradients` is another word.
            ShapeError, DTypeError: if output gradients do not match the target.
        """
        if output_gradients is None and unconnected_gradients == "none" and not SETTINGS.observers:
            several = type(sources) is list or type(sources) is tuple
            gradients = self._quick(target, sources if several else (sources,))
            if gradients is not None:
                return type(sources)(gradients) if several else gradients[0]
        if SETTINGS.observers and output_gradients is None:
            return observed_gradients(
                self, sources, lambda all_of_them: self._gradient(target, all_of_them, None, unconnected_gradients)
            )
        return self._gradient(target, sources, output_gradients, unconnected_gradients)

    def _gradient(self, target: Any, sources: Any, output_gradients: Any, unconnected_gradients: str) -> Any:
        """Return gradients, in any case; see `gradient`."""
        require_choice("gradient", unconnected_gradients)
        targets, leaves, tree = self._asked("gradient", target, sources)
        seeds = conjugates(seeds_of(targets, output_gradients, target))
        self._answer()
        gradients = conjugates(self._backprop(targets, seeds, leaves))
        if not self._persistent and None not in gradients:
            self._exits.clear()  # `why_none` will not need them, so the nodes can be freed
        if tree is LEAF:
            return gradients[0] if gradients[0] is not None or unconnected_gradients == "none" else zeros(leaves[0])
        if unconnected_gradients == "zero":
            gradients = [zeros(leaf) if g is None else g for g, leaf in zip(gradients, leaves, strict=True)]
        return structures.unflatten(tree, gradients)

    def _quick(self, target: Any, sources: Sequence[Any]) -> list[Tensor | None] | None:
        """Return gradients on the fast path, or None where it does not apply."""
        if self._active or self._scope is not None or len(self._intervals) != 1:
            return None
        if self._used and not self._persistent:
            return None
        gradients = quick_gradients(self, target, sources)
        if gradients is not None:
            self._used = True
            if not self._persistent and None not in gradients:
                self._exits.clear()  # `why_none` will not need them, so the nodes can be freed
        return gradients

    def _pullback(self, target: Tensor, leaves: list[Any]) -> Pullback | None:
        """Return the backward walk from one target to sources, or None if the target was not recorded."""
        edge = self._known_edge(target)
        if edge is None or not is_differentiable(target.dtype):
            return None
        nodes, wanted, live = self._paths([edge], leaves)
        return Pullback(edge, nodes, wanted, None if live is None else SinceWatched(BOUND, live))

    def _asked(self, what: str, target: Any, sources: Any) -> tuple[list[Tensor], list[Any], Any]:
        """Return the targets, the sources and the sources' structure, or raise if the tape may not be asked."""
        if self._used and not self._persistent:
            raise TapeError(f"{what}: a tape that is not persistent answers once",
                            hint="Make it with hf.GradientTape(persistent=True).")
        if not self._entered:
            raise TapeError(f"{what}: the tape has never recorded",
                            hint="Compute in `with hf.GradientTape() as tape:`.")
        self._require_here("gradient")
        targets = self._targets(target)
        leaves, tree = flatten(sources)
        for leaf in leaves:
            _require_tensor(leaf, "source")
        return targets, leaves, tree

    def _answer(self) -> None:
        """Mark the tape as used; if it is active and not persistent, stop recording."""
        if self._active and not self._persistent:
            self._pop()
        self._used = True

    def _targets(self, target: Any) -> list[Tensor]:
        """Return the targets as tensors; a Variable is read as if inside the tape's block."""
        leaves, _ = flatten(target)
        if not leaves:
            raise ArgumentTypeError("gradient: the target is empty", got=repr(target), hint="Pass at least one tensor.")
        targets: list[Tensor] = []
        for leaf in leaves:
            _require_tensor(leaf, "target")
            if isinstance(leaf, Tensor):
                targets.append(leaf)
            elif self._active:
                targets.append(leaf.read())
            else:
                self._push()
                try:
                    targets.append(leaf.read())
                finally:
                    self._pop()
        return targets

    def _backprop(
        self, targets: list[Tensor], seeds: list[Tensor | None], leaves: list[Any], engine: Engine | None = None
    ) -> list[Tensor | None]:
        bound = _is_bound()
        seeded = [
            (edge, tensor, seed)
            for tensor, seed in zip(targets, seeds, strict=True)
            if (edge := self._known_edge(tensor)) is not None and is_differentiable(tensor.dtype)
        ]
        starts = [(edge, seed if seed is not None else ones(tensor)) for edge, tensor, seed in seeded]
        nodes, wanted, live = self._paths([edge for edge, _ in starts], leaves)
        around = [edge for pair in starts for edge in (pair[0], pair[1]._edge) if edge is not None]
        lasting = engine is None and not bound and current().grad and any(map(requires, around))
        if lasting and any("tensor_rule" in node.op.traits for node in nodes):
            bound, lasting = True, False  # run the user's rule only once
        engine = engine or (BOUND if bound else RAW)
        gradients = walked(starts, nodes, wanted, live, engine, bound=bound)
        if not lasting:
            return gradients
        again = partial(walked, starts, nodes, wanted, live, BOUND, bound=True)
        return differentiable_on_demand(gradients, nodes, around, again)

    def _paths(
        self, targets: list[Edge], leaves: list[Any]
    ) -> tuple[list[Node], list[Sequence[Edge]], Mapping[Node, Wanted] | None]:
        """Return the inputs of a walk from targets to sources.

        Returns:
            The nodes in between, the edges of every source, and, if a value was watched after its first use, the
            nodes that depend on watched values as of then.
        """
        nodes = reachable(targets, self._recorded())
        watched = self._watched_edges()
        wanted: list[Sequence[Edge]] = [self._source_edges(leaf) for leaf in leaves]
        late = bool(self._watched) and max(self._watched.values()) > _first_operation(nodes)
        live: Mapping[Node, Wanted] | None = None
        if late:
            live = self._connected(nodes)
        elif any(edge not in watched for edges in wanted for edge in edges):
            live = connected(nodes, watched, flat=True)
        if live is not None:
            # An unwatched source counts only if it was computed from something watched.
            wanted = [[edge for edge in edges if edge in watched or live.get(edge[0])] for edges in wanted]
        return nodes, wanted, live if late else None

    def _connected(self, nodes: Sequence[Node]) -> dict[Node, Wanted]:
        """Return the nodes connected to watched values, counting only uses after the value was watched."""
        since: dict[Edge, int] = dict.fromkeys(self._watched_edges(), 0) | self._watched
        live: dict[Node, Wanted] = {}
        for node in nodes:
            wanted = [
                edge is not None and (edge[0] in live or since.get(edge, _FOREVER) < node.sequence)
                for edge in node.inputs
            ]
            if any(wanted) and not isinstance(node.op.vjp, Stops):
                live[node] = tuple(wanted)
        return live

    def _recorded(self) -> list[tuple[int, int]]:
        """Return the intervals in which the tape recorded."""
        return [*self._intervals, (self._began, _FOREVER)] if self._active else self._intervals

    def _watched_edges(self) -> set[Edge]:
        edges = set(self._watched)
        for _, read in self._variables.values():
            edges.update(read)
        return edges

    def _source_edges(self, leaf: Tensor | Variable) -> Sequence[Edge]:
        if isinstance(leaf, Variable):
            entry = self._variables.get(leaf._leaf)
            return () if entry is None else tuple(entry[1])
        edge = self._known_edge(leaf)
        if edge is None:
            return ()
        home = self._home()
        stopped = None if home is None else home.stopped.get(edge)
        return (edge,) if stopped is None else (edge, stopped)

    def graph(self, targets: Any) -> Graph:
        """Return a recorded computation as a graph to print, verify or cost.

        Its inputs are the watched values, values computed before the tape recorded, and values that the recording
        did not keep since no gradient needs them. `hf.compile_recorded` runs such a graph.

        Args:
            targets: the tensor that it computes, or a pytree of them.

        Raises:
            TapeError: if a target was not recorded; or inside a compiled function, which has `CompiledFunction.graph`.
            GradientError: if the computation contains a custom gradient.
        """
        if current().tracer is not None:
            self._refuse("graph", "is asked for its graph inside a compiled function")
        edges = [tensor._edge for tensor in self._targets(targets)]
        if None in edges:
            self._refuse("graph", "did not record how a target was computed, from what is watched")
        intervals = self._recorded()
        return recorded_graph(
            [edge for edge in edges if edge is not None],
            "recorded",
            member=lambda node: any(first < node.sequence < last for first, last in intervals),
        ).graph

    def memory(self) -> RecordedMemory:
        """Return the memory that the recording keeps now for gradients, by line and operation.

        A buffer counts once, even if several operations saved it or views of it. Values that no living tensor depends
        on, or that no gradient rule reads, are not kept. The peak is measured if `tracemalloc` was started before the
        tape.

        Raises:
            TapeError: inside a compiled function, where nothing has memory yet; use `hf.cost` there.
        """
        if current().tracer is not None:
            self._refuse("memory", "is asked for its memory inside a compiled function")
        intervals, peak = self._recorded(), None if self._peak is None else self._peak.read(_peaks())
        nodes = live_nodes(lambda node: any(first < node.sequence < last for first, last in intervals))
        live = connected(nodes, self._watched_edges())
        variables = [variable for variable, _ in self._variables.values()]
        return recorded_memory([node for node in nodes if node in live], variables, peak)

    # -- explanations -----------------------------------------------------------------------------------------

    def why_none(self, target: Any, source: Any) -> str:
        """Say in one sentence why the gradient of a target with respect to a source is None.

        Args:
            target: a tensor.
            source: a tensor or Variable.
        """
        tensor = self._targets(target)[0]
        _require_tensor(source, "source")
        for what, value in (("target", tensor), ("source", source)):
            if not is_differentiable(value.dtype):
                return f"The {what} is {value.dtype}: integers and bools have no gradient."
        if isinstance(source, Variable) and source._leaf not in self._variables:
            return f"The Variable {source.name!r} was not watched: {self._why_unwatched(source)}."
        noting = Noting(BOUND if _is_bound() else RAW)
        (gradient,) = self._backprop([tensor], [None], [source], noting)
        if gradient is not None:
            return "It is not None: the target depends on the source."
        edges = self._source_edges(source)
        target_edge = self._known_edge(tensor)
        nodes = [] if target_edge is None else reachable([target_edge], self._recorded())
        if isinstance(source, Tensor) and not self._is_watched(edges, nodes):
            leaf = "; requires_grad is for .backward()" if any(map(requires, edges)) else ""
            return f"The source was not watched: call tape.watch(source) before computing the target from it{leaf}."
        path = connected(nodes, edges)
        if target_edge is not None and path.get(target_edge[0]):
            return noting.why() or independent(target_edge, path) or (
                "The source was watched too late: the target was computed from it before that."
            )
        for node in reversed(nodes):
            if isinstance(node.op.vjp, Stops) and any(edge is not None and edge[0] in path for edge in node.inputs):
                return f"The path goes through {node.op.name} at {node.location}: {node.op.vjp.why}."
        return self._exits.why(target_edge, nodes, set(edges), self._recorded()) or (
            "There is no path: the target was not computed from the source while the tape recorded."
        )

    def _why_unwatched(self, variable: Variable) -> str:
        if not variable.trainable:
            return "it is not trainable; call tape.watch(variable)"
        if not self._accessed:
            return "the tape has watch_accessed_variables=False; call tape.watch(variable)"
        return "it was not read while the tape recorded (a branch that is not taken reads nothing)"

    def _is_watched(self, edges: Sequence[Edge], nodes: Sequence[Node]) -> bool:
        """Whether a source is watched, or was computed from a watched value."""
        watched = self._watched_edges()
        if any(edge in watched for edge in edges):
            return True
        live = connected([*nodes, *reachable(edges, self._recorded())], watched)
        return any(live.get(node) for node, _ in edges)


# -- helpers ------------------------------------------------------------------------------------------------------


def _first_operation(nodes: Sequence[Node]) -> Position:
    """Return the sequence number of the first node that is an operation."""
    for node in nodes:
        if node.inputs:
            return node.sequence
    return _FOREVER


def _is_bound() -> bool:
    """Whether a gradient must be traced now, or recorded for higher orders."""
    context = current()
    return context.tracer is not None or bool(context.tapes)


def _peaks() -> list[Peak | None]:
    return [getattr(tape, "_peak", None) for tape in current().tapes]


def _scope() -> Any:
    """Return the scope of the current trace, or None in eager code."""
    tracer = current().tracer
    return tracer.scope if isinstance(tracer, GraphBuilder) else None


def _tracked_edges(tensor: Tensor) -> tuple[Edge, ...]:
    """Return a tensor's edges, which are part of the recording or trace from now on."""
    tracer = current().tracer
    if not isinstance(tracer, GraphBuilder):
        return (watch_tensor(tensor),)
    edges = tracer.watched(tensor)
    for node, _ in edges:
        renew(node)
    return edges


def _require_tensor(leaf: Any, what: str) -> None:
    if not isinstance(leaf, Tensor | Variable):
        raise ArgumentTypeError(f"gradient: the {what} is a {type(leaf).__name__}, not a tensor", got=repr(leaf)[:60],
                                hint="Pass tensors or Variables that the tape recorded.")


# -- gradients that observers of modules want to see beside those that are asked for ----------------------------------


def observed_gradients(tape: GradientTape, sources: Any, compute: Callable[[Any], Any]) -> Any:
    """Return the gradients of sources, and show observers those of the results that they wait for.

    Args:
        tape: the tape that is asked.
        sources: what it is asked for.
        compute: returns the gradients of any sources, in their structure.
    """
    wanted = [one.asked(tape) for one in SETTINGS.observers]
    gradients, of_results = compute((sources, wanted))
    for one, own in zip(SETTINGS.observers, of_results, strict=True):
        one.answered(own)
    return gradients


# -- the backward walk of a tape, whose sources may have been read several times, or watched only after a first use ---


class SinceWatched:
    """An engine that passes no gradient through uses of a value before it was watched."""

    def __init__(self, engine: Engine, live: Mapping[Node, Wanted]) -> None:
        self._engine = engine
        self._live = live
        self.add = engine.add
        self.walk = engine.walk

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Return the gradients of the wanted inputs that count as recorded, None for the others."""
        recorded = self._live.get(node, ())
        both = tuple([want and i < len(recorded) and recorded[i] for i, want in enumerate(wanted)])
        gradients = self._engine.run(node, g, both) if any(both) else [None] * len(both)
        return [one if want else None for one, want in zip(gradients, both, strict=True)]


def walked(
    starts: Sequence[tuple[Edge, Tensor]],
    nodes: Sequence[Node],
    wanted: Sequence[Sequence[Edge]],
    live: Mapping[Node, Wanted] | None,
    engine: Engine,
    *,
    bound: bool,
) -> list[Tensor | None]:
    """Walk back, and return a gradient for each source, which may have been read several times.

    Args:
        starts: targets with their cotangents.
        nodes, wanted, live: the results of `GradientTape._paths`.
        engine: how to compute.
        bound: whether the engine records operations on tensors.
    """
    if live is not None:
        engine = SinceWatched(engine, live)
    seeds = list(starts) if bound else [(edge, seed._value) for edge, seed in starts]
    result = backprop(seeds, {edge for edges in wanted for edge in edges}, nodes, engine)
    gradients: list[Tensor | None] = []
    for edges in wanted:
        total: Any = None
        for edge in edges:
            one = result.get(edge)
            if one is not None:
                total = one if total is None else engine.add(total, one)
        gradients.append(total if total is None or bound else make_tensor(as_arrays(total)))
    return gradients


# -- fast path of `tape.gradient` for the usual training step: one target and watched sources, all on the host --------
# Other cases (traces, other tapes, output gradients, nestings, several intervals) take the general path through the
# tape's methods, which gives the same gradients.

_ndarray = np.ndarray


def quick_gradients(tape: GradientTape, target: Any, sources: Iterable[Any]) -> list[Tensor | None] | None:
    """Return the gradients of a target with respect to sources, or None if the fast path does not apply.

    Args:
        tape: a tape that recorded in eager code, once, and is not recording now.
        target: the value to differentiate.
        sources: tensors and Variables.
    """
    if type(target) is not Tensor or context_now() is not None:
        return None
    edge, value = target._edge, target._value
    if edge is None or type(value) is not _ndarray or value.dtype.kind != "f" or edge[0].stamp == FOREVER:
        return None
    wanted = _edges(tape, sources)
    if wanted is None:
        return None
    nodes = reachable((edge,), tape._intervals)
    if tape._watched and _watched_late(tape._watched, nodes):
        return None
    seed = np.empty(value.shape, value.dtype)
    seed.fill(1)
    by_edge = backprop(((edge, seed),), set(wanted), nodes, RAW)
    gradients: list[Tensor | None] = []
    for one in wanted:
        gradient = by_edge.get(one)
        if gradient is not None:
            gradient = gradient if type(gradient) is _ndarray else as_arrays(gradient)
            if gradient.dtype.kind == "c":
                return None  # the general path conjugates it
            gradient = make_tensor(gradient)
        gradients.append(gradient)
    return gradients


def _edges(tape: GradientTape, sources: Iterable[Any]) -> list[Edge] | None:
    """Return the edge of every source, or None if one is not a tensor, was not watched or has several edges."""
    edges: list[Edge] = []
    for source in sources:
        if type(source) is Tensor:
            edge = source._edge
            if edge is None or edge not in tape._watched:
                return None
        elif type(source) is Variable:
            entry = tape._variables.get(source._leaf)
            if entry is None or len(entry[1]) != 1:
                return None
            (edge,) = entry[1]
        else:
            return None
        edges.append(edge)
    return edges


def _watched_late(watched: dict[Edge, int], nodes: Sequence[Node]) -> bool:
    """Whether anything was watched after the first operation."""
    last = max(watched.values())
    for node in nodes:
        if node.inputs:
            return last > node.sequence
    return False
