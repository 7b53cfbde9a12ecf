"""`hf.checkpoint`: functions that are computed again for their gradient, instead of keeping intermediate values."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from hybridflow.autodiff.backprop import BOUND, RAW, backprop
from hybridflow.autodiff.functional import fresh
from hybridflow.autodiff.gradients_on_demand import recorded_edge
from hybridflow.core import structures
from hybridflow.core.context import CONTEXT, Context, Recorder, context_of, current, set_tapes
from hybridflow.core.dispatch import as_arrays, bind_eagerly, execute, raw_input, record
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentTypeError, GradientError
from hybridflow.core.functions import as_traced, require_function
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.node import Edge, Node, format_where, next_sequence
from hybridflow.core.notes import requires
from hybridflow.core.op import Joint, MultiplyAdds, No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import WATCHED, Tensor, as_tensor, make_tensor
from hybridflow.core.variable import VARIABLE
from hybridflow.core.variable_log import VariableLog, logging_variables
from hybridflow.ir.builder import trace_with_variables
from hybridflow.ir.effects import has_effects
from hybridflow.nested.bodies import add_checks, assign_around, bind_all, inputs_around
from hybridflow.nested.checkpoint_graphs import CHECKPOINT
from hybridflow.nested.checkpoint_policies import Policy, checked_policy, keeps
from hybridflow.nested.custom_gradient import Free, free_edges

F = TypeVar("F", bound=Callable[..., Any])


@overload
def checkpoint(fn: F, /, *, policy: Any = "nothing") -> F: ...
@overload
def checkpoint(
    fn: None = None, /, *, policy: Any = "nothing"
) -> Callable[[F], F]: ...
@with_foreign_keywords
def checkpoint(fn: Callable[..., Any] | None = None, /, *args: Any, policy: Any = "nothing") -> Any:
    """Make a function that is computed again for its gradient, so that its intermediate values need not be kept.

    Results, gradients and random draws are those of the function itself. The recording keeps its tensor arguments, the
    outer tensors that it reads, the values of its Variables, and the results that the policy names.

    In a compiled function, the second run waits for the gradients that need it, so that XLA can neither merge it with
    the first run nor begin it early. In eager code, the gradient calls the function again, with Variables and random
    states as they were. The second call must do the same as the first; this is checked by comparing the operations.

    Args:
        fn: the function, of tensors and other values in any nesting; if left out, the call returns a decorator.
        *args: none: what it returns is called with the arguments.
        policy: the results that are kept in addition. ``"nothing"``: none. ``"dots"``: those of matrix products,
            convolutions and the like, which are the most expensive to compute again. ``"dots_without_batch"``: those
            of products whose two operands share no batch axis (with weights, but not attention scores).
            ``"everything"``: as without a checkpoint. Or a policy from `save_only_names` or `save_any_except`.

    Returns:
        A function with the same arguments and results, or a decorator.

    Raises:
        ArgumentError: if there is no policy of that name.
        ArgumentTypeError: if `fn` is not callable, or the policy has another type.
        GradientError: when a gradient is computed, if the function does something different in its second run.

    Example:
        >>> import hybridflow as hf
        >>> @hf.checkpoint
        ... def layer(x, w):
        ...     return hf.tanh(hf.tanh(x @ w) @ w)
        >>> hf.grad(lambda x: hf.sum(layer(x, x)))(hf.zeros((2, 2)))
        Tensor([[0., 0.],
                [0., 0.]], dtype=float32)

    Reference:
        T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.
    """
    if args:
        raise ArgumentTypeError("checkpoint: it makes a function, and is given that function's arguments too",
                                got=f"{len(args)} of them", hint="Call what it makes: hf.checkpoint(fn)(x).")
    chosen = checked_policy(policy)
    if fn is None:
        return lambda function: _checkpointed(function, chosen)
    return _checkpointed(fn, chosen)


def _checkpointed(fn: Callable[..., Any], policy: Policy) -> Callable[..., Any]:
    require_function("checkpoint", fn)

    @functools.wraps(fn)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if policy == "everything":
            return as_traced(fn)(*args, **kwargs)
        if current().tracer is not None:
            return _traced(fn, policy, args, kwargs)
        return run_recorded(Call(fn, args, kwargs), policy)

    return checkpointed


def _traced(fn: Callable[..., Any], policy: Policy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add one operation to the trace, and pass assigned Variables and checks on to the trace."""
    call = Call(fn, args, kwargs)
    arguments = call.take()
    outcomes: list[Outcome] = []

    def body(*tensors: Tensor) -> list[Tensor]:
        outcomes[:] = [call.run(tensors)]
        return [as_tensor(tensor) for tensor in outcomes[0].tensors]

    traced = trace_with_variables(body, [tensor.spec for tensor in arguments], call.name)
    inputs = [*arguments, *inputs_around(traced)]
    made: list[Tensor] = []
    if traced.graph.outputs or has_effects(traced.graph):
        made = bind_all(CHECKPOINT, inputs, {"graph": traced.graph, "policy": policy, "after": 0})
    count, assigned = len(outcomes[0].tensors), traced.assigned
    end = count + len(assigned)
    assign_around([state.variable for state in assigned], made[count:end])
    add_checks(traced.checks, made[end:])
    return outcomes[0].build(made[:count])


