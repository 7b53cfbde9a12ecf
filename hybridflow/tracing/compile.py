"""`hf.compile`: a function, or a decorator with options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, cast, overload

from hybridflow.guards.dynamic import Dynamic
from hybridflow.tracing.function import CompiledFunction

P = ParamSpec("P")
R = TypeVar("R")


@overload
def compile(
    fn: Callable[P, R],
    /,
    *,
    input_signature: Sequence[Any] | None = None,
    dynamic: Dynamic = "auto",
    static_argnames: Iterable[str] = (),
    autograph: bool = True,
    max_depth: int = 32,
    memory_budget: int | str | None = None,
    max_traces: int = 64,
    name: str | None = None,
) -> CompiledFunction[P, R]: ...
@overload
def compile(
    fn: None = None,
    /,
    *,
    input_signature: Sequence[Any] | None = None,
    dynamic: Dynamic = "auto",
    static_argnames: Iterable[str] = (),
    autograph: bool = True,
    max_depth: int = 32,
    memory_budget: int | str | None = None,
    max_traces: int = 64,
    name: str | None = None,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...
def compile(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    input_signature: Sequence[Any] | None = None,
    dynamic: Dynamic = "auto",
    static_argnames: Iterable[str] = (),
    autograph: bool = True,
    max_depth: int = 32,
    memory_budget: int | str | None = None,
    max_traces: int = 64,
    name: str | None = None,
) -> Any:
    """Compile a function: trace it once per signature, lower the graph to XLA, and run that from then on.

    A signature is the structure, dtypes and shapes of tensors (arrays of NumPy and other libraries and NumPy scalars
    count as tensors), the specs and aliasing of Variables, and the type and value of every other argument; an object
    that is no plain value nor frozen dataclass is the object it is. How a call is spelled does not matter, nor the
    order of a dict: the function sees it in the order of the call that made the trace. Variables that the function
    reads become inputs and those it assigns become outputs, all or none of them written by a call.

    Args:
        fn: the function; used as a decorator with arguments if left out.
        input_signature: a structure of `TensorSpec` for each of the first arguments (a method's instance aside). Where
            the name of a size stands again, the size must be the same.
            Lists and arrays are cast to the spec's dtype, what has another rank or dtype is refused, and a size of
            None is open: one trace serves all sizes, XLA compiles for each.
        dynamic: whether a size that differs from earlier calls is left open in the next trace (but for sizes 0 and 1,
            which have their own). ``"auto"`` gives it up for calls whose open traces were of no use eight times, since
            the code needs the numbers; True never does; with False every shape has a trace of its own.
        static_argnames: parameters that are part of the signature by value, whatever they are.
        autograph: convert the function's source, and what it calls, so that Python's control flow takes tensors
            and what it reads and writes outside is known; False traces the function as it is.
        max_depth: how deep a recursion goes that a condition on a tensor ends; a call that needs more of it fails.
        memory_budget: how many bytes the temporaries of a call may take, beside its inputs and outputs: a number, or a
            string such as ``"256MiB"``. What is alive too long is computed again where it is read, the cheapest first
            and no more than needed by XLA's own figure; results and random draws are the same. A smaller budget never
            takes more memory. `explain` says what is computed again and what that costs. It costs a few compilations,
            and does not count what a tape outside of the function keeps of its call.
        max_traces: how many traces are kept; the least recently used one is dropped.
        name: a name for graphs and messages.

    Returns:
        The `CompiledFunction`, or a decorator.

    Raises:
        ArgumentTypeError: `fn` is not callable, something in `input_signature` is no `TensorSpec`, or a
            `memory_budget` that is neither a number nor a string.
        ArgumentError: an unknown static argument, an `input_signature` longer than the arguments, another word for
            `dynamic`, a `memory_budget` that is no size, or `max_traces` or
            `max_depth` less than 1.

    Example:
        >>> import hybridflow as hf
        >>> @hf.compile
        ... def f(x, y):
        ...     return x * y + 1.0
        >>> f(hf.asarray([1.0, 2.0]), 3.0)
        Tensor([4., 7.], dtype=float32)
    """

    def decorate(function: Callable[..., Any]) -> CompiledFunction[Any, Any]:
        if isinstance(function, CompiledFunction):
            function = cast("CompiledFunction[Any, Any]", function).python_function
        return CompiledFunction(
            function,
            static_argnames=static_argnames,
            autograph=autograph,
            max_depth=max_depth,
            memory_budget=memory_budget,
            max_traces=max_traces,
            name=name,
            input_signature=input_signature,
            dynamic=dynamic,
        )

    return decorate if fn is None else decorate(fn)
