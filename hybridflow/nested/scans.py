"""`hf.scan`: run a graph over the leading axis of tensors; also the backward pass of every loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from hybridflow.autodiff.dependence import of_loop
from hybridflow.autodiff.functional import fresh
from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.autodiff.transform import SplitGradient, split_gradient
from hybridflow.backend.collectives import BATCH_AXES, LOWERED_FOR
from hybridflow.core import structures
from hybridflow.core.context import current
from hybridflow.core.dims import Dim
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.functions import as_body, require_function
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import No, Op, Reach, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, describe
from hybridflow.ir.builder import Traced, trace_body, trace_with_variables
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.effects import has_effects
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Graph, edges_of, require_inputs
from hybridflow.ir.invariants import rearranged, unchanged
from hybridflow.nested.bodies import (
    TESTED,
    Carry,
    Written,
    add_checks,
    assign_around,
    bind_parts,
    handed_back,
    hoisted,
    inputs_around,
    kept_without_steps,
    leaves_of,
    own_leaves,
    tracer_now,
    zeros,
)
from hybridflow.nested.pipeline_sums import late_nodes, run_in_parts
from hybridflow.ops.arithmetic import add
from hybridflow.ops.common import truth
from hybridflow.ops.joining import stack
from hybridflow.ops.onnx import backwards

C = TypeVar("C")
Y = TypeVar("Y")


@with_foreign_keywords
def scan(
    fn: Callable[..., tuple[C, Y]], init: Any, xs: Any = None, length: int | None = None, reverse: bool = False
) -> tuple[C, Y]:
    """Run a function over the leading axis of tensors, carrying a value along.

    Args:
        fn: ``fn(carry, x)`` returns ``(carry, y)``; the carry keeps its structure, shapes and dtypes. The function may
            read outer tensors, and read and assign Variables.
        init: the first carry.
        xs: tensors with one leading size ``n``, in any nesting; None to run `length` times, where `fn` gets None.
        length: ``n``, which must be that of `xs` if both are given.
        reverse: whether to begin with the last row; the `y` lie where the rows that they belong to do.

    Returns:
        The last carry, and the `y` of every step stacked along a new first axis of size ``n``.

    Raises:
        ArgumentError: if the carry changes its structure, or there is neither a tensor to run over nor a length.
        ShapeError, DTypeError: if the carry changes its shape or dtype, or leading sizes differ.

    Example:
        >>> import hybridflow as hf
        >>> total, sums = hf.scan(lambda c, x: (c + x, c + x), 0.0, hf.asarray([1.0, 2.0, 3.0]))
        >>> sums
        Tensor([1., 3., 6.], dtype=float32)
    """
    require_function("scan", fn)
    return handed_back(scan_rows(fn, init, xs, length=length, reverse=reverse))


def scan_rows(
    fn: Callable[[C, Any], tuple[C, Y]], init: C, xs: Any = None, *, length: int | None = None, reverse: bool = False
) -> tuple[C, Y]:
    """Run `scan` for a loop over rows: what it leaves as it was stays the same value."""
    carry = Carry("scan", init)
    sequences, xs_tree = leaves_of(xs)
    steps: Any = _common_length(sequences, length)
    reverse = truth("scan", "reverse", reverse)
    if current().tracer is None and steps != 0:
        return _eager(fn, carry, sequences, xs_tree, steps, reverse)
    fn = as_body(fn)
    structure: dict[str, Any] = {}

    def body(*tensors: Tensor) -> list[Tensor]:
        count = len(carry.leaves)
        rows, around = tensors[count:], tracer_now().outer
        if around is not None and around.silence:
            rows = own_leaves(rows)[0]  # in a `hf.no_grad` block, rows are computed: constants outside of it
        new, y = _pair(fn(carry.build(tensors[:count]), structures.unflatten(xs_tree, rows)))
        after = carry.after(new)
        ys, structure["tree"] = leaves_of(y)
        structure["specs"] = [one.spec for one in ys]
        return [*after, *ys]

    def trace() -> Traced:
        rows = [make_spec(leaf.shape[1:], leaf.dtype) for leaf in sequences]
        return trace_with_variables(body, [*[leaf.spec for leaf in carry.leaves], *rows], "scan_body", part=True)

    traced = carry.traced(trace)
    if current().tracer is None:
        last, ys = own_leaves(carry.leaves)[0], [zeros(make_spec((0, *s.shape), s.dtype)) for s in structure["specs"]]
    else:
        order = {"length": steps, "reverse": reverse}
        last, ys = _bind(traced, carry.leaves, sequences, order, len(structure["specs"]))
    return carry.build(last), structures.unflatten(structure["tree"], ys)


def _bind(
    traced: Traced, carry: list[Tensor], sequences: list[Tensor], order: dict[str, Any], rows: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Add the node, pass assigned Variables and checks on to the outer trace, and return carry and rows."""
    checks, written = traced.checks, Written(traced)
    state = [*carry, *written.values()]
    if written.variables:
        traced = _carrying(traced, written, len(carry), state, sequences)
    made = bind_scan(traced.graph, state, sequences, inputs_around(traced), order)
    assign_around(written.variables, made[len(carry) : len(state)])
    end = len(state) + rows
    add_checks(checks, [PUBLIC.all(flags) for flags in made[end:]])
    return made[: len(carry)], made[len(state) : end]


