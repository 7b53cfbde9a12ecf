"""Checks of an op inside graphs: compiled against eager, through text and back, and through every pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hybridflow.analysis.parity import assert_same
from hybridflow.core.dtypes import kind_of
from hybridflow.core.errors import CheckError, ParityError, VerifyError
from hybridflow.core.op import Op, Sample
from hybridflow.core.tensor import Tensor, asarray
from hybridflow.ir.evaluate import RunNode, evaluate
from hybridflow.ir.evaluate import run_eagerly as run_eagerly
from hybridflow.ir.graph import Graph
from hybridflow.ir.parser import parse
from hybridflow.ir.printer import print_graph
from hybridflow.ir.verify import verify
from hybridflow.passes.lib.graph_pass import Pass, PassContext
from hybridflow.passes.pipeline import PIPELINE
from hybridflow.testing.calls import arrays_of, trace_sample
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


# -- check a pass: the graphs before and after it must be valid and compute the same bits -----------------------------


def check_pass(
    pass_: Pass, graph: Graph, values: Sequence[Any], *, differentiable: bool = True, run: RunNode = run_eagerly
) -> Graph:
    """Run a pass on a graph and raise unless the result is valid and equivalent.

    Both graphs are verified and evaluated node by node on the same inputs. Their outputs must agree in every bit,
    except that any NaN equals any other, and that sums may be rounded differently if the pass reorders them (choose
    inputs for which no sum overflows). The pass must not change the graph it is given, and must keep the inputs and the
    specs of the outputs.

    Args:
        pass_: the pass.
        graph: the graph.
        values: one array per input.
        differentiable: as for `run_passes`.
        run: the function that runs one node.

    Returns:
        The graph after the pass.

    Raises:
        VerifyError: a graph breaks a rule of the IR, or the pass changed the given graph, its inputs or output specs.
        ParityError: outputs differ; the text shows the first difference and both graphs.
    """
    text = print_graph(graph, elide=None)
    verify(graph)
    after = pass_(graph, PassContext(differentiable))
    verify(after)
    if print_graph(graph, elide=None) != text:
        raise VerifyError(f"{pass_.name}: changed the graph it was given", got=text)
    if after.inputs != graph.inputs:
        raise VerifyError(f"{pass_.name}: changed the inputs of {graph.name}", got=print_graph(after))
    if list(map(str, after.output_specs)) != list(map(str, graph.output_specs)):
        raise VerifyError(f"{pass_.name}: changed the outputs of {graph.name}", got=print_graph(after))
    before_values, after_values = evaluate(graph, values, run), evaluate(after, values, run)
    for position, (a, b) in enumerate(zip(before_values, after_values, strict=True)):
        if not (_same_up_to_rounding if pass_.reorders else same_bits)(a, b):
            what = f"{pass_.name}: output {position} of {graph.name} differs: {np.asarray(a)} before, {np.asarray(b)}"
            raise ParityError(f"{what} after\n{text}\n{print_graph(after, elide=None)}")
    return after


def _same_up_to_rounding(a: Any, b: Any) -> bool:
    """Return whether two arrays are the same but for the rounding of some sums."""
    a, b = np.asarray(a), np.asarray(b)
    if same_bits(a, b) or kind_of(a.dtype) != "float" or a.dtype != b.dtype or a.shape != b.shape:
        return same_bits(a, b)
    relative = 64 * float(np.finfo(a.dtype).eps)
    largest = np.max(np.abs(a), where=np.isfinite(a), initial=0)
    return np.allclose(a, b, rtol=relative, atol=relative * largest, equal_nan=True)


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two arrays have the same dtype, shape and bits; NaNs are equal whatever their payload."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.tobytes() == b.tobytes():
        return True
    kind = kind_of(a.dtype)
    if kind == "complex":
        return same_bits(a.real, b.real) and same_bits(a.imag, b.imag)
    if kind != "float":
        return False
    nan = np.isnan(a)
    zero = np.zeros((), a.dtype)
    if not np.array_equal(nan, np.isnan(b)):
        return False
    return np.where(nan, zero, a).tobytes() == np.where(nan, zero, b).tobytes()
