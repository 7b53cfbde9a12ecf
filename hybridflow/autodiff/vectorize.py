"""The op ``vmap``: a graph run on every slice along the leading axis of some of its inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from jax import lax

from hybridflow.autodiff.dependence import of_graph
from hybridflow.autodiff.slice_sums import summed_lowering, total
from hybridflow.autodiff.transform import Mask, differentiate
from hybridflow.core.attrs import attr_key
from hybridflow.core.context import CONTEXT, context_of
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import TraceError
from hybridflow.core.node import Edge, Node, format_where, user_place
from hybridflow.core.op import Joint, No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import GraphBuilder, Traced
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Graph, input_node
from hybridflow.ir.variables import VariableState

T = TypeVar("T")


def vmap_graph(*xs: Any, graph: Graph, mapped: Mask, summed: Mask, size: Any) -> Any:
    """Run a graph on every slice of some of its inputs.

    Args:
        *xs: one tensor per input of the graph; mapped ones have one more leading axis.
        graph: the graph.
        mapped: per input, whether it is sliced along its leading axis.
        summed: per output, whether the slices' results are added up instead of stacked.
        size: the size of the leading axis.

    Returns:
        The output or a tuple of them, each stacked along a new leading axis or added up.
    """
    return bind(VMAP, xs, {"graph": graph, "mapped": mapped, "summed": summed, "size": size})


def _lower(*xs: Any, graph: Graph, mapped: Mask, summed: Mask, size: Any) -> Any:
    if any("effect" in node.op.traits for node in graph.walk()):
        outputs = _one_by_one(lower_graph(graph), xs, mapped)
        results = tuple([total(y) if add else y for y, add in zip(outputs, summed, strict=True)])
    else:
        results = summed_lowering(graph, mapped, summed, size)(*xs)
    return results[0] if len(results) == 1 else results


def _one_by_one(run: Callable[..., Any], xs: Sequence[Any], mapped: Mask) -> Any:
    """Run the slices one after the other, so that printing and callbacks happen in order."""

    def one(slices: Sequence[Any]) -> Any:
        given = iter(slices)
        return run(*[next(given) if is_sliced else x for x, is_sliced in zip(xs, mapped, strict=True)])

    return lax.map(one, [x for x, is_sliced in zip(xs, mapped, strict=True) if is_sliced])


def _infer(*specs: TensorSpec, graph: Graph, mapped: Mask, summed: Mask, size: Any) -> Any:
    del specs, mapped
    stacked = tuple([
        spec if add else make_spec((size, *spec.shape), spec.dtype)
        for spec, add in zip(graph.output_specs, summed, strict=True)
    ])
    return stacked[0] if len(stacked) == 1 else stacked


def _vjp(
    F: Any, g: Any, y: Any, *xs: Any, graph: Graph, mapped: Mask, summed: Mask, size: Any, wanted: Mask
) -> list[Any]:
    """Map the graph's gradient; an input that every slice reads in full gets the sum of the slices' gradients."""
    del y
    gs = list(g) if isinstance(g, tuple) else [g]
    given = tuple([one is not None for one in gs])
    gradient = differentiate(graph, given, wanted)
    if not any(gradient.present):
        return [None] * len(xs)
    gradients = F.vmap(
        *xs,
        *[one for one in gs if one is not None],
        graph=gradient.graph,
        mapped=(*mapped, *[not add for add, has in zip(summed, given, strict=True) if has]),
        summed=tuple([not one for one, has in zip(mapped, gradient.present, strict=True) if has]),
        size=size,
    )
    several = iter(gradients if isinstance(gradients, tuple | list) else (gradients,))
    return [next(several) if has else None for has in gradient.present]


def _bodies(graph: Graph, size: Any, **_: Any) -> tuple[Body, ...]:
    return (Body(graph, size),)


def _onnx(o: Any, *xs: Any, graph: Graph, mapped: Mask, summed: Mask, size: Any) -> Any:
    """Write the op as a Scan without state; its body reads inputs that are not mapped from the outer scope."""
    del size
    if not any(mapped):
        o.no("ONNX maps no graph over nothing")
    chosen = [(x, spec) for x, spec, one in zip(xs, graph.input_specs, mapped, strict=True) if one]

    def step(*rows: Any) -> Any:
        given = iter(rows)
        return o.inline(graph, [next(given) if one else x for x, one in zip(xs, mapped, strict=True)])

    body = o.body(graph.name, [(f"row_{number}", spec) for number, (_, spec) in enumerate(chosen)], step)
    dtypes = [spec.dtype for spec in graph.output_specs]
    rows = [x for x, _ in chosen]
    results = o.emit("Scan", *rows, outputs=len(dtypes), dtypes=dtypes, num_scan_inputs=len(rows), body=body)
    several = results if isinstance(results, tuple) else (results,)
    return [o.ReduceSum(y, o.ints([0]), keepdims=0) if add else y for y, add in zip(several, summed, strict=True)]


VMAP = register(
    Op(
        "vmap",
        No("jax maps the lowered graph"),
        _lower,
        _infer,
        Joint(_vjp),
        saves=Saves(x="all", depends=lambda *, graph, **_: of_graph(graph)),  # pyright: ignore
        flops=Bodies(_bodies),
        samples=No("made by hf.vmap and jacobians; tested with them"),
        traits=frozenset({"nested", "inline"}),
        public=vmap_graph,
        onnx=_onnx,
    )
)


def dependent(graph: Graph, mapped: Iterable[bool]) -> Mask:
    """Return which outputs of a graph depend on the inputs that are mapped."""
    known = {node for node, one in zip(graph.inputs, mapped, strict=True) if one}
    for node in graph.nodes:
        if any(edge is not None and edge[0] in known for edge in node.inputs):
            known.add(node)
    return tuple([node in known for node, _ in graph.outputs])


# -- equal graphs -------------------------------------------------------------------------------------------------


class Recent:
    """A bounded mapping that drops the least recently used entry; safe to share between threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """Return the value of a key, or None."""
        with self._lock:
            value = self._entries.pop(key, None)
            if value is not None:
                self._entries[key] = value
        return value

    def put(self, key: Any, value: Any) -> Any:
        """Store a value, unless another thread was faster, and return the stored one."""
        with self._lock:
            remembered = self._entries.setdefault(key, value)
            while len(self._entries) > self._size:
                del self._entries[next(iter(self._entries))]
        return remembered