def bind_scan(
    body: Graph,
    state: Sequence[Tensor],
    sequences: Sequence[Tensor],
    constants: Sequence[Tensor],
    attrs: dict[str, Any],
    count: Tensor | None = None,
) -> list[Tensor]:
    """Add a scan to the trace, with loop-invariant operations moved out of it; return carry and rows.

    Args:
        body: the graph of one step.
        state, sequences, constants: its inputs.
        attrs: ``length`` and ``reverse``.
        count: the number of steps, if that depends on values.
    """
    carry = len(state)
    fixed = unchanged(body, carry)
    moving = [index for index in range(carry) if index not in fixed]
    rest = range(carry, len(body.inputs))
    body = rearranged(body, [*moving, *rest, *fixed], [*moving, *range(carry, len(body.outputs))])
    constants = [*constants, *[state[index] for index in fixed]]
    body, more = hoisted(body, len(moving) + len(sequences), constants)
    attrs = {"body": body, "carry": len(moving), "sequences": len(sequences), **attrs}
    attrs |= {} if count is None else {"counted": True}
    inputs = [*[state[index] for index in moving], *sequences, *constants, *more]
    if count is not None:
        inputs = [count, *inputs]
    made = bind_parts(SCAN, inputs, attrs, body) if body.outputs or has_effects(body) else []
    if count is not None:
        before = [state[index] for index in moving]
        made[: len(moving)] = kept_without_steps(lambda: count > 0, before, made[: len(moving)])
    last = dict(zip(moving, made, strict=False))
    return [*[last[i] if i in last else fresh(state[i]) for i in range(carry)], *made[len(moving) :]]


def _carrying(traced: Traced, written: Written, carry: int, state: list[Tensor], sequences: list[Tensor]) -> Traced:
    """Return a body that carries the Variables it writes, after its own carry."""
    count = len(state)

    def run(*tensors: Tensor) -> list[Tensor]:
        now = list(tensors[carry:count])
        outputs, checks = written.run(traced, [*tensors[:carry], *tensors[count:]], now)
        return [*outputs[:carry], *now, *outputs[carry:], *checks]

    specs = [*[leaf.spec for leaf in state], *[make_spec(leaf.shape[1:], leaf.dtype) for leaf in sequences]]
    return trace_body(run, specs, traced.graph.name)


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(cast("tuple[Any, ...]", result)) != 2:
        raise ArgumentTypeError("scan: the function must return (carry, y)", got=f"a {type(result).__name__}",
                                hint="Write return carry, None if no results are kept.")
    return cast("tuple[Any, Any]", result)


