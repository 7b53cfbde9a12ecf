"""`hf.while_loop`: run a body graph on its own results while a condition graph holds.

The gradient (`_vjp`) is a scan over the steps that ran, from the last to the first. The forward loop keeps a row for
each step, with what the body's gradient reads. So it needs a largest number of steps, or a count that is known when the
loop is traced; then it becomes a scan at once (`_loop`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np
from jax import lax

from hybridflow.autodiff.dependence import of_loop
from hybridflow.autodiff.functional import fresh
from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.autodiff.no_gradient import no_gradient
from hybridflow.backend.active_rows import ACTIVE, active_if
from hybridflow.backend.host_calls import goes_on
from hybridflow.core import structures
from hybridflow.core.context import current
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, message
from hybridflow.core.functions import as_body, require_function
from hybridflow.core.held import defines
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import No, Op, Reach, Saves, register
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ir.builder import GraphBuilder, Traced, trace_body, trace_with_variables
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.effects import has_effects
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Graph, input_node, require_inputs
from hybridflow.ir.invariants import rearranged, unchanged
from hybridflow.nested.bodies import (
    TESTED,
    Carry,
    Shared,
    Written,
    add_checks,
    assign_around,
    bind_parts,
    handed_back,
    hoisted,
    inputs_around,
    kept_without_steps,
    laid_out,
    own_leaves,
    predicate,
    tracer_now,
)
from hybridflow.nested.scans import backward_scan, bind_scan, run_rows, split_body

R = TypeVar("R")


@with_foreign_keywords
def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., R], loop_vars: Any, max_iterations: int | None = None
) -> R:
    """Run a function on its own results while a condition holds.

    Args:
        cond_fn: ``cond_fn(*loop_vars)`` returns a bool of shape ().
        body_fn: ``body_fn(*loop_vars)`` returns the new loop variables (a bare value if there is only one). Both
            functions may read outer tensors, and read and assign Variables.
        loop_vars: a tuple or list of tensors or structures; each keeps its structure, shapes and dtypes. Anything else
            (a tensor, a dict, a dataclass) is one loop variable: ``cond_fn(loop_vars)``, ``body_fn(loop_vars)``. So is
            a NamedTuple if `cond_fn` does not take as many arguments as it has fields.
        max_iterations: the largest number of steps. The loop still ends as soon as the condition fails. Gradients
            through a traced loop need this, since XLA must know how much to keep. A loop over a counter does not: an
            integer that starts at a constant, grows by a constant and is compared with a constant.

    Returns:
        The last loop variables, in the structure of `loop_vars`.

    Raises:
        ArgumentError, ShapeError, DTypeError: if a loop variable changes its structure, shape or dtype.
        ArgumentTypeError: if `max_iterations` is not an integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.while_loop(lambda i, s: i < 4, lambda i, s: (i + 1, s + i), (0, 0))
        (Tensor(4, dtype=int32), Tensor(6, dtype=int32))
        >>> hf.while_loop(lambda x: x < 10.0, lambda x: 2 * x, 1.0)
        Tensor(16., dtype=float32)
    """
    for one in (cond_fn, body_fn):
        require_function("while_loop", one)
    _require_count(max_iterations)
    cond_fn, body_fn = as_body(cond_fn), as_body(body_fn)
    if not isinstance(loop_vars, tuple | list) or _is_one(cond_fn, loop_vars):
        return handed_back(iterate(cond_fn, lambda value: (body_fn(value),), (loop_vars,), max_iterations)[0])
    results = iterate(cond_fn, body_fn, tuple(loop_vars), max_iterations)
    return handed_back(structures.unflatten(_outer_structure(loop_vars), results))


def _is_one(cond_fn: Callable[..., Any], loop_vars: Any) -> bool:
    """Whether a NamedTuple is one loop variable: the condition does not take its fields one by one."""
    if not defines(type(loop_vars), "_fields"):
        return False
    try:
        inspect.signature(cond_fn).bind(*loop_vars)
    except TypeError:
        return True
    except ValueError:  # a function in C has no signature
        return False
    return False


def _outer_structure(items: Any) -> Any:
    """Return the outermost structure of a tuple or list; its items are leaves."""
    return structures.structure(items, is_leaf=lambda one: one is not items)


def _require_count(bound: Any) -> None:
    if bound is None or (isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0):
        return
    raise (ArgumentError if isinstance(bound, int) else ArgumentTypeError)(
        message("while_loop: max_iterations must be a count of steps", got=f"max_iterations={bound!r}",
                hint="Pass an integer from 0 on, or None for no bound.")
    )


def iterate(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    loop_vars: tuple[Any, ...],
    max_iterations: int | None = None,
    names: Sequence[str] | None = None,
) -> tuple[Any, ...]:
    """Run a loop as `while_loop` does; `names` are the names of the loop variables, for messages."""
    carry = Carry("while_loop", loop_vars, names)

    def condition(*tensors: Tensor) -> list[Tensor]:
        return [predicate("while_loop", cond_fn(*carry.build(tensors)))]

    def body(*tensors: Tensor) -> list[Tensor]:
        result = body_fn(*carry.build(tensors))
        return carry.after(tuple(result) if isinstance(result, tuple | list) else (result,))

    if current().tracer is None:
        state, count = own_leaves(carry.leaves)[0], 0
        while (max_iterations is None or count < max_iterations) and bool(condition(*state)[0]):
            state = own_leaves(body(*state))[0]
            count += 1
        return carry.build(state)

    def trace() -> tuple[Traced, Traced]:
        specs = [leaf.spec for leaf in carry.leaves]
        test = trace_with_variables(condition, specs, "while_condition")
        return test, trace_with_variables(body, specs, "while_body", part=True)

    test, step = carry.traced(trace)
    return carry.build(_bind(test, step, carry.leaves, max_iterations))


def _bind(test: Traced, body: Traced, leaves: list[Tensor], bound: int | None) -> list[Tensor]:
    """Add the node, pass assigned Variables and checks on to the outer trace, and return the loop variables."""
    count = len(leaves)
    state = leaves
    checks = (*body.checks, *test.checks)
    written = Written(test, body)
    if checks or written.variables:
        ok = as_tensor(np.asarray(True))
        first = _first_test(test, leaves) if test.checks or test.assigned else []
        state = [*leaves, *written.values(), *[ok] * len(body.checks), *first[1:], *first[:1]]
        test, body = _carrying(test, body, written, count, state, bool(first))
    end = count + len(written.variables)
    made = _loop(test, body, state, bound, slice(end, end + len(checks)))
    assign_around(written.variables, made[count:end])
    add_checks(checks, made[end : end + len(checks)])
    return made[:count]


def _first_test(test: Traced, leaves: list[Tensor]) -> list[Tensor]:
    """Run a condition that has checks or assignments once before the loop; return its result and checks."""
    outputs = inline(test.graph, [*leaves, *inputs_around(test)])
    assigned = test.assigned
    assign_around([state.variable for state in assigned], outputs[1 : 1 + len(assigned)])
    return [outputs[0], *outputs[1 + len(assigned) :]]


def _carrying(
    test: Traced, body: Traced, written: Written, count: int, state: list[Tensor], rotated: bool
) -> tuple[Traced, Traced]:
    """Return a condition and a body that also carry the Variables they write, and whether their checks held so far.

    A condition with checks or assignments runs at the end of the previous step (`rotated`), and its result is carried.
    """
    end = count + len(written.variables)

    def condition(*tensors: Tensor) -> list[Tensor]:
        return [tensors[-1]] if rotated else written.run(test, tensors[:count], list(tensors[count:end]))[0]

    def step(*tensors: Tensor) -> list[Tensor]:
        now = list(tensors[count:end])
        outputs, oks = written.run(body, tensors[:count], now)
        last: list[Tensor] = []
        if rotated:
            last, more = written.run(test, outputs, now)
            oks = [*oks, *more]
        before = tensors[end : end + len(oks)]
        return [*outputs, *now, *[PUBLIC.logical_and(a, b) for a, b in zip(before, oks, strict=True)], *last]

    specs = [leaf.spec for leaf in state]
    return trace_body(condition, specs, test.graph.name), trace_body(step, specs, body.graph.name)


def _loop(test: Traced, body: Traced, state: list[Tensor], bound: int | None, checks: slice) -> list[Tensor]:
    """Add the loop; if the number of steps is known already, add a scan.

    Any other loop ends too as soon as one of its checks fails: the steps might never make its condition false.
    """
    count = len(state)
    trips = known_trips(test, body, state, tracer_now())
    if trips is not None:
        length = trips if bound is None else min(trips, bound)
        return bind_scan(body.graph, state, [], inputs_around(body), {"length": length, "reverse": False})
    if state[checks]:
        test = _while_checks_hold(test, state, checks)
    shared = Shared()
    positions = [shared.add(inputs_around(one)) for one in (test, body)]
    around = shared.tensors()
    graphs = [laid_out(one.graph, count, own, around) for one, own in zip((test, body), positions, strict=True)]
    return _bind_while(graphs[0], graphs[1], state, around, bound)


def _while_checks_hold(test: Traced, state: list[Tensor], checks: slice) -> Traced:
    """Return a condition that does not hold either if a check has failed."""

    def condition(*tensors: Tensor) -> list[Tensor]:
        goes = inline(test.graph, tensors)[0]
        return [functools.reduce(PUBLIC.logical_and, tensors[: len(state)][checks], goes)]

    return test._replace(graph=trace_body(condition, test.graph.input_specs, test.graph.name).graph)


def _bind_while(
    test: Graph, body: Graph, state: list[Tensor], constants: list[Tensor], bound: int | None
) -> list[Tensor]:
    """Add a loop to the trace, with loop-invariant operations moved out of it."""
    carry = len(state)
    fixed = unchanged(body, carry)
    moving = [index for index in range(carry) if index not in fixed]
    order = [*moving, *range(carry, len(body.inputs)), *fixed]
    test, body = rearranged(test, order, [0]), rearranged(body, order, moving)
    constants = [*constants, *[state[index] for index in fixed]]
    graphs: list[Graph] = []
    for graph in (test, body):
        graph, more = hoisted(_with_inputs(graph, len(moving), constants), len(moving), constants)
        graphs.append(graph)
        constants = [*constants, *more]
    test, body = [_with_inputs(graph, len(moving), constants) for graph in graphs]
    attrs = {"cond": test, "body": body, "carry": len(moving), "bound": bound}
    before = [state[index] for index in moving]
    made = bind_parts(WHILE, [*before, *constants], attrs, body)
    after = kept_without_steps(
        lambda: inline(test, [*before, *constants])[0], before, made if bound is None else made[1:]
    )
    last = dict(zip(moving, after, strict=True))
    return [last[i] if i in last else fresh(state[i]) for i in range(carry)]


def _with_inputs(graph: Graph, carry: int, constants: Sequence[Tensor]) -> Graph:
    """Return a graph that takes all constants, although it does not read the last ones."""
    missing = constants[len(graph.inputs) - carry :]
    if not missing:
        return graph
    more = [input_node(tensor.spec, f"unread_{index}") for index, tensor in enumerate(missing)]
    return Graph(graph.name, (*graph.inputs, *more), graph.nodes, graph.outputs, graph.dims)


# -- the op -------------------------------------------------------------------------------------------------------


def _lower(
    *xs: Any, cond: Graph, body: Graph, carry: int, bound: int | None, residuals: bool = False
) -> Any:
    constants = xs[carry:]
    test = lower_graph(cond)
    state = tuple(xs[:carry])
    calls_host = has_effects(cond) or has_effects(body)
    active = ACTIVE.get()
    masked = active is not None and any(node.op is WHILE for node in body.walk())

    def condition(state: Any) -> Any:
        holds = test(*state, *constants)[0]
        holds = holds if active is None else lax.bitwise_and(holds, active)
        return lax.bitwise_and(holds, goes_on()) if calls_host else holds

    def stepped(run: Callable[..., Any], state: Any) -> tuple[Any, ...]:
        with active_if(test(*state, *constants)[0] if masked else None):
            return tuple(run(*state, *constants))

    if bound is None:
        outputs = lax.while_loop(condition, functools.partial(stepped, lower_graph(body)), state)
        return outputs[0] if len(outputs) == 1 else outputs

    run = lower_graph(split_body(body, carry).forward if residuals else body)

    def step(number: Any, state: Any) -> Any:
        outputs = stepped(run, state)
        return outputs[:carry], number, outputs[carry:]

    rows = jax.eval_shape(lambda s: step(np.int32(0), s)[2], state)
    limit = np.int32(bound)
    outputs = run_rows(step, lambda number, s: lax.bitwise_and(number < limit, condition(s)), state, rows, bound)
    return outputs[0] if len(outputs) == 1 else outputs


def _infer(
    *specs: TensorSpec, cond: Graph, body: Graph, carry: int, bound: int | None, residuals: bool = False
) -> Any:
    require_inputs("while", cond, specs)
    require_inputs("while", body, specs)
    state = tuple([make_spec(spec.shape, spec.dtype) for spec in specs[:carry]])
    if bound is None:
        return state
    rows = (split_body(body, carry).forward if residuals else body).output_specs[carry:]
    count = make_spec((), np.dtype(np.int32))
    return (count, *state, *[make_spec((bound, *spec.shape), spec.dtype) for spec in rows])


def _hidden(attrs: dict[str, Any]) -> int:
    return 0 if attrs["bound"] is None else split_body(attrs["body"], attrs["carry"]).residuals


def _exposed(attrs: dict[str, Any]) -> dict[str, Any]:
    return {**attrs, "body": split_body(attrs["body"], attrs["carry"]).forward}


def _bodies(
    cond: Graph, body: Graph, carry: int, bound: int | None, residuals: bool = False
) -> tuple[Body, ...]:
    """Return the condition and the body, counted once per possible step."""
    run = split_body(body, carry).forward if residuals else body
    return Body(cond, bound, exact=False), Body(run, bound, exact=False)


def _vjp(
    F: Any, g: Any, y: Any, *xs: Any, cond: Graph, body: Graph, carry: int, bound: int | None
) -> list[Any]:
    """Scan backwards over the steps that ran."""
    del F, cond
    if bound is None:
        return [lambda x=x: no_gradient(x, _NO_BOUND) for x in xs]
    gs = list(g) if isinstance(g, tuple) else [g]
    return backward_scan(body, carry, 0, xs, y[1:], gs[1:], (bound, True), y[0])


_NO_BOUND = message(
    "while: has no gradient: XLA does not know how many steps to keep",
    hint="Write the loop in `with hf.max_iterations(n):`, pass max_iterations to hf.while_loop, or use "
         "hf.stop_gradient if no gradient is wanted.",
)


def _onnx(o: Any, *xs: Any, cond: Graph, body: Graph, carry: int, bound: int | None) -> Any:
    if len(body.outputs) > carry:
        o.no("ONNX's Loop does not fill up the rows of the steps that there are not")
    state, constants = xs[:carry], xs[carry:]
    specs = [("step", _COUNT), ("go", _FLAG), *[(f"state_{i}", s) for i, s in enumerate(body.input_specs[:carry])]]
    if bound is not None:
        specs.append(("count", _COUNT))

    def step(number: Any, go: Any, *values: Any) -> list[Any]:
        del number, go
        new = o.inline(body, [*values[:carry], *constants])
        again = o.inline(cond, [*new, *constants])
        return [*again, *new, *[count + 1 for count in values[carry:]]]

    graph = o.body(body.name, specs, step)
    first = o.inline(cond, xs)
    counted = () if bound is None else (o.value(np.int64(0)),)
    dtypes = [spec.dtype for _, spec in specs[2:]]
    limit = None if bound is None else o.value(np.int64(bound))
    results = o.emit("Loop", limit, *first, *state, *counted, outputs=len(dtypes), dtypes=dtypes, body=graph)
    results = results if isinstance(results, tuple) else (results,)
    return results if bound is None else (results[-1], *results[:-1])


_COUNT, _FLAG = make_spec((), np.dtype(np.int64)), make_spec((), np.dtype(np.bool_))

def _depends(body: Graph, carry: int, bound: int | None, **_: Any) -> list[Reach]:
    reach = of_loop(body, carry)
    return reach if bound is None else [(0, 0), *reach]  # output 0 is the number of steps


WHILE = register(
    Op(
        "while", No("Python loops in eager mode"), _lower, _infer, _vjp, flops=Bodies(_bodies),
        saves=Saves(x="all", y=True, hidden=_hidden, expose=_exposed, depends=_depends), samples=TESTED,
        traits=frozenset({"nested"}), onnx=_onnx,
    )
)


# -- find the number of steps of a loop during tracing, if an integer counts up or down to a constant -----------------

_COMPARISONS: dict[tuple[bool, ...], tuple[int, bool]] = {
    (True, False, False): (1, False), (True, True, False): (1, True),
    (False, False, True): (-1, False), (False, True, True): (-1, True),
}
"""The comparisons with a counter, by their results for 0 and 1, 1 and 1, 1 and 0.

