"""Compiling a graph with XLA, timed step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, cast

import jax

from hybridflow.backend.collector import collector_paused
from hybridflow.backend.fusion import NEVER_SPEC, call_with_false, inlines_nothing_often, needs_never, with_never
from hybridflow.backend.host_calls import SESSION_SPEC, run_session, with_session
from hybridflow.backend.jax_shim import bare_call, compile_with, direct_call, enable_x64, without_locations
from hybridflow.backend.options import call_options, compiler_options
from hybridflow.core.dims import evaluate as evaluate_size
from hybridflow.core.dtypes import WIDE
from hybridflow.core.node import Node
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.costs import has_large_products
from hybridflow.ir.effects import has_effects
from hybridflow.ir.evaluate import NAMER, lower_graph
from hybridflow.ir.fusion import reads_never
from hybridflow.ir.graph import Graph
from hybridflow.xla.scopes import Namer, fusions, naming
from hybridflow.xla.store.keeping import Entry, entry_for

T = TypeVar("T")


@dataclass(eq=False, slots=True, weakref_slot=True)
class Executable:
    """A graph compiled for given shapes.

    Attributes:
        call: takes raw arrays, returns a list or tuple of `jax.Array`.
        bare: the same for a list of `jax.Array` that are known to have the shapes and dtypes of the graph's inputs: it
            asks nothing, and costs less; None if there is no such way here.
        shown: returns jax's object, for its texts and analyses; what was loaded may be without those, and is loaded
            whole then.
        lower: returns jax's lowering, for its text; it is made anew if the executable was loaded from the store.
        lower_ms: jax tracing and lowering to StableHLO, milliseconds.
        xla_ms: XLA's compilation, milliseconds; 0 if it was loaded.
        load_ms: finding and loading it in the store, milliseconds; 0 if it was not there.
        store: what the store did: ``loaded``, ``stored``, or why it did neither.
        options: XLA's compiler options.
        donated: positions of the inputs whose buffers the outputs may reuse.
        namer: what named the program's instructions after the graph's nodes.
    """

    call: Callable[..., Any]
    bare: Callable[[list[Any]], Sequence[Any]] | None
    shown: Callable[[], Any]
    lower: Callable[[], Any]
    lower_ms: float
    xla_ms: float
    load_ms: float
    store: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    donated: tuple[int, ...] = ()
    namer: Namer = field(default_factory=Namer)

    @property
    def compiled(self) -> Any:
        """The object of jax, for its texts and analyses."""
        return self.shown()

    def fusions(self) -> dict[str, tuple[Node, ...]]:
        """Return the kernels that compute several instructions, by name, with the graph's nodes in each."""
        return fusions(self.compiled.as_text(), self.namer)


def is_wide(graph: Graph) -> bool:
    """Whether a graph has a 64-bit value anywhere, so that jax must be told to keep it."""
    if any(spec.dtype.num in WIDE for spec in (*graph.input_specs, *graph.output_specs)):
        return True
    return any(node.spec(index).dtype.num in WIDE for node in graph.walk() for index in range(len(node.outputs)))


def concrete_specs(specs: Sequence[TensorSpec], sizes: dict[str, int]) -> list[TensorSpec]:
    """Return specs with symbolic sizes replaced."""
    return [make_spec(tuple([evaluate_size(size, sizes) for size in spec.shape]), spec.dtype) for spec in specs]


