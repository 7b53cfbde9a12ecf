"""Graphs for a bound: one graph that is right for every size up to a bound, with the real sizes as inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.autodiff.graph_ops import CALL
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.autodiff.vectorize import VMAP
from hybridflow.core.context import current
from hybridflow.core.dims import Dim, DimScope, Opaque, SizeFloat, evaluate, substitute
from hybridflow.core.node import Node, format_where
from hybridflow.core.op import REGISTRY
from hybridflow.core.padding import Axes, Call, NoRule, Open, Padded, Rule, Size, separate
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import asarray
from hybridflow.ir.builder import GraphBuilder, trace_body, trace_with_variables
from hybridflow.ir.graph import Graph, nested_graphs
from hybridflow.nested.bodies import Shared, bind_all, inputs_around, laid_out
from hybridflow.nested.branches import COND
from hybridflow.nested.checkpoint_graphs import CHECKPOINT
from hybridflow.nested.custom_gradient import TRACED
from hybridflow.nested.loops import WHILE
from hybridflow.nested.scans import SCAN, bind_scan
from hybridflow.ops.padding import canonical, pointwise

INT32 = make_spec((), np.dtype(np.int32))


Number = Dim | SizeFloat


class Names:
    """The names of sizes: sizes that a trace found to be equal get one name, so that axes can be compared."""

    def __init__(self, dims: DimScope) -> None:
        equals = dims.first_equals()
        self._dims = {**{name: Dim({(name,): 1}, dims) for name in dims.hints}, **equals} if equals else None

    def value(self, value: Any) -> Any:
        """Return an attribute's value with the names."""
        return value if self._dims is None else substitute(value, cast("Mapping[str, int]", self._dims))

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """Return a spec with the names."""
        return spec if self._dims is None else make_spec(self.value(spec.shape), spec.dtype)


class Bounded(NamedTuple):
    """A graph for a bound.

    Attributes:
        graph: the graph. Its inputs are those of the original, as large as the bounds; the real sizes; the numbers.
        symbols: the symbols whose real sizes are inputs.
        numbers: the numbers that are computed from real sizes outside of the graph, as in eager code, with dtypes.
        inputs: how each of the original's inputs is padded.
        outputs: how each output is padded.
    """

    graph: Graph
    symbols: tuple[str, ...]
    numbers: tuple[tuple[Number, Any], ...]
    inputs: tuple[Axes, ...]
    outputs: tuple[Axes, ...]


def bounded(
    graph: Graph, bounds: Mapping[str, int], axes: Mapping[int, Axes], engine: Callable[..., Engine] | None = None
) -> Bounded:
    """Return a graph that is right for all sizes up to some bounds.

    Args:
        graph: the graph, before its passes.
        bounds: the bound of each symbol.
        axes: how some inputs are padded, by position; of others, nothing is known of what is beyond their real sizes.
        engine: makes what the rules ask, from its arguments; None for `Engine` itself.

    Raises:
        NoRule: an operation has no rule for what is beyond a real size; the error names it.
    """
    if not graph.dims.holds(bounds):
        raise NoRule("what the trace relied on does not hold for the bounds")
    engine = engine or Engine
    symbols = tuple(bounds)
    names = Names(graph.dims)
    given = [_specs(node.spec(), bounds) for node in graph.inputs]
    taken = tuple([axes[at] if at in axes else axes_of(names.spec(one.spec())) for at, one in enumerate(graph.inputs)])
    numbers = _numbers(graph, names)
    results: list[Axes] = []

    def run(*tensors: Any) -> list[Any]:
        sizes, computed = tensors[len(given) : len(given) + len(symbols)], tensors[len(given) + len(symbols) :]
        counts = dict(zip(symbols, sizes, strict=True)), dict(zip(numbers, computed, strict=True))
        rules = engine(names, bounds, *counts)
        padded = [Padded(value, own) for value, own in zip(tensors, taken, strict=False)]
        made = rules.evaluate(graph, padded)
        results[:] = [one.axes for one in made]
        return [one.value for one in made]

    called = [str(node.attrs.get("name", "x")) for node in graph.inputs]
    called += [*symbols, *[f"number_{index}" for index in range(len(numbers))]]
    given_numbers = [make_spec((), dtype) for _, dtype in numbers.values()]
    traced = trace_with_variables(run, [*given, *[INT32] * len(symbols), *given_numbers], graph.name, called)
    return Bounded(traced.graph, symbols, tuple(numbers.values()), taken, tuple(results))


