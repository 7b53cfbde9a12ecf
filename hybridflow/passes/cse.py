"""Computing equal things once."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from hybridflow.core.dims import Dim
from hybridflow.core.node import Node
from hybridflow.core.op import Op
from hybridflow.core.spec import TensorSpec
from hybridflow.ir.graph import Constant, Graph
from hybridflow.passes.registry import PassContext, graph_pass
from hybridflow.passes.rewrite import Replacement, has_effect, rewrite


@graph_pass(phase="simplify", after=("constant_fold",))
def cse(graph: Graph, context: PassContext) -> Graph:
    """Compute equal things once: the same op on the same inputs with the same attributes.

    The inputs of a commutative op may be in either order. An op with an effect is never merged; one that draws
    random numbers is, since it draws them from the key it is given.

    Before:
        graph f(%x: f32[2], %y: f32[2]) -> (f32[2], f32[2]) {
          %0 = add(%x, %y) : f32[2]
          %1 = tanh(%0) : f32[2]
          %2 = add(%y, %x) : f32[2]
          %3 = tanh(%2) : f32[2]
          return %1, %3
        }

    After:
        graph f(%x: f32[2], %y: f32[2]) -> (f32[2], f32[2]) {
          %0 = add(%x, %y) : f32[2]
          %1 = tanh(%0) : f32[2]
          return %1, %1
        }
    """
    seen: dict[Any, Node] = {}
    commutative: dict[Op, bool] = {}

    def visit(node: Node) -> Replacement | None:
        op = node.op
        inputs: Any = node.inputs
        swap = commutative.get(op)
        if swap is None:
            swap = commutative[op] = "commutative" in op.traits
        if swap and len(inputs) == 2:
            inputs = frozenset(inputs)
        key = (op, inputs, attrs_key(node.attrs)) if node.attrs else (op, inputs)
        first = seen.setdefault(key, node)
        if first is node:
            return None
        if has_effect(node):
            return None
        context.notes[op.name] += 1
        return Replacement(tuple([(first, index) for index in range(len(node.outputs))]))

    return rewrite(graph, visit)


def attrs_key(attrs: dict[str, Any]) -> Any:
    """Return a key that two sets of attributes share only if they are the same to every op."""
    return frozenset([(name, attr_key(value)) for name, value in attrs.items()])


_PLAIN = frozenset({bool, int, str, type(None), type(...)})


def attr_key(value: Any) -> Any:
    """Return a key of an attribute value: by type too, since Python takes 1, 1.0 and True, or 0.0 and -0.0, as equal.

    Symbolic sizes are compared as expressions. What has no value to compare, a graph or a function, is itself.
    """
    kind = type(value)
    if kind is tuple:
        return tuple([attr_key(item) for item in cast("tuple[Any, ...]", value)])
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return _float_key(value)
    if kind is Dim:
        return "size", str(value)
    if isinstance(value, Constant | np.dtype):
        return value
    if kind is complex:
        return complex, _float_key(value.real), _float_key(value.imag)
    if kind is TensorSpec:
        return "spec", str(value)
    return "object", id(value)


def _float_key(value: float) -> Any:
    if math.isnan(value):
        return "nan", math.copysign(1.0, value)
    return float, value.hex()
