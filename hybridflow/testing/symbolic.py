"""Check traces with open sizes: their values and gradients for other sizes than they were traced with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from hybridflow.autodiff.tape import GradientTape
from hybridflow.autodiff.transform import differentiate
from hybridflow.core.context import context_of
from hybridflow.core.dispatch import run_raw
from hybridflow.core.dtypes import as_dtype, is_differentiable, kind_of
from hybridflow.core.errors import CheckError, HybridflowError
from hybridflow.core.node import Node
from hybridflow.core.op import No, Op, Sample, Stops
from hybridflow.core.spec import make_spec, spec_of
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph
from hybridflow.testing.calls import Array, arrays_of
from hybridflow.testing.checks import op_check, samples_of

_GROWTH = 2
"""How much larger the open sizes of the second call are."""
_CASES = 3
"""The number of cases tried per op; each computes gradients at two sizes."""


class Case(NamedTuple):
    """A sample with one of its sizes open.

    Attributes:
        sample: the sample.
        size: the open size; every axis of that size is open.
    """

    sample: Sample
    size: int

    def arrays(self, size: int) -> list[Array]:
        """Return the sample's arrays, with their elements repeated to another size."""
        arrays = arrays_of(self.sample)[0]
        for i, array in enumerate(arrays):
            for axis, length in enumerate(array.shape):
                if length == self.size:
                    arrays[i] = np.take(arrays[i], np.arange(size) % length, axis=axis)
        return arrays

    def call(self, op: Op, arrays: Sequence[Any]) -> list[Tensor]:
        """Call the public function with other arrays."""
        _, chosen, tree, leaves = arrays_of(self.sample)
        given = iter(arrays)
        args, kwargs = jax.tree_util.tree_unflatten(
            tree, [next(given) if is_array else leaf for is_array, leaf in zip(chosen, leaves, strict=True)]
        )
        result = cast(Any, op.public)(*args, **kwargs)
        return [as_tensor(y) for y in jax.tree_util.tree_leaves(result, is_leaf=lambda y: isinstance(y, Tensor))]

    def trace(self, op: Op) -> tuple[Graph, int]:
        """Return the graph of the call with the size open, and the number of outputs that the function returns."""
        builder = GraphBuilder(op.name)
        symbol = builder.dims.symbol("n", self.size)
        arguments: list[Tensor] = []
        for number, array in enumerate(arrays_of(self.sample)[0]):
            shape = tuple([symbol if length == self.size else length for length in array.shape])
            arguments.append(builder.argument(make_spec(shape, as_dtype(array.dtype)), f"x{number}"))
        try:
            with context_of(builder):
                outputs = self.call(op, arguments)
                return builder.finish(outputs), len(outputs)
        finally:
            builder.scope.alive = False


def cases(op: Op, seed: int) -> Iterator[Case]:
    """Yield a few cases of an op, one per sample, each with the sample's most frequent size open."""
    if op.has("random"):
        return
    count = 0
    for sample in samples_of(op, seed):
        if isinstance(sample, Sample) and count < _CASES:
            sizes = [size for array in arrays_of(sample)[0] for size in array.shape if size >= 2]
            if sizes:
                count += 1
                yield Case(sample, max(sorted(set(sizes)), key=sizes.count))


def run_node(node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
    """Run a node as eager code does."""
    return run_raw(node.op, [np.asarray(value) for value in values], attrs)


@op_check
def open_sizes_are_any_size(op: Op, seed: int) -> None:
    """A trace with an open size and its gradients compute what eager code computes, also for another size."""
    for case in cases(op, seed):
        graph, count = case.trace(op)
        for size in (case.size + _GROWTH, case.size):
            _check_case(op, case, graph, count, size)


def _check_case(op: Op, case: Case, graph: Graph, count: int, size: int) -> None:
    arrays = case.arrays(size)
    if not graph.dims.holds({"n": size}):
        return  # a guard fails, so such a call would be traced again
    try:
        expected = [np.asarray(y) for y in case.call(op, [asarray(x) for x in arrays])]
    except (HybridflowError, ValueError):
        return  # other arguments of the sample fix the size
    results = evaluate(graph, arrays, run_node)[:count]
    _compare(op, case, f"for n={size}", results, expected)
    rule = op.vjp
    all_real = all(kind_of(as_dtype(x.dtype)) != "complex" for x in (*arrays, *expected))
    if not all_real or not case.sample.gradient or (isinstance(rule, No) and not isinstance(rule, Stops)):
        return  # no gradient to compare; of complex ones, a tape gives the conjugate
    given = tuple([is_differentiable(spec.dtype) for spec in graph.output_specs[:count]])
    given += (False,) * (len(graph.outputs) - count)
    differentiable = tuple([is_differentiable(spec.dtype) for spec in graph.input_specs])
    gradient = differentiate(graph, given, differentiable)
    if not graph.dims.holds({"n": size}):
        return
    tensors = [asarray(x) for x in arrays]
    with GradientTape() as tape:
        tape.watch([x for x, want in zip(tensors, differentiable, strict=True) if want])
        outputs = case.call(op, tensors)
    targets = [y for y, has in zip(outputs, given, strict=False) if has]
    cotangents = [np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype) for y in targets]
    sources = [x for x, present in zip(tensors, gradient.present, strict=True) if present]
    if not sources:
        return
    eager = tape.gradient(targets, sources, [asarray(g) for g in cotangents], unconnected_gradients="zero")
    traced = evaluate(gradient.graph, [*arrays, *cotangents], run_node)[: len(eager)]
    _compare(op, case, f"in the gradients for n={size}", traced, [np.asarray(g) for g in eager])


def _compare(op: Op, case: Case, where: str, outputs: Sequence[Any], expected: Sequence[Array]) -> None:
    for index, (a, b) in enumerate(zip(map(np.asarray, outputs), expected, strict=True)):
        equal = a.shape == b.shape and a.dtype == b.dtype
        if equal and kind_of(as_dtype(a.dtype)) in ("float", "complex"):
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            tolerance = 1e-4 if a.dtype.itemsize >= 4 else 0.1
            equal = np.allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance, equal_nan=True)
        elif equal:
            equal = np.array_equal(a, b)
        if not equal:
            raise CheckError(
                f"{op.name}: a trace with an open size (n={case.size}) gives another value {where}, number {index}: "
                f"{spec_of(a)} {a} against {spec_of(b)} {b}\n  got: {[spec_of(x) for x in case.arrays(case.size)]}"
            )