Each has the direction in which the counter must count, and whether the limit is included.
"""
_LARGEST = 1 << 62
"""The largest step: adding and subtracting it are exact in int64."""


class _Counter(NamedTuple):
    """A counter's position among the loop variables, its limit, and how it is compared."""

    position: int
    limit: int
    direction: int
    inclusive: bool


def known_trips(test: Traced, body: Traced, state: Sequence[Tensor], tracer: GraphBuilder) -> int | None:
    """Return the number of steps of a loop, or None if it depends on values.

    It is known if the condition only compares an integer loop variable with a constant, the variable starts at a
    constant, the body adds a constant to it, and it stays within its dtype's range.
    """
    outside = [_constant(tracer.edge_of(tensor)) for tensor in test.captures]
    counter = _counter(test.graph, len(state), outside)
    if counter is None or test.variables or has_effects(test.graph):
        return None
    start = _constant(tracer.edge_of(state[counter.position]))
    step = _step(body.graph, counter.position)
    if start is None or not step or (step > 0) != (counter.direction > 0):
        return None
    distance = (counter.limit - start) * counter.direction + counter.inclusive
    trips = max(0, -(-distance // abs(step)))
    info = np.iinfo(state[counter.position].dtype)
    return trips if info.min <= start + trips * step <= info.max else None


def _constant(edge: Edge | None) -> int | None:
    """Return the value of an edge if it is an integer constant of shape (), else None."""
    if edge is None or edge[0].op is not CONSTANT:
        return None
    array = edge[0].attrs["value"].array
    return int(array) if array.shape == () and array.dtype.kind in "iu" else None


def _counter(graph: Graph, carried: int, outside: Sequence[int | None]) -> _Counter | None:
    node = graph.outputs[0][0]
    comparison = _COMPARISONS.get(_answers(node.op)) if node.op.has("order") else None
    if comparison is None:
        return None
    values = {one: value for one, value in zip(graph.inputs[carried:], outside, strict=False)}
    positions = {one: index for index, one in enumerate(graph.inputs[:carried])}

    def number(edge: Edge | None) -> int | None:
        return None if edge is None else values.get(edge[0], _constant(edge))

    a, b = cast("tuple[Edge, ...]", node.inputs)
    direction, inclusive = comparison
    if a[0] not in positions:
        a, b, direction = b, a, -direction
    limit = number(b)
    if a[0] not in positions or limit is None:
        return None
    return _Counter(positions[a[0]], limit, direction, inclusive)


def _step(graph: Graph, position: int) -> int | None:
    """Return the constant that a body adds to a loop variable, or None."""
    node: Node = graph.outputs[position][0]
    if not node.op.has("shift"):
        return None
    a, b = node.inputs
    counter = (graph.inputs[position], 0)
    if a != counter and node.op.has("commutative"):
        a, b = b, a
    amount = _constant(b) if a == counter else None
    return None if amount is None or abs(amount) > _LARGEST else int(_of(node.op, 0, amount))


def _answers(op: Op) -> tuple[bool, ...]:
    return tuple([bool(_of(op, a, b)) for a, b in ((0, 1), (1, 1), (1, 0))])


def _of(op: Op, a: int, b: int) -> Any:
    """Return an operation's result for two integers."""
    return cast("Callable[..., Any]", op.kernel)(np.asarray(a, np.int64), np.asarray(b, np.int64))