def _common_length(sequences: list[Tensor], length: Any) -> Any:
    if length is not None and (isinstance(length, bool) or not isinstance(length, int | Dim) or length < 0):
        raise ArgumentError(f"scan: length={describe(length)} is no number of steps",
                            hint="Pass a whole number; a loop whose length is a tensor is `for i in range(n)`.")
    if not sequences:
        if length is not None:
            return length
        raise ArgumentError("scan: there is nothing to run over", hint="Pass at least one tensor as xs, or length=.")
    for tensor in sequences:
        if not tensor.shape:
            raise ShapeError("scan: a tensor of shape () has no leading axis", got=str(tensor.spec))
        if tensor.shape[0] != sequences[0].shape[0]:
            raise ShapeError(f"scan: leading sizes differ: {sequences[0].shape[0]} and {tensor.shape[0]}",
                             got=", ".join(str(t.spec) for t in sequences))
    if length is not None and length != sequences[0].shape[0]:
        raise ShapeError(f"scan: length={length}, but xs has {sequences[0].shape[0]} rows",
                         got=", ".join(str(t.spec) for t in sequences), hint="Leave length out.")
    return sequences[0].shape[0]


def _eager(
    fn: Callable[..., Any], carry: Carry, sequences: list[Tensor], xs_tree: Any, length: int, reverse: bool
) -> tuple[Any, Any]:
    state = carry.build(own_leaves(carry.leaves)[0])
    rows: list[list[Tensor]] = []
    y_tree: Any = None
    for index in reversed(range(length)) if reverse else range(length):
        new, y = _pair(fn(state, structures.unflatten(xs_tree, [cast(Any, t)[index] for t in sequences])))
        state = carry.build(own_leaves(carry.after(new))[0])
        row, y_tree = leaves_of(y)
        rows.append(row)
    rows = rows[::-1] if reverse else rows
    ys = [stack([row[i] for row in rows]) for i in range(len(rows[0]))]
    return state, structures.unflatten(y_tree, ys)


# -- the op -------------------------------------------------------------------------------------------------------


def split_body(body: Graph, carry: int) -> SplitGradient:
    """Split a body into forward and backward graphs; a carry that the backward pass needs becomes a residual."""
    count = len(body.inputs)
    return split_gradient(body, tuple([True] * count), tuple([index >= carry for index in range(count)]))


def run_rows(
    step: Callable[..., Any], go_on: Callable[..., Any], init: tuple[Any, ...], row_specs: Any, length: int
) -> tuple[Any, ...]:
    """Run a step an unknown number of times and keep its rows; the rows of steps that do not run are zeros.

    Args:
        step: a function ``(number, state)`` that returns the new state, the position of its rows, and the rows.
        go_on: a function ``(number, state)`` that returns whether there is another step.
        init: the first state.
        row_specs: the shapes and dtypes of the rows.
        length: the largest number of rows.

    Returns:
        The number of steps, the last state, and the rows.
    """
    buffers = tuple([jnp.zeros((length, *spec.shape), spec.dtype) for spec in row_specs])

    def body(values: Any) -> Any:
        number, state, kept = values
        state, position, rows = step(number, state)
        kept = tuple([
            lax.dynamic_update_index_in_dim(buffer, row, position, 0) for buffer, row in zip(kept, rows, strict=True)
        ])
        return number + np.int32(1), state, kept

    number, state, kept = lax.while_loop(lambda v: go_on(v[0], v[1]), body, (jnp.int32(0), init, buffers))
    return (number, *state, *kept)


def _lower(
    *xs: Any,
    body: Graph,
    carry: int,
    sequences: int,
    length: Any,
    reverse: bool,
    counted: bool = False,
    residuals: bool = False,
) -> Any:
    run = lower_graph(split_body(body, carry).forward if residuals else body)
    count, xs = (xs[0], xs[1:]) if counted else (None, xs)
    state, rows, constants = xs[:carry], xs[carry : carry + sequences], xs[carry + sequences :]

    def step(state: tuple[Any, ...], x: tuple[Any, ...]) -> Any:
        outputs = tuple(run(*state, *x, *constants))
        return outputs[:carry], outputs[carry:]

    if counted and length:
        outputs = _run_counted(step, count, state, rows, length, reverse)
    else:
        steps = length if isinstance(length, int) else None  # otherwise jax takes the length from the rows
        summed = None if residuals or reverse else scan_with_sums(body, carry, state, rows, constants, steps)
        if summed is None:
            last, ys = lax.scan(step, tuple(state), tuple(rows), length=steps, reverse=reverse)
            summed = (*last, *ys)
        outputs = summed
    return outputs[0] if len(outputs) == 1 else outputs


