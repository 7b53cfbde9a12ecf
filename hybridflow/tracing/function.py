"""`CompiledFunction`: a function that is traced per signature, lowered to XLA, and cached.

The first trace imports the modules that only tracing needs: conversion of source, passes, the store of executables.
"""

from __future__ import annotations

import copy
import functools
import inspect
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, TypeVar, cast, overload

import jax

from hybridflow.core.activity import doing
from hybridflow.core.attached import attached
from hybridflow.core.context import context_now, current
from hybridflow.core.device import device_label
from hybridflow.core.dims import NeedsSizes
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, RetraceWarning, message
from hybridflow.core.forked import require_xla
from hybridflow.core.functions import as_traced, is_whole, require_function
from hybridflow.core.mesh import Axis, Mesh
from hybridflow.core.node import format_where, user_place, warn_at
from hybridflow.core.profiling import PROFILER
from hybridflow.core.settings import SETTINGS
from hybridflow.core.tracebacks import trimmed
from hybridflow.core.traced_number import NeedsNumber
from hybridflow.guards.arguments import Defaults, Parameters, has_class_method
from hybridflow.guards.dynamic import Dynamic, SeenShapes, Sizes, check_dynamic, check_sizes, is_open
from hybridflow.guards.input_signature import ConcreteFunction, InputSignature
from hybridflow.guards.needs import Needs, SeenInts
from hybridflow.guards.outside_numbers import KnownNumbers
from hybridflow.guards.signature import (
    LEAF,
    Signature,
    differences,
    flatten_arguments,
    named_leaves,
    numbers_of,
)
from hybridflow.guards.storable import NeedsGiven
from hybridflow.ir.graph import Graph
from hybridflow.ir.variables import NeedsIdentity
from hybridflow.tracing.again import Undone, as_python
from hybridflow.tracing.cache import CacheInfo, TraceCache
from hybridflow.tracing.calls import as_outputs, call_as_python, keeps_open_size
from hybridflow.tracing.costing import Costing, Specs
from hybridflow.tracing.layouts import Layouts, check_inside
from hybridflow.tracing.method import CompiledMethod, pickled
from hybridflow.tracing.verification import RERUN, Verification

if TYPE_CHECKING:
    from hybridflow.tracing.explanation import Explanation
    from hybridflow.tracing.lowered import Lowered
    from hybridflow.tracing.records import Change, TraceRecord
    from hybridflow.tracing.replay import Replay
    from hybridflow.tracing.short_call import ShortWay
    from hybridflow.tracing.trace import Trace


P = ParamSpec("P")
R = TypeVar("R")


# -- calls without a frame in between ----------------------------------------------------------------------------------


class Entry:
    """An object whose calls run the current value of its own `__call__`.

    Python looks for ``__call__`` only on the type. There it finds a slot, which holds the instance's function.
    """

    __slots__ = {"__call__": "Run the function, tracing it first if no trace fits the arguments."}


def general_call(function: Any) -> Callable[..., Any]:
    """Return the call that finds or makes a trace for its arguments, by the function's ``_call``.

    It refers to the function's state, not to the function, which refers to it: a cycle would need the garbage
    collector.
    """
    reference, kind, state = weakref.ref(function), type(function), function.__dict__

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            function = reference()
            if function is None:  # only its bound `__call__` was kept
                function = object.__new__(kind)
                function.__dict__ = state
            return function._call(args, kwargs)
        except Exception as error:
            raise trimmed(error)  # noqa: B904 (it is the same error)

    return call


def _budget_of(given: Any) -> int | None:
    from hybridflow.tracing.budget import budget_bytes  # only with a budget: importing stays fast

    return budget_bytes(given)


_USELESS = 3
"""The number of traces from which on it is asked whether they were useless."""
_WARNED_TRACES = 16
"""The number of traces at which a warning is given if fewer calls than that found a trace, whatever the reasons."""
_RECORDS = 256
"""The number of traces that `explain` remembers."""


