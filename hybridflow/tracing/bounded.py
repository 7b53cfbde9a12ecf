"""Executables for a bound: one program for all sizes up to it, with the real sizes as inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from hybridflow.core.dims import Dim, evaluate
from hybridflow.core.padding import Axes, NoRule, Open
from hybridflow.nested.bounded import Bounded, bounded
from hybridflow.passes import run_passes
from hybridflow.xla.executable import Executable, compile_graph

if TYPE_CHECKING:
    from hybridflow.tracing.trace import Trace

Sizes = Mapping[str, int]

_SMALLEST = 8
"""The smallest bound of a size."""
_FACTOR = 2
"""How many times as large the next bound is: padding wastes at most this, and sizes up to `n` take log2(n) programs."""


class BoundedSizes:
    """The executables for bounds of one trace.

    Attributes:
        why_not: why the trace's executables are compiled for exact sizes; None if they are not.
    """

    def __init__(self) -> None:
        self.why_not: str | None = None
        self._made: dict[tuple[int, ...], tuple[Bounded, Executable]] = {}

    def executable(self, trace: Trace, sizes: Sizes) -> tuple[Executable, Sizes | None] | None:
        """Return an executable that takes inputs of given sizes, and the bounds if it was compiled for this call.

        Returns:
            None if the trace's graph cannot be compiled for a bound, or not here.
        """
        if self.why_not is not None:
            return None
        bounds = _bounds(trace, sizes)
        found = self._made.get(tuple(bounds.values()))
        new = found is None
        if found is None:
            try:
                found = self._compile(trace, bounds)
            except NoRule as why:
                self.why_not = str(why)
                return None
            self._made[tuple(bounds.values())] = found
        return _fitted(*found, sizes, bounds), bounds if new else None

    @staticmethod
    def _compile(trace: Trace, bounds: Sizes) -> tuple[Bounded, Executable]:
        if jax.default_backend() != "cpu":
            raise NoRule("arrays are padded on the host, which is done for the CPU alone")
        if trace.budget is not None or trace.calls_host:
            raise NoRule("the function has a memory budget, or calls Python")
        made = bounded(trace.raw_graph, bounds)
        states = len(made.graph.inputs) - len(made.symbols) - len(trace.states)
        if any(map(any, made.inputs[states:])):
            raise NoRule("a Variable has an open size")
        graph, _ = run_passes(made.graph, differentiable=False)
        return made, compile_graph(graph, donate=trace.donated, sizes={})


def _bounds(trace: Trace, sizes: Sizes) -> dict[str, int]:
    """Return the bound of each symbol: it doubles, up to the largest size that the trace takes."""
    largest: dict[str, int] = {}
    for guard in trace.raw_graph.dims.guards:
        name = guard.left.symbol
        if name is not None and guard.compare == "<=" and guard.answer and not isinstance(guard.right, Dim):
            largest[name] = min(guard.right, largest.get(name, guard.right))
    return {name: max(size, min(_next(size), largest.get(name, _next(size)))) for name, size in sizes.items()}


def _next(size: int) -> int:
    bound = _SMALLEST
    while bound < size:
        bound *= _FACTOR
    return bound


def _fitted(made: Bounded, program: Executable, sizes: Sizes, bounds: Sizes) -> Executable:
    """Return an executable that pads its inputs, runs a program for a bound, and cuts its results to real sizes."""
    real = [np.asarray(sizes[name], np.int32) for name in made.symbols]
    shapes = [node.spec().shape for node in made.graph.inputs]
    padding = [(position, shapes[position]) for position, axes in enumerate(made.inputs) if any(axes)]
    cutting = [(position, cuts) for position, axes in enumerate(made.outputs) if (cuts := _cuts(axes, sizes, bounds))]

    def taken(arrays: Sequence[Any]) -> list[Any]:
        values = [*arrays, *real]
        for position, shape in padding:
            values[position] = _padded(values[position], shape)
        return values

    def given(outputs: Sequence[Any]) -> list[Any]:
        results = [*outputs]
        for position, cuts in cutting:
            results[position] = _cut(results[position], cuts)
        return results

    def call(*arrays: Any) -> list[Any]:
        return given(program.call(*taken(arrays)))

    def into(arrays: list[Any], held: list[Any]) -> None:
        program.into(taken(arrays), held)
        held[0] = given(held[0])

    return replace(program, call=call, into=into, bare=None, alone=None)


def _padded(value: Any, shape: tuple[int, ...]) -> Any:
    if value.shape == shape:
        return value
    whole = np.zeros(shape, value.dtype)
    whole[tuple(map(slice, value.shape))] = np.asarray(value)
    return whole


Cut = tuple[int, tuple[int, ...], tuple[int, ...]]
"""An axis, the bounds of the sizes that it is folded from, and their real values."""


def _cuts(axes: Axes, sizes: Sizes, bounds: Sizes) -> list[Cut]:
    def cut(axis: int, one: Open | None) -> Cut | None:
        if one is None:
            return None
        whole, part = [tuple([evaluate(size, some) for size in one.sizes]) for some in (bounds, sizes)]
        return None if whole == part else (axis, whole, part)

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
