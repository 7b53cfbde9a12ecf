"""The walk of `backprop` over NumPy arrays, in one function: what every eager training step runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from hybridflow.autodiff.namespaces import HOST
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Each, Stops

Wanted = tuple[bool, ...]
_ndarray = np.ndarray
_NONE: Wanted = ()
_ONLY: Wanted = (True,)
_LEFT: Wanted = (True, False)
_RIGHT: Wanted = (False, True)
_BOTH: Wanted = (True, True)


def wanted_inputs(nodes: Sequence[Node], sources: set[Node]) -> dict[Node, Wanted] | None:
    """Return, in order, the sources among nodes and the nodes that depend on them, each with which of its inputs do.

    None if a user's rule is among them: it may do anything, so it does not run where NumPy is quiet.
    """
    found = set(sources)
    order: dict[Node, Wanted] = {}
    for node in nodes:
        inputs = node.inputs
        count = len(inputs)
        if count == 1:
            edge = inputs[0]
            wanted = _ONLY if edge is not None and edge[0] in found else _NONE
        elif count == 2:
            a, b = inputs
            if a is not None and a[0] in found:
                wanted = _BOTH if b is not None and b[0] in found else _LEFT
            else:
                wanted = _RIGHT if b is not None and b[0] in found else _NONE
        else:
            wanted = tuple([edge is not None and edge[0] in found for edge in inputs])
            if True not in wanted:
                wanted = _NONE
        if wanted is not _NONE and not node.op.plain:
            if isinstance(node.op.vjp, Stops):
                wanted = _NONE
            elif "tensor_rule" in node.op.traits:
                return None
        if wanted is not _NONE:
            found.add(node)
            order[node] = wanted
        elif node in sources:
            order[node] = _NONE
    return order


class Total:
    """The sum of several contributions to one value so far, in an array that nobody else has.

    Each is added as it comes, while it is in the cache: fifty kept for later would be memory, and read from there.
    """

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def add(self, one: Any, add: Callable[[Any, Any], Any]) -> None:
        """Add one more."""
        total = self.array
        both = type(total) is _ndarray and type(one) is _ndarray and total.dtype is one.dtype
        if both and total.ndim and total.flags.writeable:  # what XLA made, such as low precision, is not
            np.add(total, one, out=total)
        else:
            self.array = add(total, one)


def walk_on_host(  # noqa: C901 (a call per step is what this saves)
    targets: Sequence[tuple[Edge, Any]],
    sources: set[Edge],
    order: dict[Node, Wanted],
    arguments: Callable[[Node], Sequence[Any]],
    general: Callable[[Node, Any, Wanted], Sequence[Any]],
    add: Callable[[Any, Any], Any],
) -> dict[Edge, Any]:
    """Walk back from targets to sources.

    Args:
        targets: edges with their cotangents.
        sources: the edges whose gradients are wanted.
        order: what `wanted_inputs` returned.
        arguments: completes what was saved by specs, for the rules that read them.
        general: runs the rule of a node that is not a plain one on the host.
        add: adds two contributions.

    Returns:
        The gradient of each source that a path reaches.
    """
    pending: dict[Any, Any] = {}
    result: dict[Edge, Any] = {}
    source_nodes = {node for node, _ in sources}

    def contribute(edge: Edge, gradient: Any) -> None:
        key = edge[0] if len(edge[0].outputs) == 1 else edge
        before = pending.get(key)
        if before is None:
            pending[key] = gradient
        elif type(before) is Total:
            before.add(gradient, add)
        else:
            pending[key] = Total(add(before, gradient))

    def take(key: Any) -> Any:
        found = pending.pop(key, None)
        return found.array if type(found) is Total else found

    for edge, cotangent in targets:
        if edge[0] in order or edge[0] in source_nodes:
            contribute(edge, cotangent)
    for node, wanted in reversed(order.items()):
        op = node.op
        if len(node.outputs) == 1:
            g = pending.pop(node, None)
            if g is None:
                continue
            if type(g) is Total:
                g = g.array
            if node in source_nodes:
                result[node, 0] = g
                if wanted is _NONE:
                    continue
        else:
            g = tuple([take((node, index)) for index in range(len(node.outputs))])
            for index, one in enumerate(g):
                if one is not None and (node, index) in sources:
                    result[node, index] = one
            if wanted is _NONE or all([one is None for one in g]):
                continue
        if not op.plain or node.backend != "host" or type(g) is not _ndarray:
            gradients: Any = general(node, g, wanted)
        elif (local := op.local) is not None:
            y, a, b = node.saved  # pyright: ignore[reportGeneralTypeIssues]
            shape = g.shape
            gradients = [None, None]
            for index, edge in enumerate(node.inputs):
                if wanted[index]:
                    spec = edge[0].outputs[edge[1]]  # pyright: ignore[reportOptionalSubscript]
                    if (spec[0] if type(spec) is tuple else spec.shape) == shape:
                        gradients[index] = local[index](HOST, g, y, a, b)
                    else:
                        rules = op.vjp.rules  # pyright: ignore
                        gradients[index] = rules[index](HOST, g, *arguments(node))
        else:
            args: Any = node.saved
            if op.looked_at != () and (not op.whole or None in node.inputs):
                args = arguments(node)
            rule: Any = op.host_rule
            attrs = node.attrs
            if rule is None:
                gradients = None
            elif attrs or len(args) != 2:
                gradients = rule(g, *args, **attrs)
            else:
                gradients = rule(g, args[0], args[1])
            if gradients is not None:
                pass
            elif type(rule := op.vjp) is Each:
                rules = rule.rules
                if len(rules) == 2 and not attrs:  # calls without * are cheaper
                    y, a, b = args
                    first = rules[0](HOST, g, y, a, b) if wanted[0] else None
                    gradients = first, rules[1](HOST, g, y, a, b) if wanted[1] else None
                else:
                    gradients = [
                        one(HOST, g, *args, **attrs) if want else None for one, want in zip(rules, wanted, strict=True)
                    ]
            elif attrs:
                gradients = rule(HOST, g, *args, **attrs)
            elif len(args) == 2:
                gradients = rule(HOST, g, args[0], args[1])
            else:
                gradients = rule(HOST, g, *args)
        for index, edge in enumerate(node.inputs):
            if wanted[index]:
                gradient = gradients[index]
                key = edge[0]  # pyright: ignore[reportOptionalSubscript]  (a wanted input has a producer)
                if type(gradient) is _ndarray and key not in pending and len(key.outputs) == 1:
                    pending[key] = gradient
                else:
                    if type(gradient) is FunctionType:
                        gradient = gradient()
                    if gradient is not None:
                        contribute(edge, gradient)  # pyright: ignore[reportArgumentType]
    for edge in sources:
        if edge not in result:
            left = take(edge[0] if len(edge[0].outputs) == 1 else edge)
            if left is not None:
                result[edge] = left
    return result
