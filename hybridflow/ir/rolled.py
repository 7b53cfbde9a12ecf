"""`ROLLED`: an operation that runs a graph many times in a row, as a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.backend.fusion import never
from hybridflow.core.op import No, Op, register
from hybridflow.core.spec import make_spec
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.evaluate import evaluate, lower_graph, run_eagerly, sizes_around
from hybridflow.ir.fusion import MADE_BY_PASSES, NOT_DIFFERENTIATED, one_or_all
from hybridflow.ir.graph import Graph

Part = tuple[int, int, int, int]
"""``(axis, first, step, size)``: each run takes `size` elements on that axis, from ``first + step * run`` on. With a
size of 0 it takes that one element and drops the axis."""
Take = int | Part | None
"""How the runs use an input. None: all runs get the same value. An int: the first run gets the input, and each later
run gets that output of the run before. A `Part`: each run takes a part of the array."""


def carried(takes: Sequence[Take]) -> list[int]:
    """Return the positions of the inputs that are carried from run to run."""
    return [position for position, take in enumerate(takes) if type(take) is int]


def _straight(
    xs: Sequence[Any],
    form: tuple[int, Sequence[Take], Sequence[int]],
    run: Callable[..., Sequence[Any]],
    part: Callable[[Any, Part, int], Any],
    stack: Callable[[list[Any]], Any],
) -> Any:
    """Run the graph repeatedly, without a loop in the program."""
    count, takes, gives = form
    values = list(xs)
    rows: list[list[Any]] = [[] for _ in gives]
    for number in range(count):
        now = [part(x, take, number) if type(take) is tuple else x for x, take in zip(values, takes, strict=True)]
        results = run(*now)
        for position, take in enumerate(takes):
            if type(take) is int:
                values[position] = results[take]
        for row, output in zip(rows, gives, strict=True):
            row.append(results[output])
    return one_or_all((*[values[position] for position in carried(takes)], *map(stack, rows)))


def _sliced(x: Any, part: Part, run: int) -> Any:
    axis, first, step, size = part
    start = first + step * run
    return x[(slice(None),) * axis + (slice(start, start + size) if size else start,)]


def _host_sliced(x: Any, part: Part, run: int) -> Any:
    return np.asarray(_sliced(x, part, run))  # NumPy returns a single element as a scalar


def _dynamically_sliced(x: Any, part: Part, run: Any) -> Any:
    axis, first, step, size = part
    start = first + step * run
    slice_ = lax.dynamic_slice_in_dim(x, start, size or 1, axis, allow_negative_indices=False)
    return slice_ if size else lax.squeeze(slice_, [axis])


def _kernel(*xs: Any, graph: Graph, count: int, takes: tuple[Take, ...], gives: tuple[int, ...]) -> Any:
    return _straight(xs, (count, takes, gives), lambda *now: evaluate(graph, now, run_eagerly), _host_sliced, np.stack)


def _lower(*xs: Any, graph: Graph, count: int, takes: tuple[Take, ...], gives: tuple[int, ...]) -> Any:
    run = lower_graph(graph, sizes_around(graph))
    if never() is None:  # not XLA:CPU, the only backend where loops were measured
        return _straight(xs, (count, takes, gives), run, _sliced, jnp.stack)
    shapes = carried(takes)

    def step(state: tuple[Any, tuple[Any, ...]], _: None) -> Any:
        number, before = state
        values = list(xs)
        for position, value in zip(shapes, before, strict=True):
            values[position] = value
        results = run(*[
            _dynamically_sliced(x, take, number) if type(take) is tuple else x
            for x, take in zip(values, takes, strict=True)
        ])
        after = tuple([results[take] for take in takes if type(take) is int])
        return (number + np.int32(1), after), tuple([results[output] for output in gives])

    first = (np.int32(0), tuple([xs[position] for position in shapes]))
    (_, last), rows = lax.scan(step, first, None, length=count)
    return one_or_all((*last, *rows))


def _infer(*specs: Any, graph: Graph, count: int, takes: tuple[Take, ...], gives: tuple[int, ...]) -> Any:
    outputs = graph.output_specs
    rows = [make_spec((count, *outputs[output].shape), outputs[output].dtype) for output in gives]
    return one_or_all((*[specs[position] for position in carried(takes)], *rows))


def _bodies(graph: Graph, count: int, **_: Any) -> tuple[Body, ...]:
    return (Body(graph, count),)


def _onnx(o: Any, *xs: Any, graph: Graph, count: int, takes: tuple[Take, ...], gives: tuple[int, ...]) -> Any:
    def part(x: Any, part: Part, run: int) -> Any:
        axis, first, step, size = part
        start = first + step * run
        slice_ = o.Slice(x, o.ints([start]), o.ints([start + (size or 1)]), o.ints([axis]), o.ints([1]))
        return slice_ if size else o.Squeeze(slice_, o.ints([axis]))

    def stack(rows: list[Any]) -> Any:
        return o.Concat(*[o.Unsqueeze(row, o.ints([0])) for row in rows], axis=0)

    return _straight(xs, (count, takes, gives), lambda *now: o.inline(graph, now), part, stack)


ROLLED = register(
    Op(
        "rolled",
        _kernel,
        _lower,
        _infer,
        No(NOT_DIFFERENTIATED),
        flops=Bodies(_bodies),
        samples=No(MADE_BY_PASSES),
        traits=frozenset({"nested", "reads_never"}),
        onnx=_onnx,
    )
)
"""An operation that takes ``(*inputs)`` and returns the carried values after the last run, then for each output in
``gives`` its values of all runs, stacked."""
