"""Executables for a bound: one program for all sizes up to it, with the real sizes as inputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from hybridflow.core.dims import evaluate, substitute
from hybridflow.core.padding import Axes, NoRule, Open
from hybridflow.core.spec import SizeName
from hybridflow.guards.dynamic import is_open
from hybridflow.nested.bounded import Bounded, bounded
from hybridflow.passes import run_passes
from hybridflow.tracing.choice import Choice, Program
from hybridflow.tracing.executables import ExecutableRecord, Padding
from hybridflow.xla.executable import Executable, compile_graph

if TYPE_CHECKING:
    from hybridflow.guards.signature import Signature
    from hybridflow.ir.graph import Graph
    from hybridflow.tracing.trace import Trace

Sizes = Mapping[str, int]


class Compiled(NamedTuple):
    """A graph for a bound, and its executable."""

    made: Bounded
    executable: Executable


def exact_first(signature: Signature) -> int:
    """Return how many sizes are compiled exactly before bounds are used: none if a spec says how large a size gets."""
    sizes = [size for leaf in signature.leaves if is_open(leaf) for size in leaf.key[1]]
    if any([type(size) is SizeName and size.max is not None for size in sizes]):
        return 0
    return 1 if None in sizes or not sizes else 2  # sizes that numbers decide were seen to differ too


class BoundedSizes:
    """The executables of one trace with open sizes: for bounds, or for exact sizes.

    Args:
        trace: the trace.
        first, always: as `Choice` takes them.
    """

    def __init__(self, trace: Trace, first: int, *, always: bool) -> None:
        self.first = first
        self.always = always
        self.serve(trace)
        self._choice: Choice[Compiled, Executable] = Choice(
            [trace.raw_graph], first, self._compile_bounds, self._compile_exact, trace.executables.clear,
            always=always,
        )

    def serve(self, trace: Trace) -> None:
        """Compile for a trace from now on; it is not kept alive, so that it is freed as soon as it is dropped."""
        self._trace = weakref.ref(trace)

    @property
    def why_not(self) -> str | None:
        """Why the trace's executables are compiled for exact sizes; None if they are not."""
        return self._choice.why_not

    def exact(self, sizes: Sizes) -> Executable:
        """Return the executable for exact sizes, compiling it if there is none."""
        return self._choice.exact(sizes)

    def bounds_for(self, sizes: Sizes) -> dict[str, int] | None:
        """Return the bounds of the program that takes given sizes now; None if they are, or will be, compiled for."""
        program = self._choice.tightest(sizes)
        return program and program.bounds

    def executable(self, sizes: Sizes) -> Executable:
        """Return an executable that takes inputs of given sizes, compiling one if none suits."""
        program = self._choice.program(sizes)
        if program is not None:
            return self._fitted(program, sizes)
        return self._choice.exact(sizes)

    def _caller(self) -> Trace:
        trace = self._trace()
        assert trace is not None, "it is called by its trace"
        return trace

    def _compile_exact(self, sizes: Sizes) -> Executable:
        return self._caller().compile_exact({**sizes}, None)

    def _compile_bounds(self, bounds: dict[str, int], padding: Padding) -> Compiled:
        trace = self._caller()
        if trace.budget is not None or trace.calls_host:
            raise NoRule("the function has a memory budget, or calls Python")
        program, executable = compile_bounded(trace.raw_graph, bounds, states=len(trace.states), donate=trace.donated)
        names = trace.donated_names(executable)
        trace.record.add(ExecutableRecord.of(executable, bounds, None, names, padding))
        return Compiled(program, executable)

    def _fitted(self, program: Program[Compiled], sizes: Sizes) -> Executable:
        """Return an executable that pads its inputs, runs a program for a bound, and cuts its results to real sizes."""
        program_graph, run = program.made
        pad, cut = padding_to(program_graph, sizes), cutting_to(program_graph.outputs, sizes, program.bounds)
        count = self._choice.counter(program, sizes)

        def call(*arrays: Any) -> list[Any]:
            count()
            return cut(run.call(*pad(arrays)))

        def into(arrays: Sequence[Any], held: list[Any]) -> None:
            count()
            run.into(pad(arrays), held)
            held[0] = cut(held[0])

        return replace(run, call=call, into=into, bare=None, alone=None)