class CompiledFunction(Entry, Generic[P, R]):
    """A function that is traced once per signature and then runs as one XLA executable.

    `hf.compile` creates it. On a class it is a method, with a cache per instance that is freed with the instance.
    """

    internal_attributes: ClassVar[frozenset[str]]
    """See `is_of_users`."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        static_argnames: Iterable[str] = (),
        autograph: bool = True,
        max_traces: int = 64,
        name: str | None = None,
        input_signature: Sequence[Any] | None = None,
        dynamic: Dynamic = "auto",
        max_depth: int = 32,
        memory_budget: int | str | None = None,
        sizes: Sizes = "auto",
        mesh: Mesh | None = None,
        batch: Axis = None,
        in_layouts: Mapping[str, Any] | None = None,
        out_layouts: Any = None,
        verify: int | None = None,
        bound: bool = False,
    ) -> None:
        require_function("compile", function)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ArgumentTypeError(f"compile: {getattr(function, '__qualname__', function)} is an async function",
                                    hint="Compile what computes, and call that from the async function.")
        for option, value in (("max_traces", max_traces), ("max_depth", max_depth)):
            if value < 1:
                raise ArgumentError(f"compile: {option}={value}, which is less than 1")
        functools.update_wrapper(cast(Any, self), function)
        self._function = function
        self._autograph = autograph
        self._bound = bound
        self._descriptor: CompiledFunction[Any, Any] | None = None
        self._attribute: str | None = None
        self._name = name or getattr(function, "__name__", type(function).__name__)
        self._static = frozenset([static_argnames] if isinstance(static_argnames, str) else static_argnames)
        self._inputs: InputSignature | None = None
        self._take_parameters()
        self._static = self._static_entries()
        self._options: dict[str, Any] = {
            "input_signature": input_signature, "dynamic": check_dynamic(dynamic), "max_depth": max_depth,
            "memory_budget": memory_budget, "sizes": check_sizes(sizes), "mesh": mesh, "batch": batch,
            "in_layouts": in_layouts, "out_layouts": out_layouts, "verify": verify,
        }
        self._verification = Verification(verify)
        self._diverting = self._verification if self._verification.own else SETTINGS
        self._layouts = Layouts.of(self._options, self._parameters, self._name)
        self._take_inputs(self._parameters)
        self._budget = None if memory_budget is None else _budget_of(memory_budget)
        self._shapes = SeenShapes(dynamic)
        self._outside = KnownNumbers()
        self._ints = SeenInts()
        self._warns = True
        self._max_traces = max_traces
        self._lock = threading.RLock()
        self._traces = TraceCache(max_traces)
        self._needed: dict[Any, Needs] = {}
        self._needed_at: dict[str, str] = {}
        self._last: Callable[[], Trace | None] = _no_trace
        self._records: deque[TraceRecord] = deque(maxlen=_RECORDS)
        self._trace_count = 0
        self._hits = 0
        self._misses = 0
        self._instances: dict[int, tuple[Any, CompiledFunction[Any, Any]]] = {}
        self._enter_by(None)

    def _take_parameters(self) -> None:
        """Read the function's current parameters and defaults."""
        self._defaults = Defaults(self._function)
        self._parameters = Parameters.of(self._function, skip_first=self._bound)
        self._apart = self._apart_for(self._inputs)

    def _apart_for(self, inputs: InputSignature | None) -> tuple[str, ...]:
        """Return the names of the arguments that options are for and that the function's ``*args`` or so take."""
        return self._parameters.without_entries([*self._static, *(() if inputs is None else inputs.parameters)])

    def _take_inputs(self, parameters: Parameters) -> None:
        """Set the specs that `input_signature` gives for these parameters."""
        self._inputs = InputSignature.of(self._options["input_signature"], parameters, self._name)
        self._apart = self._apart_for(self._inputs)

    def _static_entries(self) -> frozenset[str]:
        """Return the names that `static_argnames` have among named arguments."""
        entries = {name: self._parameters.entry(name) for name in self._static}
        unknown = [name for name, entry in entries.items() if entry is None]
        if unknown:
            raise ArgumentError(f"compile: static_argnames {sorted(unknown)} are no parameters of {self._name}",
                                got=f"{self._name}{self._parameters.text}", hint="Name parameters of the function.")
        return frozenset([entry for entry in entries.values() if entry is not None])

    # -- calling ----------------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Run the function, tracing it first if no trace fits the arguments."""
            ...

    def _enter_by(self, short: ShortWay | None) -> None:
        """Set what calls run: the generated fast path in the cases that it covers, else the general path."""
        general = general_call(self)
        cast(Any, self).__call__ = general if short is None else short(general)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: InputSignature | None = None) -> Any:
        if args and isinstance(args[0], type) and not self._bound and has_class_method(args[0], self):
            return self.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
        context = context_now()
        if self._diverting.diverts or (context is not None and context.tracer is not None):
            if SETTINGS.eager or current().tracer is not None or RERUN.get():
                return self._call_python(args, kwargs, inputs or self._inputs)
            number = self._verification.due()
        else:
            number = None
        require_xla(f"the compiled function {self._name!r}")
        try:
            if number is not None:
                return attached("verified_call")(self, args, kwargs, inputs, number)
            trace, signature = self._find(self._signature(args, kwargs, inputs), args)
            return trace.call_now(signature, current() if context is None else context)
        except Undone as error:
            undone = error
        return as_python(lambda: self._call(args, kwargs, inputs), undone)

    def _call_python(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: InputSignature | None) -> Any:
        """Call the function itself. Its result is that of a compiled call, and so are arguments with specs."""
        label = getattr(self._function, "__qualname__", self._name)
        check_inside(self._layouts, current().tracer, self._name)
        if inputs is not None:
            arguments = inputs.cast(self._named(args, kwargs, inputs))
            result = call_as_python(label, self._caller(args), arguments, self._static)
        else:
            result = self._to_call()(*args, **kwargs)
        return as_outputs(label, result)

    def _to_call(self) -> Callable[..., Any]:
        """Return the function to run now: the converted one in a trace, the user's own outside."""
        return as_traced(self._function) if self._autograph else self._function

    def _signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: InputSignature | None = None
    ) -> Signature:
        arguments = self._named(args, kwargs, inputs)
        inputs = inputs or self._inputs
        if inputs is None:
            return flatten_arguments(arguments, self._static)
        return inputs.pattern(flatten_arguments(inputs.cast(arguments), self._static))

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: InputSignature | None) -> dict[str, Any]:
        """Return the arguments of a call by parameter."""
        if self._bound:
            args = args[1:]
        if self._defaults.have_changed():
            self._take_parameters()
        apart = self._apart if (inputs or self._inputs) is self._inputs else self._apart_for(inputs)
        return self._parameters.named(args, kwargs, self._name, apart)

    def _caller(self, args: tuple[Any, ...]) -> Callable[[dict[str, Any]], Any]:
        """Return a function of named arguments that calls the user's function."""
        from hybridflow.convert import recursion_limit  # only tracing needs it: importing stays fast
        from hybridflow.guards.observe import is_not_converted

        first = args[:1] if self._bound else ()

        def run(arguments: dict[str, Any]) -> Any:
            if not self._autograph:
                is_not_converted(self._function, (*first, *arguments.values()))
            with recursion_limit(self._options["max_depth"]):
                return self._parameters.call(self._to_call(), first, arguments)

        return run

    def _roots(self, args: tuple[Any, ...]) -> list[tuple[Any, str]]:
        """Return the objects besides the arguments whose state the function may read, such as a method's instance."""
        if self._bound:
            return [(args[0], next(iter(inspect.signature(self._function).parameters), "self"))]
        function: Any = self._function
        instance = getattr(function, "__self__", None)
        if instance is not None:
            return [(instance, "self")]
        return [(function, self._name)]

    def _find(
        self, signature: Signature, args: tuple[Any, ...], *, to_run: bool = True
    ) -> tuple[Trace, Signature]:
        """Return the trace of a call, making one if there is none, and the signature by which it was found."""
        trace = self._matching(signature)
        if trace is None:
            with self._lock:
                trace = self._matching(signature)
                if trace is None:
                    try:
                        return self._add(signature, args, to_run)
                    except Undone as undone:
                        if to_run:
                            raise
                        raise cast(Exception, undone.__cause__) from None
        self._hits += 1
        if to_run and trace[0].effects is not None:
            trace[0].repeat_effects(trace[0].effects, numbers_of(trace[1]))
        if to_run and trace[0] is not self._last():
            self._shorten(*trace)
        return trace

    def _shorten(self, trace: Trace, signature: Signature) -> None:
        """Generate the fast path for later calls if all traces have the same key."""
        if PROFILER.get() is not None or self._diverting.diverts:
            return  # later calls may use other executables, or be plain again
        from hybridflow.tracing.short_call import short_way  # only tracing needs it: importing stays fast

        self._last = weakref.ref(trace)  # a trace is freed with the arguments that only it can serve
        plain = not self._static and self._parameters.passed_by_position(signature.tree)
        short = plain and SETTINGS.plain and self._traces.of_one_key and not trace.once
        self._enter_by(short_way(trace, signature, bound=self._bound) if short else None)

    def _matching(self, signature: Signature) -> tuple[Trace, Signature] | None:
        """Return the most specific trace that a call fits, and the signature by which it was found."""
        signature = self._ints.with_inputs(signature)
        for candidate in (signature, *self._shapes.candidates(signature)):
            needed = self._needed.get(candidate.key) if self._needed else None
            trace = self._fitting(candidate if needed is None else needed.met_by(candidate))
            if trace is not None:
                return trace
        return None

    def _fitting(self, signature: Signature) -> tuple[Trace, Signature] | None:
        """Return a trace of a signature that also fits the state outside, and the signature with the inputs there."""
        for trace in self._traces.find(_cache_key(signature)):
            if trace.once or (trace.guarded and not trace.fits(signature)):
                continue
            numbers = trace.holding(signature)
            if numbers is not None:
                return trace, signature._replace(outside=numbers) if numbers else signature
        return None

    def _add(self, given: Signature, args: tuple[Any, ...], to_run: bool) -> tuple[Trace, Signature]:
        from hybridflow.tracing.make_trace import require_kept  # only tracing needs it: importing stays fast

        self._misses += 1
        closed = self._ints.note(given)
        generic = self._shapes.to_trace(closed)
        needed, known = self._needed.get(generic.key, Needs()), len(self._outside)
        with self._outside.learning():
            while True:
                signature = needed.met_by(generic) if any(needed) else generic
                try:
                    trace = self._trace(signature, args, may_close=generic is not closed, as_given=needed.given)
                    break
                except (NeedsNumber, NeedsIdentity, NeedsGiven) as need:
                    before, by_value = needed, known
                    needed, known = needed.and_of(generic, need), len(self._outside)
                    assert (needed, known) != (before, by_value)  # or the trace would restart for ever
                    if isinstance(need, NeedsNumber):
                        line = format_where(need.where) or "an unknown line"
                        self._needed_at.update(dict.fromkeys(need.paths, line))
                except NeedsSizes:
                    if self._outside.sizes.close():
                        continue
                    if generic is closed:
                        raise keeps_open_size(self._name) from None
                    generic = closed
                    needed = self._needed.get(generic.key, Needs())
        signature = signature._replace(outside=trace.first_numbers)
        if any(needed):
            self._needed[generic.key] = needed
        try:
            require_kept(trace, self._name)
        except Exception:
            trace.settle(called=False)
            raise
        self._trace_count += 1
        self._records.append(trace.record)
        if trace.settle(called=to_run):
            self._keep(_cache_key(signature), trace)
            if to_run:
                self._shorten(trace, signature)
        if self._warns and self._misses > _USELESS:
            self._warn(trace.record)
        return trace, signature

    def _keep(self, key: Any, trace: Trace) -> None:
        """Keep a trace for later calls; one that serves only its own call is kept to explain the next trace."""
        for other in self._traces.find(key):
            if other.once:
                trace.take_executables(other)
                self._traces.discard(other)
        self._traces.add(key, trace)

    def _warn(self, record: TraceRecord) -> None:
        """Warn, once, that the function is traced again at nearly every call, and why."""
        advice = attached("useless_traces")(self._records, self._hits, self._needed_at)
        many = self._misses == _WARNED_TRACES and self._hits < _WARNED_TRACES
        if advice is None and not many:
            return
        self._warns = False
        call_site = f", for the call at {record.call_site}" if record.call_site else ""
        spent = sum(one.spent for one in self._records if not one.compared)
        text = message(
            f"{self._name}: {advice.said}" if advice is not None else
            f"{self._name} was traced {self._misses} times; only {self._hits} calls found a trace since the second",
            got=f"{self._trace_count} traces, the last one for {record.reason}{call_site}; tracing has cost "
            f"{spent / 1e3:.2f} s",
            hint="Pass what changes as a tensor, and tensors of one shape; .explain() tells what every trace was for."
            if advice is None else advice.hint,
        )
        warn_at(user_place(3), text, RetraceWarning)

    def _next_number(self) -> int:
        return self._records[-1].number + 1 if self._records else 1

    def note_compared(self, record: TraceRecord) -> None:
        """Let `explain` show a trace that `hf.compare` made."""
        record.number, record.compared = self._next_number(), True
        self._records.append(record)

    def _trace(
        self, signature: Signature, args: tuple[Any, ...], *, may_close: bool = False, as_given: bool = False
    ) -> Trace:
        from hybridflow.tracing.bounded import BoundedSizes, exact_first  # only tracing needs it: importing stays fast
        from hybridflow.tracing.make_trace import make_trace
        from hybridflow.tracing.records import TraceRecord

        dropped = self._traces.was_dropped(_cache_key(signature))
        named = self._parameters.labelled(named_leaves(signature), self._apart)
        record = TraceRecord(
            number=self._next_number(),
            first=self._trace_count == 0,
            signature={leaf.path: leaf.describe() for leaf in named},
            call_site=format_where(user_place(3)),
            changes=() if dropped else self._nearest(signature._replace(leaves=named)),
            dropped=dropped,
            others=len(self._traces),
            hits=self._hits,
            at=time.monotonic(),
        )
        opens = self._options["dynamic"] is not False and self._layouts is None and self._inputs is None
        with doing("tracing", self._name):
            try:
                trace = make_trace(
                    self._function, self._caller(args), signature, named, self._static, record, self._name, current(),
                    self._roots(args), self._outside, self._budget, self._layouts, may_close=may_close,
                    as_given=as_given, opens_sizes=opens,
                )
            except Exception as error:  # of `graph`, `cost` and the like too, which no `general_call` is around
                raise trimmed(error)  # noqa: B904 (it is the same error)
        if trace.symbolic and self._layouts is None and self._options["sizes"] != "exact":
            trace.bounds = BoundedSizes(trace, exact_first(signature), always=self._options["sizes"] == "bounded")
        return trace

    def _nearest(self, signature: Signature) -> tuple[Change, ...]:
        """Return the differences from the most similar cached trace."""
        from hybridflow.tracing.records import Change  # only tracing needs it: importing stays fast

        best: tuple[bool, list[tuple[str, str, str]]] | None = None
        context = _context_key()
        for key, trace in self._traces.items():
            arguments = differences(trace.leaves, trace.tree, trace.types, signature)
            around = arguments or _context_changes(key, context) or trace.changes(signature)
            changes = around or trace.guard_changes(signature)
            rated = bool(arguments), changes
            if best is None or (rated[0], len(changes)) < (best[0], len(best[1])):
                best = rated
        if best is None and self._traces.gone is not None:
            best = True, differences(*self._traces.gone, signature)
        return tuple([Change.between(*change) for change in best[1]]) if best else ()

    def concrete(self, *specs: Any) -> ConcreteFunction:
        """Trace the function for given specs, without running it.

        Args:
            *specs: a structure of `TensorSpec` for each of the first arguments, as for `input_signature`; the other
                arguments must have defaults.

        Returns:
            A callable with the function's results that accepts only arguments that fit the specs.

        Raises:
            ArgumentTypeError: a leaf of a spec is no `TensorSpec`.

        Example:
            >>> import hybridflow as hf
            >>> f = hf.compile(lambda x: x * 2)
            >>> double = f.concrete(hf.TensorSpec([None]))
            >>> double([1.0, 2.0]), f.trace_count
            (Tensor([2., 4.], dtype=float32), 1)
        """
        return self._concrete((), specs)

    def _concrete(self, first: tuple[Any, ...], specs: Sequence[Any]) -> ConcreteFunction:
        parameters = self._parameters if not first or self._bound else self._parameters.without_first()
        inputs = InputSignature(specs, parameters, self._name)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._call((*first, *args), kwargs, inputs)

        example = (*first, *inputs.examples())
        signature = self._signature(example, {}, inputs)
        trace, matched = self._find(signature, example, to_run=False)
        self._serve(self._signature(example, {}), matched)
        return ConcreteFunction(self._name, inputs, run, trace.graph)

    # -- methods ----------------------------------------------------------------------------------------------

    def __set_name__(self, owner: type, name: str) -> None:
        """Record that this is a method: `input_signature` has no entry for the instance, whatever its name."""
        self._attribute = name
        if not self._bound:
            self._take_inputs(self._parameters.without_first())

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> CompiledFunction[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """Return the function of a class, or the method of an instance."""
        if instance is None:
            return self
        key = id(instance)
        bound = self._instances.get(key)
        if bound is None or bound[0]() is not instance:
            bound = self._adopt(key, instance)
        return CompiledMethod(self if bound is None else bound[1], instance)

    def _adopt(self, key: int, instance: object) -> tuple[Any, CompiledFunction[Any, Any]] | None:
        """Give an instance a cache of its own. Return None if the instance must be an argument like others.

        That is the case for pytrees, whose leaves are traced, and for objects that cannot be referenced weakly, whose
        caches would never be freed.
        """
        if jax.tree_util.tree_structure(instance) != LEAF:
            return None
        with self._lock:
            bound = self._instances.get(key)
            if bound is None or bound[0]() is not instance:
                try:
                    reference = weakref.ref(instance, lambda _: self._instances.pop(key, None))
                except TypeError:
                    return None
                made = self._like(self._function, bound=True)
                made._descriptor = self
                bound = self._instances[key] = (reference, made)
            return bound

    def _like(
        self, function: Callable[..., Any], *, bound: bool = False, **options: Any
    ) -> CompiledFunction[Any, Any]:
        """Compile a function with the same options, apart from the given ones."""
        return CompiledFunction(
            function,
            static_argnames=self._static,
            autograph=self._autograph,
            max_traces=self._max_traces,
            name=self._name,
            bound=bound,
            **{**self._options, **options},
        )

    # -- looking inside ---------------------------------------------------------------------------------------

    def keeps_trace(self, trace: Trace) -> bool:
        """Whether a trace is kept for later calls."""
        return not trace.once and any(one is trace for one in self._traces)

    def clear_cache(self) -> None:
        """Drop every trace and executable; counts and explanations stay."""
        with self._lock:
            self._traces.clear()
            self._shapes.clear()
            self._outside.clear()
            self._ints.clear()
            self._last = _no_trace
            self._enter_by(None)

    def _traced_again(self, given: Specs) -> Graph:
        """Trace a call that was traced before, for nothing but the graph, which calls do not use."""
        signature = given.pattern(self._signature(given.args, given.kwargs))
        needed = self._needed.get(signature.key, Needs())
        trace = self._trace(needed.met_by(signature), given.args, as_given=needed.given)
        trace.settle(called=False)
        return trace.raw_graph

    def _trace_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Trace, Signature]:
        return self._find(self._signature(args, kwargs), args, to_run=False)

    def _trace_of(self, given: Specs) -> tuple[Trace, Signature, bool]:
        """Return the trace of arguments that may be specs, its signature, and whether they leave a size open."""
        plain = self._signature(given.args, given.kwargs)
        trace, signature = self._find(given.pattern(plain), given.args, to_run=False)
        if given.opened:
            self._serve(plain, signature)
        return trace, signature, given.opened

    def _serve(self, example: Signature, trace: Signature) -> None:
        """Let later calls with other sizes find a trace by the sizes that it leaves open."""
        opened = {index: leaf.key[1] for index, leaf in enumerate(trace.leaves) if is_open(leaf)}
        self._shapes.add(example, opened)

    def __copy__(self) -> CompiledFunction[P, R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction[P, R]:
        # Copying works as for Python's functions: a function is its own copy, and a method is copied with its instance.
        function = copy.deepcopy(self._function, memo)
        return self if function is self._function else self._like(function)

    def __reduce__(self) -> str | tuple[Any, ...]:
        options = {"static_argnames": self._static, "autograph": self._autograph, "max_traces": self._max_traces,
                   "name": self._name, **self._options}
        return pickled(self, self._function, options)

    def __repr__(self) -> str:
        return f"<CompiledFunction {self._name}, {self._trace_count} traces>"

    # -- inspection: counts, the graph, XLA's code, the reasons for traces, and the cost ------------------------------

    @property
    def python_function(self) -> Callable[P, R]:
        """The function as it was before `hf.compile`."""
        return self._function

    @property
    def trace_count(self) -> int:
        """The number of times the function was traced."""
        return self._trace_count

    @property
    def compile_count(self) -> int:
        """The number of XLA executables that were compiled, or loaded from the store on disk.

        A trace has one for each concrete shape or bound; calls that a tape records have one for their results, and one
        for each set of gradients that was asked for.
        """
        return self._traces.compiles

    def cache_info(self) -> CacheInfo:
        """Return hits, misses, and sizes of the trace cache; fast calls of a function's only trace count as neither."""
        return CacheInfo(
            self._hits,
            self._misses,
            self._max_traces,
            len(self._traces),
            self._traces.executables,
        )

    def explain(self) -> Explanation:
        """Return a printable sequence of records that tell what was traced, why, and at what cost."""
        from hybridflow.tracing.explanation import Explanation  # not every program needs it: importing stays fast

        advice = attached("advice_on")(self._records, self._traces, self._hits, self._needed_at)
        needed = [f"the value of {path} is needed at {at}: each has a trace" for path, at in self._needed_at.items()]
        return Explanation(self._name, self._records, advice, self._verification.lines(), needed)

    def graph(self, /, *args: P.args, **kwargs: P.kwargs) -> Graph:
        """Return the graph, after the passes, that a call with these arguments runs (tracing it if needed).

        Args:
            *args, **kwargs: as for a call; a `TensorSpec` may replace any tensor, with None for an open size.

        Example:
            >>> import hybridflow as hf
            >>> f = hf.compile(lambda x: x * 2)
            >>> str(f.graph(hf.TensorSpec([None, 3])).output_specs[0])
            'f32[x_0,3]'
        """
        trace, signature, opened = self._trace_of(self._specs(args, kwargs))
        graph = trace.graph_for(signature)
        if trace.placing is not None and not opened:
            from hybridflow.xla.partition import layouts_of  # it loads Shardy, which few programs need

            graph.layouts = layouts_of(trace.graph, trace.sizes(signature), trace.placing)
        return graph

    def lower(self, /, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Return the program that a call with these arguments runs, as texts from the IR to XLA's optimised HLO.

        Args:
            *args, **kwargs: as for a call; a `TensorSpec` may replace any tensor, with None for an open size. With an
                open size there are no texts from XLA, which compiles for known sizes.
        """
        trace, signature, opened = self._trace_of(self._specs(args, kwargs))
        executable = None if opened else trace.executable_for(trace.sizes(signature), current().device)
        from hybridflow.tracing.lowered import Lowered  # not every program needs it: importing stays fast

        return Lowered(trace.raw_graph, trace.graph, executable)

    def cost(self, /, *args: Any, mesh: Mesh | Mapping[str, int] | None = None, **kwargs: Any) -> Any:
        """Return the cost of a call with these arguments; nothing runs.

        The function is traced if no trace fits. That counts like any trace, and calls with such arguments use it.

        Args:
            *args, **kwargs: as for a call; a `TensorSpec` may replace any tensor, with None for an open size.
            mesh: another mesh than the function's, with its layouts, or sizes by axis, for which no devices are needed.

        Returns:
            The `hf.CostReport`; see `hf.cost`.
        """
        if mesh is not None:
            return self._like(self._function, bound=self._bound, mesh=Mesh.planned(mesh, "cost")).cost(*args, **kwargs)
        given = self._specs(args, kwargs)
        trace, signature, opened = self._trace_of(given)
        costing = Costing.of(self._name, trace, signature, opened=opened)
        return attached("report_of")(replace(costing, retrace=lambda: self._traced_again(given)))

    def _specs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Specs:
        return Specs(args, kwargs, self._function if is_whole(self._function) else None)

    def replay(self, /, *args: P.args, **kwargs: P.kwargs) -> Replay:
        """Return the call's graph as it is traced, and its inputs; this function's own traces and counts stay."""
        from hybridflow.tracing.replay import Replay  # not every program needs it: importing stays fast

        return Replay.of(*self._like(self._function, bound=self._bound)._trace_for(args, kwargs))

    def converted_code(self) -> str:
        """Return the converted code that is traced in place of the function, whose control flow accepts tensors.

        Raises:
            ArgumentError: the function is traced unconverted; the text says why.

        """
        from hybridflow.convert import (  # not every program needs it: importing stays fast
            NotConvertible,
            converted_text,
        )

        if not self._autograph:
            raise ArgumentError(f"converted_code: {self._name} is compiled with autograph=False")
        try:
            return converted_text(self._function)
        except NotConvertible as why:
            raise ArgumentError(f"converted_code: {self._name} is traced as it is, for {why}") from None


def _no_trace() -> None:
    return None


def _cache_key(signature: Signature) -> Any:
    """Return the key by which a trace is found."""
    return signature.key, signature.types, *_context_key()


def _context_key() -> tuple[Any, Any, bool, str, Any]:
    """Return the rest of a trace's key besides its signature.

    That is the device, autocast, checks, the precision of products, and what observes modules.
    """
    context = current()
    autocast = context.autocast and context.autocast.dtype
    return context.device, autocast, SETTINGS.checks, SETTINGS.matmul_precision, SETTINGS.observers


def _context_changes(key: Any, context_key: tuple[Any, Any, bool, str, Any]) -> list[tuple[str, str, str]]:
    """Return ``(what, before, after)`` for each difference between `_context_key` and the key of an earlier trace.

    Autocast is not named here: `Fit.changes`, which is asked next, does it.
    """
    _, _, device, _, checks, precision, observers = key
    changes: list[tuple[str, str, str]] = []
    if device != context_key[0]:
        changes.append(("hf.device", device_label(device), device_label(context_key[0])))
    if checks != context_key[2]:
        changes.append(("hf.config.checks", str(checks), str(context_key[2])))
    if precision != context_key[3]:
        changes.append(("hf.config.matmul_precision", precision, context_key[3]))
    if observers != context_key[4]:
        before, after = [", ".join(one.name for one in several) or "none" for several in (observers, context_key[4])]
        changes.append(("what observes modules", before, after))
    return changes


CompiledFunction.internal_attributes = frozenset(vars(CompiledFunction(_cache_key)))
