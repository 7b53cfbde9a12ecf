"""Operations that passes insert into a final graph to steer XLA: fusion breaks and outlined graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow.backend.fusion import after, fusion_break, never, outlined, row_major_break, stored_on_cpus
from hybridflow.backend.jax_shim import eval_jaxpr
from hybridflow.core.dispatch import run_raw
from hybridflow.core.op import REGISTRY, No, Op, register
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.evaluate import NAMER, evaluate, lower_graph, run_eagerly, sizes_around
from hybridflow.ir.graph import Graph, require_inputs

NOT_DIFFERENTIATED = "put into graphs that nobody differentiates any more"
MADE_BY_PASSES = "made by passes; tested with them"


def _same(x: Any) -> Any:
    return x


def _identity(name: str, lower: Callable[[Any], Any], *traits: str) -> Op:
    """Register an operation that passes its input on, and only says something to XLA."""
    return register(
        Op(
            name,
            _same,
            lower,
            _same,
            No(NOT_DIFFERENTIATED),
            samples=No(MADE_BY_PASSES),
            traits=frozenset({"identity", "layout", *traits}),
            ulp=0,
            onnx=lambda o, x: x,  # pyright: ignore[reportUnknownLambdaType]
        )
    )


BREAK = _identity("fusion_break", fusion_break, "reads_never")
"""The identity, as a fusion break: XLA computes its input once, however many fusions read it."""
ROW_MAJOR_BREAK = _identity("row_major_break", row_major_break, "reads_never")
"""A fusion break whose value is stored in row-major order, also where a convolution left its channels last."""
STORED = _identity("stored", stored_on_cpus)
"""The identity of a value that XLA computes before a product on a mesh of CPUs, and not as a part of the product."""


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


def _selected_kernel(ok: Any, *xs: Any, rule: str, **attrs: Any) -> Any:
    made = run_raw(REGISTRY[rule], list(xs), attrs)
    return tuple([np.where(ok, new, old) for new, old in zip(made, (xs[0], *xs[2:-2]), strict=True)])


def _selected_lower(ok: Any, *xs: Any, rule: str, **attrs: Any) -> Any:
    """Select and store the new moments first, and compute the parameter from the selected ones."""
    traced = jax.make_jaxpr(lambda *given: REGISTRY[rule].lower(*given, **attrs))(*xs)
    parameter, *slots = traced.jaxpr.outvars
    moments = eval_jaxpr(_of(traced.jaxpr, (), slots), traced.consts, *xs)
    chosen = [jnp.where(ok, new, old) for new, old in zip(moments, xs[2:-2], strict=True)]
    if never() is not None:  # XLA:CPU would compute them again for the parameter; other backends compute all at once
        chosen = [fusion_break(one) for one in chosen]
    (new,) = eval_jaxpr(_of(traced.jaxpr, slots, [parameter]), traced.consts, *xs, *chosen)
    return (jnp.where(ok, new, xs[0]), *chosen)


def _of(jaxpr: Any, given: Sequence[Any], wanted: Sequence[Any]) -> Any:
    """Return a part of a jaxpr: what it computes for some of its variables, if others are given too."""
    needed, equations = {id(one) for one in wanted}, list[Any]()
    known = {id(one) for one in given}
    for equation in reversed(jaxpr.eqns):
        if any([id(one) in needed and id(one) not in known for one in equation.outvars]):
            equations.append(equation)
            needed.update(map(id, equation.invars))
    return jaxpr.replace(invars=[*jaxpr.invars, *given], eqns=equations[::-1], outvars=list(wanted))


SELECTED = register(
    Op(
        "selected_update",
        _selected_kernel,
        _selected_lower,
        lambda ok, *specs, rule, **attrs: REGISTRY[rule].infer(*specs, **attrs),
        No(NOT_DIFFERENTIATED),
        flops=lambda outputs, ok, *specs, rule, **attrs: REGISTRY[rule].flops(outputs, *specs, **attrs),
        samples=No(MADE_BY_PASSES),
        traits=frozenset({"inner", "reads_never"}),
        onnx=No("an optimizer's step is not exported"),
    )
)
"""An optimizer's step that keeps the old values if a scalar condition, its first input, does not hold."""


def reads_never(graph: Graph) -> bool:
    """Whether lowering a graph needs the hidden input that is always False."""
    return any("reads_never" in node.op.traits for node in graph.walk())
