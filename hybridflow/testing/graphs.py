"""Checks of an op inside graphs: compiled against eager, through text and back, and through every pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from hybridflow.analysis.parity import assert_same
from hybridflow.core.errors import CheckError
from hybridflow.core.op import Op, Sample
from hybridflow.core.tensor import Tensor, asarray
from hybridflow.ir.parser import parse
from hybridflow.ir.printer import print_graph
from hybridflow.ir.verify import verify
from hybridflow.passes.pipeline import PIPELINE
from hybridflow.testing.calls import arrays_of, trace_sample
from hybridflow.testing.check_pass import check_pass
from hybridflow.testing.checks import op_check, samples_of


def _good(op: Op, seed: int) -> list[Sample]:
    good = [sample for sample in samples_of(op, seed) if isinstance(sample, Sample)]
    # XLA takes long to compile a generator unrolled many times, and more draws would test nothing new.
    return good[:2] if op.has("random") else good


def together(op: Op, samples: list[Sample]) -> tuple[Callable[..., Any], list[Tensor]]:
    """Return one function that applies the op to every sample, and the function's arguments."""
    flattened = [arrays_of(sample) for sample in samples]
    tensors = [asarray(array) for arrays, _, _, _ in flattened for array in arrays]
    public: Any = op.public

    def apply(*given: Tensor) -> list[Any]:
        values = iter(given)
        results: list[Any] = []
        for _, chosen, tree, leaves in flattened:
            filled = [next(values) if is_array else leaf for is_array, leaf in zip(chosen, leaves, strict=True)]
            args, kwargs = jax.tree_util.tree_unflatten(tree, filled)
            results.append(public(*args, **kwargs))
        return results

    apply.__name__ = apply.__qualname__ = op.name
    return apply, tensors


@op_check
def compiled_is_eager(op: Op, seed: int) -> None:
    """Every good sample gives the same value compiled and eagerly, and the same gradient if it has one."""
    samples = _good(op, seed)
    if samples:
        function, tensors = together(op, samples)
        assert_same(function, *tensors)
    smooth = [sample for sample in samples if sample.gradient]
    if smooth:
        function, tensors = together(op, smooth)
        assert_same(function, *tensors, gradients=True)


@op_check
def text_round_trips(op: Op, seed: int) -> None:
    """The graph of every good sample is valid and unchanged after printing and parsing."""
    for sample in _good(op, seed):
        graph = trace_sample(op, sample).graph
        text = print_graph(graph, elide=None)
        parsed = parse(text)
        verify(parsed)
        printed_again = print_graph(parsed, elide=None)
        if printed_again != text:
            raise CheckError(f"{op.name}: its graph changes between printing and parsing\n{text}\n{printed_again}")


@op_check
def passes_keep_the_value(op: Op, seed: int) -> None:
    """No pass changes any bit of the outputs of a good sample's graph."""
    for sample in _good(op, seed):
        traced = trace_sample(op, sample)
        for one in PIPELINE.passes():
            check_pass(one, traced.graph, traced.arrays, differentiable=False)
