"""`hf.cond`, `hf.while_loop`, `hf.scan`: plain Python when eager, nested graphs in a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax import lax

from hybridflow.autodiff.functional import fresh
from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.autodiff.transform import SplitGradient, differentiate, split_gradient
from hybridflow.backend.host_calls import goes_on
from hybridflow.core.context import current
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, message, structure_text
from hybridflow.core.op import No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ir.builder import Check, GraphBuilder, Traced, trace_body
from hybridflow.ir.effects import has_effects
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Graph

_TESTED = No("made by control flow; tested in tests/test_control_flow.py")


def _leaves(tree: Any) -> tuple[list[Tensor], Any]:
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    return [as_tensor(leaf) for leaf in leaves], treedef


def _own(tree: Any) -> tuple[list[Tensor], Any]:
    """As `_leaves`, each a tensor of its own: in a trace, what goes in or out of a body is never what is around it."""
    leaves, treedef = _leaves(tree)
    return [fresh(leaf) for leaf in leaves], treedef


def _predicate(name: str, pred: Any) -> Tensor:
    tensor = as_tensor(pred)
    if tensor.dtype != np.bool_ or tensor.shape != ():
        raise DTypeError(
            message(f"{name}: the condition must be a bool of shape ()", got=str(tensor.spec),
                    hint="Reduce it with hf.all or hf.any, or compare.")
        )  # fmt: skip
    return tensor


def _trace_function(
    name: str, fn: Callable[..., Any], specs: Sequence[TensorSpec], build: Callable[[Sequence[Tensor]], tuple[Any, ...]]
) -> tuple[Traced, Any, list[TensorSpec]]:
    """Trace a user's function of structures; return its graph, result structure and result specs."""
    found: dict[str, Any] = {}

    def flat(*tensors: Tensor) -> list[Tensor]:
        outputs, found["tree"] = _leaves(fn(*build(tensors)))
        found["specs"] = [output.spec for output in outputs]
        return outputs

    traced = trace_body(flat, specs, name)
    return traced, found["tree"], found["specs"]


def _extend(graph: Graph, before: int, after: int, visible: int) -> Graph:
    """Return a branch's graph with True in the places of the other branch's checks."""

    def padded(*xs: Tensor) -> list[Tensor]:
        outputs = inline(graph, xs)
        true = [as_tensor(np.asarray(True))]
        return [*outputs[:visible], *true * before, *outputs[visible:], *true * after]

    return trace_body(padded, graph.input_specs, graph.name).graph


def _add_checks(checks: Sequence[Check], oks: Sequence[Tensor]) -> None:
    tracer = cast(GraphBuilder, current().tracer)
    for check, ok in zip(checks, oks, strict=True):
        tracer.checks.append(check._replace(ok=ok))


def _several(made: Any) -> list[Tensor]:
    return list(made) if isinstance(made, tuple) else [made]


