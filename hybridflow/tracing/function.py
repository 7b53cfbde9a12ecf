"""`hf.compile`: functions traced per signature, lowered to XLA, cached."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

import jax
import numpy as np

from hybridflow.core.context import CONTEXT, Context, context_of, current
from hybridflow.core.dtypes import WIDE
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, message
from hybridflow.core.node import Edge, format_where, user_place
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.ir.graph import Graph
from hybridflow.tracing.config import STATE
from hybridflow.tracing.explain import Change, Explanation, TraceRecord
from hybridflow.tracing.lowered import Lowered
from hybridflow.tracing.signature import TENSOR, Signature, differences, flatten_arguments
from hybridflow.tracing.trace import Trace, gradient_inputs, make_trace, raw_value

P = ParamSpec("P")
R = TypeVar("R")


class CacheInfo(NamedTuple):
    """What `CompiledFunction.cache_info` returns."""

    hits: int
    misses: int
    max_traces: int
    traces: int
    executables: int


class _SoleTrace:
    """The only trace of a function, when it is a function of plain tensors and of nothing else.

    Attributes:
        run: the executable's call.
        plan, single: see `Trace`.
    """

    __slots__ = ("count", "plan", "run", "single", "wide")

    def __init__(self, trace: Trace, run: Callable[..., Any]) -> None:
        self.run = run
        self.plan = trace.plan
        self.single = trace.single
        self.count = trace.arguments
        self.wide = trace.wide

    @classmethod
    def of(cls, trace: Trace, signature: Signature) -> _SoleTrace | None:
        """Return the sole trace, or None if calls need more than their tensors' values."""
        tensors_only = all(leaf.kind == TENSOR for leaf in signature.leaves)
        flat = all(tree is not None and jax.tree_util.treedef_is_leaf(tree) for tree in signature.tree)
        if not tensors_only or not flat or trace.captures or trace.variables or trace.checks or trace.symbolic:
            return None
        arrays = [raw_value(leaf.value) for leaf in signature.leaves]
        return cls(trace, trace.executable(arrays, None).call) if current().device is None else None

    def raw_arguments(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Return the raw values of the arguments, or None if they are not all plain tensors."""
        arrays: list[Any] = []
        for argument in args:
            if type(argument) is not Tensor:
                return None
            value = argument._value
            if type(value) is np.ndarray:
                if value.dtype.num in WIDE and not self.wide:
                    return None  # jax would narrow it without a word
                value = raw_value(argument)
            elif value is None:
                return None
            arrays.append(value)
        return arrays if len(arrays) == self.count else None


class CompiledFunction(Generic[P, R]):
    """A function that is traced once per signature and then runs as one XLA executable.

    Made by `hf.compile`. On a class it is a method, with a cache per instance that is freed with the instance.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        static_argnames: Iterable[str] = (),
        max_traces: int = 64,
        name: str | None = None,
        bound: bool = False,
    ) -> None:
        if not callable(function):
            raise ArgumentTypeError(
                message(f"compile: a {type(function).__name__} is not callable", hint="Pass a function.")
            )
        if max_traces < 1:
            raise ArgumentError(message(f"compile: max_traces={max_traces}, which is less than 1"))
        functools.update_wrapper(cast(Any, self), function)
        self._function = function
        self._bound = bound
        self._name = name or getattr(function, "__name__", type(function).__name__)
        self._parameters = _parameters(function, skip_first=bound)
        self._static = frozenset([static_argnames] if isinstance(static_argnames, str) else static_argnames)
        self._check_static()
        self._max_traces = max_traces
        self._lock = threading.RLock()
        self._traces: dict[Any, Trace] = {}
        self._sole: _SoleTrace | None = None
        self._records: list[TraceRecord] = []
        self._trace_count = 0
        self._compile_count_dropped = 0
        self._hits = 0
        self._misses = 0
        self._instances: dict[int, tuple[Any, CompiledFunction[Any, Any]]] = {}
        self._plain = not self._static and not bound and _is_plain(self._parameters)

    def _check_static(self) -> None:
        if self._parameters is None or any(
            p.kind is inspect.Parameter.VAR_KEYWORD for p in self._parameters.parameters.values()
        ):
            return
        unknown = self._static - self._parameters.parameters.keys()
        if unknown:
            raise ArgumentError(
                message(
                    f"compile: static_argnames {sorted(unknown)} are no parameters of {self._name}",
                    got=f"{self._name}{self._parameters}",
                    hint="Name parameters of the function.",
                )
            )

    # -- calling ----------------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function, tracing it first if no trace fits the arguments."""
        sole = self._sole
        if sole is not None and not kwargs and CONTEXT.get() is None and not STATE.eager:
            # The executable itself refuses other shapes and dtypes, so a lone trace needs no key.
            arrays = sole.raw_arguments(args)
            if arrays is not None:
                try:
                    outputs = sole.run(*arrays)
                except (TypeError, ValueError):
                    return self._call(args, kwargs)
                if sole.single:
                    return cast(R, make_tensor(outputs[0]))
                return sole.plan.build([make_tensor(output) for output in outputs])
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context = CONTEXT.get()
        if STATE.eager or (context is not None and context.tracer is not None):
            return cast(Callable[..., Any], self._function)(*args, **kwargs)
        signature = self._signature(args, kwargs)
        trace = self._find(signature, args)
        if context is not None and context.tapes:
            return self._call_under_tape(trace, signature, context)
        return trace.call(_raw_arguments(signature), None if context is None else context.device)

    def _call_under_tape(self, trace: Trace, signature: Signature, context: Context) -> Any:
        inputs = gradient_inputs(trace, signature)
        edges: list[Edge | None] = [
            tensor._edge if tensor._edge is not None and tensor._edge[0].stamp >= context.start else None
            for tensor in inputs
        ]
        if any(edge is not None for edge in edges):
            return trace.call_recorded(inputs, edges)
        with context_of(None):
            return trace.call(_raw_arguments(signature), context.device)

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
        if self._bound:
            args = args[1:]
        return flatten_arguments(_named(self._parameters, args, kwargs, self._name), self._static)

    def _find(self, signature: Signature, args: tuple[Any, ...]) -> Trace:
        key = (signature.key, current().device)
        trace = self._traces.get(key)
        if trace is not None:
            self._hits += 1
            return trace
        with self._lock:
            trace = self._traces.get(key)
            if trace is not None:
                self._hits += 1
                return trace
            self._misses += 1
            trace = self._trace(signature, args)
            while len(self._traces) >= self._max_traces:
                self._drop_oldest()
            self._traces[key] = trace
            self._sole = _SoleTrace.of(trace, signature) if self._plain and len(self._traces) == 1 else None
            return trace

    def _drop_oldest(self) -> None:
        key, oldest = min(self._traces.items(), key=lambda item: item[1].last_used)
        del self._traces[key]
        self._sole = None
        self._compile_count_dropped += oldest.record.compiles

    def _trace(self, signature: Signature, args: tuple[Any, ...]) -> Trace:
        record = TraceRecord(
            number=self._trace_count + 1,
            signature={leaf.path: leaf.describe() for leaf in signature.leaves},
            call_site=format_where(user_place(3)),
            changes=self._nearest(signature),
        )
        first = args[:1] if self._bound else ()

        def call(arguments: dict[str, Any]) -> Any:
            return _apply(self._function, self._parameters, first, arguments)

        trace = make_trace(self._function, call, signature, self._static, record, self._name, current())
        self._trace_count += 1
        self._records.append(record)
        return trace

    def _nearest(self, signature: Signature) -> tuple[Change, ...]:
        """Return what differs from the cached trace that is most alike."""
        best: list[tuple[str, str, str]] | None = None
        for trace in self._traces.values():
            found = differences(trace.leaves, trace.tree, signature)
            if best is None or len(found) < len(best):
                best = found
        return tuple([Change(*change) for change in best or ()])

    # -- methods ----------------------------------------------------------------------------------------------

    @overload
    def __get__(self, instance: None, owner: type) -> CompiledFunction[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Any: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        """Return the function of a class, or the method of an instance."""
        if instance is None:
            return self
        key = id(instance)
        found = self._instances.get(key)
        if found is None or found[0]() is not instance:
            child = self._child()
            try:
                reference: Any = weakref.ref(instance, lambda _: self._instances.pop(key, None))
            except TypeError:
                # No weak references to it: key the calls by the instance in the shared, bounded cache instead.
                return functools.partial(cast(Any, self), instance)
            found = self._instances[key] = (reference, child)
        return CompiledMethod(found[1], instance)

    def _child(self) -> CompiledFunction[Any, Any]:
        return CompiledFunction(
            self._function, static_argnames=self._static, max_traces=self._max_traces, name=self._name, bound=True
        )

    # -- looking inside ---------------------------------------------------------------------------------------

    @property
    def python_function(self) -> Callable[P, R]:
        """The function as it was before `hf.compile`."""
        return self._function

    @property
    def trace_count(self) -> int:
        """How many times the function was traced; starts from 0."""
        return self._trace_count

    @property
    def compile_count(self) -> int:
        """How many XLA executables were compiled, one per trace and concrete shape."""
        return self._compile_count_dropped + sum(trace.record.compiles for trace in self._traces.values())

    def cache_info(self) -> CacheInfo:
        """Return hits, misses, and the sizes of the trace cache (calls of a function's only trace count as neither)."""
        return CacheInfo(
            self._hits,
            self._misses,
            self._max_traces,
            len(self._traces),
            sum(len(trace.executables) for trace in self._traces.values()),
        )

    def clear_cache(self) -> None:
        """Drop every trace and executable; counts and explanations stay."""
        with self._lock:
            self._compile_count_dropped = self.compile_count
            self._traces.clear()
            self._sole = None

    def explain(self) -> Explanation:
        """Return what was traced, why and at what cost: a printable sequence of records."""
        return Explanation(self._name, self._records)

    def graph(self, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """Return the graph, after the passes, that a call with these arguments runs (tracing it if needed)."""
        return self._trace_for(args, kwargs)[0].graph

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Return the texts of what a call with these arguments runs, from the IR to XLA's optimised HLO."""
        trace, signature = self._trace_for(args, kwargs)
        arrays = _raw_arguments(signature)
        arrays += [raw_value(tensor) for tensor in trace.captures]
        arrays += [variable.current() for variable in trace.variables]
        return Lowered(trace.raw_graph, trace.graph, trace.executable(arrays, current().device))

    def _trace_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Trace, Signature]:
        signature = self._signature(args, kwargs)
        return self._find(signature, args), signature

    def __repr__(self) -> str:
        return f"<CompiledFunction {self._name}, {self._trace_count} traces>"


class CompiledMethod:
    """A compiled method of one living instance: calls go to the instance's own cache."""

    __slots__ = ("__func__", "__self__")

    def __init__(self, function: CompiledFunction[Any, Any], instance: object) -> None:
        self.__func__ = function
        self.__self__ = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return self.__func__(self.__self__, *args, **kwargs)

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """See `CompiledFunction.graph`."""
        return self.__func__.graph(self.__self__, *args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """See `CompiledFunction.lower`."""
        return self.__func__.lower(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__func__, name)

    def __repr__(self) -> str:
        return f"<CompiledMethod {self.__func__!r} of {type(self.__self__).__name__}>"


def _raw_arguments(signature: Signature) -> list[Any]:
    return [raw_value(leaf.value) for leaf in signature.leaves if leaf.kind == TENSOR]


# -- arguments ----------------------------------------------------------------------------------------------------


def _parameters(function: Callable[..., Any], *, skip_first: bool) -> inspect.Signature | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    if skip_first:
        parameters = list(signature.parameters.values())
        if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
            signature = signature.replace(parameters=parameters[1:])
    return signature


def _is_plain(signature: inspect.Signature | None) -> bool:
    """Whether positional arguments for every parameter are a call in its canonical form."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature is not None and all(parameter.kind in kinds for parameter in signature.parameters.values())


def _named(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> dict[str, Any]:
    """Return the arguments by parameter name, defaults filled in, so that spellings do not matter."""
    if signature is None:
        return {**{f"arg{i}": value for i, value in enumerate(args)}, **kwargs}
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentTypeError(
            message(f"{name}: {error}", got=f"{len(args)} positional, {sorted(kwargs)} by name",
                    hint=f"The signature is {name}{signature}.")
        ) from None  # fmt: skip
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            # Keyword order does not matter to Python, so it must not make another trace.
            arguments[parameter.name] = dict(sorted(arguments[parameter.name].items()))
    return arguments


def _apply(
    function: Callable[..., Any], signature: inspect.Signature | None, first: tuple[Any, ...],
    arguments: dict[str, Any],
) -> Any:  # fmt: skip
    if signature is None:
        return function(*first, *arguments.values())
    bound = inspect.BoundArguments(signature, cast(Any, arguments))
    return function(*first, *bound.args, **bound.kwargs)


@overload
def compile(
    fn: Callable[P, R], /, *, static_argnames: Iterable[str] = (), max_traces: int = 64, name: str | None = None
) -> CompiledFunction[P, R]: ...
@overload
def compile(
    fn: None = None, /, *, static_argnames: Iterable[str] = (), max_traces: int = 64, name: str | None = None
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...
def compile(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    static_argnames: Iterable[str] = (),
    max_traces: int = 64,
    name: str | None = None,
) -> Any:
    """Compile a function: trace it once per signature, lower the graph to XLA, and run that from then on.

    A signature is the structure, dtypes and shapes of tensors (NumPy arrays and scalars count as tensors), the
    aliasing of Variables, and the type and value of every other argument. Variables that the function reads become
    inputs and those it assigns become outputs, all or none of them written by a call.

    Args:
        fn: the function; used as a decorator with arguments if left out.
        static_argnames: parameters that are part of the signature by value, whatever they are.
        max_traces: how many traces are kept; the least recently used one is dropped.
        name: a name for graphs and messages.

    Returns:
        The `CompiledFunction`, or a decorator.

    Raises:
        ArgumentTypeError: `fn` is not callable.
        ArgumentError: an unknown static argument, or `max_traces` less than 1.

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
        return CompiledFunction(function, static_argnames=static_argnames, max_traces=max_traces, name=name)

    return decorate if fn is None else decorate(fn)


