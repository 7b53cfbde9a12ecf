"""Functions that call an operation's gradient rule on NumPy arrays, chosen once per operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hybridflow.autodiff.namespaces import HOST
from hybridflow.autodiff.walk import Wanted
from hybridflow.core.node import Node
from hybridflow.core.op import Each, Op
from hybridflow.core.spec import TensorSpec, make_spec

Pullback = Callable[[Node, Any, Wanted], Sequence[Any]]


def pullback_of(op: Op) -> Pullback:
    """Return the function that computes a node's gradients from its cotangent, for the wanted inputs."""
    rule: Any = op.vjp
    op.spec_arguments(0)  # sets `op.looked_at`
    if isinstance(rule, Each) and rule.local is not None and op.host_rule is None:
        return _of_operands(rule, rule.local)
    if isinstance(rule, Each) and op.host_rule is None:
        return _of_each(rule)
    if op.saves.hidden or op.host_rule is None or op.looked_at != ():
        return _of_rule(rule, op.host_rule)
    return _of_saved(rule, op.host_rule)


def _of_operands(rule: Each, local: Sequence[Callable[..., Any]]) -> Pullback:
    """Use the `local` rule for an operand of the result's shape: it was not broadcast, so nothing must be summed."""
    left, right = local

    def pullback(node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        y, a, b = node.saved  # pyright: ignore[reportGeneralTypeIssues]
        shape = g.shape
        first = second = None
        if wanted[0]:
            edge = node.inputs[0]
            spec = edge[0].outputs[edge[1]]  # pyright: ignore[reportOptionalSubscript]
            if (spec[0] if type(spec) is tuple else spec.shape) == shape:
                first = left(HOST, g, y, a, b)
            else:
                first = rule.rules[0](HOST, g, *arguments(node))
        if wanted[1]:
            edge = node.inputs[1]
            spec = edge[0].outputs[edge[1]]  # pyright: ignore[reportOptionalSubscript]
            if (spec[0] if type(spec) is tuple else spec.shape) == shape:
                second = right(HOST, g, y, a, b)
            else:
                second = rule.rules[1](HOST, g, *arguments(node))
        return first, second

    return pullback


def _of_each(rule: Each) -> Pullback:
    rules = rule.rules

    def pullback(node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        args, attrs = arguments(node), rule_attrs(node)
        return [one(HOST, g, *args, **attrs) if want else None for one, want in zip(rules, wanted, strict=True)]

    return pullback


def _of_rule(rule: Any, host: Callable[..., Any] | None) -> Pullback:
    def pullback(node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        del wanted
        args, attrs = arguments(node), rule_attrs(node)
        gradients = None if host is None else host(g, *args, **attrs)
        return rule(HOST, g, *args, **attrs) if gradients is None else gradients

    return pullback


def _of_saved(rule: Any, host: Callable[..., Any]) -> Pullback:
    """Call a rule that uses only saved values."""

    def pullback(node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        del wanted
        args: Any = node.saved
        attrs = node.attrs
        # a call without * is faster
        gradients = host(g, *args, **attrs) if attrs or len(args) != 2 else host(g, args[0], args[1])
        return rule(HOST, g, *args, **attrs) if gradients is None else gradients

    return pullback


def input_spec(node: Node, index: int) -> TensorSpec:
    """Return the spec of a node's input."""
    edge = node.inputs[index]
    if edge is not None:
        return edge[0].spec(edge[1])
    assert node.input_specs is not None
    spec = node.input_specs[index]
    assert spec is not None
    return make_spec(spec[0], spec[1])


def arguments(node: Node) -> Sequence[Any]:
    """Return ``(y, *xs)``: the saved values, and specs of the other values that the rule uses."""
    saved = node.saved
    assert saved is not None
    args: list[Any] | None = None
    for index in node.op.spec_arguments(len(saved)):
        value = saved[index]
        if value is None:
            filled: Any = input_spec(node, index - 1) if index else _output_specs(node)
        elif index == 0 and type(value) is tuple and None in value:
            filled = tuple([node.spec(i) if one is None else one for i, one in enumerate(value)])
        else:
            continue
        if args is None:
            args = list(saved)
        args[index] = filled
    return saved if args is None else args


def _output_specs(node: Node) -> Any:
    return node.spec() if len(node.outputs) == 1 else node.specs


def rule_attrs(node: Node) -> dict[str, Any]:
    """Return the attributes for a gradient rule, without ``residuals``."""
    if "residuals" not in node.attrs:
        return node.attrs
    return {name: value for name, value in node.attrs.items() if name != "residuals"}
