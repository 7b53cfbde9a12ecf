"""Inspection of a compiled function: its counts, its graph, XLA's code, the reasons for its traces, and its cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from hybridflow.core.attached import attached
from hybridflow.core.context import current
from hybridflow.core.errors import ArgumentError
from hybridflow.core.functions import is_whole
from hybridflow.core.mesh import Mesh
from hybridflow.guards.signature import Signature
from hybridflow.ir.graph import Graph
from hybridflow.tracing.cache import CacheInfo, TraceCache
from hybridflow.tracing.costing import Costing, Specs

if TYPE_CHECKING:
    from hybridflow.tracing.explanation import Explanation
    from hybridflow.tracing.function import CompiledFunction
    from hybridflow.tracing.lowered import Lowered
    from hybridflow.tracing.records import TraceRecord
    from hybridflow.tracing.replay import Replay
    from hybridflow.tracing.trace import Trace
    from hybridflow.tracing.verification import Verification

P = ParamSpec("P")
R = TypeVar("R")


class Views(Generic[P, R]):
    """The part of a `CompiledFunction` that inspects it and changes at most its cache."""

    if TYPE_CHECKING:
        _autograph: bool
        _bound: bool
        _function: Callable[P, R]
        _hits: int
        _needed_at: dict[str, str]
        _max_traces: int
        _misses: int
        _name: str
        _records: deque[TraceRecord]
        _trace_count: int
        _traces: TraceCache
        _verification: Verification

        def _like(
            self, function: Callable[..., Any], *, bound: bool = False, **options: Any
        ) -> CompiledFunction[Any, Any]: ...
        def _trace_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Trace, Signature]: ...
        def _trace_of(self, given: Specs) -> tuple[Trace, Signature, bool]: ...
        def _traced_again(self, given: Specs) -> Graph: ...

    @property
    def python_function(self) -> Callable[P, R]:
        """The function as it was before `hf.compile`."""
        return self._function

    @property
    def trace_count(self) -> int:
        """The number of times the function was traced."""
        return self._trace_count

    @property
    def compile_count(self) -> int:
        """The number of XLA executables that were compiled, or loaded from the store on disk.

        A trace has one for each concrete shape or bound; calls that a tape records have one for their results, and one
        for each set of gradients that was asked for.
        """
        return self._traces.compiles

    def cache_info(self) -> CacheInfo:
        """Return hits, misses, and sizes of the trace cache; fast calls of a function's only trace count as neither."""
        return CacheInfo(
            self._hits,
            self._misses,
            self._max_traces,
            len(self._traces),
            self._traces.executables,
        )

    def explain(self) -> Explanation:
        """Return a printable sequence of records that tell what was traced, why, and at what cost."""
        from hybridflow.tracing.explanation import Explanation  # not every program needs it: importing stays fast

        advice = attached("advice_on")(self._records, self._traces, self._hits, self._needed_at)
        needed = [f"the value of {path} is needed at {at}: each has a trace" for path, at in self._needed_at.items()]
        return Explanation(self._name, self._records, advice, self._verification.lines(), needed)

    def graph(self, /, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """Return the graph, after the passes, that a call with these arguments runs (tracing it if needed).

        Args:
            *args, **kwargs: as for a call; a `TensorSpec` may replace any tensor, with None for an open size.

        Example:
            >>> import hybridflow as hf
            >>> f = hf.compile(lambda x: x * 2)
            >>> str(f.graph(hf.TensorSpec([None, 3])).output_specs[0])
            'f32[x_0,3]'
        """
        trace, signature, opened = self._trace_of(self._specs(args, kwargs))
        graph = trace.graph_for(signature)
        if trace.placing is not None and not opened:
            from hybridflow.xla.partition import layouts_of  # it loads Shardy, which few programs need

            graph.layouts = layouts_of(trace.graph, trace.sizes(signature), trace.placing)
        return graph

    def lower(self, /, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Return the program that a call with these arguments runs, as texts from the IR to XLA's optimised HLO.

        Args:
            *args, **kwargs: as for a call; a `TensorSpec` may replace any tensor, with None for an open size. With an
                open size there are no texts from XLA, which compiles for known sizes.
        """
        trace, signature, opened = self._trace_of(self._specs(args, kwargs))
        executable = None if opened else trace.executable_for(trace.sizes(signature), current().device)
        from hybridflow.tracing.lowered import Lowered  # not every program needs it: importing stays fast

        return Lowered(trace.raw_graph, trace.graph, executable)

    def cost(self, /, *args: Any, mesh: Mesh | Mapping[str, int] | None = None, **kwargs: Any) -> Any:
        """Return the cost of a call with these arguments; nothing runs.

        The function is traced if no trace fits. That counts like any trace, and calls with such arguments use it.

        Args:
            *args, **kwargs: as for a call; a `TensorSpec` may replace any tensor, with None for an open size.
            mesh: another mesh than the function's, with its layouts, or sizes by axis, for which no devices are needed.

        Returns:
            The `hf.CostReport`; see `hf.cost`.
        """
        if mesh is not None:
            return self._like(self._function, bound=self._bound, mesh=Mesh.planned(mesh, "cost")).cost(*args, **kwargs)
        given = self._specs(args, kwargs)
        trace, signature, opened = self._trace_of(given)
        costing = Costing.of(self._name, trace, signature, opened=opened)
        return attached("report_of")(replace(costing, retrace=lambda: self._traced_again(given)))

    def _specs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Specs:
        return Specs(args, kwargs, self._function if is_whole(self._function) else None)

    def replay(self, /, *args: P.args, **kwargs: P.kwargs) -> Replay:
        """Return the call's graph as it is traced, and its inputs; this function's own traces and counts stay."""
        from hybridflow.tracing.replay import Replay  # not every program needs it: importing stays fast

        return Replay.of(*self._like(self._function, bound=self._bound)._trace_for(args, kwargs))

    def converted_code(self) -> str:
        """Return the converted code that is traced in place of the function, whose control flow accepts tensors.

        Raises:
            ArgumentError: the function is traced unconverted; the text says why.

        """
        from hybridflow.convert import (  # not every program needs it: importing stays fast
            NotConvertible,
            converted_text,
        )

        if not self._autograph:
            raise ArgumentError(f"converted_code: {self._name} is compiled with autograph=False")
        try:
            return converted_text(self._function)
        except NotConvertible as why:
            raise ArgumentError(f"converted_code: {self._name} is traced as it is, for {why}") from None