def _run_counted(step: Any, count: Any, state: Any, rows: Any, length: int, reverse: bool) -> tuple[Any, ...]:
    """Run over the first `count` rows only."""

    def one(number: Any, state: Any) -> Any:
        position = count - number - np.int32(1) if reverse else number
        x = tuple([lax.dynamic_index_in_dim(row, position, 0, keepdims=False) for row in rows])
        state, ys = step(state, x)
        return state, position, ys

    slices = tuple([jax.ShapeDtypeStruct(row.shape[1:], row.dtype) for row in rows])
    _, row_specs = jax.eval_shape(step, tuple(state), slices)
    return run_rows(one, lambda number, _: number < count, tuple(state), row_specs, length)[1:]


def _infer(
    *specs: TensorSpec,
    body: Graph,
    carry: int,
    sequences: int,
    length: Any,
    reverse: bool,
    counted: bool = False,
    residuals: bool = False,
) -> Any:
    del reverse
    given, end = specs[counted:], carry + sequences  # a counted scan's first input is the count
    rows = [make_spec(spec.shape[1:], spec.dtype) for spec in given[carry:end]]
    require_inputs("scan", body, (*given[:carry], *rows, *given[end:]))
    outputs = (split_body(body, carry).forward if residuals else body).output_specs
    return (*outputs[:carry], *[make_spec((length, *spec.shape), spec.dtype) for spec in outputs[carry:]])


def _hidden(attrs: dict[str, Any]) -> int:
    return split_body(attrs["body"], attrs["carry"]).residuals


def _exposed(attrs: dict[str, Any]) -> dict[str, Any]:
    return {**attrs, "body": split_body(attrs["body"], attrs["carry"]).forward}


def _bodies(
    body: Graph, carry: int, length: Any, counted: bool = False, residuals: bool = False, **_: Any
) -> tuple[Body, ...]:
    """Return the body, counted once per step (for a counted scan, per possible step)."""
    return (Body(split_body(body, carry).forward if residuals else body, length, exact=not counted),)


def _vjp(
    F: Any,
    g: Any,
    y: Any,
    *xs: Any,
    body: Graph,
    carry: int,
    sequences: int,
    length: Any,
    reverse: bool,
    counted: bool = False,
) -> list[Any]:
    del F
    outputs = y if isinstance(y, tuple) else (y,)
    gs = list(g) if isinstance(g, tuple) else [g]
    count = xs[0] if counted else None
    inputs = xs[1:] if counted else xs
    gradients = backward_scan(body, carry, sequences, inputs, outputs, gs, (length, not reverse), count)
    return [None, *gradients] if counted else gradients


