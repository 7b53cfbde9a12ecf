"""`@hf.custom_gradient`: functions with their own gradient."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from hybridflow.autodiff.backprop import BOUND, backprop, conjugates
from hybridflow.autodiff.functional import fresh
from hybridflow.autodiff.gradients_on_demand import recorded_edge
from hybridflow.autodiff.graph_ops import call
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.autodiff.walk import EVER, reachable
from hybridflow.core import structures
from hybridflow.core.attrs import attr_key
from hybridflow.core.context import Context, current
from hybridflow.core.dispatch import bind, record
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError, TraceError
from hybridflow.core.functions import as_traced, require_function
from hybridflow.core.node import Edge, Node, next_sequence
from hybridflow.core.notes import requires
from hybridflow.core.op import No, Op, Saves, register
from hybridflow.core.sources import CONSTANT
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import READ, GraphBuilder, trace_body
from hybridflow.ir.graph import Graph
from hybridflow.nested.bodies import several

P = ParamSpec("P")
R = TypeVar("R")

Rule = Callable[[Sequence[Any]], list[Any]]


def custom_gradient(function: Callable[P, tuple[R, Callable[..., Any]]]) -> Callable[P, R]:
    """Give a function its own gradient.

    Args:
        function: a function that returns ``(result, grad_fn)``. ``grad_fn(*output_gradients)`` takes one gradient per
            tensor of the result and returns one per tensor argument, in signature order (None for no gradient).
            Variables and watched tensors that the body reads besides its arguments get their ordinary gradients; what
            is an argument has the gradient of `grad_fn` alone.
            Read in the body what `grad_fn` needs besides: it runs later, but compiled it is traced with the call. It
            may call the function itself, whose rule is then traced when a gradient of higher order needs it.

    Returns:
        A function with the same arguments that returns ``result``.

    Raises:
        ArgumentError: if `grad_fn` returns another number of gradients than there are tensor arguments.

    Example:
        >>> import hybridflow as hf
        >>> @hf.custom_gradient
        ... def clipped(x):
        ...     return x * x, lambda g: hf.clip(g * 2 * x, -1.0, 1.0)
        >>> hf.grad(clipped)(3.0)
        Tensor(1., dtype=float32)
    """
    require_function("custom_gradient", function)
    order = _parameter_order(function)
    # A trace runs a converted copy of the function.
    who = _Who(
        getattr(function, "__qualname__", type(function).__name__), getattr(function, "__code__", function),
        getattr(function, "__closure__", None) or (),
    )

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context = current()
        names = sorted(kwargs, key=lambda name: order.get(name, len(order)))
        leaves, tree = structures.flatten((args, [kwargs[name] for name in names]))
        positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor | Variable | np.ndarray)]
        start = next_sequence()
        given = [as_tensor(leaves[i]) for i in positions]
        arguments = list(map(fresh, given))
        for position, argument in zip(positions, arguments, strict=True):
            leaves[position] = argument
        fresh_args, fresh_kwargs = structures.unflatten(tree, leaves)
        answer = as_traced(function)(*fresh_args, **dict(zip(names, fresh_kwargs, strict=True)))
        if not isinstance(answer, tuple) or len(answer) != 2 or not callable(answer[1]):
            raise ArgumentTypeError(f"custom_gradient: {who.name} must return (result, grad_fn)",
                                    got=f"a {type(answer).__name__}",
                                    hint="Write return y, grad_fn; grad_fn(g) returns the gradient of each argument.")
        result, grad_fn = answer
        outputs, result_tree = structures.flatten(result)
        if context.tracer is None and not context.tapes and not any(map(_lasting, [*arguments, *outputs])):
            return result
        of_rule = {tensor._edge for tensor in (*given, *arguments) if tensor._edge is not None}
        again = _Again(who, function, tree, tuple(positions), leaves, names)
        body = _Body(who.name, start, arguments, of_rule, [as_tensor(output) for output in outputs], grad_fn, again)
        replaced = _traced(body, context.tracer) if isinstance(context.tracer, GraphBuilder) else _eager(body, context)
        return structures.unflatten(result_tree, replaced)

    return wrapped


def _lasting(value: Any) -> bool:
    """Whether a value requires a gradient, so that it is recorded without a tape."""
    return isinstance(value, Tensor | Variable) and requires(value._edge)


def _parameter_order(function: Callable[..., Any]) -> dict[str, int]:
    """Return the position of every parameter, or nothing if the function has no signature."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {name: position for position, name in enumerate(parameters)}


class _Body(NamedTuple):
    """One run of the function: its arguments, the edges whose gradients the user's rule gives, its outputs, the rule.

    A Variable or tensor that is an argument has the rule's gradient alone, even if the body reads it by itself too.
    """

    name: str
    start: int
    arguments: list[Tensor]
    of_rule: set[Edge]
    outputs: list[Tensor]
    grad_fn: Callable[..., Any]
    again: _Again


class _Who(NamedTuple):
    """A user's function: its name, its code, and the cells of what it closes over."""

    name: str
    code: Any
    cells: tuple[Any, ...]