# -- eager checkpoints ------------------------------------------------------------------------------------------------
# Eager checkpoints: one recorded operation that keeps its inputs, and whose gradient rule calls the function again.

Step = tuple[str, tuple[Any, ...], tuple[Any, ...]]
"""What two runs are compared by: an operation's name, the shapes and dtypes of its outputs, and its numbers."""
_PLAIN = frozenset({bool, int, float, complex, str, tuple})
"""Types of attributes by which two runs are compared; others may be equal without comparing so."""


class _Recording:
    """A stand-in, in the second run, for the tapes of the first run: the same operations are recorded again."""

    def __init__(self, start: int) -> None:
        self.first_sequence = start

    def variable_read(self, variable: Any, edge: Edge) -> None:
        """Do nothing: this recording answers no questions."""

    def pause(self) -> None:
        """Stop recording until `resume`."""
        set_tapes(tuple([tape for tape in current().tapes if tape is not self]))

    def resume(self) -> None:
        """Continue recording."""
        set_tapes((*current().tapes, self))

    def recorded_here(self) -> bool:
        """Return True: it is of eager code, as the second run is."""
        return True

    def value_left(self, edge: Edge) -> None:
        """Do nothing: this recording answers no questions."""

    def value_cut(self, edge: Edge) -> None:
        """Do nothing: this recording answers no questions."""

    def value_assigned(self, variable: Any, edge: Edge) -> None:
        """Do nothing: this recording answers no questions."""

    def watches(self, edge: Edge) -> bool:
        """Whether the value was watched: nothing is, by name."""
        return False

    def has_recorded(self, node: Node) -> bool:
        """Whether a node was made while it recorded: no node of a trace was."""
        return False