def _numbers(graph: Graph, names: Names) -> dict[Any, tuple[Number, Any]]:
    """Return the numbers among the attributes of operations without inputs, such as 1 / n in `hf.full`."""
    found: dict[Any, tuple[Number, Any]] = {}
    for node in graph.walk():
        dtype = node.attrs.get("dtype")
        for value in node.attrs.values() if dtype is not None and not node.inputs else ():
            if isinstance(value, Dim) or type(value) is SizeFloat:
                named = names.value(value)
                found[_key(named, dtype)] = named, dtype
    return found


def _key(value: Number, dtype: Any) -> Any:
    return value.text(), dtype


def _specs(spec: TensorSpec, bounds: Mapping[str, int]) -> TensorSpec:
    return make_spec(tuple([substitute(size, bounds) for size in spec.shape]), spec.dtype)


def axes_of(spec: TensorSpec, fill: Any = None) -> Axes:
    """Return the axes of a value whose open sizes are no folded ones.

    Raises:
        NoRule: a size may become larger than at the bound.
    """
    for size in spec.shape:
        _require_growing(size)
    return tuple([Open(canonical([size]), fill) if isinstance(size, Dim) else None for size in spec.shape])


def _require_growing(size: Size) -> None:
    if isinstance(size, Dim) and not _grows(size):
        raise NoRule(f"the size {size.text()} does not grow with the open sizes")


def _grows(size: Dim) -> bool:
    """Whether a size never becomes smaller when a symbol becomes larger."""
    for monomial, factor in size.terms.items():
        if monomial and factor < 0:
            return False
        for atom in monomial:
            if isinstance(atom, Opaque) and not (
                atom.kind == "//" and _grows(atom.left) and [*atom.right.terms] == [()] and atom.right.terms[()] > 0
            ):
                return False
    return True


def _has_sizes(value: Any) -> bool:
    """Whether an attribute has an open size in it."""
    if type(value) is tuple:
        return any(map(_has_sizes, cast("tuple[Any, ...]", value)))
    if isinstance(value, slice):
        return any(map(_has_sizes, (value.start, value.stop, value.step)))
    return type(value) in (Dim, SizeFloat)


