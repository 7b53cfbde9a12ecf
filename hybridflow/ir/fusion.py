"""Operations that passes insert into a final graph to steer XLA: fusion breaks and outlined graphs."""

from __future__ import annotations

from typing import Any

from hybridflow.backend.fusion import after, fusion_break, never, outlined
from hybridflow.core.op import No, Op, register
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.evaluate import NAMER, evaluate, lower_graph, run_eagerly, sizes_around
from hybridflow.ir.graph import Graph, require_inputs

NOT_DIFFERENTIATED = "put into graphs that nobody differentiates any more"
MADE_BY_PASSES = "made by passes; tested with them"


def _same(x: Any) -> Any:
    return x


BREAK = register(
    Op(
        "fusion_break",
        _same,
        fusion_break,
        _same,
        No(NOT_DIFFERENTIATED),
        samples=No(MADE_BY_PASSES),
        traits=frozenset({"identity", "layout", "reads_never"}),
        ulp=0,
        onnx=lambda o, x: x,  # pyright: ignore[reportUnknownLambdaType]
    )
)
"""The identity, as a fusion break: XLA computes its input once, however many fusions read it."""


def _first(x: Any, then: Any) -> Any:
    del then
    return x


TIED = register(
    Op(
        "tied",
        _first,
        after,
        _first,
        No(NOT_DIFFERENTIATED),
        samples=No(MADE_BY_PASSES),
        traits=frozenset({"layout", "reads_never"}),
        ulp=0,
        onnx=lambda o, x, then: x,  # pyright: ignore[reportUnknownLambdaType]
    )
)
"""An operation that takes ``(x, then)`` and returns x, which XLA can only use once `then` is computed. So XLA cannot
merge operations on it with earlier ones on x."""


def one_or_all(outputs: tuple[Any, ...]) -> Any:
    """Return outputs as an operation does: a single one without a tuple."""
    return outputs[0] if len(outputs) == 1 else outputs


def _outlined_kernel(*xs: Any, graph: Graph) -> Any:
    return one_or_all(evaluate(graph, xs, run_eagerly))


def _outlined_lower(*xs: Any, graph: Graph) -> Any:
    sizes = sizes_around(graph)
    if never() is None:  # not XLA:CPU: other backends inline it anyway, and this can be differentiated
        return one_or_all(lower_graph(graph, sizes)(*xs))
    key = ("outlined", NAMER.get(), *(() if sizes is None else sizes.items()))
    lowered = graph.executables.get(key)
    if lowered is None:
        lowered = graph.executables[key] = outlined(lower_graph(graph, sizes))
    return one_or_all(lowered(*xs))


def _outlined_infer(*specs: Any, graph: Graph) -> Any:
    require_inputs("outlined", graph, specs)
    return one_or_all(graph.output_specs)


def _outlined_bodies(graph: Graph) -> tuple[Body, ...]:
    return (Body(graph),)


OUTLINED = register(
    Op(
        "outlined",
        _outlined_kernel,
        _outlined_lower,
        _outlined_infer,
        No(NOT_DIFFERENTIATED),
        flops=Bodies(_outlined_bodies),
        samples=No(MADE_BY_PASSES),
        traits=frozenset({"nested", "reads_never"}),
        onnx=lambda o, *xs, graph: o.inline(graph, xs),  # pyright: ignore[reportUnknownLambdaType]
    )
)
"""An operation that runs a graph which XLA compiles once, calls at every use, and does not fuse with other code."""


def reads_never(graph: Graph) -> bool:
    """Whether lowering a graph needs the hidden input that is always False."""
    return any("reads_never" in node.op.traits for node in graph.walk())