# -- cond ---------------------------------------------------------------------------------------------------------


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any) -> Any:
    """Run one of two functions, chosen by a condition.

    Args:
        pred: a bool of shape ().
        true_fn, false_fn: functions of the operands; in a trace both are traced, and their results must have one
            structure, with equal shapes and dtypes. They may read tensors and Variables from around them.
        *operands: tensors in any nesting.

    Returns:
        The result of the function that was chosen.

    Raises:
        DTypeError: a condition that is not a bool of shape (), or results of different dtypes.
        ShapeError: results of different shapes.
        ArgumentError: results of different structures.

    Example:
        >>> import hybridflow as hf
        >>> hf.cond(hf.asarray(True), lambda x: x + 1, lambda x: x - 1, hf.asarray(1.0))
        Tensor(2., dtype=float32)
    """
    predicate = _predicate("cond", pred)
    tracer = current().tracer
    if tracer is None:
        leaves, tree = _own(operands)
        found, tree = _own((true_fn if bool(predicate) else false_fn)(*jax.tree_util.tree_unflatten(tree, leaves)))
        return jax.tree_util.tree_unflatten(tree, found)
    leaves, tree = _leaves(operands)
    specs = [leaf.spec for leaf in leaves]

    def build(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        return jax.tree_util.tree_unflatten(tree, tensors)

    when_true, true_tree, true_specs = _trace_function("cond_true", true_fn, specs, build)
    when_false, false_tree, false_specs = _trace_function("cond_false", false_fn, specs, build)
    _require_same_results(true_tree, true_specs, false_tree, false_specs)
    visible, n_true, n_false = len(true_specs), len(when_true.checks), len(when_false.checks)
    made = _several(
        bind(
            COND,
            (predicate, *leaves, *when_true.captures, *when_false.captures),
            {
                "true": _extend(when_true.graph, 0, n_false, visible) if n_false else when_true.graph,
                "false": _extend(when_false.graph, n_true, 0, visible) if n_true else when_false.graph,
                "operands": len(leaves),
                "captured": len(when_true.captures),
            },
        )
        if visible + n_true + n_false or has_effects(when_true.graph) or has_effects(when_false.graph)
        else ()
    )
    _add_checks((*when_true.checks, *when_false.checks), made[visible:])
    return jax.tree_util.tree_unflatten(true_tree, made[:visible])


def _require_same_results(true_tree: Any, true: list[TensorSpec], false_tree: Any, false: list[TensorSpec]) -> None:
    if true_tree != false_tree:
        raise ArgumentError(
            message("cond: the branches return different structures",
                    got=f"{structure_text(true_tree)} if true, {structure_text(false_tree)} if false",
                    hint="Return the same structure from both.")
        )  # fmt: skip
    for index, (a, b) in enumerate(zip(true, false, strict=True)):
        if a.dtype != b.dtype:
            raise DTypeError(
                message(f"cond: result {index} is {a.dtype} if true and {b.dtype} if false", got=f"{a}, {b}",
                        hint="Cast one of them.")
            )  # fmt: skip
        if a.shape != b.shape:
            raise ShapeError(
                message(f"cond: result {index} has shape {a.shape} if true and {b.shape} if false", got=f"{a}, {b}",
                        hint="Give both the same shape.")
            )  # fmt: skip


def _branch_inputs(xs: Sequence[Any], operands: int, captured: int) -> tuple[Sequence[Any], Sequence[Any]]:
    shared, rest = xs[:operands], xs[operands:]
    return (*shared, *rest[:captured]), (*shared, *rest[captured:])


def _cond_lower(pred: Any, *xs: Any, true: Graph, false: Graph, operands: int, captured: int) -> Any:
    for_true, for_false = _branch_inputs(xs, operands, captured)
    run_true, run_false = lower_graph(true), lower_graph(false)
    outputs = lax.cond(pred, lambda: tuple(run_true(*for_true)), lambda: tuple(run_false(*for_false)))
    return outputs[0] if len(outputs) == 1 else outputs


def _cond_infer(pred: TensorSpec, *xs: TensorSpec, true: Graph, **attrs: Any) -> Any:
    del pred, xs, attrs
    return true.output_specs


def _cond_vjp(
    F: Any, g: Any, y: Any, pred: Any, *xs: Any, true: Graph, false: Graph, operands: int, captured: int
) -> list[Any]:
    """Choose again: each branch's joint graph recomputes its forward pass."""
    del F, y
    gs = list(g) if isinstance(g, tuple) else [g]
    given = tuple([one is not None for one in gs])
    cotangents = [one for one in gs if one is not None]
    for_true, for_false = _branch_inputs(xs, operands, captured)
    d_true = differentiate(true, given, tuple([True] * len(for_true)))
    d_false = differentiate(false, given, tuple([True] * len(for_false)))
    positions_true = [*range(operands), *range(operands, operands + captured)]
    positions_false = [*range(operands), *range(operands + captured, len(xs))]
    reached = sorted(
        {p for p, has in zip(positions_true, d_true.present, strict=True) if has}
        | {p for p, has in zip(positions_false, d_false.present, strict=True) if has}
    )
    if not reached:
        return [None] * (len(xs) + 1)

    def branch(gradient: Any, positions: list[int], inputs: Sequence[Any]) -> Graph:
        def run(*tensors: Tensor) -> list[Tensor]:
            found = iter(inline(gradient.graph, tensors))
            mine = {p: next(found) for p, has in zip(positions, gradient.present, strict=True) if has}
            return [
                mine[p] if p in mine else PUBLIC.full(xs[p].shape, 0, dtype=xs[p].dtype)
                for p in reached
            ]  # fmt: skip

        return trace_body(run, [x.spec for x in (*inputs, *cotangents)], gradient.graph.name).graph

    graph_true = branch(d_true, positions_true, for_true)
    graph_false = branch(d_false, positions_false, for_false)
    # Cotangents are operands of both branches, the captured values stay where they were.
    shared, rest = xs[:operands], xs[operands:]
    inputs = (*shared, *cotangents, *rest)
    found = _several(
        bind(
            COND,
            (pred, *inputs),
            {
                "true": _moved(graph_true, operands, captured, len(cotangents)),
                "false": _moved(graph_false, operands, len(rest) - captured, len(cotangents)),
                "operands": operands + len(cotangents),
                "captured": captured,
            },
        )
    )
    gradients: list[Any] = [None] * (len(xs) + 1)
    for position, gradient in zip(reached, found, strict=True):
        gradients[position + 1] = gradient
    return gradients


def _moved(graph: Graph, operands: int, captured: int, cotangents: int) -> Graph:
    """Return the graph with its last inputs, the cotangents, between the operands and the captured values."""
    inputs = graph.inputs
    middle = inputs[operands + captured :]
    assert len(middle) == cotangents
    moved = (*inputs[:operands], *middle, *inputs[operands : operands + captured])
    return Graph(graph.name, moved, graph.nodes, graph.outputs, graph.dims)


COND = register(
    Op(
        "cond", No("Python chooses in eager mode"), _cond_lower, _cond_infer, _cond_vjp,
        saves=Saves(x="all"), samples=_TESTED, traits=frozenset({"nested"}),
    )
)  # fmt: skip


# -- scan ---------------------------------------------------------------------------------------------------------


def scan(fn: Callable[..., Any], init: Any, xs: Any) -> tuple[Any, Any]:
    """Run a function over the leading axis of tensors, carrying a value along.

    Args:
        fn: ``fn(carry, x)`` returns ``(carry, y)``; the carry keeps its structure, shapes and dtypes.
        init: the first carry.
        xs: tensors of one leading size ``n``, in any nesting.

    Returns:
        The last carry, and the `y` of every step stacked along a new first axis of size ``n``.

    Raises:
        ArgumentError: a carry that changes its structure, or no tensors to run over.
        ShapeError, DTypeError: a carry that changes its shape or dtype, or leading sizes that differ.

    Example:
        >>> import hybridflow as hf
        >>> total, sums = hf.scan(lambda c, x: (c + x, c + x), 0.0, hf.asarray([1.0, 2.0, 3.0]))
        >>> sums
        Tensor([1., 3., 6.], dtype=float32)
    """
    carry, carry_tree = _leaves(init)
    sequences, xs_tree = _leaves(xs)
    length = _scan_length(sequences)
    if current().tracer is None and length != 0:
        return _scan_eager(fn, carry, carry_tree, sequences, xs_tree, length)
    specs = [*[leaf.spec for leaf in carry], *[make_spec(leaf.shape[1:], leaf.dtype) for leaf in sequences]]
    found: dict[str, Any] = {}

    def body(*tensors: Tensor) -> list[Tensor]:
        before = tensors[: len(carry)]
        new_carry, y = _pair(
            fn(
                jax.tree_util.tree_unflatten(carry_tree, before),
                jax.tree_util.tree_unflatten(xs_tree, tensors[len(carry) :]),
            )
        )
        after, after_tree = _leaves(new_carry)
        _require_same_carry("scan", carry_tree, before, after_tree, after)
        ys, found["tree"] = _leaves(y)
        found["count"] = len(ys)
        return [*after, *ys]

    traced = trace_body(body, specs, "scan_body")
    if current().tracer is None:
        ys = [
            PUBLIC.full((0, *spec.shape), 0, dtype=spec.dtype) for spec in traced.graph.output_specs[len(carry) :]
        ][: found["count"]]
        return (
            jax.tree_util.tree_unflatten(carry_tree, _own(carry)[0]),
            jax.tree_util.tree_unflatten(found["tree"], ys),
        )
    made = _several(
        bind(
            SCAN,
            (*carry, *sequences, *traced.captures),
            {"body": traced.graph, "carry": len(carry), "sequences": len(sequences), "length": length,
             "reverse": False},
        )
    )  # fmt: skip
    end = len(carry) + found["count"]
    _add_checks(traced.checks, [PUBLIC.all(flags) for flags in made[end:]])
    last = jax.tree_util.tree_unflatten(carry_tree, made[: len(carry)])
    return last, jax.tree_util.tree_unflatten(found["tree"], made[len(carry) : end])


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(cast("tuple[Any, ...]", result)) != 2:
        raise ArgumentTypeError(
            message("scan: the function must return (carry, y)", got=f"a {type(result).__name__}")
        )
    return cast("tuple[Any, Any]", result)


def _scan_length(sequences: list[Tensor]) -> Any:
    if not sequences:
        raise ArgumentError(message("scan: there is nothing to run over", hint="Pass at least one tensor as xs."))
    for tensor in sequences:
        if not tensor.shape:
            raise ShapeError(message("scan: a tensor of shape () has no leading axis", got=str(tensor.spec)))
        if tensor.shape[0] != sequences[0].shape[0]:
            raise ShapeError(
                message(f"scan: leading sizes differ: {sequences[0].shape[0]} and {tensor.shape[0]}",
                        got=", ".join(str(t.spec) for t in sequences))
            )  # fmt: skip
    return sequences[0].shape[0]


def _scan_eager(
    fn: Callable[..., Any], carry: list[Tensor], carry_tree: Any, sequences: list[Tensor], xs_tree: Any, length: int
) -> tuple[Any, Any]:
    from hybridflow.ops.shape import stack

    state = jax.tree_util.tree_unflatten(carry_tree, _own(carry)[0])
    rows: list[list[Tensor]] = []
    y_tree: Any = None
    for index in range(length):
        state, y = _pair(fn(state, jax.tree_util.tree_unflatten(xs_tree, [cast(Any, t)[index] for t in sequences])))
        after, after_tree = _own(state)
        _require_same_carry("scan", carry_tree, carry, after_tree, after)
        state = jax.tree_util.tree_unflatten(carry_tree, after)
        row, y_tree = _leaves(y)
        rows.append(row)
    ys = [stack([row[i] for row in rows]) for i in range(len(rows[0]))]
    return state, jax.tree_util.tree_unflatten(y_tree, ys)


def _require_same_carry(
    op: str, tree: Any, before: Sequence[Tensor], after_tree: Any, after: Sequence[Tensor]
) -> None:
    if tree != after_tree:
        raise ArgumentError(
            message(f"{op}: the carried values change their structure",
                    got=f"{structure_text(tree)} before, {structure_text(after_tree)} after",
                    hint="Return the structure that came in.")
        )  # fmt: skip
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_flatten_with_path(jax.tree_util.tree_unflatten(tree, before))[0]
    ]
    for path, a, b in zip(paths, before, after, strict=True):
        if a.dtype != b.dtype:
            raise DTypeError(
                message(f"{op}: carried value{path} is {a.dtype} before and {b.dtype} after a step",
                        got=f"{a.spec}, {b.spec}", hint="Cast it, or start with the other dtype.")
            )  # fmt: skip
        if a.shape != b.shape:
            raise ShapeError(
                message(f"{op}: carried value{path} has shape {a.shape} before and {b.shape} after a step",
                        got=f"{a.spec}, {b.spec}", hint="Keep the shape, or start with the other one.")
            )  # fmt: skip