class _Again:
    """A call that can be made again with other tensors, to trace its rule when it is needed.

    Calls are equal if they are of one function with equal arguments but for the tensors.
    """

    def __init__(
        self, who: _Who, function: Callable[..., Any], tree: Any, positions: tuple[int, ...], leaves: list[Any],
        names: list[str],
    ) -> None:
        self.code = who.code
        self._who = who
        self._function = function
        self._tree = tree
        self._positions = positions
        self._names = names
        self._leaves = [None if index in positions else leaf for index, leaf in enumerate(leaves)]

    def gradients(self, arguments: Sequence[Tensor], gs: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients that the user's rule gives at these arguments."""
        leaves = list(self._leaves)
        for position, argument in zip(self._positions, arguments, strict=True):
            leaves[position] = argument
        args, kwargs = structures.unflatten(self._tree, leaves)
        _, grad_fn = as_traced(self._function)(*args, **dict(zip(self._names, kwargs, strict=True)))
        return _by_rule(self._who.name, arguments, grad_fn, gs)

    def _key(self) -> Any:
        who = self.code, tuple(map(id, self._who.cells))
        return who, self._tree, self._positions, tuple(self._names), tuple(map(attr_key, self._leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Again) and (self is other or self._key() == other._key())

    def __hash__(self) -> int:
        return hash((self.code, self._tree, self._positions))

    def __repr__(self) -> str:
        return f"<the rule of {self._who.name}>"


class Free(NamedTuple):
    """The values that the outputs depend on besides the arguments, and the nodes in between."""

    edges: list[Edge]
    nodes: list[Node]


def free_edges(start: int, outputs: Sequence[Edge | None], arguments: set[Edge], scope: Any) -> Free:
    """Find the Variables and closed-over values that the outputs depend on through nodes recorded since `start`."""
    known = [edge for edge in outputs if edge is not None]
    argument_nodes = {node for node, _ in arguments}

    def inside(node: Node) -> bool:
        return (
            node.sequence > start
            and node not in argument_nodes
            and node.op is not READ
            and "source" not in node.op.traits
            and node.scope is scope
        )

    nodes = [node for node in reachable(known, [(start, EVER[1])]) if inside(node)]
    members = set(nodes)
    free: dict[Edge, None] = {}
    for edge in (*known, *[edge for node in nodes for edge in node.inputs]):
        if edge is None or edge[0] in members or edge in arguments or edge[0].op is CONSTANT:
            continue
        if is_differentiable(edge[0].spec(edge[1]).dtype):
            free[edge] = None
    return Free(list(free), nodes)


def _rule(body: _Body, outputs: Sequence[Edge | None], free: Free) -> Rule:
    """Return the rule of one run: the user's gradients for the arguments, ordinary ones for the rest."""

    def rule(gs: Sequence[Any]) -> list[Any]:
        cotangents = [
            PUBLIC.full(tensor.shape, 0, dtype=tensor.dtype) if g is None else g
            for g, tensor in zip(gs, body.outputs, strict=True)
        ]
        mine = _by_rule(body.name, body.arguments, body.grad_fn, cotangents)
        starts = [
            (edge, g) for edge, g in zip(outputs, cotangents, strict=True) if edge is not None
            and is_differentiable(edge[0].spec(edge[1]).dtype)
        ]
        by_edge = backprop(starts, set(free.edges), free.nodes, BOUND) if free.edges else {}
        return [*mine, *[by_edge.get(edge) for edge in free.edges]]

    return rule


def _by_rule(
    name: str, arguments: Sequence[Tensor], grad_fn: Callable[..., Any], gs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients that a user's rule gives, with the shapes and dtypes of the arguments."""
    gradients = as_traced(grad_fn)(*conjugates(list(gs)))
    several = list(gradients) if isinstance(gradients, tuple | list) else [gradients]
    if len(several) != len(arguments):
        raise ArgumentError(
            f"custom_gradient: grad_fn of {name} returned {len(several)} gradients "
            f"for {len(arguments)} tensor arguments",
            hint="Return one per tensor argument, of a model one per parameter; None where there is no gradient."
        )
    result: list[Tensor | None] = []
    for index, (gradient, argument) in enumerate(zip(several, arguments, strict=True)):
        if gradient is None or not is_differentiable(argument.dtype):
            result.append(None)
            continue
        tensor = as_tensor(gradient)
        if tensor.shape != argument.shape:
            raise ShapeError(f"custom_gradient: gradient {index} of {name} has shape {tensor.shape}, "
                             f"its argument {argument.shape}", hint="A gradient has its argument's shape.")
        result.append(tensor if tensor.dtype == argument.dtype else PUBLIC.astype(tensor, argument.dtype))
    return conjugates(result)


# -- eager --------------------------------------------------------------------------------------------------------


def _not_run(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("an eager custom gradient is recorded, never run")


def _eager_vjp(F: Any, g: Any, y: Any, *xs: Any, rule: Rule) -> list[Any]:
    del F, y, xs
    return rule(g if isinstance(g, tuple) else (g,))


EAGER = register(
    Op(
        "custom_gradient",
        _not_run,
        _not_run,
        _not_run,
        _eager_vjp,
        samples=No("made by @hf.custom_gradient; tested with it"),
        traits=frozenset({"tensor_rule"}),
        onnx=No("it is on no graph"),
    )
)


def _eager(body: _Body, context: Context) -> list[Tensor]:
    edges = [recorded_edge(tensor._edge) for tensor in body.outputs]
    free = free_edges(body.start, edges, body.of_rule, None)
    connected: list[Edge | None] = [
        edge if edge is not None and edge[0].stamp >= context.start else None
        for edge in [tensor._edge for tensor in body.arguments]
    ]
    known = [edge for edge in free.edges if edge[0].stamp >= context.start]
    if not known and not any(connected):
        return [make_tensor(tensor._value) for tensor in body.outputs]
    free = Free(known, free.nodes)
    values = [tensor._value for tensor in body.arguments] + [None] * len(known)
    raw = [tensor._value for tensor in body.outputs]
    outputs = raw[0] if len(raw) == 1 else tuple(raw)
    made = record(EAGER, (*connected, *known), {"rule": _rule(body, edges, free)}, values, outputs, "host")
    return list(made) if isinstance(made, tuple) else [made]


# -- traced -------------------------------------------------------------------------------------------------------


def _last(*xs: Any, outputs: int, **_: Any) -> Any:
    outputs_ = xs[-outputs:]
    return outputs_[0] if outputs == 1 else outputs_


def _traced_vjp(
    F: Any, g: Any, y: Any, *xs: Any, backward: Graph | _Again, arguments: int, outputs: int, present: tuple[bool, ...]
) -> list[Any]:
    del F
    gs = [
        PUBLIC.full(spec.shape, 0, dtype=spec.dtype) if one is None else one
        for one, spec in zip(g if outputs > 1 else (g,), y if outputs > 1 else (y,), strict=True)
    ]
    if isinstance(backward, _Again):
        return [*backward.gradients(xs[:arguments], gs), *[None] * (len(xs) - arguments)]
    captured = xs[arguments : len(xs) - outputs]
    results = call(*gs, *captured, graph=backward) if any(present) else ()
    several = iter(results if isinstance(results, tuple) else (results,))
    gradients = [next(several) if has else None for has in present]
    return [*gradients, *[None] * (len(xs) - arguments)]


TRACED = register(
    Op(
        "custom_call",
        No("traced only"),
        _last,
        _last,
        _traced_vjp,
        saves=Saves(x="all"),
        samples=No("made by @hf.custom_gradient; tested with it"),
        traits=frozenset({"nested", "inline", "own_rule"}),
        onnx=lambda o, *xs, outputs, **_: xs[-outputs:],  # pyright: ignore[reportUnknownLambdaType]
    )
)


_RULES: ContextVar[tuple[Any, ...]] = ContextVar("hybridflow rules that are being traced", default=())
_MOST_AROUND = 16
"""The most rules of one function inside one another whose bodies read more than their arguments."""


def _traced(body: _Body, tracer: GraphBuilder) -> list[Tensor]:
    """Add the call with its rule; a rule that calls its own function gets that call's rule when it is needed."""
    edges = [tracer.edge_of(tensor) for tensor in body.outputs]
    free = free_edges(body.start, edges, body.of_rule, tracer.scope)
    rule = _rule(body, edges, free)
    around = _RULES.get()
    if body.again.code in around and not free.edges:
        attrs = {
            "backward": body.again,
            "arguments": len(body.arguments),
            "outputs": len(body.outputs),
            "present": (True,) * len(body.arguments),
        }
        return several(bind(TRACED, (*body.arguments, *body.outputs), attrs))
    if around.count(body.again.code) >= _MOST_AROUND:
        edge = free.edges[0]
        raise TraceError(
            f"custom_gradient: the rule of {body.name} calls {body.name} without end, and its body reads more "
            "than its arguments", got=f"{edge[0].attrs.get('name', edge[0].op.name)}: {edge[0].spec(edge[1])}",
            hint="Pass what it reads as an argument: its rule is then traced when it is needed."
        )
    present: list[bool] = []

    def backward(*gs: Tensor) -> list[Tensor]:
        gradients = rule(gs)
        present.extend(gradient is not None for gradient in gradients)
        return [gradient for gradient in gradients if gradient is not None]

    token = _RULES.set((*around, body.again.code))
    try:
        traced = trace_body(backward, [tensor.spec for tensor in body.outputs], f"{body.name}_gradient")
    finally:
        _RULES.reset(token)
    inputs = [*body.arguments, *[make_tensor(None, edge) for edge in free.edges]]
    attrs = {
        "backward": traced.graph,
        "arguments": len(inputs),
        "outputs": len(body.outputs),
        "present": tuple(present),
    }
    return several(bind(TRACED, (*inputs, *traced.captures, *body.outputs), attrs))