class Engine:
    """What the rules of operations ask for; see `hybridflow.core.padding.Bounds`."""

    def __init__(
        self, names: Names, bounds: Mapping[str, int], counts: Mapping[str, Any], numbers: Mapping[Any, Any]
    ) -> None:
        self.F = PUBLIC
        self.names = names
        self.bounds = bounds
        self.counts = counts
        self.numbers = numbers

    # -- graphs -----------------------------------------------------------------------------------------------

    def evaluate(self, graph: Graph, values: Sequence[Padded]) -> list[Padded]:
        """Run a graph on padded values, in the trace that is being made."""
        tracer = cast(GraphBuilder, current().tracer)
        environment = {(node, 0): value for node, value in zip(graph.inputs, values, strict=True)}
        for node in graph.nodes:
            xs = [environment[edge] for edge in node.inputs if edge is not None]
            outer, tracer.place = tracer.place, node.where
            try:
                made = self._node(node, xs)
            finally:
                tracer.place = outer
            for index, one in enumerate(made):
                environment[node, index] = one
        return [environment[edge] for edge in graph.outputs]

    def _node(self, node: Node, xs: list[Padded]) -> Sequence[Padded]:
        attrs = {name: self.names.value(value) for name, value in node.attrs.items()}
        call = Call(node.op, xs, attrs, [self.names.spec(spec) for spec in node.specs])
        sized = any([x.open() for x in xs]) or any(map(_has_sizes, node.attrs.values()))
        if not sized and not any([graph.dims.hints and _mentions_sizes(graph) for graph in nested_graphs(node)]):
            return [Padded(value, (None,) * value.ndim) for value in self.run(call, *[x.value for x in xs])]
        try:
            return self.rule(call)(self, call)
        except NoRule as why:
            if why.placed:
                raise
            where = format_where(node.where) or "an unknown line"
            raise NoRule(f"{node.op.name} at {where}: {why}", placed=True) from None

    def rule(self, call: Call) -> Rule:
        """Return the rule of an operation.

        Raises:
            NoRule: it has none.
        """
        rule = _NESTED.get(call.op) or call.op.padded
        if rule is None and call.op.traits & {"pointwise", "identity"}:
            return pointwise
        if rule is None:
            raise NoRule("it has no rule for open sizes")
        return rule

    def run(self, call: Call, *values: Any, **attrs: Any) -> list[Any]:
        """Run the operation on values of the bounds' sizes; `attrs` replace some of its attributes.

        Raises:
            NoRule: an attribute that is not replaced is an open size, other than as the shape of the result; or a size
                of that does not grow with the open sizes.
        """
        for name, value in call.attrs.items():
            if name not in attrs and name != "shape" and _has_sizes(value):
                raise NoRule(f"its {name} is computed from an open size")
        given = {**call.attrs, **attrs}
        for size in given.get("shape", ()):
            _require_growing(size)
        residuals = bool(given.pop("residuals", False))
        given = {name: substitute(value, self.bounds) for name, value in given.items()}
        tracer = cast(GraphBuilder, current().tracer)
        return [*tracer.bind_all(call.op, values, given, residuals=residuals)]

    def bind(self, name: str, *values: Any, **attrs: Any) -> Any:
        """Add an operation with one result, without the checks that its public function makes."""
        tracer = cast(GraphBuilder, current().tracer)
        return tracer.bind_all(REGISTRY[name], values, attrs, residuals=False)[0]

    # -- sizes ------------------------------------------------------------------------------------------------

    def bound(self, size: Size) -> int:
        """Return the bound of a size.

        Raises:
            NoRule: it does not grow with the open sizes, so that their bounds give none of it.
        """
        _require_growing(size)
        return evaluate(size, self.bounds)

    def count(self, size: Size) -> Any:
        """Return a real size as an int32 tensor of shape ()."""
        if not isinstance(size, Dim):
            return asarray(size, dtype="int32")
        total: Any = None
        for monomial, factor in size.terms.items():
            term: Any = None
            for atom in monomial:
                own = self.counts[atom] if isinstance(atom, str) else self._quotient(atom)
                term = own if term is None else term * own
            term = asarray(factor, dtype="int32") if term is None else term if factor == 1 else term * factor
            total = term if total is None else total + term
        return total

    def meet(self, x: Padded, axis: int) -> None:
        """Say that results depend on several elements along an axis: what is beyond its real size changes none."""

    def number(self, value: Any, dtype: Any) -> Any:
        """Return an attribute's number, which may be computed from real sizes, as a tensor of shape ()."""
        if isinstance(value, Dim) or type(value) is SizeFloat:
            return self.numbers[_key(value, dtype)]
        return asarray(value, dtype=dtype)

    def _quotient(self, atom: Opaque) -> Any:
        left, right = self.count(atom.left), self.count(atom.right)
        return left // right if atom.kind == "//" else left % right

    def positions(self, length: int) -> Any:
        """Return 0, 1, ... as int32."""
        return self.F.arange(length, dtype="int32")

    # -- padding ----------------------------------------------------------------------------------------------

    def axes_of(self, spec: TensorSpec, fill: Any = None) -> Axes:
        """Return the axes of a value whose open sizes are no folded ones."""
        return axes_of(spec, fill)

    def inside(self, x: Padded, axis: int) -> Any:
        """Return where the elements are within the real size of an axis, in a shape that broadcasts against `x`."""
        one = cast(Open, x.axes[axis])
        position = self.positions(x.value.shape[axis])
        sizes = [self.bound(size) for size in one.sizes]
        found: Any = None
        for number, size in enumerate(one.sizes):
            if not isinstance(size, Dim):
                continue
            inner = int(np.prod(sizes[number + 1 :], dtype=np.int64))
            own = position if inner == 1 else position // inner
            own = own if number == 0 else own % sizes[number]
            part = own < self.count(size)
            found = part if found is None else self.F.logical_and(found, part)
        shape = tuple([x.value.shape[axis] if at == axis else 1 for at in range(x.value.ndim)])
        return self.F.reshape(found, shape=shape)

    def filled(self, x: Padded, axis: int, fill: Any) -> Padded:
        """Return the value with a fill beyond the real size of an axis; an axis that is not open stays as it is."""
        one = x.axes[axis]
        if one is None or (one.fill is not None and one.fill == fill):
            return x
        value = self.F.where(self.inside(x, axis), x.value, asarray(fill, dtype=x.value.dtype))
        return Padded(value, (*x.axes[:axis], one._replace(fill=fill), *x.axes[axis + 1 :]))


def _mentions_sizes(graph: Graph) -> bool:
    """Whether a nested graph has open sizes in its attributes or values."""
    for node in (*graph.inputs, *graph.walk()):
        if any(map(_has_sizes, node.attrs.values())):
            return True
        if any([isinstance(size, Dim) for spec in node.specs for size in spec.shape]):
            return True
    return False


