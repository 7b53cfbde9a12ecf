"""Graphs as JAX functions with hybridflow's derivatives: kinks, stopped and custom gradients included.

JAX would differentiate the lowering of an operation, which ignores `hf.stop_gradient`, a user's `hf.custom_gradient`,
and the slope chosen at a kink. So every operation gets a `jax.custom_jvp` made from its own rule: the rule maps
cotangents to gradients linearly, and its transpose maps tangents to tangents, which JAX runs forward or transposes
back. JAX differentiates loops and branches itself; the operations inside them use their rules as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from hybridflow.autodiff.backprop import rule_of
from hybridflow.autodiff.transform import differentiate
from hybridflow.core.attrs import attrs_key
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Op, Stops
from hybridflow.core.spec import make_spec
from hybridflow.ir.evaluate import RUN_NODE, evaluate, run_lowering
from hybridflow.ir.graph import Graph, clone_node, input_node
from hybridflow.ops.xla_algebra import linear_lowerings


def evaluate_with_rules(graph: Graph, values: Sequence[Any]) -> tuple[Any, ...]:
    """Run a graph on JAX values, nested graphs included, so that JAX differentiates it by hybridflow's rules."""
    token = RUN_NODE.set(_run_with_rule)
    try:
        return evaluate(graph, values, _run_with_rule)
    finally:
        RUN_NODE.reset(token)


def _follows_jax(op: Op) -> bool:
    """Whether JAX's derivative of the lowering is right: for control flow, JAX's own functions and copies."""
    if op.has("own_rule") or isinstance(op.vjp, Stops):
        return False
    return op.has("nested") or op.has("foreign") or op.has("identity")


def _run_with_rule(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    op = node.op
    differentiable = any(is_differentiable(spec.dtype) for spec in node.specs)
    if not differentiable or _follows_jax(op) or not any(is_differentiable(x.dtype) for x in inputs):
        return run_lowering(node, inputs, attrs)

    def run(*xs: Any) -> Any:
        return run_lowering(node, list(xs), attrs)

    with_rule = jax.custom_jvp(run)

    def derivative(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        outputs = with_rule(*primals)
        several = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
        results = _tangents(node, attrs, primals, tangents, several)
        return outputs, results if isinstance(outputs, tuple | list) else results[0]

    with_rule.defjvp(derivative, symbolic_zeros=True)
    return with_rule(*inputs)


def _tangents(
    node: Node, attrs: dict[str, Any], primals: Sequence[Any], tangents: Sequence[Any], outputs: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the tangents of a node's outputs, from the transpose of its gradient rule."""
    given = tuple([is_differentiable(y.dtype) for y in outputs])
    wanted = tuple(
        [type(t) is not SymbolicZero and is_differentiable(x.dtype) for x, t in zip(primals, tangents, strict=True)]
    )
    result: list[Any] = [
        jnp.zeros(y.shape, y.dtype) if has else np.zeros(y.shape, jax.dtypes.float0)
        for y, has in zip(outputs, given, strict=True)
    ]
    if isinstance(node.op.vjp, Stops) or not any(wanted):
        return tuple(result)
    rule_of(node.op)
    gradient = differentiate(_alone(node, attrs, primals), given, wanted)
    pull, present = _linear(gradient.graph, primals)
    moved = [t for t, has in zip(tangents, gradient.present, strict=True) if has]
    moved = [t for t, depends in zip(moved, present, strict=False) if depends]  # the rest are checks of indices
    if moved:
        shapes = [jax.ShapeDtypeStruct(y.shape, y.dtype) for y, has in zip(outputs, given, strict=True) if has]
        cotangents = iter(jax.linear_transpose(pull, *shapes)(tuple(moved)))
        result = [next(cotangents) if has else zero for has, zero in zip(given, result, strict=True)]
    return tuple(result)


def _alone(node: Node, attrs: dict[str, Any], primals: Sequence[Any]) -> Graph:
    """Return a graph of this one node, cached by operation and shapes."""
    cache: dict[Any, Any] = node.op.jitted
    for value in attrs.values():
        if hasattr(value, "executables"):
            cache = value.executables
    specs = [make_spec(tuple(x.shape), np.dtype(x.dtype)) for x in primals]
    key = ("alone", node.op.name, attrs_key(attrs), tuple(map(str, specs)))
    graph = cache.get(key)
    if graph is None:
        inputs = tuple([input_node(spec, f"x{index}") for index, spec in enumerate(specs)])
        edges: tuple[Edge, ...] = tuple([(one, 0) for one in inputs])
        copy = clone_node(node, edges, attrs=attrs)
        outputs: tuple[Edge, ...] = tuple([(copy, index) for index in range(len(node.outputs))])
        graph = cache[key] = Graph(node.op.name, inputs, (copy,), outputs)
    return graph


def _linear(graph: Graph, primals: Sequence[Any]) -> tuple[Callable[..., tuple[Any, ...]], list[bool]]:
    """Return the part of a gradient graph that is linear in the cotangents, and which outputs depend on them.

    The other part is computed here, with rules again, so that higher-order derivatives are right.
    """
    count = len(primals)
    cotangents = graph.inputs[count:]
    dependent: set[Node] = set(cotangents)
    environment: dict[Edge, Any] = {(node, 0): x for node, x in zip(graph.inputs, primals, strict=False)}
    later: list[Node] = []
    token = RUN_NODE.set(_run_with_rule)
    try:
        for node in graph.nodes:
            if any(edge is not None and edge[0] in dependent for edge in node.inputs):
                dependent.add(node)
                later.append(node)
            else:
                _run(node, environment, _run_with_rule)
    finally:
        RUN_NODE.reset(token)
    present = [edge[0] in dependent for edge in graph.outputs]

    def pull(*gs: Any) -> tuple[Any, ...]:
        inner = {**environment, **{(node, 0): g for node, g in zip(cotangents, gs, strict=True)}}
        token = RUN_NODE.set(run_lowering)
        try:
            with linear_lowerings():
                for node in later:
                    _run(node, inner, run_lowering)
        finally:
            RUN_NODE.reset(token)
        return tuple([inner[edge] for edge, has in zip(graph.outputs, present, strict=True) if has])

    return pull, present


def _run(node: Node, environment: dict[Edge, Any], run: Callable[..., Any]) -> None:
    result = run(node, [environment[edge] for edge in node.inputs if edge is not None], node.attrs)
    if len(node.outputs) == 1:
        environment[node, 0] = result
        return
    for index, value in enumerate(result):
        environment[node, index] = value