def compile_graph(
    graph: Graph, *, donate: Sequence[int] = (), sizes: dict[str, int], device: Any = None, note: str | None = None
) -> Executable:
    """Compile a graph.

    Args:
        graph: the graph, after its passes.
        donate: positions of the inputs whose buffers the outputs may reuse; none are if the graph calls Python
            functions, which may fail and leave the inputs as they were.
        sizes: the size of each symbol.
        device: the jax device to run on; jax's default one if None.
        note: what `store.ahead.begin` returned when the graph's function began to be traced.
    """
    backend = jax.default_backend() if device is None else device.platform
    sharding = None if device is None else jax.sharding.SingleDeviceSharding(device)
    lowering = lower_graph(graph, sizes)
    calls_host = has_effects(graph)
    if calls_host:
        lowering = with_session(lowering)
    takes_false = needs_never(backend) and reads_never(graph)
    if takes_false:
        lowering = with_never(lowering)
    donated = () if calls_host else tuple(donate)
    options = compiler_options(large_products=has_large_products(graph, sizes), backend=backend)
    function = jax.jit(lowering, donate_argnums=donated, compiler_options=options)
    extra = call_options(backend) if takes_false else {}  # XLA has functions to keep only with the hidden input
    arguments: list[Any] = [
        jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding)
        for spec in concrete_specs(graph.input_specs, sizes)
    ]
    if calls_host:
        arguments.append(SESSION_SPEC)
    if takes_false:
        arguments.append(NEVER_SPEC)
    wide = is_wide(graph)
    profiling = cast("Namer | None", NAMER.get())
    namer = profiling or Namer(graph=graph)
    steps = _Steps(lambda: function.lower(*arguments), wide, namer, extra)
    with steps.context():
        entry: Entry | str = "not stored: it calls Python functions"
        if profiling is not None:
            entry = "not stored: it is profiled"
        elif not calls_host:
            entry = entry_for(
                graph, arguments, donate=donated, sizes=sizes, device=device, options={**options, **extra},
                text=steps.text, note=note,
            )  # fmt: skip
        loaded = None if isinstance(entry, str) else steps.timed("load", lambda: entry.load(steps.lower))
        if loaded is not None:
            compiled, done = loaded.program, "loaded"
        else:
            compiled = steps.timed("xla", steps.compile)
            done = entry if isinstance(entry, str) else entry.save(compiled, steps.text, steps.seconds())
    whole = loaded is None or loaded.whole
    call = direct_call(compiled)
    if takes_false:
        call = call_with_false(call, device)
    if wide:
        call = _wide_call(call)
    bare = None if takes_false or calls_host else bare_call(compiled, call)
    if calls_host:
        call = _session_call(call)
    shown = (lambda: compiled) if whole else cache(lambda: _whole(entry, steps))
    return Executable(
        call, bare, shown, steps.lower, steps.ms["lower"], steps.ms["xla"], steps.ms["load"], done, options, donated,
        namer,
    )  # fmt: skip


class _Steps:
    """The steps of one compilation, each done when it is asked for, once, and timed."""

    def __init__(self, lower: Callable[[], Any], wide: bool, namer: Namer, extra: Mapping[str, Any]) -> None:
        self.ms = {"lower": 0.0, "load": 0.0, "xla": 0.0}
        self._lower = lower
        self._lowered: Any = None
        self._wide = wide
        self._namer = namer
        self._extra = extra

    @contextmanager
    def context(self) -> Generator[None]:
        """Keep the dtypes of the graph, and name what is lowered after its nodes."""
        with enable_x64() if self._wide else nullcontext(), naming(self._namer):
            yield

    def timed(self, step: str, run: Callable[[], T]) -> T:
        """Do a step, which may have lowered the graph on the way."""
        lowering, start = self.ms["lower"], time.perf_counter()
        result = run()
        self.ms[step] = (time.perf_counter() - start) * 1e3 - (self.ms["lower"] - lowering)
        return result

    def lower(self) -> Any:
        """Return jax's lowering."""
        if self._lowered is None:
            start = time.perf_counter()
            with self.context(), without_locations(), collector_paused():
                self._lowered = self._lower()
            self.ms["lower"] = (time.perf_counter() - start) * 1e3
        return self._lowered

    def text(self) -> str:
        """Return the lowered program."""
        return self.lower().as_text()

    def compile(self) -> Any:
        """Compile the lowering, with the extra options for calls if they are good for all of its calls."""
        if not self._extra or not inlines_nothing_often(self.text()):
            return self.lower().compile()
        return compile_with(self.lower(), self._extra)

    def seconds(self) -> float:
        """Return how long it took, in seconds."""
        return sum(self.ms.values()) / 1e3


def _whole(entry: Entry | str, steps: _Steps) -> Any:
    """Return an executable that can show its program: from the store, or compiled once more if it is gone there."""
    with steps.context():
        found = None if isinstance(entry, str) else entry.load_whole(steps.lower)
        return steps.compile() if found is None else found


def _session_call(compiled: Any) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        return run_session(compiled, arrays)

    return call


def _wide_call(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        with enable_x64():
            return compiled(*arrays)

    return call
