"""Compiled functions run without XLA: their graphs, as they are after the passes, by the definition of each op.

Nested graphs are run here as what `cond`, `while` and `scan` mean, in Python loops over NumPy arrays; everything else
by the op's NumPy kernel. What is left out of the way of a compiled function is lowering and XLA alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any
from unittest import mock

import jax
import numpy as np

from hybridflow.backend.jax_shim import call_into, enable_x64
from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import as_arrays, run_raw
from hybridflow.core.node import Node
from hybridflow.core.op import No
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph
from hybridflow.nested import branches, scans
from hybridflow.tracing import recorded, trace
from hybridflow.xla.executable import Executable, concrete_specs

Array = np.ndarray[Any, Any]


def run_graph(graph: Graph, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return a graph's outputs, each of the dtype and shape that the graph says."""
    return evaluate(graph, values, run_node)


def run_node(node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
    """Run a node on arrays."""
    control = {"cond": cond, "while": while_, "scan": scan}.get(node.op.name)
    if control is not None:
        found = control(*values, **attrs)
    elif isinstance(node.op.kernel, No):
        found = run_raw(node.op, values, attrs)
    else:
        found = as_arrays(node.op.kernel(*values, **attrs))
    several = found if isinstance(found, tuple) else (found,)
    for value, spec in zip(several, node.outputs, strict=True):
        assert value.dtype == spec.dtype, (node, value.dtype, spec)
        open_size = any(isinstance(size, Dim) for size in spec.shape)
        assert open_size or value.shape == spec.shape, (node, value.shape, spec)
    return found if len(node.outputs) != 1 or not isinstance(found, tuple) else found[0]


def cond(pred: Array, *xs: Array, true: Graph, false: Graph, residuals: bool = False) -> tuple[Any, ...]:
    """Run the graph of the branch that is taken."""
    graphs = branches._graphs(true, false, residuals)
    return run_graph(graphs[not bool(pred)], xs)


def while_(
    *xs: Array, cond: Graph, body: Graph, carry: int, bound: int | None, residuals: bool = False
) -> tuple[Any, ...]:
    """Run the body while the condition holds; with a bound, the number of steps and their rows come too."""
    body = scans.split_body(body, carry).forward if residuals else body
    state, constants = xs[:carry], xs[carry:]
    rows: list[tuple[Any, ...]] = []
    while (bound is None or len(rows) < bound) and bool(run_graph(cond, [*state, *constants])[0]):
        made = run_graph(body, [*state, *constants])
        state = made[:carry]
        if bound is not None:
            rows.append(made[carry:])
    if bound is None:
        return state
    kept = kept_rows(body, carry, bound)
    for index, row in enumerate(rows):
        store(kept, index, row)
    return (np.asarray(np.int32(len(rows))), *state, *kept)


def scan(
    *xs: Array, body: Graph, carry: int, sequences: int, length: int, reverse: bool, counted: bool = False,
    residuals: bool = False,
) -> tuple[Any, ...]:
    """Run the body over rows."""
    body = scans.split_body(body, carry).forward if residuals else body
    count = int(xs[0]) if counted else length
    xs = xs[1:] if counted else xs
    state, over, constants = xs[:carry], xs[carry : carry + sequences], xs[carry + sequences :]
    kept = kept_rows(body, carry, length)
    for index in reversed(range(count)) if reverse else range(count):
        made = run_graph(body, [*state, *[np.asarray(one[index]) for one in over], *constants])
        state = made[:carry]
        store(kept, index, made[carry:])
    return (*state, *kept)


def kept_rows(body: Graph, carry: int, length: int) -> list[Array]:
    """Return room for the rows of a loop; those of steps that are not made stay zeros."""
    return [np.zeros((length, *spec.shape), spec.dtype) for spec in body.output_specs[carry:]]


def store(kept: list[Array], index: int, row: Sequence[Array]) -> None:
    """Store the rows of a step."""
    for whole, value in zip(kept, row, strict=True):
        whole[index] = value


def runner(graph: Graph, sizes: dict[str, int]) -> Any:
    """Return what a graph computes, as a function of arrays; `sizes` are those of its symbols."""

    def run(*values: Any) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            return evaluate(graph, [np.asarray(value) for value in values], run_node, sizes=sizes)

    return run


def _executable(graph: Graph, *, sizes: dict[str, int], **_: Any) -> Executable:
    run = runner(graph, sizes)
    given = [(spec.shape, spec.dtype) for spec in concrete_specs(graph.input_specs, sizes)]

    def call(*values: Any) -> list[Any]:
        values = tuple([np.float32(value) if type(value) is float else value for value in values])
        if [(value.shape, value.dtype) for value in values] != given:
            raise TypeError("compiled for other shapes")
        with enable_x64():
            return [jax.device_put(value) for value in run(*values)]

    rest: dict[str, Any] = {field.name: 0.0 for field in fields(Executable) if field.name.endswith("_ms")}
    how = "run by the definition of the ops"
    return Executable(call, call_into(call), None, call, (), None, None, store=how, **rest)


@contextmanager
def without_xla() -> Iterator[None]:
    """Run compiled functions that are called first in here, and their gradients, by the definition of the ops."""
    record = trace.record_node

    def on_host(op: Any, edges: Any, attrs: Any, values: Any, outputs: Any, _: str) -> Any:
        return record(op, edges, attrs, [np.asarray(value) for value in values], outputs, "host")

    with (
        mock.patch.object(trace, "compile_graph", _executable),
        mock.patch.object(trace, "record_node", on_host),
        mock.patch.object(recorded, "compile_graph", _executable),
        mock.patch.object(recorded, "lower_graph", runner),
        mock.patch.object(recorded, "jnp", np),
    ):
        yield
