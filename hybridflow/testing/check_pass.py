"""Check a pass: the graphs before and after it must be valid and compute the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridflow.core.dtypes import kind_of
from hybridflow.core.errors import ParityError, VerifyError
from hybridflow.ir.evaluate import RunNode, evaluate
from hybridflow.ir.evaluate import run_eagerly as run_eagerly
from hybridflow.ir.graph import Graph
from hybridflow.ir.printer import print_graph
from hybridflow.ir.verify import verify
from hybridflow.passes.lib.graph_pass import Pass, PassContext


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