def compile_bounded(
    graph: Graph, bounds: Sizes, *, axes: Mapping[int, Axes] | None = None, states: int = 0, donate: Sequence[int] = ()
) -> Compiled:
    """Compile a graph for some bounds.

    Args:
        graph: the graph, before its passes.
        bounds: the bound of each symbol.
        axes: how some inputs are padded, by position; of others, nothing is known of what is beyond their real sizes.
        states: how many of the last inputs are Variables.
        donate: positions of the inputs whose buffers the outputs may reuse.

    Raises:
        NoRule: it cannot be compiled for bounds.
    """
    if jax.default_backend() != "cpu":
        raise NoRule("arrays are padded on the host, which is done for the CPU alone")
    graph_for_bounds = bounded(graph, bounds, axes or {})
    if any(map(any, graph_for_bounds.inputs[len(graph.inputs) - states :])):
        raise NoRule("a Variable has an open size")
    passed, _ = run_passes(graph_for_bounds.graph, differentiable=False)
    return Compiled(graph_for_bounds, compile_graph(passed, donate=donate, sizes={}))


def padding_to(made: Bounded, sizes: Sizes) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that makes a program's arguments of arrays of given sizes; padded ones stay."""
    real_sizes = [np.asarray(sizes[name], np.int32) for name in made.symbols]
    real_sizes += [np.asarray(substitute(value, sizes), dtype) for value, dtype in made.numbers]
    shapes = [node.spec().shape for node in made.graph.inputs]
    padding = [(position, shapes[position]) for position, axes in enumerate(made.inputs) if any(axes)]

    def pad(arrays: Sequence[Any]) -> list[Any]:
        values = [*arrays, *real_sizes]
        for position, shape in padding:
            values[position] = _padded(values[position], shape)
        return values

    return pad


def cutting_to(outputs: Sequence[Axes], sizes: Sizes, bounds: Sizes) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that cuts padded arrays to given sizes; arrays after the described ones stay."""
    cutting = [(position, cuts) for position, axes in enumerate(outputs) if (cuts := _cuts(axes, sizes, bounds))]

    def cut(outputs: Sequence[Any]) -> list[Any]:
        results = [*outputs]
        for position, cuts in cutting:
            results[position] = _cut(results[position], cuts)
        return results

    return cut


def _padded(value: Any, shape: tuple[int, ...]) -> Any:
    if value.shape == shape:
        return value
    padded = np.zeros(shape, value.dtype)
    padded[tuple(map(slice, value.shape))] = np.asarray(value)
    return padded


Cut = tuple[int, tuple[int, ...], tuple[int, ...]]
"""An axis, the bounds of the sizes that it is folded from, and their real values."""


def _cuts(axes: Axes, sizes: Sizes, bounds: Sizes) -> list[Cut]:
    def cut(axis: int, one: Open | None) -> Cut | None:
        if one is None:
            return None
        bound_sizes, real_sizes = [tuple([evaluate(size, some) for size in one.sizes]) for some in (bounds, sizes)]
        return None if bound_sizes == real_sizes else (axis, bound_sizes, real_sizes)

    return [one for one in starmap(cut, enumerate(axes)) if one is not None]


def _cut(value: Any, cuts: Sequence[Cut]) -> Any:
    array = np.asarray(value)
    for axis, whole, part in reversed(cuts):
        before, after = array.shape[:axis], array.shape[axis + 1 :]
        if len(whole) > 1:
            array = array.reshape((*before, *whole, *after))
        array = array[(*[slice(None)] * axis, *map(slice, part))]
        if len(whole) > 1:
            array = array.reshape((*before, int(np.prod(part)), *after))
    return np.ascontiguousarray(array) if array.ndim else array