# -- operations that carry graphs -------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """What a nested graph computes of padded values, and the graph's name."""

    name: str
    run: Callable[[list[Padded]], list[Padded]]


def _step(b: Engine, graph: Graph) -> _Step:
    return _Step(graph.name, lambda xs: b.evaluate(graph, xs))


def _body(step: _Step, xs: Sequence[Padded], results: list[Axes]) -> Any:
    """Trace a step on padded values; return the trace, and add the outputs' axes to `results`."""

    def run(*tensors: Any) -> list[Any]:
        made = step.run([Padded(value, x.axes) for value, x in zip(tensors, xs, strict=True)])
        results[:] = [one.axes for one in made]
        return [one.value for one in made]

    return trace_body(run, [x.value.spec for x in xs], step.name)


def _plain_attrs(call: Call) -> dict[str, Any]:
    """Return attributes of a node with graphs whose hidden outputs are visible ones."""
    if call.attrs.get("residuals"):
        return {**call.op.saves.expose(call.attrs), "residuals": False}
    return call.attrs


def _anything(axes: Axes) -> Axes:
    return tuple([one and one.anything for one in axes])


def _same_axes(before: Sequence[Axes], after: Sequence[Axes]) -> None:
    for own, new in zip(before, after, strict=False):
        for one, other in zip(own, new, strict=True):
            if (one is None) != (other is None) or (one is not None and not one.same(other)):
                raise NoRule("a value that the loop carries is padded otherwise after a step")


@separate
def _scan(b: Engine, call: Call) -> list[Padded]:
    attrs = _plain_attrs(call)
    counted, carry, length = bool(attrs.get("counted")), attrs["carry"], attrs["length"]
    xs = [*call.xs[counted:]]
    end = carry + attrs["sequences"]
    state = [Padded(x.value, _anything(x.axes)) for x in xs[:carry]]
    rows = [_slice(x) for x in xs[carry:end]]
    constants = xs[end:]
    results: list[Axes] = []
    traced = _body(_step(b, attrs["body"]), [*state, *rows, *constants], results)
    _same_axes([one.axes for one in state], results[:carry])
    count = call.xs[0].value if counted else b.count(length) if isinstance(length, Dim) else None
    if counted and isinstance(length, Dim):
        count = b.F.minimum(count, b.count(length))
    made = bind_scan(
        traced.graph, [one.value for one in state], [one.value for one in xs[carry:end]],
        [*[one.value for one in constants], *inputs_around(traced)],
        {"length": b.bound(length), "reverse": attrs["reverse"]}, count,
    )
    first = Open(canonical([length]), 0) if isinstance(length, Dim) else None
    axes = [*[one.axes for one in state], *[(first, *_anything(one)) for one in results[carry:]]]
    return [Padded(value, own) for value, own in zip(made, axes, strict=True)]


def _traced(steps: Sequence[_Step], xs: Sequence[Padded]) -> tuple[list[Graph], list[Any], list[list[Axes]]]:
    """Trace the steps of one node; return them, the values that they read besides `xs`, and their outputs' axes."""
    results: list[list[Axes]] = [[] for _ in steps]
    traced = [_body(step, xs, own) for step, own in zip(steps, results, strict=True)]
    shared = Shared()
    positions = [shared.add(inputs_around(one)) for one in traced]
    around = shared.tensors()
    made = [laid_out(one.graph, len(xs), own, around) for one, own in zip(traced, positions, strict=True)]
    return made, around, results


@separate
def _cond(b: Engine, call: Call) -> list[Padded]:
    attrs = _plain_attrs(call)
    pred, *xs = call.xs
    (true, false), around, results = _traced((_step(b, attrs["true"]), _step(b, attrs["false"])), xs)
    _same_axes(*results)
    made = bind_all(COND, [pred.value, *[x.value for x in xs], *around], {"true": true, "false": false})
    return [Padded(value, _anything(axes)) for value, axes in zip(made, results[0], strict=True)]