def _split_body(body: Graph, carry: int) -> SplitGradient:
    """Split a body; the carry a step began with is gone in the backward pass, so it is handed over."""
    count = len(body.inputs)
    return split_gradient(body, tuple([True] * count), tuple([index >= carry for index in range(count)]))


def _scan_lower(
    *xs: Any, body: Graph, carry: int, sequences: int, length: Any, reverse: bool, residuals: bool = False
) -> Any:
    run = lower_graph(_split_body(body, carry).forward if residuals else body)
    constants = xs[carry + sequences :]

    def step(state: tuple[Any, ...], x: tuple[Any, ...]) -> Any:
        outputs = tuple(run(*state, *x, *constants))
        return outputs[:carry], outputs[carry:]

    last, ys = lax.scan(step, tuple(xs[:carry]), tuple(xs[carry : carry + sequences]), length=length, reverse=reverse)
    outputs = (*last, *ys)
    return outputs[0] if len(outputs) == 1 else outputs


def _scan_infer(
    *specs: TensorSpec, body: Graph, carry: int, sequences: int, length: Any, reverse: bool, residuals: bool = False
) -> Any:
    del specs, sequences, reverse
    outputs = (_split_body(body, carry).forward if residuals else body).output_specs
    return (*outputs[:carry], *[make_spec((length, *spec.shape), spec.dtype) for spec in outputs[carry:]])