def backward_scan(
    body: Graph,
    carry: int,
    sequences: int,
    xs: Sequence[Any],
    outputs: Sequence[Any],
    gs: Sequence[Any],
    order: tuple[Any, bool],
    count: Any,
) -> list[Any]:
    """Scan a loop's backward body in the opposite direction.

    The scan carries the cotangents of the carry and the sums of the constants' gradients.

    Args:
        body: the loop's body; its inputs are a carry, slices of sequences, and constants.
        carry, sequences: the number of each.
        xs: the loop's inputs.
        outputs: its carry and rows, then the residuals.
        gs: the cotangents of carry and rows, None where there is none.
        order: a pair: the largest number of rows, and whether this scan begins with the last row.
        count: the number of rows, if that depends on values.

    Returns:
        A gradient per input of the loop, None where there is none.
    """
    split = split_body(body, carry)
    visible = len(body.outputs)
    constants_from = carry + sequences
    given = [index for index, has in enumerate(split.given) if has]
    of_carry = [index for index in given if index < carry]
    of_ys = [index for index in given if index >= carry]
    summed = [index for index in range(constants_from, len(xs)) if split.present[index]]
    rows = [index for index in range(carry, constants_from) if split.present[index]]
    state = [zeros(outputs[i]) if gs[i] is None else gs[i] for i in of_carry] + [zeros(xs[i]) for i in summed]
    sliced = [zeros(outputs[i]) if gs[i] is None else gs[i] for i in of_ys]
    sliced += [*outputs[visible:], *[xs[i] for i in split.reads if i < constants_from]]
    constants = [xs[i] for i in split.reads if i >= constants_from]

    def backward(*tensors: Tensor) -> list[Tensor]:
        given = iter(tensors)

        def take(number: int) -> list[Tensor]:
            return [next(given) for _ in range(number)]

        d_carry, sums, d_ys = take(len(of_carry)), take(len(summed)), take(len(of_ys))
        residuals, reads = take(split.residuals), take(len(split.reads))
        results = iter(inline(split.backward, [*reads, *residuals, *d_carry, *d_ys]))
        gradients = {i: next(results) for i, has in enumerate(split.present) if has}
        new_carry = [gradients[i] if i in gradients else zeros(xs[i]) for i in of_carry]
        new_sums = [cast(Any, old) + gradients[i] for old, i in zip(sums, summed, strict=True)]
        return [*new_carry, *new_sums, *[gradients[i] for i in rows]]

    specs = [t.spec for t in state]
    specs += [make_spec(t.shape[1:], t.dtype) for t in sliced] + [t.spec for t in constants]
    traced = trace_body(backward, specs, f"{body.name}_backward")
    result: list[Any] = [None] * len(xs)
    if traced.graph.outputs:
        attrs = {"length": order[0], "reverse": order[1]}
        made = bind_scan(traced.graph, state, sliced, [*constants, *traced.captures], attrs, count)
        for i, value in zip((*of_carry, *summed, *rows), made, strict=True):
            result[i] = value
    return result


def _onnx(
    o: Any, *xs: Any, body: Graph, carry: int, sequences: int, length: Any, reverse: bool, counted: bool = False
) -> Any:
    if counted:
        o.no("ONNX's Scan does not fill up the rows of the steps that there are not")
    state, rows, constants = xs[:carry], list(xs[carry : carry + sequences]), xs[carry + sequences :]
    specs = [(f"{'state' if i < carry else 'row'}_{i}", s) for i, s in enumerate(body.input_specs[: carry + sequences])]
    dtypes = [spec.dtype for spec in body.output_specs]
    if sequences:
        graph = o.body(body.name, specs, lambda *values: o.inline(body, [*values, *constants]))
        rows = [backwards(o, row) for row in rows] if reverse else rows
        results = o.emit(
            "Scan", *state, *rows, outputs=len(dtypes), dtypes=dtypes, num_scan_inputs=sequences, body=graph
        )
    else:
        results = _onnx_steps(o, state, constants, body, specs, length)
    results = results if isinstance(results, tuple) else (results,)
    return (*results[:carry], *[backwards(o, row) if reverse else row for row in results[carry:]])


def _onnx_steps(
    o: Any, state: Sequence[Any], constants: Sequence[Any], body: Graph, specs: list[Any], length: Any
) -> Any:
    """Write a scan without sequences as a Loop, since ONNX's Scan needs at least one."""
    count, flag = make_spec((), np.dtype(np.int64)), make_spec((), np.dtype(np.bool_))

    def step(number: Any, go: Any, *values: Any) -> list[Any]:
        del number
        return [go, *o.inline(body, [*values, *constants])]

    graph = o.body(body.name, [("step", count), ("go", flag), *specs], step)
    limit = o.reshape(o.size(length), ())
    dtypes = [spec.dtype for spec in body.output_specs]
    return o.emit("Loop", limit, np.asarray(True), *state, outputs=len(dtypes), dtypes=dtypes, body=graph)


def _depends(body: Graph, carry: int, counted: bool = False, **_: Any) -> list[Reach]:
    return [(reach << counted, flat << counted) for reach, flat in of_loop(body, carry)]  # input 0 may be a count