@separate
def _while(b: Engine, call: Call) -> list[Padded]:
    attrs = _plain_attrs(call)
    carry, bound = attrs["carry"], attrs["bound"]
    xs = [*[Padded(x.value, _anything(x.axes)) for x in call.xs[:carry]], *call.xs[carry:]]
    steps, own = (_step(b, attrs["cond"]), _step(b, attrs["body"])), carry
    if isinstance(bound, Dim):
        steps, own = _ending(b, steps, bound, carry), carry + 1
        xs.insert(carry, Padded(asarray(0, dtype="int32"), ()))
    (test, body), around, (_, results) = _traced(steps, xs)
    _same_axes([one.axes for one in xs[:own]], results[:own])
    limit = b.bound(bound) if isinstance(bound, Dim) else bound
    given = {"cond": test, "body": body, "carry": own, "bound": limit}
    made = [*bind_all(WHILE, [*[x.value for x in xs], *around], given)]
    axes: list[Axes] = [one.axes for one in xs[:carry]]
    if bound is not None:
        first = Open(canonical([bound]), 0) if isinstance(bound, Dim) else None
        axes = [(), *axes, *[(first, *_anything(one)) for one in results[own:]]]
    if own > carry:
        del made[carry + 1]  # the number of steps is the first result already
    return [Padded(value, own_axes) for value, own_axes in zip(made, axes, strict=True)]


def _ending(b: Engine, steps: tuple[_Step, _Step], bound: Dim, carry: int) -> tuple[_Step, _Step]:
    """Return a loop's condition and body that also count steps behind the carried values, up to a real size."""
    test, body = steps
    limit = b.count(bound)

    def go_on(xs: list[Padded]) -> list[Padded]:
        (found,) = test.run([*xs[:carry], *xs[carry + 1 :]])
        return [Padded(b.F.logical_and(found.value, b.F.less(xs[carry].value, limit)), ())]

    def advance(xs: list[Padded]) -> list[Padded]:
        made = body.run([*xs[:carry], *xs[carry + 1 :]])
        return [*made[:carry], Padded(xs[carry].value + 1, ()), *made[carry:]]

    return _Step(test.name, go_on), _Step(body.name, advance)


@separate
def _call(b: Engine, call: Call) -> list[Padded]:
    return b.evaluate(call.attrs["graph"], call.xs)


@separate
def _custom(b: Engine, call: Call) -> list[Padded]:
    """Return the results, which are the last inputs: gradients are taken before a graph gets its bounds."""
    return [*call.xs[len(call.xs) - call.attrs["outputs"] :]]


@separate
def _checkpoint(b: Engine, call: Call) -> list[Padded]:
    attrs = _plain_attrs(call)
    (graph,), around, (axes,) = _traced((_step(b, attrs["graph"]),), call.xs)
    waited = len(call.xs) - attrs["after"]  # the inputs to wait for stay the last ones
    inputs = graph.inputs
    ordered = (*inputs[:waited], *inputs[len(call.xs) :], *inputs[waited : len(call.xs)])
    graph = Graph(graph.name, ordered, graph.nodes, graph.outputs, graph.dims)
    values = [x.value for x in call.xs]
    made = bind_all(CHECKPOINT, [*values[:waited], *around, *values[waited:]],
                    {"graph": graph, "policy": attrs["policy"], "after": attrs["after"]})
    return [Padded(value, _anything(own)) for value, own in zip(made, axes, strict=True)]


@separate
def _vmap(b: Engine, call: Call) -> list[Padded]:
    """Map over slices; what slices beyond the real size give is no part of a sum."""
    mapped, summed, size = call.attrs["mapped"], call.attrs["summed"], call.attrs["size"]
    slices = [_slice(x) if one else x for x, one in zip(call.xs, mapped, strict=True)]
    (graph,), around, (axes,) = _traced((_step(b, call.attrs["graph"]),), slices)
    first = Open(canonical([size])) if isinstance(size, Dim) else None
    added = summed if first is None else (False,) * len(summed)
    made = bind_all(
        VMAP, [*[x.value for x in call.xs], *around],
        {"graph": graph, "mapped": (*mapped, *[False] * len(around)), "summed": added, "size": b.bound(size)},
    )
    results: list[Padded] = []
    for value, own, add in zip(made, axes, summed, strict=True):
        if not add:
            results.append(Padded(value, (first, *_anything(own))))
            continue
        if first is not None:
            value = b.F.sum(b.filled(Padded(value, (first, *_anything(own))), 0, 0).value, axis=(0,))
        results.append(Padded(value, _anything(own)))
    return results


def _slice(x: Padded) -> Padded:
    if x.axes[0] is not None and len(x.axes[0].sizes) > 1:
        raise NoRule("it runs over a folded axis")
    return Padded(x.value[0], _anything(x.axes[1:]))


_NESTED: dict[Any, Callable[[Any, Call], Sequence[Padded]]] = {
    SCAN: _scan, COND: _cond, WHILE: _while, CALL: _call, TRACED: _custom, CHECKPOINT: _checkpoint, VMAP: _vmap,
}
"""The rules of the operations that carry graphs."""