def _scan_hidden(attrs: dict[str, Any]) -> int:
    return _split_body(attrs["body"], attrs["carry"]).residuals


def _zeros(like: Any) -> Tensor:
    return PUBLIC.full(like.shape, 0, dtype=like.dtype)


def _scan_vjp(
    F: Any, g: Any, y: Any, *xs: Any, body: Graph, carry: int, sequences: int, length: Any, reverse: bool
) -> list[Any]:
    """Scan the backward body the other way, carrying the carry's cotangents and the sums of the constants'."""
    del F
    split = _split_body(body, carry)
    visible = len(body.outputs)
    outputs = y if isinstance(y, tuple) else (y,)
    gs = list(g) if isinstance(g, tuple) else [g]
    constants_from = carry + sequences
    given = [index for index, has in enumerate(split.given) if has]
    of_carry = [index for index in given if index < carry]
    of_ys = [index for index in given if index >= carry]
    summed = [index for index in range(constants_from, len(xs)) if split.present[index]]
    rows = [index for index in range(carry, constants_from) if split.present[index]]
    state = [_zeros(outputs[i]) if gs[i] is None else gs[i] for i in of_carry] + [_zeros(xs[i]) for i in summed]
    sliced = [_zeros(outputs[i]) if gs[i] is None else gs[i] for i in of_ys]
    sliced += [*outputs[visible:], *[xs[i] for i in split.reads if i < constants_from]]
    constants = [xs[i] for i in split.reads if i >= constants_from]

    def backward(*tensors: Tensor) -> list[Tensor]:
        given = iter(tensors)

        def take(count: int) -> list[Tensor]:
            return [next(given) for _ in range(count)]

        d_carry, sums, d_ys = take(len(of_carry)), take(len(summed)), take(len(of_ys))
        residuals, reads = take(split.residuals), take(len(split.reads))
        found = iter(inline(split.backward, [*reads, *residuals, *d_carry, *d_ys]))
        gradients = {i: next(found) for i, has in enumerate(split.present) if has}
        new_carry = [gradients[i] if i in gradients else _zeros(xs[i]) for i in of_carry]
        new_sums = [cast(Any, old) + gradients[i] for old, i in zip(sums, summed, strict=True)]
        return [*new_carry, *new_sums, *[gradients[i] for i in rows]]

    specs = [t.spec for t in state]
    specs += [make_spec(t.shape[1:], t.dtype) for t in sliced] + [t.spec for t in constants]
    traced = trace_body(backward, specs, f"{body.name}_backward")
    result: list[Any] = [None] * len(xs)
    if traced.graph.outputs:
        attrs = {"body": traced.graph, "carry": len(state), "sequences": len(sliced), "length": length,
                 "reverse": not reverse}  # fmt: skip
        made = _several(bind(SCAN, (*state, *sliced, *constants, *traced.captures), attrs))
        for i, value in zip((*of_carry, *summed, *rows), made, strict=True):
            result[i] = value
    return result