class _Keeper:
    """A binder that runs operations and keeps the results that a policy names; in the second run it returns them.

    Args:
        policy: the policy.
        kept: the first run's kept results: per operation, its raw outputs and the backend, or None.
    """

    def __init__(self, policy: Policy, kept: Sequence[Any] | None = None) -> None:
        self.policy = policy
        self.kept: list[Any] = []
        self._left = None if kept is None else iter(kept)

    def bind(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> Any:
        """Apply an op."""
        if self.policy[0] == "but" and op.has("named") and attrs["name"] in self.policy:
            value = inputs[0]._value  # the operation that made it has the same value
            self.kept = [None if one is not None and one[0] is value else one for one in self.kept]
        chosen = self._keeps(op, inputs, attrs)
        return bind_eagerly(op, inputs, attrs, CONTEXT.get(), self._run if chosen else None)

    def _keeps(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> bool:
        if not isinstance(op.flops, MultiplyAdds):
            return keeps(self.policy, op, (), (), attrs)
        specs = [tensor.spec for tensor in inputs]
        outputs = op.infer(*specs, **attrs, residuals=False) if op.saves.hidden else op.infer(*specs, **attrs)
        return keeps(self.policy, op, outputs if isinstance(outputs, tuple) else (outputs,), specs, attrs)

    def _run(self, op: Op, inputs: tuple[Tensor, ...], attrs: dict[str, Any]) -> tuple[Any, list[Any], str]:
        kept = None if self._left is None else next(self._left, None)
        if kept is not None:
            return kept[0], [raw_input(tensor) for tensor in inputs], kept[1]
        outputs, values, backend = execute(op, inputs, attrs)
        if self._left is None:
            self.kept.append((outputs, backend))
        return outputs, values, backend


class _Run(NamedTuple):
    """The data kept of one run of a checkpointed function, besides its tensors.

    Attributes:
        call: the call, without its tensors.
        context: the context of the call.
        policy: the policy.
        kept: the kept results; see `_Keeper`.
        values: the values that Variables had.
        steps: the operations that led to its outputs.
        edges: the recorded outer values that it read.
        sums: checksums of its outputs; see `_checksum`.
    """

    call: Call
    context: Context
    policy: Policy
    kept: Sequence[Any]
    values: dict[Any, Any]
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    sums: tuple[int | None, ...]


def _keeper(policy: Policy, kept: Sequence[Any] | None = None) -> _Keeper | None:
    return None if policy == "nothing" else _Keeper(policy, kept)


def _context(like: Context, tapes: tuple[Recorder, ...]) -> AbstractContextManager[None]:
    return context_of(None, tapes, like.device, like.grad, like.autocast)


def run_recorded(call: Call, policy: Policy) -> Any:
    """Call a checkpointed function; if its inputs or outer values are recorded, record the call as one operation."""
    context = current()
    tensors = call.take()
    start = next_sequence()
    keeper = _keeper(policy)
    with logging_variables(VariableLog(None, keeper)) as log, _context(context, context.tapes):
        arguments = [fresh(tensor) for tensor in tensors]
        outcome = call.run(arguments)
    outputs = [recorded_edge(tensor._edge) for tensor in outcome.tensors]
    free = free_edges(start, outputs, _edges(arguments), None)
    connected = [_followed(tensor, context.start) for tensor in tensors]
    around = tuple([
        edge for edge in free.edges if edge[0].stamp >= context.start and not _is_own(edge, start, context.tapes)
    ])
    if not outputs or not (around or any(connected)):
        return outcome.build([make_tensor(tensor._value) for tensor in outcome.tensors])
    values = [tensor._value for tensor in tensors] + [None] * len(around)
    raw = [tensor._value for tensor in outcome.tensors]
    kept = () if keeper is None else keeper.kept
    run = _Run(call, context, policy, kept, log.values, _steps(free.nodes), around, tuple(map(_checksum, raw)))
    made = record(
        CHECKPOINTED, (*connected, *around), {"run": run}, values, raw[0] if len(raw) == 1 else tuple(raw), "host"
    )
    return outcome.build(list(made) if isinstance(made, tuple) else [made])


def _is_own(edge: Edge, start: int, tapes: Sequence[Recorder]) -> bool:
    """Whether the run made a value for a tape of its own, as `jvp` does: nobody outside asks for its gradient."""
    own = edge[0].op is WATCHED and edge[0].sequence > start and not requires(edge)
    return own and not any([tape.watches(edge) for tape in tapes])


def _followed(tensor: Tensor, start: int) -> Edge | None:
    edge = tensor._edge
    return edge if edge is not None and edge[0].stamp >= start and is_differentiable(tensor.dtype) else None


def _edges(tensors: Sequence[Tensor]) -> set[Edge]:
    return {tensor._edge for tensor in tensors if tensor._edge is not None}


def _steps(nodes: Sequence[Node]) -> tuple[Step, ...]:
    return tuple([(node.op.name, _visible(node), _numbers(node)) for node in nodes])


def _visible(node: Node) -> tuple[Any, ...]:
    """Return the shapes and dtypes of an operation's results; what a compiled call keeps for its gradient is none."""
    visible = len(node.outputs) - node.op.hidden_outputs(node.attrs)
    return tuple([_shape_and_dtype(one) for one in node.outputs[:visible]])


def _numbers(node: Node) -> tuple[Any, ...]:
    """Return an operation's plain attributes and the numbers among its inputs: a result may not show their change."""
    plain: list[tuple[str, Any]] = [(name, repr(value)) for name, value in node.attrs.items() if type(value) in _PLAIN]
    saved, specs = node.saved, node.input_specs
    for index, edge in enumerate(node.inputs):
        if edge is None:
            value = None if saved is None or index + 1 >= len(saved) else saved[index + 1]
            spec = None if specs is None else specs[index]
            if value is None and spec is not None:
                value = spec[2]
            if isinstance(value, np.ndarray | np.generic) and not value.ndim:
                plain.append((str(index), value.tobytes()))
    return tuple(plain)


def _shape_and_dtype(output: Any) -> tuple[Any, Any]:
    return (output.shape, output.dtype) if isinstance(output, TensorSpec) else output


def _gradients(F: Any, g: Any, y: Any, *xs: Any, wanted: tuple[bool, ...], run: _Run) -> list[Any]:
    del F, y
    tensors = list(xs[: len(xs) - len(run.edges)])
    tapes, context = current().tapes, run.context
    higher = current().tracer is not None or bool(tapes)  # a walk that is traced, such as that of a Jacobian
    if current().grad and not higher:
        higher = any(map(requires, [*[tensor._edge for tensor in tensors], *run.edges]))
    start = next_sequence()
    tapes = (*tapes, _Recording(context.start))
    with logging_variables(VariableLog(run.values, _keeper(run.policy, run.kept))), _context(context, tapes):
        arguments = [fresh(tensor) for tensor in tensors]
        outcome = run.call.run(arguments)
    outputs = [tensor._edge for tensor in outcome.tensors]
    free = free_edges(start, outputs, _edges(arguments), None)
    if not any([edge[0].op is WATCHED and edge not in free.edges for edge in run.edges]):
        free = free._replace(edges=[edge for edge in free.edges if not _is_own(edge, start, tapes)])
    _require_same(run, free)
    _require_equal(run, outcome.tensors)
    gs = g if isinstance(g, tuple) else (g,)
    starts = [
        (edge, one if higher else one._value)
        for edge, one in zip(outputs, gs, strict=True)
        if edge is not None and one is not None and is_differentiable(edge[0].spec(edge[1]).dtype)
    ]
    sources = _edges([tensor for tensor, want in zip(arguments, wanted, strict=False) if want]) | set(free.edges)
    gradients = backprop(starts, sources, free.nodes, BOUND if higher else RAW)
    if not higher:
        gradients = {edge: make_tensor(as_arrays(value)) for edge, value in gradients.items()}
    return [
        *[None if tensor._edge is None else gradients.get(tensor._edge) for tensor in arguments],
        *_of_around(run.edges, free.edges, gradients),
    ]


def _key(edge: Edge) -> Any:
    """Return a key of a value that is the same in every run; a Variable's edge differs from run to run."""
    return id(edge[0].attrs["variable"]) if edge[0].op is VARIABLE else edge


def _of_around(before: Sequence[Edge], now: Sequence[Edge], gradients: dict[Edge, Any]) -> list[Any]:
    totals: dict[Any, Any] = {}
    for edge in now:
        one = gradients.get(edge)
        if one is not None:
            key = _key(edge)
            totals[key] = totals[key] + one if key in totals else one
    return [totals.pop(_key(edge), None) for edge in before]


def _require_same(run: _Run, free: Free) -> None:
    """Raise if a function did something different in its second run.

    Raises:
        GradientError: if it did; the message names the first operation that differs.
    """
    steps = _steps(free.nodes)
    if steps == run.steps:
        strange = {_key(edge) for edge in free.edges} - {_key(edge) for edge in run.edges}
        strange -= {_key(edge) for edge in free.edges if edge[0].stamp < run.context.start}
        if not strange:
            return
        what, place = "reads other tensors around it", None
    else:
        index = next((i for i, (a, b) in enumerate(zip(steps, run.steps, strict=False)) if a != b), None)
        if index is None:
            what, place = f"makes {len(steps)} operations, and made {len(run.steps)}", None
        else:
            now, before = steps[index], run.steps[index]
            other = f"{_text(now)} where it had {_text(before)}"
            what = f"has {other if now[:2] != before[:2] else f'other numbers in {_text(now)}'}"
            place = free.nodes[index].where
    raise GradientError(
        f"checkpoint: {run.call.name} does something else when it is called again: it {what}",
        got=f"at {format_where(place)}" if place is not None else None,
        hint="Let it depend on nothing but its arguments and Variables, and on hybridflow's random numbers."
    )


def _checksum(value: Any) -> int | None:
    """Return a checksum of a result's bytes, for which it need not be kept; None if it is not in the host's memory."""
    if not isinstance(value, np.ndarray | np.generic):
        return None
    return zlib.crc32(np.ascontiguousarray(value).view(np.uint8).data) if value.size else 0


def _require_equal(run: _Run, tensors: Sequence[Tensor]) -> None:
    """Raise if a function gave other values in its second run: its gradient would belong to another function.

    Raises:
        GradientError: if it did.
    """
    for index, (tensor, before) in enumerate(zip(tensors, run.sums, strict=True)):
        if before is not None and _checksum(tensor._value) not in (before, None):
            raise GradientError(
                f"checkpoint: {run.call.name} gives other values when it is called again",
                got=f"result {index} of {len(run.sums)}, {tensor.spec}, differs from the first call's",
                hint="Python state that it reads has changed since. Pass what changes as an argument, or keep "
                     "it in a Variable."
            )


def _text(step: Step) -> str:
    name, outputs, _ = step
    return f"{name} giving {', '.join(str(make_spec(*one)) for one in outputs)}"


def _not_run(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("an eager checkpoint is recorded, never run")


CHECKPOINTED = register(
    Op(
        "checkpointed",
        _not_run,
        _not_run,
        _not_run,
        Joint(_gradients),
        saves=Saves(x="all"),
        samples=No("made by @hf.checkpoint; tested with it"),
        traits=frozenset({"tensor_rule"}),
        onnx=No("it is on no graph"),
    )
)


# -- calls and results, each split into its tensors and the rest ------------------------------------------------------


class Call:
    """A call whose tensor arguments can be replaced.

    A tensor that is given several times is one argument: its gradient is then added up as it is without a checkpoint.

    Attributes:
        name: the function's name.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        self._fn = fn
        self._leaves, self._tree = structures.flatten((args, kwargs))
        self._places = [index for index, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        self._numbers: list[int] = []

    def take(self) -> list[Tensor]:
        """Return the distinct tensors among the arguments, and drop the call's references to them."""
        distinct: dict[Any, tuple[int, Tensor]] = {}
        for index in self._places:
            tensor, self._leaves[index] = self._leaves[index], None
            key = id(tensor) if tensor._edge is None else tensor._edge
            if key not in distinct:
                distinct[key] = len(distinct), tensor
            self._numbers.append(distinct[key][0])
        return [tensor for _, tensor in distinct.values()]

    def run(self, tensors: Sequence[Tensor]) -> Outcome:
        """Call the function with other tensors."""
        leaves = list(self._leaves)
        for position, number in zip(self._places, self._numbers, strict=True):
            leaves[position] = tensors[number]
        args, kwargs = structures.unflatten(self._tree, leaves)
        return Outcome(as_traced(self._fn)(*args, **kwargs))


class Outcome:
    """A result whose tensors can be replaced."""

    def __init__(self, result: Any) -> None:
        self._leaves, self._tree = structures.flatten(result)
        self._places = [index for index, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        self.tensors: list[Tensor] = [self._leaves[index] for index in self._places]

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """Return the result with other tensors."""
        leaves = list(self._leaves)
        for position, tensor in zip(self._places, tensors, strict=True):
            leaves[position] = tensor
        return structures.unflatten(self._tree, leaves)