SCAN = register(
    Op(
        "scan", No("Python loops in eager mode"), _lower, _infer, _vjp, flops=Bodies(_bodies),
        saves=Saves(x="all", hidden=_hidden, expose=_exposed, depends=_depends), samples=TESTED,
        traits=frozenset({"nested"}), onnx=_onnx,
    )
)


# -- sums in a loop on a mesh that are added up over the devices once, after the last step ----------------------------
# Where a mesh splits the rows of each step, what a step adds to a sum, such as a weight's gradient, is a sum over
# rows on several devices. Each device keeps a sum of its own, and one reduction follows the loop.


def scan_with_sums(
    body: Graph, carry: int, state: Sequence[Any], rows: Sequence[Any], constants: Sequence[Any], length: Any
) -> tuple[Any, ...] | None:
    """Run a scan whose sums are reduced after it; return its carry and rows, or None if it has no such sums.

    Args:
        body: the graph of one step.
        carry: the number of carried values.
        state, rows, constants: jax's arrays.
        length: the number of steps; None to take it from the rows.
    """
    mesh, axes = LOWERED_FOR.get(), BATCH_AXES.get()
    if mesh is None or mesh.parts(axes) == 1:
        return None
    parts, devices = mesh.parts(axes), mesh.of_jax
    found = _added(body, carry)
    steps = _without_sums(body, found)
    late = late_nodes(steps, list(found), parts)
    split = {index for index, edge in found.items() if edge[0] in late}
    if not split:
        return None
    run = run_in_parts(steps, late, parts)

    def divided(value: Any, dim: int) -> Any:
        layout = [axes if index == dim else PartitionSpec.UNCONSTRAINED for index in range(value.ndim)]
        return lax.with_sharding_constraint(value, NamedSharding(devices, PartitionSpec(*layout)))

    def step(now: tuple[Any, ...], x: tuple[Any, ...]) -> Any:
        made = list(run(*now, *x, *constants))
        for index in found:
            made[index] = now[index] + made[index]
            if index in split:
                made[index] = divided(made[index], 0)
        return tuple(made[:carry]), tuple(made[carry:])

    first = [
        divided(jnp.zeros((parts, *one.shape), one.dtype), 0) if index in split else one
        for index, one in enumerate(state)
    ]
    cut = [divided(one, 1) if one.ndim > 1 and one.shape[1] % parts == 0 else one for one in rows]
    last, ys = lax.scan(step, tuple(first), tuple(cut), length=length)
    total = [
        state[index] + _placing(found[index][0])(jnp.sum(one, axis=0, dtype=one.dtype)) if index in split else one
        for index, one in enumerate(last)
    ]
    return (*total, *ys)


def _added(body: Graph, carry: int) -> dict[int, Edge]:
    """Return the carried values that are read only to add something to them, each with what is added."""
    read: dict[Edge, int] = {}
    for edge in [*[edge for node in body.nodes for edge in edges_of(node)], *body.outputs]:
        read[edge] = read.get(edge, 0) + 1
    found: dict[int, Edge] = {}
    for index in range(carry):
        own, made = (body.inputs[index], 0), body.outputs[index]
        edges = edges_of(made[0])
        if made[0].op is add.op and own in edges and read[own] == read[made] == 1:
            other = edges[1] if edges[0] == own else edges[0]
            if other[0].spec(other[1]) == body.inputs[index].spec(0):
                found[index] = other
    return found


def _without_sums(body: Graph, found: dict[int, Edge]) -> Graph:
    """Return a body that returns what is added to carried values instead of their sums."""
    sums = {body.outputs[index][0] for index in found}
    nodes = type(body.nodes)([node for node in body.nodes if node not in sums])
    outputs = tuple([found.get(index, edge) for index, edge in enumerate(body.outputs)])
    return Graph(body.name, body.inputs, nodes, outputs, body.dims)


def _placing(node: Node) -> Callable[[Any], Any]:
    """Return how a step lays out what it adds, which the parts of a sum do not follow."""
    while node.op.has("conversion"):
        node = edges_of(node)[0][0]
    lower: Any = node.op.lower
    return (lambda x: lower(x, **node.attrs)) if node.op.has("places") else (lambda x: x)
