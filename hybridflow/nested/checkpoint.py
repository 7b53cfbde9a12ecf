"""`hf.checkpoint`: functions that are computed again for their gradient, instead of keeping intermediate values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, overload

from hybridflow.core.context import current
from hybridflow.core.errors import ArgumentTypeError
from hybridflow.core.functions import as_traced, require_function
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ir.builder import trace_with_variables
from hybridflow.ir.effects import has_effects
from hybridflow.nested.bodies import add_checks, assign_around, bind_all, inputs_around
from hybridflow.nested.checkpoint_calls import Call, Outcome
from hybridflow.nested.checkpoint_eager import run_recorded
from hybridflow.nested.checkpoint_graphs import CHECKPOINT
from hybridflow.nested.checkpoint_policies import Policy, checked_policy

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