_GRAPHS = Recent(256)


def canonical(graph: Graph) -> Graph:
    """Return the first graph that was equal to this one, so that its executables and gradients are reused."""
    key = graph_key(graph)
    return _GRAPHS.get(key) or _GRAPHS.put(key, graph)


def graph_key(graph: Graph) -> Any:
    """Return a key that two graphs share only if they compute the same, node by node."""
    numbers = {node: index for index, node in enumerate((*graph.inputs, *graph.nodes))}

    def edges(several: Sequence[Edge | None]) -> Any:
        return tuple([None if edge is None else (numbers[edge[0]], edge[1]) for edge in several])

    nodes = tuple([(node.op, attributes_key(node.attrs), edges(node.inputs)) for node in graph.nodes])
    specs = tuple([(str(spec.shape), spec.dtype.num) for spec in graph.input_specs])
    return specs, nodes, edges(graph.outputs)


def attributes_key(attrs: dict[str, Any]) -> Any:
    """Return a key for attributes; graphs among them are compared by what they compute."""
    return tuple([(name, _value_key(attrs[name])) for name in sorted(attrs)])


def _value_key(value: Any) -> Any:
    if isinstance(value, Graph):
        return graph_key(value)
    if type(value) is tuple:
        return tuple([_value_key(item) for item in value])  # pyright: ignore[reportUnknownVariableType]
    return attr_key(value)


def run_mapped(graph: Graph, tensors: Sequence[Tensor], mapped: Mask, size: Any) -> tuple[Tensor, ...]:
    """Run a graph on slices and return its outputs, each stacked along a leading axis."""
    results = vmap_graph(*tensors, graph=graph, mapped=mapped, summed=(False,) * len(graph.outputs), size=size)
    return results if isinstance(results, tuple) else (results,)


# -- tracing a graph for slices -----------------------------------------------------------------------------------


class InnerBuilder(GraphBuilder):
    """A tracer of a graph that runs at once, eagerly or in the outer trace; it reads Variables in the outer context."""

    what = "a vectorised gradient"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._held: dict[Node, VariableState] = {}

    def _state(self, variable: Variable) -> VariableState:
        state = self._held.get(variable._leaf)
        if state is None:
            state = self._held[variable._leaf] = VariableState(variable, self.held_value(variable))
        return state

    def held_value(self, variable: Variable) -> Edge:
        """Return the captured value of a Variable in the outer context."""
        return self.edge_of(self.around(variable.read))

    def assign_variable(self, variable: Variable, value: Tensor) -> None:
        """Raise an error: every slice would assign its own value.

        Raises:
            TraceError: always.
        """
        del value
        raise TraceError(
            f"assign: Variable {variable.name!r} is assigned under {self.what}, by every slice with its own value",
            got=f"{variable.spec} at {format_where(user_place(2))}",
            hint="Return the value, and assign what you make of all slices' values outside."
        )

    def _flags(self) -> list[Edge]:
        return [self.edge_of(check.ok) for check in self.checks]

    def capture_as(self, key: Any, tensor: Tensor, spec: TensorSpec) -> Edge:
        """Capture a tensor that the trace sees with another spec, and return the edge of that input."""
        node = input_node(spec, f"captured_{len(self.captures)}", self.scope)
        self.captures[key] = (tensor, node)
        return node, 0

    def around(self, function: Callable[[], T]) -> T:
        """Call a function in the outer context."""
        token = CONTEXT.set(None if self.context.plain() else self.context)
        try:
            return function()
        finally:
            CONTEXT.reset(token)


def trace_inner(
    builder: InnerBuilder,
    function: Callable[..., Sequence[Any]],
    specs: Sequence[TensorSpec],
    names: Sequence[str] = (),
) -> Traced:
    """Trace a function of tensors; the graph's outputs are the function's results, then those of its checks."""
    arguments = [builder.argument(spec, names[i] if names else f"x{i}") for i, spec in enumerate(specs)]
    try:
        with context_of(builder, (), builder.context.device, builder.context.grad, builder.context.autocast):
            graph = builder.finish([as_tensor(output) for output in function(*arguments)])
    finally:
        builder.scope.alive = False
    return Traced(graph, tuple([tensor for tensor, _ in builder.captures.values()]), tuple(builder.checks))