SCAN = register(
    Op(
        "scan", No("Python loops in eager mode"), _scan_lower, _scan_infer, _scan_vjp,
        saves=Saves(x="all", hidden=_scan_hidden), samples=_TESTED, traits=frozenset({"nested"}),
    )
)  # fmt: skip


# -- while --------------------------------------------------------------------------------------------------------


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], loop_vars: Any, max_iterations: int | None = None
) -> Any:
    """Run a function on its own results while a condition holds.

    Args:
        cond_fn: ``cond_fn(*loop_vars)`` returns a bool of shape ().
        body_fn: ``body_fn(*loop_vars)`` returns the new loop variables (a bare value if there is one).
        loop_vars: a tuple or list of tensors or structures; each keeps its structure, shapes and dtypes.
        max_iterations: stop after this many steps. Gradients through a traced loop need it, since XLA must know how
            much to keep; such a loop then always takes the time of that many conditions.

    Returns:
        The last loop variables, in the structure of `loop_vars`.

    Raises:
        ArgumentError, ShapeError, DTypeError: a loop variable that changes its structure, shape or dtype.
        ArgumentTypeError: `max_iterations` that is no integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.while_loop(lambda i, s: i < 4, lambda i, s: (i + 1, s + i), (0, 0))
        (Tensor(4, dtype=int32), Tensor(6, dtype=int32))
    """
    _require_count(max_iterations)
    leaves, tree = _leaves(tuple(loop_vars))

    def step(*state: Any) -> Any:
        result = body_fn(*state)
        return (result,) if len(state) == 1 and not isinstance(result, tuple | list) else tuple(result)

    if current().tracer is None:
        found = _while_eager(cond_fn, step, leaves, tree, max_iterations)
    elif max_iterations is not None:
        found = _while_bounded(cond_fn, step, jax.tree_util.tree_unflatten(tree, leaves), max_iterations)
    else:
        found = _while_traced(cond_fn, step, leaves, tree)
    return list(found) if isinstance(loop_vars, list) else found


def _require_count(bound: Any) -> None:
    if bound is None or (isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0):
        return
    raise (ArgumentError if isinstance(bound, int) else ArgumentTypeError)(
        message("while_loop: max_iterations must be a count of steps", got=f"max_iterations={bound!r}",
                hint="Pass an integer from 0 on, or None for no bound.")
    )  # fmt: skip


def _while_eager(
    cond_fn: Callable[..., Any], step: Callable[..., Any], leaves: list[Tensor], tree: Any, bound: int | None
) -> Any:
    state = jax.tree_util.tree_unflatten(tree, _own(leaves)[0])
    count = 0
    while (bound is None or count < bound) and bool(_predicate("while_loop", cond_fn(*state))):
        after, after_tree = _own(step(*state))
        _require_same_carry("while_loop", tree, leaves, after_tree, after)
        state = jax.tree_util.tree_unflatten(tree, after)
        count += 1
    return state


def _while_bounded(cond_fn: Callable[..., Any], step: Callable[..., Any], state: Any, bound: int) -> Any:
    """A scan of conditional steps: once the condition fails the state, and so the condition, stays as it is."""

    def one(carry: Any, _: Any) -> Any:
        # A body's own numbers may come back as Python's: as tensors they are checked against what they were.
        def run(*values: Any) -> Any:
            after, after_tree = _leaves(step(*values))
            before, tree = _leaves(values)
            _require_same_carry("while_loop", tree, before, after_tree, after)
            return jax.tree_util.tree_unflatten(tree, after)

        return cond(_predicate("while_loop", cond_fn(*carry)), run, lambda *values: values, *carry), None

    return scan(one, state, np.zeros(bound, np.bool_))[0]


def _while_traced(
    cond_fn: Callable[..., Any], step: Callable[..., Any], leaves: list[Tensor], tree: Any
) -> Any:
    specs = [leaf.spec for leaf in leaves]

    def condition(*tensors: Tensor) -> list[Tensor]:
        return [_predicate("while_loop", cond_fn(*jax.tree_util.tree_unflatten(tree, tensors)))]

    def body(*tensors: Tensor) -> list[Tensor]:
        after, after_tree = _leaves(step(*jax.tree_util.tree_unflatten(tree, tensors)))
        _require_same_carry("while_loop", tree, tensors, after_tree, after)
        return after

    cond_traced = trace_body(condition, specs, "while_condition")
    body_traced = trace_body(body, specs, "while_body")
    checks = (*cond_traced.checks, *body_traced.checks)
    count = len(leaves)
    if checks:
        cond_traced, body_traced = _while_with_flags(cond_traced, body_traced, count)
    flags = [as_tensor(np.asarray(True)) for _ in checks]
    attrs = {
        "cond": cond_traced.graph,
        "body": body_traced.graph,
        "carry": count + len(flags),
        "captured": len(cond_traced.captures),
    }
    made = _several(bind(WHILE, (*leaves, *flags, *cond_traced.captures, *body_traced.captures), attrs))
    _add_checks(checks, made[count:])
    return jax.tree_util.tree_unflatten(tree, made[:count])


def _while_with_flags(cond_traced: Traced, body_traced: Traced, count: int) -> tuple[Traced, Traced]:
    """Carry one flag per check, so that a failed check in any step is still known after the loop.

    The condition runs once more than the body, so the body checks it on the values it leaves behind as well.
    """
    n_cond, n_body = len(cond_traced.checks), len(body_traced.checks)
    state = list(cond_traced.graph.input_specs[:count])
    flag = make_spec((), np.dtype(np.bool_))

    def condition(*tensors: Tensor) -> list[Tensor]:
        values, captured = tensors[:count], tensors[count + n_cond + n_body :]
        return inline(cond_traced.graph, (*values, *captured))[:1]

    def body(*tensors: Tensor) -> list[Tensor]:
        values, flags = tensors[:count], tensors[count : count + n_cond + n_body]
        of_body = tensors[count + n_cond + n_body :]
        outputs = inline(body_traced.graph, (*values, *of_body))
        before = inline(cond_traced.graph, (*values, *cond_traced.captures))[1:]
        after = inline(cond_traced.graph, (*outputs[:count], *cond_traced.captures))[1:]
        found = [PUBLIC.logical_and(a, b) for a, b in zip(before, after, strict=True)] + outputs[count:]
        return [*outputs[:count], *[PUBLIC.logical_and(a, b) for a, b in zip(flags, found, strict=True)]]

    flags = [flag] * (n_cond + n_body)
    new_cond = trace_body(
        condition, [*state, *flags, *cond_traced.graph.input_specs[count:]], cond_traced.graph.name
    )
    new_body = trace_body(body, [*state, *flags, *body_traced.graph.input_specs[count:]], body_traced.graph.name)
    return (
        cond_traced._replace(graph=new_cond.graph),
        body_traced._replace(graph=new_body.graph, captures=(*body_traced.captures, *new_body.captures)),
    )


def _while_lower(*xs: Any, cond: Graph, body: Graph, carry: int, captured: int) -> Any:
    for_cond, for_body = xs[carry : carry + captured], xs[carry + captured :]
    run_cond, run_body = lower_graph(cond), lower_graph(body)
    calls_host = has_effects(cond) or has_effects(body)

    def condition(state: Any) -> Any:
        holds = run_cond(*state, *for_cond)[0]
        return lax.bitwise_and(holds, goes_on()) if calls_host else holds

    outputs = lax.while_loop(
        condition,
        lambda state: tuple(run_body(*state, *for_body)),
        tuple(xs[:carry]),
    )
    return outputs[0] if len(outputs) == 1 else outputs


def _while_infer(*specs: TensorSpec, carry: int, **attrs: Any) -> Any:
    del attrs
    return tuple([make_spec(spec.shape, spec.dtype) for spec in specs[:carry]])


WHILE = register(
    Op(
        "while", No("Python loops in eager mode"), _while_lower, _while_infer,
        No("XLA does not know how many steps to keep; pass max_iterations to hf.while_loop"),
        saves=Saves(x="all"), samples=_TESTED, traits=frozenset({"nested"}),
    )
)  # fmt: skip
